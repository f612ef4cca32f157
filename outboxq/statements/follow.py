"""What follows a transition: its event, and an outbox entry where the task is Ready again."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause, Insert, cast, insert, select

from ..column_types import Instant
from ..tables import execution_events, task_outbox
from .grammar import Grammar

CARRIED = ("id", "pipeline_execution_id", "queue", "priority", "partition_key", "position", "event_type", "expires_at")
"""What a changed execution returns for its event and its entry."""

_KEPT = ("queue", "priority", "partition_key", "position", "event_type", "expires_at")


def event(
    g: Grammar,
    task: Any,
    rows: FromClause,
    *,
    event_type: ColumnElement[Any],
    data: ColumnElement[Any],
    worker_id: ColumnElement[Any],
    lease_token: ColumnElement[Any],
) -> Insert:
    """One event for each of `rows`; `task` are the columns that name the task."""
    values = {
        "pipeline_execution_id": task.pipeline_execution_id,
        "task_execution_id": task.id,
        "event_type": event_type,
        "event_data": data,
        "worker_id": worker_id,
        "lease_token": lease_token,
        "created_at": g.now,
    }
    return insert(execution_events).from_select(list(values), select(*values.values()).select_from(rows))


def entry(
    g: Grammar, execution: Any, rows: FromClause, *, ready: ColumnElement[bool], due: ColumnElement[Any]
) -> Insert:
    """An outbox entry for those of `rows` that are Ready again; they keep their position."""
    values = {
        "task_execution_id": execution.id,
        **{name: execution[name] for name in _KEPT},
        "available_at": cast(due, Instant),
        "created_at": g.now,
    }
    return insert(task_outbox).from_select(list(values), select(*values.values()).select_from(rows).where(ready))
