"""The heads of many queues, which let a claim read a few of these queues instead of all of them.

A claim that takes the best tasks of all queues reads 13 pages for each queue, which is 65,000 pages for 5,000 queues. A
head is the due time of the first task of a (queue, priority) pair. A claimer that serves more than
`queue_order.MANY_QUEUES` queues reads the heads at a bounded rate. Between these readings, claims read only the queues
with the best heads. The due time of the last task that a claim took from a pair becomes the pair's head.

The heads affect only the order in which tasks are claimed. No statement takes a task whose priority is lower than that
of a remaining head, and a claim that finds too few tasks reads the heads again. So no due task is missed. While claims
are full, a new task waits for the next reading if its pair has no head, or has a later head. The task waits for at most
one second, or for at most ten seconds if reading the heads takes a long time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from ...database.dialects import Row
from ...database.queue_order import BOTTOM, MANY_QUEUES, TOP
from .floors import Turns

MOST = 10_000
"""The maximum number of heads that are kept. This number of heads takes up 3 MB."""

Pair = tuple[str, int]
"""A queue and a priority."""


class Heads:
    """The heads of one claimer. Threads may share them, as they share a store's cursor. Sharing affects only the order
    of claims.
    """

    def __init__(self) -> None:
        self.are_used = False
        """True if claims begin with the heads, because there are many queues."""
        self._heap: list[tuple[int, datetime, str]] = []
        """The heads, best first, with negated priorities."""
        self._readings = Turns()
        self.are_all = True
        """False if the last reading found more heads than are kept."""

    def use(self) -> None:
        """Make claims begin with the heads, which must then be read."""
        self.are_used, self._heap, self._readings = True, [], Turns()

    @property
    def are_old(self) -> bool:
        """True if the heads must be read."""
        return self._readings.is_due

    def read(self, rows: Sequence[Row], seconds: float) -> None:
        """Replace the heads with these rows, which took `seconds` to read."""
        if not (rows and rows[0]["many"]):
            self.are_used = False  # the next claim reads all queues
        self.are_all = len(rows) < MOST
        heap = [(-row["priority"], row["available_at"], row["queue"]) for row in rows]
        heapq.heapify(heap)
        self._heap = heap
        self._readings.took(seconds)

    def best(self, number: int) -> dict[Pair, datetime]:
        """Remove and return the best heads, from up to this number of queues."""
        found: dict[Pair, datetime] = {}
        queues: set[str] = set()
        with suppress(IndexError):  # there are no more
            while len(queues) < min(number, MANY_QUEUES):
                priority, since, queue = heapq.heappop(self._heap)
                found[queue, -priority] = since
                queues.add(queue)
        return found

    @property
    def least(self) -> int:
        """The priority of the best head that is left. A claim that uses the removed heads must not go below this
        priority.
        """
        with suppress(IndexError):
            return -self._heap[0][0]
        return BOTTOM + 1

    def claimed(self, asked: dict[Pair, datetime], rows: Sequence[Row]) -> None:
        """Put back the heads that `best` returned, after a claim that took its full number of tasks from these queues.

        The claim took the best tasks. So pairs whose priority is higher than that of the last claimed task have no tasks
        left, and pairs with the same priority have none that became due before that task.
        """
        last = max(((-row["priority"], row["available_at"]) for row in rows), default=(-TOP, None))
        pairs = {(row["queue"], row["priority"]): row["available_at"] for row in rows} | asked
        for (queue, priority), since in pairs.items():
            if priority <= -last[0]:
                head = since if last[1] is None or priority < -last[0] else max(since, last[1])
                heapq.heappush(self._heap, (-priority, head, queue))
