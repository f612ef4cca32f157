"""Tasks with a partition key: at most one of a key in flight, in their order, and the keys take turns.

A claim is two statements in one transaction. `win` hops from key to key through the index, one probe a key, from where the
last claim ended; it wins the keys whose head is due by inserting their rows into `partition_claims`, whose primary key lets
one claimer have each. `take_heads` then takes the head of each key won *in a snapshot that is newer than the win*: between
the two, whoever held the key before has ended, and what he put back is seen. With one statement two claimers could see
different heads of a key, lock different rows, and run both.

The head is the first by priority, then by position, among all entries of the key; whether it is due, and wanted, is asked of
the head only. So a delayed, retried or unwanted head blocks its key, and nothing else. The row goes in the transaction in
which the attempt ends, or stays, held, after a failure that is to be dealt with first (`follow.py`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    delete,
    false,
    func,
    literal_column,
    or_,
    select,
    update,
)

from ..tables import partition_claims, queue_settings, task_outbox
from . import limits
from .claim import claim, limit, taken, wanted
from .grammar import Columns, Grammar, Relations, Statement, Transition

SEGMENT: Columns = {"queue": Text(), "after": Text(), "upto": Text()}
"""Of a queue's keys: those behind `after`, up to `upto` where that is not NULL."""
KEY: Columns = {"queue": Text(), "partition_key": Text()}
WON: Columns = {"id": Uuid(), "holder": Uuid()}
_budget = bindparam("budget", type_=Integer, required=True)
_HORIZON = literal_column("1000", Integer)
"""So many keys are looked at before a waiting worker believes that one of them might be claimable."""


def every_queue() -> CTE:
    """The queues that have entries with a key, by hopping through the index."""
    first = select(func.min(task_outbox.c.queue).label("queue")).where(task_outbox.c.partition_key.is_not(None))
    queues = first.cte("keyed_queues", recursive=True)
    entry = task_outbox.alias("entry")
    following = (
        select(func.min(entry.c.queue))
        .where(entry.c.queue > queues.c.queue, entry.c.partition_key.is_not(None))
        .correlate(queues)
        .scalar_subquery()
    )
    return queues.union_all(select(following).where(queues.c.queue.is_not(None)))


def besides(g: Grammar, queues: FromClause) -> Select[Any]:
    """The queues that a plain claim does not serve, or not all of: with keys of which something is due, or with limits."""
    settings = queue_settings.alias("settings")
    mine = select(settings.c.fair).where(settings.c.queue == queues.c.queue).correlate(queues).scalar_subquery()
    limited = limits.limited(queues.c.queue)
    keyed = _first_due(g, queues).is_not(None)
    return select(
        queues.c.queue,
        keyed.label("keyed"),
        limited.label("limited"),
        func.coalesce(mine, literal_column("true")).label("fair"),
    ).where(queues.c.queue.is_not(None), ~limits.paused(queues.c.queue), or_(keyed, limited))


def all_queues() -> FromClause:
    """Those with keys, and those with limits."""
    keyed = select(every_queue().c.queue)
    return keyed.union(select(queue_settings.c.queue).where(limits.says_limited(queue_settings))).subquery("others")


def win(g: Grammar) -> Transition:
    """Win up to :limit keys, in their rotation. Returns each key looked at, with `won` where it was."""
    return _win(g, "win_keys", lambda segments: keys(g, segments, _budget))


def win_due(g: Grammar) -> Transition:
    """Win up to :limit of the keys that have what is due the longest; finds them behind any number of keys that are not due."""
    return _win(g, "win_due_keys", lambda segments: _due_keys(g, segments))


def take_heads(g: Grammar) -> Transition:
    """Claim the heads of these keys, which are won."""
    return claim(g, "claim_heads", lambda r: _take_heads(g, r["given"]), given=KEY)


