"""The page about a task: why it is not running, what can be done about it, its fields, its history and its attempts.

All times in the history are the times of the events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ...errors import AmbiguousTask, InvalidArgument, TaskNotFound, UnknownTask
from ...model import TERMINAL, UNKNOWN_TASK, EventType, ExecutionEvent, TaskExecution, TaskStatus
from ...model.batches import is_batch, link_of
from ...model.display import HEAD, group_of, message_of, redacted
from ...model.history import summed_up
from ...model.running import Progress, Step, progress_of
from ...model.schedules import SCHEDULE_HEADER, TICK_HEADER
from ...model.wording import grouped, span
from ...operating.reading import state_of
from ...operating.verb import Noun, State
from ...operating.verbs import REDRIVE, verb_of
from ...store import Attempt, Reason, TaskDetail
from ...store.explain.reasons import cure_of
from ...store.tasks.tasks import attempts_of
from ...task.built_in import BULK, Selection
from ..request import PAYLOAD, PageRequest, View, without
from .actions import Action, offered, offers, unfound
from .bulk import act_in_words, in_number, in_words

_FEW, _MANY = 100, 5_000
"""The maximum number of events on the page, by default and with `events=all`."""
_SHORT = timedelta(seconds=10)
"""If an attempt ran for less time than this, times are shown to the millisecond."""
_GROUPED = 2_000
"""The maximum number of dead letters with the task's name that are grouped to count those that failed in the same way.
Grouping them takes 20 ms.
"""
_LOGS = 5
"""The maximum number of attempts whose handler logs are shown."""
_NO_TASK = "No such task"
_WAITS = frozenset({Reason.DELAYED, Reason.RETRY_LATER})


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownStep:
    """A task's step as the page shows it."""

    step: Step
    result: str | None
    """The result as a string without secrets; None if the step has no result, or the result is hidden."""
    sleeps: bool
    """True if the step is a sleep that is not over yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A task's event as an entry in its timeline."""

    at: datetime
    words: str
    tone: str
    """The name of the entry's color in the style sheet."""
    due_at: datetime | None
    """The earliest time at which the task may start; None if the task was due immediately, or the event does not
    contain a due time.
    """
    progress: Progress | None
    """The progress that the handler had reported when the attempt ended."""
    reason: str
    error: str
    worker_id: UUID | None
    worker: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedAttempt:
    """An attempt, how long it waited after it was due, and how long it ran."""

    attempt: Attempt
    waited: timedelta | None
    """The time that the attempt waited; None if the events do not include the beginning of the attempt."""
    ran: timedelta | None
    worker: str
    ends_as: str
    """The outcome in words; "" while the attempt is running."""


def page(request: PageRequest) -> View:
    """Show the task with this id, or the one whose id begins with these digits."""
    given = request.path["task_id"]
    try:
        task_id = request.store.find(given)
        events = _MANY if request.query.get("events") == "all" else _FEW
        detail = request.store.task_detail(task_id, events=events)
    except AmbiguousTask as error:
        return unfound(_NO_TASK, f"{error}.", several=error.task_ids, status=300 if error.task_ids else 404)
    except TaskNotFound as error:
        return _not_enqueued(request, given) or unfound(_NO_TASK, f"{error}.", offers=offers(request, _cures_of(given)))
    except InvalidArgument as error:
        return unfound(_NO_TASK, f"{error}.")
    task, why = detail.task, detail.explanation
    schedule, tick = _origin(task)
    steps = _steps(request, detail)
    attempts = _timed_attempts(detail)
    stored = {"Arguments": task.args, "Result": task.result, "Headers": task.headers}
    values = {
        "detail": detail,
        "task": task,
        "state": state_of(task, detail.due_at, detail.at),
        "why": why,
        "offers": offers(request, why.cures, with_final=True),
        "acts": _actions(request, detail),
        "in_batch": is_batch(task.pipeline_execution_id),
        "next_due": _next_due(detail),
        "retry_wait": _retry_wait(detail),
        "policy": _policy(request, task),
        "most_attempts": most_attempts(request, task),
        "group": _group(detail),
        "others": _others(request, detail),
        "attempts": attempts,
        "is_fine": any(one.ran is not None and one.ran < _SHORT for one in attempts),
        "logged": [one for one in attempts if one.attempt.log][:_LOGS],
        "moments": [_moment(event, run, detail) for event, run in summed_up(detail.events)][::-1],
        "all_events": request.url("task", task_id=task.id, events="all") if detail.is_cut else None,
        "is_all": request.query.get("events") == "all",
        "steps": steps,
        "rerun": request.typed("task", "rerun", str(task.id), "--from", "STEP"),
        "bulk": _bulk(request, task) if task.task_name == BULK else None,
        "payloads": {name: redacted(text) for name, text in stored.items() if text is not None}
        if request.viewer.may_see_arguments
        else {},
        "schedule": schedule,
        "tick": tick,
    }
    data = {
        "explanation": why,
        "due_at": detail.due_at,
        "task": without(task, *PAYLOAD),
        "attempts": attempts,
        "steps": [without(one.step, "result") for one in steps],
    }
    return View(template="pages/task.html", title=task.task_name, values=values, data=data)


