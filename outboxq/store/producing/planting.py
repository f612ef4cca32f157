"""Plant the ticks of locked schedules as tasks, and cancel planted tasks, in the caller's transaction."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ...database.column_types import iso
from ...database.dialects import Row
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import EARLIEST, NewTask
from ...model.options import MICROSECOND, in_column, stored_options
from ...model.rules import Plan, jitter_of, parse_rule, plan
from ...model.schedules import (
    HORIZON,
    RULE_HEADER,
    SCHEDULE_HEADER,
    TICK_HEADER,
    TRIGGER_HEADER,
    ZONE_HEADER,
    CatchUp,
    NewSchedule,
    Overlap,
    Schedule,
)
from ...model.uuid7 import uuid7
from ..failure_log import FailureLog
from ..task_rows import event_data, row
from ..tasks.operations import freed
from ..transactions import Transactions
from . import enqueue, schedules_sql
from .enqueue import check

log = logging.getLogger("outboxq.store")

PAGE = 50
"""Maximum number of schedules that one transaction plants."""
MOST_TICKS = 500
"""Maximum number of ticks that one transaction plants for one schedule, in addition to missed ticks that it catches up
on.
"""
MOST_BACKFILLED = 10_000
"""Maximum number of ticks in one backfill."""
KEY_PREFIX = "schedule:"
"""Prefix of the partition key of ticks that must not overlap; the name of the schedule follows it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planting:
    """A locked schedule and the plan for its next ticks."""

    schedule: Schedule
    plan: Plan
    tasks: dict[datetime, NewTask]
    """The task for each tick."""
    restarted_at: datetime | None
    """The time since which no tick has been left out, if earlier ticks were missed; None if that time does not change.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class PlantedPage:
    """Result of one planting transaction."""

    tasks: int
    """Number of written tasks."""
    last: str | None
    """Name of the last schedule; None after the last page."""
    is_cut: bool
    """True if a schedule has more ticks than one transaction plants."""


def prepare(schedule: Schedule, now: datetime, horizon: timedelta = HORIZON) -> Planting:
    """Return the ticks and tasks to plant. Raises InvalidArgument for a row that this release cannot plant."""
    found = plan(schedule, now=now, horizon=horizon, limit=MOST_TICKS)
    tasks = {tick: task_of(schedule, tick, now) for tick in found.ticks}
    return Planting(schedule=schedule, plan=found, tasks=tasks, restarted_at=now if found.begins_anew else None)


def restarted(schedule: Schedule, now: datetime) -> Schedule:
    """Return a copy, restarted from now, of a schedule that was planted while the clock was running fast."""
    is_stored_ahead = schedule.created_at > now
    # If no start was given, the start is the time at which the schedule was stored. A given start is a whole second.
    begins = schedule.starts_at == schedule.created_at and schedule.starts_at.microsecond
    return replace(
        schedule,
        starts_at=now if is_stored_ahead and begins else schedule.starts_at,
        created_at=now if is_stored_ahead else schedule.created_at,
        planted_until=min(schedule.planted_until, now),
        updated_at=now,
    )


def restart(store: Transactions, target: Target, schedule: Schedule, now: datetime) -> Schedule:
    """Restart, from now, a locked schedule that was planted while the clock was running fast, and return it.

    The schedule's future planted ticks are cancelled, because they will be planted again, and because the next ticks
    with the same key would otherwise have to wait for the distant ones. A tick whose task has started keeps its row, so
    it is not planted twice.
    """
    cancel_planted(store, target, schedule, now, delayed=False, reason="planted by a clock that was running fast")
    changed = restarted(schedule, now)
    target.run(schedules_sql.change, store.values(target), rows_of([changed]))
    log.warning(
        "because a clock was running fast, the schedule %r was planted until %s; it is planted again from %s, according to the current clock",
        schedule.name,
        iso(schedule.planted_until),
        iso(now),
    )
    return changed


def task_of(schedule: Schedule, tick: datetime, now: datetime) -> NewTask:
    """Return the task for a tick that is planted now."""
    due = tick + jitter_of(schedule, tick)
    # A tick that is being caught up on is late anyway, so the next tick must not replace it.
    by_default = schedule.overlap is Overlap.SKIP and due >= now
    grace = schedule.grace
    if grace is None and by_default:
        following = parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at).after(tick)
        grace = None if following is None else following - tick
    expires_at = None if grace is None else due + grace
    headers = {TICK_HEADER: iso(tick), RULE_HEADER: schedule.rule}
    return _task(schedule, headers, available_at=due, expires_at=expires_at)


def past_task_of(schedule: Schedule, tick: datetime, now: datetime) -> NewTask:
    """Return the task for a past tick that is backfilled: it is due now, even if its random delay is not over, and
    never expires.
    """
    task = task_of(schedule, tick, now)
    return replace(task, available_at=min(task.available_at or now, now), expires_at=None)


def extra_task(schedule: Schedule, by: str) -> NewTask:
    """Return an extra task of a schedule. It comes before planted ticks with the same key that are not due yet."""
    task = _task(schedule, {TRIGGER_HEADER: by})
    return task if task.partition_key is None else replace(task, priority=min(100, task.priority + 1))


def plant_page(
    store: Transactions, failing: FailureLog, target: Target, *, after: str, horizon: timedelta
) -> PlantedPage:
    """Plant the next schedules, in order of name. Schedules that another planter has locked are skipped."""
    now = store.now_in(target)
    values = store.values(target, until=now + horizon, after=after, limit=PAGE)
    taken = [(row.pop("planted_wrongly"), schedule_of(row)) for row in target.run(schedules_sql.take_due, values)]
    plantings: list[Planting] = []
    for is_wrong, schedule in taken:
        try:
            plantings.append(prepare(restarted(schedule, now) if is_wrong else schedule, now, horizon))
        except Exception as error:  # noqa: BLE001 - a row from another release, or an unknown time zone
            failing.failed(
                f"the schedule {schedule.name!r} cannot be planted; the other schedules are planted anyway", error
            )
        else:
            if is_wrong:
                restart(store, target, schedule, now)
    return PlantedPage(
        tasks=plant(store, target, plantings),
        last=taken[-1][1].name if len(taken) == PAGE else None,
        is_cut=any(one.plan.planted_until < now + horizon for one in plantings),
    )


def plant(store: Transactions, target: Target, plantings: Sequence[Planting]) -> int:
    """Write tasks for ticks without a task, advance the schedules' `planted_until`, and return the number of tasks."""
    values = store.values(target)
    ticks = [(one.schedule.name, tick, task) for one in plantings for tick, task in one.tasks.items()]
    written = enqueue_ticks(target, values, ticks)
    if forward := [(one.schedule.name, one.plan.planted_until, one.restarted_at) for one in plantings]:
        target.run(schedules_sql.advance, values, forward)
    if skipped := [_skipped(one.schedule, one.plan) for one in plantings if one.plan.skipped]:
        target.run(schedules_sql.record_skipped, values, skipped)
    return written


