"""The distributor interface, and the wake-up that all distributors wait for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from sqlalchemy import Engine

from ...store import Floors, Store

POLL = timedelta(milliseconds=500)
"""The longest wait without notifications, unless `poll` says otherwise."""
POLL_BESIDE_NOTIFICATIONS = timedelta(seconds=30)
"""The longest wait with notifications, unless `poll` says otherwise. The wait is limited in case a notification is
lost.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """A description of how a distributor notices work, for people and monitors."""

    listening: bool
    """True if work is noticed immediately; False if it is found only by polling."""
    connections: int = 0
    """The number of listening connections so far."""
    error: str | None = None
    """The reason why the distributor is not listening."""


class WorkDistributor(Protocol):
    """Waits until work may be available. The caller claims whenever the wait ends, whatever the reason."""

    @property
    def health(self) -> Health: ...

    @property
    def means(self) -> str:
        """The way in which the distributor is meant to notice work, as the predicate of a sentence about the worker."""

    def start(self) -> None:
        """Begin to notice work. Before that, `wait_for_work` only waits."""

    def wait_for_work(self, timeout: float | None = None) -> None:
        """Wait until work may be available, `timeout` seconds have passed, the fallback poll is due, or the distributor
        is closed.

        One thread calls this method, after a claim that returned fewer tasks than the thread asked for. (After a full
        claim there may be more work, so the caller claims again immediately.) Events between that claim and this call
        are not missed.
        """

    def at_work(self, *, full: bool = False, saturated: bool = False) -> None:
        """Record that the worker is busy: either a claim found tasks (as many as it asked for if `full` is True), or no
        thread is idle (`saturated`).

        The worker does not need to be notified. If notifications have called this worker for tasks that it cannot take,
        the worker calls other workers.
        """

    def wake(self) -> None:
        """Make `wait_for_work` return. Calls made while no thread is waiting are remembered, and count as one."""

    def close(self) -> None:
        """Wake the waiting thread, and close all connections. From then on, `wait_for_work` returns immediately.

        May be called at any time and repeatedly, from any thread or signal handler.
        """


@dataclass(eq=False, repr=False)
class DistributorSettings:
    """A distributor's settings. `create_work_distributor` describes the settings."""

    store: Store
    _: KW_ONLY
    queues: Sequence[str] | None
    topics: Sequence[str] | None = None
    worker_id: UUID
    poll: timedelta | None = None
    notifications: bool = True
    listen_url: str | None = None
    commits_of: Engine | None = None
    on_break: Callable[[], object] = lambda: None
    floors: Floors | None = None


class Wakeup:
    """An event that any thread sets and one thread waits for. Several notifications before a wait count as one. A
    signal handler may also set the event.
    """

    def __init__(self) -> None:
        # The lock is free if a wait must end. A threading.Event has a lock that a signal handler could wait for forever.
        # Before Python 3.13, SimpleQueue.get(timeout) waits forever if a signal handler runs longer than the rest of
        # the timeout.
        self._lock = threading.Lock()
        self._lock.acquire()
        self._notifications: deque[None] = deque()
        self._closed = False

    def notify(self) -> None:
        if not self._notifications:
            self._notifications.append(None)
        self.nudge()

    def nudge(self) -> None:
        """End a wait early, without a notification, so that the waiting thread asks again how long it may wait."""
        with suppress(RuntimeError):  # the lock is already free
            self._lock.release()

    def close(self) -> None:
        self._closed = True
        self.notify()

    def wait(self, seconds: float) -> bool:
        """Wait for a notification, and return whether one arrived. The method forgets all notifications that have
        arrived so far, so call it before you look for changes.
        """
        if not self._closed:
            self._lock.acquire(timeout=max(0.0, seconds))
        notified = False
        while self._notifications:
            self._notifications.pop()
            notified = True
        return notified or self._closed
