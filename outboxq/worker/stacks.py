"""The stacks of a child process, printed on stderr at SIGUSR1 as those of its worker are."""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

SIGNAL: Final[int | None] = getattr(signal, "SIGUSR1", None)
"""The signal that asks for stacks. None: this system has no such signal."""


class StackPrinter:
    """The handler of that signal. Its class tells it from one of the application's, which is left in place."""

    def __init__(self, show: Callable[[], object]) -> None:
        self._show = show

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self._show()


def print_in_child() -> None:
    """Have this child process print its stacks at the signal, if its worker does.

    C code prints them, so they come also while a handler in C code keeps Python to itself. It has the system restart what the
    signal has interrupted, since the handler runs in the thread that gets it.
    """
    if SIGNAL is not None and isinstance(signal.getsignal(SIGNAL), StackPrinter):
        faulthandler.register(SIGNAL, file=2, all_threads=True)


def survives(pid: int) -> bool:
    """Return whether a process has a handler for the signal, which would end it otherwise. Only Linux knows; else it is believed."""
    if SIGNAL is None:
        return False
    if sys.platform != "linux":
        return True
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (SIGNAL - 1) & 1)
