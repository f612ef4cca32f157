"""Questions of a worker before it waits: can something be claimed, and when does the next task become due?

Ask if something can be claimed before a worker waits, and when the next entry becomes due.

A wrong answer that something can be claimed costs a claim that finds nothing. The answer that nothing can must be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, func, or_, select, union_all

from ...database import queue_order
from ...database.dialects import Begin
from ...database.grammar import Grammar
from ...database.queue_order import due, every_queue, given_queues, pairs
from ...database.tables import queue_settings, task_outbox
from ...database.target import Target
from ..tasks import tasks
from ..transactions import Transactions
from . import limits_sql, partition_keys


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The answer to a look ahead."""

    settled: bool = True
    """No transaction is open that this may have missed (`sleeping_workers.py`)."""
    due: bool
    """Something may be claimed, unless another worker is about to."""
    seconds: float | None
    """Until the next task is due; None: none is waiting."""


def next_available_at(
    store: Transactions, queues: Sequence[str] | None = None, *, using: object = None
) -> datetime | None:
    """Return the next moment, strictly in the future, at which a task of these queues becomes due; None: none is waiting."""

    def work(target: Target) -> Any:
        return _following(store, target, queues)

    return store.run(work, using=using, begin=Begin.READ)  # type: ignore[no-any-return]


def look_ahead(
    store: Transactions,
    queues: Sequence[str] | None = None,
    *,
    topics: Sequence[str] | None = None,
    recent: bool = False,
    using: object = None,
) -> Look:
    """Look if a task of these queues is due, and when the next one is.

    In this order of reading, so that a task that becomes due meanwhile is seen by one or the other. `recent` asks only
    for what became claimable lately: a short look behind any number of keys that cannot be claimed, which may miss others.
    """

    def work(target: Target) -> Look:
        moment = _following(store, target, queues)
        values = store.values(target) | store.scope(target, queues, topics)
        now = target.run(tasks.select_now, values)[0]["now"]
        found = target.run(_RECENT[queues is None] if recent else _DUE[queues is None], values)[0]
        if not found["due"] and found["by_key"]:
            found = target.run(_DUE_BY_KEY[queues is None], values)[0]
        due = bool(found["due"])
        return Look(due=due, seconds=None if moment is None else max(0.0, (moment - now).total_seconds()))

    return store.run(work, using=using, begin=Begin.READ)


def _following(store: Transactions, target: Target, queues: Sequence[str] | None) -> datetime | None:
    values = store.values(target) | store.scope(target, queues, None)
    found = target.run(_NEXT[queues is None], values)[0]
    if found["by_key"]:
        found = target.run(_NEXT_BY_KEY[queues is None], values)[0]
    moment: datetime | None = found["available_at"]
    return moment


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


def next_available_at_all(g: Grammar) -> Select[Any]:
    """Select the earliest future time at which a task of any queue may start; NULL if none waits. `by_key`: see `any_due`."""
    return next_moment(g, *all_queues()).add_columns(queue_order.any_by_key().label("by_key"))


def next_available_at_given(g: Grammar) -> Select[Any]:
    """Select the time, as `next_available_at` does, for the given queues."""
    return next_moment(g, *given(g)).add_columns(queue_order.any_by_key().label("by_key"))


def any_due_by_key(g: Grammar) -> Select[Any]:
    """Select if something can be claimed from any queue, those included that limit their keys."""
    return _answer(or_(may_claim(g, *all_queues()), limits_sql.any_due(g, limits_sql.open_queues(g, None))))


def any_due_given_by_key(g: Grammar) -> Select[Any]:
    """Select if something can be claimed from the given queues, those included that limit their keys."""
    queues = given(g)
    return _answer(or_(may_claim(g, *queues), limits_sql.any_due(g, limits_sql.open_queues(g, queues[0]))))


def next_available_at_by_key(g: Grammar) -> Select[Any]:
    """Select the time, as `next_available_at` does, with the keys that have used up their rate."""
    return next_moment(g, *all_queues(), limits_sql.next_start(g, limits_sql.open_queues(g, None)))


def next_available_at_given_by_key(g: Grammar) -> Select[Any]:
    """Select the time, as `next_available_at_by_key` does, for the given queues."""
    queues = given(g)
    return next_moment(g, *queues, limits_sql.next_start(g, limits_sql.open_queues(g, queues[0])))


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


_DUE = (any_due_given, any_due)
_RECENT = (any_recent_given, any_recent)
_NEXT = (next_available_at_given, next_available_at_all)
_DUE_BY_KEY = (any_due_given_by_key, any_due_by_key)
_NEXT_BY_KEY = (next_available_at_given_by_key, next_available_at_by_key)
"""The statement for the queues given, and the one for all. The last two include queues that limit their keys."""
