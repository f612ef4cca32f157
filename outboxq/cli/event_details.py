"""The details of a task's event as text: its data besides the type."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from ..model import ExecutionEvent

_NAMED = ("reason", "priority", "recovery_attempts", "expires_at", "policy_error")
"""Details that are written with their names. The error has a column of its own."""


def details(event: ExecutionEvent) -> str:
    """Return the attempt, the wait, and further details: "attempt 2, due in 9.6 s, reason: …"."""
    data = event.event_data
    parts = [f"attempt {data['attempt']}"] if data.get("attempt") is not None else []
    with suppress(KeyError, TypeError, ValueError):  # no due time, or a value that outboxq did not write
        wait = datetime.fromisoformat(data["available_at"]) - event.created_at
        if wait > timedelta(0):
            parts.append(f"due in {_span(wait)}")
    parts += [f"{name.replace('_', ' ')}: {data[name]}" for name in _NAMED if data.get(name) is not None]
    if (times := data.get("times")) is not None:
        parts.append(f"{times} times in a row")
    return ", ".join(parts)


def _span(span: timedelta) -> str:
    """Write a span: below a minute in tenths of a second, else as timedelta does, to the second."""
    return (
        f"{span.total_seconds():.1f} s"
        if span < timedelta(minutes=1)
        else str(timedelta(seconds=round(span.total_seconds())))
    )
