"""Following the whole log, in the order of its numbers, without passing over a transaction that commits late.

On PostgreSQL a number is drawn before its transaction commits, so a higher one may be seen first. What lies behind a reader
is complete for one of two reasons:

* The numbers are seen without a gap: nothing is missing between them.
* They lie at or below a *mark* that has passed. A mark is the highest number seen and, asked for after that, the id that the
  next transaction will be given. Numbers are drawn one by one, so every number up to the mark was drawn before it was
  made; and every event's number is drawn after its transaction has its id (an entry, lease, task or key is written, or the
  id itself asked for, before the event is). So all those transactions have smaller ids than the mark. Once no open
  transaction has a smaller id, each of them has ended, and is seen or was rolled back: a gap at or below the mark stays one.

A reader keeps a mark until it has passed, then makes the next. So it always goes on once the transactions that were open at
the mark have ended, and it reads no more than its limit from where it is. A gap holds it up only as long as somebody is
writing who might fill it; a long transaction that writes no event holds up nothing but the gaps of those rolled back beside
it. Numbers order the events of one task as they happened, which ids of transactions do not: a transaction that began before
the task was committed may be the one that cancels it.

The id of the next transaction is known only to a transaction that has just begun and has none itself (PostgreSQL answers
with that one then, and says the same until its end), so the log is followed in transactions of our own.

On SQLite one writer commits after the other: everything seen is complete.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Select, bindparam, func, literal_column, select

from ..tables import execution_events
from .claim import limit
from .grammar import Grammar

_after = bindparam("after", type_=BigInteger, required=True)


def head(g: Grammar) -> Select[Any]:
    """The highest number seen, the oldest transaction that may still write, and the one that will begin next."""
    highest = func.coalesce(func.max(execution_events.c.sequence_num), literal_column("0"), type_=BigInteger)
    return select(
        select(highest).scalar_subquery().label("head"),
        g.oldest_open.label("oldest_open"),
        g.next_transaction.label("next_transaction"),
    )


def following(_: Grammar) -> Select[Any]:
    """Up to :limit events behind the number :after, in the order of their numbers."""
    event = execution_events.c
    columns = (column for column in event if column.key != "xact_id")
    return select(*columns).where(event.sequence_num > _after).order_by(event.sequence_num).limit(limit)
