"""Prepare the standard streams of a process that is starting, and handle the stop signals that arrive while a worker's
process is still importing modules.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

_NAMES: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGBREAK")


def open_closed_streams() -> None:
    """Open /dev/null in place of each closed standard stream (`2>&-`).

    Otherwise, the next socket that is opened would get the stream's number, and printed text would go to the database.
    A stream's number is left alone if something already uses it, for example because a framework loaded the application
    earlier.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        file: int | str = number
        try:
            os.fstat(number)
            if getattr(sys, name) is None:  # closed when Python started, but since opened by something else
                file = os.devnull
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)  # inheritable, like a standard stream
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(file, mode, encoding="utf-8", closefd=file is os.devnull))  # noqa: SIM115


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
