"""Check the counts of batches: they are what the statuses of their tasks say, and a batch whose tasks have ended has completed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, case, func, literal_column, not_, or_, select, update

from ....model import TaskStatus
from ....model.batches import OnFailed
from ...tables import task_batches, task_executions
from ..batches import is_there
from ..grammar import Grammar, Relations, Statement, Transition, sql_literal
from .check import EXECUTION, Check

_batch = task_batches.c
_zero = literal_column("0", Integer)
_OPEN = (_batch.completed_at.is_(None), _batch.closed)
_waits = _batch.on_failed == sql_literal(OnFailed.WAIT)
_UNENDED = (TaskStatus.READY, TaskStatus.RUNNING)


def checks() -> Mapping[str, Check]:
    return {
        "batch_counts_differ": Check(
            meaning="a batch counts another number of tasks that have not ended than it has, so what follows it comes too early "
            "or never",
            broken=lambda _: select(_batch.id).where(*_OPEN, _is_wrong()),
            needs=is_there,
        ),
        "batch_not_closed": Check(
            meaning="an error has left the `with` block of a batch, and its transaction was committed all the same, so nothing "
            "follows it; cancel it: outboxq batch cancel ID",
            broken=lambda _: select(_batch.id).where(_batch.completed_at.is_(None), not_(_batch.closed)),
            needs=is_there,
        ),
    }


def wrong(_: Grammar) -> Select[Any]:
    """Lock the batches whose counts are wrong. The repair, a statement of its own, sees all that has ended until then."""
    return select(_batch.id).where(*_OPEN, _is_wrong()).order_by(_batch.id).with_for_update()


def recount(g: Grammar) -> Transition:
    """Make the counts of a batch that goes on what the statuses of its tasks say. It completes if all have ended.

    A task that was pruned counts as cancelled, unless it was counted before.
    """
    present, done, dead, left = (
        _tasks(*statuses)
        for statuses in (TaskStatus, (TaskStatus.COMPLETED,), (TaskStatus.FAILED,), (*_UNENDED, TaskStatus.FAILED))
    )
    size = case((_batch.size < present, present), else_=_batch.size)

    def counted(_: Relations) -> Statement:
        return (
            update(task_batches)
            .where(*_OPEN, _is_wrong())
            .values(size=size, completed=done, failed=dead, cancelled=size - left - done, updated_at=g.now)
            .returning(_batch.id)
        )

    return Transition(steps={"counted": counted}, returns="counted")


def _is_wrong() -> ColumnElement[bool]:
    pending = _batch.size - _batch.completed - _batch.cancelled - case((_waits, _zero), else_=_batch.failed)
    left = case((_waits, _tasks(*_UNENDED, TaskStatus.FAILED)), else_=_tasks(*_UNENDED))
    return or_(pending <= _zero, pending != left)


def _tasks(*statuses: TaskStatus) -> Any:
    """Return the number of the batch's tasks that have one of these statuses."""
    return (
        select(func.count())
        .select_from(task_executions)
        .where(
            EXECUTION.pipeline_execution_id == _batch.id,
            EXECUTION.pipeline_execution_id != EXECUTION.id,
            EXECUTION.status.in_([sql_literal(status) for status in statuses]),
        )
        .correlate(task_batches)
        .scalar_subquery()
    )
