"""Define the order in which tasks leave their queues, and which queues and topics a claim takes tasks from.

The order is that of the index `ix_task_outbox_due`: by priority, then due time, then age of the entry. The settings of a queue
say whether it is paused and what its limits are. A queue without settings costs one look-up in a small table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    SmallInteger,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    not_,
    or_,
    select,
)

from ..model.records import CONCURRENCY_KEY_PREFIX
from ..model.subscriptions import EVERYTHING
from .column_types import Instant
from .grammar import Columns, Grammar
from .tables import queue_settings, task_leases, task_outbox

FLOORS: Columns = {"queue": Text(), "priority": SmallInteger(), "below": SmallInteger(), "since": Instant}
"""The columns of `Grammar.floors`: pairs with many dead entries before the due time `since` (NULL: read them all).

`below` is the next lower priority of the queue. Each queue begins with a row of the priority `TOP`.
"""
TOP, BOTTOM = 2**15 - 1, -(2**15)
"""A priority above all others, and one below all others."""
_any_topic = bindparam("any_topic", type_=Boolean, required=True)


def taken(g: Grammar) -> tuple[Any, ...]:
    """Return the columns of a claim's DELETE.

    They are the execution's id, the order of the claim, `besides` (some queue needs another kind of claim) and `crowded` (many
    dead rows lie in the claim's way).
    """
    entry, keyed = task_outbox.c, task_outbox.alias("keyed")
    with_key = select(keyed.c.id).where(keyed.c.partition_key.is_not(None)).limit(1).scalar_subquery().is_not(None)
    return (
        entry.task_execution_id.label("id"),
        entry.available_at,
        entry.id.label("entry_id"),
        or_(with_key, any_limited()).label("besides"),
        g.crowded.label("crowded"),
    )


def wanted(g: Grammar, topic: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return a condition: the worker runs tasks of this topic."""
    given = g.topics
    mine = select(given.c.topic).where(matches(topic, given.c.topic)).correlate_except(given).exists()
    return or_(_any_topic, mine)


def given_queues(g: Grammar) -> FromClause:
    return g.rows("queues", {"queue": Text()})


def queues_beyond(g: Grammar) -> CTE:
    """Return the queues of `every_queue` without a key, and all queues of `g.floors`.

    The index is probed between the queues of the floors only, so that their dead entries are not read.
    """
    if g.floors is None:
        return every_queue()
    entry, floors = task_outbox.alias("entry"), select(g.floors.c.queue).distinct().subquery("known")

    def first(*between: ColumnElement[bool]) -> Any:
        found = select(func.min(entry.c.queue)).where(entry.c.partition_key.is_(None), *between)
        return found.correlate_except(entry).scalar_subquery()

    start = select(func.min(floors.c.queue).label("upto")).subquery("start")
    before = case((start.c.upto.is_(None), first()), else_=first(entry.c.queue < start.c.upto))
    upto = func.lead(floors.c.queue, type_=Text).over(order_by=floors.c.queue)
    known = select(floors.c.queue, upto.label("upto"))
    starts = select(before.label("queue"), start.c.upto).union_all(known).subquery("starts")
    found = select(starts).cte("queues", recursive=True)
    behind = entry.c.queue > found.c.queue
    following = case((found.c.upto.is_(None), first(behind)), else_=first(behind, entry.c.queue < found.c.upto))
    return found.union_all(select(following, found.c.upto).where(found.c.queue.is_not(None)))


def every_queue(*, with_key: bool = False, after: ColumnElement[str] | None = None) -> CTE:
    """Return the queues, behind `after` if given, that have entries without a key (or with one): one index probe for each
    queue, for any backlog.
    """

    def counts(entry: FromClause) -> ColumnElement[bool]:
        key = entry.c.partition_key
        return key.is_not(None) if with_key else key.is_(None)

    first = select(func.min(task_outbox.c.queue).label("queue")).where(counts(task_outbox))
    if after is not None:
        first = first.where(task_outbox.c.queue > after)
    queues = first.cte("keyed_queues" if with_key else "queues", recursive=True)
    entry = task_outbox.alias("entry")
    following = select(func.min(entry.c.queue)).where(entry.c.queue > queues.c.queue, counts(entry)).correlate(queues)
    return queues.union_all(select(following.scalar_subquery()).where(queues.c.queue.is_not(None)))


def limited_queues(after: ColumnElement[str]) -> CTE:
    """Return the queues behind `after` that have entries without a key, and among them all that have a limit.

    It hops to the next queue with a limit, and from there to the next queue with entries. So it takes two probes for each queue
    of the kind that is rarer.
    """

    def following(queue: ColumnElement[str]) -> Select[Any]:
        entry, settings = task_outbox.alias("entry"), queue_settings.alias("settings")
        first = select(func.min(settings.c.queue)).where(settings.c.queue > queue, has_limit(settings))
        found = select(func.min(entry.c.queue).label("queue"))
        return found.where(
            entry.c.queue >= first.correlate_except(settings).scalar_subquery(), entry.c.partition_key.is_(None)
        ).correlate_except(entry)

    queues = following(after).cte("limited_queues", recursive=True)
    rest = select(following(queues.c.queue).scalar_subquery()).where(queues.c.queue.is_not(None))
    return queues.union_all(rest)


