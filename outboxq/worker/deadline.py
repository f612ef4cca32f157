"""Time limits for calls that may never return."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ..model.forks import EXIT_KILLED

_END_TIMEOUT = 5.0
"""Seconds that Python may take to end such a process."""


def run_with_timeout(seconds: float, call: Callable[[], object]) -> bool:
    """Run the call in a thread. Returns whether it ended in time; if not, it goes on, but does not keep the process alive."""
    thread = threading.Thread(target=call, name="outboxq-deadline", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def end_process_after(seconds: float, code: int = 1) -> threading.Timer:
    """End the process with this exit code after this time, whatever its threads are stuck in. Cancel the timer to prevent it."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
    return timer


def end_as_killed() -> int:
    """Return EXIT_KILLED. The process ends with it within five seconds: the handler that does not end may have a lock that Python's
    own end waits for.
    """
    end_process_after(_END_TIMEOUT, EXIT_KILLED)
    return EXIT_KILLED


def join(thread: threading.Thread, seconds: float) -> None:
    """Wait for a thread to end, unless it never began because the start failed before."""
    if thread.ident is not None:
        thread.join(seconds)
