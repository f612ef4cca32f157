"""Read task results and batch progress for waiting callers. One query covers any number of callers."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Begin, Row
from ...database.engine import close, detached
from ...database.grammar import ONE, ZERO, Columns, Grammar, sql_literal
from ...database.privileges import Feature
from ...database.tables import task_batches, task_executions
from ...database.target import Target
from ...errors import ConfigurationError
from ...model import TERMINAL, EventType, ExecutionEvent, TaskStatus, status_after
from ...model.batches import BatchCounts, BatchKind, BatchLink, OnFailed
from ..arguments import identifier, parameters
from ..task_rows import IDS, made_together, pack_ids
from ..transactions import Transactions
from . import tasks
from .tasks import event_of

_NEWEST = 8
"""The number of newest events that are read to find the event that ended a task. That event is among them unless the
task has been redriven since.
"""
_READS = frozenset({Feature.RESULTS})


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The status of a task and, if the task has ended, its outcome."""

    id: UUID
    task_name: str
    status: TaskStatus
    attempt: int
    result: str | None = field(repr=False)
    """The result as JSON; None if the task has no result."""
    error: str | None = field(repr=False)
    """The last error, on one line."""
    end: ExecutionEvent | None = field(default=None, repr=False)
    """The event that ended the task; None if the task is Completed or has not ended, or if the event no longer exists.
    """

    @property
    def has_ended(self) -> bool:
        """Return whether the task has ended. A dead letter counts as ended."""
        return self.status in TERMINAL


def standings(store: Transactions, task_ids: Collection[UUID], *, everything: bool = True) -> Mapping[UUID, Standing]:
    """Return the standing of each of these tasks that has ended; with `everything`, also that of the unfinished tasks.

    A task that is missing from the result does not exist or has not been committed. The transaction is not retried
    after an error, because the caller decides when to query again. Raises NotPermitted if the database role is not
    permitted to read results.
    """
    with _reading(store, _READS) as target:
        return {row["id"]: standing_of(target, row) for row in read_ended(target, task_ids, everything=everything)}


def read_ended(target: Target, task_ids: Collection[UUID], *, everything: bool) -> list[Row]:
    """Return the rows of `ended` for these tasks."""
    return target.run(ended, {**pack_ids(target, "tasks", task_ids), "everything": everything})


def standing_of(target: Target, row: Row) -> Standing:
    """Return the standing of the task in a row of `ended`."""
    status, end = TaskStatus(row["status"]), None
    if status in {TaskStatus.FAILED, TaskStatus.CANCELLED}:
        newest = target.run(tasks.select_recent_history, {"task_id": row["id"], "limit": _NEWEST})
        end = next((one for one in map(event_of, newest) if status_after(one.event_type) is status), None)
    same = {name: row[name] for name in ("id", "task_name", "attempt", "result")}
    return Standing(**same, status=status, error=row["last_error"], end=end)


class ResultReader:
    """Reads results from a store, for use by one thread. The reader has its own connections, because waiting callers
    may occupy every connection of the application's engine.
    """

    def __init__(self, store: Transactions) -> None:
        """Prepare the reader, which connects to the database for its first query."""
        self._own: Any = None
        try:
            self._store = store.reserved(threading.Event())
            self._own = self._store.engine
        except ConfigurationError:  # one connection serves all threads
            self._store = store
        self._watched: Any = None
        self._version: int | None = None

    def standings(self, task_ids: Collection[UUID], *, everything: bool) -> Mapping[UUID, Standing]:
        return standings(self._store, task_ids, everything=everything)

    def batch_standings(self, links: Collection[BatchLink], *, everything: bool) -> Mapping[BatchLink, BatchStanding]:
        return batch_standings(self._store, links, everything=everything)

    def has_changed(self) -> bool:
        """Return whether anything may have been committed since the last call. For a database server, the answer is
        always True.
        """
        if self._own is None or not self._store.dialect.one_writer:
            return True
        if self._watched is None:
            self._watched = detached(self._own)
        version = self._store.dialect.version(self._watched)
        before, self._version = self._version, version
        return version is None or version != before

    def close(self) -> None:
        """Close the connections."""
        watched, self._watched = self._watched, None
        if watched is not None:
            with suppress(Exception):
                watched.close()
        if self._own is not None:
            close(self._own)


