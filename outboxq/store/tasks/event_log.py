"""Replay the log: read the past states of a task, and follow all events.

A reader follows the log in order of sequence number, and does not miss transactions that commit late.

On PostgreSQL, a number is drawn before its transaction commits, so a higher number may become visible first. The log up
to a reader's position is complete if one of these conditions is met:

* The numbers up to that position have no gaps.
* The position is at or below a *mark* that has passed. A mark consists of the highest number seen and the id that the
  next transaction will get, which is read after that number. Numbers are drawn one by one, so every number up to the
  mark was drawn before the mark was made. Every number is drawn after its transaction has received an id, because the
  transaction has either written an entry, lease, task or key before the event, or has requested an id. So the ids of
  all those transactions are below the mark. When no open transaction has an id below the mark, all of those
  transactions have ended. Each of them either made its events visible, or was rolled back and left permanent gaps.

A reader keeps a mark until the mark has passed, and then makes the next one. So it can continue as soon as the
transactions that were open at the mark have ended, and each read returns at most `limit` events. A gap delays the
reader only while an open transaction might fill the gap. A long transaction without events delays the reader only at
gaps that rolled-back transactions have left. The events of a task are numbered in the order in which they happened.
Transaction ids do not reflect that order, because a transaction that began before the task was committed may cancel the
task.

PostgreSQL returns the id of the next transaction only to a transaction that has just begun and has no id, and repeats
the answer until that transaction ends. So a reader uses its own transactions.

On SQLite, transactions commit one after the other, so all visible numbers are complete.

A *snapshot* is the highest number seen and the ids of the open transactions. A snapshot contains an event if the
event's number is not higher than the snapshot's number and the event's transaction was not open. Numbers are drawn one
by one, after their transactions have their ids, so the transaction that drew a smaller number already had its id, and
was open or had ended. PostgreSQL lists the open transactions below the highest id that has ended. All ids above that
id, up to the next id to be assigned, belong to open transactions too. An id beyond these comes from another server, so
the events in a restored dump belong to every snapshot.

A transaction with an id cannot see ids above its own. So a snapshot that it takes misses the open transactions with
higher ids, and once these transactions are committed, their tasks are treated as part of the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile
from re import ASCII, fullmatch
from typing import Any, Self

import sqlalchemy as sa

from ...database.column_types import Instant
from ...database.dialects import Begin, Row
from ...database.grammar import ONE, ZERO, Grammar, limit, sql_literal
from ...database.tables import execution_events
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import EventType, ExecutionEvent
from ...model.history import TaskState, replay
from ...model.unknown_options import Answering
from ..arguments import AnyId, aware, positive
from ..transactions import Noun
from .tasks import event_of, events_of

LEEWAY = timedelta(minutes=2)
"""The maximum time by which the order of event numbers may differ from the order of event times. The orders differ
because an event gets its number a little after its time is read.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TailCursor:
    """The position of a reader in the event log. Store `str(cursor)`; `TailCursor.parse()` reads it.

    The default is the position before the first event. A cursor is valid only in its own database, not in a restored
    dump, which has different sequence numbers and transaction ids.
    """

    sequence_num: int = 0
    """Sequence number of the last event that was returned."""
    settled: int = 0
    """Sequence number up to which all transactions have ended. A missing number below this one will never appear."""
    mark_xact: int = 0
    """Transaction id. When all transactions with smaller ids have ended, the log up to `mark_sequence` is settled. 0
    means that no mark is needed.
    """
    mark_sequence: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a stored cursor. Raises InvalidArgument for any other string."""
        numbers = str(text).split(".")
        if len(numbers) != 4 or not all(number.isascii() and number.isdecimal() for number in numbers):
            raise InvalidArgument(f"{text!r} is not a position in the log; store str(cursor), and pass it unchanged")
        sequence_num, settled, mark_xact, mark_sequence = map(int, numbers)
        return cls(sequence_num=sequence_num, settled=settled, mark_xact=mark_xact, mark_sequence=mark_sequence)

    def __str__(self) -> str:
        return f"{self.sequence_num}.{self.settled}.{self.mark_xact}.{self.mark_sequence}"


class EventLog(Noun, Answering):
    """The events of all tasks, in order."""

    _noun = "outbox.store.log"

    def tail(self, cursor: TailCursor | None = None, *, limit: int = 1000) -> tuple[list[ExecutionEvent], TailCursor]:
        """Return up to `limit` committed events after the cursor, and the next cursor. If the cursor is None, the
        events begin with the first stored event. Every event is returned once, the events of a task are returned in
        order, and no event is missed, even if its transaction commits late. An event may be held back while an older
        transaction is still open. An empty list means that no event is available yet. Store the new cursor in the
        transaction that uses the events, so that each event is used exactly once. This method does not take `using`,
        because only a transaction that has just begun can see which numbers are settled.

        A reader misses events that retention deletes before they are read. A crash of the database server may undo
        claims of the last half second (but no other events) after they were read; later events may then reuse their
        numbers. Raises InvalidArgument for a limit below 1.
        """
        positive(limit)
        if not isinstance(cursor, TailCursor | None):
            raise InvalidArgument(
                f"tail() takes a TailCursor, not {type(cursor).__name__}; read a stored cursor with TailCursor.parse()"
            )
        start = cursor or TailCursor()

        def work(target: Target) -> tuple[list[ExecutionEvent], TailCursor]:
            # The statements run in this order, so that the second one sees all settled events.
            seen = marked(start, target.run(select_head)[0])
            rows = target.run(following, {"after": start.sequence_num, "limit": limit})
            complete, reached = _complete(seen, rows, limit)
            return [event_of(row) for row in complete], replace(seen, sequence_num=reached)

        return self._store.run(work, begin=Begin.READ)

    def tail_from_now(self) -> TailCursor:
        """Return a cursor positioned after the last committed event.

        Earlier events of transactions that are still open may be on either side of the cursor.
        """
        return _before(self._store.run_one(select_head)[0]["head"] + 1)

    def tail_since(self, when: datetime) -> TailCursor:
        """Return a cursor positioned before the first event at or after this aware datetime. The cursor may be a little
        too early, because the order of numbers may differ from the order of times by up to two minutes. Skip the first
        events if their `created_at` is before `when`. The call looks up thirty rows.
        """
        aware(when, "when")
        try:
            early = when - LEEWAY
        except OverflowError:
            return TailCursor()
        rows = self._store.run_one(first_of_window, search_from=early)
        return _before(rows[0]["first"] if rows else 1)

    def tail_last(self, count: int) -> TailCursor:
        """Return a cursor positioned before the newest `count` events; with 0, after the newest event, like
        `tail_from_now`.
        """
        if count == 0:
            return self.tail_from_now()
        return _before(self._store.run_one(first_of_newest, limit=positive(count, "count"))[0]["first"] or 1)

    def state_at(self, task_id: AnyId, when: datetime, *, using: object = None) -> TaskState | None:
        """Return the state of the task at `when` (aware), including events at exactly that time; None if the task did
        not exist yet.

        The state is derived from the events, which are kept for as long as the task. Raises TaskNotFound.
        """
        aware(when, "when")
        events = takewhile(lambda event: event.created_at <= when, events_of(self._store, task_id, using))
        so_far = [event for event in events if isinstance(event.event_type, EventType)]
        return replay(so_far) if so_far else None


def _before(number: int) -> TailCursor:
    """Return a cursor positioned before the event with this number."""
    return TailCursor(sequence_num=number - 1, settled=number - 1)


def marked(cursor: TailCursor, seen: Row) -> TailCursor:
    """Return the cursor, moved past its mark if the mark has passed. A cursor without a mark gets a new mark. See the
    top of this file.
    """
    head, oldest_open, next_transaction = seen["head"], seen["oldest_open"], seen["next_transaction"]
    if oldest_open >= next_transaction:  # no writer is open, so a new mark would already have passed
        return replace(cursor, settled=max(cursor.settled, head), mark_xact=0, mark_sequence=0)
    if cursor.mark_xact and oldest_open < cursor.mark_xact:
        return cursor
    settled = max(cursor.settled, cursor.mark_sequence)
    return replace(cursor, settled=settled, mark_xact=next_transaction, mark_sequence=head)


def _complete(cursor: TailCursor, rows: Sequence[Row], limit: int) -> tuple[list[Row], int]:
    """Return the rows up to the first possible gap, and the number that a reader of these rows has reached."""
    complete: list[Row] = []
    reached = cursor.sequence_num
    for row in rows:
        number = row["sequence_num"]
        if number > cursor.settled and number != max(reached, cursor.settled) + 1:
            break
        complete.append(row)
        reached = number
    return complete, reached if len(complete) == limit else max(reached, cursor.settled)


_after = sa.bindparam("after", type_=sa.BigInteger, required=True)
_head = sa.bindparam("head", None, type_=sa.BigInteger)
"""The highest event number in a snapshot; NULL if no events are excluded."""
_open = sa.bindparam("open", None, type_=sa.Text)
_only_ready, _only_running = (sa.bindparam(name, False, type_=sa.Boolean) for name in ("only_ready", "only_running"))


def select_head(g: Grammar) -> sa.Select[Any]:
    """Select the highest number, the id of the oldest transaction that may still write, and the id of the next
    transaction.
    """
    return _head_and(g, g.oldest_open.label("oldest_open"))


def snapshot(g: Grammar) -> sa.Select[Any]:
    """Select the highest number, the database's own snapshot as text, and the id of the next transaction."""
    return _head_and(g, g.snapshot.label("snapshot"))


