"""The periods by which the history is partitioned, and the lowest and highest ids that are generated in them.

A uuid7 contains the time at which it was created, so a period is a range of ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from uuid import UUID

from .records import EARLIEST


class Every(StrEnum):
    """The length of a partition. Every partition begins at midnight UTC, and a week begins on a Monday."""

    MONTH = "month"
    WEEK = "week"
    DAY = "day"


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """A span of time from `begin` (inclusive) to `end` (exclusive)."""

    begin: datetime
    end: datetime

    @property
    def every(self) -> Every:
        """The kind of period, according to its length."""
        return {1: Every.DAY, 7: Every.WEEK}.get((self.end - self.begin).days, Every.MONTH)


def periods(every: Every, now: datetime, ahead: int) -> list[Period]:
    """Return the period that contains `now`, and the `ahead` periods after it."""
    begins = [_begin(every, now.astimezone(UTC))]
    for _ in range(ahead + 1):
        begins.append(_begin(every, begins[-1] + _BEYOND[every]))
    return [Period(begin=begin, end=end) for begin, end in pairwise(begins)]


def first_id(moment: datetime) -> UUID:
    """Return an id that is smaller than every uuid7 generated at this time or later."""
    return UUID(int=max(0, int(moment.timestamp() * 1000)) << 80)


def moment_of(first: UUID) -> datetime:
    """Return the time for which `first_id` generated this id."""
    return EARLIEST + timedelta(milliseconds=first.int >> 80)


_BEYOND = {Every.MONTH: timedelta(days=31), Every.WEEK: timedelta(days=7), Every.DAY: timedelta(days=1)}
"""A span that, counted from the beginning of any period of this kind, ends in the next period."""


def _begin(every: Every, moment: datetime) -> datetime:
    days = {Every.MONTH: moment.day - 1, Every.WEEK: moment.weekday(), Every.DAY: 0}[every]
    return moment.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
