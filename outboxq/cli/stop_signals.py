"""Stop signals to a command before and after the work that handles them by itself."""

from __future__ import annotations

import atexit
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from ..worker.signals import unignored_stop_signals

_EXIT_TIMEOUT = 5.0
"""Seconds after the work for which signals are ignored: the process needs them to end."""


def interrupt_main_thread() -> None:
    """Send the main thread a signal that it does not ignore, so that it stops, whatever it waits for."""
    for number in unignored_stop_signals()[:1]:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def stop_on_signals(is_over: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Handle stop signals before and after work that has signal handlers of its own.

    A signal before the work is a clean stop, for nothing was begun. A signal after it is ignored: a second request to stop must
    not change the exit code of a clean stop. One handler serves both, so that there is no moment without one. It stays in place,
    for a process takes a while to end.

    Yields a function that exits if a signal came and did not end the process: Python swallows an exception inside a weak
    reference's callback, and while modules are imported there are many of those.
    """
    numbers = unignored_stop_signals()
    ended, stop_requested = math.inf, False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal stop_requested
        if time.monotonic() > ended + _EXIT_TIMEOUT:  # the program that called the command goes on after it
            restore()
            signal.raise_signal(number)
        elif not is_over():
            stop_requested = True
            sys.exit(0)

    def exit_if_stopped() -> None:
        if stop_requested:
            sys.exit(0)

    def restore() -> None:
        for number, before in previous.items():
            signal.signal(number, before)

    previous = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield exit_if_stopped
    finally:
        if is_over():
            ended = time.monotonic()
            atexit.register(_ignore, numbers)  # Python makes every other handler deadly again while it ends
        else:
            restore()


def _ignore(numbers: Sequence[int]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
