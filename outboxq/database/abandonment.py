"""Roll back a transaction from another thread if its handler does not end it."""

from __future__ import annotations

import threading
from typing import Any

from .dialects import Dialect


class Abandonment:
    """Rolls back the transaction of one handler from another thread, at most once, and never after it has ended."""

    def __init__(self, dialect: Dialect, raw: Any) -> None:
        """`raw`: the driver's connection."""
        self._dialect, self._raw = dialect, raw
        self._lock = threading.Lock()
        self._is_over = self._was_abandoned = False

    def abandon(self) -> None:
        """Roll back the transaction if it prevents all others from writing. After that, the connection refuses the
        handler's writes.
        """
        with self._lock:
            if not self._is_over and self._dialect.one_writer:
                self._was_abandoned = True
                self._dialect.abandon(self._raw)

    def end(self) -> bool:
        """Prevent rollbacks from now on. Returns whether the transaction was rolled back, in which case the connection
        must not be used again.
        """
        with self._lock:
            self._is_over = True
        return self._was_abandoned
