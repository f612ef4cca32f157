"""Read-only ORM classes for outboxq's tables: use ``select(TaskExecution)`` in any Session.

The classes are mapped onto the tables of `database/tables` in a separate registry. The classes need no declarative base
and do not change any metadata. Only outboxq may change a task, because it writes the event at the same time. Creating,
changing or deleting an object therefore raises ReadOnly. `update()` and `delete()` statements are not checked; whether
they are allowed depends on the role's privileges.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NoReturn, cast
from uuid import UUID

from sqlalchemy import (
    BinaryExpression,
    ColumnElement,
    FromClause,
    MetaData,
    Table,
    Text,
    and_,
    bindparam,
    event,
    func,
    inspect,
    literal_column,
    or_,
    select,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapped, column_property, foreign, registry, relationship, remote
from sqlalchemy.sql import operators
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from .database import tables
from .database.dialects import check_schema_name
from .database.grammar import sql_literal
from .errors import InvalidArgument, ReadOnly
from .model import EventType, TaskStatus

__all__ = ["Classes", "ExecutionEvent", "OutboxEntry", "TaskExecution", "orm_for"]


class _Row:
    """The base class of each schema's ORM classes."""

    def __init__(self, **_: object) -> None:
        _refuse(self, "created: enqueue the task with task.using(session).enqueue(…)")

    def __repr__(self) -> str:
        identity = inspect(self).identity or ("without an id",)  # known without a query, even for a detached object
        return f"<{type(self).__name__} {identity[0]}>"


class TaskExecution(_Row):
    """A row of `task_executions`."""

    id: Mapped[UUID]
    pipeline_execution_id: Mapped[UUID]
    task_name: Mapped[str]
    queue: Mapped[str]
    topic: Mapped[str | None]
    partition_key: Mapped[str | None]
    position: Mapped[int]
    priority: Mapped[int]
    args: Mapped[str]
    headers: Mapped[str | None]
    status: Mapped[TaskStatus]
    attempt: Mapped[int]
    max_attempts: Mapped[int | None]
    recovery_attempts: Mapped[int]
    lease_seconds: Mapped[float]
    timeout_seconds: Mapped[float | None]
    lease_token: Mapped[int]
    worker_id: Mapped[UUID | None]
    cancel_requested_at: Mapped[datetime | None]
    on_dead_letter: Mapped[str]
    expires_at: Mapped[datetime | None]
    retry_at: Mapped[datetime | None]
    first_started_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    last_error: Mapped[str | None]
    result: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    """The time at which the lease of a Running task expires. It is loaded on first use, or with `undefer`."""
    events: Mapped[list[ExecutionEvent]]
    """The task's transitions, oldest first."""
    outbox_entry: Mapped[OutboxEntry | None]
    """The entry that makes a Ready task claimable; None for a task in any other status."""
    pipeline: Mapped[list[TaskExecution]]
    """All tasks from the same emit or enqueue_many, including this one; empty for a task that was enqueued alone."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments: `args` parsed as JSON."""
        return cast("dict[str, Any]", json.loads(self.args))

    @classmethod
    def argument(cls, name: str) -> ColumnElement[str | None]:
        """Return an expression for one argument as text, for filters and joins. It is NULL if the argument was not
        given.

        No index covers the expression, so filter by something else too. Raises InvalidArgument if `name` cannot be the
        name of a parameter.
        """
        if not name.isidentifier():
            raise InvalidArgument(f"{name!r} is not the name of a parameter")
        return _Argument(cast("Any", cls.args), name)


class ExecutionEvent(_Row):
    """A row of `execution_events`."""

    sequence_num: Mapped[int]
    pipeline_execution_id: Mapped[UUID]
    task_execution_id: Mapped[UUID | None]
    event_type: Mapped[str]
    """A value of EventType, or the string for a type that a later release has added."""
    event_data: Mapped[str | None]
    worker_id: Mapped[UUID | None]
    lease_token: Mapped[int | None]
    created_at: Mapped[datetime]
    task_execution: Mapped[TaskExecution | None]
    """The task; None if the event records an emit without a subscriber, or if the task has been pruned."""

    @property
    def data(self) -> dict[str, Any]:
        """The event's data: `event_data` parsed as JSON."""
        return cast("dict[str, Any]", json.loads(self.event_data or "{}"))