def enqueue_ticks(target: Target, values: dict[str, Any], ticks: Sequence[tuple[str, datetime, NewTask]]) -> int:
    """Write tasks for ticks without a task. The primary key of the ticks prevents another planter from adding a second
    task.
    """
    if not ticks:
        return 0
    recorded = target.run(schedules_sql.record_ticks, values, [(name, tick, task.id) for name, tick, task in ticks])
    free = {one["id"] for one in recorded}
    if new := [row(task) for _, _, task in ticks if task.id in free]:
        target.run(enqueue.insert_tasks, values, new)
    return len(new)


def cancel_planted(
    store: Transactions, target: Target, schedule: Schedule, now: datetime, *, delayed: bool, reason: str
) -> datetime | None:
    """Cancel the unstarted tasks of ticks after `now`, and return the earliest of these ticks.

    With `delayed`, earlier ticks that are not due yet because of their jitter are included.
    """
    earliest = now - schedule.jitter if delayed and schedule.jitter else now
    why = f"{reason} (schedule {schedule.name!r})"
    values = store.values(target, name=schedule.name, moment=now, earliest=earliest, reason=why)
    found = target.run(schedules_sql.undue, values)
    if not found:
        return None
    cancelled = target.run(schedules_sql.cancel_ticks, values, [(one["entry_id"],) for one in found])
    store.wake(target, freed(cancelled))
    return min((one["tick"] for one in cancelled if one["tick"] is not None), default=None)


def schedule_of(found: Row) -> Schedule:
    """Return the schedule in this row."""
    read = {name: value for name, value in found.items() if not name.endswith("_seconds")}
    spans = {name: found[f"{name}_seconds"] for name in ("grace", "jitter")}
    read |= {name: None if span is None else timedelta(seconds=span) for name, span in spans.items()}
    kinds = {"overlap": Overlap(found["overlap"]), "catch_up": CatchUp(found["catch_up"])}
    return Schedule(**{**read, **stored_options(found), **kinds})


def rows_of(schedules: Iterable[Schedule]) -> list[tuple[object, ...]]:
    """Return the columns of `schedules_sql.SCHEDULE` for each schedule."""
    names = [column.removesuffix("_seconds") for column in schedules_sql.SCHEDULE]
    return [tuple(in_column(getattr(one, name)) for name in names) for one in schedules]


def _task(schedule: NewSchedule, headers: dict[str, str], **times: datetime | None) -> NewTask:
    key = None if schedule.overlap is Overlap.ALLOW else f"{KEY_PREFIX}{schedule.name}"
    zone = {} if schedule.tz == "UTC" else {ZONE_HEADER: schedule.tz}
    task = NewTask(
        id=uuid7(),
        task_name=schedule.task_name,
        args=schedule.args,
        headers=json.dumps({SCHEDULE_HEADER: schedule.name, **headers, **zone}),
        partition_key=key,
        **schedule.options,
        **times,  # type: ignore[arg-type]
    )
    check(task)
    return task


def _skipped(schedule: Schedule, done: Plan) -> tuple[object, ...]:
    first, last = (None if one is None else iso(one) for one in (done.first_skipped, done.last_skipped))
    return uuid7(), event_data({"schedule": schedule.name, "count": done.skipped, "first": first, "last": last})


def ticks_between(schedule: Schedule, first: datetime, last: datetime) -> list[datetime]:
    """Return a rule's ticks from `first` up to, but not including, `last`, even those before the start of the schedule.

    Raises InvalidArgument for more than 10,000 ticks.
    """
    starts_at = first
    if schedule.rule.startswith("every "):
        every = timedelta(seconds=int(schedule.rule.split()[1]))
        starts_at = schedule.starts_at + min(0, (first - schedule.starts_at) // every) * every
    rule, found = parse_rule(schedule.rule, schedule.tz, starts_at=starts_at), list[datetime]()
    tick = rule.after(before(first))
    while tick is not None and tick < last:
        if len(found) == MOST_BACKFILLED:
            raise InvalidArgument(
                f"the schedule {schedule.name!r} has more than {MOST_BACKFILLED} ticks from {first} to {last}, so none "
                "was planted; backfill a shorter period"
            )
        found.append(tick)
        tick = rule.after(tick)
    return found


def before(moment: datetime) -> datetime:
    """Return the time just before `moment`, so that the tick at `moment` is planted again."""
    return max(EARLIEST, moment - MICROSECOND)