def _head_and(g: Grammar, column: sa.ColumnElement[Any]) -> sa.Select[Any]:
    highest: sa.ColumnElement[Any] = sa.func.coalesce(sa.func.max(_event.sequence_num), ZERO, type_=sa.BigInteger)
    head = sa.select(highest).scalar_subquery().label("head")
    return sa.select(head, column, g.next_transaction.label("next_transaction"))


def was_unfinished(g: Grammar, task: sa.FromClause, ids: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a waiting or running task existed and had not ended at the snapshot :head,
    :open.

    With :only_ready or :only_running, the task must also have had that status. The past status is inferred from later
    events.
    """
    again = (EventType.CREATED, EventType.REQUEUED, EventType.RETRY_SCHEDULED)
    given_back = (EventType.RETRY_SCHEDULED, EventType.RESET, EventType.RELEASED, EventType.SNOOZED)
    claim = _later(g, task, ids, _event.event_type == sql_literal(EventType.CLAIMED))
    return sa.or_(
        _head.is_(None),
        sa.and_(
            _later(g, task, ids, _event.lease_token.is_(None), again).is_(None),
            sa.or_(~_only_ready, _later(g, task, ids, _is_end, given_back).is_(None)),
            sa.or_(~_only_running, claim.is_(None)),
        ),
    )


def had_failed(g: Grammar, dead_letter: sa.FromClause, ids: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a task was a dead letter at the snapshot :head, :open, and has not been
    redriven since.
    """
    ends = (EventType.FAILED, EventType.ABANDONED)
    parts = (_later(g, dead_letter, ids, part, ends).is_(None) for part in (_event.lease_token.is_(None), _is_end))
    return sa.or_(_head.is_(None), sa.and_(*parts))


def _later(
    g: Grammar,
    task: sa.FromClause,
    ids: sa.ColumnElement[Any],
    part: sa.ColumnElement[bool],
    kinds: Sequence[EventType] = (),
) -> sa.ScalarSelect[int]:
    """Select the sequence number of one of the task's events that are not in the snapshot. `part` is the condition of
    one of the three indexes through which a task's events are looked up.

    The LIMIT makes this a lookup for each task, instead of one read for all tasks.
    """
    since = sa.or_(_event.sequence_num > _head, g.was_open(_event.xact_id, _open))
    named = [_event.event_type.in_([sql_literal(kind) for kind in kinds])] if kinds else []
    found = sa.select(_event.sequence_num).where(_event.task_execution_id == ids, part, *named, since)
    return found.limit(ONE).correlate(task).scalar_subquery()


_event = execution_events.c
_is_end = sa.and_(_event.event_type != sql_literal(EventType.CLAIMED), _event.lease_token.is_not(None))


def following(_: Grammar) -> sa.Select[Any]:
    """Select up to :limit events after the number :after, in order of number."""
    columns = (column for column in _event if column.key != "xact_id")
    return sa.select(*columns).where(_event.sequence_num > _after).order_by(_event.sequence_num).limit(limit)


_search_from = sa.bindparam("search_from", type_=Instant, required=True)


def first_of_window(_: Grammar) -> sa.Select[Any]:
    """Select the number of the first event since :search_from, or the number after the last event. Returns no row for
    an empty log.

    There is no index on event times, but a later event has a higher number. So this is a binary search in the
    primary key, with thirty probes for a billion events. Gaps left by deleted events do not matter.
    """
    low = sa.select(sa.func.min(_event.sequence_num)).scalar_subquery()
    high = sa.select(sa.func.max(_event.sequence_num) + 1).scalar_subquery()
    search = sa.select(low.label("low"), high.label("high")).cte("search", recursive=True)
    middle = (search.c.low + search.c.high) // 2
    probe = sa.select(_event.created_at).where(_event.sequence_num >= middle).order_by(_event.sequence_num).limit(1)
    early = probe.correlate(search).scalar_subquery() < _search_from
    halved = sa.select(
        sa.case((early, middle + 1), else_=search.c.low), sa.case((early, search.c.high), else_=middle)
    ).where(search.c.low < search.c.high)
    found = search.union_all(halved)
    return sa.select(found.c.low.label("first")).where(found.c.low == found.c.high)


def first_of_newest(_: Grammar) -> sa.Select[Any]:
    """Select the lowest number of the newest :limit events; NULL for an empty log. Rolled-back transactions and deleted
    events leave gaps between the numbers.
    """
    newest = sa.select(_event.sequence_num).order_by(_event.sequence_num.desc()).limit(limit).subquery("newest")
    return sa.select(sa.func.min(newest.c.sequence_num).label("first"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The events that had been committed by a given time. `str(snapshot)` can be stored; `Snapshot.parse()` reads it.

    A bulk change with the snapshot of a count changes only counted tasks, whatever the producers' clocks show and
    however late a transaction commits. A snapshot is valid only in its own database.
    """

    head: int
    """Sequence number of the newest event that was committed."""
    open: frozenset[int] = frozenset()
    """Ids below `begun` whose transactions were open; empty on SQLite."""
    begun: range = range(0)
    """The ids above the highest one whose transaction had ended, and below the next id to be assigned."""

    @classmethod
    def take(cls, target: Target) -> Self:
        """Return the current snapshot or, in a transaction that reads from one snapshot, that transaction's snapshot."""
        row = target.run(snapshot)[0]
        _, beyond, others = row["snapshot"].split(":")
        return cls(head=row["head"], open=_numbers(others), begun=range(int(beyond), row["next_transaction"]))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a stored snapshot. Raises InvalidArgument for any other string."""
        if not fullmatch(r"\d{1,18}:(\d{1,18}(,\d{1,18})*)?:\d{1,18}-\d{1,18}", str(text), ASCII):
            raise InvalidArgument(f"{text!r} is not a snapshot; store str(snapshot), and pass it unchanged")
        head, others, begun = str(text).split(":")
        return cls(head=int(head), open=_numbers(others), begun=range(*map(int, begun.split("-"))))

    def __str__(self) -> str:
        return f"{self.head}:{','.join(map(str, sorted(self.open)))}:{self.begun.start}-{self.begun.stop}"

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of a statement that excludes later events."""
        spans = [f"[{one},{one}]" for one in sorted(self.open)]
        if self.begun:
            spans.append(f"[{self.begun.start},{self.begun.stop})")
        return {"head": self.head, "open": f"{{{','.join(spans)}}}"}


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(one) for one in text.split(",") if one)


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """A number of rows, counted up to a bound."""

    number: int
    at_least: bool = False
    """True if there may be more than `number`, because the count stopped early."""
    snapshot: Snapshot | None = field(default=None, compare=False)
    """The snapshot in which the tasks were counted, to be passed as `snapshot=` to the change that follows; None if no
    change can follow.
    """


def counted_to(most: int, found: int, *, cut: bool = False, snapshot: Snapshot | None = None) -> Count:
    """Return a Count of rows that were counted up to `most` + 1. `cut` is True if the count stopped before it reached
    that number.
    """
    return Count(number=min(found, most), at_least=cut or found > most, snapshot=snapshot)
