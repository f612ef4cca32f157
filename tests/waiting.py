"""Tests wait for conditions, never for time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], *, seconds: float = 20.0, every: float = 0.01) -> T:
    """What `condition` returns once that is true; AssertionError if it never becomes so."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(every)
    return found
