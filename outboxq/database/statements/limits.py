"""What the settings of a queue forbid: nothing of a paused queue, no more at a time, or in a time, than its limits say.

Queues without settings pay one look-up in a small table. The claims of a limited queue take turns at the lock of its row, so
that what they count is exact; a claim that finds the row locked passes over the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, Text, Update, and_, bindparam, func, or_, select, update

from ..column_types import Instant
from ..tables import queue_settings, task_leases
from .grammar import Grammar

_queue = bindparam("queue", type_=Text, required=True)
_full_at = bindparam("full_at", type_=Instant, required=True)


def closed(queue: ColumnElement[str]) -> ColumnElement[bool]:
    """A claim that takes no lock of settings must not take from it: it is paused, or limited."""
    return _some(lambda mine: or_(mine.c.paused_at.is_not(None), says_limited(mine)), queue)


def shut(g: Grammar, queue: ColumnElement[str]) -> ColumnElement[bool]:
    """Nothing of it can be claimed now: it is paused, as much of it runs as may, or its starts are used up."""
    lease = task_leases.alias("lease")

    def says(mine: FromClause) -> ColumnElement[bool]:
        running = select(func.count()).select_from(lease).where(lease.c.queue == mine.c.queue).correlate(mine)
        full = and_(mine.c.concurrency_limit.is_not(None), mine.c.concurrency_limit <= running.scalar_subquery())
        return or_(mine.c.paused_at.is_not(None), full, next_start(g, mine) > g.now)

    return _some(says, queue)


def paused(queue: ColumnElement[str]) -> ColumnElement[bool]:
    return _some(lambda mine: mine.c.paused_at.is_not(None), queue)


def next_start(g: Grammar, settings: FromClause) -> ColumnElement[Any]:
    """When the bucket has one start more: it holds `rate_limit` of them, and fills again in `rate_seconds`.

    NULL, so never in the way, where there is no such limit.
    """
    room = settings.c.rate_seconds - settings.c.rate_seconds / settings.c.rate_limit
    return g.later(settings.c.rate_full_at, -room)


def limited(queue: ColumnElement[str]) -> ColumnElement[bool]:
    """It has limits, which are to be kept."""
    return _some(says_limited, queue)


def any_limited() -> ColumnElement[bool]:
    """Some queue has limits, so a claim has to look for its tasks elsewhere."""
    mine = queue_settings.alias("mine")
    return select(mine.c.queue).where(says_limited(mine)).limit(1).scalar_subquery().is_not(None)


def lock(g: Grammar) -> Select[Any]:
    """The settings of one queue, locked; no row if another claim has them, or there are none."""
    mine = queue_settings.c
    return (
        select(
            mine.paused_at,
            mine.concurrency_limit,
            mine.rate_limit,
            mine.rate_seconds,
            mine.rate_full_at,
            g.now.label("now"),
        )
        .where(mine.queue == _queue)
        .with_for_update(skip_locked=True)
    )


def running(_: Grammar) -> Select[Any]:
    """How many tasks of the queue are claimed, by whomever; to be read in a snapshot taken under the lock."""
    return select(func.count().label("tasks")).select_from(task_leases).where(task_leases.c.queue == _queue)


def spend(_: Grammar) -> Update:
    """Starts were used: the bucket is full again at :full_at."""
    return update(queue_settings).where(queue_settings.c.queue == _queue).values(rate_full_at=_full_at)


def says_limited(settings: FromClause) -> ColumnElement[bool]:
    return or_(settings.c.concurrency_limit.is_not(None), settings.c.rate_limit.is_not(None))


def _some(says: Callable[[FromClause], ColumnElement[bool]], queue: ColumnElement[str]) -> ColumnElement[bool]:
    """A scalar sub-select: it stays a look-up by key, whatever else is planned."""
    mine = queue_settings.alias("mine")
    found = select(mine.c.queue).where(mine.c.queue == queue, says(mine)).correlate_except(mine)
    return found.scalar_subquery().is_not(None)
