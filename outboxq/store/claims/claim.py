"""Claiming: tasks without a key first, or those with one and those of limited queues, by turns."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any
from uuid import UUID

from ...database import table_locks
from ...database.dialects import Begin, Row
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import Claim, duration
from ..arguments import identifier, positive, queue_names
from ..failure_log import say
from ..transactions import Transactions
from . import claim_sql, due, limits_sql, partition_keys
from .broken_entries import Search, cancel_expired, perhaps_the_row, set_aside, started, usable
from .ends import A_MOMENT
from .limits import Bucket, KeyLimitClaims, limits_from
from .partition_keys import KeyTurns

log = logging.getLogger("outboxq.store")

Part = Callable[[Target, int], tuple[list[Row], bool]]
"""Claims up to so many tasks of one kind; returns them, and whether there may be others that it does not claim."""
_BRIEF = 60.0
"""Seconds. Expired tasks of a locked batch are in the way again sooner, and then cost the same claimer no full wait."""


class ClaimStarts:
    """The due time up to which a queue was claimed, where so many dead rows lie before it that a claim of one takes ten times as long.

    That happens while a long transaction elsewhere keeps them from being cleaned up. A claim that begins behind them passes over a
    task that was enqueued early and committed late; so every claim that found too little, and one in every second, begins at
    the front.
    """

    _PATIENCE = 1.0

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, datetime]] = {}
        self._looked_at: dict[str, float] = {}
        """When a claim of each queue last began at the front; one queue's look is not another's."""

    def start(self, queue: str | None) -> dict[str, Any]:
        """Return the parameters with which a claim of this queue begins behind the dead rows; none: it begins at the front."""
        if queue is None:
            return {}
        now = time.monotonic()
        late = now - self._looked_at.get(queue, -math.inf) >= self._PATIENCE
        if late or (passed := self._found.get(queue)) is None:
            self._looked_at[queue] = now
            return {}
        return {"passed_priority": passed[0], "passed_until": passed[1]}

    def note(self, queue: str | None, taken: Sequence[Row], *, enough: bool) -> None:
        if queue is None:
            return
        last = max((row for row in taken if row["lease_token"] is not None), key=_place, default=None)
        if enough and last is not None and last["crowded"]:
            self._found[queue] = last["priority"], last["available_at"]
        else:
            self._found.pop(queue, None)


def _place(row: Row) -> tuple[int, datetime]:
    return -row["priority"], row["available_at"]


class ClaimCursor:
    """Hints for the next claim of one claimer: what it begins with, and what it need not look at.

    A claim without them finds the same tasks, only later or in another order. A worker's claim loop makes a cursor of its
    own; a store has one for claims that bring none.
    """

    def __init__(self) -> None:
        self.others_first = False
        """Tasks without a key took all of the last claim, and there may be others."""
        self.may_be_more = False
        """The last claim took all that it asked for: where a claim looks before it writes, this look is spared."""
        self.turn = 0
        """Counts the claims of others, so that each kind is the first by turns."""
        self.brief_until = -math.inf
        """The time (`time.monotonic()`) until which a claim waits only briefly for a lock: expired tasks of a batch were in its way."""
        self.search = Search()
        self.starts = ClaimStarts()
        self.keys = KeyTurns()
        self.limited_keys = KeyLimitClaims()


class Claiming(Transactions):
    """A store's transactions, and its cursor for claims that bring none."""

    @cached_property
    def _cursor(self) -> ClaimCursor:
        return ClaimCursor()

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
        and tasks without. Nothing of a paused queue, and of a limited one no more than its limits allow. What has expired is
        Cancelled instead. What was enqueued early and committed late may be passed over for a second, where a long transaction
        keeps many dead rows before a single queue. Never waits for another worker's claim. Raises InvalidArgument.

        `queues` None: all. `topics`: only tasks of these topics, exact or as patterns (``order.*``); None: all tasks. `lease`
        replaces the tasks' own. `cursor` has the hints of the claimer's last claims; None: the store's own.

        `says_begin`: the claimer calls `begin` before the handler of a suspect, a task that was recovered twice in a row. A
        suspect that had not begun when its worker died is not counted as recovered.
        """
        positive(limit)
        identifier(worker_id)
        seconds = None if lease is None else duration(lease, "lease").total_seconds()
        if seconds is not None and seconds <= 0:
            raise InvalidArgument("the lease must be longer than nothing")
        cursor = self._cursor if cursor is None else cursor
        options = {"worker_id": worker_id, "lease_seconds": seconds, "says_begin": says_begin}
        names = queue_names(queues) or []
        queue = names[0] if len(names) == 1 else None
        call = _Call(self, cursor, limit, queues, topics, options, queue, cursor.starts.start(queue))
        while True:
            try:
                rows = call.claim(using)
                break
            except Exception as error:
                # One row may be what fails all; without it there are the others to be had.
                may_help = using is None and perhaps_the_row(self, error)
                if not may_help or not set_aside(self, cursor.search, worker_id):
                    raise
        cursor.may_be_more = 1 < len(rows) == limit  # of one, it says little
        # A priority that is no number cannot be compared. The claim has been committed, so its tasks are run all the same.
        with suppress(TypeError):
            rows.sort(key=_order)
        return usable(self, [_claim_of(row, worker_id) for row in rows], using)


@dataclass(eq=False, repr=False)
class _Call:
    """One call of `claim_ready_task`: tasks without a key are one part of it, those with one or of limited queues the other."""

    store: Transactions
    cursor: ClaimCursor
    limit: int
    queues: Sequence[str] | None
    topics: Sequence[str] | None
    options: dict[str, Any]
    queue: str | None
    """The one of `queues`, if it is one."""
    start: dict[str, Any]
    scope: dict[str, Any] | None = None
    """The parameters that name the queues and the topics, once they are known."""

    def claim(self, using: object) -> list[Row]:
        """Claim in the caller's transaction; else in one of our own, or on PostgreSQL in one for each part.

        Most claims are one statement then. (One by a hint may need a second.) Not flushed, for a task must not wait for that: a
        server that crashes may take the claim back, which fences its worker (the next holder of the same token is another
        one), and the task is claimed again. What is flushed later, such as its completion, is never kept without it.
        """
        if using is None:
            dialect = self.store.dialect
            if dialect.reads_before_writing and not self.cursor.may_be_more and not self._any_due():
                return []
            if dialect.one_statement:
                return self._parts(None)
        return self.store.run(self._parts, using=using, begin=Begin.ASYNCHRONOUS)

    def _parts(self, target: Target | None) -> list[Row]:
        """Run the parts in this transaction; None: each in one of its own. The part that had to stand back last time goes first."""
        cursor = self.cursor
        found: list[Row] = []
        others_first, cursor.others_first = cursor.others_first, False
        if others_first:
            self._part(self._others, target, found, Begin.ASYNCHRONOUS)
            if len(found) == self.limit:
                return found
        begin = Begin.ASYNCHRONOUS if self.start else Begin.SINGLE_ASYNCHRONOUS
        besides = self._part(self._plain, target, found, begin)
        if besides and not others_first:
            if len(found) == self.limit:
                cursor.others_first = True
            else:
                self._part(self._others, target, found, Begin.ASYNCHRONOUS)
        return found

    def _part(self, part: Part, target: Target | None, found: list[Row], begin: Begin) -> bool:
        """Add to `found` what this part claims; returns whether there may be others."""
        free = self.limit - len(found)
        if target is not None:
            rows, others = part(target, free)
        else:
            try:
                rows, others = self._run(part, free, begin)
            except Exception as error:
                if not found:
                    raise
                what = "the second part of a claim failed; what the first part claimed is run"
                say(log, logging.WARNING, what, error)
                return False
        found += rows
        return others

    def _run(self, part: Part, free: int, begin: Begin) -> tuple[list[Row], bool]:
        """Run a part in a transaction of our own.

        A claim cancels tasks that have expired, and its COMMIT then waits for the rows of their batches. Where another session
        keeps such a row locked, these tasks are moved out of the way, and the part runs again.
        """
        store, cursor = self.store, self.cursor

        def briefly(target: Target) -> tuple[list[Row], bool]:
            target.run(table_locks.limits, A_MOMENT)
            return part(target, free)

        while True:
            try:
                if time.monotonic() < cursor.brief_until:
                    return store.run(briefly, begin=Begin.ASYNCHRONOUS, gives_up=store.is_locked_out)
                return store.run(lambda own: part(own, free), begin=begin, gives_up=store.is_locked_out)
            except Exception as error:
                if not store.is_locked_out(error):
                    raise
                moved = cancel_expired(store, self.options["worker_id"])
                cursor.brief_until = time.monotonic() + _BRIEF if moved else -math.inf
                if not moved:
                    raise

    def _plain(self, target: Target, limit: int) -> tuple[list[Row], bool]:
        """Tasks without a key, of queues without limits; and whether there may be others."""
        values, start, take = self._values(target), self.start, claim_sql.from_all
        found: list[Row] = []
        if self.queues is not None:
            take = claim_sql.from_given if self.queue is None else claim_sql.from_one
        while True:
            with target.atomic():
                taken = target.run(take, {**values, **start, "limit": limit - len(found)})
            found += started(taken)
            self.cursor.starts.note(self.queue, taken, enough=len(found) == limit)
            if start and len(found) < limit:
                start = {}  # there may be some before it
            elif found or not taken:
                return found, not taken or bool(taken[0]["besides"])

    def _others(self, target: Target, limit: int) -> tuple[list[Row], bool]:
        """Tasks with a key, and those of limited queues: kind by kind, each beginning when it was last the other's turn."""
        values, keys, cursor = self._values(target), self.cursor.keys, self.cursor
        other_queues = partition_keys.other_queues if self.queues is None else partition_keys.other_queues_given
        rows = target.run(other_queues, values)
        kinds: list[Callable[[int], list[Row]]] = [
            partial(self._limited, target, values, row["queue"], fair=row["fair"]) for row in rows if row["limited"]
        ]
        for fair in (True, False):
            if queues := [row["queue"] for row in rows if not row["limited"] and row["fair"] is fair]:
                kinds.append(partial(keys.claim, target, values, queues, fair=fair))
        cursor.turn += 1
        found: list[Row] = []
        for position in range(len(kinds)):
            if len(found) < limit:
                found += kinds[(cursor.turn + position) % len(kinds)](limit - len(found))
        return found, False

    def _limited(self, target: Target, values: dict[str, Any], queue: str, limit: int, *, fair: bool) -> list[Row]:
        """Claim from one queue what its limits allow, counted under the lock of its settings."""
        with_keys = partial(self.cursor.keys.claim, target, values, [queue], fair=fair)
        locked = target.run(limits_sql.lock, values | {"queue": queue})
        if not locked or locked[0]["paused_at"] is not None:
            return []
        settings, now, free = locked[0], locked[0]["now"], limit
        most = settings["concurrency_limit"]
        if (key_limits := limits_from(settings)) is not None:
            with_keys = partial(self.cursor.limited_keys.claim, target, values, key_limits, now, fair=fair)
        if most is not None:
            free = min(free, most - target.run(limits_sql.running, {"queue": queue})[0]["tasks"])
        rate, full_at = Bucket.of(settings["rate_limit"], settings["rate_seconds"]), settings["rate_full_at"]
        if rate is not None:
            free = min(free, rate.free(full_at, now))
        if free < 1:
            return []
        # Half of them with a key, if there are so many, and whatever that leaves.
        found = with_keys((free + self.cursor.turn % 2) // 2)
        if len(found) < free:
            with target.atomic():
                given = values | {"limit": free - len(found)} | self.store.queue_values(target, [queue])
                found += started(target.run(claim_sql.from_limited, given))
        found += with_keys(free - len(found))
        if rate is not None and found:
            target.run(limits_sql.spend, {"queue": queue, "full_at": rate.spent(full_at, now, len(found))})
        for row in found:
            row["limited"] = True
        return found

    def _any_due(self) -> bool:
        def work(target: Target) -> bool:
            first, by_key = due.ANY_DUE[self.queues is not None]
            found = target.run(first, self._values(target))[0]
            if not found["due"] and found["by_key"]:
                found = target.run(by_key, self._values(target))[0]
            return bool(found["due"])

        return self.store.run(work, begin=Begin.READ)

    def _values(self, target: Target) -> dict[str, Any]:
        """The parameters of every statement of this call, by the clock of now."""
        if self.scope is None:
            self.scope = self.store.scope(target, self.queues, self.topics)
        return self.store.values(target, **self.options) | self.scope


def _order(row: Row) -> tuple[int, datetime, int]:
    return -row["priority"], row["available_at"], row["entry_id"]


def _claim_of(row: Row, worker_id: UUID) -> Claim:
    """`Claim(worker_id=worker_id, **row)`; that sets a frozen field at a time, which takes as long as reading them did."""
    del row["entry_id"], row["expires_at"], row["besides"], row["crowded"]
    row["worker_id"] = worker_id
    claim = Claim.__new__(Claim)
    vars(claim).update(row)
    return claim
