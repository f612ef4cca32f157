"""What became of each attempt at a task, as its events tell it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from ..errors import TaskNotFound
from ..model import EventType, ExecutionEvent
from .reading import history
from .transactions import Transactions


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One claim of a task, from its start to its end."""

    number: int
    """Number of the attempt; 0 if its event lacks it. After a snooze or a worker's death the next claim has the same number."""
    lease_token: int
    worker_id: UUID | None
    started_at: datetime
    ended_at: datetime | None = None
    """End of the attempt; None while it runs."""
    outcome: EventType | str | None = None
    """Type of the event that ended it; plain text if a later release has written one that this one does not know."""
    error: str | None = None
    """The error in one line."""
    exception: str | None = None
    """Module and name of the exception's class."""
    traceback: str | None = None


def attempts(store: Transactions, task_id: UUID, *, using: object = None) -> list[Attempt]:
    """Each attempt at the task, oldest first; none for a task that was never claimed. Raises TaskNotFound."""
    events = history(store, task_id, using=using)
    if not events:
        raise TaskNotFound(f"there is no task {task_id}")
    return _attempts(events)


def _attempts(events: Iterable[ExecutionEvent]) -> list[Attempt]:
    found: dict[int, Attempt] = {}
    for event in events:
        token, data = event.lease_token, event.event_data
        if token is None:
            continue
        if event.event_type is EventType.CLAIMED:
            found[token] = Attempt(
                number=data.get("attempt", 0), lease_token=token, worker_id=event.worker_id, started_at=event.created_at
            )
        elif token in found:
            found[token] = replace(
                found[token],
                ended_at=event.created_at,
                outcome=event.event_type,
                error=data.get("error"),
                exception=data.get("exception"),
                traceback=data.get("traceback"),
            )
    return list(found.values())
