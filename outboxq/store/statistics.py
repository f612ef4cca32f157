"""Statistics of queues or tasks: what waits, runs and has failed now, and what happened lately.

By default they cost the same whatever waits and whatever has happened (`depths.py`, `metrics.py`). With `exact=True` every entry of the outbox
and every event of the window is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Self, get_args

from sqlalchemy import Text

from ..database.dialects import Begin, Row
from ..database.statements import queues, statistics
from ..database.statements.statistics import PERCENTILES
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import LONGEST, duration
from . import depths, metrics
from .arguments import queue_names
from .claims.workers import LiveWorker, live_workers
from .depths import Found
from .metrics import Percentiles
from .queues import QueueSettings, settings_of
from .samples import QueueSample
from .tasks import event_log, tasks
from .transactions import Transactions

By = Literal["queue", "task"]

HOUR = timedelta(hours=1)
_LEEWAY = timedelta(minutes=2)
"""An event is numbered a little after its time is taken, and later numbers may bear earlier times: by less than this."""

_SHORTEST = timedelta(seconds=10)
"""The time that a worker's first counts are about: a clock that was set back makes it no shorter."""

_COUNTS = ("ready", "retrying", "running", "failed", "completed", "failures", "cancelled", "retries")
_MARKS = ("ready_at_least", "delayed_at_least", "retrying_at_least", "failed_at_least")
_ONLY_BY_WORKERS = ("timed_out", "snoozed", "released", "lost")


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownName:
    """The name of a task that live workers met and none of them knows."""

    task_name: str
    met_by: tuple[str, ...]
    """Labels of the workers that met it lately."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """Counts, rates and durations of a queue, or of one task name in it: now, and over a window of time up to now."""

    queue: str
    task_name: str | None = None
    """Name of the task; None: all tasks of the queue."""
    ready: int = 0
    """Number of tasks that are due now."""
    ready_at_least: bool = False
    """True: there are more than `ready`, which was counted up to its bound. `sample` has the last full count."""
    delayed: int = 0
    """Number of tasks that are due later, other than for a retry."""
    delayed_at_least: bool = False
    retrying: int = 0
    """Number of tasks that are due later for a retry."""
    retrying_at_least: bool = False
    """True: only the 1,000 that are due next were looked at; the others are in `delayed`."""
    running: int = 0
    failed: int = 0
    """Number of dead letters, whenever they failed."""
    failed_at_least: bool = False
    sample: QueueSample | None = None
    """The last full count, if one of the numbers before is a lower bound and there is such a count."""
    sample_age: timedelta | None = None
    oldest_ready_at: datetime | None = None
    """Time at which the oldest due task became due."""
    oldest_ready_age: timedelta | None = None
    paused: bool = False
    concurrency: int | None = None
    """Maximum number of the queue's tasks that run at once; None: no limit."""
    rate: tuple[int, timedelta] | None = None
    """Maximum number of the queue's starts in a time span; None: no limit."""
    concurrency_per_key: int | None = None
    """Maximum number of tasks of one concurrency key that run at once; None: 1."""
    rate_per_key: tuple[int, timedelta] | None = None
    """Maximum number of starts of one key in a time span; None: no limit."""
    live_workers: int = 0
    """Number of live workers on the queue; for one task name, of those that also know it."""
    unknown: tuple[UnknownName, ...] = ()
    """Names of waiting tasks that live workers met lately and no live worker of the queue knows."""
    window: timedelta = HOUR
    by_workers: bool = False
    """True: the numbers of the window are what workers have counted. False: they are counted from the events."""
    counted_since: datetime | None = None
    """The begin of what workers have counted, if that is later than the begin of the window."""
    completed: int = 0
    """Number of tasks completed in the window. All further fields are about the window too."""
    failures: int = 0
    """Number of ends as Failed; a dead letter that is redriven and fails again counts twice. Workers do not count those that no
    handler ended, such as tasks abandoned after several recoveries.
    """
    retries: int = 0
    """Number of attempts that failed and were followed by another."""
    timed_out: int | None = None
    """Number of attempts that failed because they ran beyond the task's timeout; each is among `failures` or `retries` too. None,
    as the next three: events do not tell.
    """
    snoozed: int | None = None
    released: int | None = None
    """Number of claims that were given back unfinished."""
    lost: int | None = None
    """Number of attempts whose outcome was discarded because their lease was lost."""
    cancelled: int = 0
    """Number of tasks that were cancelled, expired or discarded. Workers count those that were cancelled while they ran."""
    throughput: float = 0.0
    """Tasks completed or failed, per second of the window, or of the time since `counted_since`."""
    failure_rate: float | None = None
    """Share of `failures` among the completed and failed, from 0 to 1; None if there are none."""
    wait: Percentiles | None = None
    """Time from the moment at which the task was due to the start of its handler, of all attempts that workers have counted. It
    is interpolated within buckets whose bounds double, from 1 ms to an hour.
    """
    run: Percentiles | None = None
    """Time from the start of the handler to its end, in the same way."""
    emit_to_start: Percentiles | None = None
    """Time from the enqueueing, a delay included, to the first start, of completed and failed tasks. None if there are none, or
    if workers have counted.
    """
    emit_to_complete: Percentiles | None = None
    """Time from the enqueueing to the end, of the same tasks."""


