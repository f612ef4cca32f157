"""The heads of many queues, so that a claim reads a few of these queues instead of all.

A claim that takes the best tasks of all (queue, priority) pairs reads 13 pages for each pair: 65,000 pages with 5,000 queues
(`nox -s bench_scale`). A claimer with more than `queue_order.MANY_PAIRS` pairs reads the head of each pair, which is the due time of
its first task, at a bounded rate. In between, its claims read only the queues with the best heads. The last task that a claim
took from a pair becomes the pair's head.

Only the order depends on the heads. A claim that finds too few tasks reads the heads again, so it misses no due task. While claims
are full, a new task waits for the next reading if its pair has no head or a later one: for one second, or up to ten seconds if a
reading takes a long time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from datetime import UTC, datetime

from ...database.dialects import Row
from .floors import Turns

MOST = 10_000
"""Number of heads that are kept, which take 2 MB."""
_AT_ONCE = 64
"""The largest number of queues with which a claim begins."""


class Heads:
    """The heads of one claimer's pairs."""

    def __init__(self) -> None:
        self._scope: object = None
        """The queues and topics whose claims begin with the heads, because they have many pairs."""
        self._due_since: dict[tuple[str, int], datetime] = {}
        self._heap: list[tuple[int, datetime, str]] = []
        """The heads, best first, with the negated priority. Those that differ from `_due_since` are obsolete."""
        self._asked: dict[tuple[str, int], datetime] = {}
        """The heads of the queues that `best` returned."""
        self._readings = Turns()

    def are_of(self, queues: Sequence[str] | None, topics: Sequence[str] | None) -> bool:
        """Return whether claims from these queues and topics begin with the heads."""
        return self._scope == (queues, topics)

    def use_for(self, queues: Sequence[str] | None, topics: Sequence[str] | None) -> None:
        """Make claims from these queues and topics begin with the heads, which are then to be read."""
        self._scope, self._heap, self._readings = (queues, topics), [], Turns()

    @property
    def are_old(self) -> bool:
        """True if the heads are to be read."""
        return self._readings.is_due

    def read(self, rows: Sequence[Row], seconds: float) -> None:
        """Replace the heads by these rows, which were read within these seconds."""
        if not (rows and rows[0]["many"]):
            self._scope = None  # the next claim reads all queues
        self._due_since = {(row["queue"], row["priority"]): _moment(row) for row in rows}
        self._heap = [(-priority, since, queue) for (queue, priority), since in self._due_since.items()]
        heapq.heapify(self._heap)
        self._readings.took(seconds)

    def best(self, number: int) -> list[str]:
        """Return up to this number of queues with the best heads."""
        queues: dict[str, None] = {}
        self._asked = {}
        while self._heap and len(queues) < min(number, _AT_ONCE):
            priority, since, queue = heapq.heappop(self._heap)
            pair = queue, -priority
            if self._due_since.get(pair) == since:
                self._asked[pair] = self._due_since.pop(pair)
                queues[queue] = None
        return list(queues)

    def claimed(self, taken: Sequence[Row], *, is_full: bool) -> None:
        """Note the tasks that a claim took from the queues that `best` returned. `is_full`: these queues may have more."""
        if not is_full:
            return
        for row in taken:
            pair = row["queue"], row["priority"]
            self._asked[pair] = max(_moment(row), self._asked.get(pair, _LONG_AGO))
        for (queue, priority), since in self._asked.items():
            self._due_since[queue, priority] = since
            heapq.heappush(self._heap, (-priority, since, queue))


def _moment(row: Row) -> datetime:
    """Return the due time. One that no datetime can hold counts as long ago."""
    moment = row["available_at"]
    return moment if isinstance(moment, datetime) else _LONG_AGO


_LONG_AGO = datetime.min.replace(tzinfo=UTC)
