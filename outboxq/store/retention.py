"""Deleting what is old and finished."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from ..database.dialects import Row
from ..database.statements import retention
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import TERMINAL, TaskStatus, duration
from ..model.periods import first_id
from .arguments import aware, positive
from .producing.batches import Batches
from .tasks.tasks import now as moment
from .time_partitions import TimePartitions
from .transactions import Transactions

log = logging.getLogger("outboxq.store")


_NIL = UUID(int=0)
_SHARE = 1.5
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
    if dry_run:
        return sum(int(store.read(retention.prunable, using=using, **given)[0]["tasks"]) for given in batches)
    deleted = 0
    if using is None:
        partitions = TimePartitions(store)
        partitions.make()
        deleted = partitions.drop_before(before, values, stop)
    done = on_progress or (lambda _: None)
    if deleted:
        done(deleted)
    for given in batches:
        deleted = _delete(store, given, using, stop, deleted, on_progress=done)
    Batches(store).prune(before, stop, using=using)
    return deleted


def _delete(
    store: Transactions,
    values: dict[str, Any],
    using: object,
    stop: Callable[[], bool],
    deleted: int,
    *,
    on_progress: Callable[[int], None],
) -> int:
    """Delete the rows between two ids, batch by batch; returns how many tasks went, with those that were `deleted` before."""

    def work(target: Target) -> tuple[list[Row], int]:
        """Delete a batch; returns the tasks that were looked at (without a status: passed over), and how many other events went."""
        with target.atomic():
            seen = target.run(retention.prune, values)
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


def _closed(store: Transactions, before: datetime, last: UUID, using: object) -> list[tuple[UUID, UUID]]:
    """Return the ranges of ids outside the partitions that a later prune will drop."""
    layout = TimePartitions(store).layout(using)
    low, ranges = _NIL, []
    for one in layout.partitions if layout else ():
        if one.end > before:
            ranges.append((low, min(one.lower, last)))
            low = max(low, UUID(int=one.upper.int - 1))
    return [*ranges, (low, last)]
