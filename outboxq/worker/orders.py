"""Obey the orders that a person gives to this worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ..model.worker_orders import Orders, WorkerOrder, WorkerState
from .claim_loop import ClaimLoop

log = logging.getLogger("outboxq.worker")


@dataclass(eq=False, repr=False)
class ObeyedOrders:
    """The orders of this worker, as far as it has obeyed them."""

    claim_loop: ClaimLoop
    request_stop: Callable[[], None]
    _obeyed: WorkerOrder | None = None

    def obey(self, orders: Orders) -> None:
        """Become quiet, stop, or claim tasks again. A stop cannot be undone."""
        if orders.asked_to is self._obeyed or self._obeyed is WorkerOrder.STOP:
            return
        self._obeyed = orders.asked_to
        if self._obeyed is None:
            log.info("told to claim tasks again")
            self.claim_loop.resume()
            return
        self.claim_loop.be_quiet()
        if self._obeyed is WorkerOrder.STOP:
            log.info("told to stop by an order; running tasks may finish")
            self.request_stop()
        else:
            log.info("told to be quiet: it claims no tasks, and lets the running tasks finish")

    def state(self) -> WorkerState | None:
        """Return the state that the worker has reached."""
        if self._obeyed is WorkerOrder.STOP:
            return WorkerState.STOPPING
        return WorkerState.QUIET if self.claim_loop.is_quiet else None
