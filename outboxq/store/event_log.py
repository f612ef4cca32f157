"""The log, replayed: a task as it was, and everything that happens as it happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Self
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.statements import event_log as statements
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import EventType, ExecutionEvent
from ..model.replay import TaskState, replay
from .arguments import aware, positive
from .tasks import event_of, events_of
from .transactions import Transactions

LEEWAY = timedelta(minutes=2)
"""An event is numbered a little after its time is taken, and later numbers may bear earlier times: by less than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TailCursor:
    """The position of a reader in the event log. Store `str(cursor)`; `TailCursor.parse()` reads it.

    Without arguments it is the position before the first event. A cursor is valid in its own database only, and not in one that
    was restored from a dump: sequence numbers and transaction ids differ there.
    """

    sequence_num: int = 0
    """Sequence number of the last event that was returned."""
    settled: int = 0
    """Sequence number up to which no transaction is open: a number missing below it will never appear."""
    mark_xact: int = 0
    """Transaction id: when all smaller ones have ended, `mark_sequence` is settled too. 0: no mark is needed."""
    mark_sequence: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a stored cursor. Raises InvalidArgument for any text that is not the `str()` of one."""
        numbers = str(text).split(".")
        if len(numbers) != 4 or not all(number.isascii() and number.isdecimal() for number in numbers):
            raise InvalidArgument(f"{text!r} is no position in the log; store str(cursor), and pass that unchanged")
        sequence_num, settled, mark_xact, mark_sequence = map(int, numbers)
        return cls(sequence_num=sequence_num, settled=settled, mark_xact=mark_xact, mark_sequence=mark_sequence)

    def __str__(self) -> str:
        return f"{self.sequence_num}.{self.settled}.{self.mark_xact}.{self.mark_sequence}"


class EventLog:
    """The events of all tasks, in their order."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def tail(self, cursor: TailCursor | None = None, *, limit: int = 1000) -> tuple[list[ExecutionEvent], TailCursor]:
        """Return up to `limit` committed events behind the cursor (None: from the first one kept), and where to go on from.

        Every event once, those of one task in their order, and none passed over, however late its transaction commits. An
        event may be held back while an older one is still open; an empty list says that nothing more is to be had now. Store
        the new cursor in the transaction in which you use the events, and each is used exactly once. There is no `using`
        for the reading itself: only a transaction that has just begun and wrote nothing can see what is settled.

        Events that retention deletes before they are read are missed. Should the server itself crash, it may take back the
        last half second of claims (no other event), although they were read, and give out their numbers again.
        Raises InvalidArgument for a limit below 1.
        """
        positive(limit)
        if not isinstance(cursor, TailCursor | None):
            raise InvalidArgument(
                f"tail() takes a TailCursor, not {type(cursor).__name__}; read a stored one with TailCursor.parse()"
            )
        start = cursor or TailCursor()

        def work(target: Target) -> tuple[list[ExecutionEvent], TailCursor]:
            # In this order: what is settled by then is seen by the second statement.
            marked = _marked(start, target.run(statements.head)[0])
            rows = target.run(statements.following, {"after": start.sequence_num, "limit": limit})
            complete, reached = _complete(marked, rows, limit)
            return [event_of(row) for row in complete], replace(marked, sequence_num=reached)

        return self._store.run(work, begin=Begin.READ)

    def tail_from_now(self) -> TailCursor:
        """Return a cursor behind the last event committed.

        Of a transaction that is open at this moment, the events it has written already may fall on either side.
        """

        def work(target: Target) -> TailCursor:
            head = target.run(statements.head)[0]["head"]
            return TailCursor(sequence_num=head, settled=head)

        return self._store.run(work, begin=Begin.READ)

    def tail_since(self, when: datetime) -> TailCursor:
        """Return a cursor before the first event of this moment (aware), or a little earlier: the numbers of events follow their
        times but for two minutes. So look at `created_at` of what `tail` returns first. It takes thirty look-ups of a row.
        """
        aware(when, "when")
        try:
            early = when - LEEWAY
        except OverflowError:
            return TailCursor()
        rows = self._store.read(statements.first_of_window, search_from=early)
        before = rows[0]["first"] - 1 if rows else 0
        return TailCursor(sequence_num=before, settled=before)

    def tail_last(self, count: int) -> TailCursor:
        """Return a cursor before the newest events, at most so many; 0: behind the newest, as `tail_from_now` does."""
        end = self.tail_from_now()
        if count == 0:
            return end
        before = max(0, end.sequence_num - positive(count, "count"))
        return TailCursor(sequence_num=before, settled=before)

    def state_at(self, task_id: UUID, when: datetime, *, using: object = None) -> TaskState | None:
        """The task as it was at `when` (aware), what happened at that very moment included; None: it was not there yet.

        Told by its events, which are kept as long as the task is. Raises TaskNotFound.
        """
        aware(when, "when")
        events = takewhile(lambda event: event.created_at <= when, events_of(self._store, task_id, using))
        so_far = [event for event in events if isinstance(event.event_type, EventType)]
        return replay(so_far) if so_far else None


def _marked(cursor: TailCursor, seen: Row) -> TailCursor:
    """The cursor, its mark passed where that is so, and a new one made where there is none. See `statements/event_log.py`."""
    head, oldest_open, next_transaction = seen["head"], seen["oldest_open"], seen["next_transaction"]
    if oldest_open >= next_transaction:  # nobody writes: a new mark would have passed already
        return replace(cursor, settled=max(cursor.settled, head), mark_xact=0, mark_sequence=0)
    if cursor.mark_xact and oldest_open < cursor.mark_xact:
        return cursor
    return replace(
        cursor, settled=max(cursor.settled, cursor.mark_sequence), mark_xact=next_transaction, mark_sequence=head
    )


def _complete(cursor: TailCursor, rows: Sequence[Row], limit: int) -> tuple[list[Row], int]:
    """The rows before which none can be missing, and the number up to which the log is read then."""
    complete: list[Row] = []
    reached = cursor.sequence_num
    for row in rows:
        number = row["sequence_num"]
        if number > cursor.settled and number != max(reached, cursor.settled) + 1:
            break
        complete.append(row)
        reached = number
    return complete, reached if len(complete) == limit else max(reached, cursor.settled)
