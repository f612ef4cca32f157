"""Claim from a queue that limits its keys, while the queue's settings are locked. `limits_sql.py` explains why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, Self

from ...database import queue_order
from ...database.dialects import Row
from ...database.target import Target
from ...model import EARLIEST
from ..transactions import Transactions
from . import limits_sql, partition_keys
from .broken_entries import started
from .partition_keys import take_heads

_LEAST, _MOST = 64, limits_sql.HORIZON
"""Minimum and maximum number of entries or keys that one statement reads."""
_SLACK = 1e-6
"""Tolerance for rounding, as a fraction of a start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """A rate limit as a token bucket that holds `starts` tokens and refills in `seconds`.

    A `full_at` more than two periods from now is ignored, because it was written before the clock was set back. If this
    value were used, no task could start until the clock reached that time again.
    """

    starts: int
    seconds: float

    @classmethod
    def of(cls, starts: int | None, seconds: float | None) -> Self | None:
        """Return the bucket for a rate limit; None if there is no limit, or if another program's SQL has written only
        one of the limit's two values.
        """
        return None if starts is None or seconds is None else cls(starts=starts, seconds=seconds)

    @property
    def interval(self) -> float:
        """Seconds between starts once the bucket is empty. The value is a float, because it may be less than a
        microsecond.
        """
        return self.seconds / self.starts

    def free(self, full_at: datetime | None, now: datetime) -> int:
        """Return the number of starts that are available now, if the bucket is full again at `full_at`."""
        left = self.seconds - (self._from(full_at, now) - now).total_seconds()
        return int(left / self.interval + _SLACK)

    def spent(self, full_at: datetime | None, now: datetime, starts: int) -> datetime:
        """Return the time at which the bucket is full again after this number of starts."""
        return self._from(full_at, now) + timedelta(seconds=starts * self.interval)

    def next_start(self, full_at: datetime) -> datetime:
        """Return the time at which the bucket allows another start, if it is full again at `full_at`."""
        return full_at - timedelta(seconds=self.seconds - self.interval)

    def _from(self, full_at: datetime | None, now: datetime) -> datetime:
        return now if full_at is None or full_at > now + timedelta(seconds=2 * self.seconds) else max(full_at, now)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyLimits:
    """The limits of a queue that limits its keys."""

    queue: str
    key_concurrency: int
    key_rate: Bucket | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyState:
    """The state of one key of a queue that limits its keys."""

    limits: KeyLimits
    running: int
    """Number of running tasks with the concurrency key."""
    full_at: datetime | None
    """Time at which the bucket is full again; None if it is full."""


@dataclass(kw_only=True, slots=True)
class _Place:
    """A key that may start tasks now."""

    key: str
    is_concurrency: bool
    free: int
    """Number of tasks that the key may start."""
    full_at: datetime | None
    entries: list[tuple[int, datetime]] = field(default_factory=list)
    """The ids and due times of the entries that may start, in order. Only the head of a partition key is claimed."""


class KeyLimitClaims:
    """Claims tasks with a key from queues that limit their keys, and remembers which key is next. Each instance belongs
    to one claimer.
    """

    def __init__(self) -> None:
        self._cursors: dict[str, str] = {}
        """The last key served in each queue. The next claim begins after this key."""

    def claim(
        self, target: Target, values: dict[str, Any], key_limits: KeyLimits, now: datetime, limit: int, *, fair: bool
    ) -> list[Row]:
        """Claim up to `limit` tasks with a key, within the limits of each key.

        With `fair`, the keys take turns. Otherwise, the task that has been due the longest comes first. `now` is the
        time at which the settings were locked.
        """
        found: list[Row] = []
        with target.atomic():
            while len(found) < limit:
                once = _Claim(self._cursors, target, values, key_limits, now, limit - len(found), fair)
                once.run()
                found += once.found
                if not once.expired:
                    break
        return found