class OutboxEntry(_Row):
    """A row of `task_outbox`."""

    id: Mapped[int]
    task_execution_id: Mapped[UUID]
    queue: Mapped[str]
    priority: Mapped[int]
    partition_key: Mapped[str | None]
    position: Mapped[int]
    topic: Mapped[str | None]
    available_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    task_execution: Mapped[TaskExecution]


@dataclass(frozen=True, kw_only=True, slots=True)
class Classes:
    """The three classes for one schema."""

    TaskExecution: type[TaskExecution]
    ExecutionEvent: type[ExecutionEvent]
    OutboxEntry: type[OutboxEntry]


def orm_for(schema: str | None) -> Classes:
    """Return the classes for the tables in a PostgreSQL schema, as given to `Outbox(schema=…)`.

    All calls with the same schema return the same classes; with None, these are the classes in this module. The classes
    have the same attributes for every schema. Raises ConfigurationError for a name that would need quoting.
    """
    check_schema_name(schema)
    with _ONE_AT_A_TIME:
        return _DEFAULT if schema is None else _mapped_in(schema)


_ONE_AT_A_TIME = threading.Lock()


@cache
def _mapped_in(schema: str) -> Classes:
    """Create classes for one schema, because SQLAlchemy maps each class onto one table."""
    doc = {"__doc__": f"The class for the schema {schema}."}
    made: dict[str, Any] = {name: type(name, (_Row,), body | doc) for name, body in _UNMAPPED.items()}
    classes = Classes(**made)
    metadata = MetaData()
    _map(classes, lambda table: table.to_metadata(metadata, schema=schema))
    return classes


def _map(classes: Classes, table: Callable[[Table], Table]) -> None:
    """Declare the mappings, and refuse writes through them."""
    execution, happened, entry = (
        table(one) for one in (tables.task_executions, tables.execution_events, tables.task_outbox)
    )
    lease = table(tables.task_leases).c

    def owner(rows: Table) -> Any:
        return _seen(classes.TaskExecution, primaryjoin=foreign(rows.c.task_execution_id) == execution.c.id)

    mapped = registry()
    until = select(lease.lease_expires_at).where(lease.task_execution_id == execution.c.id).scalar_subquery()
    mapped.map_imperatively(
        classes.TaskExecution,
        execution,
        properties={
            "lease_expires_at": column_property(until, deferred=True),
            "events": _seen(
                classes.ExecutionEvent, primaryjoin=_events_of(execution, happened), order_by=happened.c.sequence_num
            ),
            "outbox_entry": _seen(
                classes.OutboxEntry, primaryjoin=execution.c.id == foreign(entry.c.task_execution_id), uselist=False
            ),
            "pipeline": _seen(
                classes.TaskExecution,
                primaryjoin=and_(
                    execution.c.pipeline_execution_id == remote(foreign(execution.c.pipeline_execution_id)),
                    remote(execution.c.pipeline_execution_id) != remote(execution.c.id),
                ),
                order_by=execution.c.id,
            ),
        },
    )
    mapped.map_imperatively(
        classes.ExecutionEvent,
        happened,
        exclude_properties=["xact_id"],
        properties={"task_execution": owner(happened)},
    )
    mapped.map_imperatively(classes.OutboxEntry, entry, properties={"task_execution": owner(entry)})
    mapped.configure()
    for kind in (classes.TaskExecution, classes.ExecutionEvent, classes.OutboxEntry):
        _close(kind)


def _seen(kind: type[Any], **options: Any) -> Any:
    """Return a relationship that SQLAlchemy reads, but neither writes nor merges."""
    return relationship(kind, viewonly=True, cascade="none", **options)


