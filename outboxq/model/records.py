"""Statuses, event types, and the frozen records that pass between the rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from ..errors import InvalidArgument


class TaskStatus(StrEnum):
    """Where a task execution stands; stored as these very strings."""

    READY = "Ready"
    """In the outbox: due now, delayed, or waiting for a retry."""
    RUNNING = "Running"
    """Claimed, under a lease."""
    COMPLETED = "Completed"
    FAILED = "Failed"
    """Given up: a dead letter."""
    CANCELLED = "Cancelled"
    """Cancelled, expired or discarded; the last event says which."""


TERMINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})


class EventType(StrEnum):
    """A transition, as `execution_events` keeps it for ever. Add, do not rename.

    Releases that do not know a type yet read it as text, and take it for a note: it moves no task and ends no claim. So an
    added type is a note, without a lease token; or it is first written once the schema admits only code that knows it.
    """

    CREATED = "task_created"
    CLAIMED = "task_claimed"
    COMPLETED = "task_completed"
    RETRY_SCHEDULED = "task_retry_scheduled"
    FAILED = "task_failed"
    RESET = "task_reset"
    """The lease expired; back in the outbox."""
    ABANDONED = "task_abandoned"
    """The lease expired once too often; now Failed."""
    RELEASED = "task_released"
    """Given back unfinished; no attempt used."""
    SNOOZED = "task_snoozed"
    CANCELLED = "task_cancelled"
    CANCEL_REQUESTED = "task_cancel_requested"
    """A running task was asked to stop; it is Running until its worker answers."""
    EXPIRED = "task_expired"
    DISCARDED = "task_discarded"
    REPLACED = "task_replaced"
    REQUEUED = "task_requeued"
    """A dead letter was redriven: it runs again, from its first attempt."""
    RESCHEDULED = "task_rescheduled"
    """A waiting task was given another due time or priority by hand."""
    UNROUTED = "event_unrouted"
    """An emit nobody subscribes to; it belongs to no task."""


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
"""The status each transition leads to. Types missing here (a cancel request, an unrouted emit, a later release's) change none."""

ENDS_CLAIM = frozenset(
    {
        EventType.COMPLETED,
        EventType.RETRY_SCHEDULED,
        EventType.FAILED,
        EventType.RESET,
        EventType.ABANDONED,
        EventType.RELEASED,
        EventType.SNOOZED,
        EventType.CANCELLED,
    }
)
"""The types that can end a claim. With a lease token such an event ended the claim of that token; a retry scheduled or a
cancellation by hand of a task that was not running ends none and carries no token. One claim has one end: a unique index
over (task, token) of these types turns a second end into an error instead of data."""


class OnConflict(StrEnum):
    """What an enqueue does whose idempotency key has a task already."""

    RETURN = "return"
    """Its handle names that task."""
    SKIP = "skip"
    """Its handle names none (the nil UUID): nobody asked which it is."""
    REPLACE = "replace"
    """That task, while it is Ready, takes over the new arguments and options; its id and its place in its key stay."""
    RAISE = "raise"
    """DuplicateTask is raised, and nothing written."""


class OnDeadLetter(StrEnum):
    """What becomes of a partition key whose task has Failed."""

    RELEASE = "release"
    """The next task of the key runs."""
    HOLD = "hold"
    """The key waits until the dead letter is redriven or discarded."""


UNKNOWN_TASK = "unknown task"
"""The reason in the event of a release by a worker that does not know the task's name."""
INTERRUPTED = "interrupted transaction"
"""The reason in the event of a release of a transactional task whose transaction an error from outside had ended."""
MAX_INTERRUPTIONS = 5
"""How often in a row that is nobody's failure. Any end by the task's own handler begins anew."""
LONGEST = timedelta(days=36500)
"""The longest lease, timeout or delay that can be asked for."""
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9001, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)
"""The first and the last instant that the tables take."""
MAX_ATTEMPT = 2**31 - 2
"""The last attempt, and the most recoveries, that the tables take: the next number is still one of PostgreSQL's integers."""
MAX_NUMBER = 10**18
"""The last lease token and position that the tables take."""

