"""Doing something that may never return, for so long as there is time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def run_with_timeout(seconds: float, call: Callable[[], object]) -> bool:
    """Whether the call returned in time. If not, it goes on in its thread, which does not keep the process."""
    thread = threading.Thread(target=call, name="outboxq-within", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def end_process_after(seconds: float) -> threading.Timer:
    """End the process with 1 after a time, whatever its threads are stuck in, unless the timer is cancelled."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()
    return timer
