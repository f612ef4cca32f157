"""The next ticks of a schedule, for people. No I/O."""

from __future__ import annotations

from datetime import datetime

from ..errors import InvalidArgument
from .rules import parse_rule
from .schedules import Schedule


def next_ticks(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    """Return up to `count` ticks after a moment, as if the schedule were not paused."""
    rule, found = parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at), list[datetime]()
    tick = rule.after(after)
    while tick is not None and len(found) < count and (schedule.ends_at is None or tick < schedule.ends_at):
        found.append(tick)
        tick = rule.after(tick)
    return found


def next_tick(schedule: Schedule, after: datetime) -> datetime | None:
    """Return the next tick. None: there is none, the schedule is paused, or its rule cannot be read here."""
    if schedule.paused_at is not None:
        return None
    try:
        return next(iter(next_ticks(schedule, after, 1)), None)
    except InvalidArgument:
        return None
