"""A test's clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from ..errors import InvalidArgument
from ..model import duration
from ..model.unknown_options import Answering, naming_options
from ..store.arguments import aware


class Clock(Answering):
    """A clock that the test moves. Due times, leases and limits follow this clock on both databases.

    On its own, the clock moves only when a drain begins, and never past the due time of a retry or a delayed task.
    """

    _noun = "the clock"

    _now: datetime

    def __init__(self) -> None:
        self._later: list[datetime] = []
        self.reset()

    def __call__(self) -> datetime:
        """Return the clock's current time as an aware datetime in UTC."""
        return self._now

    @naming_options("advance()")
    def advance(self, by: timedelta | float) -> datetime:
        """Move the clock forward by a timedelta or a number of seconds, and return the new time. Raises InvalidArgument for
        a negative span.
        """
        span = duration(by, "advance()")
        if span < timedelta(0):
            raise InvalidArgument("advance() can only move the clock forward; use set() to move it back")
        return self.set(self._now + span)

    def set(self, moment: datetime) -> datetime:
        """Move the clock to `moment`, and return the new time. Raises InvalidArgument for a naive datetime."""
        return self._move(aware(moment, "set()").astimezone(UTC), datetime.now(UTC))

    def reset(self) -> datetime:
        """Move the clock to the real current time, and return the new time."""
        real = datetime.now(UTC)
        return self._move(real, real)

    def run_on(self) -> None:
        """Move the clock to the time that it would show if it had kept running, so that rows written with the real
        clock are due.
        """
        real = datetime.now(UTC)
        moment = min([self._running(real), *(one - timedelta(microseconds=1) for one in self._later)])
        if moment > self._now:
            self._move(moment, real)

    @contextmanager
    def at(self, moment: datetime) -> Iterator[None]:
        """Show `moment` until the end of the block."""
        before, self._now = self._now, moment
        try:
            yield
        finally:
            self._now = before

    def wait_for(self, moment: datetime) -> None:
        """Remember that a task is due at `moment`, so that only the test can move the clock past that time."""
        if moment > self._now:
            self._later.append(moment)

    def present(self, moment: datetime | None) -> datetime | None:
        """Return `moment`, or the clock's current time if `moment` has passed only on the real clock.

        A test that passes `datetime.now()` means "now", even though this clock is not running.
        """
        return self._now if moment is not None and self._now < moment <= self._running(datetime.now(UTC)) else moment

    def _move(self, moment: datetime, real: datetime) -> datetime:
        """Move the clock to `moment`. `real` is the real time for which `moment` was calculated. If this method read
        the real time again, the clock would lag behind by the time between the two readings.
        """
        self._now, self._moved = moment, real
        self._later = [one for one in self._later if one > moment]
        return moment

    def _running(self, real: datetime) -> datetime:
        """Return the time that the clock would show at the real time `real` if it had kept running."""
        return self._now + (real - self._moved)
