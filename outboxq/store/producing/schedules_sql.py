"""Store schedules, and turn their ticks into tasks.

A schedule's row is locked before the schedule is changed or planted. Planted tasks are cancelled through their outbox
entries. Entries are never updated, so an existing entry proves that its task is unchanged.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from ...database.column_types import BigId, Instant, parameter_type
from ...database.grammar import (
    ONE,
    Columns,
    Grammar,
    Relations,
    SqlStatus,
    Statement,
    Transition,
    insert_values,
    joined,
    limit,
    number,
    one_step,
    sql_literal,
)
from ...database.tables import execution_events, schedule_ticks, task_executions, task_outbox, task_schedules
from ...model import EventType
from ...model.rules import FARTHEST
from ...model.schedules import HORIZON
from .. import task_rows
from ..arguments import parameters

SCHEDULE: Columns = {column.name: parameter_type(column.type) for column in task_schedules.c}
NAMES: Columns = {"name": sa.Text()}
TICK: Columns = {"schedule": sa.Text(), "tick": Instant, "task_execution_id": sa.Uuid()}
_schedule, _tick, _execution, _entry = task_schedules.c, schedule_ticks.c, task_executions.c, task_outbox.c
_name, _after, _reason = parameters(sa.Text, "name", "after", "reason")
_until, _first, _last, _moment, _earliest = parameters(Instant, "until", "first", "last", "moment", "earliest")


def is_planted_ahead(g: Grammar) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a schedule is planted further ahead than the current clock allows.

    It is the same condition as in `model.rules.stands_ahead`.
    """
    near, far = _in(g, HORIZON), _in(g, FARTHEST)
    return sa.and_(_schedule.planted_until > near, sa.or_(_schedule.updated_at > near, _schedule.planted_until > far))


def _planted_wrongly(g: Grammar) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a schedule was planted while the clock was running fast. If the clock was
    correct when the schedule was planted, its future ticks already have tasks.
    """
    near = _in(g, HORIZON)
    has_had_ticks = sa.select(_tick.tick).where(_tick.schedule == _schedule.name, _tick.tick > near).exists()
    return sa.and_(is_planted_ahead(g), sa.or_(_schedule.updated_at > near, ~has_had_ticks))


def _in(g: Grammar, span: timedelta) -> sa.ColumnElement[datetime]:
    return g.later(g.now, number(span.total_seconds()))


def _is_due(g: Grammar) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a schedule must be planted up to :until."""
    return sa.and_(_schedule.paused_at.is_(None), sa.or_(_schedule.planted_until < _until, _planted_wrongly(g)))


def schedules(_: Grammar) -> sa.Select[Any]:
    """Select every schedule, sorted by name."""
    return sa.select(task_schedules).order_by(_schedule.name)


def named(g: Grammar) -> sa.Select[Any]:
    """Select the schedules with the given `names`, sorted by name."""
    return schedules(g).where(_is_named(g, _schedule.name))


def lock(g: Grammar) -> sa.Select[Any]:
    """Lock and select the schedules with the given `names`, sorted by name."""
    return named(g).with_for_update()


def planted_wrongly(g: Grammar) -> sa.Select[Any]:
    """Select the schedules with the given `names` that were planted while the clock was running fast."""
    return sa.select(_schedule.name).where(_is_named(g, _schedule.name), _planted_wrongly(g))