@dataclass(eq=False, repr=False)
class _Claim:
    """One search through the keys of a queue, and the claim of the tasks that it finds."""

    cursors: dict[str, str]
    target: Target
    values: dict[str, Any]
    key_limits: KeyLimits
    now: datetime
    limit: int
    fair: bool
    found: list[Row] = field(default_factory=list)
    expired: bool = False
    """True if a due task had expired, in which case another search may find more tasks."""

    def __post_init__(self) -> None:
        rate = self.key_limits.key_rate
        self.values = self.values | {
            "queue": self.key_limits.queue,
            "key_concurrency": self.key_limits.key_concurrency,
            "blocked_after": None if rate is None else self.now + timedelta(seconds=rate.seconds - rate.interval),
            "blocked_until": None if rate is None else self.now + timedelta(seconds=2 * rate.seconds),
        }

    def run(self) -> None:
        places, is_all = self._oldest()
        if is_all or not self.fair:
            self._take(places)
        if is_all or not self._wanted:
            return
        # The entries that have been due longest may all belong to keys that are not allowed to start a task. After
        # these entries, the search goes from key to key.
        for budget in (min(max(2 * self.limit, _LEAST), _MOST), _MOST):
            if self._rotate(budget) or self.found:
                break
        if self._wanted:
            self._take(self._oldest()[0])

    @property
    def _wanted(self) -> int:
        return self.limit - len(self.found)

    def _oldest(self) -> tuple[list[_Place], bool]:
        """Read the entries that have been due longest. Returns those of their keys that may start a task, and
        whether these are all the entries that are due.
        """
        budget = min(max(4 * self.limit, _LEAST), _MOST)
        after = self.cursors.get(self.key_limits.queue, "")
        rows = self.target.run(limits_sql.oldest, self.values | {"budget": budget, "after": after})
        places: dict[str, _Place] = {}
        for row in rows:
            if row["entry_id"] is not None:
                place = places.get(row["partition_key"]) or places.setdefault(row["partition_key"], self._place(row))
                place.entries.append((row["entry_id"], row["available_at"]))
        return list(places.values()), rows[0]["looked_at"] < budget

    def _rotate(self, budget: int) -> bool:
        """Claim from the keys after the cursor, then from the first key up to the cursor.

        Returns True if all keys have been read.
        """
        began = self.cursors.get(self.key_limits.queue, "")
        for after, upto in ((began, None), ("", began)):
            if upto == "":
                break
            places, last = self._hop(after, upto, budget)
            self._take(places)
            if not self._wanted:
                return False
            if last is not None:
                self.cursors[self.key_limits.queue] = last
                return False
        return True

    def _hop(self, after: str, upto: str | None, budget: int) -> tuple[list[_Place], str | None]:
        """Return the keys of a range that may start a task, and the last key that was read, or None if the range was
        read to its end.
        """
        rows = self.target.run(limits_sql.hop, self.values | {"budget": budget, "after": after, "upto": upto})
        free = [row for row in rows if row["free"]]
        last = rows[-1]["partition_key"] if rows and rows[-1]["n"] >= budget else None
        if len(free) > (most := max(2 * self._wanted, _LEAST)):
            free = free[:most]
            last = free[-1]["partition_key"]
        places = {row["partition_key"]: self._place(row) for row in free}
        queue = self.key_limits.queue
        if keys := [(queue, place.key) for place in places.values() if place.is_concurrency]:
            most = min(self._wanted, self.key_limits.key_concurrency)
            for row in self.target.run(limits_sql.entries, self.values | {"limit": most}, keys):
                places[row["partition_key"]].entries.append((row["entry_id"], row["available_at"]))
        return [place for place in places.values() if place.entries or not place.is_concurrency], last

    def _place(self, row: Row) -> _Place:
        rate, full_at = self.key_limits.key_rate, row["full_at"]
        free = self.key_limits.key_concurrency - row["running"] if row["is_concurrency"] else 1
        if rate is not None:
            free = min(free, rate.free(full_at, self.now))
        return _Place(key=row["partition_key"], is_concurrency=row["is_concurrency"], free=free, full_at=full_at)

    def _take(self, places: Sequence[_Place]) -> None:
        """Claim up to the requested number of tasks with these keys. If `fair`, take one task for each key, then a
        second task for each key, and so on; otherwise, take the tasks that have been due longest.
        """
        picks = (_in_turns(places) if self.fair else _by_age(places))[: self._wanted]
        if not picks:
            return
        entries = [(entry,) for place, entry in picks if place.is_concurrency]
        keys = [(self.key_limits.queue, place.key) for place, _ in picks if not place.is_concurrency]
        taken: list[Row] = []
        if entries:
            taken = self.target.run(limits_sql.take, self.values, entries)
            self.expired |= len(started(taken)) < len(taken)
        found = started(taken)
        if keys:
            values = self.values | {"limit": len(keys), "budget": len(keys)}
            seen = self.target.run(partition_keys.acquire_given, values, keys)
            heads, expired = take_heads(self.target, [row for row in seen if row["won"] is not None], values)
            found += heads
            self.expired |= expired
        self.found += found
        self.cursors[self.key_limits.queue] = picks[-1][0].key
        self._spend(places, found)

    def _spend(self, places: Iterable[_Place], found: Iterable[Row]) -> None:
        if (rate := self.key_limits.key_rate) is None:
            return
        # The rate is counted from the recorded start, which is a little later than the search, so that the recorded
        # starts comply with the rate.
        starts: dict[str, list[datetime]] = {}
        for row in found:
            starts.setdefault(row["partition_key"], []).append(row["started_at"])
        spent = [
            (place.key, rate.spent(place.full_at, max(starts[place.key]), len(starts[place.key])))
            for place in places
            if place.key in starts
        ]
        if spent:
            self.target.run(limits_sql.forget_full, self.values)
            self.target.run(limits_sql.spend_of_keys, self.values, spent)


