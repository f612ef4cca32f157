"""A distributor that watches the version of the SQLite file, because SQLite cannot send notifications. Each commit on
another connection changes the version.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Engine

from ...database.engine import detached
from ...database.engine_events import listen
from ...store.claims.due import Look
from .base import POLL, DistributorSettings, Health, Wakeup

_WATCH = ((1.0, 0.002), (10.0, 0.006), (60.0, 0.010), (float("inf"), 0.020))
"""Pairs (A, B): while the worker has been idle for less than A seconds, check every B seconds. A check takes 4 µs, but
waking up for it, with cold processor caches, takes 100 µs or more, so checks 6 ms apart cost 2 % of a core.
"""
_HINT_SECONDS = 0.02
"""For this many seconds after a commit in this process begins, the distributor checks almost without a pause."""
_SHORTEST_PAUSE = 0.0005
_REST_FACTOR, _LONGEST_REST = 300, 5.0
"""Seconds to pause per second of processor time that an unsuccessful claim took, and the longest pause.

Behind 5,000 blocked keys, an idle worker uses 2.6 % of a core, including 2.0 % for watching the file. With a factor of
100 and a longest pause of 2 seconds, the worker used 3.9 %.
"""

_CommitListeners: TypeAlias = dict[object, Callable[[], None]]
"""Callbacks, keyed by their owners. Any thread and any signal handler may add or remove an entry; each change is
atomic.
"""


@dataclass(eq=False, repr=False)
class SqliteDistributor(DistributorSettings):
    """A distributor for SQLite, which reads the file's version on a separate connection, in the waiting thread. Commits
    by this process's engine are noticed immediately.
    """

    def __post_init__(self) -> None:
        self._poll = (self.poll or POLL).total_seconds()
        self._commit_listeners: _CommitListeners = {}
        self._wakeup = Wakeup()
        self._woken = False
        self._lock = threading.Lock()
        self._connection: Any = None
        self._closed = False
        self._version: int | None = None
        self._changed_at = self._hinted_at = float("-inf")
        self._work_was_due = False
        """True if work seemed to be due when `wait_for_work` last returned, and no claim has found a task since."""
        self._cpu_at_return = 0.0
        """The processor time of the waiting thread, in seconds, when `wait_for_work` last returned."""

    @property
    def health(self) -> Health:
        return Health(listening=self._connection is not None, connections=int(self._connection is not None))

    @property
    def means(self) -> str:
        seconds = f"every {self._poll:g} s"
        return f"watches the file for new tasks, and polls {seconds}" if self.notifications else f"polls {seconds}"

    def start(self) -> None:
        with self._lock:
            if self._closed or self._connection is not None or not self.notifications:
                return
            self._connection = detached(self.store.bound_engine)
            self._commit_listeners = _listeners_of(self.commits_of or self.store.bound_engine)
            self._commit_listeners[self] = self._hint

    def wait_for_work(self, timeout: float | None = None) -> None:
        try:
            if not self._was_woken():
                self._wait(time.monotonic(), math.inf if timeout is None else timeout)
        finally:
            self._cpu_at_return = time.thread_time()

    def at_work(self, *, full: bool = False, saturated: bool = False) -> None:  # noqa: ARG002 - there are no notifications to withdraw
        self._work_was_due = False

    def _wait(self, began: float, longest: float) -> None:
        ahead = self.store.look_ahead(self.queues, topics=self.topics)
        was_due, self._work_was_due = self._work_was_due, ahead.due
        if ahead.due:
            if was_due:
                rest = min((time.thread_time() - self._cpu_at_return) * _REST_FACTOR, _LONGEST_REST)
                self._rest(time.monotonic() + min(rest, longest), _next_due(ahead))
            return
        self._watch(min(began + min(self._poll, longest), _next_due(ahead)))

    def _watch(self, end: float) -> None:
        """Wait until the file changes, the time `end` is reached, or another thread wakes this one."""
        while (left := end - time.monotonic()) > 0 and not self._has_changed():
            if self._wakeup.wait(min(left, self._pause())) and self._was_woken():
                return

    def _rest(self, end: float, next_due: float) -> None:
        """Wait until another search past blocked keys is worth its cost, or a new task can be claimed.

        Blocked keys hide whether other tasks can be claimed, and a search past all of them takes a long time. Without
        pauses, these searches would use a whole core, and the claims that follow them would delay other writers. A
        search for new tasks takes only a short time.
        """
        while (now := time.monotonic()) < end:
            if self._connection is None or self._has_changed() or next_due <= now:
                recent = self.store.look_ahead(self.queues, topics=self.topics, recent=True)
                if recent.due:
                    return
                next_due = _next_due(recent)
            if self._wakeup.wait(min(end, next_due, now + self._pause()) - now) and self._was_woken():
                return

    def wake(self) -> None:
        self._woken = True
        self._wakeup.notify()

    def close(self) -> None:
        self._closed = True
        self._wakeup.close()
        self._disconnect()

    def _was_woken(self) -> bool:
        """Return whether the wait is over, because of `wake` or `close`."""
        woken, self._woken = self._woken, False
        return woken or self._closed

    def _disconnect(self) -> None:
        # A signal handler may have interrupted the thread that holds the lock. That thread then disconnects.
        if self._lock.acquire(timeout=0.1):
            try:
                self._commit_listeners.pop(self, None)
                connection, self._connection = self._connection, None
            finally:
                self._lock.release()
            if connection is not None:
                connection.close()

    def _has_changed(self) -> bool:
        with self._lock:
            if self._connection is None:
                return False
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if self._closed:
            self._disconnect()
        if version == self._version:
            return False
        # The version is stored before the caller claims, so a commit in the meantime changes it again.
        self._version, self._changed_at = version, time.monotonic()
        return True

    def _pause(self) -> float:
        if self._connection is None:
            return self._poll
        now = time.monotonic()
        if now - self._hinted_at < _HINT_SECONDS:
            return _SHORTEST_PAUSE
        return next(pause for quiet, pause in _WATCH if now - self._changed_at < quiet)

    def _hint(self) -> None:
        """Record that a transaction is about to commit. The transaction's tasks cannot be claimed yet."""
        self._hinted_at = time.monotonic()
        self._wakeup.notify()


class FileWatch(SqliteDistributor):
    """Waits for any change to the file, without looking for tasks."""

    def _wait(self, began: float, longest: float) -> None:
        self._watch(began + min(self._poll, longest))


def _next_due(ahead: Look) -> float:
    """Return the time at which the next task is due (`time.monotonic()`)."""
    return math.inf if ahead.seconds is None else time.monotonic() + ahead.seconds


def _listeners_of(engine: Engine) -> _CommitListeners:
    """Return the functions that are called when the engine is about to commit.

    Each engine has one SQLAlchemy listener, which is never removed. SQLAlchemy iterates over its listeners during each
    commit, so adding or removing a listener while another thread commits would break that commit.
    """
    with _lock:
        if (listeners := _listeners_by_engine.get(engine)) is None:
            listeners = _listeners_by_engine[engine] = {}
            listen(engine, "commit", lambda _connection: [call() for call in list(listeners.values())])
        return listeners


_listeners_by_engine: WeakKeyDictionary[Engine, _CommitListeners] = WeakKeyDictionary()
_lock = threading.Lock()
