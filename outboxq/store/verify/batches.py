"""Check batches: their counts are what the statuses of their tasks say, and what follows them is known and comes once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    Select,
    and_,
    case,
    except_,
    func,
    literal_column,
    not_,
    or_,
    select,
    true,
    update,
)

from ...database.grammar import Grammar, Relations, Statement, Transition, sql_literal, text_literal
from ...database.tables import task_batches, task_executions
from ...model import EventType, TaskStatus
from ...model.batches import OnFailed, links_of
from .check import EVENT, EXECUTION, OTHERS, UNFINISHED, Check, broken_ones, is_a
from .rows import GRACE, latest, seconds

_batch = task_batches.c
_zero = literal_column("0", Integer)
_GOES_ON = _batch.completed_at.is_(None)
_COUNTS = (_GOES_ON, _batch.closed)
_waits = _batch.on_failed == sql_literal(OnFailed.WAIT)
_UNENDED = (TaskStatus.READY, TaskStatus.RUNNING)
_IN_A_BATCH = EXECUTION.pipeline_execution_id != EXECUTION.id
_MEMBER = and_(EXECUTION.pipeline_execution_id == _batch.id, _IN_A_BATCH)
_SAID = ("kind", "on_failed", "name")


def batch_checks() -> Mapping[str, Check]:
    return {
        "batch_lost": Check(
            meaning="a batch has tasks but no row, although it has not completed, so what follows it never comes: enqueue that by hand",
            broken=_lost,
        ),
        "batch_differs_from_events": Check(
            meaning="the kind, name or on_failed of a batch is not the one that it was made with",
            broken=_differs,
        ),
        "batch_counts_differ": Check(
            meaning="a batch counts another number of tasks that have not ended than it has, so what follows it comes too early "
            "or never; or fewer of a status than there are",
            broken=lambda g: _among_open(
                g,
                {
                    "batch_counts_differ": _counts_differ,
                    "batch_stage_differs": _stage_differs,
                    "batch_cancel_contradicts": lambda _: and_(~_batch.runs_then, _batch.cancel_requested_at.is_(None)),
                    "batch_ahead_of_time": lambda _: _batch.updated_at > g.later(latest(g), seconds(GRACE)),
                },
            ),
            also={
                "batch_stage_differs": "a batch or chain has enqueued more or fewer of the tasks that follow than it says, so the "
                "next is left out, or its last end cannot be written",
                "batch_cancel_contradicts": "nothing follows a batch, as if it were cancelled, but nobody has cancelled it: cancel it, or "
                "enqueue what follows by hand",
                "batch_ahead_of_time": "a batch was changed in the future, so what follows it will not be due before then",
            },
        ),
        "batch_unreadable": Check(
            meaning="the tasks that follow a batch cannot be read or are not as many as it was made with, so its last end cannot be "
            "written, or a task that follows never comes: set then_tasks of its row to what it was, or to NULL and enqueue them by hand",
            broken=_links,
            is_broken=_is_unreadable,
        ),
        "batch_not_closed": Check(
            meaning="an error has left the `with` block of a batch, and its transaction was committed all the same, so nothing "
            "follows it; cancel it: outboxq batch cancel ID",
            broken=lambda _: select(_batch.id).where(_batch.completed_at.is_(None), not_(_batch.closed)),
        ),
    }


def _lost(g: Grammar) -> Select[Any]:
    """Select the batches of tasks that have neither a row nor the event of their end."""
    is_batch = and_(g.digit(EXECUTION.pipeline_execution_id, 13) == text_literal(8), _begins_with_one(g))
    named = select(EXECUTION.pipeline_execution_id.label("id")).where(_IN_A_BATCH, is_batch)
    ended = select(EVENT.pipeline_execution_id).where(
        EVENT.task_execution_id.is_(None), OTHERS, is_a(EventType.BATCH_COMPLETED)
    )
    # Not joins, which a planner that expects one lost batch would run again for each task.
    return select(except_(named, select(_batch.id), ended).subquery("lost"))


def _begins_with_one(g: Grammar) -> ColumnElement[bool]:
    return g.digit(EXECUTION.pipeline_execution_id, 1).in_([text_literal(digit) for digit in "89abcdef"])


def _differs(g: Grammar) -> Select[Any]:
    made = _made(g)
    return select(_batch.id).join_from(task_batches, made, _differs_from_event(made))


def _differs_from_event(made: FromClause) -> ColumnElement[bool]:
    said = (made.c[name].is_distinct_from(_batch[name]) for name in _SAID)
    return and_(made.c.id == _batch.id, _GOES_ON, or_(*said))


def as_made(g: Grammar) -> Transition:
    """Give a batch the kind, the name and the policy that it was made with."""

    def moved(_: Relations) -> Statement:
        made = _made(g)
        values = {name: made.c[name] for name in _SAID}
        return update(task_batches).where(_differs_from_event(made)).values(**values).returning(_batch.id)

    return Transition(steps={"moved": moved}, returns="moved")


def _made(g: Grammar) -> FromClause:
    """Select what the events say with which batches were made."""
    said = {name: g.text_in(EVENT.event_data, name) for name in (*_SAID, "links")}
    return (
        select(EVENT.pipeline_execution_id.label("id"), *(value.label(name) for name, value in said.items()))
        .where(EVENT.task_execution_id.is_(None), OTHERS, is_a(EventType.BATCH_CREATED))
        .distinct()
        .subquery("made")
    )


def _links(g: Grammar) -> Select[Any]:
    made = _made(g)
    rows = task_batches.outerjoin(made, made.c.id == _batch.id)
    return select(_batch.id, _batch.then_tasks, made.c.links).select_from(rows).where(_GOES_ON)


def _is_unreadable(row: Mapping[str, Any]) -> bool:
    try:
        links = links_of(row["then_tasks"])
    except ValueError:
        return True
    return row["links"] is not None and int(row["links"]) != len(links)


def _among_open(g: Grammar, broken: Mapping[str, Callable[[FromClause], ColumnElement[bool]]]) -> Select[Any]:
    """Check the batches that go on beside the numbers of their tasks, which are counted in one pass."""
    counted = _counted(g)
    rows = select(_batch.id).join_from(task_batches, counted, counted.c.id == _batch.id)
    return broken_ones(rows, {name: condition(counted) for name, condition in broken.items()})


def _counted(g: Grammar) -> FromClause:
    """Select the tasks of each batch that goes on: in all, of each status, and those that are enqueued since they follow."""
    of_status = {
        status.name.lower(): EXECUTION.status == sql_literal(status)
        for status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
    }
    follows = g.digit(EXECUTION.id, 13) == text_literal(8)
    kinds = {"present": true(), "unended": UNFINISHED, **of_status, "following": follows}
    numbers = [func.count(case((condition, EXECUTION.id))).label(name) for name, condition in kinds.items()]
    return (
        select(_batch.id, *numbers)
        .select_from(task_batches.outerjoin(task_executions, _MEMBER))
        .where(_GOES_ON)
        .group_by(_batch.id)
        .subquery("counted")
    )


def _counts_differ(counted: FromClause) -> ColumnElement[bool]:
    pending = _batch.size - _batch.completed - _batch.cancelled - case((_waits, _zero), else_=_batch.failed)
    left = counted.c.unended + case((_waits, counted.c.failed), else_=_zero)
    fewer = (_batch[name] < counted.c[name] for name in ("completed", "failed", "cancelled"))
    return and_(_batch.closed, or_(pending <= _zero, pending != left, *fewer))


def _stage_differs(counted: FromClause) -> ColumnElement[bool]:
    """Return a condition: no task was pruned, and so the stage of a batch must be the number of those that follow and are there."""
    return and_(_batch.size == counted.c.present, _batch.stage != counted.c.following)


def counts_wrong(g: Grammar) -> Select[Any]:
    """Lock the batches whose counts are wrong. The repair, a statement of its own, sees all that has ended until then."""
    return _locked(_batch.id.in_(_ids(g, _counts_differ)))


def stage_wrong(g: Grammar) -> Select[Any]:
    """Lock the batches whose stage is wrong, for the repair after it."""
    return _locked(_batch.id.in_(_ids(g, _stage_differs)))


def _locked(wrong: ColumnElement[bool]) -> Select[Any]:
    return select(_batch.id).where(wrong).order_by(_batch.id).with_for_update()


def _ids(g: Grammar, wrong: Callable[[FromClause], ColumnElement[bool]]) -> Select[Any]:
    counted = _counted(g)
    return select(counted.c.id).join_from(counted, task_batches, counted.c.id == _batch.id).where(wrong(counted))


def recount(g: Grammar) -> Transition:
    """Make the counts of a batch that goes on what the statuses of its tasks say. It completes if all have ended.

    A task that was pruned counts as cancelled, unless it was counted before.
    """
    present, done, dead, left = (
        _tasks(*statuses)
        for statuses in (TaskStatus, (TaskStatus.COMPLETED,), (TaskStatus.FAILED,), (*_UNENDED, TaskStatus.FAILED))
    )
    size = case((_batch.size < present, present), else_=_batch.size)
    counts = {"size": size, "completed": done, "failed": dead, "cancelled": size - left - done, "updated_at": g.now}

    def counted(_: Relations) -> Statement:
        wrong = and_(*_COUNTS, _batch.id.in_(_ids(g, _counts_differ)))
        return update(task_batches).where(wrong).values(**counts).returning(_batch.id)

    return Transition(steps={"counted": counted}, returns="counted")


def set_stage(g: Grammar) -> Transition:
    """Make the stage the number of those tasks that follow and are enqueued."""
    following = _tasks(*TaskStatus, also=g.digit(EXECUTION.id, 13) == text_literal(8))

    def moved(_: Relations) -> Statement:
        wrong = and_(_GOES_ON, _batch.id.in_(_ids(g, _stage_differs)))
        return update(task_batches).where(wrong).values(stage=following, updated_at=g.now).returning(_batch.id)

    return Transition(steps={"moved": moved}, returns="moved")


def set_back(g: Grammar) -> Transition:
    """Set the time of the last change to now for batches that were changed in the future."""

    def moved(_: Relations) -> Statement:
        ahead = _batch.updated_at > g.later(latest(g), seconds(GRACE))
        return update(task_batches).where(_GOES_ON, ahead).values(updated_at=g.now).returning(_batch.id)

    return Transition(steps={"moved": moved}, returns="moved")


def _tasks(*statuses: TaskStatus, also: ColumnElement[bool] | None = None) -> Any:
    """Return the number of the batch's tasks that have one of these statuses."""
    return (
        select(func.count())
        .select_from(task_executions)
        .where(
            _MEMBER,
            EXECUTION.status.in_([sql_literal(status) for status in statuses]),
            *(() if also is None else (also,)),
        )
        .correlate(task_batches)
        .scalar_subquery()
    )
