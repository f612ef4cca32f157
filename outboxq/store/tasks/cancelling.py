"""Change many tasks in batches, and count and cancel the tasks that match filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar, Unpack
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Begin, Row
from ...database.grammar import Grammar
from ...database.tables import task_executions
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import STATUS_AFTER, EventType, TaskStatus, Waiting
from ...model.uuid7 import uuid7
from ..arguments import positive, status_of
from ..task_rows import IDS, pack_ids
from ..transactions import Transactions
from . import task_pages
from .event_log import Count, Snapshot, counted_to
from .operations import OnChange, freed, manual_change, places, request_cancel, request_data, was_done
from .task_pages import FIRST, SCAN, TaskFilters, ending, filter_values, next_id, source_of

Place = TypeVar("Place")

PARTED = 10_000
"""Maximum number of tasks, for each status, whose names are looked up for `parts`."""
BATCH = 500
"""Number of tasks changed in each transaction."""
LOOKED_AT = 200_000
"""Maximum number of outbox entries that a count reads. For a single queue, the maximum applies separately to entries
with a key and to entries without one.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bulk:
    """The options of a change to many tasks, which is made in batches."""

    reason: str = ""
    limit: int | None = None
    """Maximum number of tasks to change."""
    on_progress: Callable[[int], None] | None = None
    """A function that is called after each batch with the number of tasks changed so far."""
    stop: Callable[[], bool] | None = None
    """A function that is called before each batch. If it returns True, no more tasks are changed."""
    on_change: OnChange | None = None
    using: object = None

    def __post_init__(self) -> None:
        """Raise InvalidArgument for a limit below 1, before a transaction begins."""
        if self.limit is not None:
            positive(self.limit)


