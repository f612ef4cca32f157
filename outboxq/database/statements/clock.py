"""Repair the entries that a clock that was set back leaves with due times in the future."""

from __future__ import annotations

from sqlalchemy import BigInteger, bindparam, delete, literal_column, null, or_, select, update
from sqlalchemy.types import Double

from ...model import EventType, TaskStatus
from ..column_types import Instant
from ..tables import task_executions, task_outbox
from . import effects
from .claim import limit
from .grammar import Grammar, Relations, Statement, Transition, word

_until = bindparam("until", type_=Instant, required=True)
_after = bindparam("after", type_=BigInteger, required=True)
_lately = bindparam("lately", -30.0, type_=Double)
"""The longest time in seconds, negative, until a worker notices the step. An entry made meanwhile is due at its own time."""


def due_again(g: Grammar) -> Transition:
    """Replace up to :limit entries after :after that were due by :until, the time before the clock was set back, by due ones.

    Returns the entries that were replaced. Each task keeps its position in its key. An entry made since the step is not
    changed.
    """
    return Transition(
        steps={
            "behind": lambda _: _behind(g),
            "gone": lambda r: _gone(g, r),
            "moved": lambda r: _moved(g, r),
            "entry": lambda r: _entry(g, r),
            "event": lambda r: _event(g, r),
        },
        returns="gone",
    )


def _behind(g: Grammar) -> Statement:
    entry = task_outbox.c
    return (
        select(entry.id)
        .where(
            entry.id > _after,
            entry.available_at > g.now,
            entry.available_at <= _until,
            or_(entry.created_at > g.now, entry.created_at < g.later(g.now, _lately)),
        )
        .order_by(entry.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )


def _gone(g: Grammar, r: Relations) -> Statement:
    entry = task_outbox.c
    return (
        delete(task_outbox)
        .where(g.among(entry.id, r["behind"].c.id))
        .returning(entry.task_execution_id.label("id"), entry.id.label("entry_id"))
    )


def _moved(g: Grammar, r: Relations) -> Statement:
    execution = task_executions.c
    return (
        update(task_executions)
        .where(g.among(execution.id, r["gone"].c.id), execution.status == word(TaskStatus.READY))
        .values(retry_at=null(), updated_at=g.now)
        .returning(*(execution[name] for name in effects.CARRIED))
    )


def _entry(g: Grammar, r: Relations) -> Statement:
    moved = r["moved"].c
    return effects.entry(g, moved, r["moved"], ready=moved.status == word(TaskStatus.READY), due=g.now)


def _event(g: Grammar, r: Relations) -> Statement:
    return effects.event(
        g,
        r["moved"].c,
        r["moved"],
        event_type=word(EventType.RESCHEDULED),
        data=g.json(available_at=g.now, reason=literal_column("'the clock was set back'")),
        worker_id=null(),
        lease_token=null(),
    )
