"""What a distributor is, and the bell that all of them wait for."""

from __future__ import annotations

import queue
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """How a distributor hears of work, for people and monitors."""

    listening: bool
    """Work is noticed at once. False: it is found by polling only."""
    connections: int = 0
    """How often the listening connection was made."""
    error: str | None = None
    """Why it is not listening."""


class WorkDistributor(Protocol):
    """Waits until work might be there. The caller always claims after it returns, whatever the reason."""

    @property
    def health(self) -> Health: ...

    @property
    def means(self) -> str:
        """The way it is meant to notice work, in words, as the predicate of a sentence about the worker."""

    def start(self) -> None:
        """Begin to notice work. `wait_for_work` before that only waits."""

    def wait_for_work(self, timeout: float | None = None) -> None:
        """Return when there might be work, after `timeout` seconds, after the fallback poll, or when closed.

        To be called by one thread, after a claim that came back with less than it asked for: after a full one there may be
        more, and nothing is to be waited for. What happens between that claim and this call is not missed.
        """

    def at_work(self, *, saturated: bool = False) -> None:
        """Told after a claim that found something, and when no handler is free: who is busy need not be notified."""

    def wake(self) -> None:
        """Have `wait_for_work` return. Wakes while nobody waits are one wake, and it is not lost."""

    def close(self) -> None:
        """Wake whoever waits and give up all connections; from then on `wait_for_work` returns at once.

        Idempotent, at any time, from any thread or signal handler.
        """


class Wakeup:
    """Rung by anybody, heard by one thread. Many rings before it listens are one."""

    def __init__(self) -> None:
        # Not an Event: its lock is not reentrant, so a signal handler could wait for the very thread that it interrupted.
        self._notifications: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closed = False

    def notify(self) -> None:
        if self._notifications.empty():
            self._notifications.put(None)

    def close(self) -> None:
        self._closed = True
        self.notify()

    def wait(self, seconds: float) -> bool:
        """Whether it rang. Forgets the rings so far, so call it before looking at what they were about."""
        if self._closed:
            return True
        with suppress(queue.Empty):
            self._notifications.get(timeout=max(0.0, seconds))
            with suppress(queue.Empty):
                while True:
                    self._notifications.get_nowait()
            return True
        return self._closed
