"""Write new tasks: outbox entry, execution and event, for one task or thousands, in one chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Text,
    and_,
    case,
    func,
    insert,
    literal_column,
)

from ...model import EventType
from ...model.options import OPTION_COLUMNS
from ..column_types import Instant, parameter_type
from ..tables import task_executions, task_outbox
from . import task_rows
from .grammar import Columns, Grammar, Relations, SqlStatus, Statement, Transition, insert_values, joined, sql_literal

_ONLY_GIVEN: Columns = {"available_at": Instant, "delay_seconds": Double(), "expires_seconds": Double()}
"""Columns of the rows that an enqueue is given which no execution has: its entry has the moments that follow from them."""
_GIVEN = """
    id pipeline_execution_id task_name queue priority args headers max_attempts lease_seconds timeout_seconds available_at delay_seconds
    partition_key on_dead_letter topic expires_at expires_seconds
"""
NEW_TASK: Columns = {
    name: _ONLY_GIVEN[name] if name in _ONLY_GIVEN else parameter_type(task_executions.c[name].type)
    for name in dict.fromkeys([*_GIVEN.split(), *OPTION_COLUMNS.values()])
}
"""The columns of the rows that an enqueue is given, in their order; further options come last."""

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
    copied = {name: given[name] for name in NEW_TASK if name in task_executions.c and name != "expires_at"}
    return new_execution(g, copied, entry, joined(r["given"], r["entry"]))


def new_execution(g: Grammar, given: Mapping[str, ColumnElement[Any]], entry: Any, rows: FromClause) -> Statement:
    """Insert an execution for each of `rows`: Ready, with the values of the columns that are `given`, and those of its entry."""
    values = {
        **given,
        "position": entry.position,
        "status": SqlStatus.READY,
        "attempt": literal_column("1", Integer),
        "recovery_attempts": literal_column("0", Integer),
        "lease_token": literal_column("0", BigInteger),
        "expires_at": entry.expires_at,
        "created_at": g.now,
        "updated_at": g.now,
    }
    columns = [column.name for column in task_executions.c if column.name in values]
    return insert_values(insert(task_executions), {name: values[name] for name in columns}, rows)


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
