"""Taking back the leases of workers that are gone, and mending what a clock that was set back leaves behind."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from ..database import table_locks
from ..database.dialects import Begin, Row
from ..database.statements import recovery
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import EARLIEST, MAX_RECOVERIES, TaskStatus
from .arguments import positive
from .ends import A_MOMENT
from .sleeping_workers import SleepingWorkers
from .tasks import tasks
from .transactions import Transactions

_DUE_AT_ONCE = 500
_Given: TypeAlias = tuple[object, ...]
"""The columns of a `Lease`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """One task taken back from a dead worker: Ready again, or ended."""

    id: UUID
    pipeline_execution_id: UUID
    task_name: str
    queue: str
    status: TaskStatus
    attempt: int
    recovery_attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """A lease as it was seen; two looks that find it equal prove that it was not extended in between."""

    id: UUID
    """The task execution's."""
    lease_token: int
    worker_id: UUID
    lease_expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseLook:
    """Leases, and the database's clock when they were read."""

    now: datetime
    leases: Sequence[Lease]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutlastingLook:
    """Leases that a clock that was ahead has written, and the database's clock when they were read."""

    now: datetime
    leases: Mapping[Lease, timedelta]
    """The time for which each lease lasts from its newest heartbeat on."""


def expired_leases(store: Transactions, limit: int = 10_000, *, using: object = None) -> LeaseLook:
    """Return up to `limit` leases that ran out, oldest first; locks nothing."""
    positive(limit)

    def work(target: Target) -> LeaseLook:
        values = store.values(target, limit=limit)
        now = target.run(tasks.select_now, values)[0]["now"]
        return LeaseLook(now=now, leases=[Lease(**row) for row in target.run(recovery.expired, values)])

    return store.run(work, using=using, begin=Begin.READ)


def outlasting_leases(store: Transactions, *, using: object = None) -> OutlastingLook:
    """Return the leases that end later than any heartbeat can make them now: the database's clock was set back."""

    def work(target: Target) -> OutlastingLook:
        values = store.values(target)
        now = target.run(tasks.select_now, values)[0]["now"]
        rows = [(timedelta(seconds=row.pop("seconds")), row) for row in target.run(recovery.outlasting, values)]
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
    """Take back up to `limit` expired leases: `task_reset`, or `task_abandoned` after `max_recoveries` of a task in a row.

    Every worker calls it. Rows that another session has locked are passed over, and so are tasks that would end while the row of
    their batch is locked. It looks at the lease only, never at the registry of workers. `leases`: take back just these, if they
    are still as they were seen. `patience`: take back nothing if the transaction could not begin within this time, since others
    waited as well then, and their heartbeats come first.
    """
    positive(limit)
    if max_recoveries < 0:
        raise InvalidArgument("max_recoveries must be at least 0")
    abandonment = f"ABANDONED: the lease expired again after {max_recoveries} recoveries"
    given = None if leases is None else [astuple(lease) for lease in leases[:limit]]
    options = {"limit": limit, "max_recoveries": max_recoveries, "abandonment": abandonment}
    began = time.monotonic()

    def work(target: Target) -> list[Recovered]:
        if patience is not None and time.monotonic() - began > patience.total_seconds():
            return []
        return _take_back(store, target, options, given)

    if given == []:
        return []
    if given is None and using is None and store.dialect.reads_before_writing:
        expired = store.run(lambda target: target.run(recovery.any_expired, store.values(target)), begin=Begin.READ)
        if not expired:
            return []
    try:
        recovered = store.run(work, using=using, gives_up=store.is_locked_out)
    except Exception as error:
        if using is not None or not store.is_locked_out(error):
            raise
        given = given or [astuple(lease) for lease in expired_leases(store, limit).leases]
        recovered = _take_back_by_halves(store, options, given)
    if recovered and using is None:
        SleepingWorkers(store).forget_ended()  # who died at work seldom died alone
    return recovered


def _take_back_by_halves(store: Transactions, options: dict[str, Any], given: Sequence[_Given]) -> list[Recovered]:
    """Take back those of these leases whose tasks no locked row keeps from ending."""

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
    """Take back these leases if they are unchanged; None: the oldest that have expired."""
    values = store.values(target, **options)
    with target.atomic():
        rows = target.run(recovery.recover if given is None else recovery.recover_seen, values, given)
    # A key or a place became free there; what is in the outbox again tells by itself.
    freed = [row for row in rows if row["partition_key"] is not None or row["status"] != TaskStatus.READY]
    store.wake(target, {row["queue"] for row in freed})
    return [
        Recovered(
            id=row["id"],
            pipeline_execution_id=row["pipeline_execution_id"],
            task_name=row["task_name"],
            queue=row["queue"],
            status=TaskStatus(row["status"]),
            attempt=row["attempt"],
            recovery_attempts=row["recovery_attempts"],
        )
        for row in rows
    ]


def due_again(store: Transactions, until: datetime | None = None) -> int:
    """Make due what waits for a clock that was ahead; returns the number of entries that it changed.

    That is what such a clock has written, and what was due by `until`, the time before the database's clock was set back. Each batch
    of 500 is a transaction of its own.
    """
    if until is None and not store.run(
        lambda target: target.run(recovery.any_written_ahead, store.values(target)), begin=Begin.READ
    ):
        return 0
    total = after = 0

    def work(target: Target) -> list[Row]:
        moment = EARLIEST if until is None else until
        values = store.values(target, until=moment, limit=_DUE_AT_ONCE, after=after)
        with target.atomic():
            return target.run(recovery.due_again, values)

    while True:
        found = store.run(work)
        total += len(found)
        if len(found) < _DUE_AT_ONCE:
            return total
        after = max(row["entry_id"] for row in found)
