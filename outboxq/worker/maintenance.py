"""What a worker does besides claiming and running: it registers itself, and runs its services in threads."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Protocol
from uuid import UUID

from ..errors import FileUnusable
from ..store import Store
from ..store.failure_log import FailureLog

log = logging.getLogger("outboxq.worker")

REGISTER_EVERY = 30.0


class WorkerRegistration:
    """Says which workers there are, and what they take: for people, `explain` and statistics. Nothing relies on it.

    One that could not say so counts as gone after 90 s without a sign.
    """

    def __init__(
        self,
        store: Store,
        worker_id: UUID,
        unknown_tasks: Callable[[], Collection[tuple[str, str]]],
        **description: Any,
    ) -> None:
        """`unknown_tasks`: queue and name of the tasks that the worker met lately and does not know. `description` is what else
        `Store.register` takes.
        """
        self._store = store
        self._worker_id = worker_id
        self._unknown_tasks = unknown_tasks
        self._description = description
        self._written_unknown: Collection[tuple[str, str]] = ()
        self._due = 0.0
        self._ended = False
        self._lock = threading.Lock()
        """Another thread may be about to say that the worker is there while this one says that it is gone."""

    def begin(self) -> None:
        """Before any thread does: what runs while a worker is stopped may outlive its connections."""
        with suppress(Exception):  # the loop tries again
            self.run_once()

    def run_once(self) -> None:
        """Say that the worker is there, unless it has ended. May be called by any thread."""
        with self._lock:
            if self._ended:
                return
            self._due = time.monotonic() + REGISTER_EVERY * random.uniform(0.8, 1.0)  # noqa: S311
            self._written_unknown = unknown = self._unknown_tasks()
            if not self._store.seen(self._worker_id, unknown_tasks=unknown):
                self._store.unregister(self._worker_id)  # and those that have not been seen for a day
                self._store.register(self._worker_id, unknown_tasks=unknown, **self._description)

    def end(self) -> None:
        """Say that the worker is gone, if the database takes it.

        What it met and does not know stays for a while: a worker that knows those tasks finds them by it.
        """
        with self._lock:
            self._ended = True
            with suppress(Exception):
                self._store.unregister(self._worker_id, met_unknown=bool(self._unknown_tasks()))

    def pause(self) -> float:
        """Seconds until it is to be said again: at once when it met a name that it has not told of."""
        if set(self._unknown_tasks()) - set(self._written_unknown):
            return 0.0
        return max(0.0, self._due - time.monotonic())


class PartitionMaker:
    """Makes the partitions of the history ahead, where it has them. Three are always ahead, so it need not be punctual."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def run_once(self) -> None:
        self._store.make_partitions()

    def pause(self) -> float:
        """Return the seconds until partitions are made again: half an hour to an hour."""
        return 3600 * random.uniform(0.5, 1.0)  # noqa: S311


class Service(Protocol):
    """Work of a worker that is done again and again in a thread of its own."""

    def run_once(self) -> object: ...

    def pause(self) -> float:
        """Return the seconds until it is to be done again."""


class ServiceThread(threading.Thread):
    """Runs a service again and again until stopped, and waits in between as long as it says.

    An error is logged and the thread goes on: the database may be away for a while. A file that cannot be used any more ends it,
    and the worker.
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
        """`wake` is set by whoever wants the service asked anew how long to wait. `on_stop` is called in this thread after a
        stop, not after a death.
        """
        super().__init__(name=f"outboxq-{name}", daemon=True)
        self._service = service
        self._on_thread_failure = on_thread_failure
        self._on_stop = on_stop
        self._stopped = False
        self._wake = wake or threading.Event()

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
        """Have the thread end after what it does now; to be joined."""
        self._stopped = True
        self._wake.set()