_READS_OF_BATCHES = frozenset({Feature.RESULTS, Feature.BATCHES})


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchStanding:
    """The progress of a batch or a chain, as seen from one of its `then` tasks."""

    link: BatchLink
    kind: BatchKind
    on_failed: OnFailed
    counts: BatchCounts
    closed: bool
    stage: int
    """Number of `then` tasks that have been enqueued."""
    runs_then: bool
    cancel_requested_at: datetime | None
    completed_at: datetime | None
    blocker: Standing | None = field(default=None, repr=False)
    """The task whose outcome prevents the batch from enqueueing this task."""

    @property
    def has_come(self) -> bool:
        """Return whether this task has been enqueued."""
        return 0 < self.link.number <= self.stage

    @property
    def reason(self) -> str:
        """The reason why the batch was cancelled, as stored with the blocking task; "" if that task was cancelled
        earlier, or was not cancelled.
        """
        end, since = None if self.blocker is None else self.blocker.end, self.cancel_requested_at
        if end is None or since is None or end.event_type is not EventType.CANCELLED or end.created_at < since:
            return ""
        return str(end.event_data.get("reason") or "")

    @property
    def is_beyond(self) -> bool:
        """Return whether all `then` tasks have been enqueued, and this task is not one of them."""
        goes_on = self.kind is BatchKind.BATCH or self.counts.failed + self.counts.cancelled == 0
        return self.completed_at is not None and self.runs_then and goes_on and self.link.number > self.stage

    @property
    def is_decided(self) -> bool:
        """Return whether the wait is over because the batch has ended or a task blocks the batch.

        A batch that is still being cancelled does not count, because the reason for the cancellation is stored with the
        cancelled tasks.
        """
        return self.blocker is not None or self.completed_at is not None

    @property
    def pending(self) -> int:
        """Number of unfinished tasks."""
        ended = self.counts.completed + self.counts.cancelled + self.counts.failed
        return max(0, self.counts.size - ended)

    @property
    def blocked_by(self) -> TaskStatus | None:
        """The status of the tasks that may prevent the batch from enqueueing this task; None if there are no such
        tasks.
        """
        waits = self.on_failed is OnFailed.WAIT and self.counts.failed > 0
        if self.link.number == 0:
            return TaskStatus.FAILED if waits and self.completed_at is None else None
        if self.has_come:
            return None
        is_broken = self.kind is BatchKind.CHAIN and self.counts.failed > 0
        if is_broken or (waits and self.runs_then):  # the cancel of a batch discards its dead letters
            return TaskStatus.FAILED
        goes_on = self.runs_then and self.kind is BatchKind.BATCH
        return TaskStatus.CANCELLED if self.counts.cancelled > 0 and not goes_on else None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTask:
    """A task of a batch, and its status."""

    id: UUID
    task_name: str
    status: TaskStatus


def batch_standings(
    store: Transactions, links: Collection[BatchLink], *, everything: bool = True
) -> Mapping[BatchLink, BatchStanding]:
    """Return the batch's standing for each link whose task has been enqueued or might never be enqueued; with
    `everything`, for all links.

    A link that is missing from the result does not belong to a batch, or its batch has not been committed. The
    transaction is not retried after an error. Raises NotPermitted unless the database role is permitted to read both
    results and batches.
    """
    found: dict[BatchLink, BatchStanding] = {}
    blockers: dict[tuple[UUID, TaskStatus], Standing | None] = {}
    with _reading(store, _READS_OF_BATCHES) as target:
        given = target.dialect.pack("places", PLACES, [(link.batch_id, link.number) for link in links])
        for row in target.run(select_batch_standings, {**given, "everything": everything}):
            standing = BatchStanding(
                link=BatchLink(batch_id=row["id"], number=row["number"]),
                kind=BatchKind(row["kind"]),
                on_failed=OnFailed(row["on_failed"]),
                counts=BatchCounts(**{name: row[name] for name in _COUNTS}),
                **{name: row[name] for name in _STATES},
            )
            if (status := standing.blocked_by) is not None:
                key = (standing.link.batch_id, status)
                if key not in blockers:
                    blockers[key] = _blocker(target, *key)
                standing = replace(standing, blocker=blockers[key])
            found[standing.link] = standing
    return found


