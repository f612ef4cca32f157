"""Statuses, event types, and the frozen records that are passed between the packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, Self
from uuid import UUID

from ..errors import InvalidArgument, InvalidCall
from .options import TaskOptions, duration
from .unknown_options import Answering, naming_options

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # its `default` allows plain `Handle` as an annotation

    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


class TaskStatus(StrEnum):
    """The status of a task execution. It is stored as one of these strings."""

    READY = "Ready"
    """The task is in the outbox. It is due now, delayed, or waiting for a retry."""
    RUNNING = "Running"
    """A worker has claimed the task, under a lease."""
    COMPLETED = "Completed"
    FAILED = "Failed"
    """outboxq has given up on the task, which is now a dead letter."""
    CANCELLED = "Cancelled"
    """The task was cancelled or discarded, or it expired; the last event shows which."""


class Waiting(StrEnum):
    """The state of a Ready task, in the terms that people use."""

    DUE = "due"
    """The task may start now."""
    DELAYED = "delayed"
    """The task is waiting for its first attempt, or was given a later due time."""
    RETRYING = "retrying"
    """The last attempt failed, and the next one is due later."""


TERMINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})


class EventType(StrEnum):
    """A transition of a task, as stored in `execution_events`. New types may be added, but existing ones are never
    renamed.

    A release that does not know a type reads it as a plain string and treats it as a note, which neither changes a
    task's status nor ends a claim. Therefore, a new type must either be a note without a lease token, or not be written
    until the schema supports only code that knows the type.
    """

    CREATED = "task_created"
    CLAIMED = "task_claimed"
    COMPLETED = "task_completed"
    RETRY_SCHEDULED = "task_retry_scheduled"
    FAILED = "task_failed"
    RESET = "task_reset"
    """The lease expired, and the task returned to the outbox."""
    ABANDONED = "task_abandoned"
    """The lease expired too many times in a row, and the task became Failed."""
    RELEASED = "task_released"
    """The task was released unfinished; no attempt was used."""
    SNOOZED = "task_snoozed"
    CANCELLED = "task_cancelled"
    CANCEL_REQUESTED = "task_cancel_requested"
    """A running task was asked to stop. It remains Running until its worker responds."""
    EXPIRED = "task_expired"
    DISCARDED = "task_discarded"
    REPLACED = "task_replaced"
    REQUEUED = "task_requeued"
    """A dead letter was redriven, and runs again from its first attempt."""
    RESCHEDULED = "task_rescheduled"
    """A user gave a waiting task a different due time or priority."""
    STEP_COMPLETED = "step_completed"
    """A step of a running task was completed, or a sleep began."""
    REWOUND = "task_rewound"
    """A user deleted the results of some steps, so that these steps run again."""
    UNROUTED = "event_unrouted"
    """An emit had no subscribers. The event does not belong to a task."""
    SKIPPED = "schedule_skipped"
    """Some of the ticks that a schedule missed will not run. The event does not belong to a task."""
    BATCH_CREATED = "batch_created"
    """A batch or a chain was created. The event does not belong to a task; its `pipeline_execution_id` is the batch's
    id.
    """
    BATCH_COMPLETED = "batch_completed"
    """The last task in a batch ended, and the next task, if any, was enqueued. The event does not belong to a task."""


STATUS_AFTER: Mapping[EventType, TaskStatus] = {
    EventType.CREATED: TaskStatus.READY,
    EventType.CLAIMED: TaskStatus.RUNNING,
    EventType.COMPLETED: TaskStatus.COMPLETED,
    EventType.RETRY_SCHEDULED: TaskStatus.READY,
    EventType.FAILED: TaskStatus.FAILED,
    EventType.RESET: TaskStatus.READY,
    EventType.ABANDONED: TaskStatus.FAILED,
    EventType.RELEASED: TaskStatus.READY,
    EventType.SNOOZED: TaskStatus.READY,
    EventType.CANCELLED: TaskStatus.CANCELLED,
    EventType.EXPIRED: TaskStatus.CANCELLED,
    EventType.DISCARDED: TaskStatus.CANCELLED,
    EventType.REPLACED: TaskStatus.READY,
    EventType.REQUEUED: TaskStatus.READY,
    EventType.RESCHEDULED: TaskStatus.READY,
}
"""The status after each transition. Types that are not listed do not change the status: a cancel request, steps, an
unrouted emit, skipped ticks, and types from a later release.
"""

LOST: Final = "lost"
"""The outcome of a claim whose worker died, or whose task another worker may have claimed."""

OUTCOMES: Final[Mapping[EventType, str]] = {
    EventType.COMPLETED: "completed",
    EventType.RETRY_SCHEDULED: "retried",
    EventType.FAILED: "failed",
    EventType.CANCELLED: "cancelled",
    EventType.SNOOZED: "snoozed",
    EventType.RELEASED: "released",
    EventType.RESET: LOST,
    EventType.ABANDONED: "failed",
}
"""The outcome of an attempt, by the event that ends its claim."""

ENDS_CLAIM = frozenset(OUTCOMES)
"""The types of events that can end a claim. If an event of one of these types has a lease token, it ended the claim
with that token. If a user changed a task that was not running, the event has no token and did not end a claim. A claim
can end only once: a unique index over (task, token) for these types turns a second attempt to end it into an error.
"""


class OnConflict(StrEnum):
    """The response to an enqueue whose idempotency key is already taken."""

    RETURN = "return"
    """Return the handle of the task that has the key."""
    SKIP = "skip"
    """Return a handle without a task (with the nil UUID)."""
    REPLACE = "replace"
    """Give the task the new arguments and options if it is still Ready. Its id and its position within its key do not
    change.
    """
    RAISE = "raise"
    """Raise DuplicateTask; nothing is written."""


UNKNOWN_TASK = "unknown task"
"""The reason recorded when a worker that does not know a task's name releases the task."""
INTERRUPTED = "interrupted transaction"
"""The reason recorded when a transactional task is released because an external error ended its transaction."""
MAX_INTERRUPTIONS = 5
"""The maximum number of consecutive interrupted transactions for which a task is released without using an attempt. The
count is reset when the handler itself ends the attempt.
"""
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9001, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)
"""The earliest and the latest time that the tables can store."""
MAX_NUMBER = 10**18
"""The largest lease token or position that the tables can store."""

