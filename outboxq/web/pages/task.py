"""The page of one task: why it does not run and what helps, what it is, and what has happened to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ...errors import AmbiguousTask, InvalidArgument, TaskNotFound, UnknownTask
from ...model import TERMINAL, UNKNOWN_TASK, EventType, ExecutionEvent, TaskExecution
from ...model.batches import is_batch, link_of
from ...model.display import redacted
from ...model.history import summed_up
from ...model.running import Progress, Step, progress_of
from ...model.schedules import SCHEDULE_HEADER, TICK_HEADER
from ...model.wording import span
from ...operating.verbs import REDRIVE, Noun, State, verb_of
from ...store import Attempt, Cure, Reason, TaskDetail
from ...store.explain.reasons import cure_of
from ...store.tasks.tasks import attempts_of
from ...task.built_in import BULK, Selection
from ..request import PageRequest, View
from .actions import Action, offered, offers, unfound
from .bulk import in_number, in_words

_FEW, _MANY = 100, 5_000
"""Number of events that the page shows, and with `events=all`."""
_LOGS = 5
"""Number of attempts whose handler logs the page shows."""
_NO_TASK = "No such task"
_WAITS = frozenset({Reason.DELAYED, Reason.RETRY_LATER})


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """Stored JSON of a task, as text without secrets."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownStep:
    """A step of a task as the page shows it."""

    step: Step
    result: str | None
    """Its result as text without secrets; None: there is none, or it is hidden."""
    sleeps: bool
    """True if it is a sleep that is not over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkProgress:
    """The progress of a task that changes many others."""

    words: str
    left: str
    """The number of tasks that still match; empty once the task has ended."""
    result: str | None


def page(request: PageRequest) -> View:
    """Show one task by its id, or by the beginning of its id."""
    given = request.path["task_id"]
    try:
        task_id = request.store.find(given)
        events = _MANY if request.query.get("events") == "all" else _FEW
        detail = request.store.task_detail(task_id, events=events)
    except AmbiguousTask as error:
        return unfound(_NO_TASK, f"{error}.", several=error.task_ids, status=300 if error.task_ids else 404)
    except TaskNotFound as error:
        helps = offers(request, _cures_of(given))
        return _not_enqueued(request, given) or unfound(_NO_TASK, f"{error}.", offered=helps)
    except InvalidArgument as error:
        return unfound(_NO_TASK, f"{error}.")
    return _shown(request, detail)


def _shown(request: PageRequest, detail: TaskDetail) -> View:
    task, why = detail.task, detail.explanation
    schedule, tick = _origin(task)
    steps = _steps(request, detail)
    payloads = _payloads(task) if request.viewer.may_see_arguments else []
    attempts = timed_attempts_of(detail)
    values = {
        "detail": detail,
        "task": task,
        "why": why,
        "offers": offers(request, why.cures, with_final=True),
        "acts": _actions(request, detail),
        "in_batch": is_batch(task.pipeline_execution_id),
        "next_due": _next_due(detail),
        "retry_wait": _retry_wait(detail),
        "policy": _policy(request, task),
        "attempts": attempts,
        "logged": [one for one in attempts if one.attempt.log][:_LOGS],
        "moments": moments_of(detail),
        "all_events": request.url("task", task_id=task.id, events="all") if detail.is_cut else None,
        "is_all": request.query.get("events") == "all",
        "steps": steps,
        "rerun": request.outbox.integration.front_end.typed(("task", "rerun", str(task.id), "--from", "STEP")),
        "bulk": _bulk(request, task) if task.task_name == BULK else None,
        "payloads": payloads,
        "schedule": schedule,
        "tick": tick,
    }
    data = {
        "explanation": why,
        "due_at": detail.due_at,
        "task": _without_payload(task),
        "attempts": attempts,
        "steps": [_without_result(one.step) for one in steps],
    }
    return View(template="task.html", title=task.task_name, values=values, data=data)


def _steps(request: PageRequest, detail: TaskDetail) -> list[ShownStep]:
    """Return the steps of the task. A task whose events show none costs no look."""
    if not detail.is_cut and not any(one.event_type is EventType.STEP_COMPLETED for one in detail.events):
        return []
    may_see = request.viewer.may_see_arguments
    return [
        ShownStep(
            step=step,
            result=redacted(step.result) if may_see and step.result is not None else None,
            sleeps=step.due_at is not None and step.due_at > detail.at,
        )
        for step in request.store.steps.list(detail.task.id)
    ]


def _not_enqueued(request: PageRequest, given: str) -> View | None:
    """Return the page of a task that follows a batch, or another one of a chain, and is not there yet; None for any other id."""
    try:
        why = request.store.explain(UUID(given))
    except (ValueError, TaskNotFound):
        return None
    if why.reason is not Reason.NOT_ENQUEUED:  # it was enqueued just now
        return None
    return unfound(
        "Not enqueued",
        f"{why.sentence}.",
        task_id=UUID(given),
        first=why.waits_for,
        offered=offers(request, why.cures, with_final=True),
        data={"explanation": why},
    )


def _cures_of(given: str) -> tuple[Cure, ...]:
    """Return what helps where this is the id of a batch."""
    try:
        link = link_of(UUID(given))
    except ValueError:
        return ()
    return () if link is None else cure_of("see the batch", "batch", "show", link.batch_id)


def _actions(request: PageRequest, detail: TaskDetail) -> dict[str, Action]:
    """Return the verbs that the page offers beside those of the cures. A key that was lost can only be taken back here."""
    task = detail.task
    state = State(
        status=task.status,
        is_delayed=detail.due_at is not None and detail.due_at > detail.at,
        was_asked_to_stop=task.cancel_requested_at is not None,
    )
    cured = {verb_of(cure.command) for cure in detail.explanation.cures} - ({REDRIVE} if detail.lost_key else set())
    found = offered(request, Noun.TASK, task.id, state)
    return {key: one for key, one in found.items() if one.verb not in cured}


def _bulk(request: PageRequest, task: TaskExecution) -> BulkProgress | None:
    """Return how far the task is; None if its arguments are none that the dashboard wrote."""
    try:
        wanted = Selection.of_json(json.loads(task.args)["selection"])
    except (InvalidArgument, ValueError, TypeError, LookupError):
        return None
    left = "" if task.status in TERMINAL else in_number(wanted.count(request.store))
    words = f"{wanted.action.capitalize()} {in_words(wanted)}, as of {wanted.at:%Y-%m-%d %H:%M:%S} UTC"
    return BulkProgress(words=words, left=left, result=task.result)


def _next_due(detail: TaskDetail) -> datetime | None:
    """Return the due time of a task that has another reason to wait as well; the sentence about its state does not say it."""
    if detail.due_at is None or detail.due_at <= detail.at or detail.explanation.reason in _WAITS:
        return None
    return detail.due_at


def _retry_wait(detail: TaskDetail) -> timedelta | None:
    """Return the time that the retry policy chose after the last failure; None unless the task waits for that."""
    if detail.explanation.reason is not Reason.RETRY_LATER or not detail.events:
        return None
    last = detail.events[-1]
    due = moment_of(last.event_data.get("available_at"))
    by_policy = last.event_type is EventType.RETRY_SCHEDULED and last.lease_token is not None
    return due - last.created_at if by_policy and due is not None else None


def _policy(request: PageRequest, task: TaskExecution) -> str:
    """Return the retry policy of the task in words; "" if this process does not know the task."""
    with suppress(UnknownTask):
        return repr(request.outbox.tasks.get(task.task_name).retry)
    return ""


def _origin(task: TaskExecution) -> tuple[str | None, datetime | None]:
    """Return the schedule that a task is of, and its tick."""
    with suppress(ValueError, TypeError, LookupError, AttributeError):
        headers: Any = json.loads(task.headers or "{}")
        return str(headers[SCHEDULE_HEADER]), moment_of(headers.get(TICK_HEADER))
    return None, None


def _payloads(task: TaskExecution) -> list[Payload]:
    stored = {"Arguments": task.args, "Result": task.result, "Headers": task.headers}
    return [Payload(name=name, text=redacted(text)) for name, text in stored.items() if text is not None]


def _without_result(step: Step) -> dict[str, Any]:
    return {name: getattr(step, name) for name in Step.__dataclass_fields__ if name != "result"}


def _without_payload(task: TaskExecution) -> dict[str, Any]:
    names = TaskExecution.__dataclass_fields__.keys() - {"args", "headers", "result"}
    return {name: getattr(task, name) for name in TaskExecution.__dataclass_fields__ if name in names}


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
