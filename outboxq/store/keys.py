"""The claim of tasks with a partition key: win keys, then take their heads (`statements/keyed.py` has the proof)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from ..dialects import Row
from ..target import Target
from .base import Transactions

log = logging.getLogger("outboxq.store")

Segment = tuple[str, str, str | None]
"""Of a queue's keys: those behind the second, up to the third."""
Way = Callable[[Target, int, dict[str, Any], Sequence[str]], tuple[list[Row], bool]]
"""Wins keys; and whether these are all there are."""
_LEAST, _MOST = 32, 1000
"""Keys looked at in one statement, however few or many are to be won."""


class Keys(Transactions):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cursors: dict[str, str] = {}
        """Where the last claim of each queue's keys ended. It is no matter if two threads confuse each other here."""

    def _keyed_fairly(self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str]) -> list[Row]:
        """The keys take turns; behind many that cannot be claimed, those due the longest are found."""
        return self._keyed(target, limit, values, queues, (self._rotate, self._oldest))

    def _keyed_oldest(self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str]) -> list[Row]:
        """The keys with what is due the longest come first."""
        return self._keyed(target, limit, values, queues, (self._oldest, self._rotate))

    def _keyed(
        self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str], ways: Sequence[Way]
    ) -> list[Row]:
        found: list[Row] = []
        with target.atomic():
            for way in (*ways, self._rotate_far):
                more, all_seen = True, False
                while more and len(found) < limit:
                    won, all_seen = way(target, limit - len(found), values, queues)
                    taken, more = self._take(target, won, values)
                    found += taken
                if all_seen or (found and way is ways[-1]):
                    break
        return found

    def _rotate(
        self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str], budget: int | None = None
    ) -> tuple[list[Row], bool]:
        """Win keys behind the cursors; where the keys end, from the first key up to where it began."""
        began = {queue: self._cursors.get(queue, "") for queue in queues}
        budget = budget or min(max(2 * limit, _LEAST), _MOST)
        segments: list[Segment] = [(queue, after, None) for queue, after in began.items()]
        won, ended = self._win(target, limit, values, segments, budget)
        again: list[Segment] = [(queue, "", began[queue]) for queue in queues if queue in ended and began[queue]]
        if again and len(won) < limit:
            more, wrapped = self._win(target, limit - len(won), values, again, budget)
            won += more
            ended -= {queue for queue, _, _ in again} - wrapped
        all_seen = len(won) < limit and ended == set(queues)
        if all_seen:  # whatever could be had, was: the next round needs no second part
            self._cursors.update(dict.fromkeys(queues, ""))
        return won, all_seen

    def _rotate_far(
        self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str]
    ) -> tuple[list[Row], bool]:
        """Where nothing was found: whoever waits believes in what lies within so many keys, so a claim must look as far."""
        return self._rotate(target, limit, values, queues, budget=_MOST)

    def _win(
        self, target: Target, limit: int, values: dict[str, Any], segments: Sequence[Segment], budget: int
    ) -> tuple[list[Row], set[str]]:
        """The keys won, and the queues whose segment was looked at to its end. Moves the cursors."""
        seen = target.dialect.statements.win_keys.run(
            target.execute, values | {"limit": limit, "budget": budget}, segments
        )
        won = [row for row in seen if row["won"] is not None]
        last = max((row["n"], row["queue"]) for row in won) if len(won) == limit else (budget + 1, "")
        looked_at = dict.fromkeys((queue for queue, _, _ in segments), 0)
        for row in seen:
            if (row["n"], row["queue"]) <= last and row["n"] > looked_at[row["queue"]]:
                looked_at[row["queue"]] = row["n"]
                self._cursors[row["queue"]] = row["partition_key"]
        return won, {queue for queue, n in looked_at.items() if n < budget}

    def _oldest(
        self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str]
    ) -> tuple[list[Row], bool]:
        budget = min(max(2 * limit, _LEAST), _MOST)
        segments: list[Segment] = [(queue, "", None) for queue in queues]
        seen = target.dialect.statements.win_due_keys.run(
            target.execute, values | {"limit": limit, "budget": budget}, segments
        )
        return [row for row in seen if row["won"] is not None], False

    def _take(self, target: Target, won: Sequence[Row], values: dict[str, Any]) -> tuple[list[Row], bool]:
        """The heads of the keys won; and whether another look is worth it, since some had expired."""
        if not won:
            return [], False
        statements, keys = target.dialect.statements, [(row["queue"], row["partition_key"]) for row in won]
        taken = statements.claim_heads.run(target.execute, values, keys)
        found = started(taken)
        holders = {(row["queue"], row["partition_key"]): row["id"] for row in found}
        changed = [
            (row["id"], holder) for row, key in zip(won, keys, strict=True) if (holder := holders.get(key)) != row["id"]
        ]
        if changed:
            statements.settle_keys.run(target.execute, values, changed)
        return found, len(taken) > len(found)


def started(taken: Sequence[Row]) -> list[Row]:
    """Those that run now; the others were stale, or expired."""
    stale = [row for row in taken if row["lease_token"] is None and row["expires_at"] is None]
    if stale:
        log.warning("deleted %d outbox entries of tasks that were not Ready", len(stale))
    return [row for row in taken if row["lease_token"] is not None]
