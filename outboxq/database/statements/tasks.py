"""Read single tasks and their events."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, Uuid, bindparam, or_, select, union_all

from ...model import ENDS_CLAIM, EventType, TaskStatus
from ..grammar import Grammar, limit, sql_literal
from ..tables import execution_events, task_executions, task_leases, task_outbox

_task_id = bindparam("task_id", type_=Uuid, required=True)
_first, _last = (bindparam(name, type_=Uuid, required=True) for name in ("first", "last"))


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
        mine.where(event.event_type == sql_literal(EventType.CLAIMED)),
        mine.where(event.event_type != sql_literal(EventType.CLAIMED), event.lease_token.is_not(None)),
        mine.where(event.lease_token.is_(None)),
    ]


def ended_by(_: Grammar) -> Select[Any]:
    """Select the event that ended this worker's claim of this token: the answer that a lost connection did not deliver."""
    event = execution_events.c
    return select(event.event_type).where(
        event.task_execution_id == _task_id,
        event.lease_token == bindparam("lease_token", required=True),
        event.worker_id == bindparam("worker_id", type_=Uuid, required=True),
        event.event_type != sql_literal(EventType.CLAIMED),
        event.event_type.in_([sql_literal(kind) for kind in sorted(ENDS_CLAIM)]),
    )


def ready_for_retry(g: Grammar) -> Select[Any]:
    """Select the Ready tasks that are due for a retry, oldest first. A task that is due exactly now counts."""
    return (
        with_lease()
        .join(task_outbox, task_outbox.c.task_execution_id == task_executions.c.id)
        .where(
            task_executions.c.status == sql_literal(TaskStatus.READY),
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


def beginning(_: Grammar) -> Select[Any]:
    """Select the tasks whose ids are between :first and :last, oldest first: those whose id begins with the same digits."""
    execution = task_executions.c
    return (
        select(execution.id, execution.task_name, execution.status)
        .where(execution.id >= _first, execution.id <= _last)
        .order_by(execution.id)
        .limit(limit)
    )
