"""The TaskContext: a running handler's view of its task."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NoReturn, Protocol
from uuid import UUID

from .errors import InvalidTarget
from .model import Cancel, Claim, Retry, Snooze
from .model.headers import NO_HEADERS, headers_of_json
from .model.keys import concurrency_key_of
from .model.log_fields import fields_of
from .model.schedules import SCHEDULE_HEADER, TICK_HEADER, ZONE_HEADER, tick_of

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

log = logging.getLogger("outboxq.worker")


class UnitOfWork(Protocol):
    """The transaction of a transactional task."""

    @property
    def target(self) -> object:
        """The transaction as `using()` takes it."""

    @property
    def connection(self) -> Connection: ...

    @property
    def session(self) -> Session: ...

    @property
    def database(self) -> str | None:
        """The name or the file of the database; None if it is not known."""

    def flush(self) -> None:
        """Write what the session still holds back, before the completion is written."""

    def was_interrupted(self, error: BaseException) -> bool:
        """Return whether an error from outside ended this transaction, to judge by `error`: then the attempt is not counted."""


class TaskContext:
    """The task that a handler runs, and ways to end the attempt.

    A function gets it if its first parameter is annotated with TaskContext. The worker makes one for each attempt and passes it;
    `enqueue()` does not take it.
    """

    _headers: Mapping[str, str] | None = None
    """The headers, once they were asked for."""

    def __init__(
        self, claim: Claim, *, max_attempts: int | None, stopping: threading.Event, outbox: object = None
    ) -> None:
        self.task_id: Final[UUID] = claim.id
        """The id of the task, the same in each attempt: an idempotency key for services outside the database."""
        self.pipeline_execution_id: Final[UUID] = claim.pipeline_execution_id
        """The id shared by the tasks of one `emit` or one `enqueue_many`."""
        self.task_name: Final[str] = claim.task_name
        """The name under which the task is declared."""
        self.queue: Final[str] = claim.queue
        """The queue in which the task waited."""
        self.topic: Final[str | None] = claim.topic
        """The topic of the emitted event that this task handles; None: it was enqueued by itself."""
        self.concurrency_key: Final[str | None] = concurrency_key_of(claim.partition_key)
        """The key of which so many tasks run at once as the queue's limit per key says; None: it has none."""
        self.partition_key: Final[str | None] = claim.partition_key if self.concurrency_key is None else None
        """The key whose tasks run one at a time, in their order; None: the task waits for no other."""
        self.attempt: Final[int] = claim.attempt
        """The number of this attempt, from 1; only retries raise it."""
        self.max_attempts = max_attempts
        """The number of the last attempt: a failure after it is final. None: the policy's `stop` decides alone."""
        self.recovery_attempts: Final[int] = claim.recovery_attempts
        """The number of workers that died while they ran this task, since its last attempt that ended."""
        self.created_at: Final[datetime] = claim.created_at
        """The moment at which the task was enqueued, in UTC."""
        self.cancel_requested: bool = False
        """True if a user asked this task to stop; `raise Cancel()` to agree."""

        # For the worker and for the integrations with frameworks.
        self.claim: Final = claim
        """The claim that the handler runs under: its worker, its token, its times."""
        self.outbox = outbox
        """The outbox that the task was declared on."""
        self.deadline = float("inf")
        """End of the lease by `time.monotonic()`. The worker moves it on with each heartbeat."""
        self.was_lost = False
        """True if the database has said that the lease is over."""
        self.began: float | None = None
        """When the handler began (`time.monotonic()`)."""
        self.ended: float | None = None
        """When the handler ended (`time.monotonic()`)."""
        self.unit: UnitOfWork | None = None
        """The transaction of a transactional task, from its begin on."""
        self.error: BaseException | None = None
        """The exception that the handler raised, or the reason why its result cannot be stored."""
        self._stopping = stopping

    @property
    def has_ended(self) -> bool:
        """Return whether the handler has ended. A copy of its `contextvars` in another thread still names this context."""
        return self.ended is not None

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that were enqueued with the task, read-only; empty if there are none.

        Headers that cannot be read, since another program's SQL wrote them, are empty too; the log then has a warning.
        """
        if self._headers is None:
            try:
                self._headers = headers_of_json(self.claim.headers)
            except ValueError as error:
                text = "%s: its headers cannot be read, so it has none here: %s"
                log.warning(text, self.claim, error, extra=fields_of(self.claim))
                self._headers = NO_HEADERS
        return self._headers

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that this task is of; None: it was enqueued by a program."""
        return self.headers.get(SCHEDULE_HEADER)

    @property
    def tick(self) -> datetime | None:
        """The moment of the schedule that this task is for, in the schedule's time zone, however late it runs.

        For a task that was triggered it is the moment of that; None: the task is of no schedule.
        """
        if self.schedule is None:
            return None
        from .model.rules import zone_of  # imports the zones, which no other task needs

        moment, tick = self.created_at, self.headers.get(TICK_HEADER)
        try:
            if tick is not None:
                moment = tick_of(tick)
            return moment.astimezone(zone_of(self.headers.get(ZONE_HEADER, "UTC")))
        except ValueError as error:  # another program's SQL wrote it, or this machine does not know the zone
            text = "%s: its tick is read as %s: %s"
            log.warning(text, self.claim, moment, error, extra=fields_of(self.claim))
            return moment.astimezone(UTC)

    @property
    def lost(self) -> bool:
        """Return whether the lease is over: another worker may run the task now, and this handler's result may be discarded.

        While the database cannot be reached, the worker's own clock decides. A later heartbeat makes it False again, unless
        another worker has taken the task meanwhile.
        """
        return self.was_lost or time.monotonic() > self.deadline

    @property
    def timed_out(self) -> bool:
        """Return whether the handler has run for longer than the task's `timeout`. It is not interrupted: it has to look and to end."""
        limit = self.claim.timeout_seconds
        return limit is not None and self.began is not None and time.monotonic() > self.began + limit

    @property
    def should_stop(self) -> bool:
        """Return whether the handler should end at the next good place: the worker stops, the lease is lost, the timeout is
        over, or a user asked for it.
        """
        return self.lost or self.cancel_requested or self.timed_out or self._stopping.is_set()

    def checkpoint(self) -> None:
        """End the attempt here if `should_stop`. Call it in a loop that may run long.

        Raises TimeoutError after the task's `timeout` (a failed attempt like any other), Cancel if a user asked for it, and
        Snooze if the worker stops or the lease is lost: the task then runs again at once elsewhere, and no attempt is used.
        """
        if self.timed_out:
            raise TimeoutError(f"the handler ran for longer than its timeout of {self.claim.timeout_seconds:g} s")
        if self.cancel_requested:
            raise Cancel("as asked")
        if self.should_stop:
            raise Leave(0)

    @property
    def is_transactional(self) -> bool:
        """Return whether the handler runs inside a transaction that also commits its completion."""
        return self.unit is not None

    @property
    def inside(self) -> UnitOfWork | None:
        """The transaction in which the handler runs; None if it has none of its own, or has ended."""
        return None if self.has_ended else self.unit

    @property
    def connection(self) -> Connection:
        """The connection of a transactional task: its writes are committed together with the completion, or not at all.

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
        """The same transaction as `using()` takes it, whichever library it comes from."""
        return self._joined().target

    def retry_at(self, moment: datetime) -> NoReturn:
        """End this attempt and try again at `moment` (aware), whatever the policy's wait. The attempt counts."""
        raise Retry(at=moment)

    def snooze(self, delay: timedelta | float) -> NoReturn:
        """End this attempt and run again after `delay`, at least one second; no attempt is used."""
        raise Snooze(delay)

    def _joined(self) -> UnitOfWork:
        if self.unit is None:
            raise InvalidTarget(
                f"task {self.task_name} has no transaction of its own; declare it with transactional=True, or pass a session to using()"
            )
        return self.unit


class Leave(Snooze):
    """A snooze because the worker stops: the task is due at once, for another worker."""


current: ContextVar[TaskContext | None] = ContextVar("outboxq_context", default=None)
"""The context of the handler that this thread runs."""

LOG_FIELDS: Final = ("task_id", "task", "queue", "attempt")
"""The fields that `TaskContextFilter` sets."""


class TaskContextFilter(logging.Filter):
    """Gives each record that is logged inside a handler the fields `task_id`, `task`, `queue` and `attempt`.

    A field that the record already has is kept. Outside of handlers the fields are None, so a format may always name them.
    Add it to a `logging.Handler`: a filter of a logger does not see the records of the loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the fields that the record lacks. Every record passes."""
        context = current.get()
        for name, value in zip(LOG_FIELDS, _values(context), strict=True):
            record.__dict__.setdefault(name, value)
        return True


def _values(context: TaskContext | None) -> tuple[str | int | None, ...]:
    if context is None:
        return (None,) * len(LOG_FIELDS)
    return str(context.task_id), context.task_name, context.queue, context.attempt