MAX_RECOVERIES = 3
"""The maximum number of recoveries in a row before a task is abandoned. The count is reset when a live worker ends an
attempt.
"""
SUSPECT = 2
"""The number of recoveries in a row after which a task is suspected of killing its workers, and is run separately from
other suspected tasks.
"""


CONCURRENCY_KEY_PREFIX = "concurrency:"
"""The prefix of a stored concurrency key. All other keys are partition keys."""


def stored_key(partition_key: str | None, concurrency_key: str | None) -> str | None:
    """Return the key as stored in the tables. At most one of the two arguments may be given."""
    return partition_key if concurrency_key is None else CONCURRENCY_KEY_PREFIX + concurrency_key


def concurrency_key_of(stored: str | None) -> str | None:
    """Return the concurrency key contained in a stored key; None if it is a partition key or there is no key."""
    if stored is None or not stored.startswith(CONCURRENCY_KEY_PREFIX):
        return None
    return stored[len(CONCURRENCY_KEY_PREFIX) :]


class HasKey:
    """A record with a task's key, as stored in the tables."""

    __slots__ = ()

    partition_key: str | None

    @property
    def concurrency_key(self) -> str | None:
        """The key for which the queue limits how many tasks run at once; None if the task does not have one."""
        return concurrency_key_of(self.partition_key)


@dataclass(frozen=True, kw_only=True)
class NewTask(TaskOptions):
    """A task for `Store.enqueue` to write. Its arguments are already encoded."""

    id: UUID
    task_name: str
    args: str = field(repr=False)
    pipeline_execution_id: UUID | None = None
    """The id shared by tasks that belong together; None means the task's own id."""
    available_at: datetime | None = None
    """The time at which the task is due, as an aware datetime; None means now plus `delay`, by the database's clock."""
    delay: timedelta = timedelta(0)
    headers: str | None = field(default=None, repr=False)
    """The headers as a JSON object of strings; None if the task does not have any."""
    partition_key: str | None = None
    """The task's partition key; None if it does not have one. Tasks with the same queue and partition key run one at a
    time, in the order in which they were enqueued.
    """
    concurrency_key: str | None = None
    """The task's concurrency key; None if it does not have one. Tasks with the same queue and concurrency key run in
    any order, with at most as many at once as the queue's limit per key allows. Without a limit, they run one at a
    time.
    """
    topic: str | None = None
    """The topic of the emitted event that the task handles; None if the task was not enqueued by an event."""
    expires_at: datetime | None = None
    """The time after which the task is no longer started, as an aware datetime. If it is None, the task expires after
    `expires_in`, counted from now by the database's clock. If both are None, the task never expires.
    """
    expires_in: timedelta | None = None
    idempotency_key: str | None = None
    """A key that only one task with this name can have for as long as the task is kept, unless `unique_for` or
    `unique_until_finished` specifies a shorter time.
    """
    unique_for: timedelta | None = None
    """The time after which the key becomes free again."""
    unique_until_finished: bool = False
    """If True, the key becomes free again when its task ends."""
    on_conflict: OnConflict = OnConflict.RETURN

    made_of: ClassVar[Mapping[str, Any] | None] = None
    """The fields that were passed to `of`. Tasks that share this mapping differ only in their ids and arguments."""

    if not TYPE_CHECKING:

        def __init__(self, *, id: UUID, task_name: str, args: str, **others: Any) -> None:
            # A frozen dataclass sets each field with a function call, which takes four times as long as this update.
            if not others.keys() <= _FIELDS_OF_A_TASK:
                unknown = next(name for name in others if name not in _FIELDS_OF_A_TASK)
                raise TypeError(f"NewTask.__init__() got an unexpected keyword argument {unknown!r}")
            vars(self).update(others, id=id, task_name=task_name, args=args)

    @classmethod
    def of(cls, fields: Mapping[str, Any], task_id: UUID, args: str) -> Self:
        """Return a task with this id, these arguments and these other `fields`; fields that are left out get their
        defaults.
        """
        task = object.__new__(cls)  # a field's default is a class attribute
        vars(task).update(fields, id=task_id, args=args, made_of=fields)
        return task


