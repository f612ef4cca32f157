"""What the page of one task shows besides its row: why it does not run, its arguments, its dead letter, and its history."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from ...errors import TaskNotFound
from ...model import UNKNOWN_TASK, EventType, ExecutionEvent
from .admin_texts import local_time, localized
from .aliases import outboxes
from .models import DeadLetter, LiveWorker, OutboxEntry

_EVENTS = 200
"""How many lines of a history are shown at most."""
_READ = 1_000
"""How many of the newest events are read for them: a task that no worker knows has two each time it is given back."""
_LONGEST = 20_000
"""Of a text that is shown."""
HIDDEN = "********"

_NOTES = ("reason", "available_at", "expires_at", "priority", "recovery_attempts", "policy_error")
"""What an event says that people understand; the rest is for machines."""


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
    is_cut: bool
    """There are older events, which are not shown."""
    is_delayed: bool
    """It is Ready, and due later: it can be made due now."""


def story_of(alias: str, task_id: UUID) -> Story | None:
    """Read through Django's connection. None: there is no such task any more."""
    store = outboxes[alias].store
    with transaction.atomic(using=alias):
        try:
            explained = store.explain(task_id, using=alias)
        except TaskNotFound:
            return None
        events = store.recent_history(task_id, _READ + 1, using=alias)
        letter = DeadLetter.objects.using(alias).filter(pk=task_id).first()
        entries = OutboxEntry.objects.using(alias).filter(task_execution_id=task_id)
        due, now = entries.values_list("available_at", flat=True).first(), store.now(using=alias)
        shown = list(_runs(events[-_READ:]))
        seen = {event.worker_id for event, _ in shown[-_EVENTS:]} - {None}
        labels = dict(LiveWorker.objects.using(alias).filter(pk__in=seen).values_list("pk", "label")) if seen else {}
    return Story(
        explanation=plain(localized(explained.sentence)),
        waits_for=explained.waits_for,
        letter=letter,
        moments=tuple(_moment(event, labels, run) for event, run in shown[-_EVENTS:]),
        is_cut=len(events) > _READ or len(shown) > _EVENTS,
        is_delayed=due is not None and due > now,
    )


def _runs(events: Sequence[ExecutionEvent]) -> Iterator[tuple[ExecutionEvent, Sequence[ExecutionEvent]]]:
    """Yield each event with the releases that it stands for: a task that no worker knows is claimed and given back again and
    again, and that is one line. The others stand for none.
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


def _moment(event: ExecutionEvent, labels: Mapping[Any, str], run: Sequence[ExecutionEvent]) -> Moment:
    data = event.event_data
    worker = event.worker_id
    notes = [(name.replace("_", " "), plain(_said(name, data[name]))) for name in _NOTES if data.get(name) is not None]
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
    )


def _said(name: str, value: Any) -> str:
    """An instant as the rest of the page has it."""
    try:
        moment = datetime.fromisoformat(value) if name.endswith("_at") else None
    except (TypeError, ValueError):  # of another release, or another's hand
        moment = None
    return str(value) if moment is None or moment.tzinfo is None else local_time(moment)
