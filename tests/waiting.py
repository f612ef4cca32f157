"""Functions and bounds for waiting: tests wait for conditions, never for a fixed time.

Tests must not depend on the speed of the machine, which may be busy. These bounds only distinguish an immediate result from one that
comes through a fallback or never.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""The number of seconds that a test waits for a condition that must become true."""

PROMPTLY = 10.0
"""The number of seconds that an immediate result may take on a busy machine. The fallbacks in the tests that use this take a minute."""


SHORTEST, LONGEST = 0.005, 0.04
"""The shortest and longest pause, in seconds, between two checks of a condition. The pause grows with each check.

Most conditions run a SQL statement. Every 10 ms, these statements would take a fifth of a CPU from the code under test.
"""


def until(condition: Callable[[], T], *, seconds: float = PATIENCE, every: float | None = None) -> T:
    """Wait until `condition` returns a true value, and return that value. Raise AssertionError after `seconds`."""
    deadline, pause = time.monotonic() + seconds, SHORTEST
    while not (found := condition()):
        assert time.monotonic() < deadline, f"the condition is still false after {seconds} s"
        time.sleep(pause if every is None else every)
        pause = min(pause * 1.2, LONGEST)
    return found
