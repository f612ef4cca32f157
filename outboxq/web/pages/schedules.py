"""The pages of schedules: all of them, and one with its ticks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from werkzeug.exceptions import NotFound

from ...errors import InvalidArgument, ScheduleNotFound
from ...model.rules import parse_rule, zone_of
from ...model.schedules import Schedule
from ...model.upcoming import next_tick, next_ticks, sentence_of
from ..request import PageRequest, View

_NEXT, _LAST = 5, 20
"""Numbers of ticks on a page: those to come, and the last ones."""
_OVERDUE = timedelta(minutes=1)
"""The time after which a tick that is not planted is overdue."""


class State(StrEnum):
    """The state of a schedule."""

    ACTIVE = "active"
    PAUSED = "paused"
    OVERDUE = "overdue"
    """A tick is past that no worker has planted."""
    ENDED = "ended"
    """It has no further tick."""
    UNREADABLE = "unreadable"
    """Its rule cannot be read here, such as that of a later release."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Upcoming:
    """A schedule as a list shows it."""

    schedule: Schedule
    state: State
    sentence: str
    """The rule in words."""
    next_tick: datetime | None
    overdue_since: datetime | None = None
    """The first tick that should have been planted and was not; None: there is none."""


def page(request: PageRequest) -> View:
    """Show all schedules, those in trouble first, then by their next ticks."""
    now = request.store.now()
    found = sorted((upcoming(one, now) for one in request.store.schedules.list()), key=_order)
    return View(
        template="schedules.html",
        title="Schedules",
        values={"now": now, "schedules": found},
        data=found,
    )


def one_page(request: PageRequest) -> View:
    """Show one schedule with its next ticks, and what became of the last ones. Raises NotFound."""
    name = request.query.get("name", "")
    try:
        schedule = request.store.schedules.get(name)
    except ScheduleNotFound as error:
        raise NotFound(f"{error}.") from None
    now, ticks = request.store.now(), request.store.schedules.ticks(name, _LAST)
    found = upcoming(schedule, now)
    following = [(one, _local(one, schedule.tz)) for one in next_ticks(schedule, now, _NEXT)]
    return View(
        template="schedule.html",
        title=schedule.name,
        values={
            "now": now,
            "found": found,
            "schedule": schedule,
            "following": following,
            "ticks": [(one, _local(one.tick, schedule.tz)) for one in ticks],
            "start": request.outbox.integration.front_end.typed(("worker", "-q", schedule.queue)),
            "commands": [
                request.outbox.integration.front_end.typed(("schedule", verb, name))
                for verb in ("pause", "resume", "trigger")
            ],
        },
        data={"schedule": found, "next_ticks": [one for one, _ in following], "ticks": ticks},
    )


def upcoming(schedule: Schedule, now: datetime) -> Upcoming:
    """Return the state of a schedule and its next tick."""
    sentence, overdue = sentence_of(schedule), None
    if schedule.paused_at is not None:
        return Upcoming(schedule=schedule, state=State.PAUSED, sentence=sentence, next_tick=None)
    try:
        parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at)
    except InvalidArgument:
        return Upcoming(schedule=schedule, state=State.UNREADABLE, sentence=sentence, next_tick=None)
    missed = next_tick(schedule, schedule.planted_until)
    if missed is not None and missed < now - _OVERDUE:
        overdue = missed
    following = next_tick(schedule, now)
    state = State.OVERDUE if overdue else State.ENDED if following is None else State.ACTIVE
    return Upcoming(schedule=schedule, state=state, sentence=sentence, next_tick=following, overdue_since=overdue)


def _order(one: Upcoming) -> tuple[int, float, str]:
    rank = {State.OVERDUE: 0, State.UNREADABLE: 1, State.ACTIVE: 2, State.PAUSED: 3, State.ENDED: 4}
    return rank[one.state], one.next_tick.timestamp() if one.next_tick else 0.0, one.schedule.name


def _local(moment: datetime, tz: str) -> str:
    """Return the moment as the clocks of the schedule's zone show it."""
    try:
        return f"{moment.astimezone(zone_of(tz)):%a %Y-%m-%d %H:%M:%S %Z}"
    except InvalidArgument:
        return ""