def _steps(request: PageRequest, detail: TaskDetail) -> list[ShownStep]:
    """Return the task's steps. If the events show that there are no steps, the database is not queried."""
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
    """Return the page about an event, or about a task that will follow a batch or another task in a chain; None if the
    id belongs to neither.
    """
    try:
        why = request.store.explain(UUID(given))
    except (ValueError, TaskNotFound):
        return None
    if why.reason is not Reason.NOT_ENQUEUED and not why.reason.is_of_event:  # it was enqueued just now
        return None
    helps = offers(request, why.cures, with_final=True)
    about: dict[str, Any] = {"task_id": UUID(given), "first": why.waits_for, "offers": helps}
    title = "Event of a relay" if why.reason.is_of_event else "Not enqueued"
    return unfound(title, f"{why.sentence}.", **about, data={"explanation": why})


def _cures_of(given: str) -> tuple[Any, ...]:
    """Return the cures for an id that belongs to a batch."""
    try:
        link = link_of(UUID(given))
    except ValueError:
        return ()
    return () if link is None else cure_of("see the batch", "batch", "show", link.batch_id)


def _actions(request: PageRequest, detail: TaskDetail) -> dict[str, Action]:
    """Return the verbs that the page offers in addition to the cures. If the task has lost its key, the verbs include a
    redrive, which can take the key back.
    """
    task = detail.task
    state = State(
        status=task.status,
        is_delayed=detail.due_at is not None and detail.due_at > detail.at,
        was_asked_to_stop=task.cancel_requested_at is not None,
        worker_is_live=True,  # otherwise, the cures contain the recovery
    )
    cured = {verb_of(cure.command) for cure in detail.explanation.cures} - ({REDRIVE} if detail.lost_key else set())
    found = offered(request, Noun.TASK, task.id, state)
    return {key: one for key, one in found.items() if one.verb not in cured}


def _bulk(request: PageRequest, task: TaskExecution) -> dict[str, str | None] | None:
    """Return the progress of a task that changes many other tasks; None if its arguments were not written by the
    dashboard.
    """
    try:
        wanted = Selection.of_json(json.loads(task.args)["selection"])
    except (InvalidArgument, ValueError, TypeError, LookupError):
        return None
    left = "" if task.status in TERMINAL else in_number(wanted.count(request.store))
    many = "all" if wanted.limit is None else f"the oldest {grouped(wanted.limit)}"
    words = f"{act_in_words(wanted, in_words(wanted, many))}, as of {wanted.at:%Y-%m-%d %H:%M:%S} UTC"
    recorded = request.store.actions.get(task.id)
    return {"words": words, "left": left, "changed": None if recorded is None else grouped(recorded.changed)}


def _next_due(detail: TaskDetail) -> datetime | None:
    """Return the due time of a task that is not due yet, if another reason explains why the task is waiting. In that
    case, the sentence about the task's state does not mention the due time.
    """
    if detail.due_at is None or detail.due_at <= detail.at or detail.explanation.reason in _WAITS:
        return None
    return detail.due_at


def _retry_wait(detail: TaskDetail) -> timedelta | None:
    """Return how long the retry policy made the task wait after its last failure; None if the task is not waiting for a
    retry.
    """
    if detail.explanation.reason is not Reason.RETRY_LATER or not detail.events:
        return None
    last = detail.events[-1]
    due = _aware(last.event_data.get("available_at"))
    by_policy = last.event_type is EventType.RETRY_SCHEDULED and last.lease_token is not None
    return due - last.created_at if by_policy and due is not None else None


def _policy(request: PageRequest, task: TaskExecution) -> str:
    """Return the task's retry policy in words; "" if this process does not know the task."""
    with suppress(UnknownTask):
        return request.outbox.tasks.get(task.task_name).retry_policy.words
    return ""


def _group(detail: TaskDetail) -> str | None:
    """Return the id of a dead letter's group; None for any other task."""
    task = detail.task
    if task.status is not TaskStatus.FAILED:
        return None
    return group_of(task.task_name, detail.exception, message_of((task.last_error or "")[:HEAD]))


def _others(request: PageRequest, detail: TaskDetail) -> int | None:
    """Return the number of other dead letters in a dead letter's group. None if the task is not a dead letter, if none
    of the newest dead letters is in the group, or if there are more dead letters than the page can group.
    """
    group = _group(detail)
    if group is None:
        return None
    found = request.store.dead_letters.groups(limit=1, most=_GROUPED, task=detail.task.task_name, group=group)
    return found.groups[0].count - 1 if found.groups and found.is_complete else None


def most_attempts(request: PageRequest, task: TaskExecution) -> int | None:
    """Return the maximum number of attempts: the task's own or, if it has none, its retry policy's; None if there is no
    maximum, or if this process does not know the task.
    """
    if task.max_attempts is None:
        with suppress(UnknownTask):
            return request.outbox.tasks.get(task.task_name).retry_policy.max_attempts
    return task.max_attempts


