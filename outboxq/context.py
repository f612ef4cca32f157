"""What a running handler may know of its task."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NoReturn, Protocol
from uuid import UUID

from .errors import InvalidTarget
from .model import Cancel, Claim, Retry, Snooze

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session


class Unit(Protocol):
    """The one transaction of a transactional task."""

    @property
    def target(self) -> object:
        """What `using()` would be given to write in it."""

    @property
    def connection(self) -> Connection: ...

    @property
    def session(self) -> Session: ...

    @property
    def database(self) -> str | None:
        """The name or the file of the database it writes to; None: not known."""

    def flush(self) -> None:
        """Write what is still held back, before the completion is."""

    def was_interrupted(self, error: BaseException) -> bool:
        """Return whether an error from outside, of which `error` tells, ended this transaction: nobody's failure."""


class TaskContext:
    """The task that a handler runs, and the means to end it: given to a function whose first parameter is annotated with it.

    It is made by the worker, for one attempt. `enqueue()` does not take it: a worker adds it when it calls the function.
    """

    def __init__(
        self, claim: Claim, *, max_attempts: int | None, stopping: threading.Event, holder: object = None
    ) -> None:
        self._claim = claim
        self._stopping = stopping
        self._lost = self._cancel = False
        self._began: float | None = None
        self._unit: Unit | None = None
        self._ended = False
        self.deadline = float("inf")
        """By `time.monotonic()`: when the lease ends unless it is extended. Kept by the worker."""
        self.holder = holder
        """The outbox that the task was declared on."""
        self.error: BaseException | None = None
        """What the handler raised, or why its result cannot be stored."""
        self.max_attempts = max_attempts
        """The number of the attempt after which a failure is final; None: the policy's `stop` alone decides."""

    @property
    def task_id(self) -> UUID:
        """The id of the task, the same in each attempt: an idempotency key for services outside the database."""
        return self._claim.id

    @property
    def claim(self) -> Claim:
        """The claim that the handler runs under: its worker, its token, its times."""
        return self._claim

    @property
    def pipeline_execution_id(self) -> UUID:
        """The id that tasks share which were enqueued by one `emit` or one `enqueue_many`."""
        return self._claim.pipeline_execution_id

    @property
    def task_name(self) -> str:
        """The name under which the task is declared."""
        return self._claim.task_name

    @property
    def queue(self) -> str:
        """The queue that the task waited in."""
        return self._claim.queue

    @property
    def topic(self) -> str | None:
        """The topic of the emitted event that this task handles; None: it was enqueued by itself."""
        return self._claim.topic

    @property
    def partition_key(self) -> str | None:
        """The key whose tasks run one at a time, in their order; None: this task waits for nobody."""
        return self._claim.partition_key

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1; only retries raise it."""
        return self._claim.attempt

    @property
    def recovery_attempts(self) -> int:
        """The number of workers that died under this task since it last ended an attempt."""
        return self._claim.recovery_attempts

    @property
    def created_at(self) -> datetime:
        """The moment when the task was enqueued, in UTC."""
        return self._claim.created_at

    @property
    def lost(self) -> bool:
        """Return whether the lease is over: another worker may run the task now, and then what this handler returns is discarded.

        While the database cannot be reached, this goes by the worker's own clock; a heartbeat that comes through after all
        before anybody took the task makes it False again.
        """
        return self._lost or time.monotonic() > self.deadline

    @property
    def was_lost(self) -> bool:
        """Return whether the database has said that the lease is over."""
        return self._lost

    @property
    def cancel_requested(self) -> bool:
        """Return whether somebody asked for this task to stop; `raise Cancel()` agrees."""
        return self._cancel

    @property
    def timed_out(self) -> bool:
        """Return whether the handler has run for longer than the task's `timeout`. Nobody interrupts it: it is to look, and to end."""
        limit = self._claim.timeout_seconds
        return limit is not None and self._began is not None and time.monotonic() > self._began + limit

    @property
    def should_stop(self) -> bool:
        """Return whether there is a reason to end at a good place: the worker stops, the lease is lost, the time is over, or somebody
        asked for it.
        """
        return self.lost or self.cancel_requested or self.timed_out or self._stopping.is_set()

    def checkpoint(self) -> None:
        """End here if there is a reason to: for a loop that may run long.

        Raises TimeoutError past the task's `timeout` (a failed attempt as any other), Cancel where that was asked for, Snooze
        where the worker stops (the task runs again at once elsewhere, no attempt is used) or the lease is lost.
        """
        if self.timed_out:
            raise TimeoutError(f"the handler ran for longer than its timeout of {self._claim.timeout_seconds:g} s")
        if self.cancel_requested:
            raise Cancel("as asked")
        if self.should_stop:
            raise Leave(0)

    @property
    def is_transactional(self) -> bool:
        """Return whether the handler runs inside a transaction that its completion joins."""
        return self._unit is not None

    @property
    def inside(self) -> Unit | None:
        """The transaction that the handler runs in; None: it has none of its own, or the handler has ended."""
        return None if self._ended else self._unit

    @property
    def connection(self) -> Connection:
        """The connection of a transactional task: what is written here is committed together with its completion, or not at all.

        Raises InvalidTarget in a task that is not declared `transactional=True`.
        """
        return self._joined().connection

    @property
    def session(self) -> Session:
        """The Session of a transactional task, in the same transaction. Its `commit()` ends a savepoint only.

        Raises InvalidTarget in a task that is not declared `transactional=True`.
        """
        return self._joined().session

    @property
    def target(self) -> object:
        """The same transaction as `using()` takes it, whatever library it comes from."""
        return self._joined().target

    def retry_at(self, moment: datetime) -> NoReturn:
        """End this attempt here and try again at `moment` (aware), whatever the policy's wait."""
        raise Retry(at=moment)

    def snooze(self, delay: timedelta | float) -> NoReturn:
        """End this attempt here and run again after `delay`, at least a second; no attempt is used."""
        raise Snooze(delay)

    def begin(self) -> None:
        """Called when the handler is."""
        self._began = time.monotonic()

    def end(self) -> None:
        """Called when the handler has ended. A copy of its `contextvars` in another thread still names this context."""
        self._ended = True

    def join(self, unit: Unit) -> None:
        """Called by the worker: the handler runs inside this transaction."""
        self._unit = unit

    def lose(self) -> bool:
        """Called by the worker; False if the handler was told already."""
        told, self._lost = self._lost, True
        return not told

    def request_cancel(self) -> None:
        """Called by the worker."""
        self._cancel = True

    def _joined(self) -> Unit:
        if self._unit is None:
            raise InvalidTarget(
                f"task {self.task_name} has no transaction of its own; declare it transactional=True, or pass a session"
            )
        return self._unit


class Leave(Snooze):
    """A snooze that ends with the worker: the task is due at once, for another."""


current: ContextVar[TaskContext | None] = ContextVar("outboxq_context", default=None)
"""Of the handler that this thread runs."""
