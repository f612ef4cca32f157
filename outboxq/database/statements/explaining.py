"""Find what keeps a task from being claimed, one question for each statement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Integer,
    Select,
    SmallInteger,
    Text,
    Uuid,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    union_all,
)

from ..column_types import BigId, Instant
from ..tables import partition_claims, queue_settings, task_outbox
from .grammar import Grammar

MOST = 1000
"""The largest number of tasks ahead that is counted."""

_task_id = bindparam("task_id", type_=Uuid, required=True)
_queue = bindparam("queue", type_=Text, required=True)
_key = bindparam("partition_key", type_=Text, required=True)
_entry_id = bindparam("entry_id", type_=BigId, required=True)
_priority = bindparam("priority", type_=SmallInteger, required=True)
_available_at = bindparam("available_at", type_=Instant, required=True)


def entry(_: Grammar) -> Select[Any]:
    """Select the task's outbox entry."""
    mine: Any = task_outbox.c
    return select(mine.id, mine.available_at, mine.priority).where(mine.task_execution_id == _task_id)


WAITING = {"id": Uuid()}
"""The columns of the batch :tasks."""


def waiting(g: Grammar) -> Select[Any]:
    """Select, for each waiting task of :tasks, its due time, the first task of its key, and if the key is taken or held.

    They are subqueries, so each task costs three look-ups, however many tasks wait.
    """
    mine: Any = task_outbox.c
    first, claim = task_outbox.alias("first"), partition_claims.alias("claim")
    head = (
        select(first.c.task_execution_id)
        .where(first.c.queue == mine.queue, first.c.partition_key == mine.partition_key)
        .order_by(first.c.priority.desc(), first.c.position)
        .limit(1)
        .correlate(task_outbox)
    )
    taken = select(claim.c.held).where(claim.c.queue == mine.queue, claim.c.partition_key == mine.partition_key)
    return select(
        mine.task_execution_id.label("id"),
        mine.available_at,
        head.scalar_subquery().label("head"),
        taken.correlate(task_outbox).scalar_subquery().label("held"),
    ).where(g.among(mine.task_execution_id, g.rows("tasks", WAITING).c.id))


def settings(_: Grammar) -> Select[Any]:
    """Select the settings of the queue."""
    mine = queue_settings.c
    names = ("paused_at", "concurrency_limit", "rate_limit", "rate_seconds", "rate_full_at")
    return select(*(mine[name] for name in names)).where(mine.queue == _queue)


def holder(_: Grammar) -> Select[Any]:
    """Select the task that holds the key."""
    claim = partition_claims.c
    return select(claim.task_execution_id, claim.held).where(claim.queue == _queue, claim.partition_key == _key)


def head(_: Grammar) -> Select[Any]:
    """Select the first waiting task of the key."""
    first = task_outbox.c
    return (
        select(first.task_execution_id, first.available_at)
        .where(first.queue == _queue, first.partition_key == _key)
        .order_by(first.priority.desc(), first.position)
        .limit(1)
    )


def ahead(g: Grammar) -> Select[Any]:
    """Count the due tasks of the queue that a claim takes before this one, up to one more than MOST."""
    other = task_outbox.c
    older = or_(other.available_at < _available_at, and_(other.available_at == _available_at, other.id < _entry_id))
    before = select(other.id).where(
        other.queue == _queue,
        other.available_at <= g.now,
        other.priority >= _priority,
        or_(other.priority > _priority, older),
    )
    # Two parts, each with an index of its own.
    parts = union_all(before.where(other.partition_key.is_(None)), before.where(other.partition_key.is_not(None)))
    counted = select(parts.subquery("parts")).limit(literal_column(str(MOST + 1), Integer)).subquery("counted")
    return select(func.count().label("tasks")).select_from(counted)
