"""Describe schedules for people: when their ticks are, in words, and which of them are to come. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class Planted(Timed, Protocol):
    """A schedule, and up to where it is planted."""

    @property
    def name(self) -> str: ...
    @property
    def planted_until(self) -> datetime: ...


def sentence_of(schedule: Timed) -> str:
    """Return when the ticks are, in words; or why the rule cannot be read here, so that one schedule does not hide the others."""
    try:
        return describe(schedule.rule, schedule.tz)
    except InvalidArgument as error:
        return f"cannot be read here: {error}"


def next_tick(schedule: Timed, after: datetime) -> datetime | None:
    """Return the next tick by the rule. None: it is paused, has ended, or its rule cannot be read here."""
    return next(iter(_ticks(schedule, after) or ()), None)


def to_come(
    schedule: Timed, *, now: datetime, planted_until: datetime, planted: Mapping[datetime, bool], count: int
) -> list[datetime]:
    """Return up to `count` ticks to come: those that have a task which has not started, and those that are not planted yet.

    `planted` are the ticks after now that have a task, each with whether that has not started. Return none if the schedule is
    paused, or its rule cannot be read here.
    """
    ticks = _ticks(schedule, max(now, planted_until))
    if ticks is None:
        return []
    unplanted = islice((tick for tick in ticks if tick not in planted), count)
    return sorted({*unplanted, *(tick for tick, comes in planted.items() if comes)})[:count]


def _ticks(schedule: Timed, after: datetime) -> Iterator[datetime] | None:
    """Return the ticks after a moment by the rule. None if the schedule is paused, or its rule cannot be read here."""
    if schedule.paused_at is not None:
        return None
    try:
        ticks = parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at).ticks(after)
    except InvalidArgument:
        return None
    ends_at = schedule.ends_at or LATEST
    return takewhile(lambda tick: tick < ends_at, ticks)
