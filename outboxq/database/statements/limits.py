"""Apply the settings of queues: a paused queue, a limit of concurrent tasks, a rate limit of starts.

A queue without settings costs one look-up in a small table. Claims of a limited queue lock its row one after the other, so
that their counts are exact. A claim that finds the row locked skips the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    FromClause,
    Integer,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    cast,
    delete,
    func,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    update,
)

from ...model.records import CONCURRENCY_KEY_PREFIX
from ..column_types import Instant
from ..tables import key_rates, queue_settings, task_leases
from .grammar import Columns, Grammar, Relations, Statement, Transition, insert_values

_queue = bindparam("queue", type_=Text, required=True)
_full_at = bindparam("full_at", type_=Instant, required=True)
_key: Any = key_rates.c
LIMITS_OF_KEYS = ("key_concurrency", "key_rate_limit")
"""The columns of a queue's settings of which one is set where it limits its keys."""
SPENT_OF_KEYS: Columns = {"partition_key": Text(), "full_at": Instant}
"""The columns of the batch of `spend_of_keys`."""
_FULL_AGAIN = literal_column("100", Integer)
"""Number of full buckets that one claim deletes."""


def paused(queue: ColumnElement[str]) -> ColumnElement[bool]:
    """Return a condition: the queue is paused."""
    return _some(queue, _is_paused)


def limited(queue: ColumnElement[str]) -> ColumnElement[bool]:
    """Return a condition: the queue has a limit."""
    return _some(queue, has_limit)


def paused_or_limited(queue: ColumnElement[str]) -> ColumnElement[bool]:
    """Return a condition: a claim that does not lock the settings of the queue must skip it."""
    return _some(queue, lambda mine: or_(_is_paused(mine), has_limit(mine)))


def stopped(g: Grammar, queue: ColumnElement[str]) -> ColumnElement[bool]:
    """Return a condition: no task of the queue may start now. It is paused, or at its concurrency limit or rate limit.

    A queue that limits its keys counts as stopped: what it may start depends on the keys (`key_limits.py`).
    """
    lease = task_leases.alias("lease")

    def says(mine: FromClause) -> ColumnElement[bool]:
        running = select(func.count()).select_from(lease).where(lease.c.queue == mine.c.queue).correlate(mine)
        full = and_(mine.c.concurrency_limit.is_not(None), mine.c.concurrency_limit <= running.scalar_subquery())
        return or_(_is_paused(mine), limits_keys(mine), full, next_start(g, mine) > g.now)

    return _some(queue, says)


def any_limited() -> ColumnElement[bool]:
    """Return a condition: some queue has a limit, so its tasks need another kind of claim."""
    mine = queue_settings.alias("mine")
    return select(mine.c.queue).where(has_limit(mine)).limit(1).scalar_subquery().is_not(None)


def any_by_key() -> ColumnElement[bool]:
    """Return a condition: some queue limits its keys (`key_limits.py`)."""
    mine = queue_settings.alias("by_key")
    found = select(mine.c.queue).where(limits_keys(mine)).limit(1)
    return found.scalar_subquery().is_not(None)


def is_concurrency_key(key: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return a condition: the stored key is a concurrency key. NULL without a key."""
    length = literal_column(str(len(CONCURRENCY_KEY_PREFIX)), Integer)
    return func.substr(key, literal_column("1", Integer), length, type_=Text) == literal_column(
        f"'{CONCURRENCY_KEY_PREFIX}'", Text
    )


def has_limit(settings: FromClause) -> ColumnElement[bool]:
    """Return a condition: the queue has a limit, of its own or for its keys."""
    return or_(settings.c.concurrency_limit.is_not(None), settings.c.rate_limit.is_not(None), limits_keys(settings))


def limits_keys(settings: FromClause) -> ColumnElement[bool]:
    """Return a condition: the queue limits its keys."""
    return or_(*(settings.c[name].is_not(None) for name in LIMITS_OF_KEYS))


def next_start(g: Grammar, settings: FromClause) -> ColumnElement[Any]:
    """Return the time of the next start that the rate limit allows; NULL without a rate limit.

    The limit is a token bucket: it holds `rate_limit` starts, and fills in `rate_seconds`.
    """
    room = settings.c.rate_seconds - settings.c.rate_seconds / settings.c.rate_limit
    return g.later(settings.c.rate_full_at, -room)


def lock(g: Grammar) -> Select[Any]:
    """Lock and select the settings of one queue; no row if another claim has locked them, or if there are none."""
    mine = queue_settings.c
    settings = (
        mine.queue,
        mine.paused_at,
        mine.concurrency_limit,
        mine.rate_limit,
        mine.rate_seconds,
        mine.rate_full_at,
    )
    of_keys = (mine.key_concurrency, mine.key_rate_limit, mine.key_rate_seconds)
    return select(*settings, *of_keys, g.now.label("now")).where(mine.queue == _queue).with_for_update(skip_locked=True)


def running(_: Grammar) -> Select[Any]:
    """Count the claimed tasks of the queue. The count is exact in a snapshot that is taken under the lock."""
    return select(func.count().label("tasks")).select_from(task_leases).where(task_leases.c.queue == _queue)


def spend(_: Grammar) -> Update:
    """Record used starts: the bucket is full again at :full_at."""
    return update(queue_settings).where(queue_settings.c.queue == _queue).values(rate_full_at=_full_at)


def forget_full(g: Grammar) -> Delete:
    """Delete some of the rows of :queue whose keys have all their starts again."""
    full = select(_key.queue, _key.partition_key).where(_key.queue == _queue, _key.full_at <= g.now)
    return delete(key_rates).where(tuple_(_key.queue, _key.partition_key).in_(full.limit(_FULL_AGAIN)))


def spend_of_keys(g: Grammar) -> Transition:
    """Record used starts of keys of :queue: each bucket is full again at its `full_at`."""

    def spent(r: Relations) -> Statement:
        given = r["given"].c
        values = {"queue": cast(_queue, Text), "partition_key": given.partition_key, "full_at": given.full_at}
        # Without a WHERE, SQLite takes the ON of ON CONFLICT for that of a join.
        new = insert_values(g.insert(key_rates), values, r["given"], true())
        changed = {"full_at": new.excluded.full_at}
        return new.on_conflict_do_update(index_elements=[_key.queue, _key.partition_key], set_=changed)  # type: ignore[no-any-return]

    return Transition(given=SPENT_OF_KEYS, steps={"spent": spent})


def _is_paused(settings: FromClause) -> ColumnElement[bool]:
    return settings.c.paused_at.is_not(None)


def _some(queue: ColumnElement[str], says: Callable[[FromClause], ColumnElement[bool]]) -> ColumnElement[bool]:
    """Return a condition on the settings of the queue; false without any.

    It is a scalar subquery, which stays a look-up by key whatever the rest of the plan is.
    """
    mine = queue_settings.alias("mine")
    found = select(mine.c.queue).where(mine.c.queue == queue, says(mine)).correlate_except(mine)
    return found.scalar_subquery().is_not(None)
