"""Recover the tasks of dead workers, and repair the effects of a clock that was set back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from ...database import table_locks
from ...database.column_types import Instant
from ...database.dialects import Begin, Row
from ...database.grammar import (
    Columns,
    Grammar,
    Relations,
    SqlStatus,
    Statement,
    Step,
    Transition,
    joined,
    limit,
    number,
    sql_literal,
)
from ...database.tables import execution_events, task_executions, task_leases, task_outbox
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import EARLIEST, LONGEST, MAX_RECOVERIES, EventType, TaskStatus
from ...model.wording import plural
from ...payload.parameters import sanitize
from .. import task_rows
from ..arguments import positive
from ..transactions import Transactions
from .claim_sql import value_for
from .ends import A_MOMENT, HELD, fence, given_leases, has_ended, lock_in_order, unlocked
from .sleeping_workers import SleepingWorkers

_DUE_AT_ONCE = 500
_RECOVERED_AS = {
    TaskStatus.READY: EventType.RESET,
    TaskStatus.FAILED: EventType.ABANDONED,
    TaskStatus.CANCELLED: EventType.CANCELLED,
}
"""The event type of a recovery, keyed by the status that the recovery gives the task."""
_Given: TypeAlias = tuple[object, ...]
"""The columns of a `Lease`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """A task that was recovered from a dead worker. The task is Ready again, or has ended."""

    id: UUID
    pipeline_execution_id: UUID
    task_name: str
    queue: str
    status: TaskStatus
    attempt: int
    recovery_attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """A lease as it was read. If a second read returns an equal lease, the lease was not extended in between."""

    id: UUID
    """Id of the task execution."""
    lease_token: int
    worker_id: UUID
    lease_expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseLook:
    """Leases, and the database's time when they were read."""

    now: datetime
    leases: Sequence[Lease]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutlastingLook:
    """Leases that were written while the clock was running fast, and the database's time when they were read."""

    now: datetime
    leases: Mapping[Lease, timedelta]
    """Length of each lease, counted from its newest heartbeat."""


def expired_leases(store: Transactions, limit: int = 10_000, *, using: object = None) -> LeaseLook:
    """Return up to `limit` expired leases, oldest first. Locks nothing."""
    positive(limit)

    def work(target: Target) -> LeaseLook:
        rows = target.run(expired, store.values(target, limit=limit))
        return LeaseLook(now=store.now_in(target), leases=[Lease(**row) for row in rows])

    return store.run(work, using=using, begin=Begin.READ)


def outlasting_leases(store: Transactions, *, using: object = None) -> OutlastingLook:
    """Return the leases that, because the clock was set back, end later than a lease that is extended now."""

    def work(target: Target) -> OutlastingLook:
        now = store.now_in(target)
        found = target.run(outlasting, store.values(target))
        rows = [(timedelta(seconds=row.pop("seconds")), row) for row in found]
        return OutlastingLook(now=now, leases={Lease(**row): lasts for lasts, row in rows})

    return store.run(work, using=using, begin=Begin.READ)


def recover(
    store: Transactions,
    limit: int = 100,
    *,
    max_recoveries: int = MAX_RECOVERIES,
    leases: Sequence[Lease] | None = None,
    patience: timedelta | None = None,
    using: object = None,
) -> list[Recovered]:
    """Recover up to `limit` tasks whose leases have expired, and write `task_reset`, or `task_abandoned` after
    `max_recoveries` recoveries in a row.

    Every worker calls this function. The function skips rows that another session has locked, and tasks that would end
    while their batch's row is locked. It reads only leases, never the registry of workers. With `leases`, the call
    recovers only these leases, and skips any that has changed since it was read. If the transaction cannot begin within
    `patience`, the call recovers nothing, because other sessions have had to wait too, and their heartbeats are more
    urgent.
    """
    positive(limit)
    if max_recoveries < 0:
        raise InvalidArgument("max_recoveries must be at least 0")
    given = None if leases is None else [astuple(lease) for lease in leases[:limit]]
    options = {"limit": limit, **_counted_to(max_recoveries)}
    began = time.monotonic()

    def work(target: Target) -> list[Recovered]:
        if patience is not None and time.monotonic() - began > patience.total_seconds():
            return []
        return _take_back(store, target, options, given)

    def committed(target: Target, found: list[Recovered]) -> bool:
        return were_recovered(target, leases or (), found)

    if given == []:
        return []
    if given is None and using is None and store.dialect.reads_before_writing and not store.run_one(any_expired):
        return []
    try:
        recovered = store.run(work, using=using, committed=committed, gives_up=store.is_locked_out)
    except Exception as error:
        if using is not None or not store.is_locked_out(error):
            raise
        given = given or [astuple(lease) for lease in expired_leases(store, limit).leases]
        recovered = _take_back_by_halves(store, options, given)
    if recovered and using is None:
        SleepingWorkers(store).forget_ended()  # other workers may have died with this one
    return recovered


