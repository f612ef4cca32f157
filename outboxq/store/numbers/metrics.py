"""Store the counts that workers report. The counts are written every ten seconds, rolled up into longer spans as they
age, and deleted after 90 days.

A row of `task_metrics` covers a queue, a task and a time span. A roll-up deletes the rows of a span and inserts their
sums in one `Transition`, so each row is rolled up only once, even if two workers attempt it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from ...database.column_types import Instant
from ...database.dialects import Begin, Row
from ...database.grammar import Builder, Columns, Grammar, Relations, Statement, Transition, insert_values, worker_id
from ...database.tables import task_metrics
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import EARLIEST, LONGEST, duration
from ...model.histograms import BOUNDS, BUCKETS, COUNTS, SECONDS, AttemptCounts
from ...model.uuid7 import family
from ..arguments import AnyId, identifier, parameters, storable
from ..tasks.tasks import now
from ..transactions import Transactions
from .live import Found
from .maintenance_jobs import MaintenanceJobs, locked
from .series import Steps, read_steps

SUM_UP = "sum up metrics"
"""Name of the roll-up job."""
LEVELS = (
    (timedelta(minutes=2), timedelta(minutes=1)),
    (timedelta(hours=2), timedelta(minutes=5)),
    (timedelta(hours=6), timedelta(minutes=15)),
    (timedelta(hours=48), timedelta(hours=1)),
)
"""Ages at which shorter spans are rolled up, with the lengths of the resulting spans.

A one-day chart has 15-minute steps, and a six-hour chart has 5-minute steps. For 20 tasks, the one-day chart reads
4,800 rows. With one-minute spans only, it would read 28,800 rows and take six times as long (`python -m
benchmarks.dashboard`).

If the first roll-up came after ten minutes instead of two, `stats()` would read twice as many rows for a window of an
hour (`python -m benchmarks.status`).
"""
KEPT = timedelta(days=90)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskMetric:
    """The attempts at one task in one queue that ended on one worker within a ten-second span."""

    id: UUID
    """The id of the row. The id ensures that a row that is sent twice is written only once."""
    queue: str
    task_name: str
    counts: AttemptCounts

    def row(self) -> tuple[object, ...]:
        """Return the values in the order of `METRIC`."""
        counts = self.counts
        numbers = (getattr(counts, name) for name in (*COUNTS, *SECONDS))
        return (self.id, self.queue, self.task_name, *numbers, *counts.wait, *counts.run)


@dataclass(frozen=True, kw_only=True, slots=True)
class Percentiles:
    """Percentiles of durations, by nearest rank: 50, 95 and 99 percent of the durations are no longer than these
    values.
    """

    p50: timedelta
    p95: timedelta
    p99: timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricPoint:
    """The attempts that ended within one time step."""

    at: datetime
    """Start of the step."""
    step: timedelta
    completed: int = 0
    failed: int = 0
    """Number of tasks that ended as Failed."""
    retried: int = 0
    """Number of attempts that failed and were followed by another attempt."""
    cancelled: int = 0
    wait: Percentiles | None = None
    """Time from a task's due time to its start; None if no attempt began."""
    run: Percentiles | None = None
    """Time for which handlers ran; None if no handler finished."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCounts:
    """The attempts that ended within a window that ends now, for one task name in one queue."""

    queue: str
    task_name: str
    window: timedelta
    completed: int = 0
    failures: int = 0
    """Number of times that a task ended as Failed."""
    retries: int = 0
    """Number of attempts that failed and were followed by another attempt."""
    throughput: float = 0.0
    """Number of completed and failed tasks per second of the window, or of the time since the workers' counts began, if
    that is shorter.
    """
    wait: Percentiles | None = None
    """Time from a task's due time to its start; None if no attempt began."""
    run: Percentiles | None = None
    """Time for which handlers ran; None if no handler finished."""


BY_WORKER: Final = LEVELS[0][0]
"""Time for which counts are kept for each worker. The roll-up adds up older counts over all workers."""


