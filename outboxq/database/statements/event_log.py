"""Follow the whole log in the order of its numbers, and miss no transaction that commits late.

On PostgreSQL a number is drawn before its transaction commits, so a higher number may be seen first. The log up to a reader's
position is complete for one of two reasons:

* The numbers have no gap: nothing is missing between them.
* They are at or below a *mark* that has passed. A mark is the highest number seen and, read after it, the id that the next
  transaction will get. Numbers are drawn one by one, so every number up to the mark was drawn before the mark was made. Every
  event's number is drawn after its transaction has its id: the transaction has written an entry, lease, task or key before the
  event, or has asked for its id. So all those transactions have smaller ids than the mark. Once no open transaction has a
  smaller id, each of them has ended. Its events are seen, or it was rolled back and its gaps stay gaps.

A reader keeps a mark until it has passed, and then makes the next. So it goes on once the transactions that were open at the
mark have ended, and reads no more than its limit from its position. A gap delays it only while a transaction is open that
might fill it. A long transaction that writes no event delays it only at gaps of transactions that were rolled back. Numbers
order the events of one task as they happened. Transaction ids do not: a transaction that began before the task was committed
may cancel it.

PostgreSQL tells the id of the next transaction only to a transaction that has just begun and has no id, and repeats that
answer until its end. So the log is followed in transactions of our own.

On SQLite one writer commits after the other, so everything seen is complete.

A *snapshot* is the highest number seen, and the ids of the transactions that were open. An event is in it if its number is not
higher and its transaction was not open: numbers are drawn one by one, and after their transactions have their ids, so a
transaction with a smaller number had its id before, and it was either open or had ended. PostgreSQL lists the open ones below the
highest id that has ended. All ids above that, up to the next one to be given out, are those of open transactions too. An id
beyond these is that of another server: events of a restored dump are in every snapshot.

A transaction that has an id knows no id above its own. A snapshot that it takes misses the open transactions behind it, whose
tasks count as seen once they are committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    ScalarSelect,
    Select,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
)

from ...model import EventType
from ..column_types import Instant
from ..tables import execution_events
from .claim import limit
from .grammar import Grammar, sql_literal

_after = bindparam("after", type_=BigInteger, required=True)
_head = bindparam("head", None, type_=BigInteger)
"""The highest number of a snapshot; NULL: nothing is left out."""
_open = bindparam("open", None, type_=Text)
_search_from = bindparam("search_from", type_=Instant, required=True)
_only_ready, _only_running = (bindparam(name, False, type_=Boolean) for name in ("only_ready", "only_running"))


def head(g: Grammar) -> Select[Any]:
    """Select the highest number, the oldest transaction that may still write, and the next transaction that will begin."""
    columns: tuple[ColumnElement[Any], ...] = (
        _highest().label("head"),
        g.oldest_open.label("oldest_open"),
        g.next_transaction.label("next_transaction"),
    )
    return select(*columns)


def snapshot(g: Grammar) -> Select[Any]:
    """Select the highest number, the database's own snapshot as text, and the next transaction that will begin."""
    columns: tuple[ColumnElement[Any], ...] = (
        _highest().label("head"),
        g.snapshot.label("snapshot"),
        g.next_transaction.label("next_transaction"),
    )
    return select(*columns)


def _highest() -> ScalarSelect[Any]:
    highest: ColumnElement[Any] = func.coalesce(func.max(_event.sequence_num), literal_column("0"), type_=BigInteger)
    return select(highest).scalar_subquery()


def was_unfinished(g: Grammar, task: FromClause, ids: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that a waiting or running task was there at the snapshot :head, :open, and had not ended.

    With :only_ready or :only_running, that it also was in that status. The events that were written since tell.
    """
    again = (EventType.CREATED, EventType.REQUEUED, EventType.RETRY_SCHEDULED)
    given_back = (EventType.RETRY_SCHEDULED, EventType.RESET, EventType.RELEASED, EventType.SNOOZED)
    claim = _later(g, task, ids, _event.event_type == sql_literal(EventType.CLAIMED))
    return or_(
        _head.is_(None),
        and_(
            _later(g, task, ids, _event.lease_token.is_(None), again).is_(None),
            or_(~_only_ready, _later(g, task, ids, _is_end, given_back).is_(None)),
            or_(~_only_running, claim.is_(None)),
        ),
    )


def had_failed(g: Grammar, letter: FromClause, ids: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that a dead letter was one at the snapshot :head, :open, and was not redriven since."""
    ends = (EventType.FAILED, EventType.ABANDONED)
    parts = (_later(g, letter, ids, part, ends).is_(None) for part in (_event.lease_token.is_(None), _is_end))
    return or_(_head.is_(None), and_(*parts))


def _later(
    g: Grammar,
    task: FromClause,
    ids: ColumnElement[Any],
    part: ColumnElement[bool],
    kinds: Sequence[EventType] = (),
) -> ScalarSelect[int]:
    """Select the number of an event of the task that is not in the snapshot. `part` is the condition of one of the three indexes.

    With a limit it is looked up task by task, and not read for all tasks at once.
    """
    since = or_(_event.sequence_num > _head, g.was_open(_event.xact_id, _open))
    named = [_event.event_type.in_([sql_literal(kind) for kind in kinds])] if kinds else []
    found = select(_event.sequence_num).where(_event.task_execution_id == ids, part, *named, since)
    return found.limit(literal_column("1")).correlate(task).scalar_subquery()


_event = execution_events.c
_is_end = and_(_event.event_type != sql_literal(EventType.CLAIMED), _event.lease_token.is_not(None))


def first_of_window(_: Grammar) -> Select[Any]:
    """Select the number of the first event since :search_from, or the one after the last event; no row for an empty log.

    No index covers the time of events, but their numbers grow with it. So a binary search goes through the primary key: thirty
    probes for a thousand million events. Gaps that deletions leave cost nothing.
    """
    event = execution_events.c
    low = select(func.min(event.sequence_num)).scalar_subquery()
    high = select(func.max(event.sequence_num) + 1).scalar_subquery()
    search = select(low.label("low"), high.label("high")).cte("search", recursive=True)
    middle = (search.c.low + search.c.high) // 2
    probe = (
        select(event.created_at)
        .where(event.sequence_num >= middle)
        .order_by(event.sequence_num)
        .limit(1)
        .correlate(search)
        .scalar_subquery()
    )
    early = probe < _search_from
    halved = select(case((early, middle + 1), else_=search.c.low), case((early, search.c.high), else_=middle)).where(
        search.c.low < search.c.high
    )
    found = search.union_all(halved)
    return select(found.c.low.label("first")).where(found.c.low == found.c.high)


def following(_: Grammar) -> Select[Any]:
    """Select up to :limit events after the number :after, in the order of their numbers."""
    event = execution_events.c
    columns = (column for column in event if column.key != "xact_id")
    return select(*columns).where(event.sequence_num > _after).order_by(event.sequence_num).limit(limit)
