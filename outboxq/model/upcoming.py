"""The next ticks of a schedule, for people. No I/O."""

from __future__ import annotations

from datetime import datetime
from itertools import islice, takewhile

from ..errors import InvalidArgument
from .records import LATEST
from .rules import parse_rule
from .schedules import Schedule


def next_ticks(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    """Return up to `count` ticks after a moment, as if the schedule were not paused."""
    ticks = parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at).ticks(after)
    ends_at = schedule.ends_at or LATEST
    return list(islice(takewhile(lambda tick: tick < ends_at, ticks), count))


def next_tick(schedule: Schedule, after: datetime) -> datetime | None:
    """Return the next tick. None: there is none, the schedule is paused, or its rule cannot be read here."""
    if schedule.paused_at is not None:
        return None
    try:
        return next(iter(next_ticks(schedule, after, 1)), None)
    except InvalidArgument:
        return None
