"""Write new tasks: outbox entry, execution and event, for one task or thousands, in one chain."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    SmallInteger,
    Text,
    Uuid,
    and_,
    case,
    func,
    insert,
    literal_column,
)

from ...model import EventType
from ..column_types import Instant
from ..grammar import Columns, Grammar, Relations, SqlStatus, Statement, Transition, insert_values, joined, sql_literal
from ..tables import task_executions, task_outbox
from . import task_rows

NEW_TASK: Columns = {
    "id": Uuid(),
    "pipeline_execution_id": Uuid(),
    "task_name": Text(),
    "queue": Text(),
    "priority": SmallInteger(),
    "args": Text(),
    "headers": Text(),
    "max_attempts": Integer(),
    "lease_seconds": Double(),
    "timeout_seconds": Double(),
    "available_at": Instant,
    "delay_seconds": Double(),
    "partition_key": Text(),
    "on_dead_letter": Text(),
    "topic": Text(),
    "expires_at": Instant,
    "expires_seconds": Double(),
}

CONSTANT_COLUMNS = frozenset(NEW_TASK) - {"id", "pipeline_execution_id", "args"}
"""Columns in which most batches agree: tasks written together are mostly calls of one function with the same options."""


def enqueue(g: Grammar) -> Transition:
    """Write new tasks without idempotency keys."""
    return Transition(
        given=NEW_TASK,
        constant_columns=CONSTANT_COLUMNS,
        steps={
            "entry": lambda r: entry(g, r["given"].c, r["given"], r["given"]),
            "execution": lambda r: execution(g, r),
            "event": lambda r: event(g, r["given"], r["entry"]),
        },
    )


def entry(g: Grammar, task: Any, batch: FromClause, rows: FromClause, *where: ColumnElement[bool]) -> Statement:
    """Insert the outbox entries of these rows of the batch. `task` has the columns of a new task."""
    values = {
        "task_execution_id": task.id,
        "queue": task.queue,
        "priority": task.priority,
        "partition_key": task.partition_key,
        "position": g.position(batch),
        "topic": task.topic,
        "available_at": due(g, task),
        "expires_at": expiry(g, task),
        "created_at": g.now,
    }
    written = task_outbox.c
    # Not IS NOT NULL: in a RETURNING, SQLite 3.40 looks at the wrong column to decide if this one can be NULL.
    place = case((written.partition_key >= literal_column("''", Text), written.position)).label("place")
    new = insert_values(insert(task_outbox), values, rows, *where)
    return new.returning(
        written.task_execution_id.label("id"), written.position, written.available_at, written.expires_at, place
    )


def execution(g: Grammar, r: Relations) -> Statement:
    """Insert the executions of the tasks whose entries were inserted."""
    given, entry = r["given"].c, r["entry"].c
    values = {
        "id": given.id,
        "pipeline_execution_id": given.pipeline_execution_id,
        "task_name": given.task_name,
        "queue": given.queue,
        "topic": given.topic,
        "partition_key": given.partition_key,
        "position": entry.position,
        "priority": given.priority,
        "args": given.args,
        "headers": given.headers,
        "status": SqlStatus.READY,
        "attempt": literal_column("1", Integer),
        "max_attempts": given.max_attempts,
        "recovery_attempts": literal_column("0", Integer),
        "lease_seconds": given.lease_seconds,
        "timeout_seconds": given.timeout_seconds,
        "lease_token": literal_column("0", BigInteger),
        "on_dead_letter": given.on_dead_letter,
        "expires_at": entry.expires_at,
        "created_at": g.now,
        "updated_at": g.now,
    }
    return insert_values(insert(task_executions), values, joined(r["given"], r["entry"]))


def event(g: Grammar, tasks: FromClause, entries: FromClause, **asked: ColumnElement[Any]) -> Statement:
    """Insert the Created events of the tasks that have an entry: the due time, the position in the partition key, and `asked`.

    `asked` holds the members that name an idempotency key, NULL for a task without one. `verify` reads the position and the key
    to see that they are not lost. Most tasks have neither, and pay nothing for them.
    """
    entry = entries.c
    plain = and_(entry.place.is_(None), *(value.is_(None) for value in asked.values()))
    data = case(
        (plain, g.json_of_one("available_at", entry.available_at)),
        else_=g.json(available_at=entry.available_at, position=entry.place, **asked),
    )
    return task_rows.event(g, tasks.c, joined(tasks, entries), event_type=sql_literal(EventType.CREATED), data=data)


def due(g: Grammar, task: Any) -> ColumnElement[Any]:
    return func.coalesce(task.available_at, g.later(g.now, task.delay_seconds))


def expiry(g: Grammar, task: Any) -> ColumnElement[Any]:
    return func.coalesce(task.expires_at, g.later(g.now, task.expires_seconds))
