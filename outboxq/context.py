"""What a running handler may know of its task."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from typing import NoReturn
from uuid import UUID

from .model import Claim, Retry, Snooze


class TaskContext:
    """Given to a task whose first parameter is annotated with it."""

    def __init__(self, claim: Claim, *, max_attempts: int | None, stopping: threading.Event) -> None:
        self._claim = claim
        self._stopping = stopping
        self._lost = threading.Event()
        self.deadline = float("inf")
        """By `time.monotonic()`: when the lease ends unless it is extended. Kept by the worker."""
        self._cancel = threading.Event()
        self.max_attempts = max_attempts
        """The attempt after which a failure is final; None: the policy's `stop` alone decides."""

    @property
    def task_id(self) -> UUID:
        """Pass it as the idempotency key to services outside the database: a task may run more than once."""
        return self._claim.id

    @property
    def pipeline_execution_id(self) -> UUID:
        return self._claim.pipeline_execution_id

    @property
    def task_name(self) -> str:
        return self._claim.task_name

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """From 1; raised by retries only."""
        return self._claim.attempt

    @property
    def recovery_attempts(self) -> int:
        """How often a worker died under this task."""
        return self._claim.recovery_attempts

    @property
    def created_at(self) -> datetime:
        return self._claim.created_at

    @property
    def lost(self) -> bool:
        """The lease is over: another worker may run the task now, and what this handler returns is discarded."""
        return self._lost.is_set() or time.monotonic() > self.deadline

    @property
    def cancel_requested(self) -> bool:
        """Somebody asked for this task to stop; `raise Cancel()` agrees."""
        return self._cancel.is_set()

    @property
    def should_stop(self) -> bool:
        """The worker is stopping, the lease is lost, or a cancellation was asked for: a long handler ends at a good place."""
        return self.lost or self.cancel_requested or self._stopping.is_set()

    def retry_at(self, moment: datetime) -> NoReturn:
        """End this attempt here and try again at `moment` (aware), whatever the policy's wait."""
        raise Retry(at=moment)

    def snooze(self, delay: timedelta | float) -> NoReturn:
        """End this attempt here and run again after `delay`; no attempt is used."""
        raise Snooze(delay)

    def lose(self) -> bool:
        """Called by the worker; False if the handler was told already."""
        told = self._lost.is_set()
        self._lost.set()
        return not told

    def request_cancel(self) -> None:
        """Called by the worker."""
        self._cancel.set()
