"""Deleting what is old and finished."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.privileges import Privilege, Right
from ..database.statements import retention, schedules, steps
from ..database.statements.grammar import Builder
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import TERMINAL, TaskStatus, duration
from ..model.periods import first_id
from .arguments import aware, positive
from .batches import Batches, is_there
from .rights import lacks
from .tasks import now as moment
from .time_partitions import TimePartitions
from .transactions import Transactions

log = logging.getLogger("outboxq.store")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """Rows that go with the tasks to which they belong, and that a later revision brought."""

    table: str
    noun: str
    has_table: Builder
    prune: Builder
    without_task: Builder


_FURTHER = (
    _Rows(
        table="schedule_ticks",
        noun="ticks",
        has_table=schedules.has_table,
        prune=retention.prune_ticks,
        without_task=retention.ticks_without_task,
    ),
    _Rows(
        table="task_steps",
        noun="steps",
        has_table=steps.has_table,
        prune=retention.prune_steps,
        without_task=retention.steps_without_task,
    ),
)
_NIL = UUID(int=0)
_SHARE = 1.5
_MOST_FURTHER = 500
"""The tasks that are not there whose ticks or steps are deleted in one transaction."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def prune(
    store: Transactions,
    older_than: timedelta | float | datetime,
    *,
    statuses: Iterable[TaskStatus] = (TaskStatus.COMPLETED, TaskStatus.CANCELLED),
    batch: int = 50,
    whole_partitions: bool = False,
    dry_run: bool = False,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int], None] | None = None,
    using: object = None,
) -> int:
    """Delete tasks that ended longer ago than this, or before this moment (aware), each with its events and idempotency keys;
    returns how many.

    Ticks of schedules go with the tasks that they became, steps with their tasks, and batches once their tasks have gone. Each
    batch of deletions is a transaction of its own; with `using`, all are the caller's. Tasks that are locked, or whose key is
    locked, are passed over. An unfinished task keeps its row and its events whatever its age. A task of a batch or a chain is
    kept until that, too, ended longer ago than this, and what follows it has completed or is cancelled; a Failed one is not, if
    asked for. Events of no task (an emit without subscribers, skipped ticks) go when they are as old. `dry_run` only counts.
    `stop` is asked before each batch, and `on_progress` is called after each, with the number of tasks deleted so far.

    Where the history is partitioned, partitions are made ahead, and those that ended longer ago than this are dropped; what
    must stay is carried over to the default partition before. No other session uses the two tables while one is dropped,
    which takes about as long as reading its tasks once, so it is not done with `using`. Then the rows of the others are
    deleted; `whole_partitions` leaves them to the drop that comes, so that tasks may stay one partition longer.
    """
    positive(batch, "batch")
    wanted = set(statuses)
    if not isinstance(older_than, datetime) and duration(older_than, "older_than") < timedelta(0):
        raise InvalidArgument("older_than must not be negative")
    if not wanted <= TERMINAL:
        raise InvalidArgument("only Completed, Failed and Cancelled tasks can be pruned")
    if isinstance(older_than, datetime):
        before = max(aware(older_than, "older_than"), _EPOCH)
    else:
        now = moment(store, using=using)
        before = now - min(duration(older_than, "older_than"), now - _EPOCH)
    values = {"before": before, "limit": batch}
    values |= {f"prune_{status.lower()}": int(status in wanted) for status in TERMINAL}
    # A day more, since ids carry their makers' clocks.
    last = first_id(before + timedelta(days=1))
    ranges = _closed(store, before, last, using) if whole_partitions else [(_NIL, last)]
    batches = [{**values, "from_id": low, "to_id": high} for low, high in ranges]
    with_batches = store.run(lambda target: _reads_batches(store, target), using=using, begin=Begin.READ)
    if dry_run:
        return sum(_count(store, given, using, with_batches=with_batches) for given in batches)
    deleted = 0
    if using is None:
        partitions = TimePartitions(store)
        partitions.make()
        deleted = partitions.drop_before(before, values, stop, with_batches=with_batches)
    further = store.run(_further, using=using, begin=Begin.READ)
    done = on_progress or (lambda _: None)
    if deleted:
        done(deleted)
    for given in batches:
        deleted = _delete(
            store, given, using, stop, deleted, further=further, with_batches=with_batches, on_progress=done
        )
    for rows in further:
        _delete_further(store, rows, {"from_id": _NIL, "to_id": last, "limit": _MOST_FURTHER}, using, stop)
    Batches(store).prune(before, stop, using=using)
    return deleted


