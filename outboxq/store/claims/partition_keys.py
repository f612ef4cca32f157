"""Claim tasks with a partition key: one task per key runs at a time, in the key's order, and the keys take turns.

A claim consists of two statements in one transaction:

1. `acquire` scans the keys through the index, with one probe for each key, starting where the last claim ended. To
   acquire a key whose head is due, the statement inserts a row into `partition_claims`. The primary key of that table
   gives each key to one worker.
2. `claim_heads` claims the head of each acquired key *in a snapshot that is newer than the first statement's*. The
   worker that held the key before has ended its task by then, and an entry that it put back is visible. If one
   statement did both, two workers could see different heads of a key, lock different rows, and run both tasks.

The scan reads a limited number of keys. Among the other keys, `acquire_due` finds those whose entries have been due the
longest, and `acquire_recent` finds those that changed last. A later scan finds the keys that neither of these functions
finds.

The head of a key is its first entry by priority, then by position. Only the head has to be due and to have a topic that
this worker handles. So a delayed, retried or unwanted head blocks only its own key. The key's row is deleted in the
transaction that ends the attempt, or is kept as held after a failure that blocks the key (`task_rows.py`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database import queue_order
from ...database.dialects import Row
from ...database.grammar import Columns, Grammar, Relations, Statement, Transition, limit
from ...database.queue_order import every_queue, given_queues, wanted
from ...database.tables import execution_events, partition_claims, queue_settings, task_executions, task_outbox
from ...database.target import Target
from ..arguments import parameters
from .broken_entries import started
from .claim_sql import claim, same_key, take_unlocked, value_for

Segment = tuple[str, str, str | None]
"""A queue and two of its keys: the segment begins after the first key and ends with the second."""
Won = tuple[list[Row], bool]
"""The acquired keys, and whether no other key of these queues can be acquired."""
Way = Callable[[Target, int, dict[str, Any], Sequence[str]], Won]
"""A function that acquires up to the given number of keys of the given queues."""
_LEAST, _MOST = 32, 1000
"""Minimum and maximum number of keys that one statement reads."""


class KeyTurns:
    """Claims tasks with a partition key, and remembers which key is next. Each instance belongs to one claimer."""

    def __init__(self) -> None:
        self._cursors: dict[str, str] = {}
        """The key at which the last claim from each queue ended. If two threads share an instance, only the order of
        turns is affected.
        """
        self._served: dict[str, int] = {}
        """The rank of each queue, from `_wins`. Queues are ranked by the time at which one of their keys was last
        acquired.
        """
        self._wins = itertools.count(1)
        self._walled: set[str] = set()
        """Queues in which the last claim read many keys but could not acquire any."""

    def claim(
        self, target: Target, values: dict[str, Any], queues: Sequence[str], limit: int, *, fair: bool
    ) -> list[Row]:
        """Claim the heads of up to `limit` keys.

        With `fair`, the queues take turns, and so do the keys in each. Otherwise, the keys whose tasks have been due
        longest come first. If many keys cannot be acquired, the claim scans in both orders, and also tries the keys
        that changed last.
        """
        if limit < 1:
            return []
        # If the previous claim found only blocked keys, the newest event has woken this worker. Finding the key of that
        # event takes 3 ms, but reading the blocked keys again takes 60 ms.
        woken, all_seen, found = self._walled.issuperset(queues), False, list[Row]()
        ways: list[Way] = [self._rotate, self._oldest] if fair else [self._oldest, self._rotate]
        order = [self._recent, *ways] if woken else [*ways, self._recent]
        # The last search reads as many keys as a waiting worker's check. Otherwise, the worker could see work that no
        # claim finds.
        far: Way = partial(self._rotate, budget=_MOST)
        with target.atomic():
            for way in (*order, far):
                more, all_seen = True, False
                while more and len(found) < limit:
                    won, all_seen = way(target, limit - len(found), values, queues)
                    taken, more = take_heads(target, won, values)
                    found += taken
                if all_seen or (found and (woken or way is order[-1])):
                    break
        if found or all_seen:
            self._walled.difference_update(queues)
        else:
            self._walled.update(queues)
        return found

    def _rotate(
        self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str], budget: int | None = None
    ) -> Won:
        """Acquire keys after the cursors, then from the first key up to the cursors.

        The queue that was served last comes last, so that queues take turns even in claims of one task.
        """
        queues = sorted(queues, key=lambda queue: self._served.get(queue, 0))
        began = {queue: self._cursors.get(queue, "") for queue in queues}
        budget = budget or min(max(2 * limit, _LEAST), _MOST)
        segments: list[Segment] = [(queue, after, None) for queue, after in began.items()]
        won, ended = self._win(target, limit, values, segments, budget)
        self._cursors.update(dict.fromkeys(ended, ""))  # otherwise the next turn of the queue would find no key
        again: list[Segment] = [(queue, "", began[queue]) for queue in queues if queue in ended and began[queue]]
        if again and len(won) < limit:
            more, wrapped = self._win(target, limit - len(won), values, again, budget)
            won += more
            ended -= {queue for queue, _, _ in again} - wrapped
        all_seen = len(won) < limit and ended == set(queues)
        if all_seen:  # every free key was acquired, so the next round does not need a second part
            self._cursors.update(dict.fromkeys(queues, ""))
        return won, all_seen

    def _win(
        self, target: Target, limit: int, values: dict[str, Any], segments: Sequence[Segment], budget: int
    ) -> tuple[list[Row], set[str]]:
        """Return the acquired keys, and the queues whose segments were read to their ends. Moves the cursors.

        The cursor of a queue never passes a free key that was not acquired because the claim was full. Keys are
        compared by the numbers that the statement returns, because the database may order names differently from
        Python.
        """
        seen = target.run(acquire, values | {"limit": limit, "budget": budget}, segments)
        seen.sort(key=lambda row: (row["place"], row["n"]))
        turns: Counter[int] = Counter()
        for row in seen:
            turns[row["place"]] += row["free"]
            row["turn"] = turns[row["place"]], row["place"]
        won = [row for row in seen if row["won"] is not None]
        won.sort(key=lambda row: row["turn"])
        last = won[-1]["turn"] if len(won) == limit else (budget + 1, 0)
        passed, unasked = dict.fromkeys((queue for queue, _, _ in segments), 0), set()
        for row in seen:
            if row["free"] and row["turn"] > last:
                unasked.add(row["queue"])
            elif row["queue"] not in unasked:
                passed[row["queue"]] += 1
                self._cursors[row["queue"]] = row["partition_key"]
        for row in won:
            self._served[row["queue"]] = next(self._wins)
        return won, {queue for queue, n in passed.items() if n < budget and queue not in unasked}

    def _oldest(self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str]) -> Won:
        """Acquire the keys whose entries have been due longest. A free key has a due entry. So if fewer entries than
        the budget are due, no other key is free.
        """
        budget = min(max(2 * limit, _LEAST), _MOST)
        seen = target.run(acquire_due, values | {"limit": limit, "budget": budget}, _whole(queues))
        entries = Counter[str]()
        for row in seen:
            entries[row["queue"]] += row["entries"]
        return [row for row in seen if row["won"] is not None], all(entries[queue] < budget for queue in queues)

    def _recent(self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str]) -> Won:
        """Acquire the keys that changed last, so that a worker finds the task that woke it, however many keys are
        blocked.
        """
        seen = target.run(acquire_recent, values | {"limit": limit, "budget": _MOST}, _whole(queues))
        return [row for row in seen if row["won"] is not None], False


def take_heads(target: Target, won: Sequence[Row], values: dict[str, Any]) -> tuple[list[Row], bool]:
    """Claim the heads of the acquired keys. Returns the claimed tasks, and whether some heads had expired, in which
    case another search may find more tasks.
    """
    if not won:
        return [], False
    keys = [(row["queue"], row["partition_key"]) for row in won]
    taken = target.run(claim_heads, values, keys)
    found = started(taken)
    owners = {(row["queue"], row["partition_key"]): row["id"] for row in found}
    wanted = [(row["id"], owners.get(key)) for row, key in zip(won, keys, strict=True)]
    if changed := [(task, owner) for task, owner in wanted if task != owner]:
        target.run(release_unused, values, changed)
    return found, len(taken) > len(found)


def _whole(queues: Sequence[str]) -> list[Segment]:
    return [(queue, "", None) for queue in queues]


RANGE: Columns = {"queue": sa.Text(), "after": sa.Text(), "upto": sa.Text()}
"""A range of the keys of a queue: those that are greater than `after` and, unless `upto` is NULL, at most `upto`."""
KEYS: Columns = {"queue": sa.Text(), "partition_key": sa.Text()}
_budget, _most = parameters(sa.Integer, "budget", "most")
_after = sa.bindparam("after", type_=sa.Text, required=True)
_HORIZON = sa.literal_column("1000", sa.Integer)
"""Number of blocked keys after which a waiting worker assumes that a later key might be free."""
_FEW = 32
"""Number of due entries of a queue that are read before its keys are scanned."""
_RECENT = sa.literal_column("64", sa.Integer)
"""Maximum number of due entries in a queue, and of events, whose keys `acquire_recent` reads, latest first."""


def other_queues(g: Grammar) -> sa.Select[Any]:
    """Select, in order, the first :most queues after :after that a plain claim does not serve in full."""
    keyed, limited = every_queue(with_key=True, after=_after), queue_order.limited_queues(g, _after)
    # A recursive query is read row by row, so each source is read only up to its limit.
    first_keyed = _not_paused(keyed, _due_entry(g, keyed, 1).is_not(None)).limit(_most)
    of_limited = queue_order.limited(limited.c.queue), queue_order.may_have_due(g, limited.c.queue)
    first_limited = _not_paused(limited, *of_limited).limit(_most)
    sources = (sa.select(first_keyed.subquery("first_keyed")), sa.select(first_limited.subquery("first_limited")))
    others = sa.union(*sources).subquery("others")
    return _with_settings(others).order_by(others.c.queue).limit(_most)


def other_queues_given(g: Grammar) -> sa.Select[Any]:
    """Select the given queues that a plain claim does not serve in full."""
    queues, entry = given_queues(g), task_outbox.alias("plain_entry")
    plain = sa.select(entry.c.id).where(entry.c.queue == queues.c.queue, entry.c.partition_key.is_(None)).limit(1)
    has_plain = value_for(queues, plain).is_not(None)
    if g.floors is not None:  # many entries of a queue in the floors are dead
        has_floor = sa.select(g.floors.c.queue).where(g.floors.c.queue == queues.c.queue).exists()
        has_plain = sa.case((has_floor, queue_order.may_have_due(g, queues.c.queue)), else_=has_plain)
    keyed, limited = _due_entry(g, queues, 1).is_not(None), queue_order.limited(queues.c.queue)
    return _with_settings(_not_paused(queues, sa.or_(keyed, sa.and_(limited, has_plain))).subquery("others"))


def _not_paused(queues: sa.FromClause, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(queues.c.queue).where(
        queues.c.queue.is_not(None), ~queue_order.paused(queues.c.queue), *conditions
    )


def _with_settings(queues: sa.FromClause) -> sa.Select[Any]:
    settings = queue_settings.alias("settings")
    fair = value_for(queues, sa.select(settings.c.fair).where(settings.c.queue == queues.c.queue))
    is_fair = sa.func.coalesce(fair, sa.literal_column("true")).label("fair")
    return sa.select(queues.c.queue, queue_order.limited(queues.c.queue).label("limited"), is_fair)


def acquire(g: Grammar) -> Transition:
    """Acquire up to :limit keys of these ranges in rotation. Returns each key that was scanned; `won` is set for an acquired key.

    The ranges take turns: the first free key of each, then the second of each, in the order of the batch.
    """
    return _acquire(g, lambda ranges: keys(g, ranges, _budget))


def acquire_due(g: Grammar) -> Transition:
    """Acquire up to :limit of the keys whose entries have been due the longest, however many other keys are not due."""
    return _acquire(g, lambda ranges: _oldest_keys(g, ranges, _budget), "entries")


def acquire_recent(g: Grammar) -> Transition:
    """Acquire up to :limit of the keys that changed last, however many other keys cannot be claimed."""
    return _acquire(g, lambda ranges: _recent_keys(g, ranges))


def acquire_given(g: Grammar) -> Transition:
    """Acquire up to :limit of the given keys, in the given order."""
    return _acquire(g, lambda keys: heads_of(g, keys, keys.c.ordinal), given=KEYS)


def claim_heads(g: Grammar) -> Transition:
    """Claim the heads of these acquired keys."""
    return claim(g, lambda r: _claim_heads(g, r["given"]), given=KEYS)


def release_unused(g: Grammar) -> Transition:
    """Release the keys whose heads could not be claimed (`holder` NULL), and record the holders of the other keys."""
    claims = partition_claims.c

    def moved(r: Relations) -> Statement:
        given = r["given"].c
        ids = sa.select(given.id).where(given.holder.is_not(None)).subquery("changed").c.id
        owner = sa.select(given.holder).where(given.id == claims.task_execution_id).scalar_subquery()
        return sa.update(partition_claims).where(g.among(claims.task_execution_id, ids)).values(task_execution_id=owner)

    def gone(r: Relations) -> Statement:
        given = r["given"].c
        ids = sa.select(given.id).where(given.holder.is_(None)).subquery("unused").c.id
        return sa.delete(partition_claims).where(g.among(claims.task_execution_id, ids))

    return Transition(given={"id": sa.Uuid(), "holder": sa.Uuid()}, steps={"moved": moved, "gone": gone})


def keys(g: Grammar, ranges: sa.FromClause, budget: Any, *, name: str = "keys") -> sa.CTE:
    """Return the keys of each range in order with their heads, up to `budget` keys in each range.

    `n` is the key's rank in its range, and `place` is the range's ordinal in the batch.
    """
    rows, head = _next_head(g, ranges, "head", ranges.c.after)
    place = ranges.c.ordinal.label("place")
    columns = [place, ranges.c.queue, ranges.c.upto, *_of_head(head), sa.literal_column("1", sa.Integer).label("n")]
    first = sa.select(*columns).select_from(rows).where(_within(head, ranges))
    found = first.cte(name, recursive=True)
    rows, head = _next_head(g, found, "following", found.c.partition_key)
    following = found.c.n + sa.literal_column("1", sa.Integer)
    rest = sa.select(found.c.place, found.c.queue, found.c.upto, *_of_head(head), following)
    return found.union_all(rest.select_from(rows).where(found.c.n < budget, _within(head, found)))


def any_due(g: Grammar, queues: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a key of these queues can be acquired, or whether such a key might lie
    beyond `_HORIZON` keys that cannot be acquired.

    A free key has a due entry. So the keys of a queue with few due entries need not be scanned.
    """
    found = keys(g, _open(g, queues, "crowded_queues", least=_FEW), _HORIZON)
    return sa.or_(_any_oldest(g, queues), _any_free(g, found, found.c.n == _HORIZON))


