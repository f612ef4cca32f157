"""Claim from a queue that limits its running tasks or its starts, in total or per key.

For a queue without settings, one lookup in a small table is enough. A claim from a limited queue locks the row of the
queue's settings. So no other claim starts a task of the queue, and the counts are exact until the commit. A claim that
finds the row locked skips the queue.

A running task occupies its key for as long as it has a lease. So the key is freed when the task ends, or when the task
is recovered after a crash. The usage of a key's rate limit is stored in a row of `key_rates`, a token bucket like the
queue's.

Two statements search for tasks whose keys have limits. Both skip keys that are not allowed to start a task:

* `oldest` reads the entries that have been due longest. If it reads fewer entries than its budget, no other entries are
  due.
* `hop` goes from key to key with one probe for each key, however many entries the key has. `entries` then reads the due
  entries of some keys.

Tasks with the same partition key still run one at a time and in order. `partition_keys.acquire_given` acquires the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from ...database import queue_order
from ...database.column_types import Instant
from ...database.grammar import Columns, Grammar, Relations, Statement, Transition, insert_values, limit
from ...database.queue_order import wanted
from ...database.tables import key_rates, queue_settings, task_executions, task_leases, task_outbox
from ..arguments import parameters
from . import partition_keys
from .claim_sql import claim, same_key, take_unlocked, value_for

HORIZON = 1000
"""Maximum number of entries or keys that one search reads."""
_NEAR = sa.literal_column("1000", sa.Integer)
"""Number of entries at the front of each key that are searched for due entries. `oldest` finds due entries further
back.
"""
_HORIZON = sa.literal_column(str(HORIZON), sa.Integer)
_one: Any = sa.literal_column("1", sa.Integer)
_queue, _after, _upto = parameters(sa.Text, "queue", "after", "upto")
_budget, _key_concurrency = parameters(sa.Integer, "budget", "key_concurrency")
_blocked_after, _blocked_until, _full_at = parameters(Instant, "blocked_after", "blocked_until", "full_at")
_mine, _rate = queue_settings.c, key_rates.c


def of_keys(g: Grammar) -> Transition:
    """Select, for each of these keys, its queue's limits, the number of its running tasks, and the usage of its
    rate limit.

    A key of a queue without limits per key has no row. For an empty key, only the limits in the row are meaningful.
    """

    def found(r: Relations) -> Statement:
        given = r["given"]
        running = _running(g, given)
        limits = sa.and_(_mine.queue == given.c.queue, queue_order.limits_keys(queue_settings))
        return sa.select(
            given.c.partition_key,
            *(_mine[name] for name in ("queue", "key_concurrency", "key_rate_limit", "key_rate_seconds")),
            sa.func.coalesce(running.c.tasks, sa.literal_column("0")).label("running"),
            _full_at_of(given).label("full_at"),
        ).select_from(given.join(queue_settings, limits).outerjoin(running, same_key(running, given)))

    return Transition(given=partition_keys.KEYS, steps={"found": found}, returns="found")


def oldest(g: Grammar) -> sa.Select[Any]:
    """Select, from the :budget entries of :queue that have been due longest, those whose keys may start a task.

    The rows are in key order, beginning with the first key after :after. Each row has `looked_at`, the number of
    entries that were read. There is always at least one row.
    """
    queues = _one_queue()
    due = _due_entries(g, queues, _budget)
    keys = sa.select(due.c.queue, due.c.partition_key).where(wanted(g, due.c.topic)).distinct().cte("due_keys")
    state = _states(g, queues, keys).subquery("state")
    counted = sa.select(sa.func.count().label("looked_at")).select_from(due).subquery("counted")
    # The topic is checked once more, because a key may have entries with several topics.
    open_ones = (
        sa.select(due.c.id, due.c.priority, due.c.available_at, *state.c)
        .join_from(due, state, same_key(state, due))
        .where(state.c.free, wanted(g, due.c.topic))
        .subquery("open_ones")
    )
    key = open_ones.c.partition_key
    return (
        sa.select(
            counted.c.looked_at,
            open_ones.c.id.label("entry_id"),
            open_ones.c.available_at,
            *(open_ones.c[name] for name in _STATE),
        )
        .outerjoin_from(counted, open_ones, sa.true())
        .order_by(
            sa.case((key > sa.cast(_after, sa.Text), sa.literal_column("0")), else_=_one),
            key,
            open_ones.c.priority.desc(),
            open_ones.c.available_at,
            open_ones.c.id,
        )
    )


def hop(g: Grammar) -> sa.Select[Any]:
    """Select the keys that may start a task, and also the last key, from the first :budget keys of :queue after :after
    and up to :upto.

    A true `free` does not imply that a concurrency key has a due entry.
    """
    queues = _one_queue()
    ranges = sa.select(
        queues.c.queue,
        sa.cast(_after, sa.Text).label("after"),
        sa.cast(_upto, sa.Text).label("upto"),
        sa.literal_column("0", sa.Integer).label("ordinal"),
    ).subquery("range")
    keys = partition_keys.keys(g, ranges, _budget, name="hopped")
    state = _states(g, queues, keys, keys.c.n, head=keys).subquery("state")
    last = sa.select(sa.func.max(keys.c.n)).scalar_subquery()
    return sa.select(*state.c).where(sa.or_(state.c.free, state.c.n == last)).order_by(state.c.n)


def entries(g: Grammar) -> Transition:
    """Select up to :limit due entries of each of these keys, in order of priority, then position."""

    def found(r: Relations) -> Statement:
        rows, entry = g.each(r["given"], "candidate", _near(g, r["given"]), limit)
        columns = (entry.id.label("entry_id"), entry.partition_key, entry.available_at)
        return sa.select(*columns).select_from(rows).order_by(entry.priority.desc(), entry.position)

    return Transition(given=partition_keys.KEYS, steps={"found": found}, returns="found")


def take(g: Grammar) -> Transition:
    """Claim these entries, which have concurrency keys."""
    entry = task_outbox.alias("entry")

    def due(r: Relations) -> Statement:
        return take_unlocked(g, entry, g.among(entry.c.id, r["given"].c.entry_id), entry.c.available_at <= g.now)

    return claim(g, due, given={"entry_id": sa.BigInteger()})


def open_queues(g: Grammar, asked: sa.FromClause | None) -> sa.CTE:
    """Return the queues that limit their keys and whose other limits allow a start.

    `asked` contains the queues to consider; None means all queues.
    """
    headroom = _mine.key_rate_seconds - _mine.key_rate_seconds / _mine.key_rate_limit
    lease = task_leases.alias("lease")
    running = value_for(
        queue_settings, sa.select(sa.func.count()).select_from(lease).where(lease.c.queue == _mine.queue)
    )
    start = queue_order.next_start(g, queue_settings)
    found = sa.select(
        _mine.queue,
        sa.func.coalesce(_mine.key_concurrency, _one).label("key_concurrency"),
        g.later(g.now, headroom).label("blocked_after"),
        g.later(g.now, _mine.key_rate_seconds * sa.literal_column("2")).label("blocked_until"),
        headroom.label("room"),
    ).where(
        queue_order.limits_keys(queue_settings),
        _mine.paused_at.is_(None),
        sa.or_(_mine.concurrency_limit.is_(None), _mine.concurrency_limit > running),
        sa.or_(start.is_(None), start <= g.now),
    )
    if asked is not None:
        found = found.where(sa.select(asked.c.queue).where(asked.c.queue == _mine.queue).exists())
    return found.cte("limited").prefix_with("MATERIALIZED")


def any_due(g: Grammar, queues: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether one of these `open_queues` may start a task, or whether the search stopped
    after `HORIZON` keys, so that a later key might allow a start.
    """
    due = _due_entries(g, queues, _HORIZON)
    of_due = sa.select(due.c.queue, due.c.partition_key).where(wanted(g, due.c.topic)).distinct().cte("due_keys")
    running = _running(g, queues)
    near = _states(g, queues, of_due, running=running).subquery("near")
    deep = sa.select(due.c.queue).group_by(due.c.queue).having(sa.func.count() >= _HORIZON).subquery("deep")
    ranges = partition_keys.whole(deep).select_from(deep).subquery("range")
    keys = partition_keys.keys(g, ranges, _HORIZON, name="hopped")
    far = _states(g, queues, keys, keys.c.n, running=running, head=keys).subquery("far")
    rows, candidate = g.each(far, "candidate", _near(g, far), 1)
    entry = task_outbox.alias("plain_due")
    is_plain = (entry.c.queue == queues.c.queue, entry.c.partition_key.is_(None))
    plain = sa.select(entry.c.id).where(*is_plain, entry.c.available_at <= g.now, wanted(g, entry.c.topic)).limit(_one)
    without = sa.select(queues.c.queue).where(value_for(queues, plain).is_not(None))
    free_head = sa.and_(far.c.free, sa.not_(far.c.is_concurrency))
    return sa.or_(
        without.exists(),
        sa.select(near.c.queue).where(near.c.free).exists(),
        sa.select(far.c.queue).where(sa.or_(free_head, far.c.n == _HORIZON)).exists(),
        sa.select(candidate.id).select_from(rows).where(far.c.free, far.c.is_concurrency).exists(),
    )


