"""Define which finished tasks are old enough to be deleted, and through which indexes a task's events are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Integer, and_, bindparam, or_, select

from ..model import EventType, TaskStatus
from .column_types import Instant
from .grammar import Grammar, sql_literal
from .tables import task_batches, task_executions

before = bindparam("before", type_=Instant, required=True)
"""The time before which a task must have ended."""
_statuses = {
    status: bindparam(f"prune_{status.lower()}", type_=Integer, required=True)
    for status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
}


def kinds(event: Any) -> Mapping[str, ColumnElement[bool]]:
    """Return the conditions of the three disjoint event indexes. A task's events are spread over all three indexes."""
    claim = event.event_type == sql_literal(EventType.CLAIMED)
    ended = and_(event.event_type != sql_literal(EventType.CLAIMED), event.lease_token.is_not(None))
    return {"claim": claim, "end": ended, "other": event.lease_token.is_(None)}


def done(g: Grammar, execution: Any) -> ColumnElement[bool]:
    """Return a condition that tests whether the task ended before :before in one of the statuses to delete, and whether
    its batch, if any, also ended before :before.

    A task in a batch is kept until the tasks after the batch have completed or been cancelled, because they read the
    batch's results, and would do so again after a redrive. A dead letter is deleted anyway, and the batch then stops
    waiting for it.
    """
    wanted = [(execution.status == sql_literal(status)) & (flag == 1) for status, flag in _statuses.items()]
    ended = and_(execution.completed_at < before, or_(*wanted))
    batch = task_batches.c
    # This is not a join, which might read all batches.
    kept = (
        select(batch.id)
        .where(
            batch.id == execution.pipeline_execution_id,
            or_(batch.completed_at.is_(None), batch.completed_at >= before, _may_be_read(g)),
        )
        .scalar_subquery()
    )
    return and_(ended, or_(execution.status == sql_literal(TaskStatus.FAILED), kept.is_(None)))


def _may_be_read(g: Grammar) -> ColumnElement[bool]:
    """Return a condition that tests whether the last task that was enqueued after a batch may still run and read the
    batch's results.

    In a completed batch, all `then` tasks before the last one have completed too. So only one task is looked up, by its
    id.
    """
    follower = task_executions.alias("follower")
    unended = (TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED)
    return (
        select(follower.c.id)
        .where(
            follower.c.id == g.place(task_batches.c.id, task_batches.c.stage),
            follower.c.status.in_([sql_literal(status) for status in unended]),
        )
        .correlate(task_batches)
        .exists()
    )
