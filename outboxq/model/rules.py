"""Schedule rules: the ticks of a cron expression or an interval in a time zone. The only I/O is reading time zone data.

cronsim reads an expression and steps through wall times. This module decides whether each wall time exists and whether
it occurs once or twice, because fixed and repeated times behave differently when clocks change:

* A rule with a fixed second, minute and hour has one tick for each of its wall times. A time that is skipped in spring
moves to the instant at which the clocks change. If a time occurs twice in autumn, the first occurrence is used.
* Every other cron rule has a tick whenever the clock shows a matching time: an hourly rule has 23 ticks on the day of
the change in spring, and 25 in autumn.
* `every` counts elapsed time, regardless of clock changes.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from hashlib import sha256
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from ..errors import InvalidArgument
from .options import LONGEST, MAX_NAME, MICROSECOND, is_text
from .records import EARLIEST, LATEST
from .schedules import HORIZON, CatchUp, Schedule
from .unknown_options import nearest

ALIASES: Final = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}
"""Names for common cron expressions."""


class Rule(ABC):
    """The ticks of one rule, beginning at its start. All datetimes are aware, and ticks are in UTC."""

    @abstractmethod
    def after(self, moment: datetime) -> datetime | None:
        """Return the next tick strictly after the given time; None if there are no more ticks."""

    @abstractmethod
    def count(self, after: datetime, before: datetime) -> int:
        """Return the number of ticks between two points in time, both excluded, without stepping
        through all of them.
        """

    def newest(self, after: datetime, before: datetime) -> datetime | None:
        """Return the last tick between two points in time, both excluded; None if there is none."""
        tick = self._between(after, before)
        newest, high = tick, before
        while tick is not None:
            newest = tick
            while high - newest > _SECOND:
                middle = newest + (high - newest) / 2
                later = self._between(middle, before)
                newest, high = (newest, middle) if later is None else (later, high)
            tick = self._between(newest, before)
        return newest

    def ticks(self, after: datetime) -> Iterator[datetime]:
        """Yield the ticks after the given time, earliest first."""
        tick = self.after(after)
        while tick is not None:
            yield tick
            tick = self.after(tick)

    def _between(self, after: datetime, before: datetime) -> datetime | None:
        tick = self.after(after)
        return tick if tick is not None and tick < before else None


def parse_rule(rule: str, tz: str, *, starts_at: datetime) -> Rule:
    """Parse a rule for a time zone. The rule's ticks begin at `starts_at`, from which the interval `every` is counted.

    Raises InvalidArgument if the rule is invalid or this machine has no such zone. Recently parsed rules are cached.
    """
    return _parsed(rule_of(rule, None), _checked_name(tz), starts_at)


def check_rule(rule: str, tz: str) -> None:
    """Raise InvalidArgument for anything that `parse_rule` refuses, and for a rule that never ticks, such as 31
    February.
    """
    if parse_rule(rule, tz, starts_at=EARLIEST).after(EARLIEST) is None:
        raise _without_moment(rule)


def rule_of(rule: str | None, every: timedelta | None) -> str:
    """Return a rule in its canonical form: a cron expression, or `every` and a number of seconds. Exactly one of the
    arguments must be given.
    """
    if (rule is None) == (every is None):
        raise InvalidArgument(
            'a schedule needs a rule: give either a cron expression, such as "30 2 * * *", or every=, but not both'
        )
    if every is not None:
        return f"{_EVERY} {_seconds(every)}"
    if isinstance(rule, int | float | timedelta):
        raise InvalidArgument(f"a rule must be a string, not {rule!r}; for an interval, write every={rule!r}")
    if not is_text(rule) or len(rule) > MAX_NAME:
        raise InvalidArgument(
            f"a rule must be a string of at most {MAX_NAME} characters, without NUL, not {rule!r:.100}"
        )
    words = rule.upper().split()
    if words[:1] == [_EVERY.upper()]:
        return f"{_EVERY} {_seconds_of(rule, words[1:])}"
    text = " ".join(words)
    if len(words) == 1 and words[0][:-1].isdigit() and (unit := _UNITS.get(words[0][-1])) is not None:
        raise InvalidArgument(
            f"{rule!r} is not a cron expression; for an interval, write every=timedelta({unit}={words[0][:-1]}), or on the command "
            f"line: every {words[0].lower()}"
        )
    return ALIASES.get(text, text)


_UNITS: Final = {"S": "seconds", "M": "minutes", "H": "hours", "D": "days"}


def describe(rule: str, tz: str) -> str:
    """Return a sentence that describes when a rule ticks."""
    check_rule(rule, tz)
    text = rule_of(rule, None)
    if text.startswith(f"{_EVERY} "):
        return f"Every {_in_words(int(text.split()[1]))}, counted from the schedule's start"
    return f"{CronSim(text, _MIDNIGHT).explain()} ({tz})"


def zone_of(tz: str) -> tzinfo:
    """Return the time zone with this IANA name. Raises InvalidArgument if this machine has no such zone."""
    if _checked_name(tz) == "UTC":
        return UTC  # UTC needs no zone data
    if tz.startswith(("posix/", "right/")) or tz in _OF_THE_MACHINE:
        raise InvalidArgument(f'{tz!r} is not the IANA name of a time zone; give a name such as "Europe/Berlin"')
    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        known = available_timezones()
        if not known:
            raise InvalidArgument(
                f"the time zone {tz!r} cannot be read: this machine has no time zone data; run: pip install tzdata"
            ) from None
        hint = nearest(tz, known) or '; give an IANA name such as "Europe/Berlin"'
        raise InvalidArgument(f"there is no time zone {tz!r}{hint}") from None


class _Interval(Rule):
    """`every`: the ticks are `starts_at` and all times that are later by a multiple of the interval."""

    def __init__(self, every: timedelta, starts_at: datetime) -> None:
        self._every = every
        self._starts_at = starts_at.astimezone(UTC)

    def after(self, moment: datetime) -> datetime | None:
        if moment < self._starts_at:
            return self._starts_at
        # Subtract from LATEST, because a sum beyond the year 9999 would raise an error.
        number = (moment - self._starts_at) // self._every
        last = self._starts_at + number * self._every
        return last + self._every if last <= LATEST - self._every else None

    def count(self, after: datetime, before: datetime) -> int:
        return max(0, self._number(before - MICROSECOND) - self._number(after))

    def _number(self, moment: datetime) -> int:
        """Return the number of ticks up to the given time."""
        return max(0, (moment - self._starts_at) // self._every + 1)


class _Cron(Rule):
    """A cron expression, read in a time zone."""

    def __init__(self, expression: str, zone: tzinfo, starts_at: datetime) -> None:
        self._hands = CronSim(expression, _MIDNIGHT)
        self._zone = zone
        self._earliest = starts_at.astimezone(UTC) - MICROSECOND
        self._is_fixed = not any(field.startswith("*") for field in ["0", *expression.split()][-6:-3])
        seconds, minutes, hours = (len(part) for part in (self._hands.seconds, self._hands.minutes, self._hands.hours))
        self._in_a = {
            timedelta(days=1): seconds * minutes * hours,
            timedelta(hours=1): seconds * minutes,
            timedelta(minutes=1): seconds,
        }
        """The number of ticks in a day, hour or minute that has ticks and no change of the clocks."""

    def after(self, moment: datetime) -> datetime | None:
        moment = max(moment.astimezone(UTC), self._earliest)
        tick = self._fixed_after(moment) if self._is_fixed else self._repeated_after(moment)
        return tick if tick is not None and tick <= LATEST else None

    def count(self, after: datetime, before: datetime) -> int:
        number, counted = 0, max(after.astimezone(UTC), self._earliest)
        while (tick := self._between(counted, before)) is not None:
            ticks, counted = self._at_once(tick, counted, before)
            number += ticks
        return number

    def _at_once(self, tick: datetime, counted: datetime, before: datetime) -> tuple[int, datetime]:
        """Return the number of ticks that can be counted together with this one, and the time up to which they are
        counted.
        """
        hands = self._wall(tick)
        for span, ticks in self._in_a.items():
            begin = tick - (hands - _MIDNIGHT) % span
            last = begin + span - _SECOND
            # A clock change just before the span matters too, because it may have moved a fixed time into the span.
            if counted < begin and last < before and self._offset(begin - _SECOND) == self._offset(last):
                return ticks, last
        return 1, tick

    def _fixed_after(self, moment: datetime) -> datetime | None:
        for wall in self._walls(self._wall(moment)):
            tick = wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
            if self._wall(tick) != wall:  # skipped in spring
                tick = self._change(wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC), tick)
            if tick > moment:
                return tick
        return None

    def _repeated_after(self, moment: datetime) -> datetime | None:
        wall, soon = self._wall(moment), moment + timedelta(days=1)
        offset = self._offset(moment)
        if self._offset(soon) != offset:
            # The clock changes soon and may show the same times again, so look before and after the change separately.
            change = self._change(moment, soon)
            first = next(self._walls(wall), None)
            if first is not None and (tick := first.replace(tzinfo=UTC) - offset) < change:
                return tick
            moment = change - _SECOND
            wall = self._wall(change) - _SECOND
        for hands in self._walls(wall):
            for which in (0, 1):
                tick = hands.replace(tzinfo=self._zone, fold=which).astimezone(UTC)
                if tick > moment and self._wall(tick) == hands:
                    return tick
        return None

    def _walls(self, after: datetime) -> Iterator[datetime]:
        """Yield the wall times after a given one, as naive datetimes. The iterator ends if there is no further wall
        time within fifty years.
        """
        hands = copy.copy(self._hands)
        hands.dt = after.replace(microsecond=0, fold=0)
        return hands

    def _wall(self, moment: datetime) -> datetime:
        return moment.astimezone(self._zone).replace(tzinfo=None, fold=0)

    def _offset(self, moment: datetime) -> timedelta:
        offset = moment.astimezone(self._zone).utcoffset()
        assert offset is not None, "a zone has an offset at every moment"
        return offset

    def _change(self, before: datetime, after: datetime) -> datetime:
        """Return the time between `before` and `after`, to the second, at which the clock changes to the offset that it
        has at `after`.
        """
        before, offset = before.replace(microsecond=0), self._offset(after)
        while after - before > _SECOND:
            middle = before + timedelta(seconds=(after - before) // _SECOND // 2)
            before, after = (before, middle) if self._offset(middle) == offset else (middle, after)
        return after


_EVERY = "every"
_SECOND = timedelta(seconds=1)
_MIDNIGHT = datetime(2000, 1, 1)  # noqa: DTZ001 - cronsim only gets wall times
_OF_THE_MACHINE = {"localtime", "posixrules", "Factory"}
"""The files in the time zone directory that are settings of the machine, not IANA time zones."""
_FIELDS = "minute, hour, day of the month, month and day of the week; an optional first field gives the seconds"


@lru_cache(maxsize=1024)
def _parsed(text: str, tz: str, starts_at: datetime) -> Rule:
    zone = zone_of(tz)
    if text.startswith(f"{_EVERY} "):
        return _Interval(timedelta(seconds=int(text.split()[1])), starts_at)
    try:
        return _Cron(text, zone, starts_at)
    except CronSimError as error:
        raise _refused(text, str(error)) from None


def _refused(text: str, fault: str) -> InvalidArgument:
    fields = text.split()
    if text.startswith("@"):
        return InvalidArgument(f"there is no rule {text.lower()!r}; the known rules are {', '.join(ALIASES).lower()}")
    if len(fields) not in (5, 6):
        return InvalidArgument(f"{text!r} is not a cron expression: it has {len(fields)} fields, not five: {_FIELDS}")
    try:
        CronSim(" ".join([*fields[:-2], "*", fields[-1]]), _MIDNIGHT)
    except CronSimError:
        return InvalidArgument(
            f"{text!r} is not a cron expression: {fault.removeprefix('Bad ')} is wrong; its fields are {_FIELDS}"
        )
    if fault == "Bad day-of-month":
        return _without_moment(text)
    return InvalidArgument(f"{text!r} is not a cron expression: the month is wrong")


def _without_moment(rule: str) -> InvalidArgument:
    return InvalidArgument(f"the rule {rule!r} never ticks: none of its months has the day that it names")


def _checked_name(tz: str) -> str:
    if not is_text(tz) or not 1 <= len(tz) <= MAX_NAME:
        raise InvalidArgument(f'tz must be the IANA name of a time zone, such as "Europe/Berlin", not {tz!r:.100}')
    return tz


def _seconds(every: object) -> int:
    if not isinstance(every, timedelta) or every % _SECOND or not _SECOND <= every <= LONGEST:
        raise InvalidArgument(
            f"every must be a timedelta of whole seconds, at least 1 s and at most a hundred years, not {every!r:.100}"
        )
    return every // _SECOND


def _seconds_of(rule: str, words: list[str]) -> int:
    if len(words) != 1 or not (words[0].isascii() and words[0].isdigit()):
        raise InvalidArgument(f'{rule!r} is not a rule: write a whole number of seconds after "{_EVERY}"')
    seconds = int(words[0])
    return _seconds(timedelta(seconds=min(seconds, LONGEST // _SECOND + 1)))


def _in_words(seconds: int) -> str:
    units = {"day": 86_400, "hour": 3600, "minute": 60, "second": 1}
    unit, length = next((unit, length) for unit, length in units.items() if seconds % length == 0)
    return unit if seconds == length else f"{seconds // length} {unit}s"


REST: Final = timedelta(days=1)
"""The longest time between two plans for a schedule that has no ticks. A change in the time zone data is noticed within
this time.
"""
FARTHEST: Final = REST + HORIZON
"""The longest possible time from the planting of a tick, by a worker with a correct clock, until the tick is due."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A schedule's next ticks, and the missed ticks that its catch-up policy skips."""

    ticks: tuple[datetime, ...]
    """The ticks that become tasks, in UTC, earliest first. They include the missed ticks that still run."""
    skipped: int
    first_skipped: datetime | None
    last_skipped: datetime | None
    begins_anew: bool
    """True if ticks were missed. The clock may have jumped past them, so it is no longer known whether earlier ticks
    were planted.
    """
    planted_until: datetime
    """All ticks up to this time are in this plan or in an earlier one. This time is never earlier than the schedule's
    own `planted_until`.
    """


