"""Tests wait for conditions, never for time.

How fast the machine is, no test may depend on: it may have ten other things to do. What these bounds tell apart is what comes
by itself from what would come by a fallback or never.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds that a test waits for what must come."""

PROMPTLY = 10.0
"""Seconds that a machine without a core to spare may take for what comes at once; the fallbacks of the tests that ask take a minute."""


SHORTEST, LONGEST = 0.005, 0.04
"""Seconds between two questions: the more often the answer was no, the longer. Most questions are statements, which every 10 ms take
a fifth of a processor's time from what is waited for.
"""


def until(condition: Callable[[], T], *, seconds: float = PATIENCE, every: float | None = None) -> T:
    """What `condition` returns once that is true; AssertionError if it never becomes so."""
    deadline, pause = time.monotonic() + seconds, SHORTEST
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(pause if every is None else every)
        pause = min(pause * 1.2, LONGEST)
    return found
