"""Plans of schedules: which ticks become tasks now, and which of those that were missed are skipped. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import islice, takewhile
from typing import Final

from .options import MICROSECOND
from .rules import Rule, parse_rule
from .schedules import HORIZON, CatchUp, Schedule

REST: Final = timedelta(days=1)
"""The longest time for which a schedule without ticks is left alone: so long a change of the zones' data may go unnoticed."""
FARTHEST: Final = REST + HORIZON
"""No clock that is right plants further ahead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The next ticks of a schedule, and the missed ones that its catch-up policy skips."""

    ticks: tuple[datetime, ...]
    """The ticks that become tasks, the earliest first, in UTC. Missed ones that are caught up are among them."""
    skipped: int
    first_skipped: datetime | None
    last_skipped: datetime | None
    begins_anew: bool
    """True if ticks were missed: the clock may have jumped over them, so nothing is known of the time before now any more."""
    planted_until: datetime
    """All ticks up to here are in this plan or in an earlier one. Never before the schedule's own."""


def stands_ahead(schedule: Schedule, now: datetime) -> bool:
    """Return whether a schedule is planted further than the present clock can have planted it.

    Since `updated_at`, no tick up to `planted_until` was left out. If both lie ahead, the clock was ahead: it skipped the ticks
    from now to `updated_at`, and they are to come. If only `planted_until` does, the clock was set back, and the ticks up to there
    have had their tasks; unless that is more than a day ahead, which no clock has planted.
    """
    near, far = now + HORIZON, now + FARTHEST
    return schedule.planted_until > near and (schedule.updated_at > near or schedule.planted_until > far)


def plan(schedule: Schedule, *, now: datetime, horizon: timedelta, limit: int) -> Plan:
    """Return what to do with the ticks between the schedule's `planted_until` and `horizon` from now.

    A tick before now was missed, and the catch-up policy decides. At most `limit` of the ticks from now on, at least 1, are in one
    plan, and a further plan has the rest. `catch_up_limit` is the limit of those missed: they are all in one plan.
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
        # To just before the next tick, so that a schedule whose ticks are rare is not looked at again and again.
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
    """Return by how much later than its tick a task is due. The same on every worker: it follows from the name and the tick."""
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
    """Divide the ticks that were not planted before their time into those that still run and those that are skipped."""
    done = schedule.planted_until
    number = rule.count(done, before)
    if number == 0:
        return _Missed()
    caught_up = _caught_up(schedule, rule, now=now, before=before)
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
    """Return the missed ticks that the policy lets run. None of them is past its grace already."""
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