def settle(g: Grammar) -> Transition:
    """Give back keys whose head was not to be had (`holder` NULL); of the others, say whose they are now."""
    claims = partition_claims.c

    def moved(r: Relations) -> Statement:
        given = r["given"].c
        ids = select(given.id).where(given.holder.is_not(None)).subquery("changed").c.id
        holder = select(given.holder).where(given.id == claims.task_execution_id).scalar_subquery()
        return update(partition_claims).where(g.among(claims.task_execution_id, ids)).values(task_execution_id=holder)

    def gone(r: Relations) -> Statement:
        given = r["given"].c
        ids = select(given.id).where(given.holder.is_(None)).subquery("unused").c.id
        return delete(partition_claims).where(g.among(claims.task_execution_id, ids))

    return Transition(name="settle_keys", given=WON, steps={"moved": moved, "gone": gone})


def keys(g: Grammar, segments: FromClause, budget: Any) -> CTE:
    """The keys of each segment with their heads, in their order, `n` counting them; up to `budget` of each."""
    rows, head = _head(g, segments, "head", segments.c.queue, segments.c.after)
    columns = [segments.c.queue, segments.c.upto, *_of_head(head), literal_column("1", Integer).label("n")]
    first = select(*columns).select_from(rows).where(_within(head, segments))
    found = first.cte("keys", recursive=True)
    rows, head = _head(g, found, "following", found.c.queue, found.c.partition_key)
    rest = select(found.c.queue, found.c.upto, *_of_head(head), found.c.n + literal_column("1", Integer))
    return found.union_all(rest.select_from(rows).where(found.c.n < budget, _within(head, found)))


def any_due(g: Grammar, queues: FromClause) -> ColumnElement[bool]:
    """Whether a key can be won. Beyond :_HORIZON keys that cannot, what is due might still be claimable."""
    open_queues = (
        select(queues.c.queue, literal_column("''", Text).label("after"), literal_column("NULL", Text).label("upto"))
        .where(queues.c.queue.is_not(None), ~limits.shut(g, queues.c.queue), _first_due(g, queues).is_not(None))
        .subquery("open_queues")
    )
    found = keys(g, open_queues, _HORIZON)
    return select(found.c.n).where(or_(_is_free(g, found), found.c.n == _HORIZON)).limit(1).exists()


def next_available_at(g: Grammar, queues: FromClause) -> Select[Any]:
    """For each of the queues, when the next of its entries with a key becomes due."""
    entry = task_outbox.alias("keyed_later")
    first = (
        select(entry.c.available_at)
        .where(entry.c.queue == queues.c.queue, entry.c.partition_key.is_not(None), entry.c.available_at > g.now)
        .order_by(entry.c.available_at, entry.c.id)
        .limit(1)
        .correlate(queues)
        .scalar_subquery()
    )
    return select(first.label("available_at")).select_from(queues).where(~limits.paused(queues.c.queue))


def _win(g: Grammar, name: str, found: Any) -> Transition:
    def hop(r: Relations) -> Statement:
        key = found(r["given"])
        return select(
            key.c.task_execution_id.label("id"),
            key.c.queue,
            key.c.partition_key,
            key.c.n,
            _is_free(g, key).label("free"),
        )

    def won(r: Relations) -> Statement:
        hop = r["hop"].c
        # The inner limit keeps the lock out of the sort: locked are, one after the other, no more than are to be won.
        free = (
            select(hop.queue, hop.partition_key, hop.id).where(hop.free).order_by(hop.n, hop.queue).limit(_budget)
        ).subquery("unclaimed")
        # Without the lock, ON CONFLICT would wait for another claim that is about to win the same key; and two claims that
        # win keys in several statements could wait for each other.
        locked = select(free).where(g.try_lock(free.c.queue, free.c.partition_key)).limit(limit).subquery("locked")
        rows = select(*locked.c, false()).order_by(locked.c.queue, locked.c.partition_key)
        new = g.insert(partition_claims).from_select(["queue", "partition_key", "task_execution_id", "held"], rows)
        claims = partition_claims.c
        return (  # type: ignore[no-any-return]
            new.on_conflict_do_nothing().returning(claims.task_execution_id.label("id"), claims.held.label("won"))
        )

    return Transition(name=name, given=SEGMENT, steps={"hop": hop, "won": won}, returns="hop", completed_by=("won",))


