"""Handler threads, and the claims that lie before them."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
log = logging.getLogger("outboxq.worker")

_AHEAD = 0.05
"""Seconds of work that may wait before busy handlers: enough for the next claim to arrive, little enough to give back."""
_MOST_AHEAD = 1000
_MEMORY = 0.2
"""Seconds of the whole crew's work that tell its pace: a single job that the machine held up must not, for the claims that follow
would be small just when there is much to do."""


class Crew(Generic[T]):
    """A fixed number of threads, each handling one job after another."""

    def __init__(
        self,
        size: int,
        handle: Callable[[T], object],
        *,
        prefetch: int | None,
        died: Callable[[BaseException], None],
        left: Callable[[], object] = lambda: None,
    ) -> None:
        """`prefetch`: how many jobs may lie before busy threads; None: as many as they do in 50 ms, by their recent pace.

        `left` is called in each thread when it ends.
        """
        self.size = size
        self.handled = 0
        self._handle = handle
        self._prefetch = prefetch
        self._died = died
        self._left = left
        self._jobs: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._in_flight = 0
        self._dismissed = False
        self._awaited = -1
        """Somebody waits until no more than so many jobs are in flight."""
        self._done = self._spent = 0.0
        """Jobs and the seconds they took, of late."""
        self._threads = [
            threading.Thread(target=self._work, name=f"outboxq-handler-{number}", daemon=True) for number in range(size)
        ]

    @property
    def in_flight(self) -> int:
        """Jobs given and not done: those that run and those that lie before."""
        return self._in_flight

    @property
    def adapts(self) -> bool:
        """How many lie ahead follows the handlers' pace; else it was said."""
        return self._prefetch is None

    @property
    def lying(self) -> int:
        """Jobs that no thread has begun."""
        return 0 if self._dismissed else self._jobs.qsize()

    @property
    def ahead(self) -> int:
        """How many jobs may lie before busy threads now."""
        if self._prefetch is not None:
            return self._prefetch
        if not self._done:  # nothing is known of their pace yet
            return 0
        return min(_MOST_AHEAD, int(self.size * _AHEAD / max(self._spent / self._done, 1e-6)))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def give(self, job: T) -> None:
        with self._changed:
            self._in_flight += 1
        self._jobs.put(job)

    def take_back(self) -> list[T]:
        """The jobs that no thread has begun."""
        jobs: list[T] = []
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                jobs.append(job)
        self._account(-len(jobs))
        return jobs

    def wait_until_at_most(self, jobs: int, timeout: float | None = None) -> bool:
        """Whether no more than so many are in flight; waits for it, until `wake()` or for `timeout` seconds."""
        with self._changed:
            if self._in_flight > jobs:
                self._awaited = jobs
                self._changed.wait(timeout)
                self._awaited = -1
            return self._in_flight <= jobs

    def slow_down(self, seconds: float) -> None:
        """Jobs turned out to take that long at least, although none has ended that says so: nothing is to lie ahead."""
        with self._changed:
            known = self._spent / self._done if self._done else 0
            self._done, self._spent = 1, max(seconds, 2 * self.size * _AHEAD, known)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def dismiss(self, deadline: float) -> None:
        """No more jobs: threads end with what they have begun. Waits for them until `deadline` (`time.monotonic()`)."""
        self._dismissed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():  # a handler may stop its worker
                thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                began = time.monotonic()
                try:
                    self._handle(job)
                except Exception:
                    log.exception("a claim could not be handled; its lease runs out and it is recovered")
                self._account(-1, time.monotonic() - began)
        except BaseException as error:
            self._died(error)
            raise
        finally:
            self._left()

    def _account(self, jobs: int, seconds: float | None = None) -> None:
        with self._changed:
            self._in_flight += jobs
            if seconds is not None:
                self.handled += 1
                kept = math.exp(-seconds / (self.size * _MEMORY))
                self._done = self._done * kept + 1
                self._spent = self._spent * kept + seconds
            if self._in_flight <= self._awaited:
                self._changed.notify_all()
