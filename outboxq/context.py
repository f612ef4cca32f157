"""The TaskContext: a running handler's view of its task."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

from .errors import InvalidCall, InvalidTarget, StepRefused
from .model import Cancel, Claim, Retry, Snooze
from .model.batches import BatchFailure, BatchResult, is_batch
from .model.options import NO_HEADERS, headers_of_json
from .model.records import fields_of
from .model.running import MAX_NOTE, HandlerLog, Progress, fraction_of
from .model.schedules import SCHEDULE_HEADER, TICK_HEADER, ZONE_HEADER, tick_of
from .model.unknown_options import Answering

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

log = logging.getLogger("outboxq.worker")
P = ParamSpec("P")
R = TypeVar("R")


class UnitOfWork(Protocol):
    """The transaction of a transactional task."""

    @property
    def target(self) -> object:
        """The transaction in the form that `using()` accepts."""

    @property
    def connection(self) -> Connection: ...

    @property
    def session(self) -> Session: ...

    @property
    def database(self) -> str | None:
        """The database's name or file; None if it is not known."""

    def flush(self) -> None:
        """Flush the session's pending writes before the completion is written."""

    def was_interrupted(self, error: BaseException) -> bool:
        """Return whether `error` shows that something external ended this transaction. If so, the attempt is not
        counted.
        """

    def abandon(self) -> None:
        """Release whatever keeps the attempt from ending. Another thread calls this if the handler is still running
        after its timeout grace.
        """


class BatchTarget(Protocol):
    """A batch to which ``task.using(batch)`` adds tasks."""

    @property
    def id(self) -> UUID:
        """The id of the batch."""

    @property
    def outbox(self) -> object:
        """The outbox to which the tasks in the batch belong."""

    @property
    def target(self) -> Any:
        """The transaction in which tasks are added, in the form that `using()` accepts."""

    def takes_tasks(self) -> bool:
        """Return whether tasks can still be added."""


class TaskBatch(BatchTarget, Protocol):
    """The batch or chain that a handler's task belongs to: `ctx.batch`. All counts are read together when one of them
    is first used.

    In a transactional task, ``using(ctx.batch)`` enqueues tasks in the task's transaction; in any other task, it uses a
    separate transaction.
    """

    @property
    def name(self) -> str | None:
        """The name given to the batch."""

    @property
    def size(self) -> int:
        """The number of tasks in the batch, not counting the tasks that follow the batch."""

    @property
    def completed(self) -> int:
        """The number of tasks that completed."""

    @property
    def failed(self) -> int:
        """The number of dead letters."""

    @property
    def cancelled(self) -> int:
        """The number of tasks that were cancelled or discarded, or that expired."""

    @property
    def pending(self) -> int:
        """The number of tasks that have not ended yet."""

    def results(self) -> Iterator[BatchResult]:
        """Yield the result of each completed task, in id order.

        The results are read on demand, 200 at a time. The tasks that follow a batch are left out. Raises TaskNotFound
        before the first result if the rows of some completed tasks are missing, and after the last result if a row is
        deleted during the iteration. Raises PayloadError for a result that does not match its annotation.
        """

    def failures(self) -> Iterator[BatchFailure]:
        """Yield each Failed or Cancelled task, in id order."""


class StepRunner(Protocol):
    """The part of a worker that runs handlers' steps."""

    def run(
        self,
        context: TaskContext,
        name: str,
        call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
        *,
        transactional: bool,
    ) -> Any: ...

    def sleep(self, context: TaskContext, name: str, delay: timedelta | float) -> None: ...

    def uncounted_time(self, context: TaskContext) -> timedelta: ...


