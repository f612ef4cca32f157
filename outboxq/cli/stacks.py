"""The stacks of all threads of a worker, printed on stderr at SIGUSR1."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from ..model import Claim
from .console import plain

SIGNAL: Final[int | None] = getattr(signal, "SIGUSR1", None)
"""None: this system has no such signal."""

log = logging.getLogger("outboxq.worker")


@contextmanager
def stacks_on_signal(running: Callable[[], Sequence[Claim]]) -> Iterator[None]:
    """Print the stacks of all threads on stderr whenever SIGUSR1 comes inside the block, and then the tasks that run.

    The main thread prints them at its next step, a tenth of a second later at most, unless a handler in C code keeps Python to itself.
    `faulthandler.register(chain=True)` would print them even then, but a SIGTERM that came meanwhile was lost in one of six runs.
    A handler of the host application for this signal is left in place, whether it is set before or inside the block. The signal
    interrupts no task.
    """
    if SIGNAL is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        log.info("SIGUSR1 prints no stacks: the application has a handler of its own for it")
        yield
        return

    def print_stacks(_number: int, _frame: FrameType | None) -> None:
        faulthandler.dump_traceback(file=2, all_threads=True)
        tasks = [f"task {plain(one.id)} ({plain(one.task_name)}) is running" for one in running()]
        text = "".join(f"process {os.getpid()}: {one}\n" for one in tasks or ["no task is running"])
        os.write(2, text.encode(errors="replace"))

    signal.signal(SIGNAL, print_stacks)
    try:
        yield
    finally:
        if signal.getsignal(SIGNAL) is print_stacks:
            signal.signal(SIGNAL, signal.SIG_DFL)
