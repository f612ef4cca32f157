"""Statistics on queues or tasks: the tasks that are now waiting, running or failed, and workers' counts for a period.

The cost of the statistics does not grow with the backlog or the history: `live` counts up to a bound, and `metrics`
sums the rows that workers write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Self, get_args

from ...database.dialects import Begin
from ...database.target import Target
from ...errors import InvalidArgument
from ..arguments import queue_names
from ..claims.workers import LiveWorker, live_workers
from ..tasks.event_log import Count
from ..transactions import Transactions
from . import metrics, queues
from .live import MARKS, STATES, Live, count
from .metrics import Percentiles
from .queues import QueueSettings, settings_of
from .samples import QueueSample, last_samples

By = Literal["queue", "task"]

HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownName:
    """The name of a task that live workers have come across but do not know."""

    task_name: str
    met_by: tuple[str, ...]
    """Labels of the workers that have recently come across the name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """Counts, rates and durations for a queue, or for one task name in it: now, and over a window that ends now."""

    queue: str
    task_name: str | None = None
    """Name of the task; None means all tasks in the queue."""
    due: int = 0
    """Number of tasks that are due now."""
    due_at_least: bool = False
    """True if the actual number is higher than `due`, because the count stopped at its bound. `sample` has the last
    full count.
    """
    delayed: int = 0
    """Number of tasks that are due later and are not waiting for a retry."""
    delayed_at_least: bool = False
    retrying: int = 0
    """Number of tasks that are waiting for a retry."""
    retrying_at_least: bool = False
    """True if only the next 1,000 delayed tasks were looked up. The others are counted in `delayed`."""
    running: int = 0
    failed: int = 0
    """Number of dead letters, no matter when they failed."""
    failed_at_least: bool = False
    sample: QueueSample | None = None
    """The last full count, if one exists and one of the numbers above is a lower bound."""
    sample_age: timedelta | None = None
    oldest_due_at: datetime | None = None
    """Time at which the oldest due task became due."""
    oldest_due_age: timedelta | None = None
    paused: bool = False
    concurrency: int | None = None
    """Maximum number of the queue's tasks that run at once; None means no limit."""
    rate: tuple[int, timedelta] | None = None
    """Maximum number of tasks in the queue that start per period; None means no limit."""
    concurrency_per_key: int | None = None
    """Maximum number of tasks with the same concurrency key that run at once; None means 1."""
    rate_per_key: tuple[int, timedelta] | None = None
    """Maximum number of tasks with the same key that start per period; None means no limit."""
    live_workers: int = 0
    """Number of live workers serving the queue; for one task name, only the workers that also know the task. Workers
    that have been ordered to be quiet or to stop are left out.
    """
    unknown: tuple[UnknownName, ...] = ()
    """Names of waiting tasks that live workers have recently come across, but that no live worker serving the queue
    knows.
    """
    window: timedelta = HOUR
    by_workers: bool = False
    """True if workers have written counts in the window. Otherwise, the numbers for the window are 0."""
    counted_since: datetime | None = None
    """The time at which workers' counts begin, if it is later than the start of the window."""
    completed: int = 0
    """Number of tasks that workers completed in the window. The fields below also refer to the window."""
    failures: int = 0
    """Number of times that a task ended as Failed; a dead letter that is redriven and fails again counts twice.
    Failures that occur outside a handler are not counted, for example when a task is abandoned after several
    recoveries.
    """
    retries: int = 0
    """Number of attempts that failed and were followed by another attempt."""
    timed_out: int = 0
    """Number of attempts that failed because they exceeded the task's timeout; each is also counted in `failures` or
    `retries`.
    """
    snoozed: int = 0
    released: int = 0
    """Number of claims that were released unfinished."""
    lost: int = 0
    """Number of attempts whose outcome was discarded because the lease was lost."""
    cancelled: int = 0
    """Number of tasks that were cancelled while they were running."""
    throughput: float = 0.0
    """Number of completed and failed tasks per second of the window, or of the time since `counted_since`."""
    failure_rate: float | None = None
    """`failures` as a fraction of the completed and failed tasks, from 0 to 1; None if there are no such tasks."""
    wait: Percentiles | None = None
    """Time from a task's due time to the start of its handler, over all attempts, estimated from counts in
    buckets whose bounds range from 1 ms to an hour.
    """
    run: Percentiles | None = None
    """Time from the start of the handler to its end, estimated in the same way."""


def stats(
    store: Transactions,
    *,
    window: timedelta | float = HOUR,
    queues: Sequence[str] | None = None,
    by: By = "queue",
    using: object = None,
) -> list[Statistics]:
    """Return statistics for each queue or, with `by="task"`, for each task name in each queue, sorted by these names.

    `queues` restricts the result to these queues, whether or not they have tasks. Without `queues`, the result contains
    every queue that has waiting or running tasks, dead letters, or counts in the `window` (a timedelta or seconds), or
    that is paused. At most 10,000 due and 10,000 delayed tasks per queue and priority are counted (with `by="task"`,
    1,000 of each). If there are more, fields such as `due_at_least` are True, and `sample` has the last full count. The
    numbers for the window are up to ten seconds old, because workers write their counts every ten seconds.
    """
    since = metrics.window_of(window)
    if by not in get_args(By):
        raise InvalidArgument(f"by must be 'queue' or 'task', not {by!r}")
    work = partial(_read, store, window=since, names=queue_names(queues), by_task=by == "task")
    return store.run(work, using=using, begin=Begin.READ)


