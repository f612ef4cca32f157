"""How a process is told to stop: politely by the first signal, at once by the next."""

from __future__ import annotations

import _thread
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ECHO = 0.1
"""Signals so close are one: a supervisor passes on what its service manager sends to every process of the group."""
_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def obeyed(*, stop: Callable[[], None], abandon: Callable[[], None]) -> Iterator[None]:
    """Inside the block, SIGTERM, SIGINT and SIGHUP call `stop`; a second one, and SIGQUIT, also `abandon` in a thread.

    `stop` must take no lock: it may interrupt whoever has it. What was ignored stays ignored. In the main thread only.
    """
    pid, signals = os.getpid(), list[float]()

    def hear(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != pid:  # a child that a handler forked: the claims are the parent's, and so is the order
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        signals.append(time.monotonic())
        stop()
        if signals[-1] - signals[0] > _ECHO or number == signal.SIGQUIT:
            _thread.start_new_thread(abandon, ())  # threading.Thread would take locks

    previous = {
        number: signal.signal(number, hear) for number in _WATCHED if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
