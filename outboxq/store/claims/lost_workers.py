"""Recover a task from a worker that has not been seen lately, at a person's request, before its lease expires.

Recovery itself does not use the registry of workers, so that a mistake in it never costs a live worker its task. A
person may know that a worker is dead. The registry then protects against that person's mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Row
from ...database.grammar import Grammar
from ...database.tables import task_executions, task_leases, workers
from ...database.target import Target
from ...errors import InvalidTransition
from ...model import TaskStatus
from ...model.wording import span
from ..arguments import AnyId, identifier
from ..tasks.operations import row_of
from ..transactions import Transactions
from .recovery import READ_LEASE, Lease, Recovered, recover_in
from .workers import LIVE_WITHIN


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningTask:
    """A running task with the last sign of life of its worker."""

    now: datetime
    """The database's time when this was read."""
    lease: Lease
    label: str | None
    """The label of the worker; None if it is not registered."""
    started_at: datetime
    """The time at which the worker claimed the task."""
    seen_at: datetime

    @property
    def silence(self) -> timedelta:
        return self.now - self.seen_at

    @property
    def is_lost(self) -> bool:
        """True if a person may recover the task."""
        return is_lost(self.seen_at, self.now)

    @property
    def worker(self) -> str:
        """The worker in words."""
        return f"worker {self.label or self.lease.worker_id}"


def last_sign(*signs: datetime | None, extended_until: datetime, lease_seconds: float) -> datetime:
    """Return the time of the last sign of life of a worker: of its reports, of the claim, or of a heartbeat, which
    extended the lease by `lease_seconds`.
    """
    found = [one for one in signs if one is not None]
    with suppress(OverflowError):  # a lease that no claim can have written
        found.append(extended_until - timedelta(seconds=lease_seconds))
    return max(found)


def is_lost(seen_at: datetime, now: datetime) -> bool:
    """Return whether a worker with this last sign of life counts as dead or cut off."""
    return now - seen_at > LIVE_WITHIN


def recover_lost(store: Transactions, task_id: AnyId, *, reason: str = "", using: object = None) -> Recovered:
    """Recover a running task from a worker that has not been seen for 90 seconds, although its lease has not expired.

    The worker is fenced: if it was only frozen, it cannot write the task's outcome. The recovery counts as one after
    an expired lease does, so the task may become a dead letter. Raises TaskNotFound; InvalidTransition unless Running,
    if the worker was seen lately, or if it extends the lease meanwhile.
    """
    task_id = identifier(task_id)

    def work(target: Target) -> Recovered:
        held = find_running(target, task_id, store.values(target)["now"])
        if held is None:
            status = TaskStatus(row_of(target, task_id)["status"])
            raise InvalidTransition(f"task {task_id} is {status}, so there is no worker to recover it from")
        if not held.is_lost:
            raise InvalidTransition(
                f"task {task_id} stays with {held.worker}, which was seen {span(held.silence)} ago: a task can be "
                f"recovered once its worker has not been seen for {span(LIVE_WITHIN)}; `task cancel --force` takes it "
                "from a live worker"
            )
        if not (found := recover_in(store, target, [held.lease], reason=reason)):
            raise InvalidTransition(
                f"task {task_id} was not recovered: {held.worker} has just shown signs of life, or another session has "
                "locked the task; try again"
            )
        return found[0]

    return store.run(work, using=using)


def find_running(target: Target, task_id: UUID, now: datetime | None) -> RunningTask | None:
    """Return a running task with its worker's last sign of life; None if the task is not running. `now` is the current
    time, or None for the database's clock.
    """
    return _first(target.run(running_task, {"task_id": task_id, "now": now}))


def first_running(target: Target, queue: str, key: str | None, now: datetime) -> RunningTask | None:
    """Return the running task of a queue, or of a concurrency key, to deal with first; None if none is running."""
    builder = first_of_queue if key is None else first_of_key
    return _first(target.run(builder, {"queue": queue, "partition_key": key, "now": now}))


def _first(rows: Sequence[Row]) -> RunningTask | None:
    return _task_of(rows[0]) if rows else None


def _task_of(row: Row) -> RunningTask:
    lease = Lease(**{one.name: row[one.name] for one in fields(Lease)})
    seen_at = last_sign(
        row["last_seen_at"],
        row["started_at"],
        extended_until=lease.lease_expires_at,
        lease_seconds=row["lease_seconds"],
    )
    return RunningTask(now=row["now"], lease=lease, label=row["label"], started_at=row["started_at"], seen_at=seen_at)


_task_id, _queue, _key = (
    sa.bindparam(name, type_=kind, required=True)
    for name, kind in (("task_id", sa.Uuid), ("queue", sa.Text), ("partition_key", sa.Text))
)
_lost_after = sa.bindparam("lost_after", -LIVE_WITHIN.total_seconds(), type_=sa.Double)


def running_task(g: Grammar) -> sa.Select[Any]:
    """Select the lease of a running task with what its worker has said last."""
    return _running(g).where(task_leases.c.task_execution_id == _task_id)


def first_of_queue(g: Grammar) -> sa.Select[Any]:
    """Select the running task of a queue to deal with first: of a worker that was not seen lately, or else the one
    that has run for the longest time.
    """
    return _ordered(g).where(task_leases.c.queue == _queue)


def first_of_key(g: Grammar) -> sa.Select[Any]:
    """Select the running task of a key to deal with first, as `first_of_queue` does."""
    return _ordered(g).where(task_leases.c.queue == _queue, task_executions.c.partition_key == _key)


def _ordered(g: Grammar) -> sa.Select[Any]:
    is_silent = sa.case(
        (workers.c.last_seen_at < g.later(g.now, _lost_after), sa.literal_column("0")), else_=sa.literal_column("1")
    )
    order = (is_silent, task_executions.c.started_at, task_leases.c.task_execution_id)
    return _running(g).order_by(*order).limit(sa.literal_column("1"))


def _running(g: Grammar) -> sa.Select[Any]:
    execution = task_executions.c
    return (
        sa.select(
            *READ_LEASE,
            execution.started_at,
            execution.lease_seconds,
            workers.c.label,
            workers.c.last_seen_at,
            g.now.label("now"),
        )
        .join_from(task_leases, task_executions, execution.id == task_leases.c.task_execution_id)
        .outerjoin(workers, workers.c.id == task_leases.c.worker_id)
    )