def stands_ahead(schedule: Schedule, now: datetime) -> bool:
    """Return whether a schedule has been planted further ahead than the current clock allows.

    No tick from `updated_at` to `planted_until` was left out. If both times are in the future, the clock was running
    fast, and the ticks from now to `updated_at` were skipped although they are still to come. If only `planted_until`
    is in the future, the clock was set back, and the ticks up to that time already have their tasks. The exception is a
    `planted_until` more than a day ahead, which a worker with a correct clock cannot have set.
    """
    near, far = now + HORIZON, now + FARTHEST
    return schedule.planted_until > near and (schedule.updated_at > near or schedule.planted_until > far)


def plan(schedule: Schedule, *, now: datetime, horizon: timedelta, limit: int) -> Plan:
    """Return the plan for the ticks between the schedule's `planted_until` and the time that is `horizon` from now.

    A tick before now was missed, and the catch-up policy decides whether it still runs. A plan contains at most `limit`
    ticks that have not been missed (`limit` is at least 1); the next plan contains the rest. All missed ticks are in
    one plan, limited by `catch_up_limit`.
    """
    rule = parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at)
    done, until = schedule.planted_until, now + horizon
    if schedule.ends_at is not None:
        until = min(until, schedule.ends_at - MICROSECOND)
    missed = _missed(schedule, rule, now=now, before=min(now, until + MICROSECOND))
    ticks: list[datetime] = []
    following = rule.after(max(done, now - MICROSECOND))
    while following is not None and following <= until and len(ticks) < limit:
        ticks.append(following)
        following = rule.after(following)
    if following is not None and following <= until:
        planted_until = ticks[-1]
    elif following is None or (schedule.ends_at is not None and following >= schedule.ends_at):
        planted_until = now + REST
    else:
        # Stop just before the next tick, so that a schedule with rare ticks is not examined in every round.
        planted_until = min(following - MICROSECOND, now + REST)
    return Plan(
        ticks=(*missed.caught_up, *ticks),
        skipped=missed.skipped,
        first_skipped=missed.first_skipped,
        last_skipped=missed.last_skipped,
        begins_anew=bool(missed.caught_up or missed.skipped),
        planted_until=max(done, planted_until),
    )


