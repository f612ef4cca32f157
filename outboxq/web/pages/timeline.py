"""The history of a task in sentences, and its attempts with their times. All times are those of the events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ...model import UNKNOWN_TASK, EventType, ExecutionEvent
from ...model.history import summed_up
from ...model.running import Progress, progress_of
from ...model.wording import span
from ...store import Attempt, TaskDetail
from ...store.tasks.tasks import attempts_of

_TONES: Final[Mapping[str, str]] = {
    EventType.CLAIMED: "running",
    EventType.COMPLETED: "completed",
    EventType.FAILED: "failed",
    EventType.ABANDONED: "failed",
    EventType.CREATED: "ready",
    EventType.REQUEUED: "ready",
    EventType.RESET: "failed",
    EventType.RETRY_SCHEDULED: "delayed",
    EventType.SNOOZED: "delayed",
}
"""The colour of an event."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """An event of a task as one entry of its timeline."""

    at: datetime
    event: str
    words: str
    tone: str
    due_at: datetime | None
    """The moment from which on the task may start, as the event says it; None: it was due at once, or does not say."""
    progress: Progress | None
    """Progress that the handler had reported when the attempt ended."""
    reason: str
    error: str
    exception: str
    traceback: str
    worker_id: UUID | None
    worker: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedAttempt:
    """An attempt, how long it waited from when it was due, and how long it ran."""

    attempt: Attempt
    waited: timedelta | None
    """None: its beginning is not among the events."""
    ran: timedelta | None
    worker: str
    ends_as: str
    """The end in one word; "" while it runs."""


def moments_of(detail: TaskDetail) -> list[Moment]:
    """Return the timeline of the events that were read, newest first."""
    return [_moment(event, run, detail) for event, run in summed_up(detail.events)][::-1]


def timed_attempts_of(detail: TaskDetail) -> list[TimedAttempt]:
    """Return the attempts of the events that were read, newest first."""
    due = _due_at_claims(detail.events)
    found = []
    for one in attempts_of(detail.events):
        since = due.get(one.lease_token)
        found.append(
            TimedAttempt(
                attempt=one,
                waited=None if since is None else max(one.started_at - since, timedelta(0)),
                ran=None if one.ended_at is None else max(one.ended_at - one.started_at, timedelta(0)),
                worker=_label(one.worker_id, detail),
                ends_as="" if one.outcome is None else ENDS.get(one.outcome, str(one.outcome)),
            )
        )
    return found[::-1]


ENDS: Final[Mapping[str, str]] = {
    EventType.COMPLETED: "completed",
    EventType.RETRY_SCHEDULED: "failed, to be retried",
    EventType.FAILED: "failed",
    EventType.RESET: "worker lost",
    EventType.ABANDONED: "worker lost, given up",
    EventType.RELEASED: "given back",
    EventType.SNOOZED: "snoozed",
    EventType.CANCELLED: "cancelled",
}
"""The ends of an attempt in words."""


def _due_at_claims(events: Sequence[ExecutionEvent]) -> dict[int, datetime]:
    """Return from when each claim could have been made: when the task was there and due, by the event before."""
    found, since = dict[int, datetime](), None
    for event in events:
        if event.event_type is EventType.CLAIMED:
            if since is not None and event.lease_token is not None:
                found[event.lease_token] = since
            since = None
        elif (due := moment_of(event.event_data.get("available_at"))) is not None:
            since = max(due, event.created_at)
    return found


def moment_of(value: Any) -> datetime | None:
    """Return the aware moment that an event's data says; None if it says none."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):  # written by another release or by another program
        return None
    return found if found.tzinfo is not None else None


def _moment(event: ExecutionEvent, run: Sequence[ExecutionEvent], detail: TaskDetail) -> Moment:
    data = event.event_data
    due = moment_of(data.get("available_at"))
    words = _words(event, detail)
    if len(run) > 1:
        words += f", {len(run)} times within {span(event.created_at - run[0].created_at)}"
    return Moment(
        at=event.created_at,
        event=str(event.event_type),
        words=words,
        tone=_TONES.get(event.event_type, ""),
        due_at=due if due is not None and due > event.created_at else None,
        progress=progress_of(data.get("progress")),
        reason=_text(data, "reason") if data.get("reason") != UNKNOWN_TASK else "",
        error=_text(data, "error"),
        exception=_text(data, "exception"),
        traceback=_text(data, "traceback"),
        worker_id=event.worker_id,
        worker=_label(event.worker_id, detail),
    )


def _words(event: ExecutionEvent, detail: TaskDetail) -> str:
    data, is_end = event.event_data, event.lease_token is not None
    attempt = data.get("attempt")
    match event.event_type:
        case EventType.CREATED:
            return "Enqueued" if detail.task.topic is None else f"Enqueued for the topic {detail.task.topic}"
        case EventType.CLAIMED:
            return f"Attempt {attempt} started" if attempt else "Started"
        case EventType.RETRY_SCHEDULED if is_end:
            return f"Failed; attempt {attempt} follows" if attempt else "Failed; another attempt follows"
        case EventType.RETRY_SCHEDULED:
            return f"Given another time, as attempt {attempt}" if attempt else "Given another time"
        case EventType.RELEASED if data.get("reason") == UNKNOWN_TASK:
            return "Given back: the worker does not know the task"
        case EventType.RESET:
            return "Taken back: the worker had not extended its lease"
        case EventType.RESCHEDULED:
            return f"Given the priority {data['priority']}" if data.get("priority") is not None else "Made due"
        case EventType.STEP_COMPLETED | EventType.REWOUND | EventType.SNOOZED if step := _text(data, "step"):
            return _words_of_step(event, step)
        case kind:
            return _PHRASES.get(kind, str(kind))


def _words_of_step(event: ExecutionEvent, step: str) -> str:
    match event.event_type:
        case EventType.REWOUND:
            return f"Rewound: its steps from {step} on run again"
        case EventType.SNOOZED:
            return f"Put off by its sleep {step}"
        case _:
            return f"Sleep {step} begun" if event.event_data.get("due_at") else f"Step {step} completed"


_PHRASES: Final[Mapping[str, str]] = {
    EventType.COMPLETED: "Completed",
    EventType.FAILED: "Failed for good",
    EventType.ABANDONED: "Given up: its workers died again and again",
    EventType.RELEASED: "Given back unfinished",
    EventType.SNOOZED: "Put off by its handler",
    EventType.CANCELLED: "Cancelled",
    EventType.CANCEL_REQUESTED: "Asked to stop",
    EventType.EXPIRED: "Expired before it was started",
    EventType.DISCARDED: "Discarded as a dead letter",
    EventType.REPLACED: "Given new arguments by a later enqueue of the same idempotency key",
    EventType.REQUEUED: "Redriven, to run from its first attempt",
}


def _label(worker_id: UUID | None, detail: TaskDetail) -> str:
    return "" if worker_id is None else detail.workers.get(worker_id, str(worker_id))


def _text(data: Mapping[str, Any], name: str) -> str:
    return str(data.get(name) or "")