class Metrics:
    """The counts that all workers have reported."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def record(self, metrics: Sequence[TaskMetric], *, worker_id: UUID, using: object = None) -> None:
        """Write a worker's counts for the last ten seconds. A metric that has already been written is skipped."""
        if not metrics:
            return
        rows = [one.row() for one in metrics]
        worker = identifier(worker_id)

        def work(target: Target) -> None:
            with target.atomic():
                target.run(record, self._store.values(target, worker_id=worker), rows)

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
        """Return a point for each step from `since` to `until` (None means now), oldest first. `queue` and `task`
        restrict the counts to one queue, one task, or one task in one queue.

        A ten-second span belongs to the step in which it begins. Old counts are kept in longer spans (`LEVELS`). A span
        that is longer than a step belongs to the first of the steps that it covers. Raises InvalidArgument for more
        than 2,000 steps.
        """
        read = partial(metric_points, queue=storable(queue, "queue"), task=storable(task, "task"))
        return read_steps(self._store, read, since=since, until=until, step=step, using=using)

    def by_task(
        self,
        queue: str,
        *,
        window: timedelta | float = timedelta(hours=1),
        at: datetime | None = None,
        using: object = None,
    ) -> list[TaskCounts]:
        """Return the counts for each task in a queue over the window that ends now, sorted by number of attempts,
        highest first. `at` is the database's current time if it is already known.

        The call finds the counts for the window through an index. Raises InvalidArgument.
        """
        return self._counts(window_of(window), using, at, queue=storable(queue, "queue"), worker_id=None)

    def of_worker(self, worker_id: AnyId, *, at: datetime | None = None, using: object = None) -> list[TaskCounts]:
        """Return the counts for each task that one worker has run in the last two minutes (`BY_WORKER`), sorted as in
        `by_task`. Older counts are stored for all workers together.
        """
        return self._counts(BY_WORKER, using, at, queue=None, worker_id=identifier(worker_id))

    def _counts(self, window: timedelta, using: object, at: datetime | None, **wanted: object) -> list[TaskCounts]:
        def work(target: Target) -> list[TaskCounts]:
            until = at or self._store.now_in(target)
            rows = target.run(of_tasks, {**wanted, **_border(until, window)})
            return [_task_counts(row, window, counted_time(row["first_at"], until, window)) for row in rows]

        found = self._store.run(work, using=using, begin=Begin.READ)
        return sorted(found, key=lambda one: (-one.completed - one.failures - one.retries, one.task_name, one.queue))

    def sum_up(self, *, spans: int = 100) -> int:
        """Roll up old metrics, at most `spans` spans of each length, and delete very old metrics. Returns the number of
        spans.

        Each span is a separate transaction, and is rolled up only once, however many workers attempt it. The call
        returns early if the store's owner has no time left.
        """
        present, done = now(self._store), 0
        MaintenanceJobs(self._store).make(SUM_UP)
        for age, length in LEVELS:
            before = _begin_of(present - age, length)
            values: dict[str, Any] = {"before": before, "seconds": int(length.total_seconds())}
            for _ in range(spans):
                if self._store.gone.is_set():
                    return done
                found = self._store.run_one(newest_to_sum_up, **values)
                if not found or not self._sum_up_one(_begin_of(found[0]["at"], length), length):
                    break
                done += 1
        self._store.run_one(forget, begin=Begin.ASYNCHRONOUS, before=present - KEPT)
        return done

    def _sum_up_one(self, begin: datetime, length: timedelta, *, using: object = None) -> bool:
        """Roll up one span. Returns False if another session is rolling up metrics."""
        span = {"begin": begin, "end": begin + length, "seconds": int(length.total_seconds()), "family": family()}

        def work(target: Target) -> bool:
            if not locked(self._store, target, SUM_UP):
                return False
            with target.atomic():
                target.run(sum_up, self._store.values(target, **span))
            return True

        return self._store.run(work, using=using, begin=Begin.ASYNCHRONOUS)


def happened(target: Target, now: datetime, window: timedelta, *, by_task: bool) -> Found:
    """Add up workers' counts for the window that ends now, by queue or task, under the names used in `Statistics`.

    The result is empty if no worker has written counts in the window. A worker writes a ten-second span when the span
    ends, so the counted period begins and ends up to ten seconds earlier than the window. It may also begin up to half
    a rolled-up span earlier or later.
    """
    rows = target.run(SINCE["by_task" if by_task else "by_queue"], _border(now, window))
    return {(row["queue"], row.get("task_name")): _numbers(row) for row in rows}


