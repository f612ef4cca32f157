"""The stacks of all threads of a worker, printed on stderr at SIGUSR1."""

from __future__ import annotations

import _thread
import faulthandler
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..context import current
from ..worker.signals import STACKS_SIGNAL, StackPrinter
from .console import plain

if TYPE_CHECKING:
    from ..model import Claim
    from ..worker.worker import Worker

log = logging.getLogger("outboxq.worker")

_PAUSE = 0.1
"""Seconds between two child processes, whose stacks would be mixed otherwise."""


@contextmanager
def stacks_on_signal(worker: Callable[[], Worker | None]) -> Iterator[None]:
    """Print the stacks of all threads on stderr whenever SIGUSR1 comes inside the block, then the tasks that run, and then the stacks
    of the child processes that run them.

    The main thread prints them at its next step, a tenth of a second later at most, unless a handler in C code keeps Python to itself.
    `faulthandler.register(chain=True)` would print them even then, but a SIGTERM that came meanwhile was lost in one of six runs.
    In a child process there is none to lose, and they are printed so. A handler of the host application for this signal is left in
    place, whether it is set before or inside the block. The signal interrupts no task.
    """
    if STACKS_SIGNAL is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
        log.info("SIGUSR1 prints no stacks: the application has a handler of its own for it")
        yield
        return
    printer = StackPrinter(lambda: _print_stacks(worker()))
    signal.signal(STACKS_SIGNAL, printer)
    try:
        yield
    finally:
        if signal.getsignal(STACKS_SIGNAL) is printer:
            signal.signal(STACKS_SIGNAL, signal.SIG_DFL)


def _print_stacks(worker: Worker | None) -> None:
    faulthandler.dump_traceback(file=2, all_threads=True)
    context = current.get()  # in a process that a handler has forked
    running = [context.claim] if context is not None else [] if worker is None else worker.running_tasks
    tasks = [f"{_named(one)} is running" for one in running]
    _write("".join(f"process {os.getpid()}: {one}\n" for one in tasks or ["no task is running"]))
    if worker is not None and (children := worker.children):
        _thread.start_new_thread(_print_children, (worker, children))  # threading.Thread would take locks


def _print_children(worker: Worker, children: Sequence[tuple[Claim, int]]) -> None:
    pause = threading.Event()
    for claim, child in children:
        _write(f"process {child}: {_named(claim)} is running in this child process, whose stacks follow\n")
        worker.print_stacks_of(child)
        pause.wait(_PAUSE)


def _named(claim: Claim) -> str:
    return f"task {plain(claim.id)} ({plain(claim.task_name)})"


def _write(text: str) -> None:
    os.write(2, text.encode(errors="replace"))
