"""Handle the stop signals that arrive while a worker's process is still importing modules."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

_NAMES: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGBREAK")


def starts_worker(words: Sequence[str]) -> bool:
    """Return whether these words, which follow `outboxq` on the command line, start a worker."""
    return list(words[:1]) == ["worker"]


def leave_on_signals() -> None:
    """Make each stop signal end the process with code 0, until the worker sets its own handlers.

    No task has been claimed yet, so the stop is clean. Signals that the process ignores or handles are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _leave)


def without_leaving(number: int, handler: Any) -> Any:
    """Return the handler to restore for a signal after the worker has ended: Python's own, if `leave_on_signals`
    replaced it.
    """
    if handler is not _leave:
        return handler
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL


def _leave(_number: int, _frame: FrameType | None) -> None:
    # Python would swallow SystemExit in a weak reference's callback, and an import runs many of them.
    os._exit(0)
