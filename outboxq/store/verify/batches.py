"""Check that the counts of batches match the statuses of their tasks, and that their `then` tasks are readable and
enqueued once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import sqlalchemy as sa

from ...database.dialects import Row
from ...database.grammar import Grammar, Transition, sql_literal, text_literal
from ...database.tables import task_batches, task_executions
from ...database.target import Target
from ...model import EventType, TaskStatus
from ...model.batches import OnFailed, links_of
from ..task_rows import IDS, pack_ids
from .check import EVENT, EXECUTION, OTHERS, UNFINISHED, Check, broken_ones, is_a, updated
from .rows import GRACE, latest, seconds

_batch = task_batches.c
_zero = sa.literal_column("0", sa.Integer)
_GOES_ON = _batch.completed_at.is_(None)
_waits = _batch.on_failed == sql_literal(OnFailed.WAIT)
_IN_A_BATCH = EXECUTION.pipeline_execution_id != EXECUTION.id
_MEMBER = sa.and_(EXECUTION.pipeline_execution_id == _batch.id, _IN_A_BATCH)
_RECORDED = ("kind", "on_failed", "name")
_Condition: TypeAlias = Callable[[sa.FromClause], sa.ColumnElement[bool]]
"""Returns a condition on a batch, given the numbers of its tasks."""


def _lost(g: Grammar) -> sa.Select[Any]:
    """Select the batches that have tasks, but neither a row nor an event that records their completion."""
    begins_with_one = g.digit(EXECUTION.pipeline_execution_id, 1).in_([text_literal(digit) for digit in "89abcdef"])
    is_batch = sa.and_(g.digit(EXECUTION.pipeline_execution_id, 13) == text_literal(8), begins_with_one)
    named = sa.select(EXECUTION.pipeline_execution_id.label("id")).where(_IN_A_BATCH, is_batch)
    ended = sa.select(EVENT.pipeline_execution_id).where(
        EVENT.task_execution_id.is_(None), OTHERS, is_a(EventType.BATCH_COMPLETED)
    )
    # These are not joins, because a planner that expects one lost batch would run a join again for each task.
    return sa.select(sa.except_(named, sa.select(_batch.id), ended).subquery("lost"))


def _differs(g: Grammar) -> sa.Select[Any]:
    made = _made(g)
    return sa.select(_batch.id).join_from(task_batches, made, _differs_from_event(made))


def _differs_from_event(made: sa.FromClause) -> sa.ColumnElement[bool]:
    recorded = (made.c[name].is_distinct_from(_batch[name]) for name in _RECORDED)
    return sa.and_(made.c.id == _batch.id, _GOES_ON, sa.or_(*recorded))


def as_made(g: Grammar) -> Transition:
    """Restore the kind, the name and the policy with which a batch was created."""
    made = _made(g)
    values = {name: made.c[name] for name in _RECORDED}
    return updated(task_batches, _differs_from_event(made), values, _batch.id)


def _made(g: Grammar) -> sa.FromClause:
    """Select the values with which batches were created, from their events."""
    recorded = {name: g.text_in(EVENT.event_data, name) for name in (*_RECORDED, "links")}
    return (
        sa.select(EVENT.pipeline_execution_id.label("id"), *(value.label(name) for name, value in recorded.items()))
        .where(EVENT.task_execution_id.is_(None), OTHERS, is_a(EventType.BATCH_CREATED))
        .distinct()
        .subquery("made")
    )


def _links(g: Grammar) -> sa.Select[Any]:
    made = _made(g)
    rows = task_batches.outerjoin(made, made.c.id == _batch.id)
    return sa.select(_batch.id, _batch.then_tasks, made.c.links).select_from(rows).where(_GOES_ON)


def _is_unreadable(row: Mapping[str, Any]) -> bool:
    try:
        links = links_of(row["then_tasks"])
    except ValueError:
        return True
    return row.get("links") is not None and int(row["links"]) != len(links)


def unreadable(target: Target, rows: Iterable[Row]) -> Mapping[str, Any]:
    """Return the ids of the batches in `rows` whose `then` tasks cannot be read, as the parameter of `recount`."""
    return pack_ids(target, "unreadable", [row["id"] for row in rows if _is_unreadable(row)])


def _among_open(g: Grammar, broken: Mapping[str, _Condition]) -> sa.Select[Any]:
    """Check unfinished batches against their tasks, which are counted in one pass."""
    counted = _counted(g)
    rows = sa.select(_batch.id).join_from(task_batches, counted, counted.c.id == _batch.id)
    return broken_ones(rows, {name: condition(counted) for name, condition in broken.items()})


def _counted(g: Grammar) -> sa.FromClause:
    """Count the tasks of each unfinished batch: all tasks, the tasks by status, and the enqueued `then` tasks."""
    of_status = {
        status.name.lower(): EXECUTION.status == sql_literal(status)
        for status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
    }
    kinds = {"present": sa.true(), "unended": UNFINISHED, **of_status, "following": _follows(g)}
    numbers = [sa.func.count(sa.case((condition, EXECUTION.id))).label(name) for name, condition in kinds.items()]
    return (
        sa.select(_batch.id, *numbers)
        .select_from(task_batches.outerjoin(task_executions, _MEMBER))
        .where(_GOES_ON)
        .group_by(_batch.id)
        .subquery("counted")
    )


def _follows(g: Grammar) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the task is one of the `then` tasks of its batch."""
    return g.digit(EXECUTION.id, 13) == text_literal(8)


def counts_differ(counted: sa.FromClause) -> sa.ColumnElement[bool]:
    pending = _pending()
    left = counted.c.unended + sa.case((_waits, counted.c.failed), else_=_zero)
    fewer = (_batch[name] < counted.c[name] for name in ("completed", "failed", "cancelled"))
    return sa.and_(_batch.closed, sa.or_(pending <= _zero, pending != left, *fewer))


