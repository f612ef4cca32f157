"""Check idempotency keys: a task that asked for one holds it for as long as it asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, Text, and_, literal_column, or_, select

from ....model import STATUS_AFTER, TERMINAL, EventType, TaskStatus
from ...tables import execution_events, idempotency_keys, task_executions
from ..grammar import Grammar, word
from .check import EVENT, EXECUTION, Check

_key = idempotency_keys.c


def checks() -> Mapping[str, Check]:
    return {
        "key_without_task": Check(
            meaning="an idempotency key is held by a task that does not exist", broken=lambda _: _key_without_task()
        ),
        "key_differs_from_birth": Check(
            meaning="a task holds an idempotency key with which it was not enqueued, so the same request may run twice",
            broken=lambda g: select(_key.task_execution_id.label("id")).where(holds_another(g)),
        ),
        "key_lost": Check(
            meaning="an unfinished task does not hold its idempotency key, so the same request may run twice",
            broken=_lost,
        ),
    }


class Birth:
    """The Created event of a task, as far as it names an idempotency key."""

    def __init__(self, g: Grammar, name: str) -> None:
        event = execution_events.alias(name)
        self.event = event
        self.task = event.c.task_execution_id
        self.key = g.text_in(event.c.event_data, "idempotency_key")
        self.until = g.instant_in(event.c.event_data, "unique_until")
        self.until_finished = g.text_in(event.c.event_data, "unique_until_finished").is_not(None)
        self.asked = and_(
            event.c.lease_token.is_(None),
            event.c.event_type == word(EventType.CREATED),
            event.c.event_data.like(literal_column("'%\"idempotency_key\"%'", Text)),
            self.key.is_not(None),
        )


def holds_another(g: Grammar) -> ColumnElement[bool]:
    """Return a condition: the task of a row of `idempotency_keys` was enqueued with another key, or has another name."""
    birth = Birth(g, "birth")
    other = or_(birth.key != _key.key, EXECUTION.task_name != _key.scope)
    return (
        select(birth.task)
        .join_from(birth.event, task_executions, EXECUTION.id == birth.task)
        .where(birth.task == _key.task_execution_id, birth.asked, other)
        .correlate(idempotency_keys)
        .exists()
    )


def lost(g: Grammar) -> tuple[FromClause, ColumnElement[bool], Birth]:
    """Join unfinished tasks with their Created events, and return the condition that no task that asked for the key holds it.

    An expired key may belong to another task. So may a key that was asked for until the end, once its task has ended: that
    task may have been redriven.
    """
    birth, other = Birth(g, "birth"), Birth(g, "other")
    ends = [word(kind) for kind, status in STATUS_AFTER.items() if status in TERMINAL]
    has_ended = select(EVENT.sequence_num).where(EVENT.task_execution_id == EXECUTION.id, EVENT.event_type.in_(ends))
    rightful = (
        select(other.task).where(other.task == _key.task_execution_id, other.asked, other.key == birth.key).exists()
    )
    held = select(_key.task_execution_id).where(
        _key.scope == EXECUTION.task_name,
        _key.key == birth.key,
        or_(_key.task_execution_id == EXECUTION.id, rightful),
    )
    return (
        task_executions.join(birth.event, birth.task == EXECUTION.id),
        and_(
            EXECUTION.status.in_([word(TaskStatus.READY), word(TaskStatus.RUNNING)]),
            birth.asked,
            or_(birth.until.is_(None), birth.until > g.now),
            ~and_(birth.until_finished, has_ended.exists()),
            ~held.exists(),
        ),
        birth,
    )


def _lost(g: Grammar) -> Select[Any]:
    tasks, without_key, _ = lost(g)
    return select(EXECUTION.id).select_from(tasks).where(without_key)


def _key_without_task() -> Select[Any]:
    task = select(EXECUTION.id).where(EXECUTION.id == _key.task_execution_id)
    return select(_key.task_execution_id.label("id")).where(~task.exists())
