"""A worker's services, each running in a separate thread."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from ...database.engine import close
from ...errors import FileUnusable, InvalidArgument
from ...model.histograms import AttemptCounts
from ...model.uuid7 import uuid7
from ...model.workers import Orders, WorkerState
from ...store import QueueSample, Store, TaskMetric
from ...store.failure_log import FailureLog
from ...store.numbers.metrics import SUM_UP
from ...store.transactions import patience
from ..meter import Meter

log = logging.getLogger("outboxq.worker")

REPORT_EVERY = 5.0
"""Seconds between two reports that the worker is alive. With each report, the worker reads its orders."""
_LOOK_EVERY = 1.0
"""The shortest time between two checks for tasks to cancel, in seconds, however many tasks in batches fail."""
_PLANT_EVERY, _PLANT_SOON = (5.0, 15.0), (0.0, 1.0)
"""The shortest and the longest pause between two plantings, in seconds. The first pair is for normal operation, the
second for the time after the worker has planted a page at startup. Ticks are planted a minute ahead, so neither pause
makes a tick late.
"""
WRITE_EVERY = 10.0
"""Seconds between two writes of the counts. If a worker is killed, at most the counts since the last write are lost."""
SAMPLE = "sample"
"""The maintenance job that takes samples."""
_SAMPLE_EVERY = 15.0
_SHARE = 100
"""The wait for the next sample is at least this many times as long as the previous sample took, so samples take at most
1 % of the time.
"""
_SUM_UP_EVERY = timedelta(minutes=1)
_AT_MOST = timedelta(minutes=5)
"""The time after which another worker takes over a job, on the assumption that the worker that was doing it has died.
"""
_NOTHING = AttemptCounts()


@dataclass(frozen=True, kw_only=True, slots=True)
class Obedience:
    """The functions with which a worker obeys a person's orders."""

    obey: Callable[[Orders], None] = lambda _: None
    state: Callable[[], WorkerState | None] = lambda: None
    """A function that returns the state that the worker has reached by obeying its orders."""
    stacks: Callable[[], str] = lambda: ""
    """A function that returns the stacks of the process's threads."""


@dataclass(eq=False, repr=False)
class WorkerRegistration:
    """Registers the worker and the tasks that it serves, for people, `explain` and statistics. No task depends on the
    registration.

    A worker that has not renewed its registration for 90 seconds counts as dead.
    """

    store: Store
    worker_id: UUID
    unknown_tasks: Callable[[], Collection[tuple[str, str]]]
    """A function that returns the queue and the name of each unknown task that the worker has recently claimed."""
    description: Mapping[str, Any]
    """The other arguments for `Store.workers.register`."""
    meter: Meter = field(default_factory=Meter)
    process: Callable[[], Mapping[str, Any]] = dict
    """A function that returns the current arguments for `Store.workers.describe`, except for the state."""
    failures: Callable[[], object] = lambda: None
    """A function that returns the failures of the worker's parts. When these failures change, the registration is
    renewed immediately.
    """
    orders: Obedience = field(default_factory=Obedience)

    def __post_init__(self) -> None:
        self._describing = FailureLog(log, level=logging.WARNING)
        self._written_unknown: Collection[tuple[str, str]] = ()
        self._written_failures: object = self.failures()
        self._due = 0.0
        self._described: Mapping[str, Any] = {}
        self._written_state: WorkerState | None = None
        self._ended = False
        self._lock = threading.Lock()
        """A lock that prevents one thread from registering the worker while another removes the registration."""

    def run_once(self) -> None:
        """Renew the registration, unless the worker has ended. Any thread may call this."""
        with self._lock:
            if self._ended:
                return
            self._due = time.monotonic() + REPORT_EVERY * random.uniform(0.8, 1.0)  # noqa: S311
            self._written_unknown = unknown = self.unknown_tasks()
            self._written_failures = self.failures()
            self._written_state = self.orders.state()  # if this run fails, the next one waits until it is due
            orders = self.store.workers.seen(self.worker_id, unknown_tasks=unknown)
            if orders is None:
                self._described = {}
                self.store.workers.unregister(
                    self.worker_id
                )  # also forgets workers that were last seen more than a week ago
                self.store.workers.register(self.worker_id, unknown_tasks=unknown, **self.description)
            self.meter.answered()
            if orders is not None:
                self.orders.obey(orders)
            self._describe()
            if orders is not None and orders.stacks:
                self.store.worker_orders.answer(self.worker_id, self.orders.stacks())

    def _describe(self) -> None:
        """Store the description of the process if it has changed. The registration is valid without the description, so
        a failure is only logged.

        Raises FileUnusable.
        """
        self._written_state = self.orders.state()
        description = {**self.process(), "state": self._written_state}
        if description == self._described:
            return
        try:
            self.store.workers.describe(self.worker_id, **description)
            self._described = description
            self._describing.worked("the description of the worker's process can be stored again")
        except FileUnusable:
            raise
        except Exception as error:  # noqa: BLE001
            self._describing.failed("the description of the worker's process could not be stored", error)

    def withdraw(self, *, within: float) -> None:
        """Remove the registration of a worker that could not start, if the database can be reached within this number
        of seconds. `run_once` registers the worker again.
        """
        with self._lock, suppress(Exception), patience(within):
            self.store.workers.unregister(self.worker_id)

    def end(self) -> None:
        """Remove the registration, if the database can be reached.

        If the worker has claimed unknown tasks, their names remain recorded for a while, so that a worker that knows
        the tasks can find them.
        """
        with self._lock:
            self._ended = True
            with suppress(Exception):
                self.store.workers.unregister(self.worker_id, met_unknown=bool(self.unknown_tasks()))

    def pause(self) -> float:
        """Return the number of seconds until the next renewal. The renewal is due immediately if an unknown task, a
        failure or a new state is not registered yet.
        """
        is_written = (
            self.orders.state() is self._written_state
            and self.failures() == self._written_failures
            and not set(self.unknown_tasks()) - set(self._written_unknown)
        )
        if not is_written:
            return 0.0
        return max(0.0, self._due - time.monotonic())