def _pending() -> sa.ColumnElement[int]:
    """Return the number of tasks that a batch is still waiting for, according to the batch's counts."""
    return _batch.size - _batch.completed - _batch.cancelled - sa.case((_waits, _zero), else_=_batch.failed)


def stage_differs(counted: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the stage of the batch differs from the number of its enqueued `then` tasks
    although no task was pruned.
    """
    return sa.and_(_batch.size == counted.c.present, _batch.stage != counted.c.following)


def locked(g: Grammar, *, wrong: _Condition) -> sa.Select[Any]:
    """Lock the batches whose counts are wrong. The repair is a separate statement, so that it sees every task that has
    ended before it begins.
    """
    return sa.select(_batch.id, _batch.then_tasks).where(among(g, wrong)).order_by(_batch.id).with_for_update()


def among(g: Grammar, wrong: _Condition) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the counts of a batch's tasks meet `wrong`."""
    counted = _counted(g)
    ids = sa.select(counted.c.id).join_from(counted, task_batches, counted.c.id == _batch.id).where(wrong(counted))
    return _batch.id.in_(ids)


def recount(g: Grammar) -> Transition:
    """Recompute the counts of an unfinished batch from the statuses of its tasks. If all of them have ended, the batch
    completes, and its `then` tasks are enqueued. So batches whose `then` tasks cannot be read (:unreadable) are left
    out.

    A pruned task counts as cancelled, unless it has already been counted.
    """
    readable = _batch.id.not_in(sa.select(g.rows("unreadable", IDS).c.id))
    present, done, dead = _tasks(TaskStatus), _tasks([TaskStatus.COMPLETED]), _tasks([TaskStatus.FAILED])
    left = _tasks([TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED])
    size = sa.case((_batch.size < present, present), else_=_batch.size)
    counts = {"size": size, "completed": done, "failed": dead, "cancelled": size - left - done, "updated_at": g.now}
    return updated(task_batches, sa.and_(_GOES_ON, _batch.closed, readable, among(g, counts_differ)), counts, _batch.id)


def set_stage(g: Grammar) -> Transition:
    """Set the stage to the number of enqueued `then` tasks."""
    values = {"stage": _tasks(TaskStatus, _follows(g)), "updated_at": g.now}
    return updated(task_batches, sa.and_(_GOES_ON, among(g, stage_differs)), values, _batch.id)


def set_back(g: Grammar) -> Transition:
    """Set the time of the last change to now for batches whose last change is in the future."""
    return updated(task_batches, sa.and_(_GOES_ON, _ahead(g)), {"updated_at": g.now}, _batch.id)


def _ahead(g: Grammar) -> sa.ColumnElement[bool]:
    return _batch.updated_at > g.later(latest(g), seconds(GRACE))


def _tasks(statuses: Iterable[TaskStatus], *conditions: sa.ColumnElement[bool]) -> Any:
    """Return the number of the batch's tasks that have one of these statuses and meet all conditions."""
    has_status = EXECUTION.status.in_([sql_literal(status) for status in statuses])
    found = sa.select(sa.func.count()).select_from(task_executions).where(_MEMBER, has_status, *conditions)
    return found.correlate(task_batches).scalar_subquery()


BATCH_CHECKS: Mapping[str, Check] = {
    "batch_lost": Check(
        meaning="a batch has tasks but no row, although it has not completed, so its `then` task will never be enqueued; enqueue that task yourself",
        broken=_lost,
    ),
    "batch_differs_from_events": Check(
        meaning="the kind, name or on_failed of a batch differs from the value recorded in its creation event",
        broken=_differs,
    ),
    "batch_counts_differ": Check(
        meaning="the counts of a batch differ from the statuses of its tasks, so its `then` task is enqueued too early or "
        "never",
        broken=lambda g: _among_open(
            g,
            {
                "batch_counts_differ": counts_differ,
                "batch_stage_differs": stage_differs,
                "batch_cancel_contradicts": lambda _: sa.and_(~_batch.runs_then, _batch.cancel_requested_at.is_(None)),
                "batch_ahead_of_time": lambda _: _ahead(g),
            },
        ),
        also={
            "batch_stage_differs": "the stage of a batch or chain does not match the `then` tasks enqueued so far, so the next one would be skipped or the final completion could not be recorded",
            "batch_cancel_contradicts": "a batch skips its `then` tasks as if it had been cancelled, although it was not: cancel the batch, or "
            "enqueue the tasks yourself",
            "batch_ahead_of_time": "the time of a batch's last change is in the future, so its `then` tasks will not be due before that time",
        },
    ),
    "batch_unreadable": Check(
        meaning="the `then` tasks of a batch are unreadable, or their number differs from the one recorded in its creation event, so its final completion cannot be recorded, or a task would be skipped: restore then_tasks in its row, or set it to NULL and enqueue the tasks yourself",
        broken=_links,
        is_broken=_is_unreadable,
    ),
    "batch_not_closed": Check(
        meaning="the `with` block of a batch raised an error, but the transaction was committed, so its `then` tasks will "
        "never be enqueued; cancel the batch: outboxq batch cancel ID",
        broken=lambda _: broken_ones(
            sa.select(_batch.id),
            {
                "batch_not_closed": sa.and_(_GOES_ON, sa.not_(_batch.closed)),
                "batch_completed_early": sa.and_(~_GOES_ON, _batch.closed, _pending() > _zero),
            },
        ),
        also={
            "batch_completed_early": "a batch has a completion time, although its counts say that some of its tasks have not ended, so its `then` tasks will never be enqueued; set completed_at to NULL in its row, and run `outboxq verify --repair`"
        },
    ),
}