def state_counts(
    store: Transactions, *, queue: str | None = None, task: str | None = None, using: object = None
) -> dict[str, Count]:
    """Return the numbers of tasks that are due, delayed, retrying, running and failed, in two statements. The bounds are
    those of `stats`.
    """
    names, by_task = None if queue is None else queue_names([queue]), task is not None

    def work(target: Target) -> dict[str, Count]:
        found = count(store, target, names=names, by_task=by_task).found
        mine = [row for (_, name), row in found.items() if name == task]
        return {
            state: Count(
                number=sum(row.get(state, 0) for row in mine),
                at_least=any(row.get(f"{state}_at_least", False) for row in mine),
            )
            for state in ("due", "delayed", "retrying", "running", "failed")
        }

    return store.run(work, using=using, begin=Begin.READ)


def _read(
    store: Transactions, target: Target, *, window: timedelta, names: list[str] | None, by_task: bool
) -> list[Statistics]:
    seen = Present.read(store, target, names=names, by_task=by_task)
    now = seen.live.now
    happened = metrics.happened(target, now, window, by_task=by_task)
    first = metrics.first_counted(target) if happened else None
    since = first if first is not None and first > now - window else None
    seconds = metrics.counted_time(first, now, window).total_seconds()
    counted: dict[str, Any] = {"window": window, "by_workers": bool(happened), "counted_since": since}
    keys = {*seen.live.found, *(key for key in happened if names is None or key[0] in names)}
    if names is None and not by_task:
        keys |= {(one.queue, None) for one in seen.settings.values() if one.paused_at is not None}
    found = []
    for key in sorted(keys, key=lambda key: (key[0], key[1] or "")):
        numbers: Mapping[str, Any] = happened.get(key, {})
        failures = numbers.get("failures", 0)
        ended = numbers.get("completed", 0) + failures
        rates = {"throughput": ended / seconds, "failure_rate": failures / ended if ended else None}
        found.append(replace(seen.of(*key), **counted, **rates, **numbers))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Present:
    """The live numbers, the settings of the queues, the live workers and, if a number is a lower bound, the last
    sample.
    """

    live: Live
    settings: Mapping[str, QueueSettings]
    workers: Sequence[LiveWorker]
    samples: Mapping[str, QueueSample]

    @classmethod
    def read(cls, store: Transactions, target: Target, *arguments: Any, **options: Any) -> Self:
        """Count the tasks by calling `live.count` with these arguments, and read the other fields. This runs four
        statements, and a fifth if the samples are needed.
        """
        live = count(store, target, *arguments, **options)
        settings = {one.queue: one for one in map(settings_of, target.run(queues.settings))}
        capped = live.failed_at_least or any(row.get(mark) for row in live.found.values() for mark in MARKS)
        samples = last_samples(store, target) if capped else {}
        if live.failed_at_least and not options.get("by_task"):
            names = options.get("names")
            for one in samples.values():
                if one.failed and (names is None or one.queue in names):
                    live.found.setdefault((one.queue, None), {})["failed_at_least"] = True
        return cls(live=live, settings=settings, workers=live_workers(target, live.now), samples=samples)

    def of(self, queue: str, task_name: str | None = None) -> Statistics:
        """Return the current numbers for a queue, or for one task name in it."""
        row = self.live.found.get((queue, task_name), {})
        mine = self.settings.get(queue) or QueueSettings(queue=queue)
        sample = self.samples.get(queue) if any(row.get(mark) for mark in MARKS) else None
        here = [worker for worker in self.workers if worker.works_on(queue)]
        waits = any(row.get(name) for name in ("due", "delayed", "retrying"))
        oldest = row.get("oldest_due_at")
        return Statistics(
            queue=queue,
            task_name=task_name,
            **{name: row.get(name, 0) for name in (*STATES, "retrying")},
            **{name: row.get(name, False) for name in MARKS},
            sample=sample,
            sample_age=None if sample is None else self.live.now - sample.at,
            oldest_due_at=oldest,
            oldest_due_age=None if oldest is None else self.live.now - oldest,
            paused=mine.paused_at is not None,
            **{name: getattr(mine, name) for name in ("concurrency", "rate", "concurrency_per_key", "rate_per_key")},
            live_workers=sum(
                worker.asked_to is None and (task_name is None or task_name in worker.task_names) for worker in here
            ),
            unknown=_unknown_names(queue, task_name, here) if waits else (),
        )


def _unknown_names(queue: str, task_name: str | None, workers: Sequence[LiveWorker]) -> tuple[UnknownName, ...]:
    """Return the task names in a queue that its live workers have recently come across, but that none of them knows."""
    met: dict[str, list[str]] = {}
    for worker in workers:
        for where, name in worker.unknown_tasks:
            if where == queue and task_name in {None, name}:
                met.setdefault(name, []).append(worker.label)
    known = {name for worker in workers for name in worker.task_names}
    return tuple(UnknownName(task_name=name, met_by=tuple(met[name])) for name in sorted(met.keys() - known))
