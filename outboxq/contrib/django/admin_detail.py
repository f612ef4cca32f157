"""Parts of a task's page besides its row: the explanation, the arguments, the dead letter, and the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from ...errors import TaskNotFound
from ...model import ExecutionEvent
from ...model.handler_log import log_of, omitted_of
from ...model.history import summed_up
from ...model.progress import progress_of
from ...model.steps import Step
from ...model.wording import plural
from .admin_texts import local_time, localized, plain
from .django_outbox import outboxes
from .models import DeadLetter, LiveWorker, OutboxEntry

_EVENTS = 200
"""Maximum number of lines of a history."""
_READ = 1_000
"""Number of newest events that are read for those lines: a task that no worker knows has two for each release."""

_NOTES = ("step", "reason", "available_at", "due_at", "expires_at", "priority", "recovery_attempts", "policy_error")
"""Fields of an event's data that the page shows; the others are for programs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One line of a task's history."""

    at: str
    event: str
    attempt: int | None
    worker: str | None
    notes: tuple[tuple[str, str], ...]
    error: str
    exception: str
    traceback: str
    log: str
    """Last lines that its handler logged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLine:
    """One completed step of a task, or one sleep."""

    number: int
    name: str
    at: str
    until: str
    """End of a sleep; empty if it is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """The state of a task besides its row, at one moment."""

    explanation: str
    waits_for: UUID | None
    """Id of the task that comes first; None if there is none."""
    dead_letter: Any
    """Its DeadLetter; None unless the task is Failed."""
    moments: tuple[Moment, ...]
    """History of the task, oldest first."""
    is_cut: bool
    """True if there are older events, which are not shown."""
    steps: tuple[StepLine, ...]
    """Steps that the task has completed, in that order."""
    is_delayed: bool
    """True if the task is Ready and due later, so that it can be made due now."""


def story_of(alias: str, task_id: UUID) -> Story | None:
    """Read the story of a task through Django's connection; None if the task does not exist any more."""
    store = outboxes[alias].store
    with transaction.atomic(using=alias):
        try:
            explained = store.explain(task_id, using=alias)
        except TaskNotFound:
            return None
        events = store.recent_history(task_id, _READ + 1, using=alias)
        dead_letter = DeadLetter.objects.using(alias).filter(pk=task_id).first()
        entries = OutboxEntry.objects.using(alias).filter(task_execution_id=task_id)
        due, now = entries.values_list("available_at", flat=True).first(), store.now(using=alias)
        completed = store.steps.list(task_id, using=alias)
        shown = list(summed_up(events[-_READ:]))
        seen = {event.worker_id for event, _ in shown[-_EVENTS:]} - {None}
        labels = dict(LiveWorker.objects.using(alias).filter(pk__in=seen).values_list("pk", "label")) if seen else {}
    return Story(
        explanation=plain(localized(explained.sentence)),
        waits_for=explained.waits_for,
        dead_letter=dead_letter,
        moments=tuple(_moment(event, labels, run) for event, run in shown[-_EVENTS:]),
        is_cut=len(events) > _READ or len(shown) > _EVENTS,
        steps=tuple(map(_step, completed)),
        is_delayed=due is not None and due > now,
    )


def _step(step: Step) -> StepLine:
    return StepLine(
        number=step.number,
        name=plain(step.name),
        at=local_time(step.created_at, precisely=True),
        until="" if step.due_at is None else local_time(step.due_at),
    )


def _moment(event: ExecutionEvent, labels: Mapping[Any, str], run: Sequence[ExecutionEvent]) -> Moment:
    data = event.event_data
    worker = event.worker_id
    notes = [(name.replace("_", " "), plain(_text(name, data[name]))) for name in _NOTES if data.get(name) is not None]
    if (progress := progress_of(data.get("progress"))) is not None:
        notes.append(("reached", plain(str(progress))))
    if len(run) > 1:
        notes += [("times", str(len(run))), ("since", local_time(run[0].created_at))]
    return Moment(
        at=local_time(event.created_at, precisely=True),
        event=plain(event.event_type),
        attempt=data.get("attempt"),
        worker=None if worker is None else plain(labels.get(worker, str(worker))),
        notes=tuple(notes),
        error=plain(data.get("error") or ""),
        exception=plain(data.get("exception") or ""),
        traceback=plain(data.get("traceback") or ""),
        log="\n".join(_lines_of(data)),
    )


def _lines_of(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a handler log."""
    if omitted := omitted_of(data):
        yield f"… {omitted} {plural(omitted, 'line before these is', 'lines before these are')} not kept"
    for line in log_of(data):
        yield plain(f"{local_time(line.at, precisely=True)} {line.level} {line.logger}: {line.text}")


def _text(name: str, value: Any) -> str:
    """Return a value as text, a moment in the form of the rest of the page."""
    try:
        moment = datetime.fromisoformat(value) if name.endswith("_at") else None
    except (TypeError, ValueError):  # written by another release or by another program
        moment = None
    return str(value) if moment is None or moment.tzinfo is None else local_time(moment)