def next_start(g: Grammar, queues: sa.FromClause) -> sa.Select[Any]:
    """Select, for each of these `open_queues`, the next time at which a waiting key may start a task again.

    The query reads the `HORIZON` keys that may start a task soonest. If none of these keys is waiting, the query
    selects the last key's time as the time of the next search.
    """
    entry = task_outbox.alias("entry_of_key")
    spent = (
        sa.select(_rate.queue, _rate.partition_key, _rate.full_at)
        .where(_rate.queue == queues.c.queue, _blocked(_rate.full_at, queues))
        .order_by(_rate.full_at)
        .correlate(queues)
    )
    near = spent.limit(_HORIZON).subquery("spent")
    waits = value_for(near, sa.select(entry.c.id).where(same_key(entry, near)).limit(_one))
    waiting = sa.select(near.c.full_at).where(waits.is_not(None)).order_by(near.c.full_at).limit(_one)
    last = spent.with_only_columns(_rate.full_at).limit(_one).offset(sa.literal_column(str(HORIZON - 1)))
    moment = sa.func.coalesce(value_for(queues, waiting), last.scalar_subquery())
    return sa.select(g.later(moment, -queues.c.room).label("available_at")).select_from(queues)


_STATE = ("partition_key", "is_concurrency", "running", "full_at")
"""The columns of a key's state that a claim uses for counting."""


