"""Stretches of time by which the history is partitioned, and the ids made in them: a uuid7 is a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from uuid import UUID


class Every(StrEnum):
    """How long a partition is. All begin at midnight, UTC; a week on its Monday."""

    MONTH = "month"
    WEEK = "week"
    DAY = "day"


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """From `begin` until just before `end`."""

    begin: datetime
    end: datetime

    @property
    def every(self) -> Every:
        """What it is one of, by its length."""
        return {1: Every.DAY, 7: Every.WEEK}.get((self.end - self.begin).days, Every.MONTH)


def periods(every: Every, now: datetime, ahead: int) -> list[Period]:
    """The one that `now` lies in, and `ahead` more."""
    begins = [_begin(every, now.astimezone(UTC))]
    for _ in range(ahead + 1):
        begins.append(_begin(every, begins[-1] + _BEYOND[every]))
    return [Period(begin=begin, end=end) for begin, end in pairwise(begins)]


def first_id(moment: datetime) -> UUID:
    """Smaller than every uuid7 made from this moment on."""
    return UUID(int=max(0, int(moment.timestamp() * 1000)) << 80)


def moment_of(first: UUID) -> datetime:
    """Of an id that `first_id` made."""
    return _EPOCH + timedelta(milliseconds=first.int >> 80)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_BEYOND = {Every.MONTH: timedelta(days=31), Every.WEEK: timedelta(days=7), Every.DAY: timedelta(days=1)}
"""From any beginning of a period, this leads into the next."""


def _begin(every: Every, moment: datetime) -> datetime:
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    match every:
        case Every.MONTH:
            return midnight.replace(day=1)
        case Every.WEEK:
            return midnight - timedelta(days=midnight.weekday())
        case Every.DAY:
            return midnight