def _events_of(execution: FromClause, happened: FromClause) -> ColumnElement[bool]:
    """Return the condition that joins a task with its events. The condition has one part for each of three disjoint
    indexes, as does `select_history` in `store/tasks/tasks.py`.

    The parts refer to the task in two equivalent ways. Otherwise PostgreSQL would factor out the common condition, and
    then hash the whole history to find a few tasks' events.
    """
    mine = foreign(happened.c.task_execution_id) == execution.c.id
    also_mine: ColumnElement[bool] = BinaryExpression(
        execution.c.id, foreign(happened.c.task_execution_id), operators.eq
    )  # == would swap the sides
    is_claim = happened.c.event_type == sql_literal(EventType.CLAIMED)
    has_token = happened.c.lease_token.is_not(None)
    return or_(and_(mine, is_claim), and_(also_mine, ~is_claim, has_token), and_(mine, ~has_token))


def _close(kind: type[Any]) -> None:
    """Refuse a write as soon as SQLAlchemy reports it. A deletion is not reported until the flush."""

    def set_(row: Any, value: object, before: object, initiator: Any) -> None:
        if value != before:  # Session.merge() sets unchanged values too
            _refuse(row, f"changed here (its {initiator.key} was set): {_CHANGES}")

    def collected(row: Any, _: object, initiator: Any) -> None:
        _refuse(row, f"changed here (its {initiator.key} were changed): {_CHANGES}")

    for attribute in kind.__mapper__.attrs:
        listened = getattr(kind, attribute.key)
        event.listen(listened, "set", set_, active_history=True)
        if listened.impl.collection:
            event.listen(listened, "append", collected)
            event.listen(listened, "remove", collected)

    def updated(_mapper: object, _connection: object, row: Any) -> None:
        if inspect(row).session.is_modified(row):  # SQLAlchemy also calls this if no value has changed
            _refuse(row, f"written here: {_CHANGES}")

    event.listen(kind, "before_update", updated)
    event.listen(kind, "before_insert", lambda _mapper, _connection, row: _refuse(row, f"written here: {_CHANGES}"))
    event.listen(kind, "before_delete", lambda _mapper, _connection, row: _refuse(row, f"deleted here: {_DELETES}"))


_CHANGES = "use the methods of outbox.store, which also write the event for each change"
_DELETES = "cancel the task with outbox.store.cancel(…), or delete old tasks with outbox.store.prune(…)"


def _refuse(row: object, why: str) -> NoReturn:
    raise ReadOnly(f"{type(row).__name__} of outboxq.orm is read-only and cannot be {why}")


class _Argument(FunctionElement[Any]):
    """An SQL expression for a member of the JSON object `args`, as text."""

    name = "argument"
    type = Text()
    inherit_cache = True

    def __init__(self, args: ColumnElement[str], name: str) -> None:
        # A literal, because PostgreSQL would not recognize two parameters, one in a column and one in GROUP BY, as
        # equal.
        super().__init__(args, bindparam("argument", name, type_=Text(), unique=True, literal_execute=True))


@compiles(_Argument)
def _argument_in_a_message(element: _Argument, compiler: SQLCompiler, **how: Any) -> str:
    return compiler.visit_function(cast("Any", element), **how)


@compiles(_Argument, "postgresql")
def _argument_of_jsonb(element: _Argument, compiler: SQLCompiler, **how: Any) -> str:
    args, name = element.clauses
    return compiler.process(sql_cast(args, JSONB)[name].astext, **how)


@compiles(_Argument, "sqlite")
def _argument_of_text(element: _Argument, compiler: SQLCompiler, **how: Any) -> str:
    args, name = element.clauses
    return compiler.process(sql_cast(func.json_extract(args, literal_column("'$.'", Text) + name), Text), **how)


_DEFAULT = Classes(TaskExecution=TaskExecution, ExecutionEvent=ExecutionEvent, OutboxEntry=OutboxEntry)
_UNMAPPED = {
    kind.__name__: {name: value for name, value in vars(kind).items() if name not in {"__dict__", "__weakref__"}}
    for kind in (TaskExecution, ExecutionEvent, OutboxEntry)
}
"""The bodies of the three classes, from which the classes for other schemas are created."""
_map(_DEFAULT, lambda table: table)
