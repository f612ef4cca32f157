"""The claim of tasks with a partition key: win keys, then take their heads (`statements/partition_keys.py` has the proof)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..database.dialects import Row
from ..database.statements import partition_keys
from ..database.target import Target
from .broken_entries import started

Segment = tuple[str, str, str | None]
"""A queue, and two of its keys: the segment begins behind the first, and ends with the second."""
Won = tuple[list[Row], bool]
"""The keys won, and whether they are all that there are."""
Way = Callable[[Target, int, dict[str, Any], Sequence[str]], Won]
"""Wins keys of queues, up to a number."""
_LEAST, _MOST = 32, 1000
"""Keys looked at in one statement, however few or many are to be won."""


class KeyTurns:
    """Claims tasks with a partition key, and remembers whose turn is next. It belongs to one claimer."""

    def __init__(self) -> None:
        self._cursors: dict[str, str] = {}
        """The key with which the last claim of each queue ended. Two threads that share it lose no task, only the order of turns."""
        self._served: dict[str, int] = {}
        """When each queue last had a key won, by `_wins`."""
        self._wins = itertools.count(1)
        self._walled: set[str] = set()
        """The queues in which the last claim looked at many keys and could win none."""

    def claim(
        self, target: Target, values: dict[str, Any], queues: Sequence[str], limit: int, *, fair: bool
    ) -> list[Row]:
        """Claim the heads of up to `limit` keys.

        `fair`: the queues take turns, and so do the keys of each. Otherwise the keys whose task has been due the longest come
        first. Behind many keys that cannot be claimed, it tries both orders, and also the keys in which something happened last.
        """
        if limit < 1:
            return []
        # An idle worker behind many blocked keys was woken by what happened last. To find that takes 3 ms; to look at those
        # keys once more takes 60 ms, and would keep it waiting.
        woken, all_seen, found = self._walled.issuperset(queues), False, list[Row]()
        ways: list[Way] = [self._rotate, self._oldest] if fair else [self._oldest, self._rotate]
        order = [self._recent, *ways] if woken else [*ways, self._recent]
        # The last resort looks at as many keys as a waiting worker's look does; else that look could find work that no claim finds.
        far: Way = partial(self._rotate, budget=_MOST)
        with target.atomic():
            for way in (*order, far):
                more, all_seen = True, False
                while more and len(found) < limit:
                    won, all_seen = way(target, limit - len(found), values, queues)
                    taken, more = take_heads(target, won, values)
                    found += taken
                if all_seen or (found and (woken or way is order[-1])):
                    break
        if found or all_seen:
            self._walled.difference_update(queues)
        else:
            self._walled.update(queues)
        return found

    def _rotate(
        self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str], budget: int | None = None
    ) -> Won:
        """Win keys behind the cursors; where the keys end, from the first key up to where it began.

        The queue that was served last comes last, so that each has its turn in claims of one, too.
        """
        queues = sorted(queues, key=lambda queue: self._served.get(queue, 0))
        began = {queue: self._cursors.get(queue, "") for queue in queues}
        budget = budget or min(max(2 * limit, _LEAST), _MOST)
        segments: list[Segment] = [(queue, after, None) for queue, after in began.items()]
        won, ended = self._win(target, limit, values, segments, budget)
        self._cursors.update(dict.fromkeys(ended, ""))  # else the queue's next turn would find nothing
        again: list[Segment] = [(queue, "", began[queue]) for queue in queues if queue in ended and began[queue]]
        if again and len(won) < limit:
            more, wrapped = self._win(target, limit - len(won), values, again, budget)
            won += more
            ended -= {queue for queue, _, _ in again} - wrapped
        all_seen = len(won) < limit and ended == set(queues)
        if all_seen:  # whatever could be had, was: the next round needs no second part
            self._cursors.update(dict.fromkeys(queues, ""))
        return won, all_seen

    def _win(
        self, target: Target, limit: int, values: dict[str, Any], segments: Sequence[Segment], budget: int
    ) -> tuple[list[Row], set[str]]:
        """The keys won, and the queues whose segment was looked at to its end. Moves the cursors.

        A queue's cursor never passes a key that could have been won and was not asked for. What was asked for is found by
        the numbers that the statement goes by, never by names, which the database may order otherwise than Python does.
        """
        seen = target.run(partition_keys.acquire, values | {"limit": limit, "budget": budget}, segments)
        seen.sort(key=lambda row: (row["place"], row["n"]))
        turns: Counter[int] = Counter()
        for row in seen:
            turns[row["place"]] += row["free"]
            row["turn"] = turns[row["place"]], row["place"]
        won = [row for row in seen if row["won"] is not None]
        won.sort(key=lambda row: row["turn"])
        last = won[-1]["turn"] if len(won) == limit else (budget + 1, 0)
        passed, unasked = dict.fromkeys((queue for queue, _, _ in segments), 0), set()
        for row in seen:
            if row["free"] and row["turn"] > last:
                unasked.add(row["queue"])
            elif row["queue"] not in unasked:
                passed[row["queue"]] += 1
                self._cursors[row["queue"]] = row["partition_key"]
        for row in won:
            self._served[row["queue"]] = next(self._wins)
        return won, {queue for queue, n in passed.items() if n < budget and queue not in unasked}

    def _oldest(self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str]) -> Won:
        """Win the keys with what is due the longest. A key that can be won has something due, so few entries may be all."""
        budget = min(max(2 * limit, _LEAST), _MOST)
        seen = target.run(partition_keys.acquire_due, values | {"limit": limit, "budget": budget}, _whole(queues))
        entries = Counter[str]()
        for row in seen:
            entries[row["queue"]] += row["entries"]
        return [row for row in seen if row["won"] is not None], all(entries[queue] < budget for queue in queues)

    def _recent(self, target: Target, limit: int, values: dict[str, Any], queues: Sequence[str]) -> Won:
        """Win keys in which something happened last: a worker that was woken finds what woke it, however many others are blocked."""
        seen = target.run(partition_keys.acquire_recent, values | {"limit": limit, "budget": _MOST}, _whole(queues))
        return [row for row in seen if row["won"] is not None], False


def take_heads(target: Target, won: Sequence[Row], values: dict[str, Any]) -> tuple[list[Row], bool]:
    """The heads of the keys won; and whether another look is worth it, since some had expired."""
    if not won:
        return [], False
    keys = [(row["queue"], row["partition_key"]) for row in won]
    taken = target.run(partition_keys.claim_heads, values, keys)
    found = started(taken)
    owners = {(row["queue"], row["partition_key"]): row["id"] for row in found}
    wanted = [(row["id"], owners.get(key)) for row, key in zip(won, keys, strict=True)]
    if changed := [(task, owner) for task, owner in wanted if task != owner]:
        target.run(partition_keys.release_unused, values, changed)
    return found, len(taken) > len(found)


def _whole(queues: Sequence[str]) -> list[Segment]:
    return [(queue, "", None) for queue in queues]
