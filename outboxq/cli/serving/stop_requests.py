"""Requests to stop a command: signals, and orders that a supervisor sends through a lifeline.

The lifeline is a socket between a supervisor and one worker process. Closing the lifeline also counts as an order. The
supervisor does not use signals for its orders, because the sender of a signal to the supervisor may have signaled the
worker too. `outboxq/worker/signals.py` contains the rule for repeated signals.
"""

from __future__ import annotations

import _thread
import atexit
import faulthandler
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Self

from ...context import current
from ...model.wording import plain
from ...worker.signals import STACKS_SIGNAL, StackPrinter, in_main_thread, unignored_stop_signals
from .starting import without_leaving

if TYPE_CHECKING:
    from ...model import Claim
    from ...worker.worker import Worker

log = logging.getLogger("outboxq.worker")

_EXIT_TIMEOUT = 5.0
"""Seconds for which signals are ignored after the work has ended, while the process exits."""
_LISTENING = b"l"
"""The only message that a worker process sends. This message means that the process is now reading orders."""


def interrupt_main_thread() -> None:
    """Send the main thread a signal that it does not ignore, so that it stops waiting and exits."""
    for number in unignored_stop_signals()[:1]:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def stop_on_signals(is_over: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Handle stop signals before and after work that has its own signal handlers.

    A signal before the work causes a clean stop, because no work has begun. A signal after the work is ignored, because
    a second request to stop must not change the exit code of a clean stop. The same handler serves both periods, so
    that there is always a handler. The handler is not removed, because a process takes a while to exit.

    Yield a function that ends the process if a signal arrived but did not end it. This can happen because Python
    ignores exceptions raised in weakref callbacks, and an import runs many such callbacks.
    """
    numbers = unignored_stop_signals() if in_main_thread() else []
    ended, stop_requested = math.inf, False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal stop_requested
        if time.monotonic() > ended + _EXIT_TIMEOUT:  # the program that called the command has continued after it
            restore()
            signal.raise_signal(number)
        elif not is_over():
            stop_requested = True
            sys.exit(0)

    def exit_if_stopped() -> None:
        if stop_requested:
            sys.exit(0)

    def restore() -> None:
        for number, before in previous.items():
            signal.signal(number, without_leaving(number, before))

    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield exit_if_stopped
    finally:
        if is_over():
            ended = time.monotonic()
            # While Python exits, it resets every other handler to the default, which ends the process.
            for number in numbers:
                atexit.register(signal.signal, number, signal.SIG_IGN)
        else:
            restore()


class Order(Enum):
    """A supervisor's order to one worker process, and the byte that carries it."""

    STOP = b"s"
    """Running tasks may finish."""
    AT_ONCE = b"a"
    """Running tasks are released."""


class Lifeline:
    """The supervisor's end of the lifeline. This end is closed when the supervisor exits for any reason."""

    def __init__(self) -> None:
        self._supervisor_end, self._worker_end = socket.socketpair()
        self._supervisor_end.setblocking(False)
        self._is_listening = False

    @property
    def descriptor(self) -> int:
        """The file descriptor of the worker's end, for the worker process to inherit."""
        return self._worker_end.fileno()

    def close_worker_end(self) -> None:
        """Close this process's copy of the worker's end, after the worker process has inherited its own."""
        self._worker_end.close()

    def close(self) -> None:
        self._worker_end.close()
        self._supervisor_end.close()

    def send(self, order: Order) -> bool:
        """Send an order, and return whether the process is listening. If it is not listening yet, send it a signal.

        A process that has just begun to listen may receive both. This is harmless, because the process is not running
        any task yet.
        """
        with suppress(OSError):  # the process has exited
            self._supervisor_end.send(order.value)
        return self.listens()

    def listens(self) -> bool:
        """Return whether the process is reading orders. If it is, it has also set its signal handlers."""
        with suppress(OSError):  # it is not listening yet, or has exited
            self._is_listening = self._is_listening or self._supervisor_end.recv(1) == _LISTENING
        return self._is_listening


class Orders:
    """The worker process's end of the lifeline. As a context manager, it carries out the orders that arrive during the
    `with` block.

    `interrupt` must stop the main thread if there is no worker yet. If `descriptor` is None, there is no supervisor.
    """

    def __init__(self, descriptor: int | None, *, interrupt: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._stop_requested = False
        self._is_closed = False

    def __enter__(self) -> Self:
        if self._descriptor is not None:
            threading.Thread(
                target=self._listen, args=(self._descriptor,), name="outboxq-lifeline", daemon=True
            ).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closed = True

    def attach(self, worker: Worker) -> None:
        """Pass orders to this worker from now on, including an order that has already arrived."""
        with self._lock:
            self._worker = worker
            if self._stop_requested:
                worker.request_stop()

    def _listen(self, descriptor: int) -> None:
        with suppress(OSError):  # the supervisor has already exited
            os.write(descriptor, _LISTENING)
        while word := _read(descriptor):
            self._obey(Order(word))
        if not self._stop_requested:
            log.warning("the process that started this one has exited; stopping")
            self._obey(Order.STOP)

    def _obey(self, order: Order) -> None:
        with self._lock:  # no worker may be attached between the check and the interruption
            self._stop_requested = True
            if self._is_closed or (self._worker is not None and self._worker.has_stopped):
                return  # a second request must not change the exit code of a clean stop
            if self._worker is None:
                self._interrupt()
            elif order is Order.AT_ONCE:
                self._worker.stop_at_once()
            else:
                self._worker.request_stop()


def _read(descriptor: int) -> bytes:
    """Return the next order; b"" if the lifeline was closed, even if the supervisor never read `_LISTENING`."""
    try:
        return os.read(descriptor, 1)
    except ConnectionResetError:
        return b""


_PAUSE = 0.1
"""Seconds to wait between the stacks of two child processes, so that their output is not mixed."""


@contextmanager
def stacks_on_signal(worker: Callable[[], Worker | None]) -> Iterator[None]:
    """During the block, each SIGUSR1 prints to stderr the stacks of all threads, the running tasks, and the stacks of
    the child processes that run them.

    The main thread prints them the next time it runs Python code, at most a tenth of a second later, unless a task's
    handler is blocking Python in C code. `faulthandler.register(chain=True)` would print them even then, but in one of
    six runs, it lost a concurrent SIGTERM. A child process does not receive SIGTERM, so it uses
    `faulthandler.register`. If the host application sets its own handler for this signal before or during the block,
    that handler is kept. The signal does not interrupt any task.
    """
    if STACKS_SIGNAL is None or not in_main_thread():
        yield
        return
    if signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
        log.info("SIGUSR1 will not print stacks, because the application has its own handler for it")
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
    context = current.get()  # set in a process that a handler has forked
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
