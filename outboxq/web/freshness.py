"""Pages that have not changed are neither made nor sent again."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

SHARED: Final = 2.0
"""Seconds for which one look at the tables, and one rendered page, serve all who ask."""
AGES: Final = 30
"""Seconds after which a page is made again though the tables are the same: it shows ages."""
_MOST_KEPT: Final = 64

T = TypeVar("T")


class Freshness:
    """Keeps the mark of the tables and the rendered pages for a moment. May be used by several threads."""

    def __init__(self, read_mark: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        """`read_mark`: one look at the tables, which returns another text when something in them has changed."""
        self._read_mark, self._clock = read_mark, clock
        self._lock = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._changes = 0

    def forget(self) -> None:
        """Forget everything: something has just been changed."""
        with self._lock:
            self._changes += 1
            self._kept.clear()

    def mark(self) -> str:
        """Return the mark of the tables, as it was at most 2 s ago, and of the time, in steps of 30 s."""
        return f"{self.shared('mark', self._read_mark)} {int(time.time()) // AGES}"

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returns, or has returned for this key in the last 2 s. One thread makes it while the others wait."""
        with self._lock:
            changes, found = self._changes, self._find(key)
            if found is not None:
                return found[1]  # type: ignore[no-any-return]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                found = self._find(key)
            if found is not None and changes == self._changes:
                return found[1]  # type: ignore[no-any-return]
            try:
                made = make()
            finally:
                with self._lock:
                    self._making.pop(key, None)
            with self._lock:
                if changes == self._changes:  # else it may be what was there before the change
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
    """Return the ETag of a page that shows these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