def _count(store: Transactions, values: Mapping[str, Any], using: object, *, with_batches: bool) -> int:
    prunable = retention.prunable if with_batches else retention.prunable_without_batches
    counted = store.run(lambda target: target.run(prunable, values), using=using, begin=Begin.READ)
    return int(counted[0]["tasks"])


def _reads_batches(store: Transactions, target: Target) -> bool:
    """Return whether the schema has batches, and the role may read which of them go on."""
    if not is_there(store, target):
        return False
    if lacking := lacks(target, [Right(name="task_batches", privilege=Privilege.SELECT)]):
        text = "tasks of batches that go on are pruned too, since the database role %r may not read task_batches; see `outboxq grants`"
        log.warning(text, lacking[0]["role"])
    return not lacking


def _further(target: Target) -> list[_Rows]:
    """Return the kinds of rows that the schema has besides, and that the role may delete."""
    found = [rows for rows in _FURTHER if target.run(rows.has_table)]
    for rows in tuple(found):
        if lacking := lacks(
            target, [Right(name=rows.table, privilege=one) for one in (Privilege.SELECT, Privilege.DELETE)]
        ):
            text = "the %s of pruned tasks stay, since the database role %r may not delete them; see `outboxq grants`"
            log.warning(text, rows.noun, lacking[0]["role"])
            found.remove(rows)
    return found


def _delete(
    store: Transactions,
    values: dict[str, Any],
    using: object,
    stop: Callable[[], bool],
    deleted: int,
    *,
    further: Sequence[_Rows],
    with_batches: bool,
    on_progress: Callable[[int], None],
) -> int:
    """Delete the rows between two ids, batch by batch; returns how many tasks went, with those that were `deleted` before."""

    def work(target: Target) -> tuple[list[Row], int]:
        """Delete a batch; returns the tasks that were looked at (without a status: passed over), and how many other events went."""
        with target.atomic():
            seen = target.run(retention.prune if with_batches else retention.prune_without_batches, values)
            gone = [(row["id"],) for row in seen if row["status"] is not None]
            for rows in further if gone else ():
                target.run(rows.prune, values, gone)
            unrouted = target.run(retention.prune_unrouted, values)
        failed = [row for row in seen if row["status"] == TaskStatus.FAILED and row["partition_key"] is not None]
        store.wake(target, {row["queue"] for row in failed})  # a dead letter may have held its key
        return seen, len(unrouted)

    more = True
    while more and not stop():
        began = time.monotonic()
        seen, unrouted = store.run(work, using=using)
        if gone := sum(row["status"] is not None for row in seen):
            deleted += gone
            on_progress(deleted)
        more = max(len(seen), unrouted) == values["limit"]
        values["from_id"] = max((row["id"] for row in seen), default=values["from_id"])
        if more and using is None:
            # Longer than the batch took, for others: on SQLite whoever waits for the writer's lock looks only now and then.
            store.gone.wait(_SHARE * (time.monotonic() - began))
    return deleted


def _delete_further(
    store: Transactions, rows: _Rows, values: dict[str, Any], using: object, stop: Callable[[], bool]
) -> None:
    """Delete rows whose tasks are not there. A release that does not know them leaves them when it prunes."""

    def left(target: Target) -> list[Row]:
        return target.run(rows.without_task, values)

    def delete(target: Target) -> None:
        target.run(rows.prune, values, ids)

    while not stop() and (found := store.run(left, using=using, begin=Begin.READ)):
        ids = [(row["id"],) for row in found]
        store.run(delete, using=using)
        values["from_id"] = ids[-1][0]


def _closed(store: Transactions, before: datetime, last: UUID, using: object) -> list[tuple[UUID, UUID]]:
    """Return the ranges of ids outside the partitions that a later prune will drop."""
    layout = TimePartitions(store).layout(using)
    low, ranges = _NIL, []
    for one in layout.partitions if layout else ():
        if one.end > before:
            ranges.append((low, min(one.lower, last)))
            low = max(low, UUID(int=one.upper.int - 1))
    return [*ranges, (low, last)]