def _origin(task: TaskExecution) -> tuple[str | None, datetime | None]:
    """Return a task's schedule and tick."""
    with suppress(ValueError, TypeError, LookupError, AttributeError):
        headers: Any = json.loads(task.headers or "{}")
        return str(headers[SCHEDULE_HEADER]), _aware(headers.get(TICK_HEADER))
    return None, None


_KINDS: Final[Mapping[str, tuple[str, str, str]]] = {
    EventType.CREATED: ("ready", "Enqueued", ""),
    EventType.CLAIMED: ("running", "Started", ""),
    EventType.COMPLETED: ("completed", "Completed", "completed"),
    EventType.FAILED: ("failed", "Failed permanently", "failed"),
    EventType.ABANDONED: ("failed", "Given up: its workers died repeatedly", "worker lost, given up"),
    EventType.RESET: ("failed", "Recovered: the worker had not extended its lease", "worker lost"),
    EventType.RETRY_SCHEDULED: ("delayed", "Rescheduled", "failed, to be retried"),
    EventType.SNOOZED: ("delayed", "Postponed by its handler", "snoozed"),
    EventType.RELEASED: ("", "Released unfinished", "released"),
    EventType.CANCELLED: ("", "Cancelled", "cancelled"),
    EventType.CANCEL_REQUESTED: ("", "Asked to stop", ""),
    EventType.EXPIRED: ("", "Expired before it was started", ""),
    EventType.DISCARDED: ("", "Discarded as a dead letter", ""),
    EventType.REPLACED: ("", "Given new arguments by a later enqueue with the same idempotency key", ""),
    EventType.REQUEUED: ("ready", "Redriven: runs again from its first attempt", ""),
    EventType.RESCHEDULED: ("", "Made due", ""),
}
"""The color and the words for an event, and the words for an attempt that the event ended."""


def _timed_attempts(detail: TaskDetail) -> list[TimedAttempt]:
    """Return the attempts in the events, newest first."""
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
                ends_as="" if one.outcome is None else _KINDS.get(one.outcome, ("", "", ""))[2] or str(one.outcome),
            )
        )
    return found[::-1]


def _due_at_claims(events: Sequence[ExecutionEvent]) -> dict[int, datetime]:
    """Return the times since which the task had been due when it was claimed, keyed by lease token. Each of these times
    is taken from the event that precedes the claim.
    """
    found, since = dict[int, datetime](), None
    for event in events:
        if event.event_type is EventType.CLAIMED:
            if since is not None and event.lease_token is not None:
                found[event.lease_token] = since
            since = None
        elif (due := _aware(event.event_data.get("available_at"))) is not None:
            since = max(due, event.created_at)
    return found


def _aware(value: Any) -> datetime | None:
    """Return the aware datetime in an event's data; None for any other value."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):  # another release or another program wrote it
        return None
    return found if found.tzinfo is not None else None


def _moment(event: ExecutionEvent, run: Sequence[ExecutionEvent], detail: TaskDetail) -> Moment:
    """Return an event as an entry in the timeline."""
    data = event.event_data
    due = _aware(data.get("available_at"))
    words = _words(event, detail)
    if len(run) > 1:
        words += f", {len(run)} times within {span(event.created_at - run[0].created_at)}"
    return Moment(
        at=event.created_at,
        words=words,
        tone=_KINDS.get(event.event_type, ("",))[0],
        due_at=due if due is not None and due > event.created_at else None,
        progress=progress_of(data.get("progress")),
        reason=_text(data, "reason") if data.get("reason") != UNKNOWN_TASK else "",
        error=_text(data, "error"),
        worker_id=event.worker_id,
        worker=_label(event.worker_id, detail),
    )


def _words(event: ExecutionEvent, detail: TaskDetail) -> str:
    data, kind = event.event_data, event.event_type
    attempt, step = data.get("attempt"), _text(data, "step")
    match kind:
        case EventType.CREATED if detail.task.topic is not None:
            return f"Enqueued for the topic {detail.task.topic}"
        case EventType.CLAIMED if attempt:
            return f"Attempt {attempt} started"
        case EventType.RETRY_SCHEDULED if event.lease_token is not None:
            return f"Failed; attempt {attempt} follows" if attempt else "Failed; another attempt follows"
        case EventType.RETRY_SCHEDULED if attempt:
            return f"Rescheduled as attempt {attempt}"
        case EventType.RELEASED if data.get("reason") == UNKNOWN_TASK:
            return "Released: the worker does not know the task"
        case EventType.RESCHEDULED if data.get("priority") is not None:
            return f"Given the priority {data['priority']}"
        case EventType.REWOUND if step:
            return f"Rewound: it runs again from step {step}"
        case EventType.SNOOZED if step:
            return f"Postponed by sleep {step}"
        case EventType.STEP_COMPLETED if step:
            return f"Sleep {step} started" if data.get("due_at") else f"Step {step} completed"
    return _KINDS[kind][1] if kind in _KINDS else str(kind)


def _label(worker_id: UUID | None, detail: TaskDetail) -> str:
    return "" if worker_id is None else detail.workers.get(worker_id, str(worker_id))


def _text(data: Mapping[str, Any], name: str) -> str:
    return str(data.get(name) or "")
