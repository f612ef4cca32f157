"""Statistics of queues or tasks: what waits, runs and has failed now, and what happened lately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, get_args

from sqlalchemy import Text

from ..database.dialects import Begin, Row
from ..database.statements import queues, statistics, tasks
from ..database.statements.statistics import PERCENTILES
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import LONGEST, duration
from .arguments import queue_names
from .queues import QueueSettings, settings_of
from .transactions import Transactions
from .workers import LiveWorker, live_workers

By = Literal["queue", "task"]

HOUR = timedelta(hours=1)
_LEEWAY = timedelta(minutes=2)
"""An event is numbered a little after its time is taken, and later numbers may bear earlier times: by less than this."""

_COUNTS = ("ready", "retrying", "running", "failed", "completed", "failures", "cancelled", "retries")


@dataclass(frozen=True, kw_only=True, slots=True)
class Percentiles:
    """Durations by nearest rank: 50, 95 and 99 of 100 tasks took no longer."""

    p50: timedelta
    p95: timedelta
    p99: timedelta


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
    delayed: int = 0
    """Number of tasks that are due later, other than for a retry."""
    retrying: int = 0
    """Number of tasks that are due later for a retry."""
    running: int = 0
    failed: int = 0
    """Number of dead letters, whenever they failed."""
    oldest_ready_at: datetime | None = None
    """Time at which the oldest due task became due."""
    oldest_ready_age: timedelta | None = None
    paused: bool = False
    concurrency: int | None = None
    """Maximum number of the queue's tasks that run at once; None: no limit."""
    rate: tuple[int, timedelta] | None = None
    """Maximum number of the queue's starts in a time span; None: no limit."""
    live_workers: int = 0
    """Number of live workers on the queue; for one task name, of those that also know it."""
    unknown: tuple[UnknownName, ...] = ()
    """Names of waiting tasks that live workers met lately and no live worker of the queue knows."""
    window: timedelta = HOUR
    completed: int = 0
    """Number of tasks completed in the window. All further fields are about the window too."""
    failures: int = 0
    """Number of ends as Failed; a dead letter that is redriven and fails again counts twice."""
    retries: int = 0
    """Number of attempts that were followed by another."""
    cancelled: int = 0
    """Number of tasks that were cancelled, expired or discarded."""
    throughput: float = 0.0
    """Tasks completed or failed, per second."""
    failure_rate: float | None = None
    """Share of `failures` among the completed and failed, from 0 to 1; None if there are none."""
    emit_to_start: Percentiles | None = None
    """Time from the enqueueing, a delay included, to the first start, of completed and failed tasks; None if there are none."""
    emit_to_complete: Percentiles | None = None
    """Time from the enqueueing to the end, of the same tasks."""


def stats(
    store: Transactions,
    *,
    window: timedelta | float = HOUR,
    queues: Sequence[str] | None = None,
    by: By = "queue",
    using: object = None,
) -> list[Statistics]:
    """Return the statistics of each queue, or with `by="task"` of each task name in each queue; sorted by these names.

    With `queues`, only those are returned, each with or without tasks. Without, it is every queue in which something waits,
    runs, is a dead letter or happened in the `window` (a timedelta or seconds), or that is paused. All of it is as of one
    moment, unless `using` is a connection with a weaker isolation. All tasks in the outbox are read, but nothing that ended
    before the window.
    """
    since = duration(window, "window")
    if not timedelta(0) < since <= LONGEST:
        raise InvalidArgument(f"window must be longer than nothing, and at most {LONGEST.days} days, not {window!r}")
    if by not in get_args(By):
        raise InvalidArgument(f"by is 'queue' or 'task', not {by!r}")
    names = queue_names(queues)
    read = partial(_read, store, window=since, names=names, by_task=by == "task")
    return store.run(read, using=using, begin=Begin.SNAPSHOT)


def _read(
    store: Transactions, target: Target, *, window: timedelta, names: list[str] | None, by_task: bool
) -> list[Statistics]:
    now = target.run(tasks.now, store.values(target))[0]["now"]
    since = now - window
    values = {"now": now, "since": since, "search_from": since - _LEEWAY, "every_queue": names is None}
    values |= target.dialect.pack("queues", {"queue": Text()}, [(name,) for name in names or ()])
    values["first"] = next((row["first"] for row in target.run(statistics.first_of_window, values)), 0)
    parts = statistics.BY_TASK if by_task else statistics.BY_QUEUE
    found: dict[tuple[str, str | None], Row] = {}
    for part in parts.values():
        for row in target.run(part, values):
            found.setdefault((row["queue"], row.get("task_name")), {}).update(row)
    settings = {row["queue"]: settings_of(row) for row in target.run(queues.settings)}
    if not by_task:
        paused = [queue for queue, each in settings.items() if each.paused_at is not None]
        for queue in paused if names is None else names:
            found.setdefault((queue, None), {})
    workers = live_workers(target, now)

    def statistics_of(queue: str, task_name: str | None, row: Row) -> Statistics:
        ended = row.get("completed", 0) + row.get("failures", 0)
        oldest = row.get("oldest_ready_at")
        here = [worker for worker in workers if worker.works_on(queue)]
        waits = row.get("ready", 0) + row.get("delayed", 0) > 0
        mine = settings.get(queue) or QueueSettings(queue=queue)
        return Statistics(
            queue=queue,
            task_name=task_name,
            window=window,
            **{name: row.get(name, 0) for name in _COUNTS},
            oldest_ready_at=oldest,
            oldest_ready_age=None if oldest is None else now - oldest,
            delayed=max(0, row.get("delayed", 0) - row.get("retrying", 0)),
            paused=mine.paused_at is not None,
            concurrency=mine.concurrency,
            rate=mine.rate,
            live_workers=sum(task_name is None or task_name in worker.task_names for worker in here),
            unknown=_unknown(queue, task_name, here) if waits else (),
            throughput=ended / window.total_seconds(),
            failure_rate=row.get("failures", 0) / ended if ended else None,
            emit_to_start=_percentiles(row, "start") if ended else None,
            emit_to_complete=_percentiles(row, "complete") if ended else None,
        )

    keys = sorted(found, key=lambda key: (key[0], key[1] or ""))
    return [statistics_of(*key, found[key]) for key in keys]


def _unknown(queue: str, task_name: str | None, workers: Sequence[LiveWorker]) -> tuple[UnknownName, ...]:
    met: dict[str, list[str]] = {}
    for worker in workers:
        for where, name in worker.unknown_tasks:
            if where == queue and task_name in {None, name}:
                met.setdefault(name, []).append(worker.label)
    known = {name for worker in workers for name in worker.task_names}
    return tuple(UnknownName(task_name=name, met_by=tuple(met[name])) for name in sorted(met.keys() - known))


def _percentiles(row: Row, until: str) -> Percentiles:
    return Percentiles(**{f"p{each}": timedelta(microseconds=row[f"{until}_p{each}"]) for each in PERCENTILES})
