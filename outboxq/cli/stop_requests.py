"""Requests to stop a command: signals, and orders of a supervisor, which arrive by a lifeline.

The lifeline is a socket between a supervisor and one worker process. Its end is an order, too. The supervisor gives its orders
there and not by signals, since the sender of its own signal may have signalled the worker as well. The rule is in
`outboxq/worker/signals.py`.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Self

from ..worker.signals import unignored_stop_signals

if TYPE_CHECKING:
    from ..worker.worker import Worker

log = logging.getLogger("outboxq.worker")

_EXIT_TIMEOUT = 5.0
"""Seconds after the work for which signals are ignored: the process needs them to end."""
_LISTENING = b"l"
"""The one message of a worker process: from now on it reads orders."""


def interrupt_main_thread() -> None:
    """Send the main thread a signal that it does not ignore, so that it stops, whatever it waits for."""
    for number in unignored_stop_signals()[:1]:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def stop_on_signals(is_over: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Handle stop signals before and after work that has signal handlers of its own.

    A signal before the work is a clean stop, for nothing was begun. A signal after it is ignored: a second request to stop must
    not change the exit code of a clean stop. One handler serves both, so that there is no moment without one. It stays in place,
    for a process takes a while to end.

    Yields a function that exits if a signal came and did not end the process: Python swallows an exception inside a weak
    reference's callback, and while modules are imported there are many of those.
    """
    numbers = unignored_stop_signals()
    ended, stop_requested = math.inf, False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal stop_requested
        if time.monotonic() > ended + _EXIT_TIMEOUT:  # the program that called the command goes on after it
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
            signal.signal(number, before)

    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield exit_if_stopped
    finally:
        if is_over():
            ended = time.monotonic()
            for number in numbers:  # Python makes every other handler deadly again while it ends
                atexit.register(signal.signal, number, signal.SIG_IGN)
        else:
            restore()


class Order(Enum):
    """A supervisor's order to one worker process, and the byte that carries it."""

    STOP = b"s"
    """Running tasks may finish."""
    AT_ONCE = b"a"
    """Running tasks are given back."""


class Lifeline:
    """The supervisor's end of the lifeline. It closes with the supervisor, however that ends."""

    def __init__(self) -> None:
        self._supervisor_end, self._worker_end = socket.socketpair()
        self._supervisor_end.setblocking(False)
        self._is_listening = False

    @property
    def descriptor(self) -> int:
        """The file descriptor of the other end, for the worker process to inherit."""
        return self._worker_end.fileno()

    def close_worker_end(self) -> None:
        """Close this process's copy of the other end, once the process has its own."""
        self._worker_end.close()

    def close(self) -> None:
        self._worker_end.close()
        self._supervisor_end.close()

    def send(self, order: Order) -> bool:
        """Give an order. Returns whether the process listens. One that does not listen yet needs a signal.

        A process that has just begun to listen may get both. It has no task then, so that does no harm.
        """
        with suppress(OSError):  # the process has ended
            self._supervisor_end.send(order.value)
        return self.listens()

    def listens(self) -> bool:
        """Return whether the process reads orders: its signal handlers stand then."""
        with suppress(OSError):  # it does not listen yet, or has ended
            self._is_listening = self._is_listening or self._supervisor_end.recv(1) == _LISTENING
        return self._is_listening


class Orders:
    """The worker process's end of the lifeline: carries out the orders while the block runs.

    `interrupt` must end what the main thread does while there is no worker yet. `descriptor` None: there is no supervisor.
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
        """Pass orders to this worker from now on, and the one that came before."""
        with self._lock:
            self._worker = worker
            if self._stop_requested:
                worker.request_stop()

    def _listen(self, descriptor: int) -> None:
        with suppress(OSError):  # the supervisor has gone already
            os.write(descriptor, _LISTENING)
        while word := _read(descriptor):
            self._obey(Order(word))
        if not self._stop_requested:
            log.warning("the process that started this one is gone; stopping")
            self._obey(Order.STOP)

    def _obey(self, order: Order) -> None:
        with self._lock:  # no worker may be attached between the check for it and the interruption
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
    """Return the next order; empty at the end, also if the supervisor closed before it had read that we listen."""
    try:
        return os.read(descriptor, 1)
    except ConnectionResetError:
        return b""
