"""The services of a worker: the threads beside those that claim tasks, run them, and write their outcomes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from uuid import UUID

from ..store import Store
from ..task import TaskRegistry
from ..task.schedules import declare_schedules
from .claim_loop import ClaimLoop
from .leases import Leases
from .meter import Meter
from .options import Isolation, WorkerSettings
from .statistics import MetricsWriter, StatisticsUpkeep
from .thread_pool import HandlerPool
from .upkeep import BatchCanceller, PartitionMaker, ServiceThread, WorkerRegistration
from .upkeep.planting import Planting
from .upkeep.recovery import Recovery
from .upkeep.unknown_tasks import KnownTasks, UnknownTasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """The process of one worker, for people."""

    version: str | None
    """Version of the application's code."""
    pool: HandlerPool[Any]
    isolation: Isolation

    def describe(self) -> dict[str, Any]:
        """Return the arguments of `Store.workers.describe`."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": self.version,
            "release": installed_release(),
            "busy": self.pool.busy,
            "isolation": self.isolation.value,
        }


def installed_release() -> str | None:
    """Return the version of outboxq; None where it runs without having been installed."""
    try:
        return version("outboxq")
    except PackageNotFoundError:
        return None


class Services:
    """The services of one worker, and their threads."""

    def __init__(
        self,
        store: Store,
        urgent: Store,
        *,
        worker_id: UUID,
        tasks: TaskRegistry,
        settings: WorkerSettings,
        description: Mapping[str, Any],
        pool: HandlerPool[Any],
        leases: Leases,
        claim_loop: ClaimLoop,
        unknown: UnknownTasks,
        meter: Meter,
        stopping: threading.Event,
        on_thread_failure: Callable[[BaseException], None],
    ) -> None:
        """Make the services; no thread starts. `urgent`: connections for what is as urgent as a heartbeat."""
        process = Process(version=tasks.version or None, pool=pool, isolation=settings.isolation)
        registration = WorkerRegistration(store, worker_id, unknown.recent, description, meter, process.describe)
        recovery = Recovery(
            urgent,
            leases,
            every=settings.recover_every,
            prove_writable=registration.run_once,
            on_recovery=claim_loop.expect_recovered,
            on_failpoint=settings.on_failpoint,
            meter=meter,
        )
        known_tasks = KnownTasks(store, description["task_names"], queues=settings.queues, topics=settings.topics)
        self._planting = Planting(store, partial(declare_schedules, tasks=tasks))
        self.batches = BatchCanceller(store)
        written = MetricsWriter(store, meter, worker_id)
        upkeep = StatisticsUpkeep(store, stopping)
        thread = partial(ServiceThread, on_thread_failure=on_thread_failure)
        self.registration = thread("registration", registration, wake=unknown.found_new, on_stop=registration.end)
        self._known_tasks = thread("known-tasks", known_tasks)
        self._threads = [
            thread("heartbeat", leases, wake=leases.beat_moved),
            thread("recovery", recovery),
            self.registration,
            thread("planting", self._planting),
            thread("batches", self.batches, wake=self.batches.wake),
            thread("partitions", PartitionMaker(store)),
            self._known_tasks,
            thread("metrics", written, on_stop=written.end),
            thread("statistics", upkeep),
        ]

    def __iter__(self) -> Iterator[ServiceThread]:
        return iter(self._threads)

    def run_early(self, *, burst: bool) -> None:
        """Run the services that come before the first claim. A worker with `burst` may end before a thread had its turn."""
        self.registration.run_early()
        self._known_tasks.run_early()
        self._planting.begin(burst=burst)

    def stop(self) -> None:
        """Tell all services to end. The caller joins their threads."""
        self._planting.stop()
        for thread in self._threads:
            thread.stop()
