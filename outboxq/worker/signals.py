"""Signals. Most tell a process to stop: politely by the first one, at once by the next.

The rule. Each process counts only the signals that it receives itself, and never those that another process of outboxq has
counted. The first signal asks for a polite stop. A further one asks for a stop at once if it comes more than a tenth of a
second after the first; SIGQUIT always does. A supervisor that receives a signal sends its workers none: it writes what it has
counted, "stop" or "at once", into the lifeline of each (`cli/stop_requests.py`). A worker obeys that order, and does not count it.

So a worker need not distinguish a person's second signal from an echo of its supervisor, which may come at any later time:

* A service manager signals supervisor and workers together (systemd with KillMode=control-group). Each counts one signal, and
  the supervisor's "stop" asks for what its workers already do: one polite stop.
* A person presses Ctrl-C twice. Worker processes have sessions of their own, so the terminal signals only the supervisor. It
  counts two and writes "at once".
* A person signals the supervisor or one of the workers twice. That process counts two.
* The supervisor is killed by SIGKILL. The lifelines end, which means "stop".

A further signal, SIGUSR1, asks a process to print the stacks of its threads on stderr.
"""

from __future__ import annotations

import _thread
import faulthandler
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from ..model.forks import in_children

_ECHO = 0.1
"""Seconds within which several signals count as one: a wrapper forwards the Ctrl-C that its child has received, too."""
_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGBREAK")
STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""The signals that ask for a stop. Windows has the first two and the last (Ctrl-Break), which alone reaches a process group."""
STACKS_SIGNAL: Final[int | None] = getattr(signal, "SIGUSR1", None)
"""The signal that asks a process for the stacks of its threads. None: this system has no such signal."""


class SignalCounter:
    """Counts the signals that one process receives. It takes no lock, so that a signal handler may use it."""

    def __init__(self) -> None:
        self._first: float | None = None

    def is_urgent(self, number: int) -> bool:
        """Count one more signal. Returns whether it asks for a stop at once."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        return number == getattr(signal, "SIGQUIT", None) or now - self._first > _ECHO


def unignored_stop_signals() -> list[signal.Signals]:
    """Return those of `STOP_SIGNALS` that this process does not ignore. Under nohup it ignores SIGHUP."""
    return [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def handle_stop_signals(*, stop: Callable[[], None], abandon: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on each stop signal inside the block, and on an urgent one also `abandon`, in a thread of its own.

    `stop` must take no lock, for it may interrupt the thread that has it. Ignored signals stay ignored. In the main thread only.
    """
    heard = SignalCounter()

    def hear(number: int, _frame: FrameType | None) -> None:
        at_once = heard.is_urgent(number)
        stop()
        if at_once:
            _thread.start_new_thread(abandon, ())  # threading.Thread would take locks

    previous = {number: signal.signal(number, hear) for number in unignored_stop_signals()}
    _handlers.append(hear)
    try:
        yield
    finally:
        _handlers.remove(hear)
        for number, handler in previous.items():
            signal.signal(number, handler)


_handlers: list[Callable[[int, FrameType | None], None]] = []
"""The handlers of the blocks of `handle_stop_signals` that this process is in."""


def _die_of_stop_signals() -> None:
    """Set the stop signals back to the default in a forked child: the claims are its parent's, and so is the order to stop.

    No handler in Python can do so. It does not run while the child is in C code. On Python 3.13.0 it never runs in a child
    that another thread than the main one has forked, and the threads that run tasks are such.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) in _handlers:
            signal.signal(number, signal.SIG_DFL)


in_children(_die_of_stop_signals)


class StackPrinter:
    """The handler of `STACKS_SIGNAL`. Its class tells it from one of the application's, which is left in place."""

    def __init__(self, show: Callable[[], object]) -> None:
        self._show = show

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self._show()


def print_in_child() -> None:
    """Have this child process print its stacks on stderr at `STACKS_SIGNAL`, if its worker does.

    C code prints them, so they come also while a handler in C code keeps Python to itself. It has the system restart what the
    signal has interrupted, since the handler runs in the thread that gets it.
    """
    if STACKS_SIGNAL is not None and isinstance(signal.getsignal(STACKS_SIGNAL), StackPrinter):
        faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)


def survives(pid: int) -> bool:
    """Return whether a process has a handler for `STACKS_SIGNAL`, which would end it otherwise. Only Linux knows; else it is believed."""
    if STACKS_SIGNAL is None:
        return False
    if sys.platform != "linux":
        return True
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (STACKS_SIGNAL - 1) & 1)