def first_of_batch(store: Transactions, batch_id: UUID, *statuses: TaskStatus) -> BatchTask | None:
    """Return a batch's first task with one of these statuses (one or two); None if there is no such task."""
    with _reading(store, _READS_OF_BATCHES) as target:
        return first_task(target, identifier(batch_id), *statuses)


@contextmanager
def _reading(store: Transactions, features: frozenset[Feature]) -> Iterator[Target]:
    """Open a transaction that is not retried after an error. Raises NotPermitted if the role lacks a privilege that
    these features need.
    """
    try:
        with store.transaction(Begin.READ) as target:
            yield target
    except Exception as error:
        store.rights.explain(error, Begin.READ, features)
        raise


def _blocker(target: Target, batch_id: UUID, status: TaskStatus) -> Standing | None:
    """Return the standing of the first task with this status; None if that task has been redriven or pruned in the
    meantime.
    """
    if (task := first_task(target, batch_id, status)) is None:
        return None
    rows = read_ended(target, [task.id], everything=False)
    return next((standing_of(target, row) for row in rows if row["status"] == status), None)


def first_task(target: Target, batch_id: UUID, status: TaskStatus, other: TaskStatus | None = None) -> BatchTask | None:
    """Return a batch's first task with one of these statuses, inside a transaction."""
    asked = {"batch_id": batch_id, "status": status.value, "other_status": (other or status).value}
    rows = target.run(select_first_of_batch, asked)
    return BatchTask(**rows[0] | {"status": TaskStatus(rows[0]["status"])}) if rows else None


_everything = sa.bindparam("everything", type_=sa.Boolean, required=True)


def ended(g: Grammar) -> sa.Select[Any]:
    """Select the given tasks that have ended or, with :everything, all given tasks.

    Each task is looked up by its id. Unfinished tasks are read only to check that they exist, because repeatedly
    reading a thousand of them would cause most of the traffic.
    """
    execution = task_executions.c
    has_ended = execution.status.in_([sql_literal(status) for status in sorted(TERMINAL)])
    return sa.select(
        execution.id, execution.task_name, execution.status, execution.attempt, execution.last_error, execution.result
    ).where(g.among(execution.id, g.rows("tasks", IDS).c.id), sa.or_(_everything, has_ended))


_COUNTS = ("size", "completed", "failed", "cancelled")
_STATES = ("closed", "stage", "runs_then", "cancel_requested_at", "completed_at")
PLACES: Columns = {"batch_id": sa.Uuid(), "number": sa.Integer()}
_batch, _execution = task_batches.c, task_executions.c
_batch_id = sa.bindparam("batch_id", type_=sa.Uuid, required=True)
_status, _other_status = parameters(sa.Text, "status", "other_status")


def select_batch_standings(g: Grammar) -> sa.Select[Any]:
    """Select the batch for each given place if the task at that place has been enqueued or might never be enqueued;
    with :everything, for all places.

    Each batch is looked up by its id. The `then` tasks themselves are not read, because a producer is not permitted to
    read them.
    """
    place = g.rows("places", PLACES)
    has_come = sa.and_(place.c.number > ZERO, _batch.stage >= place.c.number)
    waits = sa.and_(_batch.on_failed == sql_literal(OnFailed.WAIT), _batch.failed > ZERO)
    breaks = sa.and_(_batch.kind == sql_literal(BatchKind.CHAIN), _batch.failed + _batch.cancelled > ZERO)
    is_over = sa.or_(_batch.completed_at.is_not(None), sa.not_(_batch.runs_then))
    found = sa.select(place.c.number, *(_batch[name] for name in ("id", "kind", "on_failed", *_COUNTS, *_STATES)))
    rows = found.select_from(task_batches.join(place, place.c.batch_id == _batch.id))
    return rows.where(g.among(_batch.id, place.c.batch_id), sa.or_(_everything, has_come, waits, breaks, is_over))


def select_first_of_batch(_: Grammar) -> sa.Select[Any]:
    """Select the first task of a batch, by id, that has one of two statuses.

    All of the batch's tasks with these statuses are found through the index on batches. With a LIMIT in the subquery, a
    planner might scan all ids in the table instead.
    """
    tasks = sa.select(_execution.id, _execution.task_name, _execution.status)
    mine = tasks.where(made_together(_batch_id), _execution.status.in_([_status, _other_status]))
    those = mine.cte("those").prefix_with("MATERIALIZED")
    return sa.select(those).order_by(those.c.id).limit(ONE)
