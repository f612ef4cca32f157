"""What a worker does besides claiming and running: it registers itself, and runs its services in threads."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any
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
        *,
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


def partitions_pause() -> float:
    """Seconds until partitions are made ahead again, where the history has them: there are three, so there is time."""
    return 3600 * random.uniform(0.5, 1.0)  # noqa: S311


class ServiceThread(threading.Thread):
    """Runs `once()` again and again, waiting in between as long as `pause()` says, until stopped.

    An error is logged and the loop goes on: the database may be away for a while. A file that cannot be used any more ends it,
    and the worker. `wake()` has it ask `pause()` anew.
    """

    def __init__(
        self,
        name: str,
        once: Callable[[], object],
        pause: Callable[[], float],
        on_thread_failure: Callable[[BaseException], None],
        on_stop: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_stop` is called in this thread after a stop, not after a death."""
        super().__init__(name=f"outboxq-{name}", daemon=True)
        self._once = once
        self._pause = pause
        self._on_thread_failure = on_thread_failure
        self._on_stop = on_stop
        self._stopped = False
        self._wake = threading.Event()

    def run(self) -> None:
        failing = FailureLog(log)
        try:
            while not self._stopped:
                if self._wake.wait(self._pause()):
                    self._wake.clear()
                    continue
                try:
                    self._once()
                    failing.worked(f"{self.name} works again")
                except FileUnusable as error:
                    return self._on_thread_failure(error)
                except Exception as error:  # noqa: BLE001
                    failing.failed(f"{self.name} failed; going on", error)
            self._on_stop()
        except BaseException as error:
            self._on_thread_failure(error)
            raise

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """To be joined."""
        self._stopped = True
        self.wake()