def _one_queue() -> sa.CTE:
    """Return :queue as a relation, with the limits that the caller has read while the queue's settings are locked."""
    given = (_queue, _key_concurrency, _blocked_after, _blocked_until)
    return sa.select(*(sa.cast(value, value.type).label(value.key) for value in given)).cte("limited")


def _due_entries(g: Grammar, queues: sa.FromClause, budget: Any) -> sa.CTE:
    """Return the entries that have a key and have been due longest, up to `budget` per queue."""
    rows, entry = g.each(queues, "due", lambda entry: partition_keys.oldest_due_of(g, entry, queues), budget)
    columns = ("queue", "partition_key", "id", "priority", "available_at", "topic")
    return (
        sa.select(*(entry[name] for name in columns)).select_from(rows).cte("due_entries").prefix_with("MATERIALIZED")
    )


def _running(g: Grammar, queues: sa.FromClause) -> sa.CTE:
    """Return the number of running tasks for each concurrency key. A key without running tasks has no row."""
    leased = (
        sa.select(task_leases.c.task_execution_id)
        .join_from(task_leases, queues, queues.c.queue == task_leases.c.queue)
        .subquery("leased")
    )
    task = task_executions.alias("at_work").c
    return (
        sa.select(task.queue, task.partition_key, sa.func.count().label("tasks"))
        .where(g.among(task.id, leased.c.task_execution_id), queue_order.is_concurrency_key(task.partition_key))
        .group_by(task.queue, task.partition_key)
        .cte("running")
        .prefix_with("MATERIALIZED")
    )


def _states(
    g: Grammar,
    queues: sa.FromClause,
    keys: sa.FromClause,
    *more: Any,
    running: sa.CTE | None = None,
    head: sa.FromClause | None = None,
) -> sa.Select[Any]:
    """Return the state of each of these keys: the number of its running tasks, the usage of its rate limit, and whether
    it may start a task.

    With `head`, `keys` also contains the columns of the heads, and a partition key is free only if its head is due.
    """
    running = _running(g, queues) if running is None else running
    full_at = _full_at_of(keys)
    unheld = partition_keys.claim_of(keys).is_(None) if head is None else partition_keys.is_free(g, head)
    tasks = sa.func.coalesce(running.c.tasks, sa.literal_column("0"))
    kind = queue_order.is_concurrency_key(keys.c.partition_key)
    open_place = sa.case((kind, tasks < queues.c.key_concurrency), else_=unheld)
    sources = keys.join(queues, queues.c.queue == keys.c.queue).outerjoin(running, same_key(running, keys))
    return sa.select(
        keys.c.queue,
        keys.c.partition_key,
        kind.label("is_concurrency"),
        tasks.label("running"),
        full_at.label("full_at"),
        sa.and_(open_place, sa.not_(sa.func.coalesce(_blocked(full_at, queues), sa.false()))).label("free"),
        *more,
    ).select_from(sources)


