"""Claiming: tasks without a key first, or those with one and those of limited queues, by turns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.statements import claim, limits, partition_keys, waiting
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import Claim, duration
from .arguments import identifier, positive, queue_names
from .aside import perhaps_the_row, set_aside, started, usable
from .claim_cursor import ClaimCursor
from .failure_log import say
from .transactions import Transactions

log = logging.getLogger("outboxq.store")

Part = Callable[[Target, int], tuple[list[Row], bool]]
"""Claims up to so many tasks of one kind; returns them, and whether there may be others that it does not claim."""


class Claiming(Transactions):
    """A store's transactions, and the cursor of those who claim by hand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cursor = ClaimCursor()

    def claim_ready_task(
        self,
        limit: int,
        *,
        worker_id: UUID,
        queues: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        lease: timedelta | float | None = None,
        says_begin: bool = False,
        cursor: ClaimCursor | None = None,
        using: object = None,
    ) -> list[Claim]:
        """Claim up to `limit` due tasks: by priority, then oldest due time, then age of the entry; in that order.

        Of each partition key at most one, and none while one of its tasks runs; keys take turns, and so do tasks with a key
        and tasks without where there are both. Nothing of a paused queue, and of a limited one no more than its limits allow.
        What has expired is Cancelled instead. `queues` None: all. `topics`: only tasks of these topics, exact
        or as patterns (``order.*``); None: all tasks. `lease` replaces the tasks' own. What was enqueued early and committed
        late may be passed over for a second, where somebody's long transaction keeps many dead rows before a single queue.

        `says_begin`: whoever claims calls `begin` before the handler of a suspect, a task that was recovered twice in a row; one
        that had not begun when its worker died is not counted as recovered.

        `cursor` has the hints of the claimer's last claims; None: the store's own, for who claims by hand.

        An empty list means that nothing was to be had. Never waits for another worker's claim. Raises InvalidArgument.
        """
        positive(limit)
        identifier(worker_id)
        seconds = None if lease is None else duration(lease, "lease").total_seconds()
        if seconds is not None and seconds <= 0:
            raise InvalidArgument("the lease must be longer than nothing")
        cursor = self._cursor if cursor is None else cursor
        options = {"worker_id": worker_id, "lease_seconds": seconds, "says_begin": says_begin}
        call = _Call(self, cursor, limit, queues=queues, topics=topics, options=options)
        while True:
            try:
                rows = call.claim(using)
                break
            except Exception as error:
                # One row may be what fails all; without it there are the others to be had.
                if (
                    using is not None
                    or not perhaps_the_row(self, error)
                    or not set_aside(self, cursor.search, worker_id)
                ):
                    raise
        cursor.may_be_more = 1 < len(rows) == limit  # of one, it says little
        # A priority that is no number cannot be compared. The claim has been committed, so its tasks are run all the same.
        with suppress(TypeError):
            rows.sort(key=_order)
        return usable(self, [_claim_of(row, worker_id) for row in rows], using)


