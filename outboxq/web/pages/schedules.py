"""The pages about schedules: all schedules, and a single schedule with its ticks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from werkzeug.exceptions import Forbidden, NotFound

from ...errors import InvalidArgument, ScheduleNotFound
from ...model.display import redacted
from ...model.rules import next_tick, parse_rule, sentence_of, stands_ahead, zone_of
from ...model.schedules import CatchUp, Schedule, digest_of
from ...model.wording import plain_text, sentence
from ...operating.fields import checked
from ...operating.verb import Noun, State
from ...operating.verbs import EDIT
from ..charts import tick_bars
from ..request import PageRequest, Redirect, View
from .actions import may, offered, operator_of, reason_of

_NEXT, _LAST = 5, 20
"""The numbers of upcoming and past ticks on a page."""
_SPARKS = 100
"""The number of listed schedules whose last ticks are drawn."""
_OVERDUE = timedelta(minutes=1)
"""The time after which a tick that has not been planted is overdue."""


class ScheduleState(StrEnum):
    """The state of a schedule. The page lists the schedules in the order of these members."""

    OVERDUE = "overdue"
    """A tick has passed without being planted by a worker."""
    AHEAD = "ahead"
    """The schedule was planted while a clock was running fast. Workers will plant it again according to the current clock."""
    UNREADABLE = "unreadable"
    """The dashboard cannot read the rule, perhaps because a later release wrote it."""
    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"
    """The schedule has no more ticks."""


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
    """Show all schedules: first those with problems, then the others by their next ticks."""
    now, schedules = request.store.now(), request.store.schedules.list()
    following = request.store.schedules.upcoming(schedules, now=now)
    found = sorted((_upcoming(one, now, following[one.name]) for one in schedules), key=_order)
    runs = request.store.schedules.runs([one.schedule.name for one in found[:_SPARKS]], _LAST)
    values = {"now": now, "schedules": found, "sparks": {name: tick_bars(ticks) for name, ticks in runs.items()}}
    return View(template="pages/schedules.html", title="Schedules", values=values, data=found)


def one_page(request: PageRequest) -> View:
    """Show a schedule with its next ticks and the outcomes of its last ticks. Raises NotFound."""
    return _page(request, _found(request))


def edit(request: PageRequest) -> View | Redirect:
    """Change a schedule. If a value is refused, or the schedule has been changed since its form was shown, the page
    shows why, with the values that the person entered. Raises NotFound and Forbidden.
    """
    form, schedule = request.form, _found(request)
    try:
        queue = form.get("queue", "").strip() or schedule.queue
        if not (may(request, EDIT, schedule.name) and request.viewer.may(EDIT.recorded_as, queue)):
            raise Forbidden(f"You are not allowed to use {EDIT.recorded_as!r} here: {schedule.name!r} was not changed.")
        if form.get("seen", digest_of(schedule)) != digest_of(schedule):
            raise InvalidArgument(
                "the schedule has been changed since you opened this form; compare your input with the current values"
            )
        values = EDIT.of_form(form)
        if values["args"] is not ... and _is_same(values["args"], schedule.args):
            values["args"] = ...
        if values["args"] is not ...:
            values["args"] = checked(request.outbox, schedule.task_name, values["args"])
        values["reason"] = reason_of(request)
        outcome = EDIT.do(request.store, schedule.name, operator=operator_of(request), **values)
    except InvalidArgument as error:
        return _page(request, schedule, typed=form, problem=f"Nothing was changed: {error}.")
    notice = f"{sentence(outcome.sentence)}." if outcome.changes else f"Nothing was changed: {outcome.sentence}."
    return Redirect(url=request.url("schedule", name=schedule.name), notice=notice, is_warning=not outcome.changes)


def _found(request: PageRequest) -> Schedule:
    try:
        return request.store.schedules.get(request.query.get("name", ""))
    except ScheduleNotFound as error:
        raise NotFound(f"{error}.") from None


def _is_same(arguments: str, stored: str) -> bool:
    """Return whether both texts contain the same JSON; the form may have indented one of them."""
    try:
        # The values themselves are not compared, because in Python 1 equals True and 1.0.
        one, other = (json.dumps(json.loads(text), sort_keys=True) for text in (arguments, stored))
    except ValueError:
        return False
    return one == other


def _page(
    request: PageRequest, schedule: Schedule, *, typed: Mapping[str, str] | None = None, problem: str = ""
) -> View:
    name = schedule.name
    now, runs = request.store.now(), request.store.schedules.runs([name], _LAST)[name]
    ticks = runs[::-1]
    following = request.store.schedules.upcoming([schedule], _NEXT, now=now)[name]
    found = _upcoming(schedule, now, following)
    state = State(is_paused=schedule.paused_at is not None, is_declared=schedule.declared_by is not None)
    values = {
        "now": now,
        "found": found,
        "schedule": schedule,
        "acts": offered(request, Noun.SCHEDULE, name, state),
        "edit": _values(request, schedule) | {name: value for name, value in (typed or {}).items() if name != "seen"},
        "problem": problem,
        "policies": list(CatchUp),
        "following": [(one, _local(one, schedule.tz)) for one in following],
        "ticks": [(one, _local(one.tick, schedule.tz)) for one in ticks],
        "spark": tick_bars(runs),
        "start": request.typed("worker", "-q", schedule.queue),
        "commands": [request.typed("schedule", verb, name) for verb in ("pause", "resume", "trigger")],
    }
    data = {"schedule": found, "next_ticks": following, "ticks": ticks}
    status = 400 if problem else 200
    return View(template="pages/schedule.html", title=schedule.name, values=values, data=data, status=status)


def _values(request: PageRequest, schedule: Schedule) -> dict[str, str]:
    """Return the values in the inputs of the form. The arguments are left out if the viewer may not see all of them,
    because the placeholder for a hidden value must not be stored.
    """
    shown = redacted(schedule.args) if request.viewer.may_see_arguments else ""
    is_whole = bool(shown) and shown == redacted(schedule.args, None) == request.redact(shown)
    values = {
        "rule": schedule.rule,
        "tz": schedule.tz,
        "args": shown if is_whole else "",
        "queue": schedule.queue,
    }
    return {
        # A page escapes invisible characters, and a form strips outer spaces. The input for a value that would change
        # is empty, which keeps the value.
        **{name: value if value == plain_text(value).strip() else "" for name, value in values.items()},
        "catch_up": schedule.catch_up.value,
        "grace": "" if schedule.grace is None else f"{schedule.grace.total_seconds():f}".rstrip("0").rstrip(".") + "s",
        "reason": "",
        "seen": digest_of(schedule),
    }


def _upcoming(schedule: Schedule, now: datetime, following: Sequence[datetime]) -> Upcoming:
    """Return the state and the next tick of a schedule."""
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