def _border(now: datetime, window: timedelta) -> dict[str, Any]:
    """Return the parameters of `_since_then` for a window that ends now.

    A span that was rolled up counts if most of it lies in the window, so on average, the counted period is as long as
    the window.
    """
    span, begin = timedelta(seconds=SPAN), now - window
    length = next((length for age, length in reversed(LEVELS) if window + length >= age), LEVELS[0][1])
    earlier = begin - (length + span) / 2
    return {"since": begin - span, "earlier": earlier, "seconds": int(length.total_seconds()), "until": now}


def first_counted(target: Target) -> datetime | None:
    """Return the start of the first stored span; None if no span is stored."""
    return target.run(first)[0]["at"]  # type: ignore[no-any-return]


def window_of(window: timedelta | float) -> timedelta:
    """Return the window as a timedelta. Raises InvalidArgument unless the window is positive and not too long."""
    found = duration(window, "window")
    if not timedelta(0) < found <= LONGEST:
        raise InvalidArgument(f"window must be positive and at most {LONGEST.days} days, not {window}")
    return found


def counted_time(first: datetime | None, now: datetime, window: timedelta) -> timedelta:
    """Return how much of the window that ends now is covered by workers' counts, if the first stored span begins at
    `first`.
    """
    return window if first is None or first <= now - window else max(now - first, timedelta(seconds=SPAN))


def percentile(histogram: Sequence[int], percent: int, seconds: float) -> timedelta | None:
    """Return the duration that `percent` of the values do not exceed, by nearest rank. `seconds` is the sum of the
    values. Returns None for an empty histogram.

    The values of each bucket are assumed to be spread evenly, around a mean that agrees with the sum. So the result is
    exact if all values are equal. Otherwise, it is off by less than the ratio of its bucket's bounds: a factor of two
    from 1 ms to 17 minutes, and of 3.5 from there to an hour. A duration above one hour counts as one hour.
    """
    upto = [*accumulate(histogram)]
    if not upto or not upto[-1]:
        return None
    rank = (upto[-1] * percent + 99) // 100
    bucket = bisect_left(upto, rank)
    number, before = histogram[bucket], upto[bucket] - histogram[bucket]
    mean = _mean_place(histogram, seconds)
    place = mean + 2 * min(mean, 1 - mean) * ((rank - before - 0.5) / number - 0.5)
    return timedelta(seconds=_LOWEST[bucket] + _WIDTHS[bucket] * place)


def percentiles(histogram: Sequence[int], seconds: float) -> Percentiles | None:
    """Return the percentiles of a histogram whose values add up to `seconds`; None if the histogram is empty."""
    p50, p95, p99 = (percentile(histogram, each, seconds) for each in (50, 95, 99))
    return None if p50 is None or p95 is None or p99 is None else Percentiles(p50=p50, p95=p95, p99=p99)


def _mean_place(histogram: Sequence[int], seconds: float) -> float:
    """Return the mean place of the values within their buckets, from 0 for the lower bound to 1 for the upper one."""
    lowest, width = (
        sum(number * one for number, one in zip(histogram, each, strict=True)) for each in (_LOWEST, _WIDTHS)
    )
    if not width or histogram[-1]:  # the durations above one hour are part of the sum, but have no upper bound
        return 0.5
    return max(0.0, min(1.0, (seconds - lowest) / width))


_LOWEST = (0.0, *BOUNDS)
_WIDTHS = (*(high - low for low, high in pairwise(_LOWEST)), 0.0)


