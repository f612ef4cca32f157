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
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Select, bindparam, func, literal_column, select

from ..tables import execution_events
from .claim import limit
from .grammar import Grammar

_after = bindparam("after", type_=BigInteger, required=True)


def head(g: Grammar) -> Select[Any]:
    """Select the highest number, the oldest transaction that may still write, and the next transaction that will begin."""
    highest = func.coalesce(func.max(execution_events.c.sequence_num), literal_column("0"), type_=BigInteger)
    return select(
        select(highest).scalar_subquery().label("head"),
        g.oldest_open.label("oldest_open"),
        g.next_transaction.label("next_transaction"),
    )


def following(_: Grammar) -> Select[Any]:
    """Select up to :limit events after the number :after, in the order of their numbers."""
    event = execution_events.c
    columns = (column for column in event if column.key != "xact_id")
    return select(*columns).where(event.sequence_num > _after).order_by(event.sequence_num).limit(limit)