class _Call:
    """One call of `claim_ready_task`: tasks without a key are one part of it, those with one or of limited queues the other."""

    def __init__(
        self,
        store: Transactions,
        cursor: ClaimCursor,
        limit: int,
        *,
        queues: Sequence[str] | None,
        topics: Sequence[str] | None,
        options: dict[str, Any],
    ) -> None:
        self._store, self._cursor, self._limit = store, cursor, limit
        self._queues, self._topics, self._options = queues, topics, options
        names = queue_names(queues) or []
        self._queue = names[0] if len(names) == 1 else None
        self._start = cursor.passed.start(self._queue)

    def claim(self, using: object) -> list[Row]:
        """Claim in the caller's transaction; else in one of our own, or on PostgreSQL in one for each part.

        Most claims are one statement then. (One by a hint may need a second.) Not flushed, for a task must not wait for that: a
        server that crashes may take the claim back, which fences its worker (the next holder of the same token is another
        one), and the task is claimed again. What is flushed later, such as its completion, is never kept without it.
        """
        dialect = None if using is not None else self._store.dialect
        if (
            dialect is not None
            and dialect.reads_before_writing
            and not self._cursor.may_be_more
            and not self._any_due()
        ):
            return []
        if dialect is not None and dialect.one_statement:
            return self._parts(None)
        return self._store.run(self._parts, using=using, begin=Begin.ASYNCHRONOUS)

    def _parts(self, target: Target | None) -> list[Row]:
        """Run the parts in this transaction; None: each in one of its own. Who had to stand back last time goes first."""
        cursor, found = self._cursor, list[Row]()
        others_first, cursor.others_first = cursor.others_first, False
        if others_first:
            self._part(self._others, target, found, Begin.ASYNCHRONOUS)
            if len(found) == self._limit:
                return found
        begin = Begin.ASYNCHRONOUS if self._start else Begin.SINGLE_ASYNCHRONOUS
        besides = self._part(self._plain, target, found, begin)
        if besides and not others_first:
            if len(found) == self._limit:
                cursor.others_first = True
            else:
                self._part(self._others, target, found, Begin.ASYNCHRONOUS)
        return found

    def _part(self, part: Part, target: Target | None, found: list[Row], begin: Begin) -> bool:
        """Add to `found` what this part claims; returns whether there may be others."""
        room = self._limit - len(found)
        if target is not None:
            rows, others = part(target, room)
        else:
            try:
                rows, others = self._store.run(lambda own: part(own, room), begin=begin)
            except Exception as error:
                if not found:
                    raise
                what = "the second part of a claim failed; what the first part claimed is run"
                say(log, logging.WARNING, what, error)
                return False
        found += rows
        return others

    def _plain(self, target: Target, limit: int) -> tuple[list[Row], bool]:
        """Tasks without a key, of queues without limits; and whether there may be others."""
        values, start, found = self._values(target), self._start, list[Row]()
        take = claim.from_all
        if self._queues is not None:
            take = claim.from_given if self._queue is None else claim.from_one
        while True:
            with target.atomic():
                taken = target.run(take, {**values, **start, "limit": limit - len(found)})
            found += started(taken)
            self._cursor.passed.note(self._queue, taken, enough=len(found) == limit)
            if start and len(found) < limit:
                start = {}  # there may be some before it
            elif found or not taken:
                return found, not taken or bool(taken[0]["besides"])

    def _others(self, target: Target, limit: int) -> tuple[list[Row], bool]:
        """Tasks with a key, and those of limited queues: kind by kind, each beginning when it was last the other's turn."""
        values, keys, cursor = self._values(target), self._cursor.keys, self._cursor
        rows = target.run(
            partition_keys.other_queues if self._queues is None else partition_keys.other_queues_given, values
        )
        kinds: list[Callable[[int], list[Row]]] = [
            partial(self._limited, target, values, row["queue"], fair=row["fair"]) for row in rows if row["limited"]
        ]
        for fair, claim_keys in ((True, keys.claim_in_turns), (False, keys.claim_oldest)):
            if queues := [row["queue"] for row in rows if not row["limited"] and row["fair"] is fair]:
                kinds.append(partial(claim_keys, target, values, queues))
        cursor.turn += 1
        found: list[Row] = []
        for position in range(len(kinds)):
            if len(found) < limit:
                found += kinds[(cursor.turn + position) % len(kinds)](limit - len(found))
        return found, False

    def _limited(self, target: Target, values: dict[str, Any], queue: str, limit: int, *, fair: bool) -> list[Row]:
        """What one queue's limits allow, counted under the lock of its settings."""
        keys = self._cursor.keys
        with_keys = partial(keys.claim_in_turns if fair else keys.claim_oldest, target, values, [queue])
        locked = target.run(limits.lock, values | {"queue": queue})
        if not locked or locked[0]["paused_at"] is not None:
            return []
        settings = locked[0]
        running = target.run(limits.running, {"queue": queue})[0]["tasks"]
        bucket = Bucket(settings)
        room = min(limit, bucket.room)
        if settings["concurrency_limit"] is not None:
            room = min(room, settings["concurrency_limit"] - running)
        if room < 1:
            return []
        # Half of them with a key, if there are so many, and whatever that leaves.
        found = with_keys((room + self._cursor.turn % 2) // 2)
        found += self._of_limited_queue(target, values, queue, room - len(found))
        found += with_keys(room - len(found))
        if bucket.is_limited and found:
            target.run(limits.spend, {"queue": queue, "full_at": bucket.after(len(found))})
        for row in found:
            row["limited"] = True
        return found

    def _of_limited_queue(self, target: Target, values: dict[str, Any], queue: str, limit: int) -> list[Row]:
        if limit < 1:
            return []
        with target.atomic():
            given = values | {"limit": limit} | self._store.queue_values(target, [queue])
            return started(target.run(claim.from_limited, given))

    def _any_due(self) -> bool:
        any_due = waiting.any_due if self._queues is None else waiting.any_due_given
        return self._store.run(lambda target: bool(target.run(any_due, self._values(target))), begin=Begin.READ)

    def _values(self, target: Target) -> dict[str, Any]:
        """The parameters of every statement of this call, by the clock of now."""
        scope = self._store.scope(target, self._queues, self._topics)
        return self._store.values(target, **self._options) | scope


class Bucket:
    """A queue's rate limit: a bucket of `rate_limit` starts, filled again in `rate_seconds`."""

    def __init__(self, settings: Row) -> None:
        self.is_limited = settings["rate_limit"] is not None
        self._now: datetime = settings["now"]
        if self.is_limited:
            self._period = timedelta(seconds=settings["rate_seconds"])
            self._interval = (
                settings["rate_seconds"] / settings["rate_limit"]
            )  # in floats: it may be below a microsecond
            self._full_at = max(settings["rate_full_at"] or self._now, self._now)

    @property
    def room(self) -> int:
        """How many starts it allows now."""
        if not self.is_limited:
            return 2**31
        return int((self._period - (self._full_at - self._now)).total_seconds() / self._interval + 1e-6)

    def after(self, starts: int) -> datetime:
        """When it is full again after so many more."""
        full_at: datetime = self._full_at + timedelta(seconds=starts * self._interval)
        return full_at


def _order(row: Row) -> tuple[int, datetime, int]:
    return -row["priority"], row["available_at"], row["entry_id"]


def _claim_of(row: Row, worker_id: UUID) -> Claim:
    """`Claim(worker_id=worker_id, **row)`; that sets a frozen field at a time, which takes as long as reading them did."""
    del row["available_at"], row["entry_id"], row["expires_at"], row["besides"], row["crowded"]
    row["worker_id"] = worker_id
    claim = Claim.__new__(Claim)
    vars(claim).update(row)
    return claim