def _full_at_of(keys: sa.FromClause) -> Any:
    """Return the time at which the key's bucket is full again; NULL if it is full."""
    return value_for(keys, sa.select(_rate.full_at).where(same_key(key_rates, keys)))


def _blocked(full_at: Any, queues: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a key whose bucket is full again at `full_at` must wait before its next
    task starts; NULL if there is no rate limit.

    A `full_at` more than two periods from now is ignored, because it was written before the clock was set back.
    """
    return sa.and_(full_at > queues.c.blocked_after, full_at <= queues.c.blocked_until)


def _near(g: Grammar, keys: sa.FromClause) -> Callable[[sa.FromClause], sa.Select[Any]]:
    """Return a function that selects the due entries among the first entries of each key."""

    def choose(entry: sa.FromClause) -> sa.Select[Any]:
        first = partition_keys.in_order(entry, keys).limit(_NEAR).correlate(keys).subquery("near_ones")
        # The order is repeated for the limit; the rows already come in this order.
        return (
            sa.select(*first.c)
            .where(first.c.available_at <= g.now, wanted(g, first.c.topic))
            .order_by(first.c.priority.desc(), first.c.position)
        )

    return choose


SPENT_OF_KEYS: Columns = {"partition_key": sa.Text(), "full_at": Instant}
"""The columns of the batch of `spend_of_keys`."""
_FULL_AGAIN = sa.literal_column("100", sa.Integer)
"""Maximum number of full buckets that one claim deletes."""


def lock(g: Grammar) -> sa.Select[Any]:
    """Lock and select the settings of one queue. Returns no row if another claim has locked them, or if the queue has
    no settings.
    """
    of_queue = ("queue", "paused_at", "concurrency_limit", "rate_limit", "rate_seconds", "rate_full_at")
    of_keys = ("key_concurrency", "key_rate_limit", "key_rate_seconds")
    settings = sa.select(*(_mine[name] for name in (*of_queue, *of_keys)), g.now.label("now"))
    return settings.where(_mine.queue == _queue).with_for_update(skip_locked=True)


def running(_: Grammar) -> sa.Select[Any]:
    """Count the claimed tasks of the queue. The count is exact in a snapshot that is taken under the lock."""
    return sa.select(sa.func.count().label("tasks")).select_from(task_leases).where(task_leases.c.queue == _queue)


def spend(_: Grammar) -> sa.Update:
    """Record used starts: the bucket is full again at :full_at."""
    return sa.update(queue_settings).where(_mine.queue == _queue).values(rate_full_at=_full_at)


def forget_full(g: Grammar) -> sa.Delete:
    """Delete some rows of :queue whose buckets are full again."""
    full = sa.select(_rate.queue, _rate.partition_key).where(_rate.queue == _queue, _rate.full_at <= g.now)
    return sa.delete(key_rates).where(sa.tuple_(_rate.queue, _rate.partition_key).in_(full.limit(_FULL_AGAIN)))


def spend_of_keys(g: Grammar) -> Transition:
    """Record the starts that keys in :queue have used: each bucket is full again at its `full_at`."""

    def spent(r: Relations) -> Statement:
        given = r["given"].c
        values = {"queue": sa.cast(_queue, sa.Text), "partition_key": given.partition_key, "full_at": given.full_at}
        # Without a WHERE, SQLite reads the ON of ON CONFLICT as the ON of a join.
        new = insert_values(g.insert(key_rates), values, r["given"], sa.true())
        changed = {"full_at": new.excluded.full_at}
        return new.on_conflict_do_update(index_elements=[_rate.queue, _rate.partition_key], set_=changed)  # type: ignore[no-any-return]

    return Transition(given=SPENT_OF_KEYS, steps={"spent": spent})
