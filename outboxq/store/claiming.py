"""Claiming: tasks without a key first, or those with one and those of limited queues, by turns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import Claim, duration
from .aside import Aside
from .base import identifier, positive, queue_names
from .failure_log import say
from .keys import Keys, started
from .passed import Passed

log = logging.getLogger("outboxq.store")

Found = tuple[list[Row], bool]
"""What was claimed, and whether there may be others."""


class Part(Protocol):
    def __call__(self, target: Target, limit: int, values: dict[str, Any], *, scoped: bool) -> Found: ...


class Claiming(Aside, Keys):
    _others_first = False
    """Tasks without a key took all of the last claim, and there may be others."""
    _may_be_more = False
    """The last claim took all that it asked for: where a claim looks before it writes, this look is spared."""
    _turn = 0
    """Counts the claims of others, so that each kind is the first by turns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._passed = Passed()

    def claim_ready_task(
        self,
        limit: int,
        *,
        worker_id: UUID,
        queues: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        lease: timedelta | float | None = None,
        says_begin: bool = False,
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

        An empty list means that nothing was to be had. Never waits for another worker's claim. Raises InvalidArgument.
        """
        positive(limit)
        identifier(worker_id)
        seconds = None if lease is None else duration(lease, "lease").total_seconds()
        if seconds is not None and seconds <= 0:
            raise InvalidArgument("the lease must be longer than nothing")
        options = {"worker_id": worker_id, "lease_seconds": seconds, "says_begin": says_begin}
        scoped = queues is not None
        names = queue_names(queues) or []
        queue = names[0] if len(names) == 1 else None
        start = self._passed.start(queue)

        def part(target: Target, claim: Part, room: int) -> Found:
            values = self._values(target, **options) | self._scope(target, queues, topics)
            return claim(target, room, values | {"queue": queue, "start": start}, scoped=scoped)

        while True:
            try:
                rows = self._claimed(limit, part, queues, topics, hinted=bool(start), using=using)
                break
            except Exception as error:
                # One row may be what fails all; without it there are the others to be had.
                if using is not None or not self._perhaps_the_row(error) or not self._set_aside(worker_id):
                    raise
        self._may_be_more = 1 < len(rows) == limit  # of one, it says little
        with suppress(
            TypeError
        ):  # a priority that is no number: the claim has been committed, so its tasks are run all the same
            rows.sort(key=_order)
        claims = [_claim(row, worker_id) for row in rows]
        return self._usable(claims, using)

    def _claimed(
        self,
        limit: int,
        part: Callable[[Target, Part, int], Found],
        queues: Sequence[str] | None,
        topics: Sequence[str] | None,
        *,
        hinted: bool,
        using: object,
    ) -> list[Row]:
        looks = using is None and self.dialect.reads_before_writing and not self._may_be_more
        if looks and not self._any_due(queues, topics):
            return []
        if using is None and self.dialect.one_statement:
            return self._claim_in_parts(limit, part, hinted=hinted)
        return self._run(
            lambda target: self._claim(limit, lambda claim, room, _: part(target, claim, room)),
            using=using,
            begin=Begin.ASYNCHRONOUS,
        )

    def _claim_in_parts(self, limit: int, part: Callable[[Target, Part, int], Found], *, hinted: bool) -> list[Row]:
        """Each in a transaction of its own: most claims are one statement then. (One by a hint may need a second.)

        Not flushed, for a task must not wait for that: a server that crashes may take the claim back, which fences its worker
        (the next holder of the same token is another one), and the task is claimed again. What is flushed later, such as its
        completion, is never kept without it.
        """
        claimed: list[Row] = []

        def run(claim: Part, room: int, begin: Begin) -> Found:
            try:
                begin = Begin.ASYNCHRONOUS if hinted else begin
                rows, more = self._run(lambda target: part(target, claim, room), begin=begin)
            except Exception as error:
                if not claimed:
                    raise
                say(
                    log, logging.WARNING, "the second part of a claim failed; what the first part claimed is run", error
                )
                return [], False
            claimed.extend(rows)
            return rows, more

        return self._claim(limit, run)

    def _claim(self, limit: int, run: Callable[[Part, int, Begin], Found]) -> list[Row]:
        """Who had to stand back for the others last time goes first."""
        others_first, self._others_first = self._others_first, False
        found = list(run(self._others, limit, Begin.ASYNCHRONOUS)[0]) if others_first else []
        if len(found) == limit:
            return found
        plain, besides = run(self._plain, limit - len(found), Begin.SINGLE_ASYNCHRONOUS)
        found += plain
        if not others_first and besides:
            if len(found) == limit:
                self._others_first = True
            else:
                found += run(self._others, limit - len(found), Begin.ASYNCHRONOUS)[0]
        return found

    def _plain(self, target: Target, limit: int, values: dict[str, Any], *, scoped: bool) -> Found:
        """Tasks without a key, of queues without limits; and whether there may be others."""
        statements = target.dialect.statements
        plan = statements.claim_from_all
        if scoped:
            plan = statements.claim_from_one if values["one_queue"] else statements.claim_from_given
        found: list[Row] = []
        queue, start = values["queue"], values["start"]
        while True:
            with target.atomic():
                taken = plan.run(target.execute, {**values, **start, "limit": limit - len(found)})
            found += started(taken)
            self._passed.note(queue, taken, enough=len(found) == limit)
            if start and len(found) < limit:
                start = {}  # there may be some before it
            elif found or not taken:
                return found, not taken or bool(taken[0]["besides"])

    def _others(self, target: Target, limit: int, values: dict[str, Any], *, scoped: bool) -> Found:
        """Tasks with a key, and those of limited queues: kind by kind, each beginning when it was last the other's turn."""
        statements = target.dialect.statements
        rows = (statements.besides_given if scoped else statements.besides).run(target.execute, values)
        limited = [(row["queue"], row["fair"]) for row in rows if row["limited"]]
        keyed = {
            fair: [row["queue"] for row in rows if not row["limited"] and row["fair"] is fair] for fair in (True, False)
        }
        parts: list[tuple[Any, Any]] = [(self._limited, one) for one in limited]
        parts += [(self._keyed_fairly, keyed[True])] if keyed[True] else []
        parts += [(self._keyed_oldest, keyed[False])] if keyed[False] else []
        self._turn += 1
        found: list[Row] = []
        for position in range(len(parts)):
            claim, of = parts[(self._turn + position) % len(parts)]
            if len(found) < limit:
                found += claim(target, limit - len(found), values, of)
        return found, False

    def _limited(self, target: Target, limit: int, values: dict[str, Any], of: tuple[str, bool]) -> list[Row]:
        """What one queue's limits allow, counted under the lock of its settings."""
        statements, (queue, fair) = target.dialect.statements, of
        with_keys = self._keyed_fairly if fair else self._keyed_oldest
        locked = statements.lock_limits.run(target.execute, values | {"queue": queue})
        if not locked or locked[0]["paused_at"] is not None:
            return []
        settings = locked[0]
        running = statements.count_running.run(target.execute, {"queue": queue})[0]["tasks"]
        bucket = Bucket(settings)
        room = min(limit, bucket.room)
        if settings["concurrency_limit"] is not None:
            room = min(room, settings["concurrency_limit"] - running)
        if room < 1:
            return []
        # Half of them with a key, if there are so many, and whatever that leaves.
        found = with_keys(target, (room + self._turn % 2) // 2, values, [queue])
        found += self._of_limited_queue(target, room - len(found), values, queue)
        found += with_keys(target, room - len(found), values, [queue])
        if bucket.is_limited and found:
            full_at = bucket.after(len(found))
            statements.spend_starts.run(target.execute, {"queue": queue, "full_at": full_at})
        for row in found:
            row["limited"] = True
        return found

    def _of_limited_queue(self, target: Target, limit: int, values: dict[str, Any], queue: str) -> list[Row]:
        if limit < 1:
            return []
        values = values | {"limit": limit} | self._named(target, [queue])
        with target.atomic():
            return started(target.dialect.statements.claim_from_limited.run(target.execute, values))

    def _any_due(self, queues: Sequence[str] | None, topics: Sequence[str] | None) -> bool:
        def work(target: Target) -> bool:
            statements, values = target.dialect.statements, self._values(target)
            query = statements.any_due if queues is None else statements.any_due_given
            return bool(query.run(target.execute, values | self._scope(target, queues, topics)))

        return self._run(work, begin=Begin.READ)


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


def _claim(row: Row, worker_id: UUID) -> Claim:
    """`Claim(worker_id=worker_id, **row)`; that sets a frozen field at a time, which takes as long as reading them did."""
    del row["available_at"], row["entry_id"], row["expires_at"], row["besides"], row["crowded"]
    row["worker_id"] = worker_id
    claim = Claim.__new__(Claim)
    vars(claim).update(row)
    return claim
