"""The number of wrong tokens that are borne in a minute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

EACH: Final = 5
"""Wrong tokens of one address, or of one IPv6 network, in a minute."""
ALL: Final = 50
"""Wrong tokens of all addresses in a minute. It also bounds the memory."""
PERIOD: Final = 60.0


class LoginTries:
    """Counts the tries of the last minute in this process. A try counts from its beginning, so that parallel ones do not slip through."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tries: deque[tuple[float, str]] = deque()

    def begin(self, address: str) -> float | None:
        """Count a try of this address. Return the seconds after which it may be repeated if there were too many; None: it may go on."""
        with self._lock:
            now = self._clock()
            while self._tries and self._tries[0][0] <= now - PERIOD:
                self._tries.popleft()
            own = [at for at, one in self._tries if one == address]
            if len(own) >= EACH:
                return own[0] + PERIOD - now
            if len(self._tries) >= ALL:
                return self._tries[0][0] + PERIOD - now
            self._tries.append((now, address))
            return None

    def succeed(self, address: str) -> None:
        """Take back the tries of an address that has the right token."""
        with self._lock:
            self._tries = deque((at, one) for at, one in self._tries if one != address)
