"""The lifeline between a supervisor and one worker process: a socket that carries orders to stop. Its end is an order, too.

The supervisor gives its orders here and not by signals, since the sender of its own signal may have signalled the worker as
well. The rule is in `outboxq/worker/signals.py`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self

from ..worker.worker import Worker

log = logging.getLogger("outboxq.worker")

_LISTENING = b"l"
"""The one message of a worker process: from now on it reads orders."""


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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
    """Wait for the next order. Returns no bytes once the other end is closed."""
    try:
        return os.read(descriptor, 1)
    except ConnectionResetError:  # closed before it had read that we listen
        return b""
