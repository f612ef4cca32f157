"""Divide a period into steps, one for each point of a chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TypeVar

from ...database.dialects import Begin
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import duration
from ..arguments import aware
from ..transactions import Transactions

_MOST = 2_000
"""Maximum number of points in a series."""
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Time steps of equal length. The last step may extend beyond `until`."""

    since: datetime
    until: datetime
    step: timedelta

    def begins(self) -> Sequence[datetime]:
        """Return the start of each step."""
        number = -(-(self.until - self.since) // self.step)
        return [self.since + place * self.step for place in range(number)]

    def spans(self) -> list[tuple[datetime, datetime]]:
        """Return the start and the end of each step. The last step ends at `until`."""
        return list(pairwise([*self.begins(), self.until]))


def read_steps(
    store: Transactions,
    read: Callable[[Target, Steps], _T],
    *,
    since: datetime,
    until: datetime | None,
    step: timedelta | float,
    using: object,
) -> _T:
    """Return the result of `read` for the steps up to `until` (None means now), in one transaction.

    Raises InvalidArgument for a step shorter than a second, for an empty period, and for too many steps.
    """

    def work(target: Target) -> _T:
        return read(target, _steps(since, until or store.now_in(target), step))

    return store.run(work, using=using, begin=Begin.READ)


def _steps(since: datetime, until: datetime, step: timedelta | float) -> Steps:
    length = duration(step, "step")
    if length < timedelta(seconds=1):
        raise InvalidArgument(f"step must be a second or longer, not {step!r}")
    if aware(since, "since") >= aware(until, "until"):
        raise InvalidArgument(f"since must be before until, but {since} is not before {until}")
    if (until - since) / length > _MOST:
        raise InvalidArgument(f"a series can have at most {_MOST} points; use a longer step than {length}")
    return Steps(since=since, until=until, step=length)
