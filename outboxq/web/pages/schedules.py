"""The pages about schedules: all schedules, and a single schedule with its ticks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from werkzeug.exceptions import NotFound

from ...errors import InvalidArgument, ScheduleNotFound
from ...model.rules import next_tick, parse_rule, sentence_of, stands_ahead, zone_of
from ...model.schedules import Schedule
from ...operating.verb import Noun, State
from ..charts import tick_bars
from ..request import PageRequest, View
from .actions import offered

_NEXT, _LAST = 5, 20
"""The numbers of next ticks and last ticks on a page."""
_SPARKS = 100
"""The number of schedules in the list whose last ticks are drawn."""
_OVERDUE = timedelta(minutes=1)
"""The time after which a tick that has not been planted is overdue."""


class ScheduleState(StrEnum):
    """The state of a schedule. The list is sorted in this order."""

    OVERDUE = "overdue"
    """A tick has passed without being planted by a worker."""
    AHEAD = "ahead"
    """It was planted by a clock that was running fast. Workers will plant it again by the current clock."""
    UNREADABLE = "unreadable"
    """Its rule cannot be read here, perhaps because a later release wrote it."""
    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"
    """It has no more ticks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Upcoming:
    """A schedule as a list shows it."""

    schedule: Schedule
    state: ScheduleState
    sentence: str
    """The rule in words."""
    next_tick: datetime | None
    overdue_since: datetime | None
    """The first tick that should have been planted but was not; None if no tick is overdue."""


def page(request: PageRequest) -> View:
    """Show all schedules: first those with problems, then the others in the order of their next ticks."""
    now, schedules = request.store.now(), request.store.schedules.list()
    following = request.store.schedules.upcoming(schedules, now=now)
    found = sorted((_upcoming(one, now, following[one.name]) for one in schedules), key=_order)
    runs = request.store.schedules.runs([one.schedule.name for one in found[:_SPARKS]], _LAST)
    values = {"now": now, "schedules": found, "sparks": {name: tick_bars(ticks) for name, ticks in runs.items()}}
    return View(template="schedules.html", title="Schedules", values=values, data=found)


def one_page(request: PageRequest) -> View:
    """Show a schedule with its next ticks and the outcomes of its last ticks. Raises NotFound."""
    name = request.query.get("name", "")
    try:
        schedule = request.store.schedules.get(name)
    except ScheduleNotFound as error:
        raise NotFound(f"{error}.") from None
    now, runs = request.store.now(), request.store.schedules.runs([name], _LAST)[name]
    ticks = runs[::-1]
    following = request.store.schedules.upcoming([schedule], _NEXT, now=now)[name]
    found = _upcoming(schedule, now, following)
    values = {
        "now": now,
        "found": found,
        "schedule": schedule,
        "acts": offered(request, Noun.SCHEDULE, name, State(is_paused=schedule.paused_at is not None)),
        "following": [(one, _local(one, schedule.tz)) for one in following],
        "ticks": [(one, _local(one.tick, schedule.tz)) for one in ticks],
        "spark": tick_bars(runs),
        "start": request.typed("worker", "-q", schedule.queue),
        "commands": [request.typed("schedule", verb, name) for verb in ("pause", "resume", "trigger")],
    }
    data = {"schedule": found, "next_ticks": following, "ticks": ticks}
    return View(template="schedule.html", title=schedule.name, values=values, data=data)


def _upcoming(schedule: Schedule, now: datetime, following: Sequence[datetime]) -> Upcoming:
    """Return the state of a schedule and its next tick."""
    tick, overdue = next(iter(following), None), None
    if schedule.paused_at is not None:
        state, tick = ScheduleState.PAUSED, None
    elif not _is_readable(schedule):
        state = ScheduleState.UNREADABLE
    else:
        missed = next_tick(schedule, schedule.planted_until)
        if missed is not None and missed < now - _OVERDUE:
            state, overdue = ScheduleState.OVERDUE, missed
        elif stands_ahead(schedule, now):
            state = ScheduleState.AHEAD
        else:
            state = ScheduleState.ENDED if tick is None else ScheduleState.ACTIVE
    sentence = sentence_of(schedule)
    return Upcoming(schedule=schedule, state=state, sentence=sentence, next_tick=tick, overdue_since=overdue)


def _is_readable(schedule: Schedule) -> bool:
    try:
        parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at)
    except InvalidArgument:
        return False
    return True


def _order(one: Upcoming) -> tuple[int, float, str]:
    tick = one.next_tick.timestamp() if one.next_tick else 0.0
    return list(ScheduleState).index(one.state), tick, one.schedule.name


def _local(moment: datetime, tz: str) -> str:
    """Return the time in the schedule's time zone, or "" if the zone is unknown."""
    try:
        return f"{moment.astimezone(zone_of(tz)):%a %Y-%m-%d %H:%M:%S %Z}"
    except InvalidArgument:
        return ""