def _due_keys(g: Grammar, segments: FromClause) -> FromClause:
    def due(entry: FromClause) -> Select[Any]:
        mine = (entry.c.queue == segments.c.queue, entry.c.partition_key.is_not(None), entry.c.available_at <= g.now)
        return select(*entry.c).where(*mine).order_by(entry.c.available_at, entry.c.id)

    rows, entry = g.each(segments, "due", due, _budget)
    oldest = (
        select(segments.c.queue, entry.partition_key, func.min(entry.available_at).label("first"))
        .select_from(rows)
        .group_by(segments.c.queue, entry.partition_key)
        .cte("oldest")
    )

    def head_of(entry: FromClause) -> Select[Any]:
        return _first_of_key(entry, oldest)

    rows, head = g.each(oldest, "head", head_of)
    n = func.row_number().over(order_by=(oldest.c.first, oldest.c.partition_key)).label("n")
    return select(oldest.c.queue, *_of_head(head), n).select_from(rows).subquery("due_keys")


def _take_heads(g: Grammar, given: FromClause) -> Statement:
    rows, head = g.each(given, "head", lambda entry: _first_of_key(entry, given))
    due = (head.available_at <= g.now, wanted(g, head.event_type))
    heads = select(head.id).select_from(rows).where(*due).cte("heads").prefix_with("MATERIALIZED")
    entry = task_outbox.alias("entry")
    # Chosen first and locked then: passing over a locked head must not lead to the entry behind it.
    free = select(entry.c.id).where(g.among(entry.c.id, heads.c.id)).with_for_update(skip_locked=True, of=entry)
    locked = free.cte("locked").prefix_with("MATERIALIZED")
    return delete(task_outbox).where(g.among(task_outbox.c.id, locked.c.id)).returning(*taken(g))


def _head(g: Grammar, source: FromClause, name: str, queue: Any, after: Any) -> tuple[FromClause, Any]:
    def choose(entry: FromClause) -> Select[Any]:
        return (
            select(*entry.c)
            .where(entry.c.queue == queue, entry.c.partition_key > after)
            .order_by(entry.c.partition_key, entry.c.priority.desc(), entry.c.position)
        )

    return g.each(source, name, choose)


def _first_of_key(entry: FromClause, key: FromClause) -> Select[Any]:
    return (
        select(*entry.c)
        .where(entry.c.queue == key.c.queue, entry.c.partition_key == key.c.partition_key)
        .order_by(entry.c.priority.desc(), entry.c.position)
    )


def _of_head(head: Any) -> list[Any]:
    return [head.task_execution_id, head.partition_key, head.available_at, head.event_type]


def _within(head: Any, segment: FromClause) -> ColumnElement[bool]:
    return or_(segment.c.upto.is_(None), head.partition_key <= segment.c.upto)


def _is_free(g: Grammar, key: Any) -> ColumnElement[bool]:
    """Its head is due and wanted, and nobody has the key."""
    claims = partition_claims.alias("claims")
    # A scalar sub-select stays a look-up by key; as NOT EXISTS it could be planned as a join with all keys held.
    holder = (
        select(claims.c.queue)
        .where(claims.c.queue == key.c.queue, claims.c.partition_key == key.c.partition_key)
        .correlate(key)
        .scalar_subquery()
    )
    return and_(key.c.available_at <= g.now, wanted(g, key.c.event_type), holder.is_(None))


def _first_due(g: Grammar, queues: FromClause) -> Any:
    entry = task_outbox.alias("keyed_due")
    return (
        select(entry.c.id)
        .where(entry.c.queue == queues.c.queue, entry.c.partition_key.is_not(None), entry.c.available_at <= g.now)
        .order_by(entry.c.available_at)
        .limit(1)
        .correlate(queues)
        .scalar_subquery()
    )
