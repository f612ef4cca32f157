"""The page of one task: why it does not run and what helps, what it is, and what has happened to it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ...errors import AmbiguousTask, InvalidArgument, TaskNotFound, UnknownTask
from ...model import TERMINAL, EventType, TaskExecution
from ...model.batches import is_batch, link_of
from ...model.display import redacted
from ...model.running import Step
from ...model.schedules import SCHEDULE_HEADER, TICK_HEADER
from ...operating.verbs import REDRIVE, Noun, State, verb_of
from ...store import Cure, Reason, TaskDetail
from ...store.explain.reasons import cure_of
from ...task.built_in import BULK, Selection
from ..request import PageRequest, View
from .actions import Action, offered
from .bulk import in_number, in_words
from .cures import offers, unfound
from .timeline import moment_of, moments_of, timed_attempts_of

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
