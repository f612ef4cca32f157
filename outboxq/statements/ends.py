"""How claims end: by their worker, fenced by token and worker; by the lease that ran out; by hand."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Double,
    Integer,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    delete,
    func,
    null,
    or_,
    select,
    update,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy import insert as plain_insert

from ..model import EventType, TaskStatus
from ..tables import Instant, execution_events, task_executions, task_leases, task_outbox
from .claim import limit, worker_id
from .grammar import Columns, Grammar, Relations, Statement, Transition, word

HELD: Columns = {"id": Uuid(), "lease_token": BigInteger()}
END: Columns = {
    **HELD,
    "event_type": Text(),
    "status": Text(),
    "available_at": Instant,
    "delay_seconds": Double(),
    "error": Text(),
    "result": Text(),
    "data": Text(),
}
BY_HAND: Columns = {
    "id": Uuid(),
    "event_type": Text(),
    "status": Text(),
    "attempt": Integer(),
    "available_at": Instant,
    "data": Text(),
}
_RETURNED = (
    "id",
    "pipeline_execution_id",
    "queue",
    "priority",
    "partition_key",
    "position",
    "event_type",
    "expires_at",
)
_TERMINAL = [word(TaskStatus.COMPLETED), word(TaskStatus.FAILED), word(TaskStatus.CANCELLED)]


def end(g: Grammar) -> Transition:
    """End claims of one worker, each in its own way. Returns the ids of those that were still its."""

    def ended(r: Relations) -> Statement:
        execution, given, freed = task_executions.c, r["given"].c, r["freed"].c
        return (
            update(task_executions)
            .where(
                g.among(execution.id, freed.id),
                execution.id == given.id,
                execution.lease_token == given.lease_token,
                execution.worker_id == worker_id,
                execution.status == word(TaskStatus.RUNNING),
            )
            .values(
                status=given.status,
                worker_id=null(),
                attempt=execution.attempt + case((given.event_type == word(EventType.RETRY_SCHEDULED), 1), else_=0),
                retry_at=case((given.event_type == word(EventType.RETRY_SCHEDULED), _due(g, given)), else_=null()),
                started_at=case((given.status == word(TaskStatus.READY), null()), else_=execution.started_at),
                completed_at=case((given.status != word(TaskStatus.READY), g.now), else_=null()),
                updated_at=g.now,
                last_error=func.coalesce(given.error, execution.last_error),
                result=given.result,
            )
            .returning(*(execution[name] for name in _RETURNED), execution.status, execution.attempt)
        )

    def event(r: Relations) -> Statement:
        ended, given = r["ended"].c, r["given"].c
        ready = given.status == word(TaskStatus.READY)
        retry = given.event_type == word(EventType.RETRY_SCHEDULED)
        due = _due(g, given)
        # Completed is the hot end, and says everything by its type.
        data = case(
            (given.status == word(TaskStatus.COMPLETED), given.data),
            else_=g.json(
                given.data,
                attempt=ended.attempt,
                available_at=case((ready, due)),
                retry_at=case((retry, due)),
            ),
        )
        rows = select(
            ended.pipeline_execution_id, ended.id, given.event_type, data, worker_id, given.lease_token, g.now
        ).join_from(r["ended"], r["given"], ended.id == given.id)
        return plain_insert(execution_events).from_select(_EVENT, rows)

    def entry(r: Relations) -> Statement:
        ended, given = r["ended"].c, r["given"].c
        rows = _entries(g, ended, _due(g, given)).join_from(r["ended"], r["given"], ended.id == given.id)
        return plain_insert(task_outbox).from_select(_ENTRY, rows.where(ended.status == word(TaskStatus.READY)))

    return Transition(
        name="end",
        given=END,
        steps={
            "held": lambda r: _held(g, r),
            "freed": lambda r: _freed(g, r),
            "ended": ended,
            "entry": entry,
            "event": event,
        },
        returns="ended",
    )


def heartbeat(g: Grammar) -> Transition:
    """Extend the leases a worker holds. Returns those that were still its, with their cancel requests."""

    def beaten(r: Relations) -> Statement:
        held, given = r["held"].c, r["given"].c
        return (
            update(task_leases)
            .where(g.among(task_leases.c.task_execution_id, held.id), task_leases.c.task_execution_id == given.id)
            .values(lease_expires_at=g.later(g.now, given.lease_seconds))
            .returning(task_leases.c.task_execution_id.label("id"), task_leases.c.lease_expires_at)
        )

    def request(r: Relations) -> Statement:
        execution = task_executions.c
        return select(execution.id, execution.cancel_requested_at).join_from(
            task_executions, r["beaten"], execution.id == r["beaten"].c.id
        )

    return Transition(
        name="heartbeat",
        given={**HELD, "lease_seconds": Double()},
        steps={"held": lambda r: _held(g, r), "beaten": beaten, "request": request},
        returns="beaten",
        completed_by=("request",),
    )


def recover(g: Grammar) -> Transition:
    """Take back up to :limit leases that ran out, oldest first, passing over those another worker is taking back.

    The task goes back to the outbox, or ends: Cancelled if that was asked for, Failed (abandoned) after :max_recoveries.
    """
    max_recoveries = bindparam("max_recoveries", type_=Integer, required=True)
    abandonment = bindparam("abandonment", type_=Text, required=True)
    execution = task_executions.c
    cancelled = execution.cancel_requested_at.is_not(None)
    abandoned = execution.recovery_attempts >= max_recoveries

    def expired(_: Relations) -> Statement:
        lease = task_leases.c
        return (
            select(lease.task_execution_id.label("id"))
            .where(lease.lease_expires_at < g.now)
            .order_by(lease.lease_expires_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

    def freed(r: Relations) -> Statement:
        lease = task_leases.c
        return (
            delete(task_leases)
            .where(g.among(lease.task_execution_id, r["expired"].c.id))
            .returning(lease.task_execution_id.label("id"), lease.lease_token, lease.worker_id, lease.lease_expires_at)
        )

    def recovered(r: Relations) -> Statement:
        freed = r["freed"].c
        ends = or_(cancelled, abandoned)
        return (
            update(task_executions)
            .where(
                g.among(execution.id, freed.id),
                execution.id == freed.id,
                execution.lease_token == freed.lease_token,
                execution.worker_id == freed.worker_id,
                execution.status == word(TaskStatus.RUNNING),
            )
            .values(
                status=case(
                    (cancelled, word(TaskStatus.CANCELLED)),
                    (abandoned, word(TaskStatus.FAILED)),
                    else_=word(TaskStatus.READY),
                ),
                recovery_attempts=execution.recovery_attempts + case((ends, 0), else_=1),
                worker_id=null(),
                started_at=case((ends, execution.started_at), else_=null()),
                completed_at=case((ends, g.now), else_=null()),
                updated_at=g.now,
                last_error=case((and_(abandoned, ~cancelled), abandonment), else_=execution.last_error),
            )
            .returning(
                *(execution[name] for name in _RETURNED),
                execution.status,
                execution.attempt,
                execution.recovery_attempts,
                execution.last_error,
            )
        )

    def event(r: Relations) -> Statement:
        recovered, freed = r["recovered"].c, r["freed"].c
        ready = recovered.status == word(TaskStatus.READY)
        failed = recovered.status == word(TaskStatus.FAILED)
        event_type = case(
            (ready, word(EventType.RESET)), (failed, word(EventType.ABANDONED)), else_=word(EventType.CANCELLED)
        )
        data = g.json(
            recovery_attempts=recovered.recovery_attempts,
            lease_expires_at=freed.lease_expires_at,
            available_at=case((ready, g.now)),
            error=case((failed, recovered.last_error)),
        )
        rows = select(
            recovered.pipeline_execution_id, recovered.id, event_type, data, freed.worker_id, freed.lease_token, g.now
        ).join_from(r["recovered"], r["freed"], recovered.id == freed.id)
        return plain_insert(execution_events).from_select(_EVENT, rows)

    def entry(r: Relations) -> Statement:
        recovered = r["recovered"].c
        rows = _entries(g, recovered, g.now).where(recovered.status == word(TaskStatus.READY))
        return plain_insert(task_outbox).from_select(_ENTRY, rows)

    return Transition(
        name="recover",
        steps={"expired": expired, "freed": freed, "recovered": recovered, "entry": entry, "event": event},
        returns="recovered",
    )


def by_hand(g: Grammar) -> Transition:
    """Move a task without a token: from the outbox, from under its worker (which is fenced by that), or from Failed.

    Which of the three it may be taken from is said by :from_ready, :from_running and :from_failed. Where the task stands is
    proved by what was deleted, so a task that moves meanwhile is not changed; the caller looks again.
    """
    from_ready, from_running, from_failed = (
        bindparam(name, type_=Boolean, required=True) for name in ("from_ready", "from_running", "from_failed")
    )
    execution = task_executions.c

    def gone(r: Relations) -> Statement:
        return (
            delete(task_outbox)
            .where(from_ready, g.among(task_outbox.c.task_execution_id, r["given"].c.id))
            .returning(task_outbox.c.task_execution_id.label("id"))
        )

    def freed(r: Relations) -> Statement:
        lease = task_leases.c
        return (
            delete(task_leases)
            .where(from_running, g.among(lease.task_execution_id, r["given"].c.id))
            .returning(lease.task_execution_id.label("id"), lease.lease_token, lease.worker_id)
        )

    def moved(r: Relations) -> Statement:
        given = r["given"].c
        return (
            update(task_executions)
            .where(
                g.among(execution.id, given.id),
                execution.id == given.id,
                or_(
                    and_(execution.status == word(TaskStatus.READY), execution.id.in_(select(r["gone"].c.id))),
                    and_(execution.status == word(TaskStatus.RUNNING), execution.id.in_(select(r["freed"].c.id))),
                    and_(execution.status == word(TaskStatus.FAILED), from_failed),
                ),
            )
            .values(
                status=given.status,
                worker_id=null(),
                attempt=func.coalesce(given.attempt, execution.attempt),
                recovery_attempts=case(
                    (given.event_type == word(EventType.REQUEUED), 0), else_=execution.recovery_attempts
                ),
                cancel_requested_at=null(),
                retry_at=case((given.event_type == word(EventType.RETRY_SCHEDULED), given.available_at), else_=null()),
                started_at=case((given.status == word(TaskStatus.READY), null()), else_=execution.started_at),
                completed_at=case((given.status != word(TaskStatus.READY), g.now), else_=null()),
                updated_at=g.now,
            )
            .returning(
                *(execution[name] for name in _RETURNED),
                execution.status,
                execution.attempt,
                execution.recovery_attempts,
            )
        )

    def event(r: Relations) -> Statement:
        moved, given, freed = r["moved"].c, r["given"].c, r["freed"].c
        due = case((given.status == word(TaskStatus.READY), func.coalesce(given.available_at, g.now)))
        data = g.json(
            given.data,
            attempt=moved.attempt,
            recovery_attempts=moved.recovery_attempts,
            available_at=due,
            retry_at=case((given.event_type == word(EventType.RETRY_SCHEDULED), due)),
        )
        rows = (
            select(
                moved.pipeline_execution_id, moved.id, given.event_type, data, freed.worker_id, freed.lease_token, g.now
            )
            .join_from(r["moved"], r["given"], moved.id == given.id)
            .outerjoin(r["freed"], moved.id == freed.id)
        )
        return plain_insert(execution_events).from_select(_EVENT, rows)

    def entry(r: Relations) -> Statement:
        moved, given = r["moved"].c, r["given"].c
        rows = _entries(g, moved, func.coalesce(given.available_at, g.now)).join_from(
            r["moved"], r["given"], moved.id == given.id
        )
        return plain_insert(task_outbox).from_select(_ENTRY, rows.where(moved.status == word(TaskStatus.READY)))

    return Transition(
        name="by_hand",
        given=BY_HAND,
        steps={"gone": gone, "freed": freed, "moved": moved, "entry": entry, "event": event},
        returns="moved",
    )


def request_cancel(g: Grammar) -> Transition:
    """Ask running tasks to stop; their workers read it with the next heartbeat."""
    execution = task_executions.c

    def asked(r: Relations) -> Statement:
        return (
            update(task_executions)
            .where(
                g.among(execution.id, r["given"].c.id),
                execution.status == word(TaskStatus.RUNNING),
                execution.cancel_requested_at.is_(None),
            )
            .values(cancel_requested_at=g.now, updated_at=g.now)
            .returning(execution.id, execution.pipeline_execution_id)
        )

    def event(r: Relations) -> Statement:
        asked, given = r["asked"].c, r["given"].c
        rows = select(
            asked.pipeline_execution_id, asked.id, word(EventType.CANCEL_REQUESTED), given.data, null(), null(), g.now
        ).join_from(r["asked"], r["given"], asked.id == given.id)
        return plain_insert(execution_events).from_select(_EVENT, rows)

    return Transition(
        name="request_cancel",
        given={"id": Uuid(), "data": Text()},
        steps={"asked": asked, "event": event},
        returns="asked",
    )


_EVENT = [
    "pipeline_execution_id",
    "task_execution_id",
    "event_type",
    "event_data",
    "worker_id",
    "lease_token",
    "created_at",
]
_ENTRY = [
    "task_execution_id",
    "queue",
    "priority",
    "partition_key",
    "position",
    "event_type",
    "expires_at",
    "available_at",
    "created_at",
]


def _held(g: Grammar, r: Relations) -> Statement:
    """The leases that are still the worker's, locked in the order of their ids: two batches never wait for each other."""
    lease, given = task_leases.c, r["given"].c
    return (
        select(lease.task_execution_id.label("id"))
        .join_from(task_leases, r["given"], lease.task_execution_id == given.id)
        .where(
            g.among(lease.task_execution_id, given.id),
            lease.lease_token == given.lease_token,
            lease.worker_id == worker_id,
        )
        .order_by(lease.task_execution_id)
        .with_for_update(of=task_leases)
    )


def _freed(g: Grammar, r: Relations) -> Statement:
    lease = task_leases.c
    return (
        delete(task_leases)
        .where(g.among(lease.task_execution_id, r["held"].c.id))
        .returning(lease.task_execution_id.label("id"))
    )


def _due(g: Grammar, given: Any) -> ColumnElement[Any]:
    return func.coalesce(given.available_at, g.later(g.now, given.delay_seconds))


def _entries(g: Grammar, execution: Any, due: ColumnElement[Any]) -> Any:
    """Outbox entries for executions that are Ready again; they keep their position."""
    same = ("id", "queue", "priority", "partition_key", "position", "event_type", "expires_at")
    return select(*(execution[name] for name in same), sql_cast(due, Instant), g.now)