@dataclass(eq=False, repr=False)
class PartitionMaker:
    """Creates future partitions of the history, if it is partitioned. Three partitions exist in advance, so creating
    another one is not urgent.
    """

    store: Store

    def run_once(self) -> None:
        self.store.time_partitions.make()

    def pause(self) -> float:
        """Return the number of seconds until the next run: half an hour to an hour."""
        return 3600 * random.uniform(0.5, 1.0)  # noqa: S311


@dataclass(eq=False, repr=False)
class BatchCanceller:
    """Cancels the other tasks in a batch after a task in the batch has failed, if the batch's policy requires it. The
    tasks are cancelled even if the worker that ran the failed task has died.
    """

    store: Store

    def __post_init__(self) -> None:
        self.wake = threading.Event()
        """A `threading.Event` that ends the thread's pause."""
        self._is_due = False
        self._looked_at = -math.inf
        """The time of the last check (`time.monotonic()`)."""

    def run_once(self) -> None:
        """Cancel tasks in the batches that are being cancelled."""
        self._is_due, self._looked_at = False, time.monotonic()
        self.store.batches.continue_cancelling()

    def expect(self) -> None:
        """Check immediately, or a second after the previous check, because a task in a batch has failed."""
        self._is_due = True
        self.wake.set()

    def pause(self) -> float:
        """Return the number of seconds until the next check. If a task in a batch has failed in this process, the next
        check is due a second after the previous one.
        """
        if self._is_due:
            return max(0.0, self._looked_at + _LOOK_EVERY - time.monotonic())
        return random.uniform(5.0, 15.0)  # noqa: S311


@dataclass(eq=False, repr=False)
class Planting:
    """Declares the schedules in this worker's code, and plants the ticks of all schedules.

    A worker also plants schedules for tasks that it does not know, so a service's schedules continue even while none of
    the service's workers is running.
    """

    store: Store
    declare: Callable[[Store], object]
    """A function that declares the schedules in the code."""

    def __post_init__(self) -> None:
        self._wait = _PLANT_EVERY
        self._is_declared = False
        self._refusal = ""
        self._stopping = False

    def begin(self, *, burst: bool) -> None:
        """Declare the schedules and plant the first page of them (all of them with `burst`) before the thread starts.

        The thread itself begins with a pause. If the thread began by planting, it could outlive the connections of a
        worker that is being stopped.
        """
        self._wait = _PLANT_EVERY
        self._declare()
        pages = iter((False,))
        with suppress(Exception):  # the thread tries again
            if self.store.schedules.plant(stop=(lambda: False) if burst else (lambda: next(pages, True))):
                self._wait = _PLANT_SOON  # there may be more

    def run_once(self) -> None:
        self._wait = _PLANT_EVERY
        self._declare()
        self.store.schedules.plant(stop=lambda: self._stopping)

    def pause(self) -> float:
        """Return the number of seconds until the next planting."""
        return random.uniform(*self._wait)  # noqa: S311

    def stop(self) -> None:
        """Plant no further pages of schedules."""
        self._stopping = True

    def _declare(self) -> None:
        """Declare the schedules, unless they are already declared.

        If a schedule with a declared name was stored at run time, the worker does not stop: it logs the conflict once,
        and tries to declare the schedule again.
        """
        if self._is_declared:
            return
        try:
            self.declare(self.store)
        except InvalidArgument as error:
            if str(error) != self._refusal:
                log.warning(
                    "the schedules declared in this code are not stored; the worker runs without them: %s", error
                )
            self._refusal = str(error)
        else:
            self._is_declared = True


