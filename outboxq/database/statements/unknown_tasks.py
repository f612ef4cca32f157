"""Find tasks that workers released because they did not know the tasks' names."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Uuid, and_, bindparam, exists, select

from ...model import UNKNOWN_TASK, EventType
from ..column_types import BigId
from ..grammar import Columns, Grammar, limit, sql_literal
from ..tables import execution_events, task_executions, task_outbox

HOLDING: Columns = {"id": Uuid(), "lease_token": BigInteger()}
_after = bindparam("after", type_=BigId, required=True)


def releases(g: Grammar) -> Select[Any]:
    """Select the events that ended the claims of :holding as releases of unknown tasks, if only claims have happened to them
    since.
    """
    given, event = g.rows("holding", HOLDING), execution_events.c
    return (
        select(event.task_execution_id.label("id"), event.event_data, event.created_at)
        .join_from(
            given,
            execution_events,
            and_(event.task_execution_id == given.c.id, event.lease_token == given.c.lease_token),
        )
        .where(*_released_last(g, given.c.id))
    )


def delayed(g: Grammar) -> Select[Any]:
    """Select a page of the outbox entries that are due later, by id after :after, with those that wait since such a release."""
    entry = task_outbox.c
    page = (
        select(entry.id, entry.task_execution_id, entry.queue, entry.topic)
        .where(entry.id > _after, entry.available_at > g.now)
        .order_by(entry.id)
        .limit(limit)
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    execution, event = task_executions.c, execution_events.c
    released = exists().where(
        event.task_execution_id == execution.id,
        event.lease_token == execution.lease_token,
        *_released_last(g, page.c.task_execution_id),
    )
    return (
        select(page.c.id, page.c.queue, page.c.topic, execution.task_name, released.label("released"))
        .join_from(page, task_executions, execution.id == page.c.task_execution_id)
        .where(g.among(execution.id, page.c.task_execution_id))
        .order_by(page.c.id)
    )


def _released_last(g: Grammar, ids: ColumnElement[Any]) -> tuple[ColumnElement[bool], ...]:
    """Return a condition: the event released a claim of one of these tasks as unknown, and no event without a lease token
    followed.
    """
    event, other = execution_events.c, execution_events.alias("other").c
    later = exists().where(
        g.among(other.task_execution_id, ids),
        other.task_execution_id == event.task_execution_id,
        other.lease_token.is_(None),
        other.sequence_num > event.sequence_num,
    )
    return (
        g.among(event.task_execution_id, ids),
        event.event_type != sql_literal(EventType.CLAIMED),  # the condition of the index over the ends of claims
        event.lease_token.is_not(None),
        event.event_type == sql_literal(EventType.RELEASED),
        g.text_in(event.event_data, "reason") == UNKNOWN_TASK,
        ~later,
    )
