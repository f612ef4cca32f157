"""Recover one task or all tasks from a worker that has not been seen recently, at a person's request and before the
leases expire.

Recovery itself does not use the registry of workers, so that a mistake in the registry never costs a live worker its
task. When a person asserts that a worker is dead, the registry is checked, in case the person is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Begin, Row
from ...database.grammar import Grammar, limit
from ...database.tables import task_executions, task_leases, workers
from ...database.target import Target
from ...errors import InvalidTransition, WorkerNotFound
from ...model import MAX_RECOVERIES, TaskStatus
from ...model.wording import span
from ..arguments import AnyId, identifier, parameters, positive
from ..tasks.operations import OnChange, row_of
from ..transactions import Transactions
from .recovery import READ_LEASE, Lease, Recovered, recover_in, were_recovered
from .workers import LIVE_WITHIN, is_lost, worker


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningTask:
    """A running task, with its worker's last sign of life."""

    now: datetime
    """The database's time when the task was read."""
    lease: Lease
    label: str | None
    """The worker's label; None if the worker is not registered."""
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
        """A description of the worker."""
        return f"worker {self.label or self.lease.worker_id}"


def last_sign(*signs: datetime | None, extended_until: datetime, lease_seconds: float, now: datetime) -> datetime:
    """Return the time of a worker's last sign of life: a report, the claim, or a heartbeat, after which the lease lasts
    for `lease_seconds`. If the clock has been set back, a sign in the future counts only if there is no other sign.
    """
    found = [one for one in signs if one is not None]
    with suppress(OverflowError):  # a lease that no claim can have written
        found.append(extended_until - timedelta(seconds=lease_seconds))
    return max([one for one in found if one <= now + LIVE_WITHIN] or found)


def recover_lost(store: Transactions, task_id: AnyId, *, reason: str = "", using: object = None) -> Recovered:
    """Recover a running task from a worker that has not been seen for 90 seconds, even though the task's lease has not
    expired.

    The worker is fenced: if it was only frozen, it cannot write the task's outcome. The recovery counts in the same way
    as a recovery after an expired lease, so the task may become a dead letter. Raises TaskNotFound, and
    InvalidTransition if the task is not Running, if its worker was seen recently, or if the worker extends the lease in
    the meantime.
    """
    task_id = identifier(task_id)

    def work(target: Target) -> tuple[list[Lease], list[Recovered]]:
        held = find_running(target, task_id, store.values(target)["now"])
        if held is None:
            status = row_of(target, task_id)["status"]
            raise InvalidTransition(f"task {task_id} is {status}, so there is no worker to recover it from")
        if not held.is_lost:
            raise InvalidTransition(
                f"task {task_id} stays with {held.worker}, which was last seen {span(held.silence)} ago; a task can be "
                f"recovered after {span(LIVE_WITHIN)} without a report from its worker; to take it from a live worker, "
                "use `task cancel --force`"
            )
        if not (found := recover_in(store, target, [held.lease], reason=reason)):
            raise InvalidTransition(
                f"task {task_id} was not recovered: {held.worker} has just reported, or another session has "
                "locked the task; try again"
            )
        return [held.lease], found

    _, [recovered] = store.run(work, using=using, committed=lambda target, found: were_recovered(target, *found))
    return recovered


@dataclass(frozen=True, kw_only=True, slots=True)
class LostTask:
    """A running task that a person may recover from its worker."""

    id: UUID
    task_name: str
    queue: str
    then: TaskStatus
    """The status that a recovery gives the task: READY, CANCELLED if it was asked to stop, or FAILED after too many
    recoveries.
    """


def lost_tasks(store: Transactions, worker_id: AnyId, *, limit: int = 1000, using: object = None) -> list[LostTask]:
    """Return up to `limit` running tasks that `recover_all_lost` would recover from this worker now, in id order."""
    values: dict[str, Any] = {"worker_id": identifier(worker_id), "after": _FIRST, "limit": positive(limit)}
    rows = store.run_one(running_of_worker, using=using, **values)
    return [_lost_task(row) for row in rows if _task_of(row).is_lost]


def recover_all_lost(
    store: Transactions,
    worker_id: AnyId,
    *,
    reason: str = "",
    on_change: OnChange | None = None,
    using: object = None,
) -> Counter[TaskStatus]:
    """Recover the running tasks of a worker that has not been seen for 90 seconds, as `recover_lost` does for one task,
    and return the number of recovered tasks by new status.

    Up to 500 tasks are recovered at a time, each time in a separate transaction (with `using`, always in the caller's
    transaction). Each time, `on_change` is called in the transaction with the number of recovered tasks, unless none
    was recovered. Tasks that another session has locked are left out. Raises WorkerNotFound, and InvalidTransition if
    the worker was seen recently.
    """
    worker_id, recovered, after = identifier(worker_id), Counter[TaskStatus](), _FIRST

    def work(target: Target) -> tuple[list[Lease], list[Recovered]]:
        leases = [one.lease for one in _held_by_lost(store, target, worker_id, after)]
        with target.atomic():
            found = recover_in(store, target, leases, reason=reason) if leases else []
            if found and on_change is not None:
                on_change(target, len(found))
        return leases, found

    while True:
        leases, found = store.run(work, using=using, committed=lambda target, found: were_recovered(target, *found))
        recovered.update(one.status for one in found)
        if len(leases) < _AT_ONCE:
            return recovered
        after = leases[-1].id


