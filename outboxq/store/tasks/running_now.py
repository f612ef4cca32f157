"""Count the tasks that are not due yet and match, and make them due in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack
from uuid import UUID, uuid4

from ...database.dialects import Begin
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import TaskStatus, Waiting
from ...payload.parameters import sanitize
from ..arguments import positive, state_of
from ..task_rows import pack_ids
from ..transactions import Transactions
from . import operations, task_pages
from .cancelling import BATCH, LOOKED_AT, PARTED, Part, bound_to, largest_first, look_up, named
from .event_log import Count, Snapshot, counted_to
from .operations import OnChange, freed, was_done
from .task_pages import FIRST, LATER, SCAN, TaskFilters, filter_values, next_id


def count_later(
    store: Transactions,
    *,
    waiting: Waiting | str | None = None,
    snapshot: Snapshot | None = None,
    most: int = 100_000,
    using: object = None,
    **wanted: Unpack[TaskFilters],
) -> Count:
    """Count the tasks that `run_all_now` would make due, up to `most`. At most 200,000 outbox entries are read.

    Pass the `snapshot` of the count to `run_all_now`, which then changes only tasks that were counted. With `snapshot`,
    this counts how many tasks from an earlier count are still not due. Raises InvalidArgument for another state than
    DELAYED and RETRYING.
    """
    queue, values = wanted.get("queue"), _values(wanted, waiting)
    values |= {"scan": LOOKED_AT, "limit": positive(most, "most") + 1}

    def work(target: Target) -> Count:
        now = Snapshot.take(target) if snapshot is None else snapshot
        given = store.values(target, **values, **({} if snapshot is None else bound_to(snapshot, TaskStatus.READY)))
        builder = task_pages.count_waiting if queue is None else task_pages.count_waiting_of_queue
        found, cut = target.run(builder, given)[0]["tasks"], False
        if found <= most:
            rest = task_pages.END["entries_up"] if queue is None else task_pages.queue_is_longer
            cut = len(target.run(rest, values)) > (queue is None)
        return counted_to(most, found, cut=cut, snapshot=now)

    return store.run(work, using=using, begin=Begin.SNAPSHOT)


def later_parts(
    store: Transactions,
    *,
    snapshot: Snapshot,
    waiting: Waiting | str | None = None,
    limit: int | None = None,
    most: int = PARTED,
    using: object = None,
    **wanted: Unpack[TaskFilters],
) -> list[Part]:
    """Return the tasks that `count_later` has counted in this snapshot by state, task and queue, the largest number
    first. Only `most` matching tasks are read. With `limit`, only the tasks that `run_all_now` with this limit would
    make due are returned.
    """
    left = positive(most, "most") if limit is None else min(positive(limit), positive(most, "most"))
    values = {**_values(wanted, waiting), "scan": SCAN, **bound_to(snapshot, TaskStatus.READY)}

    def work(target: Target) -> list[Part]:
        counted, given = Counter[tuple[str, str, Waiting]](), dict(values)
        after: UUID | None = FIRST
        while after is not None and (rest := left - counted.total()) > 0:
            ids, after = look_up(store, target, status=TaskStatus.READY, values={**given, "limit": min(BATCH, rest)})
            if after is not None:
                given["from_id"] = next_id(after)
            for row in target.run(named, pack_ids(target, "chosen", ids)) if ids else ():
                state = Waiting.DELAYED if row["retry_at"] is None else Waiting.RETRYING
                counted[row["task_name"], row["queue"], state] += 1
        found = [
            Part(task_name=name, queue=queue, status=TaskStatus.READY, waiting=state, number=number)
            for (name, queue, state), number in counted.items()
        ]
        return sorted(found, key=largest_first)

    return store.run(work, using=using, begin=Begin.READ)


def run_all_now(
    store: Transactions,
    *,
    waiting: Waiting | str | None = None,
    reason: str = "",
    snapshot: Snapshot | None = None,
    limit: int | None = None,
    on_progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    on_change: OnChange | None = None,
    using: object = None,
    **wanted: Unpack[TaskFilters],
) -> int:
    """Make the matching tasks due now that are not due yet (see `TaskFilters`), oldest first, at most `limit` of them;
    returns their number.

    `waiting` DELAYED or RETRYING restricts this to tasks in that state. They keep their positions among the tasks with
    their keys; pauses and limits still apply.

    With the `snapshot` of a count, tasks that have since been enqueued or become Ready are left alone. Without
    `snapshot`, one is taken at the beginning. Each batch of 500 is a separate transaction (with `using`, all are part
    of the caller's). `on_progress` is called after each batch with the number of tasks so far, `stop` is called before
    each batch, and `on_change` in each transaction with the number of tasks that it changes. Raises InvalidArgument.
    """
    bound = bound_to(snapshot or store.run(Snapshot.take, using=using, begin=Begin.READ), TaskStatus.READY)
    values = {**_values(wanted, waiting), "scan": SCAN, **bound}
    left, changed = None if limit is None else positive(limit), 0
    after: UUID | None = FIRST
    while after is not None and left != 0 and not (stop is not None and stop()):
        given = {**values, "limit": BATCH if left is None else min(BATCH, left)}
        look = partial(look_up, store, status=TaskStatus.READY, values=given)
        ids, after = store.run(look, using=using, begin=Begin.READ)
        if ids:
            moved = _make_due(store, ids, reason=reason, on_change=on_change, using=using)
            changed += moved
            left = None if left is None else left - moved
            if on_progress is not None:
                on_progress(changed)
        if after is not None:
            values["from_id"] = next_id(after)
    return changed


def _make_due(
    store: Transactions, task_ids: list[UUID], *, reason: str, on_change: OnChange | None, using: object
) -> int:
    """Make these tasks due in one transaction; returns the number of those that were not due."""
    request, why = str(uuid4()), sanitize(reason) or None

    def work(target: Target) -> int:
        values = store.values(target, due_now=True, priority=None, request=request, reason=why)
        with target.atomic():
            moved = target.run(operations.make_all_due, values, [(one,) for one in sorted(task_ids)])
            if moved and on_change is not None:
                on_change(target, len(moved))
        store.wake(target, freed(moved))
        return len(moved)

    def done(target: Target) -> int | None:
        return sum(was_done(target, one, request) for one in task_ids) or None

    return store.run(work, using=using, done=done)


def _values(wanted: TaskFilters, waiting: Waiting | str | None) -> dict[str, Any]:
    if (state := state_of(waiting)) is Waiting.DUE:
        raise InvalidArgument("only delayed and retrying tasks can be made due, not due ones")
    return {**filter_values(wanted), "waiting": state or LATER}