def stats(
    store: Transactions,
    *,
    window: timedelta | float = HOUR,
    queues: Sequence[str] | None = None,
    by: By = "queue",
    exact: bool = False,
    using: object = None,
) -> list[Statistics]:
    """Return the statistics of each queue, or with `by="task"` of each task name in each queue; sorted by these names.

    With `queues`, only those are returned, each with or without tasks. Without, it is every queue in which something waits,
    runs, is a dead letter or happened in the `window` (a timedelta or seconds), or that is paused.

    By default at most 10,000 due tasks of each queue and priority are counted, and as many delayed ones (with `by="task"` 1,000);
    fields such as `ready_at_least` say where there are more. The numbers of the window are those that workers have written down
    up to ten seconds ago. If no worker has written any in the window, they are counted from the events.

    `exact`: count all tasks in the outbox, and the numbers of the window from the events. Nothing that ended before the window
    is read. All of it is as of one moment, unless `using` is a connection with a weaker isolation.
    """
    since = duration(window, "window")
    if not timedelta(0) < since <= LONGEST:
        raise InvalidArgument(f"window must be longer than nothing, and at most {LONGEST.days} days, not {window}")
    if by not in get_args(By):
        raise InvalidArgument(f"by is 'queue' or 'task', not {by!r}")
    names, by_task = queue_names(queues), by == "task"
    if exact:
        read = partial(_read, store, window=since, names=names, by_task=by_task)
        return store.run(read, using=using, begin=Begin.SNAPSHOT)
    look = partial(_look, store, window=since, names=names, by_task=by_task)
    seen = store.run(look, using=using, begin=Begin.READ)
    if seen.counted:
        return seen.statistics()
    count = partial(_happened, store, now=seen.now, window=since, names=names, by_task=by_task)
    seen.add(store.run(count, using=using, begin=Begin.SNAPSHOT))
    return seen.statistics()


def _read(
    store: Transactions, target: Target, *, window: timedelta, names: list[str] | None, by_task: bool
) -> list[Statistics]:
    """Count everything."""
    seen = _Seen.look(store, target, window=window, names=names, by_task=by_task)
    values = _values(target, now=seen.now, window=window, names=names)
    parts = statistics.BY_TASK if by_task else statistics.BY_QUEUE
    for part, builder in parts.items():
        if part != "window":
            for row in target.run(builder, values):
                seen.add({(row["queue"], row.get("task_name")): row})
    for row in seen.found.values():
        row["delayed"] = max(0, row.get("delayed", 0) - row.get("retrying", 0))
    seen.add(_happened(store, target, now=seen.now, window=window, names=names, by_task=by_task))
    return seen.statistics()


def _look(store: Transactions, target: Target, *, window: timedelta, names: list[str] | None, by_task: bool) -> _Seen:
    """Count up to the bounds, and read what workers have counted."""
    seen = _Seen.look(store, target, window=window, names=names, by_task=by_task)
    values = _values(target, now=seen.now, window=window, names=names)
    seen.add(depths.waiting(store, target, values, by_task=by_task, names=names))
    if (happened := metrics.happened(target, seen.now - window, by_task=by_task)) is not None:
        found, seen.first = happened
        seen.counted = True
        seen.add(found)
    if any(row.get(mark) for row in seen.found.values() for mark in _MARKS):
        seen.samples = depths.last_samples(store, target)
        if not by_task and any(row.get("failed_at_least") for row in seen.found.values()):
            seen.add({(one.queue, None): {"failed_at_least": True} for one in seen.samples.values() if one.failed})
    return seen


def _happened(
    store: Transactions,  # noqa: ARG001 - as the other readers
    target: Target,
    *,
    now: datetime,
    window: timedelta,
    names: list[str] | None,
    by_task: bool,
) -> Found:
    """Count the events of the window."""
    values = _values(target, now=now, window=window, names=names)
    values["first"] = next((row["first"] for row in target.run(event_log.first_of_window, values)), 0)
    rows = target.run((statistics.BY_TASK if by_task else statistics.BY_QUEUE)["window"], values)
    return {(row["queue"], row.get("task_name")): row for row in rows}


