"""The pages of schedules: all of them, and one with its ticks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from werkzeug.exceptions import NotFound

from ...errors import InvalidArgument, ScheduleNotFound
from ...model.rules import next_tick, parse_rule, sentence_of, stands_ahead, zone_of
from ...model.schedules import Schedule
from ...operating.verbs import Noun, State
from ..request import PageRequest, View
from .actions import offered

_NEXT, _LAST = 5, 20
"""Numbers of ticks on a page: those to come, and the last ones."""
_OVERDUE = timedelta(minutes=1)
"""The time after which a tick that is not planted is overdue."""


class ScheduleState(StrEnum):
    """The state of a schedule."""

    ACTIVE = "active"
    PAUSED = "paused"
    OVERDUE = "overdue"
    """A tick is past that no worker has planted."""
    AHEAD = "ahead"
    """A clock that was ahead has planted it. Workers plant it by the present clock."""
    ENDED = "ended"
    """It has no further tick."""
    UNREADABLE = "unreadable"
    """Its rule cannot be read here, such as that of a later release."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Upcoming:
    """A schedule as a list shows it."""

    schedule: Schedule
    state: ScheduleState
    sentence: str
    """The rule in words."""
    next_tick: datetime | None
    overdue_since: datetime | None = None
    """The first tick that should have been planted and was not; None: there is none."""


def page(request: PageRequest) -> View:
    """Show all schedules, those in trouble first, then by their next ticks."""
    now = request.store.now()
    schedules = request.store.schedules.list()
    following = request.store.schedules.upcoming(schedules, now=now)
    found = sorted((upcoming(one, now, following[one.name]) for one in schedules), key=_order)
    return View(template="schedules.html", title="Schedules", values={"now": now, "schedules": found}, data=found)


def one_page(request: PageRequest) -> View:
    """Show one schedule with its next ticks, and what became of the last ones. Raises NotFound."""
    name = request.query.get("name", "")
    try:
        schedule = request.store.schedules.get(name)
    except ScheduleNotFound as error:
        raise NotFound(f"{error}.") from None
    now, ticks = request.store.now(), request.store.schedules.ticks(name, _LAST)
    to_come = request.store.schedules.upcoming([schedule], _NEXT, now=now)[name]
    found = upcoming(schedule, now, to_come)
    following = [(one, _local(one, schedule.tz)) for one in to_come]
    return View(
        template="schedule.html",
        title=schedule.name,
        values={
            "now": now,
            "found": found,
            "schedule": schedule,
            "acts": offered(request, Noun.SCHEDULE, name, State(is_paused=schedule.paused_at is not None)),
            "following": following,
            "ticks": [(one, _local(one.tick, schedule.tz)) for one in ticks],
            "start": request.typed("worker", "-q", schedule.queue),
            "commands": [request.typed("schedule", verb, name) for verb in ("pause", "resume", "trigger")],
        },
        data={"schedule": found, "next_ticks": [one for one, _ in following], "ticks": ticks},
    )


def upcoming(schedule: Schedule, now: datetime, following: Sequence[datetime]) -> Upcoming:
    """Return the state of a schedule and the first of its ticks to come."""
    sentence, overdue, tick = sentence_of(schedule), None, next(iter(following), None)
    if schedule.paused_at is not None:
        return Upcoming(schedule=schedule, state=ScheduleState.PAUSED, sentence=sentence, next_tick=None)
    try:
        parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at)
    except InvalidArgument:
        return Upcoming(schedule=schedule, state=ScheduleState.UNREADABLE, sentence=sentence, next_tick=tick)
    missed = next_tick(schedule, schedule.planted_until)
    if missed is not None and missed < now - _OVERDUE:
        overdue = missed
    if overdue:
        state = ScheduleState.OVERDUE
    elif stands_ahead(schedule, now):
        state = ScheduleState.AHEAD
    else:
        state = ScheduleState.ENDED if tick is None else ScheduleState.ACTIVE
    return Upcoming(schedule=schedule, state=state, sentence=sentence, next_tick=tick, overdue_since=overdue)


_TROUBLE_FIRST = (
    ScheduleState.OVERDUE,
    ScheduleState.AHEAD,
    ScheduleState.UNREADABLE,
    ScheduleState.ACTIVE,
    ScheduleState.PAUSED,
    ScheduleState.ENDED,
)


def _order(one: Upcoming) -> tuple[int, float, str]:
    rank = {one: place for place, one in enumerate(_TROUBLE_FIRST)}
    return rank[one.state], one.next_tick.timestamp() if one.next_tick else 0.0, one.schedule.name


def _local(moment: datetime, tz: str) -> str:
    """Return the moment as the clocks of the schedule's zone show it."""
    try:
        return f"{moment.astimezone(zone_of(tz)):%a %Y-%m-%d %H:%M:%S %Z}"
    except InvalidArgument:
        return ""
