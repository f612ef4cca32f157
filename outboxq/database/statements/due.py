"""Ask if something can be claimed before a worker waits, and when the next entry becomes due.

A wrong answer that something can be claimed costs a claim that finds nothing. The answer that nothing can must be right.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, func, or_, select, union_all

from .. import queue_order
from ..grammar import Grammar
from ..queue_order import due, every_queue, given_queues, pairs
from ..tables import queue_settings, task_outbox
from . import key_limits, partition_keys

Queues = tuple[FromClause, FromClause]
"""The queues of the tasks without a key, and those of the tasks with one."""


def any_due(g: Grammar) -> Select[Any]:
    """Select if something can be claimed from any queue, with or without a key, as `due`. Reads only.

    `by_key` is true if some queue limits its keys. The answer leaves such queues out; that of `any_due_by_key` does not.
    """
    return _answer(may_claim(g, *all_queues()))


def any_due_given(g: Grammar) -> Select[Any]:
    """Select if something can be claimed from the given queues, as `any_due` does."""
    return _answer(may_claim(g, *given(g)))


def any_recent(g: Grammar) -> Select[Any]:
    """Select if something can be claimed that became so lately. It reads few rows, however many keys cannot be claimed.

    A false answer means that it found nothing new. It does not mean that nothing can be claimed.
    """
    return _answer(_recent(g, *all_queues()))


def any_recent_given(g: Grammar) -> Select[Any]:
    """Select, as `any_recent` does, for the given queues."""
    return _answer(_recent(g, *given(g)))


def next_available_at(g: Grammar) -> Select[Any]:
    """Select the earliest future time at which a task of any queue may start; NULL if none waits. `by_key`: see `any_due`."""
    return next_moment(g, *all_queues()).add_columns(queue_order.any_by_key().label("by_key"))


def next_available_at_given(g: Grammar) -> Select[Any]:
    """Select the time, as `next_available_at` does, for the given queues."""
    return next_moment(g, *given(g)).add_columns(queue_order.any_by_key().label("by_key"))


def any_due_by_key(g: Grammar) -> Select[Any]:
    """Select if something can be claimed from any queue, those included that limit their keys."""
    return _answer(or_(may_claim(g, *all_queues()), key_limits.any_due(g, key_limits.open_queues(g, None))))


def any_due_given_by_key(g: Grammar) -> Select[Any]:
    """Select if something can be claimed from the given queues, those included that limit their keys."""
    queues = given(g)
    return _answer(or_(may_claim(g, *queues), key_limits.any_due(g, key_limits.open_queues(g, queues[0]))))


def next_available_at_by_key(g: Grammar) -> Select[Any]:
    """Select the time, as `next_available_at` does, with the keys that have used up their rate."""
    return next_moment(g, *all_queues(), key_limits.next_start(g, key_limits.open_queues(g, None)))


def next_available_at_given_by_key(g: Grammar) -> Select[Any]:
    """Select the time, as `next_available_at_by_key` does, for the given queues."""
    queues = given(g)
    return next_moment(g, *queues, key_limits.next_start(g, key_limits.open_queues(g, queues[0])))


def all_queues() -> Queues:
    return every_queue(), every_queue(with_key=True)


def given(g: Grammar) -> Queues:
    queues = given_queues(g)
    return queues, queues


def may_claim(g: Grammar, plain: FromClause, with_keys: FromClause) -> ColumnElement[bool]:
    return or_(_plain_due(g, plain), partition_keys.any_due(g, with_keys))


def next_moment(g: Grammar, plain: FromClause, with_keys: FromClause, *others: Select[Any]) -> Select[Any]:
    """Select the earliest future time at which an entry of these queues becomes due or a rate limit allows a start.

    NULL if none waits. `others` select further times.
    """
    found = pairs(plain, queue_order.paused, name="waiting_pairs")
    entry = task_outbox.alias("entry_later")
    later = (
        select(entry.c.available_at)
        .where(
            entry.c.partition_key.is_(None),
            entry.c.queue == found.c.queue,
            entry.c.priority == found.c.priority,
            entry.c.available_at > g.now,
        )
        .order_by(entry.c.available_at, entry.c.id)
        .limit(1)
        .correlate(found)
        .scalar_subquery()
    )
    start = queue_order.next_start(g, queue_settings)
    asked = union_all(select(plain.c.queue), select(with_keys.c.queue)).subquery("asked")
    mine = select(asked.c.queue).where(asked.c.queue == queue_settings.c.queue).exists()
    rates = (
        select(start.label("available_at"))
        .select_from(queue_settings)
        .where(start > g.now, queue_settings.c.paused_at.is_(None), mine)
    )
    moments = union_all(
        select(later.label("available_at")).select_from(found),
        partition_keys.next_available_at(g, with_keys),
        rates,
        *others,
    ).subquery("moments")
    return select(func.min(moments.c.available_at, type_=task_outbox.c.available_at.type).label("available_at"))


def _recent(g: Grammar, plain: FromClause, with_keys: FromClause) -> ColumnElement[bool]:
    return or_(_plain_due(g, plain), partition_keys.any_recent(g, with_keys))


def _answer(due: ColumnElement[bool]) -> Select[Any]:
    columns: tuple[Any, ...] = (due.label("due"), queue_order.any_by_key().label("by_key"))
    return select(*columns)


def _plain_due(g: Grammar, queues: FromClause) -> ColumnElement[bool]:
    found = pairs(queues, lambda queue: queue_order.stopped(g, queue))
    entry = task_outbox.alias("entry_due")
    without = due(g, found, entry.c.id, entry=entry).correlate(found).exists()
    return select(found.c.queue).where(without).exists()