@dataclass(eq=False, repr=False)
class MetricsWriter:
    """Every ten seconds, and when the worker stops, writes what the meter has counted since the previous write: a row
    for each queue and task.

    Rows that could not be written are kept unchanged, with their ids, and are the first rows of the next write. So each
    row is written only once, even if the answer to its COMMIT was lost. Meanwhile, later counts remain in the meter.
    """

    store: Store
    meter: Meter
    worker_id: UUID

    def __post_init__(self) -> None:
        self._written: Mapping[tuple[str, str], AttemptCounts] = {}
        """The part of the meter's counts that earlier rows contain."""
        self._unwritten: Sequence[TaskMetric] = ()
        self._due = time.monotonic() + WRITE_EVERY

    def run_once(self) -> None:
        self._due = time.monotonic() + WRITE_EVERY
        self._write_rows()
        self._unwritten = self._counted()
        self._write_rows()

    def end(self) -> None:
        """Write the remaining counts, if the database can be reached."""
        with suppress(Exception):
            self.run_once()

    def pause(self) -> float:
        """Return the number of seconds until the next write."""
        return max(0.0, self._due - time.monotonic())

    def _write_rows(self) -> None:
        self.store.metrics.record(self._unwritten, worker_id=self.worker_id)
        self._unwritten = ()

    def _counted(self) -> list[TaskMetric]:
        """Return the rows for the counts since the previous call."""
        before, self._written = self._written, self.meter.read()
        return [
            TaskMetric(id=uuid7(), queue=queue, task_name=name, counts=now.since(before.get((queue, name), _NOTHING)))
            for (queue, name), now in self._written.items()
            if now != before.get((queue, name), _NOTHING)
        ]


@dataclass(eq=False, repr=False)
class StatisticsUpkeep:
    """Takes samples of the waiting tasks, and rolls up old metrics. One worker at a time does this work on behalf of
    all workers.
    """

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
        """Return the number of seconds until one of the two jobs may be due."""
        return max(0.0, self._due - self.clock())

    def _take_sample(self) -> float:
        """Take a sample if one is due. Returns the number of seconds until the next sample is due."""
        turn = self.store.maintenance_jobs.take(SAMPLE, for_at_most=_AT_MOST)
        if not turn.is_mine:
            return min(turn.due_in.total_seconds(), _SAMPLE_EVERY)
        began = self.clock()
        found = self.store.samples.look()
        if not all(one.exact for one in found):
            found = self._count()
        if self.store.gone.is_set():  # the connections are closed, so another worker takes over
            return _SAMPLE_EVERY
        self.store.samples.record(found)
        again = max(_SAMPLE_EVERY, _SHARE * (self.clock() - began))
        self.store.maintenance_jobs.done(SAMPLE, again_in=timedelta(seconds=again))
        return min(again, _SAMPLE_EVERY)

    def _count(self) -> list[QueueSample]:
        """Count all waiting tasks, on a separate connection, because the count may take seconds and claims must not
        wait for it.
        """
        apart = self.store.reserved(self.stopping)
        try:
            return apart.samples.count()
        finally:
            close(apart.bound_engine)

    def _sum_up(self) -> float:
        """Roll up old metrics if that is due. Returns the number of seconds until the next roll-up is due."""
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


class Service(Protocol):
    """Work that a worker repeats in a separate thread."""

    def run_once(self) -> object: ...

    def pause(self) -> float:
        """Return the number of seconds until the next run."""


class ServiceThread(threading.Thread):
    """Runs a service until the thread is stopped. The service decides how long to pause between its runs.

    After an error, which is logged, the thread continues, because the database may be down for a while. But a SQLite
    file that has become unusable ends the thread and the worker.
    """

    def __init__(
        self,
        name: str,
        service: Service,
        on_thread_failure: Callable[[BaseException], None],
        *,
        wake: threading.Event | None = None,
        on_stop: Callable[[], object] = lambda: None,
    ) -> None:
        """`wake` is an event that makes the thread ask the service again how long to pause. `on_stop` is called in this
        thread after a stop, but not after a failure.
        """
        super().__init__(name=f"outboxq-{name}", daemon=True)
        self._service = service
        self._on_thread_failure = on_thread_failure
        self._on_stop = on_stop
        self._stopped = False
        self._wake = wake or threading.Event()

    def run_early(self) -> None:
        """Run the service once, before the thread starts. If the thread began by running the service, it could outlive
        the connections of a worker that is being stopped.
        """
        with suppress(Exception):  # the thread tries again
            self._service.run_once()

    def run(self) -> None:
        failing = FailureLog(log)
        try:
            while not self._stopped:
                if self._wake.wait(self._service.pause()):
                    self._wake.clear()
                    continue
                try:
                    self._service.run_once()
                    failing.worked(f"{self.name} works again")
                except FileUnusable as error:
                    return self._on_thread_failure(error)
                except Exception as error:  # noqa: BLE001
                    failing.failed(f"{self.name} failed; continuing", error)
            self._on_stop()
        except BaseException as error:
            self._on_thread_failure(error)
            raise

    def stop(self) -> None:
        """Let the thread finish its current run and then end. The caller joins the thread."""
        self._stopped = True
        self._wake.set()
