"""The counts of workers: written every ten seconds, summed up to longer spans as they grow old, deleted after 90 days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.statements import metrics as statements
from ..database.target import Target
from ..model import EARLIEST
from ..model.periods import BOUNDS
from ..model.uuid7 import family
from .arguments import identifier, storable
from .maintenance_jobs import MaintenanceJobs, locked
from .series import steps_of
from .tasks import tasks
from .tasks.tasks import now
from .transactions import Transactions

SUM_UP = "sum up metrics"
"""The job of summing up."""
LEVELS = (
    (timedelta(minutes=2), timedelta(minutes=1)),
    (timedelta(hours=2), timedelta(minutes=5)),
    (timedelta(hours=6), timedelta(minutes=15)),
    (timedelta(hours=48), timedelta(hours=1)),
)
"""The age from which on shorter spans are summed up, and the length of the sums.

The chart of a day has steps of 15 minutes, that of six hours steps of 5. Of 20 tasks it reads 4 800 rows; with minutes alone it read
28 800, and took six times as long: `python -m benchmarks.dashboard`.

With ten minutes instead of two, `stats()` read twice as many rows of an hour: `python -m benchmarks.status`.
"""
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
    """The part of `timed_out` that no other attempt followed."""
    wait_seconds: float = 0.0
    run_seconds: float = 0.0
    wait: Sequence[int]
    """For each bucket of `model.periods`, the attempts by their seconds from due to start."""
    run: Sequence[int]
    """For each bucket, the attempts by the seconds of their handlers."""

    def row(self) -> tuple[object, ...]:
        """Return the values in the order of `statements.METRIC`."""
        named = ("id", "queue", "task_name", *statements.COUNTS, *statements.SECONDS)
        return (*(getattr(self, name) for name in named), *self.wait, *self.run)


@dataclass(frozen=True, kw_only=True, slots=True)
class Percentiles:
    """Durations by nearest rank: 50, 95 and 99 of 100 took no longer."""

    p50: timedelta
    p95: timedelta
    p99: timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricPoint:
    """The attempts that workers saw end in one step of time."""

    at: datetime
    """The begin of the step."""
    step: timedelta
    completed: int = 0
    failed: int = 0
    """Number of ends as Failed."""
    retried: int = 0
    """Number of attempts that failed and were followed by another."""
    cancelled: int = 0
    wait: Percentiles | None = None
    """Time from due to start; None: no attempt began."""
    run: Percentiles | None = None
    """Time from the start of the handler to its end; None: none ended."""


class Metrics:
    """The counts of all workers."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

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

    def series(
        self,
        *,
        since: datetime,
        until: datetime | None = None,
        step: timedelta | float,
        queue: str | None = None,
        task: str | None = None,
        using: object = None,
    ) -> list[MetricPoint]:
        """Return a point for each step from `since` to `until` (None: to now), of one queue or task or of all, oldest first.

        What a worker has counted in ten seconds is in the step in which these began. Old counts are kept in longer
        spans (`LEVELS`): with a shorter step, those of a span are all in the first of its steps. Raises InvalidArgument for more than 2 000 steps.
        """
        wanted = {"queue": storable(queue, "queue"), "task_name": storable(task, "task")}

        def work(target: Target) -> list[MetricPoint]:
            end = until or target.run(tasks.select_now, self._store.values(target))[0]["now"]
            steps = steps_of(since, end, step)
            values = {**wanted, "since": since, "until": end, "step": steps.step // timedelta(microseconds=1)}
            found = {row["step"]: row for row in target.run(statements.series, values)}
            return [point_of(at, steps.step, found.get(place)) for place, at in enumerate(steps.begins())]

        return self._store.run(work, using=using, begin=Begin.READ)

    def sum_up(self, *, spans: int = 100) -> int:
        """Sum up old metrics, up to so many spans of each length, and delete very old ones. Returns the number of spans.

        Each span is a transaction of its own, and is summed up once, however many workers do it. Once the store's owner has gone,
        the rest is left to others.
        """
        present, done = now(self._store), 0
        MaintenanceJobs(self._store).make(SUM_UP)
        for age, length in LEVELS:
            before = _begin(present - age, length)
            values = {"before": before, "seconds": int(length.total_seconds())}
            for _ in range(spans):
                if self._store.gone.is_set():
                    return done
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


def happened(
    target: Target, since: datetime, *, by_task: bool
) -> tuple[dict[tuple[str, str | None], Row], datetime] | None:
    """Add up what workers have counted since a moment, by queue or task, with the begin of the first span that is kept.

    None: no worker has written anything in this time. Then the events are counted. A worker writes a span of ten seconds when it is
    over. So the window ends, as it begins, up to ten seconds earlier.
    """
    span = timedelta(seconds=statements.SPAN)
    rows = target.run(statements.SINCE["by_task" if by_task else "by_queue"], {"since": since - span})
    if not rows:
        return None
    first: datetime = target.run(statements.first)[0]["at"]
    return {(row["queue"], row.get("task_name")): _numbers(row) for row in rows}, first


def percentile(histogram: Sequence[int], percent: int) -> timedelta | None:
    """Return the duration that so many of 100 did not exceed, by nearest rank, interpolated within its bucket.

    The buckets' bounds double, so it is off by less than a factor of two. None for an empty histogram. What took longer than an
    hour counts as an hour.
    """
    total = sum(histogram)
    rank, before = (total * percent + 99) // 100, 0
    for bucket, number in enumerate(histogram):
        if number and before + number >= rank:
            low, high = (BOUNDS[bucket - 1] if bucket else 0.0), BOUNDS[min(bucket, len(BOUNDS) - 1)]
            return timedelta(seconds=low + (high - low) * (rank - before) / number)
        before += number
    return None


def percentiles(histogram: Sequence[int] | None) -> Percentiles | None:
    """Return the percentiles of a histogram; None for none, and for an empty one."""
    if histogram is None:
        return None
    found = {f"p{each}": percentile(histogram, each) for each in (50, 95, 99)}
    known = {name: taken for name, taken in found.items() if taken is not None}
    return Percentiles(**known) if known else None


def point_of(at: datetime, step: timedelta, row: Row | None) -> MetricPoint:
    """Return the point of a step with these sums; None: nothing was counted in it."""
    if row is None:
        return MetricPoint(at=at, step=step)
    return MetricPoint(
        at=at,
        step=step,
        completed=row["completed"],
        failed=row["failed"] + row["timed_out_last"],
        retried=row["retried"] + row["timed_out"] - row["timed_out_last"],
        cancelled=row["cancelled"],
        wait=percentiles([row[name] for name in statements.WAIT]),
        run=percentiles([row[name] for name in statements.RUN]),
    )


def _numbers(row: Row) -> Row:
    """Return what `stats` shows of a row of sums."""
    last = row["timed_out_last"]
    return {
        "completed": row["completed"],
        "failures": row["failed"] + last,
        "retries": row["retried"] + row["timed_out"] - last,
        **{name: row[name] for name in ("cancelled", "timed_out", "snoozed", "released", "lost")},
        "wait": [row[name] for name in statements.WAIT],
        "run": [row[name] for name in statements.RUN],
    }


def _begin(moment: datetime, length: timedelta) -> datetime:
    """Return the begin of the span of this length in which a moment lies."""
    return EARLIEST + (moment.astimezone(UTC) - EARLIEST) // length * length
