"""The events of tasks as commands print them: one line each, or one object."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from ..model import ExecutionEvent

HEAD = ("time", "event", "worker", "token", "details", "error")
SPARE = ("worker", "token")
_NAMED = ("reason", "priority", "recovery_attempts", "expires_at", "policy_error", "topic", "schedule")
"""Details of an event that are written with their names. The error has a column of its own."""


def lines(events: Iterable[ExecutionEvent]) -> list[tuple[object, ...]]:
    """Return the cells of each event, in the order of `HEAD`."""
    return [
        (e.created_at, e.event_type, e.worker_id, e.lease_token, details(e), e.event_data.get("error")) for e in events
    ]


def records(events: Iterable[ExecutionEvent], *, traceback: bool) -> list[dict[str, Any]]:
    """Return the events for JSON. `traceback`: with the traceback of each failed attempt, which may hold personal data."""
    from .output import merged

    found = [merged(event) for event in events]
    if not traceback:
        for one in found:
            one["event_data"].pop("traceback", None)
    return found


def details(event: ExecutionEvent) -> str:
    """Return the attempt, the wait, and further details: "attempt 2, due in 9.6 s, reason: …"."""
    data = event.event_data
    parts = [f"attempt {data['attempt']}"] if data.get("attempt") is not None else []
    with suppress(KeyError, TypeError, ValueError):  # no due time, or a value that outboxq did not write
        wait = datetime.fromisoformat(data["available_at"]) - event.created_at
        if wait > timedelta(0):
            parts.append(f"due in {_brief(wait)}")
    parts += [f"{name.replace('_', ' ')}: {data[name]}" for name in _NAMED if data.get(name) is not None]
    if (times := data.get("times")) is not None:
        parts.append(f"{times} times in a row")
    return ", ".join(parts)


def _brief(span: timedelta) -> str:
    """Write a span: below a minute in tenths of a second, else as timedelta does, to the second."""
    seconds = span.total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