def any_recent(g: Grammar, queues: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the same condition as `any_due`, but only for the keys that `acquire_due` and `acquire_recent` read. The
    query reads few rows.
    """
    return sa.or_(_any_oldest(g, queues), _any_free(g, _recent_keys(g, _open(g, queues, "recent_queues"))))


def next_available_at(g: Grammar, queues: sa.FromClause) -> sa.Select[Any]:
    """Select the time at which each queue's next entry with a key becomes due."""
    entry = task_outbox.alias("keyed_later")
    later = (entry.c.queue == queues.c.queue, entry.c.partition_key.is_not(None), entry.c.available_at > g.now)
    first = sa.select(entry.c.available_at).where(*later).order_by(entry.c.available_at, entry.c.id).limit(1)
    moment = value_for(queues, first).label("available_at")
    return sa.select(moment).select_from(queues).where(~queue_order.paused(queues.c.queue))


def _acquire(g: Grammar, found: Any, *more: str, given: Columns = RANGE) -> Transition:
    """Acquire up to :limit of the keys that `found` returns for the batch. `more` names further columns to return."""

    def hop(r: Relations) -> Statement:
        key = found(r["given"])
        return sa.select(
            key.c.task_execution_id.label("id"),
            *(key.c[column] for column in ("queue", "partition_key", "place", "n", *more)),
            is_free(g, key).label("free"),
        )

    def won(r: Relations) -> Statement:
        hop = r["hop"].c
        # Only claimable keys take a turn. Otherwise a range that begins with keys that cannot be claimed would wait for
        # the others.
        turn = sa.func.row_number().over(partition_by=hop.place, order_by=hop.n).label("turn")
        turns = sa.select(hop.queue, hop.partition_key, hop.id, hop.place, turn).where(hop.free).subquery("turns")
        # The inner limit makes the database sort before it locks, so that no more keys are locked than are acquired.
        free = (
            sa.select(turns.c.queue, turns.c.partition_key, turns.c.id)
            .order_by(turns.c.turn, turns.c.place)
            .limit(_budget)
            .subquery("unclaimed")
        )
        # Without the lock, ON CONFLICT would wait for another claim that is about to acquire the same key, and two claims
        # that acquire keys in several statements could wait for each other.
        locked = sa.select(free).where(g.try_lock(free.c.queue, free.c.partition_key)).limit(limit).subquery("locked")
        rows = sa.select(*locked.c, sa.false()).order_by(locked.c.queue, locked.c.partition_key)
        new = g.insert(partition_claims).from_select(["queue", "partition_key", "task_execution_id", "held"], rows)
        claims = partition_claims.c
        return (  # type: ignore[no-any-return]
            new.on_conflict_do_nothing().returning(claims.task_execution_id.label("id"), claims.held.label("won"))
        )

    return Transition(given=given, steps={"hop": hop, "won": won}, returns="hop", joined_steps=("won",))


def _oldest_keys(g: Grammar, ranges: sa.FromClause, budget: Any) -> sa.FromClause:
    """Return the keys of the entries that have been due longest, up to `budget` entries in each queue. All keys share
    one rotation.
    """
    rows, entry = g.each(ranges, "due", lambda entry: oldest_due_of(g, entry, ranges), budget)
    first, entries = sa.func.min(entry.available_at).label("first"), sa.func.count().label("entries")
    oldest = (
        sa.select(ranges.c.queue, entry.partition_key, first, entries)
        .select_from(rows)
        .group_by(ranges.c.queue, entry.partition_key)
        .cte("oldest")
    )
    n = sa.func.row_number().over(order_by=(oldest.c.first, oldest.c.partition_key))
    return heads_of(g, oldest, n, oldest.c.entries)


def _recent_keys(g: Grammar, ranges: sa.FromClause) -> sa.FromClause:
    """Return the keys of the entries that became due most recently, and of the tasks with the latest events.

    A key becomes claimable in one of two ways: its head becomes due, or one of its tasks has an event, such as the end of the
    task that held the key.
    """

    def due(entry: sa.FromClause) -> sa.Select[Any]:
        return due_of(g, entry, ranges).order_by(entry.c.available_at.desc(), entry.c.id.desc())

    rows, entry = g.each(ranges, "due", due, _RECENT)
    event, execution = execution_events.c, task_executions.c
    latest = sa.select(event.task_execution_id).order_by(event.sequence_num.desc()).limit(_RECENT).cte("latest")
    recent = sa.union(
        sa.select(ranges.c.queue, entry.partition_key).select_from(rows),
        sa.select(execution.queue, execution.partition_key)
        .select_from(ranges)
        .join(task_executions, ranges.c.queue == execution.queue)
        .where(g.among(execution.id, latest.c.task_execution_id), execution.partition_key.is_not(None)),
    ).cte("recent")
    n = sa.func.row_number().over(order_by=(recent.c.partition_key, recent.c.queue))
    return heads_of(g, recent, n)


def heads_of(g: Grammar, key: sa.FromClause, n: Any, *more: Any) -> sa.FromClause:
    """Return the heads of these keys in the columns of `keys`, all with the same `place`."""
    rows, head = _heads(g, key)
    columns = [sa.literal_column("0", sa.Integer).label("place"), key.c.queue, *_of_head(head), n.label("n"), *more]
    return sa.select(*columns).select_from(rows).subquery("due_keys")


def _any_oldest(g: Grammar, queues: sa.FromClause) -> sa.ColumnElement[bool]:
    return _any_free(g, _oldest_keys(g, _open(g, queues, "open_queues"), sa.literal_column(str(_FEW), sa.Integer)))


def _any_free(g: Grammar, keys: sa.FromClause, *others: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether at least one of these keys can be acquired or meets one of the conditions
    in `others`.
    """
    return sa.select(keys.c.n).where(sa.or_(is_free(g, keys), *others)).limit(1).exists()


def whole(queues: sa.FromClause) -> sa.Select[Any]:
    """Return whole queues as ranges."""
    return sa.select(
        queues.c.queue,
        sa.literal_column("''", sa.Text).label("after"),
        sa.literal_column("NULL", sa.Text).label("upto"),
        sa.literal_column("0", sa.Integer).label("ordinal"),
    )


def _open(g: Grammar, queues: sa.FromClause, name: str, *, least: int = 1) -> sa.FromClause:
    """Return whole queues as ranges: the open queues that have at least `least` due entries with a key."""
    is_open = (queues.c.queue.is_not(None), ~queue_order.stopped(g, queues.c.queue))
    return whole(queues).where(*is_open, _due_entry(g, queues, least).is_not(None)).subquery(name)


def due_of(g: Grammar, entry: sa.FromClause, queues: sa.FromClause) -> sa.Select[Any]:
    mine = (entry.c.queue == queues.c.queue, entry.c.partition_key.is_not(None), entry.c.available_at <= g.now)
    return sa.select(*entry.c).where(*mine)


def oldest_due_of(g: Grammar, entry: sa.FromClause, queues: sa.FromClause) -> sa.Select[Any]:
    return due_of(g, entry, queues).order_by(entry.c.available_at, entry.c.id)


def _claim_heads(g: Grammar, given: sa.FromClause) -> Statement:
    rows, head = _heads(g, given)
    due = (head.available_at <= g.now, wanted(g, head.topic))
    heads = sa.select(head.id).select_from(rows).where(*due).cte("heads").prefix_with("MATERIALIZED")
    entry = task_outbox.alias("entry")
    # Choose the head before locking it: a locked head must not be skipped for the entry behind it.
    return take_unlocked(g, entry, g.among(entry.c.id, heads.c.id))


def _heads(g: Grammar, keys: sa.FromClause) -> tuple[sa.FromClause, Any]:
    """Join each of these keys with its head."""
    return g.each(keys, "head", lambda entry: in_order(entry, keys))


def in_order(entry: sa.FromClause, keys: sa.FromClause) -> sa.Select[Any]:
    """Select the entries of these keys, the head of each key first."""
    return sa.select(*entry.c).where(same_key(entry, keys)).order_by(entry.c.priority.desc(), entry.c.position)


def _next_head(g: Grammar, source: sa.FromClause, name: str, after: sa.ColumnElement[str]) -> tuple[sa.FromClause, Any]:
    """Join each row of `source` with the head of the first key after `after` in its queue."""

    def choose(entry: sa.FromClause) -> sa.Select[Any]:
        others = sa.select(*entry.c).where(entry.c.queue == source.c.queue, entry.c.partition_key > after)
        return others.order_by(entry.c.partition_key, entry.c.priority.desc(), entry.c.position)

    return g.each(source, name, choose)


def _of_head(head: Any) -> list[Any]:
    return [head.task_execution_id, head.partition_key, head.available_at, head.topic]


def _within(head: Any, key_range: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.or_(key_range.c.upto.is_(None), head.partition_key <= key_range.c.upto)


def is_free(g: Grammar, key: Any) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the key's head is due, this worker handles the head's topic, and no task
    holds the key.
    """
    return sa.and_(key.c.available_at <= g.now, wanted(g, key.c.topic), claim_of(key).is_(None))


def claim_of(key: Any) -> sa.ScalarSelect[str]:
    """Select the key's queue if a task has claimed the key."""
    claims = partition_claims.alias("claims")
    # NOT EXISTS could be planned as a join with every held key.
    return value_for(key, sa.select(claims.c.queue).where(same_key(claims, key)))  # type: ignore[no-any-return]


def _due_entry(g: Grammar, queues: sa.FromClause, number: int) -> Any:
    """Return each queue's `number`-th due entry with a key, in order of due time; NULL if there are fewer."""
    entry = task_outbox.alias("keyed_due")
    found = due_of(g, entry, queues).with_only_columns(entry.c.id).order_by(entry.c.available_at).limit(1)
    if number > 1:
        found = found.offset(sa.literal_column(str(number - 1)))
    return value_for(queues, found)