class TaskContext(Answering):
    """The task that a handler is running, and ways to end the attempt.

    A handler receives the context if its first parameter is annotated with TaskContext. The worker creates a context
    for each attempt and passes it to the handler; the context is not an argument of `enqueue()`.
    """

    _noun = "a context"
    _inner = frozenset(
        {
            "began", "claim", "deadline", "ended", "error", "handler_log", "has_died", "has_ended", "inside", "interruption", "keeps_log",
            "limit", "outbox", "reported", "step_runner", "steps", "target", "thread", "unit", "was_killed", "was_lost",
        }
    )  # fmt: skip
    # Class attributes, because most attempts do not set any of them.
    unit: UnitOfWork | None = None
    """The transaction of a transactional task, once it has begun."""
    limit: Any = None
    """The timeout that is enforced for this attempt; None if the handler is only asked to stop."""
    has_died: bool = False
    """True if the handler's child process died or was killed."""
    steps: Any = None
    """The step runner's record of this handler's steps; None before the first step."""
    _headers: Mapping[str, str] | None = None
    """The headers, once they have been requested."""

    def __init__(
        self, claim: Claim, *, max_attempts: int | None, stopping: threading.Event, outbox: Any = None
    ) -> None:
        self.task_id: Final[UUID] = claim.id
        """The task's id. It is the same in every attempt, so it can serve as an idempotency key for external services.
        """
        self.pipeline_execution_id: Final[UUID] = claim.pipeline_execution_id
        """The id shared by all tasks from one `emit` or `enqueue_many`, or by all tasks in one batch or chain."""
        self.task_name: Final[str] = claim.task_name
        """The name under which the task is declared."""
        self.queue: Final[str] = claim.queue
        """The queue in which the task waited."""
        self.topic: Final[str | None] = claim.topic
        """The topic of the emitted event that this task handles; None if the task was not enqueued by an event."""
        stored = claim.partition_key
        self.partition_key: Final[str | None] = None if stored is None or claim.concurrency_key is not None else stored
        """The partition key; None if the task does not have one. Tasks with the same key run one at a time, in order.
        """
        self.attempt: Final[int] = claim.attempt
        """The number of this attempt, counted from 1. Only retries increase this number."""
        self.max_attempts = max_attempts
        """The maximum number of attempts: if the last of them fails, the failure is final. None means that only the
        policy's `stop` decides.
        """
        self.recovery_attempts: Final[int] = claim.recovery_attempts
        """The number of workers that have died while running this task. The number is reset when a live worker ends an
        attempt.
        """
        self.created_at: Final[datetime] = claim.created_at
        """The time at which the task was enqueued, in UTC."""
        self.cancel_requested: bool = False
        """True if a user has asked this task to stop. To comply, raise `Cancel()`."""

        # For the worker and the framework integrations.
        self.claim: Final = claim
        """The claim under which the handler runs, with its worker, lease token and times."""
        self.outbox = outbox
        """The outbox on which the task was declared."""
        self.deadline: float = float("inf")
        """The time at which the lease expires (`time.monotonic()`). The worker updates this time with each heartbeat.
        """
        self.was_lost: bool = False
        """True if the database has reported that the lease is lost."""
        self.began: float | None = None
        """The time at which the handler began (`time.monotonic()`)."""
        self.ended: float | None = None
        """The time at which the handler ended (`time.monotonic()`)."""
        self.error: BaseException | None = None
        """The exception that the handler raised, or the error that prevented the result from being stored."""
        self.interruption: BaseException | None = None
        """The external error that ended a step's transaction."""
        self.thread: int | None = None
        """The thread in which the handler is running."""
        self.step_runner: StepRunner | None = None
        """The part of the worker that runs the steps; None outside a worker."""
        self.reported: Progress | None = None
        """The last progress that the handler reported."""
        self.keeps_log: bool = False
        """True if the worker keeps the lines that the handler logs."""
        self.handler_log: HandlerLog | None = None
        """The lines that the handler logged; None if it did not log any, or if they are not kept."""
        self._stopping = stopping

    @property
    def has_ended(self) -> bool:
        """Return whether the handler has ended. Even then, another thread with a copy of the handler's `contextvars`
        can still refer to this context.
        """
        return self.ended is not None

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that were enqueued with the task, read-only; empty if there are none.

        The headers are also empty, and a warning is logged, if another program's SQL wrote headers that cannot be read.
        """
        if self._headers is None:
            try:
                self._headers = headers_of_json(self.claim.headers)
            except ValueError as error:
                text = "%s: its headers cannot be read, so ctx.headers is empty: %s"
                log.warning(text, self.claim, error, extra=fields_of(self.claim))
                self._headers = NO_HEADERS
        return self._headers

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that enqueued this task; None if a program enqueued it."""
        return self.headers.get(SCHEDULE_HEADER)

    @property
    def tick(self) -> datetime | None:
        """The scheduled time of the tick that this task is for, in the schedule's time zone, no matter how late the
        task runs.

        For a triggered task, this is the time at which it was triggered. None if the task does not belong to a
        schedule.
        """
        if self.schedule is None:
            return None
        from .model.rules import zone_of  # imports the zones, which no other task needs

        moment, tick = self.created_at, self.headers.get(TICK_HEADER)
        try:
            if tick is not None:
                moment = tick_of(tick)
            return moment.astimezone(zone_of(self.headers.get(ZONE_HEADER, "UTC")))
        except ValueError as error:  # written by another program's SQL, or in a zone unknown to this machine
            text = "%s: its tick cannot be read exactly, so %s is used: %s"
            log.warning(text, self.claim, moment, error, extra=fields_of(self.claim))
            return moment.astimezone(UTC)

    @property
    def concurrency_key(self) -> str | None:
        """The concurrency key; None if the task does not have one. The queue's limit per key restricts how many tasks
        with the same key run at once.
        """
        return self.claim.concurrency_key

    @property
    def batch_id(self) -> UUID | None:
        """The id of this task's batch or chain; None if the task belongs to neither."""
        return self.pipeline_execution_id if is_batch(self.pipeline_execution_id) else None

    @cached_property
    def batch(self) -> TaskBatch:
        """The batch or chain that this task belongs to, with its counts and results. ``task.using(ctx.batch)`` adds
        tasks to it.

        Raises InvalidCall if the task does not belong to a batch or chain; its `batch_id` is then None.
        """
        if self.batch_id is None:
            raise InvalidCall(f"task {self.task_id} ({self.task_name}) is not in a batch or a chain")
        return self.outbox.batch_of(self)  # type: ignore[no-any-return]

    @property
    def previous(self) -> Any:
        """The value that the previous task in the chain returned, read according to that task's return annotation.

        Raises InvalidCall for the first task in a chain, and for a task outside a chain. Raises TaskNotFound if the
        previous task was deleted.
        """
        return self.outbox.previous_of(self)

    @property
    def lost(self) -> bool:
        """Return whether the lease is lost. If it is, another worker may be running the task, and this handler's result
        may be discarded.

        While the database cannot be reached, the worker's own clock decides. A later heartbeat makes this property
        False again, unless another worker has taken the task in the meantime.
        """
        return self.was_lost or time.monotonic() > self.deadline

    @property
    def timed_out(self) -> bool:
        """Return whether the handler has been running for longer than the task's `timeout`. With
        ``timeout_action="ask"``, the handler has to check this property itself.
        """
        limit = self.claim.timeout_seconds
        if limit is None or self.began is None:
            return False
        return (time.monotonic() if self.ended is None else self.ended) > self.began + limit

    @property
    def was_killed(self) -> bool:
        """Return whether the worker ended the attempt because the handler was still running after the timeout grace, or
        because the handler's child process died. This property is for hooks.
        """
        return self.has_died or (self.limit is not None and self.limit.was_killed)

    @property
    def is_stopping(self) -> bool:
        """Return whether the worker is stopping."""
        return self._stopping.is_set()

    @property
    def should_stop(self) -> bool:
        """Return whether the handler should stop as soon as it can, because the worker is stopping, the lease is lost,
        the timeout has passed, or a user has cancelled the task. Returning would mark the task Completed; to end an
        unfinished attempt, call `checkpoint()`.
        """
        return self.lost or self.cancel_requested or self.timed_out or self.is_stopping

    def checkpoint(self) -> None:
        """End the attempt here if `should_stop` is True. Call this method in loops that may run for a long time.

        After the task's `timeout`, raises TimeoutError, which fails the attempt like any other error. Raises Cancel if
        a user has cancelled the task, and Snooze if the worker is stopping or the lease is lost. After Snooze, the task
        can start over immediately, on any worker, and no attempt is used. The snooze event contains the reason.
        """
        if self.timed_out:
            raise TimeoutError(f"the handler ran for longer than its timeout of {self.claim.timeout_seconds:g} s")
        if self.cancel_requested:
            raise Cancel("as asked")
        if self.lost:
            raise Leave("its lease was lost" if self.was_lost else "its lease could not be extended in time")
        if self.is_stopping:
            raise Leave("the worker is stopping")

    @property
    def is_transactional(self) -> bool:
        """Return whether the handler runs inside a transaction that also commits its completion."""
        return self.unit is not None

    @property
    def inside(self) -> UnitOfWork | None:
        """The transaction in which the handler runs; None if there is no such transaction, or if the handler has ended."""
        return None if self.has_ended else self.unit

    @property
    def connection(self) -> Connection:
        """The connection of a transactional task. Everything written through this connection is committed together with
        the completion, or not at all.

        Raises InvalidTarget in a task that is not declared `transactional=True`.
        """
        return self._joined().connection

    @property
    def session(self) -> Session:
        """The Session of a transactional task, in the same transaction. Its `commit()` only ends a savepoint.

        Raises InvalidTarget in a task that is not declared `transactional=True`.
        """
        return self._joined().session

    @property
    def target(self) -> object:
        """The transaction of a transactional task in a form that `using()` accepts, whichever library it comes from."""
        return self._joined().target

    def progress(self, fraction: float, note: str = "") -> None:
        """Report how much of the work is done, as a number from 0 to 1 and a short note: ``ctx.progress(12 / 30, "12 of
        30")``.

        Nothing is written immediately: the worker's next heartbeat writes the latest report, so you may call this
        method as often as you like. The progress is shown in the dashboard, in `outboxq task show` and in `outboxq task
        explain`, and has no other effect. A fraction below 0 counts as 0, and a fraction above 1 counts as 1. Raises
        InvalidArgument if the fraction is not a number.
        """
        from .payload.parameters import sanitize  # imported here, because a process without handlers does not need it

        words = sanitize(" ".join(str(note).split()), limit=MAX_NOTE)
        self.reported = Progress(fraction=fraction_of(fraction), note=" ".join(words.split()))

    def retry_at(self, moment: datetime) -> NoReturn:
        """End this attempt and try again at `moment` (an aware datetime) instead of after the wait that the retry
        policy specifies. The attempt is counted.
        """
        raise Retry(at=moment)

    def snooze(self, delay: timedelta | float) -> NoReturn:
        """End this attempt and run the task again after `delay`, which is at least one second. No attempt is used."""
        raise Snooze(delay)

    @overload  # a ParamSpec allows no other keyword, so these arguments are checked when the step runs
    def step(self, name: str, function: Callable[..., R], /, *args: Any, transactional: bool, **kwargs: Any) -> R: ...
    @overload
    def step(
        self, name: str, function: Callable[Concatenate[TaskContext, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def step(  # type: ignore[misc]  # the two overloads with a ParamSpec do not take `transactional`
        self, name: str, function: Callable[..., R], /, *args: Any, transactional: bool = False, **kwargs: Any
    ) -> R:
        """Return the stored result of the step, or call the function and store its result.

        A result is stored as JSON under the step's name, and read according to the function's return annotation. Once a
        result has been stored, the function is not called again, even if the task is retried, snoozed or redriven, the
        process crashes, or a new version is deployed. If the function raises an exception, nothing is stored, and the
        next attempt calls the function again. A function whose first parameter is annotated with TaskContext receives
        this context.

        With `transactional`, the function's result is committed together with everything that the function writes
        through `ctx.session` or `ctx.connection` (in Django through the ORM, in Flask through `db.session`), so the
        effect happens exactly once. Without `transactional`, the function is called again if the process dies after the
        function has returned but before its result is committed.

        Raises StepRefused in a task that is itself transactional, inside another step, and in a thread other than the
        handler's. Also raises StepRefused for a name already used in this run, for any step after the 1,000th, for
        arguments that the function does not accept, and for a result that is not JSON or is larger than 256 KiB. Raises
        LeaseLost if another worker may hold the task; in that case nothing is stored.
        """
        return self._steps_by("step").run(self, name, (function, args, kwargs), transactional=transactional)  # type: ignore[no-any-return]

    def sleep(self, name: str, delay: timedelta | float) -> None:
        """Make the task sleep for `delay` (a timedelta or seconds), once in its lifetime. No thread waits, and no
        attempt is used.

        The first call stores the end time of the sleep under this name, and ends this attempt. When the sleep ends, the
        task runs again from the beginning, and the same call returns immediately. A crash, a retry or a redrive neither
        lengthens nor repeats the sleep. Raises the same errors as `step`.
        """
        self._steps_by("sleep").sleep(self, name, delay)

    def _steps_by(self, method: str) -> StepRunner:
        """Return the step runner. Raises StepRefused if no handler is running."""
        if self.has_ended:
            raise StepRefused(f"ctx.{method}() was called after the handler of {self.task_name} had ended")
        if self.step_runner is None:
            raise StepRefused(
                f"ctx.{method}() needs the worker that is running the task, but this context has no worker"
            )
        return self.step_runner

    def _joined(self) -> UnitOfWork:
        if self.unit is None:
            raise InvalidTarget(
                f"task {self.task_name} has no transaction of its own; declare it with transactional=True, call ctx.step(…, "
                "transactional=True), or pass a session to using()"
            )
        return self.unit


class Leave(Snooze):
    """A snooze for a task whose worker is stopping or whose lease is lost. The task is due immediately."""

    def __init__(self, reason: str) -> None:
        super().__init__(0)
        self.reason = reason


class Asleep(Snooze):
    """A snooze for a task that sleeps until a stored time."""

    def __init__(self, name: str, until: datetime) -> None:
        super().__init__(0)
        self.name = name
        self.until = until


current: ContextVar[TaskContext | None] = ContextVar("outboxq_context", default=None)
"""The context of the handler that this thread is running."""


class Process:
    """The purpose of this process. Code that waits for results takes it into account."""

    is_worker = False
    """True if the process does nothing but run handlers: a command has started it as a worker, or it is a child of a
    worker. In such a process, any thread except the main thread may have been started by a handler. There is no other
    way to tell whether a handler started a thread, because threads do not inherit `current`.
    """

    @contextmanager
    def as_worker(self) -> Iterator[None]:
        """Treat the process as a worker during the block."""
        before, self.is_worker = self.is_worker, True
        try:
            yield
        finally:
            self.is_worker = before


process: Final = Process()

LOG_FIELDS: Final = ("task_id", "task", "queue", "attempt")
"""The fields that `TaskContextFilter` sets."""


class TaskContextFilter(logging.Filter):
    """Adds the fields `task_id`, `task`, `queue` and `attempt` to each record that is logged inside a handler.

    A field that the record already has is kept. Outside handlers the fields are None, so a format string can always use
    them. Add the filter to a `logging.Handler`, because a filter on a logger does not see records from its child
    loggers.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the fields that the record does not have yet. Every record passes."""
        context = current.get()
        values: tuple[str | int | None, ...] = (None,) * len(LOG_FIELDS)
        if context is not None:
            values = str(context.task_id), context.task_name, context.queue, context.attempt
        for name, value in zip(LOG_FIELDS, values, strict=True):
            record.__dict__.setdefault(name, value)
        return True