def _in_turns(places: Iterable[_Place]) -> list[tuple[_Place, int | None]]:
    """Return the entries to start: one for each key, in key order, then a second for each, and so on."""
    of_keys = ([(place, entry) for entry, _ in _startable(place)] for place in places)
    return [pick for turn in zip_longest(*of_keys) for pick in turn if pick is not None]


def _by_age(places: Iterable[_Place]) -> list[tuple[_Place, int | None]]:
    """Return the entries to start, in the order in which they became due."""
    found = [(due, place, entry) for place in places for entry, due in _startable(place)]
    return [(place, entry) for _, place, entry in sorted(found, key=lambda one: one[0])]


def _startable(place: _Place) -> list[tuple[int | None, datetime]]:
    """Return the entries that may start. The head of a partition key is found once the key has been acquired."""
    if place.is_concurrency:
        return list(place.entries[: max(place.free, 0)])
    return [(None, place.entries[0][1] if place.entries else EARLIEST)] if place.free > 0 else []


def limits_keys(settings: Mapping[str, Any]) -> bool:
    """Return whether a queue with these settings limits its keys."""
    return any(settings.get(name) is not None for name in queue_order.LIMITS_OF_KEYS)


def limits_from(row: Row) -> KeyLimits | None:
    """Return the limits per key that this row of settings contains; None if the queue does not limit its keys."""
    if not limits_keys(row):
        return None
    return KeyLimits(
        queue=row["queue"],
        key_concurrency=row["key_concurrency"] or 1,
        key_rate=Bucket.of(row["key_rate_limit"], row["key_rate_seconds"]),
    )


def states_of(
    store: Transactions, target: Target, keys: Iterable[tuple[str, str | None]]
) -> dict[tuple[str, str | None], KeyState]:
    """Return the states of these keys, each identified by its queue and key. Keys of queues without limits per key are
    left out.
    """
    names = sorted({(queue, key or "") for queue, key in keys})
    rows = target.run(limits_sql.of_keys, store.values(target), names) if names else []
    return {
        (row["queue"], row["partition_key"] or None): KeyState(
            limits=found, running=row["running"], full_at=row["full_at"]
        )
        for row in rows
        if (found := limits_from(row)) is not None
    }
