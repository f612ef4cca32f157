"""Count the matching tasks that are not yet due, and make them due in batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack
from uuid import UUID, uuid4

from ...database.dialects import Begin, Row
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import TaskStatus, Waiting
from ...payload.parameters import sanitize
from ..arguments import positive, state_of
from ..transactions import Transactions
from . import operations
from .cancelling import PARTED, Bulk, Part, bound_to, change_together, counted, first_parts, in_batches, look_up
from .event_log import Count, Snapshot
from .operations import OnChange
from .task_pages import FIRST, LATER, TaskFilters, filter_values

_READY = frozenset({TaskStatus.READY})


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
    this counts how many tasks from an earlier count are still not due. Raises InvalidArgument for a state other than
    DELAYED or RETRYING.
    """
    values = _values(wanted, waiting)
    return counted(store, _READY, values, snapshot=snapshot, most=most, using=using)


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
    """Count the tasks that `count_later` counted in this snapshot, grouped by state, task and queue, largest count
    first. At most `most` matching tasks are read. With `limit`, only the tasks that `run_all_now` with this limit would
    make due are counted.
    """
    up_to = positive(most, "most") if limit is None else min(positive(limit), positive(most, "most"))
    values = {**_values(wanted, waiting), **bound_to(snapshot, TaskStatus.READY)}
    return first_parts(store, _READY, values, limit=up_to, using=using)


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
    """Make up to `limit` of the matching delayed and retrying tasks (see `TaskFilters`) due now, oldest first, and
    return their number.

    If `waiting` is DELAYED or RETRYING, only tasks in that state are made due. The tasks keep their positions among the
    tasks with the same keys; pauses and limits still apply.

    With the `snapshot` of a count, tasks that have since been enqueued or become Ready are left alone. Without
    `snapshot`, a new snapshot is taken at the beginning. Each batch of 500 tasks is a separate transaction (with
    `using`, all batches are part of the caller's transaction). `on_progress` is called after each batch with the number
    of tasks changed so far, `stop` before each batch, and `on_change` in each transaction with the number of tasks that
    the transaction changes. Raises InvalidArgument.
    """
    bulk = Bulk(reason=reason, limit=limit, on_progress=on_progress, stop=stop, on_change=on_change, using=using)
    bound = bound_to(snapshot or store.run(Snapshot.take, using=using, begin=Begin.READ), TaskStatus.READY)
    values = {**_values(wanted, waiting), **bound}
    look = partial(look_up, store, TaskStatus.READY, values)
    return in_batches(store, [look], FIRST, partial(_make_due, store, bulk), bulk)


def _make_due(store: Transactions, bulk: Bulk, task_ids: list[UUID]) -> int:
    """Make these tasks due in one transaction, and return the number of those that were not due."""
    request, why = str(uuid4()), sanitize(bulk.reason) or None

    def change(target: Target) -> tuple[list[Row], int]:
        values = store.values(target, due_now=True, priority=None, request=request, reason=why)
        moved = target.run(operations.make_all_due, values, [(one,) for one in sorted(task_ids)])
        return moved, len(moved)

    return change_together(store, task_ids, request, change, bulk)


def _values(wanted: TaskFilters, waiting: Waiting | str | None) -> dict[str, Any]:
    if (state := state_of(waiting)) is Waiting.DUE:
        raise InvalidArgument("only delayed and retrying tasks can be made due, not tasks that are already due")
    return {**filter_values(wanted), "waiting": state or LATER}