_FIELDS_OF_A_TASK = frozenset(one.name for one in fields(NewTask))


class ResultSource(Protocol):
    """The outbox that a handle asks for its task's result."""

    def result(self, task_id: UUID, timeout: timedelta | float | None) -> Any: ...


class Sourced(Answering, Generic[R_co]):
    """A handle that knows which outbox to ask for results. The outbox is neither compared nor pickled."""

    __slots__ = ("_source",)
    _inner = frozenset({"asking"})

    id: UUID
    _source: Any

    @property
    def _known_source(self) -> Any:
        """The outbox that was passed to `asking`; None if the store made the handle, or if the handle was pickled or
        copied.
        """
        return getattr(self, "_source", None)

    def asking(self, source: ResultSource) -> Self:
        """Make this handle ask `source` for the result, and return the handle. Call this method before sharing the
        handle with other threads.
        """
        if self.id.int:  # the handle that all skipped tasks share does not belong to an outbox
            object.__setattr__(self, "_source", source)
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle(Sourced[R_co]):
    """The return value of `enqueue`: the task's id, and whether the task was created or replaced."""

    _noun = "a handle"
    id: UUID
    """The id of the task."""
    created: bool = True
    """If False, the idempotency key already belonged to a task, whose id is `id`."""
    replaced: bool = False
    """If True, the task that had the key was still Ready, and got the new arguments and options."""

    def result(self, timeout: timedelta | float | None = None) -> R_co:
        """Wait until the task has ended, and return what its function returned, read according to the return
        annotation.

        `timeout` is a timedelta or seconds. None waits forever; 0 checks once. `Outbox.result` documents the
        exceptions. Use that method if you know only the task's id.

        Raises InvalidCall if the handle does not know its outbox, because it was returned by `Store.enqueue`, pickled
        or copied.
        """
        if not self.id.int:
            raise InvalidCall(
                'this handle has no task: its idempotency key was taken, and on_conflict="skip" does not return the task that has '
                'the key; to wait for that task, enqueue with on_conflict="return"'
            )
        if self._known_source is None:
            raise InvalidCall(
                f"the handle of task {self.id} does not know its outbox, because the handle was created by the store, or was pickled or copied; "
                "write outbox.result(handle.id)"
            )
        return self._known_source.result(self.id, timeout)  # type: ignore[no-any-return]

    def _cure(self, name: str) -> str:
        return super(Handle, self)._cure(name) or (
            f"outbox.store.get(handle.id).{name}" if name in TaskExecution.__dataclass_fields__ else ""
        )


