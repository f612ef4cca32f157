"""Deleting old finished tasks together with their events."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, Uuid, bindparam, delete, func, select

from ..column_types import Instant
from ..model import TaskStatus
from ..tables import execution_events, idempotency_keys, partition_claims, task_executions
from . import follow
from .claim import limit
from .grammar import Grammar, Relations, Statement, Transition, word

_before = bindparam("before", type_=Instant, required=True)
_from_id = bindparam("from_id", type_=Uuid, required=True)
_to_id = bindparam("to_id", type_=Uuid, required=True)
_statuses = {
    status: bindparam(f"prune_{status.lower()}", type_=Integer, required=True)
    for status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
}


def prune(g: Grammar) -> Transition:
    """Delete up to :limit finished tasks between two ids, with their events, idempotency keys and dead letters.

    A partition key that a dead letter held is free then.

    Ids are times (uuid7), so the old ones are a range of the primary key; no index over `completed_at` is needed.
    """

    def doomed(_: Relations) -> Statement:
        return (
            select(task_executions.c.id)
            .where(_prunable())
            .order_by(task_executions.c.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

    def executions(r: Relations) -> Statement:
        return (
            delete(task_executions)
            .where(g.among(task_executions.c.id, r["doomed"].c.id))
            .returning(task_executions.c.id)
        )

    def events(r: Relations) -> Statement:
        return delete(execution_events).where(g.among(execution_events.c.task_execution_id, r["executions"].c.id))

    def keys(r: Relations) -> Statement:
        return delete(idempotency_keys).where(g.among(idempotency_keys.c.task_execution_id, r["executions"].c.id))

    def claims(r: Relations) -> Statement:
        return delete(partition_claims).where(g.among(partition_claims.c.task_execution_id, r["executions"].c.id))

    return Transition(
        name="prune",
        steps={
            "doomed": doomed,
            "executions": executions,
            "events": events,
            "keys": keys,
            "letters": lambda r: follow.letter_gone(g, r["executions"].c),
            "claims": claims,
        },
        returns="executions",
    )


def prunable() -> Select[Any]:
    """How many tasks `prune` would delete in all."""
    return select(func.count().label("tasks")).select_from(task_executions).where(_prunable())


def _prunable() -> ColumnElement[bool]:
    execution = task_executions.c
    wanted = [(execution.status == word(status)) & (flag == 1) for status, flag in _statuses.items()]
    return (
        (execution.id > _from_id)
        & (execution.id < _to_id)
        & (execution.completed_at < _before)
        & (wanted[0] | wanted[1] | wanted[2])
    )
