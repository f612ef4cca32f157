"""Take back the leases of workers that are gone, and make entries due again that a clock that was set back has delayed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    delete,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    update,
)

from ...model import LONGEST, EventType
from ...store import task_rows
from ..column_types import Instant
from ..grammar import Columns, Grammar, Relations, SqlStatus, Statement, Step, Transition, joined, limit, sql_literal
from ..tables import execution_events, task_executions, task_leases, task_outbox
from .ends import HELD, fence, unlocked

SEEN: Columns = {**HELD, "worker_id": Uuid(), "lease_expires_at": Instant}
"""A lease as an earlier statement read it."""
_SEEN = (
    task_leases.c.task_execution_id.label("id"),
    task_leases.c.lease_token,
    task_leases.c.worker_id,
    task_leases.c.lease_expires_at,
)
_max_recoveries = bindparam("max_recoveries", type_=Integer, required=True)
_abandonment = bindparam("abandonment", type_=Text, required=True)
_until = bindparam("until", type_=Instant, required=True)
_after = bindparam("after", type_=BigInteger, required=True)
_lately = bindparam("lately", -30.0, type_=Double)
"""The longest time in seconds, negative, until a worker notices the step. An entry made meanwhile is due at its own time."""


def recover(g: Grammar) -> Transition:
    """Take back up to :limit expired leases, oldest first. Skips leases that another transaction has locked."""
    oldest = _expired(g).order_by(task_leases.c.lease_expires_at).limit(limit)
    return _recovery(g, lambda _: oldest.with_for_update(skip_locked=True))


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
    return _expired(g).with_only_columns(*_SEEN).order_by(task_leases.c.lease_expires_at).limit(limit)


def outlasting(g: Grammar) -> Select[Any]:
    """Select the leases that end later than any heartbeat can make them now, and their lease times: the clock was ahead."""
    lease, event = task_leases.c, execution_events.c
    most = literal_column(f"{LONGEST.total_seconds()}", Double)
    asked = task_executions.c.lease_seconds
    # A lease time that the CHECK constraints should have refused cannot be added to a time by any database.
    of_task = case((asked.between(literal_column("0.0", Double), most), asked), else_=most)
    of_claim = (
        select(cast(g.text_in(event.event_data, "lease_seconds"), Double))
        .where(
            event.task_execution_id == lease.task_execution_id,
            event.lease_token == lease.lease_token,
            event.event_type == sql_literal(EventType.CLAIMED),
        )
        .correlate(task_leases)
        .scalar_subquery()
    )
    lasts = func.coalesce(of_claim, of_task)
    margin = literal_column("1.0", Double)
    late = (
        select(*_SEEN, lasts.label("seconds"))
        .join_from(task_leases, task_executions, task_executions.c.id == lease.task_execution_id)
        .where(lease.lease_expires_at > g.later(g.now, of_task + margin))
        .cte("late")
        .prefix_with("MATERIALIZED")
    )
    return select(late).where(late.c.lease_expires_at > g.later(g.now, late.c.seconds + margin))


def any_written_ahead(g: Grammar) -> Select[Any]:
    """Select one of the entries that a clock that was ahead has written. Reads only."""
    return select(task_outbox.c.id).where(_written_ahead(g)).limit(1)


def due_again(g: Grammar) -> Transition:
    """Replace up to :limit entries after :after that wait for a clock that was ahead, or for one that was set back, by due ones.

    Those are the entries that were due by :until, the time before the clock was set back, and those that a clock that was ahead
    has written. The delay of a retry, a snooze or a release begins again. Returns the entries that were replaced. Each task keeps
    its position in its key. An entry made since the step is not changed.
    """
    entry = task_outbox.c

    def behind(_: Relations) -> Statement:
        was_due = and_(
            entry.available_at > g.now,
            entry.available_at <= _until,
            or_(entry.created_at > g.now, entry.created_at < g.later(g.now, _lately)),
        )
        return (
            select(entry.id)
            .where(entry.id > _after, or_(was_due, _written_ahead(g)))
            .order_by(entry.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

    delay = g.between(entry.created_at, entry.available_at) / literal_column("1000000.0", Double)
    due = case((and_(entry.available_at > _until, delay > 0), g.later(g.now, delay)), else_=g.now)
    return rescheduled(g, behind, due=due, reason="the clock was set back")


def rescheduled(
    g: Grammar, found: Step, *, due: ColumnElement[Any], reason: str, given: Columns | None = None
) -> Transition:
    """Replace the entries that `found` selects and locks by entries that are `due` then, which may depend on the old ones.

    Returns the old ones.
    """
    entry, execution = task_outbox.c, task_executions.c

    def gone(r: Relations) -> Statement:
        replaced = delete(task_outbox).where(g.among(entry.id, r["found"].c.id))
        return replaced.returning(entry.task_execution_id.label("id"), entry.id.label("entry_id"), due.label("due"))

    def moved(r: Relations) -> Statement:
        gone = r["gone"].c
        return (
            update(task_executions)
            .where(execution.id == gone.id, execution.status == SqlStatus.READY)
            .values(
                retry_at=case((and_(execution.retry_at.is_not(None), gone.due > g.now), gone.due), else_=null()),
                updated_at=g.now,
            )
            .returning(*task_rows.CARRIED)
        )

    def event(r: Relations) -> Statement:
        data = g.json(available_at=r["gone"].c.due, reason=literal_column(f"'{reason}'"))
        rescheduled, rows = sql_literal(EventType.RESCHEDULED), joined(r["moved"], r["gone"])
        return task_rows.event(g, r["moved"].c, rows, event_type=rescheduled, data=data)

    return Transition(
        given=given or {},
        steps={
            "found": found,
            "gone": gone,
            "moved": moved,
            "entry": lambda r: task_rows.entry(g, r["moved"].c, joined(r["moved"], r["gone"]), due=r["gone"].c.due),
            "event": event,
        },
        returns="gone",
    )


def _written_ahead(g: Grammar) -> ColumnElement[bool]:
    """Return the condition that a clock that was ahead has written an entry whose due time follows from that clock.

    It follows where the entry was due at once, or where an attempt wrote it. The due time of a task that was enqueued for later may
    be a date that a user gave, and stays.
    """
    entry, execution = task_outbox.c, task_executions.c
    has_begun = select(execution.id).where(
        execution.id == entry.task_execution_id, execution.first_started_at.is_not(None)
    )
    return and_(
        entry.created_at > g.later(g.now, literal_column("1.0", Double)),
        entry.available_at > g.now,
        or_(entry.available_at <= entry.created_at, has_begun.correlate(task_outbox).exists()),
    )


def _recovery(g: Grammar, expired: Step, *, given: Columns | None = None) -> Transition:
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
            "letter": lambda r: task_rows.letter(g, r["recovered"].c, r["recovered"], exception=null()),
            "key_held": lambda r: task_rows.key_held(g, r["recovered"].c),
            "key_freed": lambda r: task_rows.key_freed(g, r["recovered"].c),
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
            *(lease[name] == given[name] for name in ("lease_token", "worker_id", "lease_expires_at")),
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
        .where(fence(g, freed.id, freed, freed.worker_id))
        .values(
            status=case((cancelled, SqlStatus.CANCELLED), (abandoned, SqlStatus.FAILED), else_=SqlStatus.READY),
            recovery_attempts=execution.recovery_attempts + case((and_(counts, ~ends), 1), else_=0),
            worker_id=null(),
            started_at=case((ends, execution.started_at), else_=null()),
            completed_at=case((ends, g.now), else_=null()),
            updated_at=g.now,
            last_error=case((cancelled, execution.last_error), (abandoned, _abandonment), else_=execution.last_error),
        )
        .returning(*task_rows.CARRIED, execution.attempt, execution.recovery_attempts, execution.last_error)
    )


def _entry(g: Grammar, r: Relations) -> Statement:
    """Return the task to the outbox. An entry left behind by mistake stays: an error would stop the recovery of other tasks."""
    new: Any = task_rows.entry(g, r["recovered"].c, r["recovered"], due=g.now)
    return new.on_conflict_do_nothing()  # type: ignore[no-any-return]


def _event(g: Grammar, r: Relations) -> Statement:
    recovered, freed = r["recovered"].c, r["freed"].c
    ready, failed = recovered.status == SqlStatus.READY, recovered.status == SqlStatus.FAILED
    return task_rows.event(
        g,
        recovered,
        joined(r["recovered"], r["freed"]),
        event_type=case(
            (ready, sql_literal(EventType.RESET)),
            (failed, sql_literal(EventType.ABANDONED)),
            else_=sql_literal(EventType.CANCELLED),
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
