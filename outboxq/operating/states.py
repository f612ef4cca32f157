"""The states of a task as people think of them. A Ready task is due, delayed, or waiting for its retry."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from ..errors import InvalidArgument
from ..model import TaskExecution, TaskStatus, Waiting

STATES: Final[Mapping[str, tuple[TaskStatus, Waiting | None]]] = {
    **{one.value: (TaskStatus.READY, one) for one in Waiting},
    **{status.lower(): (status, None) for status in TaskStatus},
}
"""The words for `--status` and for the dashboard's filter, with the status and the part of Ready that they select."""


def read_state(text: str) -> tuple[TaskStatus, Waiting | None]:
    """Return the status and the part of Ready that a word selects. Raises InvalidArgument."""
    if (found := STATES.get(text.lower())) is None:
        raise InvalidArgument(f"there is no state {text!r}: choose one of {', '.join(STATES)}")
    return found


def state_of(task: TaskExecution, due_at: datetime | None, now: datetime) -> str:
    """Return the state of a task in one word. `due_at` is the due time of a Ready task."""
    if task.status is not TaskStatus.READY:
        return task.status.lower()
    if due_at is None or due_at <= now:
        return Waiting.DUE
    return Waiting.DELAYED if task.retry_at is None else Waiting.RETRYING