def recover_in(store: Transactions, target: Target, leases: Sequence[Lease], *, reason: str = "") -> list[Recovered]:
    """Recover the tasks of these leases in this transaction if the leases are unchanged, whether or not they have
    expired. `reason` is kept in the events.
    """
    options = {**_counted_to(MAX_RECOVERIES), "reason": sanitize(reason) or None}
    return _take_back(store, target, options, [astuple(lease) for lease in leases])


def were_recovered(target: Target, leases: Iterable[Lease], found: Sequence[Recovered]) -> bool:
    """Return whether the recovery of `found` from these leases was committed, in case the database's answer was lost
    with the connection.
    """
    first = next((lease for lease in leases if found and lease.id == found[0].id), None)
    return first is not None and has_ended(target, first, _RECOVERED_AS[found[0].status])


def _counted_to(max_recoveries: int) -> dict[str, Any]:
    abandonment = (
        f"ABANDONED: the lease expired again after {max_recoveries} {plural(max_recoveries, 'recovery', 'recoveries')}"
    )
    return {"max_recoveries": max_recoveries, "abandonment": abandonment}


def _take_back_by_halves(store: Transactions, options: dict[str, Any], given: Sequence[_Given]) -> list[Recovered]:
    """Recover the tasks of these leases, unless a locked row keeps them from ending."""

    def work(target: Target) -> list[Recovered]:
        target.run(table_locks.limits, A_MOMENT)
        return _take_back(store, target, options, given)

    try:
        return store.run(work, gives_up=store.is_locked_out)
    except Exception as error:
        if not store.is_locked_out(error):
            raise
    half = len(given) // 2
    parts = (given[:half], given[half:]) if half else ()
    return [one for part in parts for one in _take_back_by_halves(store, options, part)]


def _take_back(
    store: Transactions, target: Target, options: dict[str, Any], given: Sequence[_Given] | None
) -> list[Recovered]:
    """Recover the task of each given lease that has not changed; None means the oldest expired leases."""
    values = store.values(target, **options)
    with target.atomic():
        rows = target.run(take_back if given is None else recover_seen, values, given)
    # Wake workers for the queues in which a key or a slot became free. Inserting an entry notifies workers anyway.
    freed = [row for row in rows if row["partition_key"] is not None or row["status"] != TaskStatus.READY]
    store.wake(target, {row["queue"] for row in freed})
    return [Recovered(**{one.name: row[one.name] for one in fields(Recovered)}) for row in rows]


def due_again(store: Transactions, until: datetime | None = None) -> int:
    """Make entries due if they were delayed because the clock was running fast, and return their number.

    These are the entries that were written while the clock was ahead, and the entries that were due by `until`, the
    database's time just before its clock was set back. Each transaction handles up to 500 entries.
    """
    if until is None and not store.run_one(any_written_ahead):
        return 0
    total = after = 0

    def work(target: Target) -> list[Row]:
        moment = EARLIEST if until is None else until
        values = store.values(target, until=moment, limit=_DUE_AT_ONCE, after=after)
        with target.atomic():
            return target.run(select_due_again, values)

    while True:
        found = store.run(work)
        total += len(found)
        if len(found) < _DUE_AT_ONCE:
            return total
        after = max(row["entry_id"] for row in found)


SEEN: Columns = {**HELD, "worker_id": sa.Uuid(), "lease_expires_at": Instant}
"""A lease, as read by an earlier statement."""
READ_LEASE = (
    task_leases.c.task_execution_id.label("id"),
    task_leases.c.lease_token,
    task_leases.c.worker_id,
    task_leases.c.lease_expires_at,
)
"""The columns of a `Lease`."""
_max_recoveries = sa.bindparam("max_recoveries", type_=sa.Integer, required=True)
_abandonment = sa.bindparam("abandonment", type_=sa.Text, required=True)
_reason = sa.bindparam("reason", None, type_=sa.Text)
_until = sa.bindparam("until", type_=Instant, required=True)
_after = sa.bindparam("after", type_=sa.BigInteger, required=True)
_lately = sa.bindparam("lately", -30.0, type_=sa.Double)
"""Longest time until a worker notices that the clock was set back, as a negative number of seconds. Entries written
within this time keep their due times.
"""


