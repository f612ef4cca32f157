"""Write new tasks: outbox entry, execution and event, for one task or thousands, in one chain."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    Select,
    SmallInteger,
    Text,
    Uuid,
    and_,
    case,
    func,
    literal_column,
    null,
    select,
)
from sqlalchemy import insert as plain_insert

from ...model import EventType, TaskStatus
from ..column_types import Instant
from ..tables import task_executions, task_outbox
from . import effects
from .grammar import Columns, Grammar, Relations, Statement, Transition, word

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
            "entry": lambda r: entry(g, r, every(r)),
            "execution": lambda r: execution(g, r),
            "event": lambda r: event(g, r),
        },
    )


def every(r: Relations) -> Select[tuple[object, ...]]:
    """Select every task of the batch."""
    return select(r["given"])


def entry(g: Grammar, r: Relations, tasks: Select[tuple[object, ...]]) -> Statement:
    """Insert the outbox entries of these tasks of the batch."""
    given = r["given"].c
    position = g.position(r["given"])
    values = {
        "task_execution_id": given.id,
        "queue": given.queue,
        "priority": given.priority,
        "partition_key": given.partition_key,
        "position": position,
        "topic": given.topic,
        "available_at": due(g, given),
        "expires_at": expiry(g, given),
        "created_at": g.now,
    }
    written = task_outbox.c
    return (
        plain_insert(task_outbox)
        .from_select(list(values), tasks.with_only_columns(*values.values()))
        .returning(
            written.task_execution_id.label("id"),
            written.position,
            written.available_at,
            written.expires_at,
            place().label("place"),
        )
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
        "status": word(TaskStatus.READY),
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
    rows = select(*values.values()).join_from(r["given"], r["entry"], given.id == entry.id)
    return plain_insert(task_executions).from_select(list(values), rows)


def event(g: Grammar, r: Relations, **asked: ColumnElement[Any]) -> Statement:
    """Insert the Created events. `asked` holds the members that name an idempotency key, NULL for a task without one."""
    given, entry = r["given"].c, r["entry"].c
    return effects.event(
        g,
        given,
        r["given"].join(r["entry"], given.id == entry.id),
        event_type=word(EventType.CREATED),
        data=birth(g, entry, **asked),
        worker_id=null(),
        lease_token=null(),
    )


def place() -> ColumnElement[int]:
    """Return the position of a new entry in its partition key; NULL without one."""
    # Not IS NOT NULL: in a RETURNING, SQLite 3.40 looks at the wrong column to decide if this one can be NULL.
    return case((task_outbox.c.partition_key >= literal_column("''", Text), task_outbox.c.position))


def birth(g: Grammar, entry: Any, **asked: ColumnElement[Any]) -> ColumnElement[str]:
    """Return the data of a Created event: the due time, the position in the partition key, and the idempotency key.

    `verify` reads the last two to see that they are not lost. Most tasks have neither, and pay nothing for them.
    """
    plain = and_(entry.place.is_(None), *(value.is_(None) for value in asked.values()))
    return case(
        (plain, g.json_of_one("available_at", entry.available_at)),
        else_=g.json(available_at=entry.available_at, position=entry.place, **asked),
    )


def due(g: Grammar, given: Any) -> ColumnElement[Any]:
    return func.coalesce(given.available_at, g.later(g.now, given.delay_seconds))


def expiry(g: Grammar, given: Any) -> ColumnElement[Any]:
    return func.coalesce(given.expires_at, g.later(g.now, given.expires_seconds))
