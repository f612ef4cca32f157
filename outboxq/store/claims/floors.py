"""The due times up to which a claimer has taken all tasks. Its next claims and checks begin at these times, and do not
read the dead entries before them.

Deleted entries stay in the index while a long transaction elsewhere keeps them from being vacuumed. A claim that reads
100,000 of them takes 500 times as long as a claim that reads none.

A *check* is a query that tells a worker whether a task is due, without claiming the task (`due.py`).

A floor belongs to a (queue, priority) pair. Pairs without a floor are found immediately, because the index is probed
between the known pairs (`queue_order.pairs_beyond`). If a claimer has not taken a task yet, it gets its first floors
when a check finds nothing due: one for the (queue, priority) pair of each declared task that the claimer knows.

A claim misses a task only if a floor had already passed the task's due time when the task became claimable. This
happens if the task was committed more than `_MARGIN` after its due time, if its claim was rolled back, if its queue was
paused, or if the clock was set back. So claims and checks from the front are made at a bounded rate, and such a task
waits for at most `_LONGEST`.

A claim from a limited queue says nothing about other queues, and claims from all queues leave out limited queues. So
each limited queue has its own claims from the front.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import Any

from ...database.dialects import Row
from ...database.queue_order import BOTTOM, FLOORS, TOP
from ...database.target import Target

_MARGIN = timedelta(seconds=1)
"""A floor is at least this far in the past, so that typical transactions are committed before the floor passes their
tasks' due times.
"""
_LEAST, _LONGEST = 1.0, 10.0
"""The shortest and the longest time, in seconds, between two claims from the front, or between two checks from the
front.
"""
_REST = 20
"""The time between two claims or checks from the front, as a multiple of the time that the first of the two took."""
_MOST = 64
"""Maximum number of pairs whose floors are kept. Each pair costs a claim two index probes."""


class Floors:
    """The floors of one claimer, and the times of its claims and checks from the front."""

    def __init__(self, likely: Iterable[tuple[str, int]] = ()) -> None:
        """`likely` contains the pairs of the tasks that the claimer knows."""
        self._likely = list(islice(likely, _MOST))
        self._since: dict[tuple[str, int], datetime] = {}
        """The floors, the least recently used first; empty unless there are many dead entries."""
        self._ahead = timedelta(0)
        """The database's time since 1970, minus `time.monotonic()`, as of the last claim that found tasks."""
        self._claims, self._looks = _Claims(), Turns()
        self._limited: dict[str, _Claims] = {}
        """The limited queues with floors, the least recently added first."""

    def expect(self) -> None:
        """Make the next claims begin at the front."""
        for claims in (self._claims, *self._limited.values()):
            claims.are_expected = True

    def begins_at_front(self, limited: str | None = None, *, again: bool = False) -> bool:
        """Return whether the next claim, or the next one from this limited queue, reads the entries before the floors.
        `again` is True if a claim that began at the floors found nothing.
        """
        claims = self._claims if limited is None else self._limited.get(limited)
        if claims is None or not self._since or claims.are_expected:
            return True
        return (again or claims.were_full) and claims.turns.is_due

    def looks_from_front(self) -> bool:
        """Return whether the next check reads the entries before the floors."""
        return not self._since or self._looks.is_due

    def parameters(
        self, target: Target, queues: Collection[str] | None, *, at_front: bool | None, least: int | None = None
    ) -> dict[str, Any]:
        """Return the parameters of a statement on these queues; None means all queues. If `at_front` is True, the
        statement also reads the dead entries of the pairs. If `at_front` is None, the statement reads only the dead
        entries of limited queues whose next claim reads them. With `least`, the statement reads only the pairs with
        this priority or a higher one, in the given queues.
        """
        of_queues: dict[str, dict[int, datetime]] = {}
        if least is not None and queues is not None:
            of_queues = {queue: {} for queue in queues}
        for (queue, priority), since in list(self._since.items()):
            if (queues is None or queue in queues) and (least is None or priority >= least):
                of_queues.setdefault(queue, {})[priority] = since
        rows: list[tuple[str, int, int, datetime | None]] = []
        for queue, floors in of_queues.items():
            from_front = self.begins_at_front(queue, again=True) if at_front is None else at_front
            bounds = [TOP, *sorted(floors, reverse=True), BOTTOM if least is None else least - 1]
            for priority, below in pairwise(bounds):
                rows.append((queue, priority, below, None if from_front else floors.get(priority)))
        return target.dialect.pack("floors", FLOORS, rows)

    def claimed(
        self, taken: Sequence[Row], limited: str | None = None, *, at_front: bool, is_full: bool, seconds: float
    ) -> None:
        """Record the tasks that a claim took (from this limited queue, if one is given), and the claim's duration in
        seconds.
        """
        claims = self._claims if limited is None else self._limited.get(limited, _Claims())
        if at_front:
            claims.are_expected = False
            claims.turns.took(seconds)
        elif taken and not is_full and claims.turns.is_due:
            # The next claim begins at the front, unless a check from the front comes first. The tasks that this claim
            # has found must not wait for either.
            claims.are_expected = True
        claims.were_full = is_full
        if taken and not taken[0]["crowded"]:
            self._since.clear()
            self._limited.clear()
            return
        if limited is not None and limited not in self._limited:
            # The claims from all queues have moved this queue's floors without taking its tasks. This claim began at the
            # front: if it found nothing, the floors hold.
            if taken:
                self._forget(limited)
            elif all(queue != limited for queue, _ in list(self._since)):
                return
            self._limited[limited] = claims
            if len(self._limited) > _MOST:
                self._forget(next(iter(self._limited)))
        with suppress(TypeError):  # a time or a priority may be unreadable
            self._move([row for row in taken if row["lease_token"] is not None], limited, is_full=is_full)

    def read(self, heads: Sequence[Row], seconds: float) -> None:
        """Record that the heads of all pairs were read from the front, and move the floors down to these heads."""
        self._claims.are_expected = False
        self._claims.turns.took(seconds)
        for row in heads:
            pair = row["queue"], row["priority"]
            if (since := self._since.get(pair)) is not None:
                self._since[pair] = min(since, row["available_at"])

    def looked(self, *, found: bool, at_front: bool, seconds: float, crowded_at: float | None = None) -> float:
        """Record a check, and return the number of seconds until a check from the front is due; infinity if this check
        was from the front. `crowded_at` is the database's time since 1970 in seconds. It is None if few entries are
        dead. It is also None if some queue has a limit, because a check does not find tasks that have to wait for a
        limit.
        """
        if not at_front:
            return self._looks.left
        self._looks.took(seconds)
        if found:
            self.expect()
        else:
            self._claims.are_expected = False
            self._claims.turns.took(seconds)
            if crowded_at is not None:
                # A claimer that has not taken a task does not know which pairs have dead entries.
                self._ahead = timedelta(seconds=crowded_at - time.monotonic())
                latest = _EPOCH + timedelta(seconds=crowded_at) - _MARGIN
                self._since = dict.fromkeys(self._since or self._likely, latest)
        return math.inf

    def _forget(self, limited: str) -> None:
        self._limited.pop(limited, None)
        for pair in [pair for pair in list(self._since) if pair[0] == limited]:
            self._since.pop(pair, None)  # threads may share a cursor

    def _move(self, rows: Sequence[Row], limited: str | None, *, is_full: bool) -> None:
        """Move the floors up to the tasks that were taken, or, if no due task was left, up to now. If the clock was set
        back, the floors move down.
        """
        moment = time.monotonic()
        if rows:
            self._ahead = rows[-1]["started_at"] - _EPOCH - timedelta(seconds=moment)
        latest = _EPOCH + self._ahead + timedelta(seconds=moment) - _MARGIN
        for row in rows:
            pair = row["queue"], row["priority"]
            self._since[pair] = max(row["available_at"], self._since.pop(pair, row["available_at"]))
            if limited is None:
                self._limited.pop(row["queue"], None)  # its limits were removed
        while len(self._since) > _MOST:
            del self._since[next(iter(self._since))]
        for pair, since in list(self._since.items()):
            if (pair[0] in self._limited) if limited is None else (pair[0] != limited):
                continue
            self._since[pair] = min(since, latest) if is_full else latest


class _Claims:
    """The state of the claims from all queues without limits, or from one limited queue."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.were_full = self.are_expected = False
        """`were_full` is True if the last claim was full, and `are_expected` is True if the next claim must begin at
        the front.
        """


class Turns:
    """Spaces out statements that read from the front, so that they take at most a twentieth of the total time."""

    def __init__(self) -> None:
        self._due_at = -math.inf

    @property
    def is_due(self) -> bool:
        return self.left <= 0

    @property
    def left(self) -> float:
        """The number of seconds until the next statement is due."""
        return self._due_at - time.monotonic()

    def took(self, seconds: float, *, least: float | None = None) -> None:
        """Record that a statement has ended, and the number of seconds that it took. `least` replaces the default
        minimum time until the next statement.
        """
        self._due_at = time.monotonic() + min(max(_LEAST if least is None else least, _REST * seconds), _LONGEST)


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