def pairs(
    queues: FromClause, without: Callable[[Any], ColumnElement[bool]] | None = None, *, name: str = "pairs"
) -> CTE:
    """Return the (queue, priority) pairs that have entries, by hopping through the index. A NULL ends each queue.

    Only for queues that are not `without`.
    """
    entry = task_outbox.alias("entry")

    def highest(pair: FromClause, *below: ColumnElement[bool]) -> Any:
        found = select(entry.c.priority).where(entry.c.queue == pair.c.queue, entry.c.partition_key.is_(None), *below)
        return found.order_by(entry.c.priority.desc()).limit(1).correlate(pair).scalar_subquery()

    first = select(queues.c.queue, highest(queues).label("priority")).where(queues.c.queue.is_not(None))
    if without is not None:
        first = first.where(not_(without(queues.c.queue)))
    found = first.cte(name, recursive=True)
    following = highest(found, entry.c.priority < found.c.priority)
    return found.union_all(select(found.c.queue, following).where(found.c.priority.is_not(None)))


def pairs_beyond(
    g: Grammar, queues: FromClause, without: Callable[[Any], ColumnElement[bool]], *, name: str = "pairs"
) -> CTE:
    """Return the pairs of `pairs`, and all pairs of `g.floors` with their `since`.

    The index is probed between the pairs of the floors only. So a new pair is found at once, whatever is dead in the others.
    """
    if g.floors is None:
        return pairs(queues, without, name=name)
    floors, always = g.floors, literal_column("'-infinity'", Instant)
    top, bottom = (cast(literal_column(str(priority), Integer), SmallInteger) for priority in (TOP, BOTTOM))
    known = select(
        floors.c.queue, floors.c.priority, floors.c.below, func.coalesce(floors.c.since, always).label("since")
    )
    new = select(queues.c.queue, top, bottom, always).where(
        queues.c.queue.is_not(None), queues.c.queue != func.all(func.array(select(floors.c.queue).scalar_subquery()))
    )
    starts = known.union_all(new).subquery("starts")
    found = select(starts).where(not_(without(starts.c.queue))).cte(f"hops_of_{name}", recursive=True)
    entry = task_outbox.alias("entry")
    highest = (
        select(entry.c.priority)
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
    following = select(found.c.queue, highest, found.c.below, always).where(found.c.priority.is_not(None))
    found = found.union_all(following)
    # `<` also leaves out the NULL that ends each gap.
    return select(found.c.queue, found.c.priority, found.c.since).where(found.c.priority < top).cte(name)


def due(g: Grammar, pair: FromClause, *columns: Any, entry: FromClause = task_outbox) -> Select[Any]:
    """Select the due entries of one pair, oldest first: one contiguous range of the index `ix_task_outbox_due`."""
    floor = (entry.c.available_at >= pair.c.since,) if "since" in pair.c else ()
    return (
        select(*columns)
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


def matches(topic: ColumnElement[Any], pattern: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return a condition: the pattern covers this topic. A pattern is a topic, or the beginning of one and a `*`.

    It compares character by character, because LIKE ignores case on SQLite and treats `_` and `%` as wildcards. NULL without a topic.
    """
    one = literal_column("1", Integer)
    rest = func.length(pattern) - one
    ends = func.substr(pattern, func.length(pattern), one) == literal_column(f"'{EVERYTHING}'", Text)
    begins = func.substr(topic, one, rest) == func.substr(pattern, one, rest)
    return or_(topic == pattern, ends & begins)


LIMITS_OF_KEYS = ("key_concurrency", "key_rate_limit")
"""The columns of a queue's settings that limit its keys. At least one is set for a queue that limits its keys."""


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

    A queue that limits its keys counts as stopped: what it may start depends on the keys (`store/claims/limits_sql.py`).
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
    """Return a condition: some queue limits its keys (`store/claims/limits_sql.py`)."""
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


def _is_paused(settings: FromClause) -> ColumnElement[bool]:
    return settings.c.paused_at.is_not(None)


def _some(queue: ColumnElement[str], says: Callable[[FromClause], ColumnElement[bool]]) -> ColumnElement[bool]:
    """Return a condition on the settings of the queue; false without any.

    It is a scalar subquery, which stays a look-up by key whatever the rest of the plan is.
    """
    mine = queue_settings.alias("mine")
    found = select(mine.c.queue).where(mine.c.queue == queue, says(mine)).correlate_except(mine)
    return found.scalar_subquery().is_not(None)
