"""Write the rows that a task has besides its execution: events, the outbox entry, the dead letter, the partition key.

They follow from the task's new status. A task that is Ready again gets an outbox entry, and a Failed one a dead letter. A
task that ended frees its key or holds it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, cast, delete, insert, not_, null, select, true, update

from ...model import OnDeadLetter
from ..column_types import Instant
from ..grammar import Grammar, SqlStatus, Statement, insert_values, sql_literal
from ..tables import dead_letters, execution_events, partition_claims, task_executions, task_outbox

KEPT = ("queue", "priority", "partition_key", "position", "topic", "expires_at")
"""The columns that an outbox entry has in common with its execution."""
CARRIED = tuple(
    task_executions.c[name] for name in ("id", "pipeline_execution_id", "task_name", *KEPT, "on_dead_letter", "status")
)
"""Columns of a changed execution that the steps after it read."""
_NOBODY = null()


def event(
    g: Grammar,
    task: Any,
    rows: FromClause,
    *,
    event_type: ColumnElement[Any],
    data: ColumnElement[Any],
    worker_id: ColumnElement[Any] = _NOBODY,
    lease_token: ColumnElement[Any] = _NOBODY,
) -> Statement:
    """Insert one event for each of `rows`. `task` has the columns that name the task; the last two name a claim."""
    values = {
        "pipeline_execution_id": task.pipeline_execution_id,
        "task_execution_id": task.id,
        "event_type": event_type,
        "event_data": data,
        "worker_id": worker_id,
        "lease_token": lease_token,
        "created_at": g.now,
    }
    return insert_values(insert(execution_events), values, rows)


def entry(
    g: Grammar, execution: Any, rows: FromClause, *, due: ColumnElement[Any], ready: ColumnElement[bool] | None = None
) -> Statement:
    """Insert an outbox entry for each of `rows` whose task is Ready again. `ready` replaces that condition. The position stays."""
    values = {
        "task_execution_id": execution.id,
        **{name: execution[name] for name in KEPT},
        "available_at": cast(due, Instant),
        "created_at": g.now,
    }
    where = execution.status == SqlStatus.READY if ready is None else ready
    return insert_values(g.insert(task_outbox), values, rows, where)  # type: ignore[no-any-return]


def letter(g: Grammar, execution: Any, rows: FromClause, *, exception: ColumnElement[Any]) -> Statement:
    """Insert a dead letter for each of `rows` that is Failed now.

    A dead letter that was left behind by mistake does not raise an error: it must not keep a task from ending.
    """
    values = {
        "task_execution_id": execution.id,
        **{name: execution[name] for name in ("queue", "task_name", "topic", "partition_key")},
        "exception": exception,
        "failed_at": g.now,
    }
    new = insert_values(g.insert(dead_letters), values, rows, execution.status == SqlStatus.FAILED)
    return new.on_conflict_do_nothing()  # type: ignore[no-any-return]


def letter_gone(g: Grammar, execution: Any) -> Statement:
    """Delete the dead letter of the task."""
    return delete(dead_letters).where(g.among(dead_letters.c.task_execution_id, execution.id))


def key_held(g: Grammar, execution: Any) -> Statement:
    """Hold the partition key of each task that Failed with `on_dead_letter=hold`."""
    ids = select(execution.id).where(execution.partition_key.is_not(None), _holds(execution)).subquery("holding").c.id
    return update(partition_claims).where(g.among(partition_claims.c.task_execution_id, ids)).values(held=true())


def key_freed(g: Grammar, execution: Any) -> Statement:
    """Free the partition keys of the other tasks for the next task of the key."""
    free = select(execution.id).where(execution.partition_key.is_not(None), not_(_holds(execution))).subquery("freeing")
    return delete(partition_claims).where(g.among(partition_claims.c.task_execution_id, free.c.id))


def _holds(execution: Any) -> ColumnElement[bool]:
    return and_(execution.status == SqlStatus.FAILED, execution.on_dead_letter == sql_literal(OnDeadLetter.HOLD))
