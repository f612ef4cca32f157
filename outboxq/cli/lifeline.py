"""The lifeline between a supervisor and one worker process: it carries orders to stop, and its end is one.

The supervisor gives its orders here and not by signals, for its worker may have heard the same signal from whoever has told
the supervisor. The rule is in `outboxq/worker/signals.py`.
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
"""The one word that a worker process says."""


class Order(Enum):
    """A supervisor's order to one worker process, and the byte that carries it."""

    STOP = b"s"
    """Running tasks may finish."""
    AT_ONCE = b"a"
    """Running tasks are given back."""


class Lifeline:
    """The supervisor's end. It closes with the supervisor, however that ends."""

    def __init__(self) -> None:
        self._supervisor_end, self._worker_end = socket.socketpair()
        self._supervisor_end.setblocking(False)
        self._is_listening = False

    @property
    def descriptor(self) -> int:
        """The other end, for the process to inherit."""
        return self._worker_end.fileno()

    def close_worker_end(self) -> None:
        """Close this process's copy of the other end, once the process has its own."""
        self._worker_end.close()

    def close(self) -> None:
        self._worker_end.close()
        self._supervisor_end.close()

    def send(self, order: Order) -> bool:
        """Give an order. Returns whether the process listens; a signal must tell one that does not listen yet.

        Both may reach a process that has just begun to listen. It has no task then, so that does no harm.
        """
        with suppress(OSError):  # the process has ended
            self._supervisor_end.send(order.value)
        with suppress(OSError):  # it has said nothing yet, or has ended
            self._is_listening = self._is_listening or self._supervisor_end.recv(1) == _LISTENING
        return self._is_listening


class Orders:
    """The worker process's end: carries out the orders while the block runs.

    `interrupt` must end what the main thread does while there is no worker yet. `descriptor` None: nobody gives orders.
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
        """Let this worker have the orders from now on, and the one that came before."""
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
        with self._lock:  # no worker may be made between the look for it and the interruption
            self._stop_requested = True
            if self._is_closed or (self._worker is not None and self._worker.has_stopped):
                return  # whoever asks once more must not change the exit code of a clean stop
            if self._worker is None:
                self._interrupt()
            elif order is Order.AT_ONCE:
                self._worker.stop_at_once()
            else:
                self._worker.request_stop()


def _read(descriptor: int) -> bytes:
    """Wait for the next word. Returns none once the other end is closed."""
    try:
        return os.read(descriptor, 1)
    except ConnectionResetError:  # closed before it had read that we listen
        return b""
