"""Tasks with a partition key: at most one of a key in flight, in their order, and the keys take turns.

A claim is two statements in one transaction. `win` hops from key to key through the index, one probe a key, from where the
last claim ended; it wins the keys whose head is due by inserting their rows into `partition_claims`, whose primary key lets
one claimer have each. `take_heads` then takes the head of each key won *in a snapshot that is newer than the win*: between
the two, whoever held the key before has ended, and what he put back is seen. With one statement two claimers could see
different heads of a key, lock different rows, and run both.

Behind a wall of keys that cannot be claimed, `win_due` and `win_recent` find what has been due the longest, and the keys in
which something happened last. They win as `win` does; what they pass over, the hop finds in its turn.

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
    union,
    update,
)

from ..tables import execution_events, partition_claims, queue_settings, task_executions, task_outbox
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
_FEW = 32
"""Due entries of a queue that are looked at before its keys are."""
_few = literal_column(str(_FEW), Integer)
_RECENT = literal_column("64", Integer)
"""Entries of a queue, and events, in which the keys are looked for in which something happened last."""


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
    """Win up to :limit keys, in their rotation. Returns each key looked at, with `won` where it was.

    The segments take turns: the first claimable key of each, then the second of each, in the order of the batch.
    """
    return _win(g, "win_keys", lambda segments: keys(g, segments, _budget))


def win_due(g: Grammar) -> Transition:
    """Win up to :limit of the keys that have what is due the longest; finds them behind any number of keys that are not due."""
    return _win(g, "win_due_keys", lambda segments: _oldest_keys(g, segments, _budget), "entries")


def win_recent(g: Grammar) -> Transition:
    """Win up to :limit of the keys in which something happened last; finds them behind any number that cannot be claimed."""
    return _win(g, "win_recent_keys", lambda segments: _recent_keys(g, segments))


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
    """The keys of each segment with their heads, in their order, `n` counting them; up to `budget` of each.

    `place` is the segment's place in the batch.
    """
    rows, head = _head(g, segments, "head", segments.c.queue, segments.c.after)
    place = segments.c.ordinal.label("place")
    columns = [place, segments.c.queue, segments.c.upto, *_of_head(head), literal_column("1", Integer).label("n")]
    first = select(*columns).select_from(rows).where(_within(head, segments))
    found = first.cte("keys", recursive=True)
    rows, head = _head(g, found, "following", found.c.queue, found.c.partition_key)
    following = found.c.n + literal_column("1", Integer)
    rest = select(found.c.place, found.c.queue, found.c.upto, *_of_head(head), following)
    return found.union_all(rest.select_from(rows).where(found.c.n < budget, _within(head, found)))


def any_due(g: Grammar, queues: FromClause) -> ColumnElement[bool]:
    """Return whether a key can be won. Beyond :_HORIZON keys that cannot, what is due might still be claimable.

    A key that can be won has something due, so of a queue with few due entries these are all there is to be looked at.
    """
    found = keys(g, _open(g, queues, "crowded_queues", least=_FEW), _HORIZON)
    beyond = select(found.c.n).where(or_(_is_free(g, found), found.c.n == _HORIZON)).limit(1).exists()
    return or_(_any_free(g, _oldest_keys(g, _open(g, queues, "open_queues"), _few)), beyond)


def any_recent(g: Grammar, queues: FromClause) -> ColumnElement[bool]:
    """Return whether a key can be won of those due the longest, or of those in which something happened last. Reads few rows."""
    oldest = _any_free(g, _oldest_keys(g, _open(g, queues, "open_queues"), _few))
    return or_(oldest, _any_free(g, _recent_keys(g, _open(g, queues, "recent_queues"))))


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


def _win(g: Grammar, name: str, found: Any, *told: str) -> Transition:
    """`told`: further columns of the keys found, to be returned."""

    def hop(r: Relations) -> Statement:
        key = found(r["given"])
        return select(
            key.c.task_execution_id.label("id"),
            key.c.queue,
            key.c.partition_key,
            key.c.place,
            key.c.n,
            *(key.c[column] for column in told),
            _is_free(g, key).label("free"),
        )

    def won(r: Relations) -> Statement:
        hop = r["hop"].c
        # Counted are claimable keys only, or a segment that begins with others would have to wait for the rest.
        turn = func.row_number().over(partition_by=hop.place, order_by=hop.n).label("turn")
        turns = select(hop.queue, hop.partition_key, hop.id, hop.place, turn).where(hop.free).subquery("turns")
        # The inner limit keeps the lock out of the sort: locked are, one after the other, no more than are to be won.
        free = (
            select(turns.c.queue, turns.c.partition_key, turns.c.id)
            .order_by(turns.c.turn, turns.c.place)
            .limit(_budget)
            .subquery("unclaimed")
        )
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


def _oldest_keys(g: Grammar, segments: FromClause, budget: Any) -> FromClause:
    """The keys of the entries that are due the longest, up to `budget` entries of each queue; all of them take turns as one."""

    def due(entry: FromClause) -> Select[Any]:
        return _due(g, entry, segments).order_by(entry.c.available_at, entry.c.id)

    rows, entry = g.each(segments, "due", due, budget)
    oldest = (
        select(
            segments.c.queue,
            entry.partition_key,
            func.min(entry.available_at).label("first"),
            func.count().label("entries"),
        )
        .select_from(rows)
        .group_by(segments.c.queue, entry.partition_key)
        .cte("oldest")
    )
    n = func.row_number().over(order_by=(oldest.c.first, oldest.c.partition_key))
    return _heads_of(g, oldest, n, oldest.c.entries)


def _recent_keys(g: Grammar, segments: FromClause) -> FromClause:
    """The keys of the entries that became due last, and of the tasks of the latest events.

    What makes a key claimable is one of the two: that its head becomes due, or an event of one of its tasks, such as the end
    of the one that had the key.
    """

    def due(entry: FromClause) -> Select[Any]:
        return _due(g, entry, segments).order_by(entry.c.available_at.desc(), entry.c.id.desc())

    rows, entry = g.each(segments, "due", due, _RECENT)
    event, execution = execution_events.c, task_executions.c
    latest = select(event.task_execution_id).order_by(event.sequence_num.desc()).limit(_RECENT).cte("latest")
    recent = union(
        select(segments.c.queue, entry.partition_key).select_from(rows),
        select(execution.queue, execution.partition_key)
        .select_from(segments)
        .join(task_executions, segments.c.queue == execution.queue)
        .where(g.among(execution.id, latest.c.task_execution_id), execution.partition_key.is_not(None)),
    ).cte("recent")
    n = func.row_number().over(order_by=(recent.c.partition_key, recent.c.queue))
    return _heads_of(g, recent, n)


def _heads_of(g: Grammar, key: FromClause, n: Any, *more: Any) -> FromClause:
    """The heads of these keys, as `keys` returns them; all of one place."""
    rows, head = g.each(key, "head", lambda entry: _first_of_key(entry, key))
    columns = [literal_column("0", Integer).label("place"), key.c.queue, *_of_head(head), n.label("n"), *more]
    return select(*columns).select_from(rows).subquery("due_keys")


def _any_free(g: Grammar, keys: FromClause) -> ColumnElement[bool]:
    return select(keys.c.n).where(_is_free(g, keys)).limit(1).exists()


def _open(g: Grammar, queues: FromClause, name: str, *, least: int = 1) -> FromClause:
    """Whole queues as segments: those that are not shut and have at least so many due entries with a key."""
    return (
        select(
            queues.c.queue,
            literal_column("''", Text).label("after"),
            literal_column("NULL", Text).label("upto"),
            literal_column("0", Integer).label("ordinal"),
        )
        .where(queues.c.queue.is_not(None), ~limits.shut(g, queues.c.queue), _due_at(g, queues, least).is_not(None))
        .subquery(name)
    )


def _due(g: Grammar, entry: FromClause, queues: FromClause) -> Select[Any]:
    mine = (entry.c.queue == queues.c.queue, entry.c.partition_key.is_not(None), entry.c.available_at <= g.now)
    return select(*entry.c).where(*mine)


def _take_heads(g: Grammar, given: FromClause) -> Statement:
    rows, head = g.each(given, "head", lambda entry: _first_of_key(entry, given))
    due = (head.available_at <= g.now, wanted(g, head.topic))
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
    return [head.task_execution_id, head.partition_key, head.available_at, head.topic]


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
    return and_(key.c.available_at <= g.now, wanted(g, key.c.topic), holder.is_(None))


def _first_due(g: Grammar, queues: FromClause) -> Any:
    return _due_at(g, queues, 1)


def _due_at(g: Grammar, queues: FromClause, number: int) -> Any:
    """The so-many-th of a queue's due entries with a key; NULL where they are fewer."""
    entry = task_outbox.alias("keyed_due")
    found = _due(g, entry, queues).with_only_columns(entry.c.id).order_by(entry.c.available_at).limit(1)
    if number > 1:
        found = found.offset(literal_column(str(number - 1)))
    return found.correlate(queues).scalar_subquery()
