"""Delete old finished tasks, in batches or in whole partitions, and create future partitions."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import sqlalchemy as sa
import tenacity
from sqlalchemy.exc import DBAPIError

from ..database import tables
from ..database.dialects import Begin, Row, milliseconds_of_a_statement, time_partitions
from ..database.dialects.partitioning import Layout, Partition, Partitioning
from ..database.grammar import Grammar, Relations, Statement, Transition, limit
from ..database.history import before, done, kinds
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import EARLIEST, LATEST, TERMINAL, TaskStatus, duration
from ..model.periods import first_id, periods
from .actions import Actions
from .arguments import aware, parameters, positive
from .claims.workers import Workers
from .messages.inbox import InboxMessages
from .numbers.maintenance_jobs import record_prune
from .producing.batches import Batches
from .tasks.cancelling import Bulk
from .tasks.operations import OnChange
from .tasks.tasks import now as now_of
from .tasks.tasks import select_task
from .transactions import Noun, Transactions

log = logging.getLogger("outboxq.store")

Stop: TypeAlias = Callable[[], bool]

_NIL = UUID(int=0)
_SHARE = 1.5
"""The longest pause after a batch, as a multiple of the time that the batch took."""
_FEWEST, _MOST = 50, 2000
_BATCH_SECONDS = 0.05
"""The target time for a batch on PostgreSQL. Alongside a running claim loop, 13,291 tasks a second were deleted,
compared with 1,991 in batches of 50 with pauses, and the p99 claim time was 1.10 times its value before the prune:
`python -m benchmarks.history --only prune`.
"""
_USUAL = 1.5
"""A batch is followed by a pause if its time per task exceeds the fastest batch's time per task by more than this
factor.
"""


def prune(
    store: Transactions,
    older_than: timedelta | float | datetime,
    *,
    statuses: Iterable[TaskStatus] = (TaskStatus.COMPLETED, TaskStatus.CANCELLED),
    batch: int | None = None,
    pause: timedelta | float | None = None,
    whole_partitions: bool = False,
    dry_run: bool = False,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int], None] | None = None,
    on_change: OnChange | None = None,
    using: object = None,
) -> int:
    """Delete tasks that ended longer ago than `older_than` (or before `older_than`, if that is an aware datetime), with
    their events and idempotency keys. Returns the number of deleted tasks.

    Ticks and steps are deleted with their tasks, and batches after their tasks. Each batch of deletions is a separate
    transaction; with `using`, all batches belong to the caller's transaction. `batch` is the number of tasks in each
    batch, and `pause` is the time between two batches. On SQLite, None means 50 tasks and a pause 1.5 times as long as
    the batch took, because only one transaction can write at a time. On PostgreSQL, None means as many tasks (50 to
    2,000) as can be deleted in about 50 ms. With a `pause` of None on PostgreSQL, a batch is followed by a pause only
    if its time per task was more than 1.5 times that of the fastest batch, because the server is busy in that case.
    Locked tasks, and tasks whose idempotency key is locked, are skipped. Unfinished tasks keep their rows and events,
    no matter how old they are. A task in a batch or a chain is deleted only if the batch or chain also ended before the
    `older_than` time, and the tasks that follow have completed or been cancelled. This does not apply to Failed tasks,
    which are deleted only if `statuses` includes FAILED. Events without a task (an emit without subscribers, skipped
    ticks) are also deleted at this age, and so are records of what people changed (`actions`), except records from the
    last 90 days. Inbox messages are forgotten when their own retention time has passed, whatever `older_than` is. With
    `dry_run`, the tasks are only counted. `stop` is called before each batch. `on_progress` is called after each batch
    with the number of tasks deleted so far, and `on_change` in each transaction with the number of tasks that the
    transaction deletes.

    If the history is partitioned, future partitions are created, and partitions that ended before the `older_than` time
    are dropped; rows that must be kept are moved to the default partition first. No other session can use
    `task_executions` and `execution_events` during a drop, which takes about as long as reading the partition's tasks
    once. Therefore, partitions are not dropped if `using` is given. Afterwards, the old rows in the other partitions
    are deleted. With `whole_partitions`, these rows are kept until their partitions are dropped, so a task may be kept
    for up to one partition's period longer.
    """
    pace = Pace(batch=batch, pause=pause, one_writer=store.dialect.one_writer)
    before, batches = _asked(store, older_than, set(statuses), whole_partitions=whole_partitions, using=using)
    if dry_run:
        return sum(int(store.run_one(prunable, using=using, **given)[0]["tasks"]) for given in batches)
    deleted, bulk = 0, Bulk(on_progress=on_progress, on_change=on_change, using=using)
    if using is None:
        partitions = TimePartitions(store)
        partitions.make()
        deleted = partitions.drop_before(before, {**batches[0], "limit": pace.batch}, stop, on_change)
    if deleted and on_progress is not None:
        on_progress(deleted)
    for given in batches:
        deleted = _delete(store, given, stop, pace, bulk, deleted=deleted)
    Batches(store).prune(before, stop, using=using)
    Actions(store).prune(before, stop, using=using)
    Workers(store).forget(using=using)
    InboxMessages(store).prune(stop, using=using)
    if not stop():  # otherwise, health checks must still notice that old tasks are not deleted
        record_prune(store, using=using)
    return deleted


def first_prunable(
    store: Transactions,
    older_than: timedelta | float | datetime,
    *,
    statuses: Iterable[TaskStatus],
    whole_partitions: bool = False,
    limit: int,
) -> list[Row]:
    """Return the ids, names and statuses of the first `limit` tasks that `prune` with these arguments would delete."""
    _, batches = _asked(store, older_than, set(statuses), whole_partitions=whole_partitions, using=None)
    found = (row for given in batches for row in store.run_one(prunable_tasks, **{**given, "limit": limit}))
    return list(islice(found, limit))


def _asked(
    store: Transactions,
    older_than: timedelta | float | datetime,
    wanted: set[TaskStatus],
    *,
    whole_partitions: bool,
    using: object,
) -> tuple[datetime, list[dict[str, Any]]]:
    """Check the arguments of `prune`. Return the time before which tasks must have ended, and the parameters for each
    range of ids.
    """
    if not isinstance(older_than, datetime) and duration(older_than, "older_than") < timedelta(0):
        raise InvalidArgument("older_than must not be negative")
    if not wanted <= TERMINAL:
        raise InvalidArgument("only Completed, Failed and Cancelled tasks can be pruned")
    if isinstance(older_than, datetime):
        before = min(max(aware(older_than, "older_than"), EARLIEST), LATEST)
    else:
        now = now_of(store, using=using)
        before = now - min(duration(older_than, "older_than"), now - EARLIEST)
    values = {"before": before, **{f"prune_{status.lower()}": int(status in wanted) for status in TERMINAL}}
    # One day is added, because ids contain times from the producers' clocks, which may be fast.
    last = first_id(before + timedelta(days=1))
    ranges = _closed(store, before, last, using) if whole_partitions else [(_NIL, last)]
    return before, [{**values, "from_id": low, "to_id": high} for low, high in ranges]


class Pace:
    """The number of tasks that the next batch deletes, and the pause after it."""

    def __init__(self, *, batch: int | None, pause: timedelta | float | None, one_writer: bool) -> None:
        """`one_writer` means that a batch blocks all other writers. Raises InvalidArgument for a batch size below 1 or
        a negative pause.
        """
        self._adapts = batch is None and not one_writer
        self._pause = None if pause is None else duration(pause, "pause").total_seconds()
        if self._pause is not None and self._pause < 0:
            raise InvalidArgument("pause must not be negative")
        self._one_writer = one_writer
        self._shortest = math.inf
        """The shortest time per task, in seconds, that a full batch has taken."""
        self.batch = _FEWEST if batch is None else positive(batch, "batch")

    def after(self, seconds: float) -> float:
        """Return the number of seconds to pause after a full batch that took this long, and choose the size of the next
        batch.
        """
        each = seconds / self.batch
        if each > 0.0:  # a clock may advance by only 16 ms at a time, as on Windows before Python 3.13
            self._shortest = min(self._shortest, each)
        if self._adapts and seconds < _BATCH_SECONDS / 2:
            self.batch = min(2 * self.batch, _MOST)
        elif self._adapts and seconds > 2 * _BATCH_SECONDS:
            self.batch = max(self.batch // 2, _FEWEST)
        if self._pause is not None:
            return self._pause
        # On SQLite, a waiting writer retries only occasionally. On PostgreSQL, other sessions are held up only if the
        # server is overloaded.
        share = _SHARE if self._one_writer else min(each / self._shortest - _USUAL, _SHARE)
        return max(0.0, share * seconds)


def _delete(store: Transactions, values: dict[str, Any], stop: Stop, pace: Pace, bulk: Bulk, *, deleted: int) -> int:
    """Delete the rows between two ids in batches, and return the number of deleted tasks, including the tasks deleted
    earlier (`deleted`).
    """

    def work(target: Target) -> tuple[list[Row], int]:
        """Delete a batch. Returns the tasks that were read (a skipped task does not have a status), and the number of
        deleted events without a task.
        """
        with target.atomic():
            seen = target.run(delete_old, values)
            unrouted = target.run(prune_unrouted, values)
            if bulk.on_change is not None and (gone := sum(row["status"] is not None for row in seen)):
                bulk.on_change(target, gone)
        failed = [row for row in seen if row["status"] == TaskStatus.FAILED and row["partition_key"] is not None]
        store.wake(target, {row["queue"] for row in failed})  # a dead letter may have been holding its key
        return seen, len(unrouted)

    def committed(target: Target, batch: tuple[list[Row], int]) -> bool:
        """Return whether the first task that `work` deleted is gone."""
        first = next((row["id"] for row in batch[0] if row["status"] is not None), None)
        return first is not None and not target.run(select_task, {"task_id": first})

    more = True
    while more and not stop():
        values["limit"] = pace.batch
        began = time.monotonic()
        seen, unrouted = store.run(work, using=bulk.using, committed=committed)
        if gone := sum(row["status"] is not None for row in seen):
            deleted += gone
            if bulk.on_progress is not None:
                bulk.on_progress(deleted)
        more = max(len(seen), unrouted) == values["limit"]
        values["from_id"] = max((row["id"] for row in seen), default=values["from_id"])
        if more:
            pause = pace.after(time.monotonic() - began)
            if bulk.using is None:
                store.gone.wait(pause)
    return deleted


def _closed(store: Transactions, before: datetime, last: UUID, using: object) -> list[tuple[UUID, UUID]]:
    """Return the id ranges outside the partitions that a later prune will drop."""
    layout = TimePartitions(store).layout(using)
    low, ranges = _NIL, []
    for one in layout.partitions if layout else ():
        if one.end > before:
            ranges.append((low, min(one.lower, last)))
            low = max(low, UUID(int=one.upper.int - 1))
    return [*ranges, (low, last)]


T = TypeVar("T")

AHEAD = 3
MOVED_AT_MOST = 10_000
"""Maximum number of tasks that a drop moves to the default partition while other sessions wait. If there are more, the
partition is kept, and its old rows are deleted instead.
"""
_PAUSE = tenacity.wait_random(0.5, 2)


class TimePartitions(Noun):
    """The partitions of a history that is partitioned by time."""

    def make(self, ahead: int = AHEAD) -> int:
        """Create the missing partitions of `task_executions` and `execution_events` for the current period and the next
        `ahead` periods, and return the number of pairs of partitions created.

        This does nothing on SQLite, or if the tables are not partitioned. If no partition is missing, the call runs
        only one query. Only the owner of the tables can create partitions; for any other role, a warning is logged. If
        a table is busy, the call makes several brief attempts to lock it, and then raises LockNotAvailable.
        """
        if type(ahead) is not int or ahead < 0:
            raise InvalidArgument(f"ahead must be a whole number of at least 0, not {ahead!r}")
        if (layout := self.layout()) is None:
            return 0
        present = now_of(self._store)
        if not (wanted := layout.missing(periods(layout.every, present, ahead))):
            return 0
        if not layout.owned:
            log.warning("partitions of the history are missing, but only %s can create them", layout.owner)
            return 0

        def work(target: Target) -> int:
            self._partitioning.alone_in_making(target.execute, layout.schema)
            current = _layout(target)
            missing = current.missing(wanted) if current else []
            if current and missing:
                self._partitioning.make(target.execute, current, missing, present)
            return len(missing)

        return self._briefly(work)

    def drop_before(
        self, before: datetime, values: Mapping[str, Any], stop: Stop, on_change: OnChange | None = None
    ) -> int:
        """Drop the partitions that ended before this time, oldest first, and return the number of deleted tasks."""
        layout = self.layout()
        if layout is None or not layout.owned:
            return 0
        dropped = 0
        for one in layout.partitions:
            if one.end > before or stop():
                break
            given = {**values, "lower": one.lower, "upper": one.upper}
            try:
                found = self._look(one, given)
                if len(found["kept"] or ()) > MOVED_AT_MOST:
                    continue
                self._free_keys(one, given)
            except DBAPIError:
                if self._store.run(partial(_has, one=one), begin=Begin.READ):
                    raise
                continue  # another prune has dropped it
            dropped += self._drop(one, given, found, on_change)
        return dropped

    def layout(self, using: object = None) -> Layout | None:
        """Return the layout; None if the history is not partitioned. A database that does not support partitions is not
        queried.
        """
        if using is None and not self._store.dialect.has_partitions:
            return None
        return self._store.run(_layout, using=using, begin=Begin.READ)

    @cached_property
    def _partitioning(self) -> Partitioning:
        return Partitioning(self._store.dialect)

    def _look(self, one: Partition, values: Mapping[str, Any]) -> Row:
        """Read the whole partition before any session has to wait: the rows that a drop would delete, and the rows that
        it would have to move.
        """

        def work(target: Target) -> Row:
            target.run(time_partitions.scanning, {"statement_timeout": f"{milliseconds_of_a_statement()}ms"})
            return self._partitioning.prepared(time_partitions.keep, one).run(target.execute, values)[0]

        return self._store.run(work, begin=Begin.READ)

    def _free_keys(self, one: Partition, values: Mapping[str, Any]) -> None:
        """Free the keys in batches before any session has to wait, because there may be one key for each task."""
        free = self._partitioning.prepared(time_partitions.keys_ahead, one)
        while len(self._store.run(lambda target: free.run(target.execute, values))) == values["limit"]:
            pass

    def _drop(self, one: Partition, values: Mapping[str, Any], found: Row, on_change: OnChange | None) -> int:
        """Move the rows that must be kept, and drop the others with their tables, in one transaction."""
        went, partitioning = 0, self._partitioning

        def work(target: Target) -> int:
            nonlocal went
            execute = target.execute
            partitioning.alone(execute, one.schema)
            if not _has(target, one):
                return 0  # another prune has dropped it
            failed = found["failed"] or []
            given = {**values, "failed": failed, "last_event": found["last_event"]}
            new = {row["id"] for row in partitioning.prepared(time_partitions.kept_since, one).run(execute, given)}
            kept, went = sorted({*(found["kept"] or ()), *new}), int(found["tasks"]) - len(new.intersection(failed))
            partitioning.detach(execute, one)
            for bring in (time_partitions.bring_executions, time_partitions.bring_events) if kept else ():
                partitioning.prepared(bring, one).run(execute, {"kept": kept})
            freed = target.run(time_partitions.queues_to_wake, {**values, "kept": kept})
            for forget in time_partitions.FORGET.values():
                target.run(forget, {**values, "kept": kept})
            partitioning.drop(execute, one)
            self._store.wake(target, {row["queue"] for row in freed})
            if went and on_change is not None:
                on_change(target, went)
            return went

        return self._briefly(work, done=lambda target: None if _has(target, one) else went)

    def _briefly(self, work: Callable[[Target], T], done: Callable[[Target], T | None] = lambda _: None) -> T:
        """Run work that locks whole tables. All other sessions queue behind such a lock, so each attempt is abandoned
        quickly, and repeated after a pause.
        """
        stop = tenacity.stop_after_attempt(15) | tenacity.stop_when_event_set(self._store.gone)
        attempts = self._store.tries().copy(wait=_PAUSE, stop=stop)
        for attempt in attempts:
            with attempt, self._store.transaction(Begin.WRITE) as target:
                if attempt.retry_state.attempt_number > 1 and (found := done(target)) is not None:
                    return found
                target.run(time_partitions.patience)
                return work(target)
        raise AssertionError("tenacity reraises the last error")


def _layout(target: Target) -> Layout | None:
    return Partitioning(target.dialect).layout(target.execute) if target.dialect.has_partitions else None


def _has(target: Target, one: Partition) -> bool:
    return (layout := _layout(target)) is not None and one in layout.partitions


_from_id, _to_id = parameters(sa.Uuid, "from_id", "to_id")
_event, _execution = tables.execution_events.c, tables.task_executions.c


def delete_old(g: Grammar) -> Transition:
    """Delete up to :limit finished tasks between two ids, with their events, idempotency keys, dead letters, ticks and
    steps.

    A partition key that a dead letter held is freed. Returns every task that was read. A task whose idempotency key is
    locked is skipped and returned without a status, because another transaction is taking the key over.

    Ids contain their creation time (uuid7), so old tasks are a range of the primary key, and an index on `completed_at`
    is not needed. The statement does not wait for locks, so it cannot deadlock with transactions that lock keys in key
    order.
    """
    key = tables.idempotency_keys.c.task_execution_id

    doomed = sa.select(_execution.id).where(_prunable(g)).order_by(_execution.id).limit(limit)

    def with_key(r: Relations) -> sa.Select[Any]:
        return sa.select(key.label("id")).where(g.among(key, r["doomed"].c.id))

    def free(r: Relations) -> Statement:
        doomed, keyed, locked = r["doomed"], r["keyed"], r["locked"]
        rows = doomed.outerjoin(keyed, keyed.c.id == doomed.c.id).outerjoin(locked, locked.c.id == doomed.c.id)
        return sa.select(doomed.c.id).select_from(rows).where(sa.or_(keyed.c.id.is_(None), locked.c.id.is_not(None)))

    def executions(r: Relations) -> Statement:
        gone = sa.delete(tables.task_executions).where(g.among(_execution.id, r["free"].c.id))
        return gone.returning(*(_execution[name] for name in ("id", "queue", "partition_key", "status")))

    def of_pruned(table: sa.Table, *also: sa.ColumnElement[bool]) -> Callable[[Relations], Statement]:
        return lambda r: sa.delete(table).where(g.among(table.c.task_execution_id, r["executions"].c.id), *also)

    return Transition(
        steps={
            "doomed": lambda _: doomed.with_for_update(skip_locked=True),
            "keyed": with_key,
            "locked": lambda r: with_key(r).with_for_update(skip_locked=True),
            "free": free,
            "executions": executions,
            **{f"{name}_events": of_pruned(tables.execution_events, kind) for name, kind in kinds(_event).items()},
            "keys": of_pruned(tables.idempotency_keys),
            "letters": of_pruned(tables.dead_letters),
            "claims": of_pruned(tables.partition_claims),
            "ticks": of_pruned(tables.schedule_ticks),
            "steps": of_pruned(tables.task_steps),
        },
        returns="doomed",
        joined_steps=("executions",),
    )


def prunable(g: Grammar) -> sa.Select[Any]:
    """Count the tasks that `prune` would delete."""
    return sa.select(sa.func.count().label("tasks")).select_from(tables.task_executions).where(_prunable(g))


def prunable_tasks(g: Grammar) -> sa.Select[Any]:
    """Select the first :limit tasks that `prune` would delete, in id order."""
    columns = (_execution.id, _execution.task_name, _execution.status)
    return sa.select(*columns).where(_prunable(g)).order_by(_execution.id).limit(limit)


def prune_unrouted(g: Grammar) -> Transition:
    """Delete up to :limit events without a task (an emit without subscribers, skipped ticks) that are older than
    :before.

    The events are selected without an order, because the planner would otherwise scan the whole log in `sequence_num`
    order instead of only the events without a task.
    """
    has_no_task, number = _event.task_execution_id.is_(None), _event.sequence_num
    doomed = sa.select(number).where(has_no_task, _event.lease_token.is_(None), _event.created_at < before).limit(limit)

    def events(r: Relations) -> Statement:
        gone = sa.delete(tables.execution_events).where(has_no_task, g.among(number, r["doomed"].c.sequence_num))
        return gone.returning(number.label("id"))

    return Transition(steps={"doomed": lambda _: doomed, "events": events}, returns="events")


def _prunable(g: Grammar) -> sa.ColumnElement[bool]:
    return sa.and_(_execution.id > _from_id, _execution.id < _to_id, done(g, _execution))
