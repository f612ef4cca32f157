"""Describe schedules for people: when their ticks are, in words, and the next of them. No I/O."""

from __future__ import annotations

from datetime import datetime
from itertools import islice, takewhile
from typing import Protocol

from ..errors import InvalidArgument
from .records import LATEST
from .rules import describe, parse_rule


class Timed(Protocol):
    """The part of a schedule that decides about its ticks."""

    @property
    def rule(self) -> str: ...
    @property
    def tz(self) -> str: ...
    @property
    def starts_at(self) -> datetime: ...
    @property
    def ends_at(self) -> datetime | None: ...
    @property
    def paused_at(self) -> datetime | None: ...


def sentence_of(schedule: Timed) -> str:
    """Return when the ticks are, in words; or why the rule cannot be read here, so that one schedule does not hide the others."""
    try:
        return describe(schedule.rule, schedule.tz)
    except InvalidArgument as error:
        return f"cannot be read here: {error}"


def next_ticks(schedule: Timed, after: datetime, count: int) -> list[datetime]:
    """Return up to `count` ticks after a moment. Empty if the schedule is paused, or its rule cannot be read here."""
    if schedule.paused_at is not None:
        return []
    try:
        ticks = parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at).ticks(after)
    except InvalidArgument:
        return []
    ends_at = schedule.ends_at or LATEST
    return list(islice(takewhile(lambda tick: tick < ends_at, ticks), count))


def next_tick(schedule: Timed, after: datetime) -> datetime | None:
    """Return the next tick. None: there is none, as far as `next_ticks` knows."""
    return next(iter(next_ticks(schedule, after, 1)), None)
