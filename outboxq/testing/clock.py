"""The clock of a test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ..errors import InvalidArgument
from ..model import duration
from ..store.arguments import aware


class Clock:
    """Moved by the test. Due times, leases and limits go by it, on both databases.

    By itself it runs on only where a drain begins, and never past what it knows to be due later: a retry, a delay.
    """

    def __init__(self) -> None:
        self._later: list[datetime] = []
        self.reset()

    def __call__(self) -> datetime:
        """Now, aware, in UTC."""
        return self._now

    def advance(self, by: timedelta | float) -> datetime:
        """Move it on by a timedelta or seconds; returns the new time. Raises InvalidArgument for a negative span."""
        span = duration(by, "advance()")
        if span < timedelta(0):
            raise InvalidArgument("advance() moves the clock on; set() moves it anywhere")
        return self.set(self._now + span)

    def set(self, moment: datetime) -> datetime:
        """Move it to `moment`. Raises InvalidArgument for a naive datetime."""
        self._now = aware(moment, "set()").astimezone(UTC)
        self._moved = datetime.now(UTC)
        self._later = [one for one in self._later if one > self._now]
        return self._now

    def reset(self) -> datetime:
        """To the present."""
        return self.set(datetime.now(UTC))

    def run_on(self) -> None:
        """To where it would be had it not stood still; what was written by another clock meanwhile is due then."""
        moment = min([self._running(), *(one - _INSTANT for one in self._later)])
        if moment > self._now:
            self.set(moment)

    def wait_for(self, moment: datetime) -> None:
        """Something is due then, and not before the test moves the clock."""
        if moment > self._now:
            self._later.append(moment)

    def present(self, moment: datetime | None) -> datetime | None:
        """Now, for a moment that is past by a clock that runs: who asks for Python's "now" means it."""
        return self._now if moment is not None and self._now < moment <= self._running() else moment

    def _running(self) -> datetime:
        return self._now + (datetime.now(UTC) - self._moved)


_INSTANT = timedelta(microseconds=1)