def jitter_of(schedule: Schedule, tick: datetime) -> timedelta:
    """Return the delay from a tick until its task is due. The delay is the same on every worker, because it is derived
    from the schedule's name and the tick.
    """
    if schedule.jitter is None:
        return timedelta(0)
    digest = sha256(f"{schedule.name}\0{tick.timestamp()}".encode()).digest()
    return MICROSECOND * (schedule.jitter // MICROSECOND * int.from_bytes(digest[:8]) >> 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Missed:
    caught_up: tuple[datetime, ...] = ()
    skipped: int = 0
    first_skipped: datetime | None = None
    last_skipped: datetime | None = None


def _missed(schedule: Schedule, rule: Rule, *, now: datetime, before: datetime) -> _Missed:
    """Divide the ticks that were not planted in time into ticks that will still run and ticks that are skipped."""
    done = schedule.planted_until
    number = rule.count(done, before)
    caught_up = _caught_up(schedule, rule, now=now, before=before) if number else ()
    skipped = number - len(caught_up)
    if skipped == 0:
        return _Missed(caught_up=caught_up)
    first, last = rule.after(done), rule.newest(done, before)
    if caught_up and first == caught_up[0]:
        first = rule.after(caught_up[-1])
    if caught_up and last == caught_up[-1]:
        last = rule.newest(done, caught_up[0])
    return _Missed(caught_up=caught_up, skipped=skipped, first_skipped=first, last_skipped=last)


def _caught_up(schedule: Schedule, rule: Rule, *, now: datetime, before: datetime) -> tuple[datetime, ...]:
    """Return the missed ticks that the policy still runs, except those whose grace has already ended."""
    done = schedule.planted_until
    if schedule.grace is not None:
        done = max(done, now - schedule.grace)
    match schedule.catch_up:
        case CatchUp.NONE:
            return ()
        case CatchUp.LATEST:
            newest = rule.newest(done, before) if done < before else None
            return () if newest is None else (newest,)
        case CatchUp.ALL:
            return tuple(takewhile(lambda tick: tick < before, islice(rule.ticks(done), schedule.catch_up_limit)))


def sentence_of(schedule: Schedule) -> str:
    """Return the rule in words, or the reason why this process cannot read it, so that one bad schedule does not hide
    the others.
    """
    try:
        return describe(schedule.rule, schedule.tz)
    except InvalidArgument as error:
        return f"cannot be read by this process: {error}"


def next_tick(schedule: Schedule, after: datetime) -> datetime | None:
    """Return the next tick; None if the schedule is paused or has ended, or if this process cannot read its rule."""
    return next(iter(_ticks(schedule, after) or ()), None)


def to_come(
    schedule: Schedule, *, now: datetime, planted_until: datetime, planted: Mapping[datetime, bool], count: int
) -> list[datetime]:
    """Return up to `count` future ticks: planted ticks whose tasks have not started, and ticks that have not been
    planted yet.

    `planted` maps each tick after `now` that has a task to True if that task has not started, otherwise to False. The
    list is empty if the schedule is paused or this process cannot read its rule.
    """
    ticks = _ticks(schedule, max(now, planted_until))
    if ticks is None:
        return []
    unplanted = islice((tick for tick in ticks if tick not in planted), count)
    return sorted({*unplanted, *(tick for tick, comes in planted.items() if comes)})[:count]


def _ticks(schedule: Schedule, after: datetime) -> Iterator[datetime] | None:
    """Return the rule's ticks after the given time; None if the schedule is paused, or if this process cannot read
    its rule.
    """
    if schedule.paused_at is not None:
        return None
    try:
        ticks = parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at).ticks(after)
    except InvalidArgument:
        return None
    ends_at = schedule.ends_at or LATEST
    return takewhile(lambda tick: tick < ends_at, ticks)
