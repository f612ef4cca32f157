"""Claim tasks: first tasks without a key, and then tasks with a key and tasks in limited queues, which take turns."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache, partial
from typing import Any
from uuid import UUID

from ...database import table_locks
from ...database.dialects import Begin, Row
from ...database.grammar import Builder
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import Claim, duration
from ..arguments import identifier, positive, queue_names
from ..failure_log import say
from ..transactions import Transactions
from . import claim_sql, due, limits_sql, partition_keys
from .broken_entries import Search, cancel_expired, perhaps_the_row, set_aside, started, usable
from .ends import A_MOMENT
from .floors import Floors, Turns
from .heads import MOST, Heads, Pair
from .limits import Bucket, KeyLimitClaims, limits_from
from .partition_keys import KeyTurns

log = logging.getLogger("outboxq.store")

Part = Callable[[Target, int], tuple[list[Row], bool]]
"""A function that claims up to the given number of tasks of one kind. It returns these tasks, and whether there may be
tasks of another kind.
"""
_OTHERS, _OF_MANY = 16, 3
"""Number of queues with keys or limits that a claim reads at once. A claim reads all such queues if there are at most
`_OTHERS` of them, so that the queues share the claims evenly. Otherwise, it first reads `_OF_MANY` queues, or one for
each task that it may claim, whichever is more. The queues take turns in order of name.
"""
_BRIEF = 60.0
"""The period, in seconds, during which claims wait only briefly for a lock after expired tasks of a locked batch have
blocked a claim. Such tasks are likely to block the same claimer again soon.
"""
_CURSORS = 64
"""Maximum number of cursors that a store keeps, one for each set of queues and topics."""


class ClaimCursor:
    """Hints for the next claim of one claimer: where the claim begins, and what it can skip.

    A claim without hints finds the same tasks, but later or in another order. All claims with one cursor must be from
    the same queues and topics. A worker's claim loop has its own cursor. Other claims use the store's cursor.
    """

    def __init__(self, likely: Iterable[Pair] = ()) -> None:
        """`likely` contains the (queue, priority) pairs of the tasks that the claimer knows."""
        self.others_first = False
        """True if tasks without a key filled the last claim, and other tasks may be due."""
        self.others_are_many = False
        """True if the last claim from queues with keys or limits did not read all of them."""
        self.plain_turns = Turns()
        """The turns in which tasks without a key come first. Until the next turn, tasks without a key come last if
        there are many other queues, because a claim from many queues takes a long time to find out that there are none.
        """
        self.others_after = ""
        """The queue with keys or limits after which the next claim begins; "" if the last claim read all of them."""
        self.may_be_more = False
        """True if the last claim was full. The next claim then writes without first checking for due tasks."""
        self.turn = 0
        """Number of claims of tasks with keys or limits so far. This number determines which group of queues comes
        first.
        """
        self.brief_until = -math.inf
        """The time (`time.monotonic()`) until which a claim waits only briefly for a lock, because expired tasks of a
        batch blocked an earlier claim.
        """
        self.search = Search()
        self.floors = Floors(likely)
        self.heads = Heads()
        self.keys = KeyTurns()
        self.limited_keys = KeyLimitClaims()


class Claiming(Transactions):
    """The transactions of a store, and its cursors for claims that do not pass a cursor."""

    @cached_property
    def _cursor_for(self) -> Callable[[frozenset[str] | None, frozenset[str] | None], ClaimCursor]:
        """Return the store's cursor for claims from these queues and topics. Other queues and topics have other
        cursors, because a claim shows only which tasks are left in its own queues.
        """
        return lru_cache(maxsize=_CURSORS)(lambda queues, topics: ClaimCursor())  # noqa: ARG005

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
        """Claim up to `limit` due tasks, in order of priority, then due time, then entry id.

        At most one task with each partition key runs at a time. Keys take turns, and tasks with a key take turns with
        tasks without one. A paused queue is skipped, and claims from a limited queue stay within its limits. An expired
        task is Cancelled instead of being claimed. The call never waits for another worker's claim. Raises
        InvalidArgument.

        If a long transaction keeps many dead rows from being vacuumed, a claim may skip a task that becomes claimable
        more than a second after its due time, such as one that is committed late. The task is skipped for a second, or
        for up to ten seconds if the dead rows take a long time to read. On PostgreSQL, if more than 64 queues have
        tasks without a key, a new task may also be skipped for up to ten seconds while claims are full. If a claim
        finds no task without a key, and more than 16 queues have keys or limits, tasks without a key may come last for
        up to ten seconds.

        `queues=None` means all queues. `topics` restricts the claim to tasks with these topics, which may be exact or
        patterns (``order.*``); None means all tasks. `lease` overrides the lease length that each task sets. `cursor`
        contains the hints from the claimer's last claims from the same queues and topics; None means the store's own
        cursor for these queues and topics.

        With `says_begin`, the claimer calls `begin` before it runs the handler of a suspect task, which is a task that was
        recovered twice in a row. If the task's worker dies before it has called `begin`, the recovery is not counted.
        """
        positive(limit)
        worker_id = identifier(worker_id)
        seconds = None if lease is None else duration(lease, "lease").total_seconds()
        if seconds is not None and seconds <= 0:
            raise InvalidArgument("the lease must be positive")
        queues, topics = queue_names(queues), queue_names(topics, "topics")
        if cursor is None:
            cursor = self._cursor_for(*(None if names is None else frozenset(names) for names in (queues, topics)))
        options = {"worker_id": worker_id, "lease_seconds": seconds, "says_begin": says_begin}
        call = _Call(self, cursor, limit, queues, topics, options)
        while True:
            try:
                rows = call.claim(using)
                break
            except Exception as error:
                # A single row may fail the whole claim. Without that row, the other tasks can be claimed.
                may_help = using is None and perhaps_the_row(self, error)
                if not may_help or not set_aside(self, cursor.search, worker_id):
                    raise
        cursor.may_be_more = 1 < len(rows) == limit  # a full claim of a single task is not a sign of more work
        # If a priority is not a number, the tasks cannot be sorted. They run anyway, because the claim is committed.
        with suppress(TypeError):
            rows.sort(key=_order)
        return usable(self, [_claim_of(row, worker_id) for row in rows], using)


@dataclass(eq=False, repr=False)
class _Call:
    """One call to `claim_ready_task`. Its first part claims tasks without a key, and its second part claims tasks with a key and
    tasks from limited queues.
    """

    store: Transactions
    cursor: ClaimCursor
    limit: int
    queues: Sequence[str] | None
    topics: Sequence[str] | None
    options: dict[str, Any]
    scope: dict[str, Any] | None = None
    """The parameters that name the queues and the topics, which are packed when they are first used."""

    def claim(self, using: object) -> list[Row]:
        """Claim in the caller's transaction, in a separate one or, on PostgreSQL, in a separate one for each part.

        With a transaction for each part, most claims are a single statement. (If it finds nothing after the floors, a
        second statement may follow.) The commit is not flushed to disk, because a task must not wait for the flush. A
        server crash may undo the claim; the task is then claimed again. The next holder of the same token has a
        different worker id, so this worker is fenced. If a later commit that is flushed, such as that of the task's
        completion, survives a crash, the claim survives too.
        """
        if using is None:
            dialect = self.store.dialect
            if dialect.reads_before_writing and not self.cursor.may_be_more and not self._any_due():
                return []
            if dialect.one_statement:
                return self._parts(None)
        return self.store.run(self._parts, using=using, begin=Begin.ASYNCHRONOUS)

    def _parts(self, target: Target | None) -> list[Row]:
        """Run the parts in this transaction or, if `target` is None, each part in its own. The part that had to wait
        last time runs first.
        """
        cursor = self.cursor
        found: list[Row] = []
        others_first = cursor.others_first or not cursor.plain_turns.is_due
        cursor.others_first = False
        if others_first:
            self._part(self._others, target, found, Begin.ASYNCHRONOUS)
            if len(found) == self.limit:
                return found
        plain, begin = partial(self._plain, self._every_queue), Begin.SINGLE_ASYNCHRONOUS
        if cursor.heads.are_used:
            # These may be several statements. If one fails, the tasks of the earlier ones must not stay claimed.
            plain, begin = partial(self._plain, self._best_queues), Begin.ASYNCHRONOUS
        besides = self._part(plain, target, found, begin)
        if besides and not others_first:
            if len(found) == self.limit:
                cursor.others_first = True
            else:
                self._part(self._others, target, found, Begin.ASYNCHRONOUS)
        return found

    def _part(self, part: Part, target: Target | None, found: list[Row], begin: Begin) -> bool:
        """Add to `found` the tasks that this part claims, and return whether tasks of another kind may be due."""
        free = self.limit - len(found)
        if target is not None:
            rows, others = part(target, free)
        else:
            try:
                rows, others = self._run(part, free, begin)
            except Exception as error:
                if not found:
                    raise
                what = "the second part of a claim failed; the tasks from the first part run anyway"
                say(log, logging.WARNING, what, error)
                return False
        found += rows
        return others

    def _run(self, part: Part, free: int, begin: Begin) -> tuple[list[Row], bool]:
        """Run a part in its own transaction.

        A claim cancels expired tasks, and its COMMIT then waits for the rows of their batches. If another session keeps such a
        row locked, these tasks are postponed, and the part runs again.
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

    def _plain(self, part: Part, target: Target, limit: int) -> tuple[list[Row], bool]:
        """Claim tasks without a key from queues without limits, and return whether tasks of another kind may be due."""
        cursor, began = self.cursor, time.monotonic()
        found, besides = part(target, limit)
        cursor.plain_turns = Turns()
        if cursor.others_are_many and not found:
            cursor.plain_turns.took(time.monotonic() - began, least=0.0)
        return found, besides

    def _every_queue(self, target: Target, limit: int) -> tuple[list[Row], bool]:
        """Claim the best tasks from all queues."""
        take = claim_sql.from_all
        if self.queues is not None:
            take = claim_sql.from_one if len(self.queues) == 1 else claim_sql.from_given
        found, taken = self._beyond_floors(target, take, self._values(target), limit)
        if taken and taken[0]["many"]:
            self.cursor.heads.use()
        return found, not taken or bool(taken[0]["besides"])

    def _beyond_floors(
        self, target: Target, take: Builder, values: dict[str, Any], limit: int, *, limited: str | None = None
    ) -> tuple[list[Row], list[Row]]:
        """Claim from the queue `limited`, or from all queues of this call if `limited` is None. Reads the entries
        before the floors only if a claim from the front is due.

        Returns the tasks that were started, and the entries that the last statement took.
        """
        floors, queues = self.cursor.floors, self.queues if limited is None else [limited]
        found: list[Row] = []
        at_front = floors.begins_at_front(limited)
        while True:
            asked = limit - len(found)
            given = values | floors.parameters(target, queues, at_front=at_front) | {"limit": asked}
            began = time.monotonic()
            with target.atomic():
                taken = target.run(take, given)
            found += started(taken)
            seconds = time.monotonic() - began
            floors.claimed(taken, limited, at_front=at_front, is_full=len(taken) == asked, seconds=seconds)
            if not taken and not at_front and floors.begins_at_front(limited, again=True):
                at_front = True
            elif found or not taken:
                return found, taken

    def _best_queues(self, target: Target, limit: int) -> tuple[list[Row], bool]:
        """Claim from the queues with the best heads, and then from further queues until enough tasks are found.

        When no head is left, the heads are read again. So a claim returns fewer than `limit` tasks only if it has taken
        all due tasks, or has found expired ones.
        """
        heads = self.cursor.heads
        found: list[Row] = []
        number, besides, are_new = 1 + limit, True, False
        while len(found) < limit:
            asked = {} if heads.are_old and not are_new else heads.best(number)
            if asked:
                taken, rows = self._take(target, asked, limit - len(found))
                found += rows
                besides = bool(taken[0]["besides"]) if taken else besides
                number *= 2
                if found and len(rows) < len(taken):
                    break  # the leases are running, and any number of tasks may have expired
            elif not are_new:
                self._read_heads(target)
                number, are_new = 1 + limit, True
            elif found or heads.are_all:
                break
            else:
                return self._every_queue(target, limit)
        return found, besides

    def _take(self, target: Target, asked: dict[Pair, datetime], limit: int) -> tuple[list[Row], list[Row]]:
        """Claim from the queues with these heads. Returns the entries, and the tasks that were started."""
        heads, floors = self.cursor.heads, self.cursor.floors
        queues = list(dict.fromkeys(queue for queue, _ in asked))
        given = floors.parameters(target, queues, at_front=False, least=heads.least)
        given |= self.store.queue_values(target, queues) | {"limit": limit}
        began = time.monotonic()
        with target.atomic():
            taken = target.run(claim_sql.from_given, {**self._values(target), **given})
        # The claim counts as full: there are other queues, so their floors must stay.
        floors.claimed(taken, at_front=False, is_full=True, seconds=time.monotonic() - began)
        rows = started(taken)
        if len(taken) == limit:
            with suppress(TypeError):  # a priority may be unreadable
                heads.claimed(asked, rows)
        return taken, rows

    def _read_heads(self, target: Target) -> None:
        began = time.monotonic()
        rows = target.run(claim_sql.HEADS[self.queues is not None], {**self._values(target), "most": MOST})
        seconds = time.monotonic() - began
        self.cursor.heads.read(rows, seconds)
        self.cursor.floors.read(rows, seconds)

    def _others(self, target: Target, limit: int) -> tuple[list[Row], bool]:
        """Claim tasks with a key and tasks from limited queues. Reads a few queues at a time, and more queues only
        if those have too few tasks.
        """
        cursor = self.cursor
        values = self._values(target) | cursor.floors.parameters(target, self.queues, at_front=None)
        if self.queues is not None:
            return self._serve(target, target.run(partition_keys.other_queues_given, values), limit), False
        found: list[Row] = []
        began, rounds = cursor.others_after, 0
        most = max(_OF_MANY if cursor.others_are_many else _OTHERS + 1, limit)
        while True:
            given = {"after": cursor.others_after, "most": most}
            rows = target.run(partition_keys.other_queues, values | given)
            is_end = len(rows) < most
            cursor.others_are_many = not is_end
            if is_end and not cursor.others_after:
                cursor.others_are_many = len(rows) > _OTHERS
                return found + self._serve(target, rows, limit - len(found)), False  # these are all the queues
            for group in _runs(rows):
                found += self._serve(target, group, limit - len(found))
                if len(found) == limit:
                    served = {row["queue"] for row in found}
                    cursor.others_after = [row["queue"] for row in group if row["queue"] in served][-1]
                    return found, False
            cursor.others_after = "" if is_end else rows[-1]["queue"]
            rounds += is_end
            if rounds == 2 or (is_end and not began):
                return found, False
            most *= 4

    def _serve(self, target: Target, rows: Sequence[Row], limit: int) -> list[Row]:
        """Claim from these queues in groups, which take turns at coming first."""
        values, keys, cursor = self._values(target), self.cursor.keys, self.cursor
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
        return found

    def _limited(self, target: Target, values: dict[str, Any], queue: str, limit: int, *, fair: bool) -> list[Row]:
        """Claim tasks from one queue within its limits. Locks the queue's settings before it counts how much of
        the limits is used.
        """
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
        # Half of the tasks have a key, if there are enough; tasks without a key fill the rest.
        found = with_keys((free + self.cursor.turn % 2) // 2)
        if len(found) < free:
            given = values | self.store.queue_values(target, [queue])
            found += self._beyond_floors(target, claim_sql.from_limited, given, free - len(found), limited=queue)[0]
        found += with_keys(free - len(found))
        if rate is not None and found:
            target.run(limits_sql.spend, {"queue": queue, "full_at": rate.spent(full_at, now, len(found))})
        for row in found:
            row["limited"] = True
        return found

    def _any_due(self) -> bool:
        def work(target: Target) -> bool:
            return bool(due.answer(target, due.ANY_DUE[self.queues is not None], self._values(target))["due"])

        return self.store.run(work, begin=Begin.READ)

    def _values(self, target: Target) -> dict[str, Any]:
        """Return the parameters that every statement in this call uses, with the current time."""
        if self.scope is None:
            self.scope = self.store.scope(target, self.queues, self.topics)
        return self.store.values(target, **self.options) | self.scope


def _runs(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield groups of queues to claim from together: each limited queue alone, and adjacent queues without limits if all of them,
    or none, are fair.
    """
    for (limited, _), run in itertools.groupby(rows, key=lambda row: (row["limited"], row["limited"] or row["fair"])):
        if limited:
            yield from ([row] for row in run)
        else:
            yield list(run)


def _order(row: Row) -> tuple[int, datetime, int]:
    return -row["priority"], row["available_at"], row["entry_id"]


def _claim_of(row: Row, worker_id: UUID) -> Claim:
    """Return the claim with the row's values. The constructor would set each frozen field separately, which would take
    as long as reading the row.
    """
    del row["entry_id"], row["expires_at"], row["besides"], row["crowded"], row["many"]
    row["worker_id"] = worker_id
    row["waits_since"] = max(row.pop("available_at"), row["created_at"])
    row["makes_way"] = row.pop("limited", False) or row["partition_key"] is not None
    claim = Claim.__new__(Claim)
    vars(claim).update(row)
    return claim
