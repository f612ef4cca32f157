"""A short-lived cache of pages, so that an unchanged page is neither rendered nor sent again."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

SHARED: Final = 2.0
"""The time in seconds for which a mark or a rendered page is reused."""
AGES: Final = 60
"""The time in seconds after which a page is rendered again even if the tables have not changed, because a task may have
become due in the meantime. The browser itself updates the ages on a page.
"""
LONGEST_WAIT: Final = 5.0
"""The time in seconds for which a thread waits for a value that another thread is making."""
_MOST_KEPT: Final = 64

T = TypeVar("T")


class TooSlow(TimeoutError):
    """Another thread has been making the same value for longer than `LONGEST_WAIT`, so the database is stuck or
    overloaded.
    """


class _Making:
    """A value that one thread is making while others wait for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting = 0
        self.error: Exception | None = None
        """The error with which the thread failed. The waiting threads raise this error too; otherwise, each of them
        would try again and fail.
        """


class Freshness:
    """Keeps the rendered pages, and the mark of the tables, for two seconds. Several threads can use one instance."""

    def __init__(
        self,
        read_mark: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        *,
        longest_wait: float = LONGEST_WAIT,
    ) -> None:
        """`read_mark` reads the tables and returns a different string after each change."""
        self._read_mark, self._clock, self._longest_wait = read_mark, clock, longest_wait
        self._lock = threading.Lock()
        self._making: dict[Hashable, _Making] = {}
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._changes = 0

    def forget(self) -> None:
        """Forget everything, because something has just changed."""
        with self._lock:
            self._changes += 1
            self._kept.clear()

    def mark(self) -> str:
        """Return a mark that combines the mark of the tables, at most 2 s old, with the time in steps of 60 s."""
        return f"{self.shared('mark', self._read_mark)} {int(time.time()) // AGES}"

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make`, or an earlier result for the same key that is less than 2 s old. One thread
        calls `make` while others wait.

        Raises whatever `make` raises, and TooSlow.
        """
        with self._lock:
            changes, found = self._changes, self._find(key)
            if found is not None:
                return found[1]  # type: ignore[no-any-return]
            making = self._making.get(key)
            if making is None:
                making = self._making[key] = _Making()
            else:
                making.waiting += 1
        if not making.lock.acquire(timeout=self._longest_wait):
            raise TooSlow(f"another request has been waiting for the same page for {self._longest_wait:g} s")
        try:
            if making.error is not None:
                raise making.error
            with self._lock:
                found = self._find(key)
            if found is not None and changes == self._changes:
                return found[1]  # type: ignore[no-any-return]
            return self._made(key, making, make, changes)
        finally:
            making.lock.release()

    def _made(self, key: Hashable, making: _Making, make: Callable[[], T], changes: int) -> T:
        try:
            made = make()
        except Exception as error:
            making.error = error
            raise
        finally:
            with self._lock:
                self._making.pop(key, None)
        with self._lock:
            if changes == self._changes:  # otherwise, the value may be older than the last change
                self._kept[key] = (self._clock() + SHARED, made)
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return made

    def _find(self, key: Hashable) -> tuple[float, Any] | None:
        kept = self._kept.get(key)
        if kept is None or self._clock() < kept[0]:
            return kept
        del self._kept[key]
        return None


def etag(*parts: object) -> str:
    """Return the ETag for a page with this content."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
