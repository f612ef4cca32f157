"""Questions to the tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ..database.dialects import Begin
from ..database.statements import reading, waiting
from ..database.target import Target
from ..errors import TaskNotFound
from ..model import ExecutionEvent, TaskExecution, TaskStatus, event_type_of
from .arguments import identifier, positive
from .transactions import Transactions


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What lies ahead."""

    settled: bool = True
    """No transaction is open that this may have missed (`store/sleeping.py`)."""
    due: bool
    """Something may be claimed, unless another worker is about to."""
    seconds: float | None
    """Until the next task is due; None: none is waiting."""


def now(store: Transactions, *, using: object = None) -> datetime:
    """The clock that due times and leases go by."""
    return store.run(  # type: ignore[no-any-return]
        lambda target: target.run(reading.now, store.values(target))[0]["now"],
        using=using,
        begin=Begin.READ,
    )


def get(store: Transactions, task_id: UUID, *, using: object = None) -> TaskExecution:
    """One task execution. Raises TaskNotFound."""
    rows = store.run(
        lambda target: target.run(reading.get, {"task_id": identifier(task_id)}),
        using=using,
        begin=Begin.READ,
    )
    if not rows:
        raise TaskNotFound(f"there is no task {task_id}")
    return execution_of(rows[0])


def history(store: Transactions, task_id: UUID, *, using: object = None) -> list[ExecutionEvent]:
    """The task's events, oldest first; empty for an unknown task."""
    rows = store.run(
        lambda target: target.run(reading.history, {"task_id": identifier(task_id)}),
        using=using,
        begin=Begin.READ,
    )
    return [event_of(row) for row in rows]


def recent_history(store: Transactions, task_id: UUID, limit: int, *, using: object = None) -> list[ExecutionEvent]:
    """The task's newest events, at most `limit`, oldest first; empty for an unknown task. It reads few more than it returns,
    however long the history is.
    """
    values = {"task_id": identifier(task_id), "limit": positive(limit)}
    rows = store.run(
        lambda target: target.run(reading.recent_history, values),
        using=using,
        begin=Begin.READ,
    )
    return [event_of(row) for row in reversed(rows)]


def get_ready_for_retry(store: Transactions, limit: int = 1000, *, using: object = None) -> list[TaskExecution]:
    """Ready tasks that may run now: never tried, or with a retry time that has come (equal counts). Oldest first."""
    positive(limit)
    rows = store.run(
        lambda target: target.run(reading.ready_for_retry, store.values(target, limit=limit)),
        using=using,
        begin=Begin.READ,
    )
    return [execution_of(row) for row in rows]


def next_available_at(
    store: Transactions, queues: Sequence[str] | None = None, *, using: object = None
) -> datetime | None:
    """The next moment, strictly in the future, at which a task of these queues becomes due; None: none is waiting."""

    def work(target: Target) -> Any:
        following = waiting.next_available_at if queues is None else waiting.next_available_at_given
        values = store.values(target) | store.scope(target, queues, None)
        return target.run(following, values)[0]["available_at"]

    return store.run(work, using=using, begin=Begin.READ)  # type: ignore[no-any-return]


def look_ahead(
    store: Transactions,
    queues: Sequence[str] | None = None,
    *,
    topics: Sequence[str] | None = None,
    recent: bool = False,
    using: object = None,
) -> Look:
    """Whether a task of these queues is due, and when the next one is.

    In this order of reading, so that a task that becomes due meanwhile is seen by one or the other. `recent` asks only
    for what became claimable lately: a short look behind any number of keys that cannot be claimed, which may miss others.
    """

    def work(target: Target) -> Look:
        if queues is None:
            following = waiting.next_available_at
            any_due = waiting.any_recent if recent else waiting.any_due
        else:
            following = waiting.next_available_at_given
            any_due = waiting.any_recent_given if recent else waiting.any_due_given
        values = store.values(target) | store.scope(target, queues, topics)
        moment = target.run(following, values)[0]["available_at"]
        values |= store.values(target)
        now = target.run(reading.now, values)[0]["now"]
        due = bool(target.run(any_due, values))
        return Look(due=due, seconds=None if moment is None else max(0.0, (moment - now).total_seconds()))

    return store.run(work, using=using, begin=Begin.READ)


def execution_of(row: dict[str, Any]) -> TaskExecution:
    return TaskExecution(**{**row, "status": TaskStatus(row["status"])})


def event_of(row: dict[str, Any]) -> ExecutionEvent:
    kind, data = event_type_of(row["event_type"]), data_of(row["event_data"])
    return ExecutionEvent(**{**row, "event_type": kind, "event_data": data})


def data_of(text: str | None) -> dict[str, Any]:
    """Return what an event says; text that is no JSON object, which outboxq does not write, comes under ``unreadable``."""
    try:
        data = json.loads(text or "{}")
    except ValueError:
        data = None
    return data if isinstance(data, dict) else {"unreadable": text}
