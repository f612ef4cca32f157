"""What the page of one task shows besides its row: why it does not run, its arguments, its dead letter, and its history."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from ...errors import TaskNotFound
from ...model import ExecutionEvent
from .aliases import outboxes
from .models import DeadLetter, LiveWorker

_EVENTS = 200
"""How many of the newest events are shown."""
_LONGEST = 20_000
"""Of a text that is shown."""
HIDDEN = "********"

_NOTES = ("reason", "available_at", "expires_at", "priority", "recovery_attempts", "policy_error")
"""What an event says that people understand; the rest is for machines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One line of a task's history."""

    at: datetime
    event: str
    attempt: int | None
    worker: str | None
    notes: tuple[tuple[str, str], ...]
    error: str
    exception: str
    traceback: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """What is known of a task besides its row, as of one moment."""

    explanation: str
    waits_for: UUID | None
    """The task that comes first."""
    letter: Any
    """Its DeadLetter; None: it has not Failed."""
    moments: tuple[Moment, ...]
    """Oldest first."""
    left_out: int
    """How many older events are not shown."""


def story_of(alias: str, task_id: UUID) -> Story | None:
    """Read through Django's connection. None: there is no such task any more."""
    store = outboxes[alias].store
    with transaction.atomic(using=alias):
        try:
            explained = store.explain(task_id, using=alias)
        except TaskNotFound:
            return None
        events = store.history(task_id, using=alias)
        letter = DeadLetter.objects.using(alias).filter(pk=task_id).first()
        shown = events[-_EVENTS:]
        seen = {event.worker_id for event in shown} - {None}
        labels = dict(LiveWorker.objects.using(alias).filter(pk__in=seen).values_list("pk", "label")) if seen else {}
    return Story(
        explanation=plain(explained.sentence),
        waits_for=explained.waits_for,
        letter=letter,
        moments=tuple(_moment(event, labels) for event in shown),
        left_out=len(events) - len(shown),
    )


def payload(text: str | None, hidden: re.Pattern[str] | None) -> str:
    """Stored JSON for people; the values of names that match `hidden` are not shown."""
    if text is None:
        return ""
    try:
        found = _without(json.loads(text), hidden)
    except (ValueError, RecursionError) as error:
        return f"(cannot be read: {type(error).__name__})"  # nor can it be said what in it is secret
    return plain(json.dumps(found, indent=2, ensure_ascii=False))


def plain(text: str) -> str:
    """Not too long, and every character that is not to be seen written out, so that none can pretend to be another text."""
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… and {len(text) - _LONGEST} characters more"
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in cut)


def _without(value: Any, hidden: re.Pattern[str] | None) -> Any:
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if hidden is not None and hidden.search(name) else _without(inner, hidden)
            for name, inner in value.items()
        }
    return [_without(inner, hidden) for inner in value] if isinstance(value, list) else value


def _moment(event: ExecutionEvent, labels: Mapping[Any, str]) -> Moment:
    data = event.event_data
    worker = event.worker_id
    return Moment(
        at=event.created_at,
        event=plain(event.event_type),
        attempt=data.get("attempt"),
        worker=None if worker is None else plain(labels.get(worker, str(worker))),
        notes=tuple((name.replace("_", " "), plain(str(data[name]))) for name in _NOTES if data.get(name) is not None),
        error=plain(data.get("error") or ""),
        exception=plain(data.get("exception") or ""),
        traceback=plain(data.get("traceback") or ""),
    )
