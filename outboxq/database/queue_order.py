"""Define the order in which tasks leave their queues, and the queues and topics from which a claim takes tasks.

The order is that of the index `ix_task_outbox_due`: by priority, then due time, then age of the entry. The settings of
a queue say whether it is paused and what its limits are. For a queue without settings, one lookup in a small table is
enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from ..model.records import CONCURRENCY_KEY_PREFIX
from ..model.subscriptions import EVERYTHING
from .column_types import Instant
from .grammar import Columns, Grammar, text_literal
from .tables import queue_settings, task_leases, task_outbox

FLOORS: Columns = {"queue": sa.Text(), "priority": sa.SmallInteger(), "below": sa.SmallInteger(), "since": Instant}
"""The columns of `Grammar.floors`: pairs with many dead entries before the due time `since` (NULL means that all of
them are read).

`below` is the next lower priority of the queue. Each queue begins with a row whose priority is `TOP`.
"""
TOP, BOTTOM = 2**15 - 1, -(2**15)
"""A priority above all others, and one below all others."""
MANY_QUEUES = 64
"""A claim from more than this number of queues reads only a few of them (`store/claims/heads.py`)."""
_any_topic = sa.bindparam("any_topic", type_=sa.Boolean, required=True)


def taken(g: Grammar, found: sa.FromClause | None = None) -> tuple[Any, ...]:
    """Return the columns of a claim's DELETE.

    The columns are the execution's id, the order of the claim, `besides` (true if some queue needs another kind of
    claim), `crowded` (true if the claim has to pass many dead rows) and `many` (true if `found` has the pairs of many
    queues).
    """
    entry, keyed = task_outbox.c, task_outbox.alias("keyed")
    with_key = sa.select(keyed.c.id).where(keyed.c.partition_key.is_not(None)).limit(1).scalar_subquery().is_not(None)
    return (
        entry.task_execution_id.label("id"),
        entry.available_at,
        entry.id.label("entry_id"),
        sa.or_(with_key, any_limited()).label("besides"),
        g.crowded(sa.literal_column("task_outbox.tableoid")).label("crowded"),
        (sa.false() if found is None else are_many(found)).label("many"),
    )


def are_many(found: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether these are the pairs of more queues than a claim should read."""
    number = sa.select(sa.func.count(sa.distinct(found.c.queue))).scalar_subquery()
    return number > sa.literal_column(str(MANY_QUEUES), sa.Integer)