def _values(target: Target, *, now: datetime, window: timedelta, names: list[str] | None) -> dict[str, Any]:
    since = now - window
    values = {"now": now, "since": since, "search_from": since - _LEEWAY, "every_queue": names is None}
    return values | target.dialect.pack("queues", {"queue": Text()}, [(name,) for name in names or ()])


@dataclass(kw_only=True)
class _Seen:
    """The rows that were read so far."""

    now: datetime
    window: timedelta
    names: list[str] | None
    settings: dict[str, QueueSettings]
    workers: list[LiveWorker]
    found: Found
    samples: dict[str, QueueSample] = field(default_factory=dict)
    counted: bool = False
    """Workers have counted something."""
    first: datetime | None = None
    """The begin of what they have counted."""

    @classmethod
    def look(
        cls, store: Transactions, target: Target, *, window: timedelta, names: list[str] | None, by_task: bool
    ) -> Self:
        """Read the clock, the settings of queues and the live workers."""
        now = target.run(tasks.select_now, store.values(target))[0]["now"]
        settings = {one.queue: one for one in map(settings_of, target.run(queues.settings))}
        found: Found = {}
        if not by_task:
            paused = [queue for queue, each in settings.items() if each.paused_at is not None]
            found = {(queue, None): {} for queue in (paused if names is None else names)}
        workers = live_workers(target, now)
        return cls(now=now, window=window, names=names, settings=settings, workers=workers, found=found)

    def add(self, found: Found) -> None:
        """Add numbers to those of the same queue, or of the same task."""
        for key, row in depths.wanted(found, self.names).items():
            self.found.setdefault(key, {}).update(row)

    def statistics(self) -> list[Statistics]:
        keys = sorted(self.found, key=lambda key: (key[0], key[1] or ""))
        return [self._one(*key, self.found[key]) for key in keys]

    def _one(self, queue: str, task_name: str | None, row: Row) -> Statistics:
        ended = row.get("completed", 0) + row.get("failures", 0)
        oldest = row.get("oldest_ready_at")
        here = [worker for worker in self.workers if worker.works_on(queue)]
        waits = row.get("ready", 0) + row.get("delayed", 0) + row.get("retrying", 0) > 0
        mine = self.settings.get(queue) or QueueSettings(queue=queue)
        sample = self.samples.get(queue) if any(row.get(mark) for mark in _MARKS) else None
        by_workers: dict[str, Any] = {name: row.get(name, 0 if self.counted else None) for name in _ONLY_BY_WORKERS}
        late = self.counted and self.first is not None and self.first > self.now - self.window
        counting = max(self.now - self.first, _SHORTEST) if late and self.first is not None else self.window
        return Statistics(
            queue=queue,
            task_name=task_name,
            window=self.window,
            **{name: row.get(name, 0) for name in (*_COUNTS, "delayed")},
            **{name: row.get(name, False) for name in _MARKS},
            **by_workers,
            by_workers=self.counted,
            counted_since=self.first if late else None,
            sample=sample,
            sample_age=None if sample is None else self.now - sample.at,
            oldest_ready_at=oldest,
            oldest_ready_age=None if oldest is None else self.now - oldest,
            paused=mine.paused_at is not None,
            concurrency=mine.concurrency,
            rate=mine.rate,
            concurrency_per_key=mine.concurrency_per_key,
            rate_per_key=mine.rate_per_key,
            live_workers=sum(task_name is None or task_name in worker.task_names for worker in here),
            unknown=unknown_names(queue, task_name, here) if waits else (),
            throughput=ended / counting.total_seconds(),
            failure_rate=row.get("failures", 0) / ended if ended else None,
            wait=metrics.percentiles(row.get("wait")),
            run=metrics.percentiles(row.get("run")),
            emit_to_start=_percentiles(row, "start") if "start_p50" in row and ended else None,
            emit_to_complete=_percentiles(row, "complete") if "start_p50" in row and ended else None,
        )


def unknown_names(queue: str, task_name: str | None, workers: Sequence[LiveWorker]) -> tuple[UnknownName, ...]:
    """Return the names of tasks of a queue that its live workers met lately and none of them knows."""
    met: dict[str, list[str]] = {}
    for worker in workers:
        for where, name in worker.unknown_tasks:
            if where == queue and task_name in {None, name}:
                met.setdefault(name, []).append(worker.label)
    known = {name for worker in workers for name in worker.task_names}
    return tuple(UnknownName(task_name=name, met_by=tuple(met[name])) for name in sorted(met.keys() - known))


def _percentiles(row: Row, until: str) -> Percentiles:
    return Percentiles(**{f"p{each}": timedelta(microseconds=row[f"{until}_p{each}"]) for each in PERCENTILES})
