"""The due time up to which a queue has been claimed: the next claim may begin there."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..database.dialects import Row


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