def _is_named(g: Grammar, name: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    return g.among(name, g.rows("names", NAMES).c.name)


def some_due(g: Grammar) -> sa.Select[Any]:
    """Select one schedule that must be planted up to :until."""
    return sa.select(_schedule.name).where(_is_due(g)).limit(1)


def take_due(g: Grammar) -> sa.Select[Any]:
    """Lock and select up to :limit schedules that must be planted up to :until, starting after the name :after.

    Each row says whether the schedule was planted while the clock was running fast. Schedules that another planter has
    locked are skipped.
    """
    found = schedules(g).add_columns(_planted_wrongly(g).label("planted_wrongly"))
    return found.where(_is_due(g), _schedule.name > _after).limit(limit).with_for_update(skip_locked=True)


@one_step("created", SCHEDULE, returns=True)
def create(g: Grammar, given: Any) -> Statement:
    """Insert schedules whose names are free, and return their names."""
    # The condition is always true. Without a WHERE, SQLite would read ON CONFLICT as the ON of a join.
    rows = sa.select(*(given[name] for name in SCHEDULE)).where(given.name.is_not(None))
    new = g.insert(task_schedules).from_select(list(SCHEDULE), rows)
    return new.on_conflict_do_nothing().returning(_schedule.name.label("id"))  # type: ignore[no-any-return]


@one_step("changed", SCHEDULE)
def change(_: Grammar, given: Any) -> Statement:
    """Write the new values of locked schedules."""
    values = {name: given[name] for name in SCHEDULE if name != "name"}
    return sa.update(task_schedules).where(_schedule.name == given.name).values(values)


def remove(_: Grammar) -> sa.Delete:
    """Delete a schedule. Its ticks are kept for as long as their tasks."""
    return sa.delete(task_schedules).where(_schedule.name == _name)


@one_step("advanced", {"name": sa.Text(), "planted_until": Instant, "updated_at": Instant})
def advance(_: Grammar, given: Any) -> Statement:
    """Advance `planted_until` of locked schedules, and record the time since which no tick has been left out.
    `planted_until` is never set back.
    """
    forward = _schedule.planted_until < given.planted_until
    updated_at = sa.func.coalesce(given.updated_at, _schedule.updated_at)
    advanced = sa.update(task_schedules).where(_schedule.name == given.name, forward)
    return advanced.values(planted_until=given.planted_until, updated_at=updated_at)


@one_step("recorded", TICK, returns=True)
def record_ticks(g: Grammar, given: Any) -> Statement:
    """Insert ticks with the ids of their tasks. Returns the ids for ticks that did not have a task yet."""
    rows = sa.select(*(given[name] for name in TICK)).where(given.schedule.is_not(None))
    new = g.insert(schedule_ticks).from_select(list(TICK), rows.order_by(given.schedule, given.tick))
    return new.on_conflict_do_nothing().returning(_tick.task_execution_id.label("id"))  # type: ignore[no-any-return]


@one_step("event", {"pipeline_execution_id": sa.Uuid(), "data": sa.Text()})
def record_skipped(g: Grammar, given: Any) -> Statement:
    """Insert the events of skipped ticks."""
    values = task_rows.event_without_task(g, given.pipeline_execution_id, EventType.SKIPPED, given.data)
    return insert_values(sa.insert(execution_events), values, None)


def undue(g: Grammar) -> sa.Select[Any]:
    """Select a schedule's ticks after :moment whose tasks have never started, with their outbox entries.

    The ticks include those after :earliest whose tasks are due after :moment.
    """
    late = sa.select(_tick.tick, _tick.task_execution_id).where(_tick.schedule == _name, _tick.tick > _earliest)
    recent = late.cte("recent").prefix_with("MATERIALIZED")
    ids = recent.c.task_execution_id
    columns: tuple[Any, ...] = (_entry.id.label("entry_id"), recent.c.tick)
    return (
        sa.select(*columns)
        .join_from(recent, task_executions, _execution.id == ids)
        .join(task_outbox, _entry.task_execution_id == _execution.id)
        # The tasks are looked up by id, because a merge join would read all of them.
        .where(g.among(_execution.id, ids), g.among(_entry.task_execution_id, ids))
        .where(sa.or_(recent.c.tick > _moment, _entry.available_at > _moment), _execution.first_started_at.is_(None))
        .order_by(_entry.id)
    )


def cancel_ticks(g: Grammar) -> Transition:
    """Cancel the tasks of these outbox entries for :reason, and delete their ticks.

    An entry that has since been claimed or replaced is skipped. Returns the cancelled tasks.
    """

    def gone(r: Relations) -> Statement:
        entries = sa.delete(task_outbox).where(g.among(_entry.id, r["given"].c.entry_id))
        return entries.returning(_entry.task_execution_id.label("id"))

    def moved(r: Relations) -> Statement:
        is_ready = (g.among(_execution.id, r["gone"].c.id), _execution.status == SqlStatus.READY)
        values = {"status": SqlStatus.CANCELLED, "completed_at": g.now, "updated_at": g.now}
        columns = (*task_rows.CARRIED, _execution.attempt, _execution.recovery_attempts)
        return sa.update(task_executions).where(*is_ready).values(values).returning(*columns)

    def event(r: Relations) -> Statement:
        moved = r["moved"].c
        data = g.json(attempt=moved.attempt, recovery_attempts=moved.recovery_attempts, reason=_reason)
        rows = joined(r["moved"], r["gone"])
        return task_rows.event(g, moved, rows, event_type=sql_literal(EventType.CANCELLED), data=data)

    def ticks(r: Relations) -> Statement:
        forgotten = sa.delete(schedule_ticks).where(g.among(_tick.task_execution_id, r["moved"].c.id))
        return forgotten.returning(_tick.task_execution_id.label("id"), _tick.tick)

    steps = {"gone": gone, "moved": moved, "event": event, "ticks": ticks}
    return Transition(given={"entry_id": BigId}, steps=steps, returns="moved", joined_steps=("ticks",))


def planted(_: Grammar) -> sa.Select[Any]:
    """Select a schedule's ticks from :first to :last that became tasks."""
    return sa.select(_tick.tick).where(_tick.schedule == _name, _tick.tick >= _first, _tick.tick <= _last)


def to_come(g: Grammar) -> sa.Select[Any]:
    """Select the ticks after :moment that have tasks, for the schedules with the given `names`. Each row says whether
    the task is unstarted.

    Of the ticks with unstarted tasks, only the next :limit for each schedule are selected.
    """
    # Neither query is a join, because a join might read all ticks or all tasks.
    is_new = sa.and_(_execution.status == SqlStatus.READY, _execution.first_started_at.is_(None))
    comes = sa.select(_execution.id).where(_execution.id == _tick.task_execution_id, is_new).exists()
    later = sa.select(_tick.schedule, _tick.tick, comes.label("comes"))
    found = later.where(_is_named(g, _tick.schedule), _tick.tick > _moment).subquery("found")
    place = sa.func.row_number().over(partition_by=(found.c.schedule, found.c.comes), order_by=found.c.tick)
    ranked = sa.select(found, place.label("place")).subquery("ranked")
    near = sa.or_(~ranked.c.comes, ranked.c.place <= limit)
    columns = (ranked.c.schedule, ranked.c.tick, ranked.c.comes)
    return sa.select(*columns).where(near).order_by(ranked.c.schedule, ranked.c.tick)


def ticks(_: Grammar) -> sa.Select[Any]:
    """Select up to :limit of a schedule's ticks that became tasks, newest first."""
    # This is not a join, which might read all tasks.
    status = sa.select(_execution.status).where(_execution.id == _tick.task_execution_id).scalar_subquery()
    columns = (_tick.schedule, _tick.tick, _tick.task_execution_id.label("task_id"), status.label("status"))
    newest = sa.select(*columns).where(_tick.schedule == _name)
    return newest.order_by(_tick.tick.desc()).limit(limit)


def last_ticks(g: Grammar) -> sa.Select[Any]:
    """Select the newest :limit ticks for each schedule with one of the given `names`, oldest first, with their task ids."""
    # Each step looks up one older tick of each schedule by index. A join would read all ticks.
    older, given = schedule_ticks.alias("older").c, g.rows("names", NAMES).c.name

    def newest(name: Any, *conditions: sa.ColumnElement[bool]) -> Any:
        found = sa.select(older.tick).where(older.schedule == name, *conditions).order_by(older.tick.desc()).limit(1)
        return found.correlate(name.table).scalar_subquery().label("tick")

    walk = sa.select(given, newest(given), sa.cast(ONE, sa.BigInteger).label("place")).cte("walk", True)
    step = sa.select(walk.c.name, newest(walk.c.name, older.tick < walk.c.tick), walk.c.place + 1)
    walk = walk.union_all(step.where(walk.c.tick.is_not(None), walk.c.place < limit))
    its_task = sa.select(_tick.task_execution_id).where(_tick.schedule == walk.c.name, _tick.tick == walk.c.tick)
    columns = (walk.c.name.label("schedule"), walk.c.tick, its_task.scalar_subquery().label("task_id"))
    return sa.select(*columns).where(walk.c.tick.is_not(None)).order_by(walk.c.name, walk.c.tick)


def runs(g: Grammar) -> sa.Select[Any]:
    """Select the status and the times of the given `tasks`."""
    columns = (_execution.id, _execution.status, _execution.started_at, _execution.completed_at)
    return sa.select(*columns).where(g.among(_execution.id, g.rows("tasks", task_rows.IDS).c.id))
