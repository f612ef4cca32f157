"""Questions to the tables."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from ..database.dialects import Begin
from ..database.statements import reading
from ..errors import TaskNotFound
from ..model import ExecutionEvent, TaskExecution, TaskStatus, event_type_of
from .arguments import identifier, positive
from .transactions import Transactions


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