def take_back(g: Grammar) -> Transition:
    """Recover the tasks of up to :limit expired leases, oldest first. Skips leases that other transactions have
    locked.
    """
    oldest = _expired(g).order_by(task_leases.c.lease_expires_at).limit(limit)
    return _recovery(g, lambda _: oldest.with_for_update(skip_locked=True))


def recover_seen(g: Grammar) -> Transition:
    """Recover the tasks of exactly these leases if the leases are unchanged. Skips locked leases.

    The expiry is not checked again, because the caller has watched these leases, and the clock may have been set back.
    """
    return _recovery(g, lambda r: _seen(g, r), given=SEEN)


def any_expired(g: Grammar) -> sa.Select[Any]:
    """Return one row if any lease has expired. Writes nothing."""
    return _expired(g).limit(1)


def expired(g: Grammar) -> sa.Select[Any]:
    """Return up to :limit expired leases, oldest first."""
    return _expired(g).with_only_columns(*READ_LEASE).order_by(task_leases.c.lease_expires_at).limit(limit)


def outlasting(g: Grammar) -> sa.Select[Any]:
    """Select the leases that end later than a lease that is extended now, with their lengths. These leases were written
    while the clock was running fast.
    """
    lease, most = task_leases.c, number(LONGEST.total_seconds())
    asked = task_executions.c.lease_seconds
    # A lease length that the CHECK constraints should have refused may be too large for the database to add to a time.
    of_task = sa.case((asked.between(sa.literal_column("0.0", sa.Double), most), asked), else_=most)
    lasts = sa.func.coalesce(length_of_claim(g), of_task)
    margin = number(1.0)
    late = (
        sa.select(*READ_LEASE, lasts.label("seconds"))
        .join_from(task_leases, task_executions, task_executions.c.id == lease.task_execution_id)
        .where(lease.lease_expires_at > g.later(g.now, of_task + margin))
        .cte("late")
        .prefix_with("MATERIALIZED")
    )
    return sa.select(late).where(late.c.lease_expires_at > g.later(g.now, late.c.seconds + margin))


def length_of_claim(g: Grammar) -> Any:
    """Return the length of a lease in seconds, as its claim recorded it; NULL if the claim used the task's length."""
    lease, event = task_leases.c, execution_events.c
    is_claim = (event.lease_token == lease.lease_token, event.event_type == sql_literal(EventType.CLAIMED))
    length = sa.select(sa.cast(g.text_in(event.event_data, "lease_seconds"), sa.Double))
    return value_for(task_leases, length.where(event.task_execution_id == lease.task_execution_id, *is_claim))


def any_written_ahead(g: Grammar) -> sa.Select[Any]:
    """Select one of the entries that were written while the clock was running fast. Writes nothing."""
    return sa.select(task_outbox.c.id).where(_written_ahead(g)).limit(1)


def select_due_again(g: Grammar) -> Transition:
    """Replace up to :limit entries after :after with due ones, if their due times come from a clock that was running
    fast or was set back.

    These are the entries that were written while the clock was ahead, and the entries that were due by :until, the time
    before the clock was set back. The delay of a retry, a snooze or a release starts over. Returns the replaced
    entries. Each task keeps its position among the tasks with its key. Entries written since the clock was set back are
    not changed.
    """
    entry = task_outbox.c

    def behind(_: Relations) -> Statement:
        was_due = sa.and_(
            entry.available_at > g.now,
            entry.available_at <= _until,
            sa.or_(entry.created_at > g.now, entry.created_at < g.later(g.now, _lately)),
        )
        return (
            sa.select(entry.id)
            .where(entry.id > _after, sa.or_(was_due, _written_ahead(g)))
            .order_by(entry.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

    delay = g.between(entry.created_at, entry.available_at) / sa.literal_column("1000000.0", sa.Double)
    due = sa.case((sa.and_(entry.available_at > _until, delay > 0), g.later(g.now, delay)), else_=g.now)
    return task_rows.rescheduled(g, behind, due=due, reason="the clock was set back")


def _written_ahead(g: Grammar) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether an entry was written while the clock was running fast, and whether its due
    time follows from that clock.

    The due time follows from the clock if the entry was due immediately, or if an attempt wrote the entry. The due time
    of a task that was enqueued for later may have been chosen by a user, so it is kept.
    """
    entry, execution = task_outbox.c, task_executions.c
    has_begun = sa.select(execution.id).where(
        execution.id == entry.task_execution_id, execution.first_started_at.is_not(None)
    )
    return sa.and_(
        entry.created_at > g.later(g.now, number(1.0)),
        entry.available_at > g.now,
        sa.or_(entry.available_at <= entry.created_at, has_begun.correlate(task_outbox).exists()),
    )


def _recovery(g: Grammar, expired: Step, *, given: Columns | None = None) -> Transition:
    """Recover the tasks of the leases that `expired` selects and locks.

    The task returns to the outbox or ends: Cancelled if that was requested, or Failed (abandoned) after :max_recoveries
    recoveries. A claim whose handler had not begun does not count. Otherwise, a suspect task that is waiting its turn
    could reach the limit because of another task's failures. If a lease's task is not Running under that lease, the
    lease was left behind by mistake. The lease is then deleted, and the task is not changed. A locked task keeps its
    lease for the next recovery, so that one stuck transaction does not delay other tasks.
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
            "letter": lambda r: task_rows.dead_letter(g, r["recovered"].c, r["recovered"], exception=sa.null()),
            "key_held": lambda r: task_rows.key_held(g, r["recovered"].c),
            "key_freed": lambda r: task_rows.key_freed(g, r["recovered"].c),
        },
        returns="recovered",
    )


