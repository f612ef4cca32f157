"""Check the ticks of schedules: each belongs to one task, which says so too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, or_, select

from ....errors import InvalidArgument
from ....model import TaskStatus
from ....model.rules import parse_rule
from ....model.schedules import SCHEDULE_HEADER, TICK_HEADER
from ....store.producing.schedules_sql import stands_ahead
from ...grammar import Grammar, sql_literal, text_literal
from ...tables import schedule_ticks, task_executions, task_schedules
from .check import EXECUTION, READY, Check, task_of

_tick, _schedule = schedule_ticks.c, task_schedules.c
TASK_OF_TICK = select(EXECUTION.id).where(EXECUTION.id == _tick.task_execution_id)
_TICK_OF_TASK = select(_tick.tick).where(_tick.task_execution_id == EXECUTION.id)
_NAMES_A_TICK = EXECUTION.headers.like(text_literal(f'%"{TICK_HEADER}"%'))


def checks() -> Mapping[str, Check]:
    return {
        "tick_without_task": Check(
            meaning="a tick of a schedule belongs to a task that does not exist",
            broken=lambda _: select(task_of(schedule_ticks)).where(~TASK_OF_TICK.exists()),
        ),
        "tick_differs_from_task": Check(
            meaning="a tick of a schedule belongs to a task that is for another tick, so one of the two may be missing",
            broken=_differs,
        ),
        "task_without_tick": Check(
            meaning="a task is for a tick of a schedule that is not recorded as its own, so the tick may run twice",
            broken=_unrecorded,
        ),
        "planted_beyond_planted_until": Check(
            meaning="a schedule has a planted tick after the moment up to which it says it is planted",
            broken=_beyond,
        ),
        "planted_by_a_clock_ahead": Check(
            meaning=(
                "a schedule is planted further ahead than the present clock can have planted it; a worker plants it by the "
                "present clock within 15 seconds, and if it does not, the present clock is behind"
            ),
            broken=_planted_ahead,
        ),
        "schedule_unreadable": Check(
            meaning="the rule, time zone or arguments of a schedule cannot be read here, so none of its ticks is planted, or its tasks "
            "fail: store it again, or remove it",
            broken=lambda _: select(_schedule.name.label("id"), *(_schedule[name] for name in _READ)).where(
                _schedule.paused_at.is_(None)
            ),
            is_broken=_is_unreadable,
        ),
    }


_READ = ("rule", "tz", "args", "starts_at")


def _is_unreadable(row: Mapping[str, Any]) -> bool:
    try:
        parse_rule(row["rule"], row["tz"], starts_at=row["starts_at"])
        return not isinstance(json.loads(row["args"]), dict)
    except (InvalidArgument, ValueError, RecursionError):
        return True


def _differs(g: Grammar) -> Select[Any]:
    schedule, tick = _headers(g)
    rows = select(EXECUTION.id).join_from(schedule_ticks, task_executions, EXECUTION.id == _tick.task_execution_id)
    return rows.where(or_(schedule.is_distinct_from(_tick.schedule), tick.is_distinct_from(_tick.tick)))


def _unrecorded(g: Grammar) -> Select[Any]:
    """Select those that are not Cancelled: the tick of a planted task that was cancelled is free again."""
    is_cancelled = EXECUTION.status == sql_literal(TaskStatus.CANCELLED)
    _, tick = _headers(g)
    return select(EXECUTION.id).where(_NAMES_A_TICK, ~is_cancelled, tick.is_not(None), ~_TICK_OF_TASK.exists())


def _beyond(_: Grammar) -> Select[Any]:
    """Select schedules. What has started was asked for, and a paused schedule begins again from its pause."""
    is_planted = and_(READY, EXECUTION.first_started_at.is_(None), _tick.tick > _schedule.planted_until)
    return (
        select(_schedule.name.label("id"))
        .join_from(task_schedules, schedule_ticks, _tick.schedule == _schedule.name)
        .join(task_executions, EXECUTION.id == _tick.task_execution_id)
        .where(_schedule.paused_at.is_(None), is_planted)
        .distinct()
    )


def _planted_ahead(g: Grammar) -> Select[Any]:
    """Select schedules. A paused one is planted by the present clock when it is resumed."""
    return select(_schedule.name.label("id")).where(_schedule.paused_at.is_(None), stands_ahead(g))


def _headers(g: Grammar) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Return the schedule and the tick that EXECUTION's task names; NULL if its headers are no JSON object."""
    headers = case((g.is_json(EXECUTION.headers, an_object=True), EXECUTION.headers))
    return g.text_in(headers, SCHEDULE_HEADER), g.instant_in(headers, TICK_HEADER)
