"""The calls that a sleeping worker has heard, each of which a worker has to answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST = 256
"""The number of calls that are kept. If there are more, only the worker's own look answers them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A notification that names workers."""

    queue: str
    number: int
    heard_at: float
    look_at: float
    """The time at which the worker looks, if no worker has answered the call by then."""


class Calls:
    """The calls received between two searches by the worker, without those that another worker has answered.

    They are in the order of their commits, which is the same for all workers. The listener's thread changes them. The worker's
    thread reads them, and clears them when it searches for tasks.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self.look_at = math.inf
        """The time at which the worker looks."""

    def heard(self, call: Call) -> None:
        if len(self._calls) < _MOST:
            self._calls.append(call)
            self.look_at = min(self.look_at, call.look_at)

    def answered(self, queue: str, number: int) -> None:
        """Forget the calls of this queue up to this one, because another worker found nothing due after it had heard them."""
        places = [place for place, call in enumerate(self._calls) if (call.queue, call.number) == (queue, number)]
        if places and len(self._calls) < _MOST:
            last = places[-1]
            self._calls = [call for place, call in enumerate(self._calls) if place > last or call.queue != queue]
            self.look_at = min((call.look_at for call in self._calls), default=math.inf)

    def last(self, *, heard_before: float) -> dict[str, int]:
        """Return the number of the last call of each queue that was called before this time."""
        calls = self._calls
        queues = {call.queue for call in calls if call.heard_at < heard_before}
        return {call.queue: call.number for call in calls if call.queue in queues}