def count_tasks(
    store: Transactions,
    *,
    status: TaskStatus | str | None = None,
    force: bool = False,
    snapshot: Snapshot | None = None,
    most: int = 100_000,
    using: object = None,
    **wanted: Unpack[TaskFilters],
) -> Count:
    """Count the tasks that `cancel_all` would cancel now, up to `most`. At most 200,000 outbox entries are read.

    Pass the `snapshot` of the count to `cancel_all`, which then changes only tasks that were counted. With `snapshot`,
    this counts how many tasks from an earlier count can still be cancelled. Raises InvalidArgument for a status other
    than READY or RUNNING.
    """
    values = {**filter_values(wanted), "asked_too": force}
    return counted(store, _statuses(status_of(status)), values, snapshot=snapshot, most=most, using=using)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Some of the tasks that a bulk change affects."""

    task_name: str
    queue: str
    status: TaskStatus
    number: int
    exception: str | None = None
    """Class of the exception, for dead letters."""
    waiting: Waiting | None = None
    """The state of Ready tasks, if the change depends on it."""


def parts(
    store: Transactions,
    *,
    snapshot: Snapshot,
    status: TaskStatus | str | None = None,
    limit: int | None = None,
    most: int = PARTED,
    using: object = None,
    **wanted: Unpack[TaskFilters],
) -> list[Part]:
    """Count the tasks that `count_tasks` counted in this snapshot, grouped by status, task and queue, largest count
    first. For each status, at most `most` matching tasks are read. With `limit`, only the tasks that `cancel_all` with
    this limit would cancel are counted.
    """
    of = status_of(status)
    if limit is not None:
        up_to = min(positive(limit), positive(most, "most"))
        first = (one for one in (TaskStatus.READY, TaskStatus.RUNNING) if one in _statuses(of))
        values = {**filter_values(wanted), **bound_to(snapshot, of)}
        return first_parts(store, first, values, limit=up_to, using=using)
    statuses, queue = _statuses(of), wanted.get("queue")
    values = {**filter_values(wanted), **bound_to(snapshot, of), "asked_too": False}
    values |= {"scan": LOOKED_AT, "limit": positive(most, "most")}
    waiting = task_pages.waiting_by_task if queue is None else task_pages.waiting_of_queue_by_task
    builders = {TaskStatus.RUNNING: task_pages.running_by_task, TaskStatus.READY: waiting}

    def work(target: Target) -> list[Part]:
        found = [
            Part(**row, status=one)
            for one in builders.keys() & statuses
            for row in target.run(builders[one], store.values(target, **values))
        ]
        return sorted(found, key=_largest_first)

    return store.run(work, using=using, begin=Begin.READ)


def cancel_all(
    store: Transactions,
    *,
    status: TaskStatus | str | None = None,
    reason: str = "",
    force: bool = False,
    snapshot: Snapshot | None = None,
    limit: int | None = None,
    on_progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    on_change: OnChange | None = None,
    using: object = None,
    **wanted: Unpack[TaskFilters],
) -> int:
    """Cancel up to `limit` of the waiting and running tasks that match (see `TaskFilters`), oldest first, and return
    the number of tasks cancelled.

    If `status` is READY or RUNNING, only tasks with that status are cancelled. Without filters, all tasks are
    cancelled. A running task is asked to stop; with `force`, it becomes Cancelled immediately. See `cancel`. A task
    that has already been asked to stop is not counted again.

    With the `snapshot` of a count, tasks that have since been enqueued or redriven, or have entered the requested
    status, are left alone. Without `snapshot`, a new snapshot is taken at the beginning. Each batch of 500 tasks is a
    separate transaction (with `using`, all batches are part of the caller's transaction). Tasks that another session
    changes in the meantime are not counted. `on_progress` is called after each batch with the number of tasks changed
    so far, `stop` before each batch, and `on_change` in each transaction with the number of tasks that the transaction
    changes. Raises InvalidArgument.
    """
    of = status_of(status)
    statuses = _statuses(of)
    bulk = Bulk(reason=reason, limit=limit, on_progress=on_progress, stop=stop, on_change=on_change, using=using)
    bound = bound_to(snapshot or store.run(Snapshot.take, using=using, begin=Begin.READ), of)
    # A task that was running when the waiting tasks were read may now be waiting for its retry, so the waiting tasks
    # are read again.
    order = (TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.READY) if of is None else (of,)
    values = {**filter_values(wanted), **bound}

    def change(ids: Collection[UUID]) -> int:
        return change_all(store, ids, EventType.CANCELLED, statuses, bulk, force=force)

    return in_batches(store, [partial(look_up, store, one, values) for one in order], FIRST, change, bulk)


def counted(
    store: Transactions,
    statuses: frozenset[TaskStatus],
    values: dict[str, Any],
    *,
    snapshot: Snapshot | None,
    most: int,
    using: object,
) -> Count:
    """Count the matching tasks with these statuses, up to `most`."""
    queue, only = values["queue"], next(iter(statuses)) if len(statuses) == 1 else None
    values = {**values, "scan": LOOKED_AT, "limit": positive(most, "most") + 1}

    def work(target: Target) -> Count:
        found, cut = 0, False
        # The snapshot is taken before the count: a task that becomes visible to the caller's transaction in between is
        # counted, but not changed.
        now = Snapshot.take(target) if snapshot is None else snapshot
        given = store.values(target, **values, **({} if snapshot is None else bound_to(snapshot, only)))
        if TaskStatus.RUNNING in statuses:
            found = target.run(task_pages.count_running, given)[0]["tasks"]
        if TaskStatus.READY in statuses and found <= most:
            count = task_pages.count_waiting if queue is None else task_pages.count_waiting_of_queue
            found += target.run(count, given)[0]["tasks"]
            if found <= most:
                rest = task_pages.END["entries_up"] if queue is None else task_pages.queue_is_longer
                cut = len(target.run(rest, values)) > (queue is None)
        return counted_to(most, found, cut=cut, snapshot=now)

    return store.run(work, using=using, begin=Begin.SNAPSHOT)


def first_parts(
    store: Transactions,
    statuses: Iterable[TaskStatus],
    values: dict[str, Any],
    *,
    limit: int,
    using: object,
) -> list[Part]:
    """Group the tasks that `in_batches` reaches first, and return the groups as parts. If the state of Ready tasks is
    filtered, they are also grouped by state.
    """
    by_state = values["waiting"] is not None

    def work(target: Target) -> list[Part]:
        found = Counter[Part]()
        for one in statuses:
            after: UUID | None = FIRST
            while after is not None and (left := limit - found.total()) > 0:
                ids, after = look_up(store, one, values, target, after=after, most=min(BATCH, left))
                for row in target.run(named, pack_ids(target, "chosen", ids)) if ids else ():
                    state = (Waiting.DELAYED if row["retry_at"] is None else Waiting.RETRYING) if by_state else None
                    part = Part(task_name=row["task_name"], queue=row["queue"], status=one, number=0, waiting=state)
                    # A running task that was asked to stop is not asked again.
                    found[part] += one is TaskStatus.READY or not row["was_asked"]
        return with_numbers(found)

    return store.run(work, using=using, begin=Begin.READ)


class Look(Protocol[Place]):
    """A search for the tasks that a bulk change affects."""

    def __call__(self, target: Target, *, after: Place, most: int) -> tuple[list[UUID], Place | None]:
        """Return up to `most` ids that follow the place `after`, and the place up to which tasks were read; None if
        there are no more tasks.
        """


def in_batches(
    store: Transactions,
    looks: Iterable[Look[Place]],
    first: Place,
    change: Callable[[list[UUID]], int],
    bulk: Bulk,
) -> int:
    """Make each of these searches from the place `first` on, and change the tasks that it finds in batches. Return the
    number of changed tasks. `change` changes a batch in one transaction, and returns the number of changed tasks.
    """
    most, changed = bulk.limit, 0
    for look in looks:
        after: Place | None = first
        while after is not None:
            if (bulk.stop is not None and bulk.stop()) or changed == most:
                return changed
            left = BATCH if most is None else min(BATCH, most - changed)
            ids, after = store.run(partial(look, after=after, most=left), using=bulk.using, begin=Begin.READ)
            if ids:
                changed += change(ids)
                if bulk.on_progress is not None:
                    bulk.on_progress(changed)
    return changed


def change_all(
    store: Transactions,
    task_ids: Iterable[UUID],
    event_type: EventType,
    statuses: Collection[TaskStatus],
    bulk: Bulk,
    *,
    attempt: int | None = None,
    force: bool = False,
    refused: Callable[[Target], Collection[UUID]] = lambda _: (),
    gives_up: Callable[[BaseException], bool] | None = None,
) -> int:
    """Make the same change to these tasks in one transaction, and return the number of changed tasks.

    Only tasks with one of these statuses are changed. Running tasks are asked to stop or, with `force`, moved away from
    their workers. `refused` returns the tasks that must not change. Tasks are changed in id order, so that at most one
    of two callers waits for the other.
    """
    asks = TaskStatus.RUNNING in statuses and not force
    request = str(uuid7())
    data = request_data(request, bulk.reason)
    details = event_type.value, STATUS_AFTER[event_type].value, attempt, None, data
    rows = [(task_id, *details) for task_id in sorted(task_ids)]

    def change(target: Target) -> tuple[list[Row], int]:
        values = store.values(target, **places(set(statuses) - ({TaskStatus.RUNNING} if asks else set())))
        left = refused(target)
        given = [row for row in rows if row[0] not in left]
        moved = target.run(manual_change, values, given) if given else []
        gone = {row["id"] for row in moved}
        others = [(row[0], data) for row in given if row[0] not in gone] if asks else []
        asked = target.run(request_cancel, values, others) if others else []
        return moved, len(moved) + len(asked)

    return change_together(store, [row[0] for row in rows], request, change, bulk, gives_up=gives_up)


def change_together(
    store: Transactions,
    task_ids: Collection[UUID],
    request: str,
    change: Callable[[Target], tuple[list[Row], int]],
    bulk: Bulk,
    *,
    gives_up: Callable[[BaseException], bool] | None = None,
) -> int:
    """Change these tasks in one transaction, and return the number of changed tasks. `change` returns the moved tasks
    and the number of changed tasks. `request` marks their events.
    """

    def work(target: Target) -> int:
        with target.atomic():
            moved, number = change(target)
            if number and bulk.on_change is not None:
                bulk.on_change(target, number)
        store.wake(target, freed(moved))
        return number

    def committed(target: Target, number: int) -> bool:
        return number > 0 and any(was_done(target, task_id, request) for task_id in task_ids)

    return store.run(work, using=bulk.using, committed=committed, gives_up=gives_up)


def with_numbers(found: Mapping[Part, int]) -> list[Part]:
    """Return these parts with their numbers, largest number first. A part without tasks is left out."""
    return sorted((replace(part, number=number) for part, number in found.items() if number), key=_largest_first)


def _largest_first(part: Part) -> tuple[int, str, str, str, str]:
    return -part.number, part.task_name, part.queue, part.exception or "", part.waiting or part.status


def look_up(
    store: Transactions, status: TaskStatus, values: dict[str, Any], target: Target, *, after: UUID, most: int
) -> tuple[list[UUID], UUID | None]:
    """Return up to `most` ids of matching tasks after this id, oldest first, and the last id that was read. The last id
    is None if there are no more tasks.
    """
    begin = max(values["from_id"], next_id(after))
    given = store.values(target, **{**values, "scan": SCAN, "limit": most, "from_id": begin})
    source = source_of(target, status, given)
    ended = ending(target, source, given, up=True)
    ids = [row["id"] for row in target.run(task_pages.NEXT_IDS[source], given)]
    return ids, ids[-1] if len(ids) == most else ended


def bound_to(snapshot: Snapshot, status: TaskStatus | None) -> dict[str, Any]:
    """Return the parameters that exclude tasks outside the snapshot."""
    only = {"only_ready": status is TaskStatus.READY, "only_running": status is TaskStatus.RUNNING}
    return {**snapshot.values, **only}


def _statuses(status: TaskStatus | None) -> frozenset[TaskStatus]:
    both = frozenset({TaskStatus.READY, TaskStatus.RUNNING})
    if status is None:
        return both
    if status not in both:
        raise InvalidArgument(f"only Ready and Running tasks can be counted or cancelled, not {status}")
    return frozenset({status})


def named(g: Grammar) -> sa.Select[Any]:
    """Select the names and queues of the tasks in the batch :chosen, whether they were asked to stop, and their retry times."""
    task, ids = task_executions.c, g.rows("chosen", IDS).c.id
    asked = task.cancel_requested_at.is_not(None).label("was_asked")
    return sa.select(task.task_name, task.queue, asked, task.retry_at).where(g.among(task.id, ids))
