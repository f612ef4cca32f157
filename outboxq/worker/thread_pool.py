"""The handler threads, and the queue of claims that are waiting for them."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
log = logging.getLogger("outboxq.worker")

_PREFETCH_SECONDS = 0.05
"""Seconds of work that may wait for busy handlers: enough to last until the next claim returns, but little enough that
few claims have to be released.
"""
_MAX_PREFETCH = 1000
_LOOK_AGAIN = 0.2
"""Seconds within which a stopping worker notices that it no longer needs to wait for a thread."""
_PACE_WINDOW = 0.2
"""Seconds of the whole pool's work over which its pace is averaged. Over a shorter time, a single delayed job would
make the next claims smaller.
"""


@dataclass(eq=False, repr=False)
class HandlerPool(Generic[T]):
    """A fixed number of threads, each of which handles one job after another."""

    size: int
    handle: Callable[[T], object]
    prefetch: int | None
    """The maximum number of jobs that may wait for busy threads. None means as many as the threads handle in 50 ms at
    their recent pace.
    """
    on_thread_failure: Callable[[BaseException], None]
    """A function that is called with the error that ends a thread."""
    on_thread_exit: Callable[[], object] = lambda: None
    """A function that is called in each thread when it ends."""
    log_fields: Callable[[T], Mapping[str, Any]] = lambda _: {}
    """A function that returns the fields of a log record about a job."""

    def __post_init__(self) -> None:
        self.handled = 0
        self.in_flight = 0
        """The number of jobs that are running or waiting."""
        self._given_up: set[int] = set()
        """The idents of the threads whose jobs are not stopping."""
        self._jobs: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._is_shut_down = False
        self._awaited_limit = -1
        """A waiting thread continues when the number of jobs in flight has fallen to this number. -1 if no thread is
        waiting.
        """
        self._recent_jobs = self._recent_seconds = 0.0
        """The number of recent jobs and the seconds that they took, both decaying over time."""
        self._threads = [
            threading.Thread(target=self._work, name=f"outboxq-handler-{number}", daemon=True)
            for number in range(self.size)
        ]

    @property
    def queued(self) -> int:
        """The number of jobs that no thread has begun."""
        return 0 if self._is_shut_down else self._jobs.qsize()

    @property
    def busy(self) -> int:
        """The number of threads that are handling a job."""
        return max(0, min(self.size, self.in_flight - self.queued))

    @property
    def prefetch_limit(self) -> int:
        """The maximum number of jobs that may currently wait for busy threads."""
        if self.prefetch is not None:
            return self.prefetch
        if not self._recent_jobs:  # their pace is not known yet
            return 0
        seconds = max(self._recent_seconds / self._recent_jobs, 1e-6)
        return min(_MAX_PREFETCH, int(self.size * _PREFETCH_SECONDS / seconds))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, job: T) -> None:
        with self._changed:
            self.in_flight += 1
        self._jobs.put(job)

    def cancel_queued(self) -> list[T]:
        """Remove and return the jobs that no thread has begun."""
        jobs: list[T] = []
        with suppress(queue.Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    jobs.append(job)
        self._account(-len(jobs))
        return jobs

    def wait_until_at_most(self, jobs: int, timeout: float | None = None) -> bool:
        """Wait until at most this many jobs are in flight, until `wake()` is called, or for `timeout` seconds. Returns
        whether at most this many jobs are in flight.
        """
        with self._changed:
            if self.in_flight > jobs:
                self._awaited_limit = jobs
                self._changed.wait(timeout)
                self._awaited_limit = -1
            return self.in_flight <= jobs

    def reset_pace(self, seconds: float) -> None:
        """Assume that a job takes at least this long, even though no job has finished yet, so that jobs are not
        prefetched.
        """
        with self._changed:
            known = self._recent_seconds / self._recent_jobs if self._recent_jobs else 0
            self._recent_jobs, self._recent_seconds = 1, max(seconds, 2 * self.size * _PREFETCH_SECONDS, known)

    def give_up(self, thread: int) -> None:
        """Count this thread's job as ended, and never wait for the thread again, because its job is not stopping."""
        self._given_up.add(thread)
        self._account(-1)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def shutdown(self, deadline: float) -> None:
        """Take no more jobs, and wait until `deadline` (`time.monotonic()`) for the threads to finish their jobs."""
        self._is_shut_down = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is None or thread is threading.current_thread():  # a handler may stop its worker
                continue
            while thread.is_alive() and thread.ident not in self._given_up:
                if (left := deadline - time.monotonic()) <= 0:
                    break
                thread.join(min(left, _LOOK_AGAIN))

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                began = time.monotonic()
                try:
                    self.handle(job)
                except Exception:
                    text = "a claim could not be handled; its task is recovered once its lease has expired"
                    log.exception(text, extra=self.log_fields(job))
                if self._given_up and threading.get_ident() in self._given_up:
                    return
                self._account(-1, time.monotonic() - began)
        except BaseException as error:
            self.on_thread_failure(error)
            raise
        finally:
            self.on_thread_exit()

    def _account(self, jobs: int, seconds: float | None = None) -> None:
        with self._changed:
            self.in_flight += jobs
            if seconds is not None:
                self.handled += 1
                kept = math.exp(-seconds / (self.size * _PACE_WINDOW))
                self._recent_jobs = self._recent_jobs * kept + 1
                self._recent_seconds = self._recent_seconds * kept + seconds
            if self.in_flight <= self._awaited_limit:
                self._changed.notify_all()
