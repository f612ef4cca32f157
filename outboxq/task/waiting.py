"""Waiting for the ends of tasks: one thread of the process looks for all callers that wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress

from ..store import ResultReader, Store
from .looks import Look
from .wait import Wait

FIRST_PAUSE, GROWTH, LONGEST_PAUSE = 0.005, 1.02, 0.25
"""Seconds between two looks: at first, how much longer each next one is, and at most.

So an end is seen 5 ms later, or a fiftieth of the time waited, whichever is more, and at most 250 ms.
"""
SHARE, BURST = 0.035, 0.1
"""The share of a core that looks may take, and the seconds of processor time that they may take beyond it in a row:
`python -m benchmarks.awaited`.
"""
EXPLAINED_WITHIN, EXPLAINED_AT_ONCE = 0.04, 4
"""Seconds that the reason for a timeout may take to be found, and the number of reasons that are looked for at once."""
IDLE = 5.0
"""Seconds without a caller that waits after which the thread ends."""


class Pace:
    """The pauses between looks: they grow while no task ends, and keep the looks to a share of a core."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step = FIRST_PAUSE
        self._credit, self._credited_at = BURST, clock()

    def quicken(self) -> None:
        """Begin again with the shortest pause: there is another caller, or a task has ended."""
        self._step = FIRST_PAUSE

    def slow_down(self) -> None:
        """Make the next pauses longer, after a look that found no end."""
        self._step = min(self._step * GROWTH, LONGEST_PAUSE)

    def spend(self, seconds: float) -> None:
        """Account for the processor time of a look."""
        now = self._clock()
        self._credit = min(BURST, self._credit + SHARE * (now - self._credited_at)) - seconds
        self._credited_at = now

    @property
    def pause(self) -> float:
        """The seconds from the end of a look to the next one."""
        return max(self._step, self.rest)

    @property
    def rest(self) -> float:
        """The seconds after which the looks so far are within their share of a core."""
        return max(0.0, -self._credit / SHARE)


class ResultWaiter:
    """Waits for the ends of tasks in one database. Its thread starts with the first caller, and ends when there is none."""

    def __init__(self, store: Store, *, idle: float = IDLE) -> None:
        self.store = store
        self.looks = 0
        """The number of looks so far, for tests and figures."""
        self._idle = idle
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._waits: dict[Wait, None] = {}
        self._new: list[Wait] = []
        self._thread: threading.Thread | None = None
        self._never = threading.Event()
        self._explaining = threading.BoundedSemaphore(EXPLAINED_AT_ONCE)

    @property
    def is_active(self) -> bool:
        """Return whether the thread is there."""
        return self._thread is not None

    def wait(self, wait: Wait, seconds: float | None) -> None:
        """Return when the wait is done, or after so many seconds; None: without end."""
        try:
            with self._lock:
                self._waits[wait] = None
                self._new.append(wait)
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="outboxq-results", daemon=True)
                    thread.start()
                    self._thread = thread
            self._arrived.set()
            wait.done.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        finally:
            with self._lock:
                self._waits.pop(wait, None)

    def explained(self, find: Callable[[], str]) -> str | None:
        """Return the reason that this finds; None if it is not found soon: the caller's time is over."""
        if not self._explaining.acquire(blocking=False):  # many time out at once
            return None
        found: list[str] = []

        def explain() -> None:
            try:
                with suppress(Exception):  # the role may not read what it takes, or the task is pruned
                    found.append(find())
            finally:
                self._explaining.release()

        thread = threading.Thread(target=explain, name="outboxq-explain", daemon=True)
        thread.start()
        thread.join(EXPLAINED_WITHIN)
        return found[0] if found else None

    def _run(self) -> None:
        try:
            with closing(ResultReader(self.store)) as reader:
                self._look_again_and_again(reader)
        except BaseException as error:  # noqa: BLE001 - each caller that waits is to have it
            with self._lock:
                self._thread = None
                waits, self._waits, self._new = self._waits, {}, []
            for wait in waits:
                wait.fail(error)

    def _look_again_and_again(self, reader: ResultReader) -> None:
        pace, looked = Pace(), time.monotonic()
        look = Look(reader, may_pass=self.store.may_pass, has_changed=reader.has_changed)
        while self._stays():
            began = time.thread_time()
            if new := self._take_new():
                pace.quicken()
                look.at(new, everything=True)
            if time.monotonic() >= looked + pace.pause:
                if look.again(self._others(new)):
                    pace.quicken()
                else:
                    pace.slow_down()
                looked = time.monotonic()
            self.looks = look.count
            pace.spend(time.thread_time() - began)
            self._never.wait(pace.rest)  # whatever arrives
            self._arrived.wait(max(0.0, looked + pace.pause - time.monotonic()))

    def _stays(self) -> bool:
        """Return whether some caller waits, after a while in which one may come. Otherwise the thread is over."""
        if self._waits:
            return True
        self._arrived.clear()
        with self._lock:
            if self._waits:
                return True
        self._arrived.wait(self._idle)
        with self._lock:
            if not self._waits:
                self._thread = None
            return bool(self._waits)

    def _take_new(self) -> list[Wait]:
        self._arrived.clear()
        with self._lock:
            new, self._new = self._new, []
            for wait in new:
                wait.is_new = False
            return [wait for wait in new if wait in self._waits]

    def _others(self, seen: Collection[Wait]) -> list[Wait]:
        """Return the callers but those whose tasks were `seen` just now, and those that have come since."""
        with self._lock:
            return [wait for wait in self._waits if not wait.is_new and wait not in seen]


class WaiterOfProcess:
    """The ResultWaiter of this process for a store. A forked child gets its own: threads do not survive a fork."""

    def __init__(self) -> None:
        self._waiters: dict[tuple[int, int], ResultWaiter] = {}
        """Waiters by process and store. Those of the processes before it are kept: to close their connections is not for us."""

    def of(self, store: Store) -> ResultWaiter:
        """Return the waiter for this store, the same in each thread."""
        process, key = os.getpid(), (os.getpid(), id(store))
        if (found := self._waiters.get(key)) is None:
            # Threads that come here at once all get the first one.
            found = self._waiters.setdefault(key, ResultWaiter(store))
            for other in [one for one in self._waiters if one[0] == process and one != key]:
                self._waiters.pop(other, None)  # of a database that the outbox was bound to before
        return found
