"""The history of a task: its events, replayed into the state of its row and summarized for display. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from .records import UNKNOWN_TASK, EventType, ExecutionEvent, TaskStatus, status_after


def summed_up(events: Sequence[ExecutionEvent]) -> Iterator[tuple[ExecutionEvent, Sequence[ExecutionEvent]]]:
    """Yield each event together with the releases that it summarizes.

    A task that the workers do not know is claimed and released repeatedly. All of these events are summarized by one
    entry, the last release. Every other event has its own entry.
    """
    run: list[ExecutionEvent] = []
    for index, event in enumerate(events):
        if _is_unknown(event):
            run.append(event)
        elif event.event_type is EventType.CLAIMED and index + 1 < len(events) and _is_unknown(events[index + 1]):
            continue
        else:
            if run:
                yield run[-1], run
            run = []
            yield event, ()
    if run:
        yield run[-1], run


def _is_unknown(event: ExecutionEvent) -> bool:
    return event.event_type is EventType.RELEASED and event.event_data.get("reason") == UNKNOWN_TASK


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskState:
    """The state that a task's row should have according to its events."""

    status: TaskStatus
    attempt: int
    recovery_attempts: int
    lease_token: int
    worker_id: UUID | None = None
    """The worker that has claimed the task; None unless the task is Running."""
    available_at: datetime | None
    """The time at which the task is due; None unless the task is Ready."""
    completed_at: datetime | None = None
    """The time at which the task ended; None if it has not ended."""
    last_error: str | None = field(default=None, repr=False)
    steps: tuple[str, ...] = ()
    """The names of the steps that the task has completed and the sleeps that it has begun, in event order."""


def replay(events: Iterable[ExecutionEvent]) -> TaskState:
    """Replay the events of one task, oldest first, and return the resulting state. Event types from a later release are
    skipped.

    Raises ValueError if the events do not begin with the task's creation.
    """
    state: TaskState | None = None
    for event in events:
        if isinstance(event.event_type, EventType):
            state = _after(state, event)
    if state is None:
        raise ValueError("a task without events cannot be replayed: every task has at least a task_created event")
    return state


def _after(before: TaskState | None, event: ExecutionEvent) -> TaskState:
    if before is None:
        if event.event_type is not EventType.CREATED:
            raise ValueError(
                f"event {event.sequence_num} is {event.event_type}, but the first event must be task_created"
            )
        before = TaskState(status=TaskStatus.READY, attempt=1, recovery_attempts=0, lease_token=0, available_at=None)
    data, status = event.event_data, status_after(event.event_type)
    if status is None:  # a request or a step does not change the status
        return replace(before, steps=_steps_after(before.steps, event))
    claimed = event.event_type is EventType.CLAIMED
    return TaskState(
        status=status,
        attempt=data.get("attempt", before.attempt),
        recovery_attempts=data.get("recovery_attempts", before.recovery_attempts),
        lease_token=event.lease_token if claimed and event.lease_token is not None else before.lease_token,
        worker_id=event.worker_id if claimed else None,
        available_at=datetime.fromisoformat(data["available_at"]) if status is TaskStatus.READY else None,
        completed_at=None if status in (TaskStatus.READY, TaskStatus.RUNNING) else event.created_at,
        last_error=data.get("error", before.last_error),
        steps=before.steps,
    )


def _steps_after(before: tuple[str, ...], event: ExecutionEvent) -> tuple[str, ...]:
    step, number = event.event_data.get("step"), event.event_data.get("number")
    if event.event_type is EventType.STEP_COMPLETED and isinstance(step, str):
        return (*before, step)
    if event.event_type is EventType.REWOUND and isinstance(number, int):
        return before[: max(0, number - 1)]
    return before
