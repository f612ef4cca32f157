"""Time limits for calls that may never return."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def run_with_timeout(seconds: float, call: Callable[[], object]) -> bool:
    """Run the call in a thread. Returns whether it ended in time; if not, it goes on, but does not keep the process alive."""
    thread = threading.Thread(target=call, name="outboxq-deadline", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def end_process_after(seconds: float) -> threading.Timer:
    """End the process with exit code 1 after this time, whatever its threads are stuck in. Cancel the timer to prevent it."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()
    return timer