def wanted(g: Grammar, topic: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the worker runs tasks with this topic."""
    given = g.topics
    mine = sa.select(given.c.topic).where(matches(topic, given.c.topic)).correlate_except(given).exists()
    return sa.or_(_any_topic, mine)


def given_queues(g: Grammar) -> sa.FromClause:
    return g.rows("queues", {"queue": sa.Text()})


def queues_beyond(g: Grammar) -> sa.CTE:
    """Return the queues that have entries without a key (`every_queue`), and all queues in `g.floors`.

    The index is probed only between the queues in the floors, so that their dead entries are not read.
    """
    if g.floors is None:
        return every_queue()
    entry, floors = task_outbox.alias("entry"), sa.select(g.floors.c.queue).distinct().subquery("known")

    def first(*between: sa.ColumnElement[bool]) -> Any:
        found = sa.select(sa.func.min(entry.c.queue)).where(entry.c.partition_key.is_(None), *between)
        return found.correlate_except(entry).scalar_subquery()

    start = sa.select(sa.func.min(floors.c.queue).label("upto")).subquery("start")
    before = sa.case((start.c.upto.is_(None), first()), else_=first(entry.c.queue < start.c.upto))
    upto = sa.func.lead(floors.c.queue, type_=sa.Text).over(order_by=floors.c.queue)
    known = sa.select(floors.c.queue, upto.label("upto"))
    starts = sa.select(before.label("queue"), start.c.upto).union_all(known).subquery("starts")
    found = sa.select(starts).cte("queues", recursive=True)
    behind = entry.c.queue > found.c.queue
    following = sa.case((found.c.upto.is_(None), first(behind)), else_=first(behind, entry.c.queue < found.c.upto))
    return found.union_all(sa.select(following, found.c.upto).where(found.c.queue.is_not(None)))


def every_queue(*, with_key: bool = False, after: sa.ColumnElement[str] | None = None) -> sa.CTE:
    """Return the queues, after `after` if given, that have entries without a key or, if `with_key` is True, entries
    with a key. The query needs one index probe for each queue, however large the backlog is.
    """

    def counts(entry: sa.FromClause) -> sa.ColumnElement[bool]:
        key = entry.c.partition_key
        return key.is_not(None) if with_key else key.is_(None)

    first = sa.select(sa.func.min(task_outbox.c.queue).label("queue")).where(counts(task_outbox))
    if after is not None:
        first = first.where(task_outbox.c.queue > after)
    queues = first.cte("keyed_queues" if with_key else "queues", recursive=True)
    entry = task_outbox.alias("entry")
    following = (
        sa.select(sa.func.min(entry.c.queue)).where(entry.c.queue > queues.c.queue, counts(entry)).correlate(queues)
    )
    return queues.union_all(sa.select(following.scalar_subquery()).where(queues.c.queue.is_not(None)))


def limited_queues(g: Grammar, after: sa.ColumnElement[str]) -> sa.CTE:
    """Return queues after `after` that have entries without a key or are in `g.floors`. Every limited queue that has
    such entries is included.

    The query hops to the next queue with a limit, and from there to the next queue that has entries or is in the
    floors. The number of probes is therefore twice the number of limited queues or of queues with entries, whichever is
    smaller.
    """

    def following(queue: sa.ColumnElement[str]) -> sa.Select[Any]:
        settings = queue_settings.alias("settings")
        first = sa.select(sa.func.min(settings.c.queue)).where(settings.c.queue > queue, has_limit(settings))
        if g.floors is None:
            return sa.select(_next_queue(first.correlate_except(settings).scalar_subquery()).label("queue"))
        limited = sa.select(first.correlate_except(settings).scalar_subquery().label("queue")).subquery("next_limited")
        known = sa.select(sa.func.min(g.floors.c.queue)).where(g.floors.c.queue >= limited.c.queue)
        upto = known.correlate(limited).scalar_subquery()
        bounded = sa.select(limited.c.queue, upto.label("upto")).subquery("bounded")
        # Between a queue and itself there is nothing to read.
        before = _next_queue(bounded.c.queue, bounded.c.upto)
        found = sa.case(
            (bounded.c.upto.is_(None), _next_queue(bounded.c.queue)), else_=sa.func.coalesce(before, bounded.c.upto)
        )
        return sa.select(found.label("queue")).select_from(bounded)

    queues = following(after).cte("limited_queues", recursive=True)
    rest = sa.select(following(queues.c.queue).scalar_subquery()).where(queues.c.queue.is_not(None))
    return queues.union_all(rest)


def _next_queue(least: Any, below: Any = None) -> Any:
    """Select the first queue at or after `least`, and before `below` if given, that has entries without a key."""
    entry = task_outbox.alias("entry")
    between = (entry.c.queue >= least,) if below is None else (entry.c.queue >= least, entry.c.queue < below)
    found = sa.select(sa.func.min(entry.c.queue)).where(*between, entry.c.partition_key.is_(None))
    return found.correlate_except(entry).scalar_subquery()


def may_have_due(g: Grammar, queue: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a claim from this queue might find a task without a key. The condition
    reads no dead entries: it is true for a queue that has no floors or has to be read from the front.
    """
    if g.floors is None:
        return sa.true()
    floor, entry = g.floors.alias("floor"), task_outbox.alias("entry")

    def some(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        mine = entry.c.queue == queue, entry.c.partition_key.is_(None)
        found = sa.select(entry.c.id).where(*mine, *conditions).limit(1)
        return found.correlate_except(entry).scalar_subquery().is_not(None)

    top = sa.literal_column(str(TOP), sa.Integer)
    is_read_whole = sa.and_(floor.c.priority < top, floor.c.since.is_(None))
    has_due = some(
        entry.c.priority == floor.c.priority, entry.c.available_at >= floor.c.since, entry.c.available_at <= g.now
    )
    has_other = some(entry.c.priority < floor.c.priority, entry.c.priority > floor.c.below)
    mine = sa.select(floor.c.queue).where(floor.c.queue == queue).correlate_except(floor)
    return sa.or_(~mine.exists(), mine.where(sa.or_(is_read_whole, has_due, has_other)).exists())


def pairs(
    queues: sa.FromClause, without: Callable[[Any], sa.ColumnElement[bool]] | None = None, *, name: str = "pairs"
) -> sa.CTE:
    """Return the (queue, priority) pairs that have entries, by hopping through the index. The last pair of each queue
    has the priority NULL.

    Queues in `without` are left out.
    """
    entry = task_outbox.alias("entry")

    def highest(pair: sa.FromClause, *below: sa.ColumnElement[bool]) -> Any:
        found = sa.select(entry.c.priority).where(
            entry.c.queue == pair.c.queue, entry.c.partition_key.is_(None), *below
        )
        return found.order_by(entry.c.priority.desc()).limit(1).correlate(pair).scalar_subquery()

    first = sa.select(queues.c.queue, highest(queues).label("priority")).where(queues.c.queue.is_not(None))
    if without is not None:
        first = first.where(sa.not_(without(queues.c.queue)))
    found = first.cte(name, recursive=True)
    following = highest(found, entry.c.priority < found.c.priority)
    return found.union_all(sa.select(found.c.queue, following).where(found.c.priority.is_not(None)))


def pairs_beyond(
    g: Grammar,
    queues: sa.FromClause,
    without: Callable[[Any], sa.ColumnElement[bool]] | None = None,
    *,
    name: str = "pairs",
    keeps_floors: bool = False,
) -> sa.CTE:
    """Return the pairs that `pairs` returns, and all pairs in `g.floors` with their `since`.

    The index is probed only between the pairs in the floors. So a new pair is found immediately, however many entries
    are dead in the other pairs. With `keeps_floors`, the queues in the floors are returned even if they are in
    `without`.
    """
    if g.floors is None:
        return pairs(queues, without, name=name)
    floors, always = g.floors, sa.literal_column("'-infinity'", Instant)
    top, bottom = (sa.cast(sa.literal_column(str(priority), sa.Integer), sa.SmallInteger) for priority in (TOP, BOTTOM))
    known = sa.select(
        floors.c.queue, floors.c.priority, floors.c.below, sa.func.coalesce(floors.c.since, always).label("since")
    )
    new = sa.select(queues.c.queue, top, bottom, always).where(
        queues.c.queue.is_not(None),
        queues.c.queue != sa.func.all(sa.func.array(sa.select(floors.c.queue).scalar_subquery())),
    )
    if without is not None and keeps_floors:
        new = new.where(sa.not_(without(queues.c.queue)))
    starts = known.union_all(new).subquery("starts")
    first = sa.select(starts)
    if without is not None and not keeps_floors:
        first = first.where(sa.not_(without(starts.c.queue)))
    found = first.cte(f"hops_of_{name}", recursive=True)
    entry = task_outbox.alias("entry")
    highest = (
        sa.select(entry.c.priority)
        .where(
            entry.c.queue == found.c.queue,
            entry.c.partition_key.is_(None),
            entry.c.priority < found.c.priority,
            entry.c.priority > found.c.below,
        )
        .order_by(entry.c.priority.desc())
        .limit(1)
        .correlate(found)
        .scalar_subquery()
    )
    following = sa.select(found.c.queue, highest, found.c.below, always).where(found.c.priority.is_not(None))
    found = found.union_all(following)
    # `<` also leaves out the NULL that ends each gap.
    return sa.select(found.c.queue, found.c.priority, found.c.since).where(found.c.priority < top).cte(name)


def due(g: Grammar, pair: sa.FromClause, *columns: Any, entry: sa.FromClause = task_outbox) -> sa.Select[Any]:
    """Select the due entries of one pair, oldest first: one contiguous range of the index `ix_task_outbox_due`."""
    floor = (entry.c.available_at >= pair.c.since,) if "since" in pair.c else ()
    return (
        sa.select(*columns)
        .where(
            entry.c.partition_key.is_(None),
            entry.c.queue == pair.c.queue,
            entry.c.priority == pair.c.priority,
            entry.c.available_at <= g.now,
            *floor,
            wanted(g, entry.c.topic),
        )
        .order_by(entry.c.available_at, entry.c.id)
    )


def matches(topic: sa.ColumnElement[Any], pattern: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the pattern covers this topic. A pattern is a topic, or the beginning of a
    topic followed by `*`.

    The condition compares character by character, because LIKE ignores case on SQLite and treats `_` and `%` as
    wildcards. The condition is NULL if there is no topic.
    """
    one = sa.literal_column("1", sa.Integer)
    rest = sa.func.length(pattern) - one
    ends = sa.func.substr(pattern, sa.func.length(pattern), one) == text_literal(EVERYTHING)
    begins = sa.func.substr(topic, one, rest) == sa.func.substr(pattern, one, rest)
    return sa.or_(topic == pattern, ends & begins)


LIMITS_OF_KEYS = ("key_concurrency", "key_rate_limit")
"""The columns of a queue's settings that limit its keys. At least one of these columns is set for a queue that limits
its keys.
"""


def paused(queue: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the queue is paused."""
    return _some(queue, _is_paused)


def limited(queue: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the queue has a limit."""
    return _some(queue, has_limit)


def paused_or_limited(queue: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a claim must skip the queue unless it locks the queue's settings."""
    return _some(queue, lambda mine: sa.or_(_is_paused(mine), has_limit(mine)))


def stopped(g: Grammar, queue: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether no task in the queue may start now, because the queue is paused or has
    reached its concurrency limit or rate limit.

    A queue that limits its keys counts as stopped, because whether a task may start depends on the task's key
    (`store/claims/limits_sql.py`).
    """
    lease = task_leases.alias("lease")

    def says(mine: sa.FromClause) -> sa.ColumnElement[bool]:
        running = sa.select(sa.func.count()).select_from(lease).where(lease.c.queue == mine.c.queue).correlate(mine)
        full = sa.and_(mine.c.concurrency_limit.is_not(None), mine.c.concurrency_limit <= running.scalar_subquery())
        return sa.or_(_is_paused(mine), limits_keys(mine), full, next_start(g, mine) > g.now)

    return _some(queue, says)


def any_limited() -> sa.ColumnElement[bool]:
    """Return a condition that tests whether any queue has a limit. A limited queue needs another kind of claim."""
    mine = queue_settings.alias("mine")
    return sa.select(mine.c.queue).where(has_limit(mine)).limit(1).scalar_subquery().is_not(None)


def any_by_key() -> sa.ColumnElement[bool]:
    """Return a condition that tests whether some queue limits its keys (`store/claims/limits_sql.py`)."""
    mine = queue_settings.alias("by_key")
    found = sa.select(mine.c.queue).where(limits_keys(mine)).limit(1)
    return found.scalar_subquery().is_not(None)


def is_concurrency_key(key: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the stored key is a concurrency key; it is NULL if there is no key."""
    one, length = (sa.literal_column(str(number), sa.Integer) for number in (1, len(CONCURRENCY_KEY_PREFIX)))
    return sa.func.substr(key, one, length, type_=sa.Text) == text_literal(CONCURRENCY_KEY_PREFIX)


def has_limit(settings: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the queue has a limit, either for itself or for its keys."""
    return sa.or_(settings.c.concurrency_limit.is_not(None), settings.c.rate_limit.is_not(None), limits_keys(settings))


def limits_keys(settings: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the queue limits its keys."""
    return sa.or_(*(settings.c[name].is_not(None) for name in LIMITS_OF_KEYS))


def next_start(g: Grammar, settings: sa.FromClause) -> sa.ColumnElement[Any]:
    """Return the time of the next start that the rate limit allows; NULL if there is no rate limit.

    The limit is a token bucket: it holds `rate_limit` starts, and refills in `rate_seconds`. A `rate_full_at` more than
    two periods from now is ignored, because it was written before the clock was set back.
    """
    full_at, period = settings.c.rate_full_at, settings.c.rate_seconds
    room = period - period / settings.c.rate_limit
    latest = g.later(g.now, period * sa.literal_column("2"))
    return sa.case((full_at <= latest, g.later(full_at, -room)))


def _is_paused(settings: sa.FromClause) -> sa.ColumnElement[bool]:
    return settings.c.paused_at.is_not(None)


def _some(
    queue: sa.ColumnElement[str], says: Callable[[sa.FromClause], sa.ColumnElement[bool]]
) -> sa.ColumnElement[bool]:
    """Return a condition on the queue's settings; the condition is false if the queue does not have settings.

    The condition is a scalar subquery, which remains a lookup by key whatever the rest of the plan is.
    """
    mine = queue_settings.alias("mine")
    found = sa.select(mine.c.queue).where(mine.c.queue == queue, says(mine)).correlate_except(mine)
    return found.scalar_subquery().is_not(None)