def ensure_lost(store: Transactions, worker_id: AnyId, *, using: object = None) -> None:
    """Raise InvalidTransition if the worker was seen in the last 90 seconds, and WorkerNotFound for an unknown worker.
    The InvalidTransition message says when the worker's tasks can be recovered.
    """
    worker_id = identifier(worker_id)
    store.run(lambda target: _held_by_lost(store, target, worker_id, _FIRST), using=using, begin=Begin.READ)


def _held_by_lost(store: Transactions, target: Target, worker_id: UUID, after: UUID) -> list[RunningTask]:
    """Return the worker's running tasks after the id `after`, up to `_AT_ONCE`. Raises WorkerNotFound or
    InvalidTransition unless the worker counts as dead.
    """
    values = store.values(target, worker_id=worker_id, after=after, limit=_AT_ONCE)
    held = [_task_of(row) for row in target.run(running_of_worker, values)]
    now, found = store.now_in(target), worker(target, worker_id)
    if found is None and not held:
        raise WorkerNotFound(f"there is no worker {worker_id}: a worker is forgotten a week after it was last seen")
    signs = [one.seen_at for one in held] + ([] if found is None or found.ended_at else [found.last_seen_at])
    if last := max((one for one in signs if not is_lost(one, now)), default=None):
        name = worker_id if found is None else found.label
        raise InvalidTransition(
            f"worker {name} keeps its tasks, because it was last seen {span(now - last)} ago; they can be recovered "
            f"after {span(LIVE_WITHIN)} without a report, that is, in {span(last + LIVE_WITHIN - now)} unless it "
            "reports again; to stop a live worker, use `workers stop`"
        )
    return held


def find_running(target: Target, task_id: UUID, now: datetime | None) -> RunningTask | None:
    """Return a running task with its worker's last sign of life; None if the task is not running. `now` is the current
    time, or None for the database's clock.
    """
    return _first(target.run(running_task, {"task_id": task_id, "now": now}))


def first_running(target: Target, queue: str, key: str | None, now: datetime) -> RunningTask | None:
    """Return the running task in this queue that a person should deal with first; with `key`, only tasks with this
    concurrency key count. Returns None if there is no such task.
    """
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
        now=row["now"],
    )
    return RunningTask(now=row["now"], lease=lease, label=row["label"], started_at=row["started_at"], seen_at=seen_at)


def _lost_task(row: Row) -> LostTask:
    if row["cancel_requested_at"] is not None:
        then = TaskStatus.CANCELLED
    elif row["begun"] is not False and row["recovery_attempts"] >= MAX_RECOVERIES:
        then = TaskStatus.FAILED
    else:
        then = TaskStatus.READY
    return LostTask(id=row["id"], task_name=row["task_name"], queue=row["queue"], then=then)


_AT_ONCE = 500
_FIRST = UUID(int=0)
_task_id, _worker_id, _after = parameters(sa.Uuid, "task_id", "worker_id", "after")
_queue, _key = parameters(sa.Text, "queue", "partition_key")
_lost_after = sa.bindparam("lost_after", -LIVE_WITHIN.total_seconds(), type_=sa.Double)


def running_task(g: Grammar) -> sa.Select[Any]:
    """Select the lease of a running task, with the time of its worker's last report."""
    return _running(g).where(task_leases.c.task_execution_id == _task_id)


def running_of_worker(g: Grammar) -> sa.Select[Any]:
    """Select up to :limit running tasks of a worker in id order, starting after the id :after."""
    execution, lease = task_executions.c, task_leases.c
    decides = (execution.task_name, execution.queue, execution.cancel_requested_at, execution.recovery_attempts)
    return (
        _running(g)
        .add_columns(*decides, lease.begun)
        .where(lease.worker_id == _worker_id, lease.task_execution_id > _after)
        .order_by(lease.task_execution_id)
        .limit(limit)
    )


def first_of_queue(g: Grammar) -> sa.Select[Any]:
    """Select the running task to deal with first in a queue: one whose worker has not been seen recently, or else the
    one that has been running longest.
    """
    return _ordered(g).where(task_leases.c.queue == _queue)


def first_of_key(g: Grammar) -> sa.Select[Any]:
    """Select the running task to deal with first among those with a key, as `first_of_queue` does."""
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
