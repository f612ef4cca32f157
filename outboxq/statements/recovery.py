"""Taking back the leases of workers that are gone."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Integer, Select, Text, bindparam, case, delete, null, or_, select, update

from ..model import EventType, TaskStatus
from ..tables import task_executions, task_leases
from . import follow
from .claim import limit
from .grammar import Grammar, Relations, Statement, Transition, word

_max_recoveries = bindparam("max_recoveries", type_=Integer, required=True)
_abandonment = bindparam("abandonment", type_=Text, required=True)


def recover(g: Grammar) -> Transition:
    """Take back up to :limit leases that ran out, oldest first, passing over those another worker is taking back.

    The task goes back to the outbox, or ends: Cancelled if that was asked for, Failed (abandoned) after :max_recoveries.
    A lease whose task is not Running under it was left behind by mistake: it goes, and the task is not touched.
    """
    return Transition(
        name="recover",
        steps={
            "expired": lambda _: (
                _expired(g).order_by(task_leases.c.lease_expires_at).limit(limit).with_for_update(skip_locked=True)
            ),
            "freed": lambda r: _freed(g, r),
            "recovered": lambda r: _recovered(g, r),
            "entry": lambda r: _entry(g, r),
            "event": lambda r: _event(g, r),
            "letter": lambda r: follow.letter(g, r["recovered"].c, r["recovered"], exception=null()),
            "key_held": lambda r: follow.key_held(g, r["recovered"].c),
            "key_freed": lambda r: follow.key_freed(g, r["recovered"].c),
        },
        returns="recovered",
    )


def any_expired(g: Grammar) -> Select[Any]:
    """One row if a lease ran out. Reads only."""
    return _expired(g).limit(1)


def _expired(g: Grammar) -> Select[Any]:
    return select(task_leases.c.task_execution_id.label("id")).where(task_leases.c.lease_expires_at < g.now)


def _freed(g: Grammar, r: Relations) -> Statement:
    lease = task_leases.c
    return (
        delete(task_leases)
        .where(g.among(lease.task_execution_id, r["expired"].c.id))
        .returning(lease.task_execution_id.label("id"), lease.lease_token, lease.worker_id, lease.lease_expires_at)
    )


def _recovered(g: Grammar, r: Relations) -> Statement:
    execution, freed = task_executions.c, r["freed"].c
    cancelled = execution.cancel_requested_at.is_not(None)
    abandoned = execution.recovery_attempts >= _max_recoveries
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
            last_error=case((cancelled, execution.last_error), (abandoned, _abandonment), else_=execution.last_error),
        )
        .returning(
            *(execution[name] for name in follow.CARRIED),
            execution.recovery_attempts,
            execution.last_error,
        )
    )


def _entry(g: Grammar, r: Relations) -> Statement:
    recovered = r["recovered"].c
    return follow.entry(g, recovered, r["recovered"], ready=recovered.status == word(TaskStatus.READY), due=g.now)


def _event(g: Grammar, r: Relations) -> Statement:
    recovered, freed = r["recovered"].c, r["freed"].c
    ready = recovered.status == word(TaskStatus.READY)
    failed = recovered.status == word(TaskStatus.FAILED)
    return follow.event(
        g,
        recovered,
        r["recovered"].join(r["freed"], recovered.id == freed.id),
        event_type=case(
            (ready, word(EventType.RESET)), (failed, word(EventType.ABANDONED)), else_=word(EventType.CANCELLED)
        ),
        data=g.json(
            recovery_attempts=recovered.recovery_attempts,
            lease_expires_at=freed.lease_expires_at,
            available_at=case((ready, g.now)),
            error=case((failed, recovered.last_error)),
        ),
        worker_id=freed.worker_id,
        lease_token=freed.lease_token,
    )
