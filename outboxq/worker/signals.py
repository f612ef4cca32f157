"""Handle signals. The first stop signal asks a process to stop gracefully, and the next one to stop at once.

Each process counts only the signals that it receives itself, never the signals that another outboxq process has
counted. The first signal asks for a graceful stop. A later signal asks for a stop at once if it arrives more than a
tenth of a second after the first. SIGQUIT always asks for a stop at once. A supervisor does not forward signals: it
writes its order, "stop" or "at once", to each worker's lifeline (`cli/serving/stop_requests.py`). A worker obeys that
order, but does not count it as a signal.

So a worker need not distinguish a person's second signal from its supervisor's echo of the first, which may come at any
later time:

* A service manager signals the supervisor and its workers together (systemd with KillMode=control-group). Each of them
  counts one signal, and when the supervisor writes "stop", its workers are already stopping gracefully.
* A person presses Ctrl-C twice. Worker processes have their own sessions, so the terminal signals only the supervisor.
  The supervisor counts two signals and writes "at once".
* A person signals the supervisor or one of the workers twice. That process counts two signals.
* The supervisor is killed by SIGKILL. Its workers' lifelines end, which means "stop".

Another signal, SIGUSR1, asks a process to print the stacks of its threads to stderr.
"""

from __future__ import annotations

import _thread
import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from ..model.forks import in_children

_ECHO = 0.1
"""Seconds within which several signals count as one, because a wrapper may forward a Ctrl-C that its child has also
received.
"""
_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGBREAK")
STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""The signals that ask for a stop. Windows has the first two and the last (Ctrl-Break), which is the only one that
reaches a process group.
"""
STACKS_SIGNAL: Final[int | None] = getattr(signal, "SIGUSR1", None)
"""The signal that asks a process to print the stacks of its threads. None if this system has no such signal."""


class SignalCounter:
    """Counts the signals that a process receives. Counting takes no lock, so a signal handler may do it."""

    def __init__(self) -> None:
        self._first: float | None = None

    def is_urgent(self, number: int) -> bool:
        """Count a signal. Returns whether it asks for a stop at once."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        return number == getattr(signal, "SIGQUIT", None) or now - self._first > _ECHO


def in_main_thread() -> bool:
    """Return whether this is the main thread, the only one in which Python lets a program handle signals."""
    return threading.current_thread() is threading.main_thread()


def unignored_stop_signals() -> list[signal.Signals]:
    """Return the `STOP_SIGNALS` that this process does not ignore. Under nohup, the process ignores SIGHUP."""
    return [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def handle_stop_signals(*, stop: Callable[[], None], abandon: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each stop signal that arrives during the block. If the signal is urgent, also call `abandon` in a
    separate thread. `stop` must not take a lock, because the signal may interrupt the thread that holds that lock.
    Ignored signals stay ignored. Outside the main thread, no signal is handled.
    """
    heard = SignalCounter()

    def hear(number: int, _frame: FrameType | None) -> None:
        at_once = heard.is_urgent(number)
        stop()
        if at_once:
            _thread.start_new_thread(abandon, ())  # threading.Thread would take locks

    previous = {number: signal.signal(number, hear) for number in unignored_stop_signals() if in_main_thread()}
    _handlers.append(hear)
    try:
        yield
    finally:
        _handlers.remove(hear)
        for number, handler in previous.items():
            signal.signal(number, handler)


_handlers: list[Callable[[int, FrameType | None], None]] = []
"""The signal handlers of the active `handle_stop_signals` blocks."""


def _die_of_stop_signals() -> None:
    """Reset the stop signals to their defaults in a forked child, because the claims belong to its parent, and so does
    the order to stop.

    A handler in Python could not end the child while the child is running C code. On Python 3.13.0, such a handler
    would never run in a child that was forked by a thread other than the main one, such as a thread that runs tasks.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) in _handlers:
            signal.signal(number, signal.SIG_DFL)


in_children(_die_of_stop_signals)


class StackPrinter:
    """The handler of `STACKS_SIGNAL`. The class distinguishes this handler from an application's own handler, which is
    left in place.
    """

    def __init__(self, show: Callable[[], object]) -> None:
        self._show = show

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self._show()


def print_in_child() -> None:
    """Make this child process print its stacks to stderr on `STACKS_SIGNAL`, if its worker does so.

    The stacks are printed by C code, even while a handler is running C code and holds Python's lock. The system
    restarts the calls that the signal interrupts, because the handler runs in the thread that receives the signal.
    """
    if STACKS_SIGNAL is not None and isinstance(signal.getsignal(STACKS_SIGNAL), StackPrinter):
        faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)


def survives(pid: int) -> bool:
    """Return whether a process has a handler for `STACKS_SIGNAL`, which would otherwise end the process. Only Linux
    reveals this; on other systems, the process is assumed to have a handler.
    """
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
