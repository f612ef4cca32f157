"""Take back the leases of workers that are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Double,
    Integer,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    delete,
    false,
    literal_column,
    null,
    or_,
    select,
    update,
)

from ...model import LONGEST, EventType, TaskStatus
from ..column_types import Instant
from ..tables import task_executions, task_leases
from . import effects
from .claim import limit
from .ends import unlocked
from .grammar import Columns, Grammar, Relations, Statement, Transition, word

SEEN: Columns = {"id": Uuid(), "lease_token": BigInteger(), "worker_id": Uuid(), "lease_expires_at": Instant}
"""A lease as an earlier statement read it."""
_SEEN = (
    task_leases.c.task_execution_id.label("id"),
    task_leases.c.lease_token,
    task_leases.c.worker_id,
    task_leases.c.lease_expires_at,
)
_max_recoveries = bindparam("max_recoveries", type_=Integer, required=True)
_abandonment = bindparam("abandonment", type_=Text, required=True)


def recover(g: Grammar) -> Transition:
    """Take back up to :limit expired leases, oldest first. Skips leases that another transaction has locked."""
    return _recovery(
        g,
        lambda _: _expired(g).order_by(task_leases.c.lease_expires_at).limit(limit).with_for_update(skip_locked=True),
    )


def recover_seen(g: Grammar) -> Transition:
    """Take back exactly these leases if they are unchanged. Skips locked ones.

    The expiry is not tested again: the caller has watched these leases, and may know better than a clock that was set back.
    """
    return _recovery(g, lambda r: _seen(g, r), given=SEEN)


def any_expired(g: Grammar) -> Select[Any]:
    """Return one row if some lease has expired. Reads only."""
    return _expired(g).limit(1)


def expired(g: Grammar) -> Select[Any]:
    """Return up to :limit expired leases, oldest first."""
    lease = task_leases.c
    return select(*_SEEN).where(lease.lease_expires_at < g.now).order_by(lease.lease_expires_at).limit(limit)


def outlasting(g: Grammar) -> Select[Any]:
    """Return the leases that end later than any heartbeat could have made them: the clock was set back since."""
    lease, seconds = task_leases.c, task_executions.c.lease_seconds
    most = literal_column(f"{LONGEST.total_seconds()}", Double)
    # A lease time that the CHECK constraints should have refused cannot be added to a time by any database.
    bounded = case((seconds.between(literal_column("0.0", Double), most), seconds), else_=most)
    at_most = g.later(g.now, bounded + literal_column("1.0", Double))
    return (
        select(*_SEEN)
        .join_from(task_leases, task_executions, task_executions.c.id == lease.task_execution_id)
        .where(lease.lease_expires_at > at_most)
    )


def _recovery(g: Grammar, expired: Callable[[Relations], Statement], *, given: Columns | None = None) -> Transition:
    """Recover the tasks of the leases that `expired` selects and locks.

    The task returns to the outbox, or ends: Cancelled if that was requested, Failed (abandoned) after :max_recoveries. A claim
    whose handler had not begun does not count: a suspect task that waited for its turn must not reach the limit through the
    faults of another. A lease whose task is not Running under it was left behind by mistake: it is deleted, and the task is
    not changed. A locked task keeps its lease for the next recovery, so that one stuck transaction does not delay the others.
    """
    return Transition(
        given=given or {},
        steps={
            "expired": expired,
            "unlocked": lambda r: unlocked(g, r["expired"].c.id),
            "freed": lambda r: _freed(g, r),
            "recovered": lambda r: _recovered(g, r),
            "entry": lambda r: _entry(g, r),
            "event": lambda r: _event(g, r),
            "letter": lambda r: effects.letter(g, r["recovered"].c, r["recovered"], exception=null()),
            "key_held": lambda r: effects.key_held(g, r["recovered"].c),
            "key_freed": lambda r: effects.key_freed(g, r["recovered"].c),
        },
        returns="recovered",
    )


def _expired(g: Grammar) -> Select[Any]:
    return select(task_leases.c.task_execution_id.label("id")).where(task_leases.c.lease_expires_at < g.now)


def _seen(g: Grammar, r: Relations) -> Select[Any]:
    """Select the leases that were not extended, ended or claimed again since they were read, in the order of their ids."""
    lease, given = task_leases.c, r["given"].c
    return (
        select(lease.task_execution_id.label("id"))
        .join_from(task_leases, r["given"], lease.task_execution_id == given.id)
        .where(
            g.among(lease.task_execution_id, given.id),
            lease.lease_token == given.lease_token,
            lease.worker_id == given.worker_id,
            lease.lease_expires_at == given.lease_expires_at,
        )
        .order_by(lease.task_execution_id)
        .with_for_update(of=task_leases, skip_locked=True)
    )


def _freed(g: Grammar, r: Relations) -> Statement:
    lease, execution = task_leases.c, task_executions.alias("execution")
    task = select(execution.c.id).where(execution.c.id == lease.task_execution_id).correlate(task_leases)
    return (
        delete(task_leases)
        .where(
            g.among(lease.task_execution_id, r["expired"].c.id),
            or_(g.among(lease.task_execution_id, r["unlocked"].c.id), ~task.exists()),
        )
        .returning(*_SEEN, task_leases.c.begun)
    )


def _recovered(g: Grammar, r: Relations) -> Statement:
    execution, freed = task_executions.c, r["freed"].c
    cancelled = execution.cancel_requested_at.is_not(None)
    counts = freed.begun.is_not(false())
    abandoned = and_(counts, execution.recovery_attempts >= _max_recoveries)
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
            recovery_attempts=execution.recovery_attempts + case((and_(counts, ~ends), 1), else_=0),
            worker_id=null(),
            started_at=case((ends, execution.started_at), else_=null()),
            completed_at=case((ends, g.now), else_=null()),
            updated_at=g.now,
            last_error=case((cancelled, execution.last_error), (abandoned, _abandonment), else_=execution.last_error),
        )
        .returning(
            *(execution[name] for name in effects.CARRIED),
            execution.recovery_attempts,
            execution.last_error,
        )
    )


def _entry(g: Grammar, r: Relations) -> Statement:
    """Return the task to the outbox. An entry that was left behind by mistake is used as it is: an error would stop the recovery
    of the other tasks.
    """
    recovered = r["recovered"].c
    ready = recovered.status == word(TaskStatus.READY)
    new: Any = effects.entry(g, recovered, r["recovered"], ready=ready, due=g.now)
    return new.on_conflict_do_nothing()  # type: ignore[no-any-return]


def _event(g: Grammar, r: Relations) -> Statement:
    recovered, freed = r["recovered"].c, r["freed"].c
    ready = recovered.status == word(TaskStatus.READY)
    failed = recovered.status == word(TaskStatus.FAILED)
    return effects.event(
        g,
        recovered,
        r["recovered"].join(r["freed"], recovered.id == freed.id),
        event_type=case(
            (ready, word(EventType.RESET)), (failed, word(EventType.ABANDONED)), else_=word(EventType.CANCELLED)
        ),
        data=g.json(
            recovery_attempts=recovered.recovery_attempts,
            # Never later than now: after a clock was set back, an expired lease can seem to end in the future.
            lease_expires_at=case((freed.lease_expires_at < g.now, freed.lease_expires_at), else_=g.now),
            available_at=case((ready, g.now)),
            error=case((failed, recovered.last_error)),
        ),
        worker_id=freed.worker_id,
        lease_token=freed.lease_token,
    )
