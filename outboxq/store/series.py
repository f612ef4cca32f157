"""Steps of time for charts: as many as a chart has points, from one moment to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..errors import InvalidArgument
from ..model import duration
from .arguments import aware

_MOST = 2_000
"""The largest number of points of a series."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Equal steps of time, the last of which may go beyond `until`."""

    since: datetime
    until: datetime
    step: timedelta

    def begins(self) -> Sequence[datetime]:
        """Return the begin of each step."""
        number = -(-(self.until - self.since) // self.step)
        return [self.since + place * self.step for place in range(number)]


def steps_of(since: datetime, until: datetime, step: timedelta | float) -> Steps:
    """Return the steps. Raises InvalidArgument for a step below a second, and for none or too many of them."""
    length = duration(step, "step")
    if length < timedelta(seconds=1):
        raise InvalidArgument(f"step must be a second or longer, not {step!r}")
    if aware(since, "since") >= aware(until, "until"):
        raise InvalidArgument(f"since must be before until, but {since} is not before {until}")
    if (until - since) / length > _MOST:
        raise InvalidArgument(f"a series has at most {_MOST} points; take a longer step than {length}")
    return Steps(since=since, until=until, step=length)
