"""Read single tasks, their events and the schema's version."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, Text, Uuid, bindparam, column, func, or_, select, table, union_all

from ...model import ENDS_CLAIM, EventType, TaskStatus
from ..tables import VERSION_TABLE, execution_events, task_executions, task_leases, task_outbox, version_table
from .claim import limit
from .grammar import Grammar, word

_attribute = table("pg_attribute", column("attrelid"), column("attname", Text), schema="pg_catalog")
_task_id = bindparam("task_id", type_=Uuid, required=True)


def version(_: Grammar) -> Select[Any]:
    """Select the revision of our schema and the oldest code that it admits."""
    return select(version_table.c.version_num, version_table.c.oldest_code)


def has_version_table(g: Grammar) -> Select[Any]:
    """Select one row if the table of our revision exists. Alembic alone creates it empty, and without the column of our first
    one.
    """
    return g.find_column(VERSION_TABLE, version_table.c.oldest_code.name)


def is_standby(g: Grammar) -> Select[Any]:
    """Select one row if this server is a standby, and takes no writes."""
    return g.is_standby()


def column_in_postgresql(table_oid: ColumnElement[Any], name: str) -> Select[Any]:
    """Select one row if the table of this oid, which may be NULL, has the column."""
    return select(_attribute.c.attname).where(_attribute.c.attrelid == table_oid, _attribute.c.attname == name)


def column_in_sqlite(table_name: str, name: str) -> Select[Any]:
    """Select one row if the table exists and has the column."""
    columns = func.pragma_table_info(table_name).table_valued("name").alias("columns")
    return select(columns.c.name).where(columns.c.name == name)


def now(g: Grammar) -> Select[Any]:
    return select(g.now.label("now"))


def get(_: Grammar) -> Select[Any]:
    """Select one task execution, with its lease while it runs."""
    return with_lease().where(task_executions.c.id == _task_id)


def history(_: Grammar) -> Select[Any]:
    """Select the events of one task, oldest first."""
    events = union_all(*_parts_of_history()).subquery("events")
    return select(events).order_by(events.c.sequence_num)


def recent_history(_: Grammar) -> Select[Any]:
    """Select the newest :limit events of one task, newest first. Each index is read no further, because tokens grow
    with events.
    """
    event = execution_events.c
    claims, ends, others = _parts_of_history()
    newest = (
        claims.order_by(event.lease_token.desc()).limit(limit).subquery("claims"),
        ends.order_by(event.lease_token.desc()).limit(limit).subquery("ends"),
        others.order_by(event.sequence_num.desc()).limit(limit).subquery("others"),
    )
    events = union_all(*map(select, newest)).subquery("events")
    return select(events).order_by(events.c.sequence_num.desc()).limit(limit)


def _parts_of_history() -> list[Select[Any]]:
    """Select the events in three parts, one for each of the disjoint indexes."""
    event = execution_events.c
    mine = select(*(column for column in event if column.key != "xact_id")).where(event.task_execution_id == _task_id)
    return [
        mine.where(event.event_type == word(EventType.CLAIMED)),
        mine.where(event.event_type != word(EventType.CLAIMED), event.lease_token.is_not(None)),
        mine.where(event.lease_token.is_(None)),
    ]


def ended_by(_: Grammar) -> Select[Any]:
    """Select the event that ended this worker's claim of this token: the answer that a lost connection did not deliver."""
    event = execution_events.c
    return select(event.event_type).where(
        event.task_execution_id == _task_id,
        event.lease_token == bindparam("lease_token", required=True),
        event.worker_id == bindparam("worker_id", type_=Uuid, required=True),
        event.event_type != word(EventType.CLAIMED),
        event.event_type.in_([word(kind) for kind in sorted(ENDS_CLAIM)]),
    )


def ready_for_retry(g: Grammar) -> Select[Any]:
    """Select the Ready tasks that are due for a retry, oldest first. A task that is due exactly now counts."""
    return (
        with_lease()
        .join(task_outbox, task_outbox.c.task_execution_id == task_executions.c.id)
        .where(
            task_executions.c.status == word(TaskStatus.READY),
            or_(task_executions.c.retry_at.is_(None), task_executions.c.retry_at <= g.now),
            task_outbox.c.available_at <= g.now,
        )
        .order_by(task_outbox.c.available_at, task_outbox.c.id)
        .limit(limit)
    )


def with_lease() -> Select[Any]:
    return select(task_executions, task_leases.c.lease_expires_at).outerjoin_from(
        task_executions, task_leases, task_leases.c.task_execution_id == task_executions.c.id
    )
