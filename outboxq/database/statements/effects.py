"""Write what follows from a task's new status: its event, outbox entry, dead letter and partition key.

A task that is Ready again gets an outbox entry, and a Failed one a dead letter. A task that ended frees its key or holds it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    FromClause,
    Insert,
    Update,
    and_,
    cast,
    delete,
    insert,
    not_,
    select,
    true,
    update,
)

from ...model import OnDeadLetter, TaskStatus
from ..column_types import Instant
from ..tables import dead_letters, execution_events, partition_claims, task_outbox
from .grammar import Grammar, word

CARRIED = (
    "id",
    "pipeline_execution_id",
    "task_name",
    "queue",
    "priority",
    "partition_key",
    "position",
    "topic",
    "expires_at",
    "on_dead_letter",
    "status",
)
"""Columns of a changed execution that the steps after it read."""

KEPT = ("queue", "priority", "partition_key", "position", "topic", "expires_at")


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
    """Insert one event for each of `rows`. `task` has the columns that name the task."""
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
    """Insert an outbox entry for each of `rows` that is Ready again. It keeps its position."""
    values = {
        "task_execution_id": execution.id,
        **{name: execution[name] for name in KEPT},
        "available_at": cast(due, Instant),
        "created_at": g.now,
    }
    new = select(*values.values()).select_from(rows).where(ready)
    return g.insert(task_outbox).from_select(list(values), new)  # type: ignore[no-any-return]


def letter(g: Grammar, execution: Any, rows: FromClause, *, exception: ColumnElement[Any]) -> Insert:
    """Insert a dead letter for each of `rows` that is Failed now.

    A dead letter that was left behind by mistake does not raise an error: it must not keep a task from ending.
    """
    values = {
        "task_execution_id": execution.id,
        **{name: execution[name] for name in ("queue", "task_name", "topic", "partition_key")},
        "exception": exception,
        "failed_at": g.now,
    }
    failed = select(*values.values()).select_from(rows).where(execution.status == word(TaskStatus.FAILED))
    return g.insert(dead_letters).from_select(list(values), failed).on_conflict_do_nothing()  # type: ignore[no-any-return]


def letter_gone(g: Grammar, execution: Any) -> Delete:
    """Delete the dead letter of the task."""
    return delete(dead_letters).where(g.among(dead_letters.c.task_execution_id, execution.id))


def key_held(g: Grammar, execution: Any) -> Update:
    """Hold the partition key of each task that Failed with `on_dead_letter=hold`."""
    ids = select(execution.id).where(execution.partition_key.is_not(None), _holds(execution)).subquery("holding").c.id
    return update(partition_claims).where(g.among(partition_claims.c.task_execution_id, ids)).values(held=true())


def key_freed(g: Grammar, execution: Any) -> Delete:
    """Free the partition keys of the other tasks for the next task of the key."""
    free = select(execution.id).where(execution.partition_key.is_not(None), not_(_holds(execution))).subquery("freeing")
    return delete(partition_claims).where(g.among(partition_claims.c.task_execution_id, free.c.id))


def _holds(execution: Any) -> ColumnElement[bool]:
    return and_(execution.status == word(TaskStatus.FAILED), execution.on_dead_letter == word(OnDeadLetter.HOLD))