def metric_points(target: Target, steps: Steps, *, queue: str | None, task: str | None = None) -> list[MetricPoint]:
    """Return a point for each step, read in this transaction."""
    span = {"since": steps.since, "until": steps.until, "step": steps.step // timedelta(microseconds=1)}
    rows = {row["step"]: row for row in target.run(series, {"queue": queue, "task_name": task, **span})}
    return [_point(at, steps.step, rows.get(place)) for place, at in enumerate(steps.begins())]


def _point(at: datetime, step: timedelta, row: Row | None) -> MetricPoint:
    if row is None:
        return MetricPoint(at=at, step=step)
    same = {name: row[name] for name in ("completed", "cancelled")}
    return MetricPoint(at=at, step=step, **same, failed=_failed(row), retried=_retried(row), **_durations(row))


def _task_counts(row: Row, window: timedelta, counted: timedelta) -> TaskCounts:
    numbers = _numbers(row)
    throughput = (numbers["completed"] + numbers["failures"]) / counted.total_seconds()
    of_task = {name: numbers[name] for name in ("completed", "failures", "retries", "wait", "run")}
    key = {name: row[name] for name in _KEY}
    return TaskCounts(**key, window=window, throughput=throughput, **of_task)


def _numbers(row: Row) -> Row:
    """Return the values of `Statistics` for a row of sums."""
    same = {name: row[name] for name in ("completed", "cancelled", "timed_out", "snoozed", "released", "lost")}
    return {**same, "failures": _failed(row), "retries": _retried(row), **_durations(row)}


def _failed(row: Row) -> int:
    return row["failed"] + row["timed_out_last"]  # type: ignore[no-any-return]


def _retried(row: Row) -> int:
    return row["retried"] + row["timed_out"] - row["timed_out_last"]  # type: ignore[no-any-return]


def _durations(row: Row) -> dict[str, Any]:
    return {
        "wait": percentiles([row[name] for name in WAIT], row["wait_seconds"]),
        "run": percentiles([row[name] for name in RUN], row["run_seconds"]),
    }


def _begin_of(moment: datetime, length: timedelta) -> datetime:
    """Return the start of the span of this length that contains the time."""
    return EARLIEST + (moment.astimezone(UTC) - EARLIEST) // length * length


SPAN = 10
"""Length, in seconds, of the span that a worker's row covers."""
WAIT = tuple(f"wait_{bucket}" for bucket in range(BUCKETS))
RUN = tuple(f"run_{bucket}" for bucket in range(BUCKETS))
SUMMED: Columns = {
    **{name: sa.Integer() for name in COUNTS},
    **{name: sa.Double() for name in SECONDS},
    **{name: sa.Integer() for name in (*WAIT, *RUN)},
}
"""Columns that are summed."""
SERIES = ("completed", "retried", "failed", "cancelled", "timed_out", "timed_out_last", *SECONDS, *WAIT, *RUN)
"""Columns whose sums are in a series."""
METRIC: Columns = {"id": sa.Uuid(), "queue": sa.Text(), "task_name": sa.Text(), **SUMMED}

_metric = task_metrics.c
_begin, _end, _before, _earlier, _since, _until = parameters(
    Instant, "begin", "end", "before", "earlier", "since", "until"
)
_a_span_ago = sa.bindparam("a_span_ago", -float(SPAN), type_=sa.Double)
_seconds = sa.bindparam("seconds", type_=sa.Integer, required=True)
_family = sa.bindparam("family", type_=sa.Uuid, required=True)


def record(g: Grammar) -> Transition:
    """Write a worker's rows for the last ten seconds. A row whose id already exists is skipped."""

    def rows(r: Relations) -> Statement:
        given = r["given"].c
        values = {
            "id": given.id,
            "at": g.later(g.now, _a_span_ago),
            "seconds": sa.literal_column(str(SPAN), sa.Integer),
            "worker_id": worker_id,
            **{name: given[name] for name in METRIC if name != "id"},
        }
        # After a query without WHERE, SQLite reads ON CONFLICT as the ON of a join.
        new = insert_values(g.insert(task_metrics), values, r["given"], given.id.is_not(None))
        return new.on_conflict_do_nothing()  # type: ignore[no-any-return]

    return Transition(given=METRIC, steps={"rows": rows})


def newest_to_sum_up(_: Grammar) -> sa.Select[Any]:
    """Select the start of the newest span before :before that is shorter than :seconds."""
    found = (_metric.at < _before, _metric.seconds < _seconds)
    return sa.select(_metric.at).where(*found).order_by(_metric.at.desc()).limit(1)


def sum_up(g: Grammar) -> Transition:
    """Replace the rows that begin at or after :begin and before :end, and are shorter than :seconds, with their sums.

    Returns the rows that were replaced.
    """

    def gone(_: Relations) -> Statement:
        span = (_metric.at >= _begin, _metric.at < _end, _metric.seconds < _seconds)
        return (
            sa.delete(task_metrics)
            .where(*span)
            .returning(_metric.id, *(_metric[name] for name in _KEY + tuple(SUMMED)))
        )

    def sums(r: Relations) -> Statement:
        row = r["gone"].c
        key = [row[name] for name in _KEY]
        values = {
            "id": g.numbered(_family, sa.func.row_number().over(order_by=key)),
            "at": sa.cast(_begin, task_metrics.c.at.type),
            "seconds": sa.cast(_seconds, sa.Integer),
            "worker_id": sa.cast(sa.null(), sa.Uuid),
            **{name: row[name] for name in _KEY},
            **{name: sa.func.sum(row[name]) for name in SUMMED},
        }
        new = sa.insert(task_metrics)
        return new.from_select(list(values), sa.select(*values.values()).group_by(*key))

    return Transition(steps={"gone": gone, "sums": sums}, returns="gone", returning=("id",))


def forget(_: Grammar) -> sa.Delete:
    """Delete the rows of spans that begin before :before."""
    return sa.delete(task_metrics).where(_metric.at < _before)


def first(_: Grammar) -> sa.Select[Any]:
    """Select the start of the first stored span; NULL if there is none."""
    return sa.select(sa.func.min(_metric.at).label("at"))


def _since_then(_: Grammar, *, by_task: bool) -> sa.Select[Any]:
    """Select the sums over all spans that begin at :since or later, or that begin at :earlier or later and are at least
    :seconds long. Spans after :until are ignored, because they were written before the clock was set back.
    """
    names = _KEY if by_task else _KEY[:1]
    sums = (_sum(_metric[name], name) for name in SUMMED)
    return (
        sa.select(*(_metric[name] for name in names), *sums)
        .where(
            _metric.at >= _earlier,
            _metric.at < _until,
            sa.or_(_metric.at >= _since, _metric.seconds >= _seconds),
        )
        .group_by(*(_metric[n] for n in names))
    )


def of_tasks(g: Grammar) -> sa.Select[Any]:
    """Select the sums of `_since_then` by task for one :queue or :worker_id, or for all, and the start of the first
    stored span.
    """
    wanted = {"queue": _WANTED["queue"], "worker_id": sa.bindparam("worker_id", type_=sa.Uuid, required=True)}
    same = (sa.or_(value.is_(None), _metric[name] == value) for name, value in wanted.items())
    return _since_then(g, by_task=True).where(*same).add_columns(first(g).scalar_subquery().label("first_at"))


def series(g: Grammar) -> sa.Select[Any]:
    """Select the sums for each step of :step microseconds, from :since up to but excluding :until. :queue and
    :task_name restrict the sums.
    """
    micros = sa.bindparam("step", type_=sa.BigInteger, required=True)
    same = [sa.or_(wanted.is_(None), _metric[name] == wanted) for name, wanted in _WANTED.items()]
    spans = (
        sa.select(g.steps(_since, _metric.at, micros).label("step"), *(_metric[name] for name in SERIES))
        .where(_metric.at >= _since, _metric.at < _until, *same)
        .subquery("spans")
    )
    return sa.select(spans.c.step, *(_sum(spans.c[name], name) for name in SERIES)).group_by(spans.c.step)


def _sum(column: sa.ColumnElement[Any], name: str) -> sa.Label[Any]:
    return sa.cast(sa.func.sum(column), sa.Double if name in SECONDS else sa.BigInteger).label(name)


_KEY = ("queue", "task_name")
_WANTED = {name: sa.bindparam(name, type_=sa.Text, required=True) for name in _KEY}
"""Filters. NULL matches any value."""
SINCE: Mapping[str, Builder] = {
    "by_queue": partial(_since_then, by_task=False),
    "by_task": partial(_since_then, by_task=True),
}
"""The statements that sum the counts for each queue, or for each task name in each queue."""
