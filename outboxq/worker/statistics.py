"""Writes what the meter has counted into the database, sums up what is old, and takes samples of what waits.

No task depends on it.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from ..database.engine import close
from ..model.histograms import AttemptCounts
from ..model.uuid7 import uuid7
from ..store import QueueSample, Store, TaskMetric
from ..store.numbers.metrics import SUM_UP
from .meter import Meter

log = logging.getLogger("outboxq.worker")

WRITE_EVERY = 10.0
"""Seconds between two writes of what was counted. A killed worker loses the counts of this time at most."""
SAMPLE = "sample"
"""The job of taking samples."""
_SAMPLE_EVERY = 15.0
_SHARE = 100
"""A sample is taken again after so many times its own duration at the earliest: at most 1 % of the time is spent on samples."""
_SUM_UP_EVERY = timedelta(minutes=1)
_AT_MOST = timedelta(minutes=5)
"""The time after which another worker takes over a job: the one that had it has died."""
_NOTHING = AttemptCounts()


@dataclass(eq=False, repr=False)
class MetricsWriter:
    """Writes every ten seconds, and at the end, what the meter has counted since the last write: a row for each queue and task.

    Rows that could not be written are kept as they are, with their ids, and written first the next time. So a row is written
    once, also where the answer to its COMMIT was lost. What was counted meanwhile stays in the meter.
    """

    store: Store
    meter: Meter
    worker_id: UUID

    def __post_init__(self) -> None:
        self._written: Mapping[tuple[str, str], AttemptCounts] = {}
        """The meter's counts up to which rows were made."""
        self._unwritten: Sequence[TaskMetric] = ()
        self._due = time.monotonic() + WRITE_EVERY

    def run_once(self) -> None:
        self._due = time.monotonic() + WRITE_EVERY
        self._write_rows()
        self._unwritten = self._counted()
        self._write_rows()

    def end(self) -> None:
        """Write the rest, if the database can be reached."""
        with suppress(Exception):
            self.run_once()

    def pause(self) -> float:
        """Return the seconds until the next write."""
        return max(0.0, self._due - time.monotonic())

    def _write_rows(self) -> None:
        self.store.metrics.record(self._unwritten, worker_id=self.worker_id)
        self._unwritten = ()

    def _counted(self) -> list[TaskMetric]:
        """Return what was counted since this was last called."""
        before, self._written = self._written, self.meter.read()
        return [
            TaskMetric(id=uuid7(), queue=queue, task_name=name, counts=now.since(before.get((queue, name), _NOTHING)))
            for (queue, name), now in self._written.items()
            if now != before.get((queue, name), _NOTHING)
        ]


@dataclass(eq=False, repr=False)
class StatisticsUpkeep:
    """Takes samples of what waits, and sums up old metrics: one worker at a time, for all."""

    store: Store
    stopping: threading.Event
    clock: Callable[[], float] = time.monotonic
    _due: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        self._due = self.clock() + _SAMPLE_EVERY * random.uniform(0.3, 1.0)  # noqa: S311

    def run_once(self) -> None:
        self._due = self.clock() + _SAMPLE_EVERY
        waits = self._take_sample(), self._sum_up()
        self._due = self.clock() + max(1.0, min(waits)) + random.uniform(0.0, 1.0)  # noqa: S311

    def pause(self) -> float:
        """Return the seconds until one of the jobs may be due."""
        return max(0.0, self._due - self.clock())

    def _take_sample(self) -> float:
        """Take a sample if one is due. Returns the seconds until the next one."""
        turn = self.store.maintenance_jobs.take(SAMPLE, for_at_most=_AT_MOST)
        if not turn.is_mine:
            return min(turn.due_in.total_seconds(), _SAMPLE_EVERY)
        began = self.clock()
        found = self.store.samples.look()
        if not all(one.exact for one in found):
            found = self._count()
        if self.store.gone.is_set():  # the connections are closed: another worker takes over
            return _SAMPLE_EVERY
        self.store.samples.record(found)
        again = max(_SAMPLE_EVERY, _SHARE * (self.clock() - began))
        self.store.maintenance_jobs.done(SAMPLE, again_in=timedelta(seconds=again))
        return min(again, _SAMPLE_EVERY)

    def _count(self) -> list[QueueSample]:
        """Count everything, on a connection of its own: it may take seconds, and claims must not wait for it."""
        apart = self.store.reserved(self.stopping)
        try:
            return apart.samples.count()
        finally:
            close(apart.bound_engine)

    def _sum_up(self) -> float:
        """Sum up old metrics if that is due. Returns the seconds until it is due again."""
        if self.store.gone.is_set():
            return _SUM_UP_EVERY.total_seconds()
        turn = self.store.maintenance_jobs.take(SUM_UP, for_at_most=_AT_MOST)
        if not turn.is_mine:
            return turn.due_in.total_seconds()
        self.store.metrics.sum_up()
        if self.store.gone.is_set():
            return _SUM_UP_EVERY.total_seconds()
        self.store.samples.thin_out()
        self.store.maintenance_jobs.done(SUM_UP, again_in=_SUM_UP_EVERY)
        return _SUM_UP_EVERY.total_seconds()
