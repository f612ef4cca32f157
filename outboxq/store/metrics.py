"""What workers have counted: written every ten seconds, summed up to minutes and hours, deleted after 90 days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from uuid import UUID

from ..database.dialects import Begin
from ..database.privileges import Role
from ..database.statements import metrics as statements
from ..database.target import Target
from ..model import EARLIEST
from ..model.uuid7 import family
from .arguments import identifier
from .maintenance_jobs import MaintenanceJobs, locked
from .tasks import now
from .transactions import Transactions

REVISION = "0003"
"""The revision that brought the tables of statistics."""
SUM_UP = "sum up metrics"
"""The job of summing up."""
LEVELS = ((timedelta(minutes=10), timedelta(minutes=1)), (timedelta(hours=48), timedelta(hours=1)))
"""The age from which on shorter spans are summed up, and the length of the sums."""
KEPT = timedelta(days=90)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskMetric:
    """The attempts at one task of one queue that one worker saw end in ten seconds. Each is in one of the first eight numbers."""

    id: UUID
    """An id of its own, by which a row that is sent twice is written once."""
    queue: str
    task_name: str
    completed: int = 0
    retried: int = 0
    failed: int = 0
    cancelled: int = 0
    snoozed: int = 0
    released: int = 0
    lost: int = 0
    timed_out: int = 0
    timed_out_last: int = 0
    """Those of `timed_out` that no other attempt followed."""
    wait_seconds: float = 0.0
    run_seconds: float = 0.0
    wait: Sequence[int]
    """For each bucket of `model.histograms`, the attempts by their seconds from due to start."""
    run: Sequence[int]
    """For each bucket, the attempts by the seconds of their handlers."""

    def row(self) -> tuple[object, ...]:
        """Return the values in the order of `statements.METRIC`."""
        named = ("id", "queue", "task_name", *statements.COUNTS, *statements.SECONDS)
        return (*(getattr(self, name) for name in named), *self.wait, *self.run)


class Metrics:
    """The counts of all workers."""

    def __init__(self, store: Transactions) -> None:
        self._store = store
        self._usable_by: set[Role] = set()

    def unusable(self, role: Role, *, using: object = None) -> str | None:
        """Return a sentence that says why such a role cannot use the tables of statistics, and what to do. None: it can."""
        if role in self._usable_by:
            return None

        def work(target: Target) -> str | None:
            if not target.run(statements.is_there):
                return "the schema is older than the statistics; run: outboxq upgrade"
            lacking = self._store.rights.lacking_for(REVISION, role, target)
            return None if lacking is None else str(lacking)

        why = self._store.run(work, using=using, begin=Begin.READ)
        if why is None:
            self._usable_by.add(role)
        return why

    def look_again(self) -> None:
        """Ask the database again whether the tables can be used: it has refused something."""
        self._usable_by.clear()

    def record(self, metrics: Sequence[TaskMetric], *, worker_id: UUID, using: object = None) -> None:
        """Write what a worker has counted in the last ten seconds. A metric that was written before is not written again."""
        if not metrics:
            return
        rows = [one.row() for one in metrics]
        worker = identifier(worker_id)

        def work(target: Target) -> None:
            with target.atomic():
                target.run(statements.record, self._store.values(target, worker_id=worker), rows)

        self._store.run(work, using=using, begin=Begin.SINGLE_ASYNCHRONOUS)

    def sum_up(self, *, spans: int = 100) -> int:
        """Sum up old metrics, up to so many spans of each length, and delete very old ones. Returns the number of spans.

        Each span is a transaction of its own, and is summed up once, however many workers do it.
        """
        present, done = now(self._store), 0
        MaintenanceJobs(self._store).make(SUM_UP)
        for age, length in LEVELS:
            before = _begin(present - age, length)
            values = {"before": before, "seconds": int(length.total_seconds())}
            for _ in range(spans):
                found = self._store.read(statements.newest_to_sum_up, **values)
                if not found or not self._sum_up_one(_begin(found[0]["at"], length), length):
                    break
                done += 1
        self._store.run(
            lambda target: target.run(statements.forget, {"before": present - KEPT}), begin=Begin.ASYNCHRONOUS
        )
        return done

    def _sum_up_one(self, begin: datetime, length: timedelta, *, using: object = None) -> bool:
        """Sum up one span. Returns False if another session does so."""
        span = {"begin": begin, "end": begin + length, "seconds": int(length.total_seconds()), "family": family()}

        def work(target: Target) -> bool:
            if not locked(self._store, target, SUM_UP):
                return False
            with target.atomic():
                target.run(statements.sum_up, self._store.values(target, **span))
            return True

        return self._store.run(work, using=using, begin=Begin.ASYNCHRONOUS)


class WithMetrics(Transactions):
    """A store's transactions, and what workers have counted."""

    @cached_property
    def metrics(self) -> Metrics:
        return Metrics(self)


def _begin(moment: datetime, length: timedelta) -> datetime:
    """Return the begin of the span of this length in which a moment lies."""
    return EARLIEST + (moment.astimezone(UTC) - EARLIEST) // length * length
