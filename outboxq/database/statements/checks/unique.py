"""Check idempotency keys: a task that asked for one holds it for as long as it asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_, select

from ....model import TERMINAL, EventType
from ...grammar import Grammar
from ...tables import execution_events, idempotency_keys, task_executions
from .check import ENDS, EVENT, EXECUTION, OTHERS, UNFINISHED, Check, has_event, is_a, leading_to, speaks_of, task_of

_key = idempotency_keys.c


def checks() -> Mapping[str, Check]:
    return {
        "key_without_task": Check(
            meaning="an idempotency key is held by a task that does not exist",
            broken=lambda _: select(task_of(idempotency_keys)).where(
                ~select(EXECUTION.id).where(EXECUTION.id == _key.task_execution_id).exists()
            ),
        ),
        "key_differs_from_birth": Check(
            meaning="a task holds an idempotency key with which it was not enqueued, so the same request may run twice",
            broken=lambda g: select(task_of(idempotency_keys)).where(holds_another(g)),
        ),
        "key_lost": Check(
            meaning="an unfinished task does not hold its idempotency key, so the same request may run twice",
            broken=lambda g: lost(g, Birth(g, "birth")),
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
            is_a(EventType.CREATED, event.c),
            speaks_of("idempotency_key", event.c),
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


def lost(g: Grammar, birth: Birth) -> Select[Any]:
    """Select the unfinished tasks that asked for a key which no task that asked for it holds; `birth` is joined.

    An expired key may belong to another task. So may a key that was asked for until the end, once its task has ended: that
    task may have been redriven.
    """
    other = Birth(g, "other")
    has_ended = has_event(EVENT.event_type.in_(leading_to(*TERMINAL)), among=(ENDS, OTHERS))
    rightful = select(other.task).where(other.task == _key.task_execution_id, other.asked, other.key == birth.key)
    rightful = rightful.correlate(idempotency_keys, birth.event)
    holder = or_(_key.task_execution_id == EXECUTION.id, rightful.exists())
    held = select(_key.task_execution_id).where(_key.scope == EXECUTION.task_name, _key.key == birth.key, holder)
    return (
        select(EXECUTION.id)
        .join_from(task_executions, birth.event, birth.task == EXECUTION.id)
        .where(
            UNFINISHED,
            birth.asked,
            or_(birth.until.is_(None), birth.until > g.now),
            ~and_(birth.until_finished, has_ended),
            ~held.exists(),
        )
    )