@dataclass(frozen=True, kw_only=True)
class Claim(HasKey):
    """The exclusive right to run a task until `lease_expires_at`, proved by the lease token and the
    worker id together.
    """

    id: UUID
    pipeline_execution_id: UUID
    task_name: str
    queue: str
    priority: int
    topic: str | None = None
    partition_key: str | None = None
    args: str = field(repr=False)
    headers: str | None = field(repr=False)
    attempt: int
    max_attempts: int | None
    recovery_attempts: int
    lease_token: int
    worker_id: UUID
    lease_seconds: float
    lease_expires_at: datetime
    timeout_seconds: float | None
    created_at: datetime
    first_started_at: datetime
    started_at: datetime
    waits_since: datetime | None = None
    """The later of the times at which the task was created and became due; None if unknown."""
    makes_way: bool = False
    """True if a task that is already stored may start when this one ends: the next task with the same key or in the
    same limited queue.
    """

    def __str__(self) -> str:
        return f"task {self.id} ({self.task_name})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of one claim, for the store to write. It is fenced by the claim's token and worker."""

    claim: Claim
    event_type: EventType
    result: str | None = field(default=None, repr=False)
    error: str | None = field(default=None, repr=False)
    """One line for `last_error`; None leaves it unchanged."""
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further event data, such as the traceback or the reason."""
    available_at: datetime | None = None
    delay: timedelta = timedelta(0)
    """A task that goes back to the outbox is due at `available_at` if that is given; otherwise, it is due after
    `delay`, by the database's clock.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskExecution(HasKey, Answering):
    """A row of `task_executions`, joined with its lease while the task is running."""

    _noun = "a task execution"

    id: UUID
    pipeline_execution_id: UUID
    task_name: str
    queue: str
    topic: str | None
    partition_key: str | None
    """The key as stored in the tables, where a concurrency key has the prefix `concurrency:`."""
    position: int
    priority: int
    args: str = field(repr=False)
    headers: str | None = field(repr=False)
    status: TaskStatus
    attempt: int
    max_attempts: int | None
    recovery_attempts: int
    lease_seconds: float
    timeout_seconds: float | None
    lease_token: int
    lease_expires_at: datetime | None
    worker_id: UUID | None
    cancel_requested_at: datetime | None
    on_dead_letter: str
    expires_at: datetime | None
    retry_at: datetime | None
    first_started_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    created_at: datetime
    updated_at: datetime
    last_error: str | None = field(repr=False)
    result: str | None = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionEvent:
    """A row of `execution_events`."""

    sequence_num: int
    pipeline_execution_id: UUID
    task_execution_id: UUID | None
    event_type: EventType | str
    """The type. It is a plain string if a later release wrote a type that this release does not know."""
    event_data: Mapping[str, Any] = field(repr=False)
    worker_id: UUID | None
    lease_token: int | None
    created_at: datetime


def event_type_of(stored: str) -> EventType | str:
    """Return the type of a stored event, or the string itself if this release does not know the type."""
    return _EVENT_TYPES.get(stored, stored)


_EVENT_TYPES: Mapping[str, EventType] = {str(kind): kind for kind in EventType}


def status_after(kind: EventType | str) -> TaskStatus | None:
    """Return the status after an event of this type; None if, as far as this release knows, the event does not change
    the status.
    """
    return STATUS_AFTER.get(kind) if isinstance(kind, EventType) else None


class Snooze(Exception):
    """Raise this in a handler to run the task again after `delay` (a timedelta or seconds, at least one second) without
    using an attempt.
    """

    @naming_options("Snooze()")
    def __init__(self, delay: timedelta | float) -> None:
        """Raise InvalidArgument if `delay` is not a span of time."""
        self.delay = duration(delay, "Snooze()")
        super().__init__(f"again in {self.delay}")


class Cancel(Exception):
    """Raise this in a handler to give up on the task. The task becomes Cancelled, with the reason, and is not retried."""

    def __init__(self, reason: str = "") -> None:
        self.reason = str(reason)
        super().__init__(reason)


class Retry(Exception):
    """Raise this in a handler to try again after `delay` (a timedelta or seconds) or at `at` (an aware datetime),
    regardless of the delay that the policy specifies.

    The attempt is counted. A time before 1970 makes the task due immediately; a time after the year 9000 makes it due
    at the end of that year. Raises InvalidArgument unless exactly one of `delay` and `at` is given.
    """

    @naming_options("Retry()")
    def __init__(self, delay: timedelta | float | None = None, *, at: datetime | None = None) -> None:
        if (delay is None) is (at is None):
            raise InvalidArgument("Retry takes either a delay or at=: write Retry(30) or Retry(at=moment)")
        if at is not None and at.utcoffset() is None:
            raise InvalidArgument("Retry(at=…) takes an aware datetime; add a time zone, e.g. datetime.now(UTC)")
        self.delay = None if delay is None else duration(delay, "Retry()")
        self.at = None if at is None else min(max(at, EARLIEST), LATEST).astimezone(UTC)
        super().__init__(f"again in {self.delay}" if at is None else f"again at {at.isoformat()}")


class TaskTimeout(BaseException):
    """The exception raised in a handler that is still running after its timeout, if the task has
    ``timeout_action="raise"`` or ``"kill"``.

    It may be raised at any line. ``except Exception`` does not catch it, so it also ends a loop that catches and logs
    the errors of individual items. Catch it only to clean up. The attempt has failed, and the retry policy treats it
    like the TimeoutError that ``ctx.checkpoint()`` raises.
    """

    def __init__(self, message: str = "the handler is still running after its timeout") -> None:
        super().__init__(message)


def fields_of(claim: Claim, **more: Any) -> dict[str, Any]:
    """Return the fields for a log record about this claim, for `extra=`. The fields exclude the task's arguments."""
    return {
        "task_id": str(claim.id),
        "task": claim.task_name,
        "queue": claim.queue,
        "attempt": claim.attempt,
        "worker": str(claim.worker_id),
        "pipeline_id": str(claim.pipeline_execution_id),
        **more,
    }
