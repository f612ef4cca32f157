"""Apply the settings of queues: a paused queue, a limit of concurrent tasks, a rate limit of starts.

A queue without settings costs one look-up in a small table. Claims of a limited queue lock its row one after the other, so
that their counts are exact. A claim that finds the row locked skips the queue.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Delete,
    Integer,
    Select,
    Text,
    Update,
    bindparam,
    cast,
    delete,
    func,
    literal_column,
    select,
    true,
    tuple_,
    update,
)

from ..column_types import Instant
from ..grammar import Columns, Grammar, Relations, Statement, Transition, insert_values
from ..tables import key_rates, queue_settings, task_leases

_queue = bindparam("queue", type_=Text, required=True)
_full_at = bindparam("full_at", type_=Instant, required=True)
_key: Any = key_rates.c
SPENT_OF_KEYS: Columns = {"partition_key": Text(), "full_at": Instant}
"""The columns of the batch of `spend_of_keys`."""
_FULL_AGAIN = literal_column("100", Integer)
"""Number of full buckets that one claim deletes."""


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
