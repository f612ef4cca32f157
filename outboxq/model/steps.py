"""Durable steps: their limits, and the record of one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

MAX_STEPS = 1000
"""Maximum number of steps of one task, sleeps included."""
LONGEST_NAME = 200
"""Maximum number of characters of a step's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A row of `task_steps`: a step that the task has completed, or a sleep that it has begun."""

    task_execution_id: UUID
    name: str
    number: int
    """The place in the order in which the task completed its steps, from 1."""
    lease_token: int
    """The lease token of the claim that wrote it."""
    result: str | None = field(repr=False)
    """The result as JSON; None: the function returned None, or it is a sleep."""
    due_at: datetime | None
    """The end of a sleep; None: it is no sleep."""
    created_at: datetime


def time_asleep(steps: Iterable[Step], *, since: datetime, until: datetime) -> timedelta:
    """Return for how long the task has slept between two moments. Time in two sleeps at once counts once."""
    total = timedelta(0)
    for begun, due in sorted((step.created_at, step.due_at) for step in steps if step.due_at is not None):
        begun, due = max(begun, since), min(due, until)  # noqa: PLW2901 - the part that counts
        if begun < due:
            total, since = total + (due - begun), due
    return total