MAX_RECOVERIES = 3
"""How often in a row a task whose worker died is put back before it is abandoned. Any end by a living worker begins anew."""
SUSPECT = 2
"""A task recovered so often in a row may be what kills its workers: it runs apart from others like it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewTask:
    """One task execution to be written by `Store.enqueue`; arguments are encoded already."""

    id: UUID
    task_name: str
    args: str = field(repr=False)
    pipeline_execution_id: UUID | None = None
    """The parent of tasks that belong together; None: the task's own id."""
    queue: str = "default"
    priority: int = 0
    """-100 to 100, higher first."""
    available_at: datetime | None = None
    """The earliest moment, aware; None: now plus `delay`, by the database's clock."""
    delay: timedelta = timedelta(0)
    headers: str | None = field(default=None, repr=False)
    max_attempts: int | None = None
    lease: timedelta = timedelta(seconds=60)
    timeout: timedelta | None = None
    partition_key: str | None = None
    """Tasks of one queue and key run one at a time, in the order of their enqueueing; None: it waits for nobody."""
    on_dead_letter: OnDeadLetter = OnDeadLetter.RELEASE
    topic: str | None = None
    """Of the emitted event that it handles; None: it was enqueued by itself."""
    expires_at: datetime | None = None
    """It is not started from then on, aware; None: `expires_in` from now by the database's clock, or never."""
    expires_in: timedelta | None = None
    idempotency_key: str | None = None
    """One task for each name and key: for ever (as long as the task is kept), or as the next two say."""
    unique_for: timedelta | None = None
    """The key is free again after this long."""
    unique_until_finished: bool = False
    """The key is free again once its task has ended."""
    on_conflict: OnConflict = OnConflict.RETURN


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """What `enqueue` returns."""

    id: UUID
    created: bool = True
    """False: the idempotency key already had a task; `id` is that task's."""
    replaced: bool = False
    """That task was Ready and took over the new arguments and options."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The exclusive right to run one task execution until `lease_expires_at`, proved by token and worker together."""

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
    limited: bool = False
    """Its queue has limits."""

    @property
    def makes_way(self) -> bool:
        """Its end may let another task start, without any insert: the next of its key, or of its limited queue."""
        return self.partition_key is not None or self.limited


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one claim ends: what the store writes, fenced by the claim's token and worker."""

    claim: Claim
    event_type: EventType
    result: str | None = field(default=None, repr=False)
    error: str | None = field(default=None, repr=False)
    """One line for `last_error`; None leaves what stands there."""
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """More for the event: traceback, reason."""
    available_at: datetime | None = None
    delay: timedelta = timedelta(0)
    """For outcomes that go back to the outbox: when, absolute or from now by the database's clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskExecution:
    """A row of `task_executions`, joined with its lease while it runs."""

    id: UUID
    pipeline_execution_id: UUID
    task_name: str
    queue: str
    topic: str | None
    partition_key: str | None
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
    """Text where a later release has written a type that this one does not know."""
    event_data: Mapping[str, Any] = field(repr=False)
    worker_id: UUID | None
    lease_token: int | None
    created_at: datetime


def event_type_of(stored: str) -> EventType | str:
    """Return the type of a stored event: the text itself where a later release has written it."""
    return _EVENT_TYPES.get(stored, stored)


_EVENT_TYPES: Mapping[str, EventType] = {str(kind): kind for kind in EventType}


def status_after(kind: EventType | str) -> TaskStatus | None:
    """Return the status that an event of this type leads to; None: it leads to none, as far as this release knows."""
    return STATUS_AFTER.get(kind) if isinstance(kind, EventType) else None


def duration(value: timedelta | float, name: str) -> timedelta:
    """A timedelta, or seconds. Raises InvalidArgument for anything else."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{name} takes a timedelta or seconds, not {type(value).__name__}")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise InvalidArgument(f"{name} takes a span of time, and {value!r} seconds are none") from None


class Snooze(Exception):
    """Raise it in a handler: run me again in `delay` (a timedelta or seconds, at least one second); no attempt is used."""

    def __init__(self, delay: timedelta | float) -> None:
        """Raises InvalidArgument for what is no span of time."""
        self.delay = duration(delay, "Snooze()")
        super().__init__(f"again in {self.delay}")


class Cancel(Exception):
    """Raise it in a handler: this task is pointless now. It ends Cancelled, with the reason, and is not retried."""

    def __init__(self, reason: str = "") -> None:
        self.reason = str(reason)
        super().__init__(reason)


class Retry(Exception):
    """Raise it in a handler: try again after `delay` (a timedelta or seconds) or at `at` (aware), whatever the policy's wait.

    The attempt counts against its limit. A moment before 1970 is due at once, one after 9000 at the end of that year. Raises
    InvalidArgument.
    """

    def __init__(self, delay: timedelta | float | None = None, *, at: datetime | None = None) -> None:
        if (delay is None) is (at is None):
            raise InvalidArgument("Retry takes a delay or at=…, and not both: Retry(30), or Retry(at=moment)")
        if at is not None and at.utcoffset() is None:
            raise InvalidArgument("Retry(at=…) takes an aware datetime; add a time zone, e.g. datetime.now(UTC)")
        self.delay = None if delay is None else duration(delay, "Retry()")
        self.at = None if at is None else min(max(at, EARLIEST), LATEST).astimezone(UTC)
        super().__init__(f"again in {self.delay}" if at is None else f"again at {at.isoformat()}")