def _expired(g: Grammar) -> sa.Select[Any]:
    return sa.select(task_leases.c.task_execution_id.label("id")).where(task_leases.c.lease_expires_at < g.now)


def _seen(g: Grammar, r: Relations) -> sa.Select[Any]:
    """Select the leases that have not been extended, ended or claimed again since they were read, in id order."""
    lease, given = task_leases.c, r["given"].c
    unchanged = (lease[name] == given[name] for name in ("lease_token", "worker_id", "lease_expires_at"))
    return lock_in_order(given_leases(g, r, given.id, *unchanged))


def _freed(g: Grammar, r: Relations) -> Statement:
    lease, execution = task_leases.c, task_executions.alias("execution")
    task = sa.select(execution.c.id).where(execution.c.id == lease.task_execution_id).correlate(task_leases)
    return (
        sa.delete(task_leases)
        .where(
            g.among(lease.task_execution_id, r["expired"].c.id),
            sa.or_(g.among(lease.task_execution_id, r["unlocked"].c.id), ~task.exists()),
        )
        .returning(*READ_LEASE, task_leases.c.begun)
    )


def _recovered(g: Grammar, r: Relations) -> Statement:
    execution, freed = task_executions.c, r["freed"].c
    cancelled = execution.cancel_requested_at.is_not(None)
    counts = freed.begun.is_not(sa.false())
    abandoned = sa.and_(counts, execution.recovery_attempts >= _max_recoveries)
    ends = sa.or_(cancelled, abandoned)
    return (
        sa.update(task_executions)
        .where(fence(g, freed.id, freed, freed.worker_id))
        .values(
            status=sa.case((cancelled, SqlStatus.CANCELLED), (abandoned, SqlStatus.FAILED), else_=SqlStatus.READY),
            recovery_attempts=execution.recovery_attempts + sa.case((sa.and_(counts, ~ends), 1), else_=0),
            worker_id=sa.null(),
            started_at=sa.case((ends, execution.started_at), else_=sa.null()),
            completed_at=sa.case((ends, g.now), else_=sa.null()),
            updated_at=g.now,
            last_error=sa.case(
                (cancelled, execution.last_error), (abandoned, _abandonment), else_=execution.last_error
            ),
        )
        .returning(*task_rows.CARRIED, execution.attempt, execution.recovery_attempts, execution.last_error)
    )


def _entry(g: Grammar, r: Relations) -> Statement:
    """Return the task to the outbox. If an entry was left behind by mistake, it is kept, because an error about a
    second entry would stop the recovery of other tasks.
    """
    new: Any = task_rows.entry(g, r["recovered"].c, r["recovered"], due=g.now)
    return new.on_conflict_do_nothing()  # type: ignore[no-any-return]


def _event(g: Grammar, r: Relations) -> Statement:
    recovered, freed = r["recovered"].c, r["freed"].c
    ready, failed = recovered.status == SqlStatus.READY, recovered.status == SqlStatus.FAILED
    return task_rows.event(
        g,
        recovered,
        joined(r["recovered"], r["freed"]),
        event_type=sa.case(
            (ready, sql_literal(EventType.RESET)),
            (failed, sql_literal(EventType.ABANDONED)),
            else_=sql_literal(EventType.CANCELLED),
        ),
        data=g.json(
            recovery_attempts=recovered.recovery_attempts,
            # The time is never later than now: after the clock was set back, an expired lease can seem to expire in the
            # future.
            lease_expires_at=sa.case((freed.lease_expires_at < g.now, freed.lease_expires_at), else_=g.now),
            available_at=sa.case((ready, g.now)),
            error=sa.case((failed, recovered.last_error)),
            reason=_reason,
        ),
        worker_id=freed.worker_id,
        lease_token=freed.lease_token,
    )
