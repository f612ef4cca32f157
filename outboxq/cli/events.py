"""The events of tasks as commands print them: one line each, or one object."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

from ..model import ExecutionEvent
from ..model.progress import progress_of
from ..model.wording import plural
from .output import merged

HEAD: Final = ("time", "event", "worker", "token", "details", "error")
SPARE: Final = ("worker", "token")
PAYLOAD: Final = ("args", "result")
"""Fields of a task that are shown on request only."""
HANDLER_LOG: Final = ("log", "log_omitted")
"""Fields of the handler log. It stands beside its attempt, in `task show`, and not in the history."""
_NAMED = ("step", "reason", "priority", "recovery_attempts", "expires_at", "policy_error")
"""Details of an event that are written with their names. The error has a column of its own."""


def lines(events: Iterable[ExecutionEvent]) -> list[tuple[object, ...]]:
    """Return the cells of each event, in the order of `HEAD`."""
    return [
        (e.created_at, e.event_type, e.worker_id, e.lease_token, details(e), e.event_data.get("error")) for e in events
    ]


def record_of(event: ExecutionEvent, *, show_args: bool, traceback: bool) -> dict[str, Any]:
    """Return the event as JSON has it, without its handler log and what is shown on request only."""
    hidden = {*HANDLER_LOG, *(() if show_args else PAYLOAD), *(() if traceback else ("traceback",))}
    data = {name: value for name, value in event.event_data.items() if name not in hidden}
    return merged(event, {"event_data": data})


def details(event: ExecutionEvent) -> str:
    """Return the attempt, the wait, and further details: "attempt 2, due in 9.6 s, reached 40 %: 12 of 30, reason: …"."""
    data = event.event_data
    parts = [f"attempt {data['attempt']}"] if data.get("attempt") is not None else []
    if (wait := wait_of(event)) is not None:
        parts.append(f"due in {brief(wait)}")
    if (progress := progress_of(data.get("progress"))) is not None:
        parts.append(f"reached {progress}")
    parts += [f"{name.replace('_', ' ')}: {data[name]}" for name in _NAMED if data.get(name) is not None]
    if (times := data.get("times")) is not None:
        parts.append(f"{times} {plural(times, 'time')} in a row")
    return ", ".join(parts)


def wait_of(event: ExecutionEvent) -> timedelta | None:
    """Return how much later than the event the task is due; None if it is due at once."""
    with suppress(KeyError, TypeError, ValueError):  # no due time, or a value that outboxq did not write
        wait = datetime.fromisoformat(event.event_data["available_at"]) - event.created_at
        if wait > timedelta(0):
            return wait
    return None


def brief(span: timedelta) -> str:
    """Write a span: below a minute in tenths of a second, else as timedelta does, to the second."""
    seconds = span.total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
