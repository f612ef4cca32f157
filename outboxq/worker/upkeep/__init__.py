"""Services of a worker that run in threads of their own, and the registration of the worker in the database."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from ...errors import FileUnusable
from ...store import Store
from ...store.failure_log import FailureLog
from ..meter import Meter

log = logging.getLogger("outboxq.worker")

REGISTER_EVERY = 30.0
_LOOK_EVERY = 1.0
"""Minimum number of seconds between two looks for tasks to cancel, however many tasks of batches fail."""


@dataclass(eq=False, repr=False)
class WorkerRegistration:
    """Registers the worker and what it takes: for people, `explain` and statistics. No task depends on it.

    A worker that has not renewed its registration for 90 s counts as gone.
    """

    store: Store
    worker_id: UUID
    unknown_tasks: Callable[[], Collection[tuple[str, str]]]
    """Returns queue and name of the tasks that the worker met lately and does not know."""
    description: Mapping[str, Any]
    """The other arguments of `Store.workers.register`."""
    meter: Meter = field(default_factory=Meter)
    process: Callable[[], Mapping[str, Any]] = dict
    """Returns the arguments of `Store.workers.describe`, as they are now."""

    def __post_init__(self) -> None:
        self._describing = FailureLog(log, level=logging.WARNING)
        self._written_unknown: Collection[tuple[str, str]] = ()
        self._due = 0.0
        self._ended = False
        self._lock = threading.Lock()
        """Keeps one thread from registering the worker while another removes it."""

    def run_once(self) -> None:
        """Renew the registration, unless the worker has ended. May be called by any thread."""
        with self._lock:
            if self._ended:
                return
            self._due = time.monotonic() + REGISTER_EVERY * random.uniform(0.8, 1.0)  # noqa: S311
            self._written_unknown = unknown = self.unknown_tasks()
            if not self.store.workers.seen(self.worker_id, unknown_tasks=unknown):
                self.store.workers.unregister(self.worker_id)  # and those that have not been seen for a day
                self.store.workers.register(self.worker_id, unknown_tasks=unknown, **self.description)
            self.meter.answered()
            self._describe()

    def _describe(self) -> None:
        """Write down the process. A failure is logged and no more, unless the file is gone: the registration stands without it."""
        try:
            self.store.workers.describe(self.worker_id, **self.process())
            self._describing.worked("the worker's process is written down again")
        except FileUnusable:
            raise
        except Exception as error:  # noqa: BLE001
            self._describing.failed("the worker's process was not written down", error)

    def end(self) -> None:
        """Remove the registration, if the database can be reached.

        The tasks that it met and does not know stay for a while: a worker that knows them finds them by it.
        """
        with self._lock:
            self._ended = True
            with suppress(Exception):
                self.store.workers.unregister(self.worker_id, met_unknown=bool(self.unknown_tasks()))

    def pause(self) -> float:
        """Return the seconds until the next renewal. It is due at once when a name was met that is not registered yet."""
        if set(self.unknown_tasks()) - set(self._written_unknown):
            return 0.0
        return max(0.0, self._due - time.monotonic())


@dataclass(eq=False, repr=False)
class PartitionMaker:
    """Creates future partitions of the history, if it is partitioned. Three exist ahead of time, so this is not urgent."""

    store: Store

    def run_once(self) -> None:
        self.store.time_partitions.make()

    def pause(self) -> float:
        """Return the seconds until the next look: half an hour to an hour."""
        return 3600 * random.uniform(0.5, 1.0)  # noqa: S311


@dataclass(eq=False, repr=False)
class BatchCanceller:
    """Cancels the other tasks of batches in which one has failed, where their policy is so; also those of workers that are gone."""

    store: Store

    def __post_init__(self) -> None:
        self.wake = threading.Event()
        """Ends the pause of the thread."""
        self._is_due = False
        self._looked_at = -math.inf
        """When it looked last (`time.monotonic()`)."""

    def run_once(self) -> None:
        """Cancel what is to be cancelled."""
        self._is_due, self._looked_at = False, time.monotonic()
        self.store.batches.continue_cancelling()

    def expect(self) -> None:
        """Look at once, or a second after the last look: a task of a batch has failed."""
        self._is_due = True
        self.wake.set()

    def pause(self) -> float:
        """Return the seconds until the next look. If a task of a batch has just failed here, it is a second after the last one."""
        if self._is_due:
            return max(0.0, self._looked_at + _LOOK_EVERY - time.monotonic())
        return random.uniform(5.0, 15.0)  # noqa: S311


class Service(Protocol):
    """Work that a worker repeats in a thread of its own."""

    def run_once(self) -> object: ...

    def pause(self) -> float:
        """Return the seconds until the next run."""


class ServiceThread(threading.Thread):
    """Runs a service until stopped, and pauses between runs as long as the service says.

    An error is logged and the thread goes on: the database may be away for a while. An SQLite file that cannot be used any more
    ends the thread and the worker.
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
        """`wake`: an event that makes the thread ask the service again how long to pause. `on_stop` is called in this thread after
        a stop, but not after a failure.
        """
        super().__init__(name=f"outboxq-{name}", daemon=True)
        self._service = service
        self._on_thread_failure = on_thread_failure
        self._on_stop = on_stop
        self._stopped = False
        self._wake = wake or threading.Event()

    def run_early(self) -> None:
        """Run the service before any thread does: a thread that runs while the worker is stopped may outlive its connections."""
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
                    failing.failed(f"{self.name} failed; going on", error)
            self._on_stop()
        except BaseException as error:
            self._on_thread_failure(error)
            raise

    def stop(self) -> None:
        """Let the thread finish what it does now, and end. The caller joins it."""
        self._stopped = True
        self._wake.set()
