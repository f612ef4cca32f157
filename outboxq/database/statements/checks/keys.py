"""Check partition keys: each has one holder, which has a reason to hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, and_, false, func, literal_column, or_, select, true

from ....model import EventType, OnDeadLetter, TaskStatus
from ...tables import execution_events, partition_claims, task_executions
from ..grammar import word
from .check import EVENT, EXECUTION, Check

_claim = partition_claims.c
RUNNING = and_(EXECUTION.partition_key.is_not(None), EXECUTION.status == word(TaskStatus.RUNNING))
"""A condition: the task runs, so it has its key."""
HOLDING = and_(
    EXECUTION.partition_key.is_not(None),
    EXECUTION.status == word(TaskStatus.FAILED),
    EXECUTION.on_dead_letter == word(OnDeadLetter.HOLD),
)
"""A condition: the task has Failed with `on_dead_letter=hold`, so it keeps its key."""
CLAIM_OF_TASK = select(_claim.task_execution_id).where(
    _claim.task_execution_id == EXECUTION.id,
    _claim.queue == EXECUTION.queue,
    _claim.partition_key == EXECUTION.partition_key,
)
TASK_OF_CLAIM = select(EXECUTION.id).where(
    EXECUTION.id == _claim.task_execution_id,
    EXECUTION.queue == _claim.queue,
    EXECUTION.partition_key == _claim.partition_key,
    or_(and_(RUNNING, _claim.held == false()), and_(HOLDING, _claim.held == true())),
)


def checks() -> Mapping[str, Check]:
    return {
        "claimed_key_without_task": Check(
            meaning="a partition key is taken by a task that neither runs nor holds it, so its tasks are never claimed",
            broken=lambda _: _claim_without_task(),
        ),
        "running_without_key": Check(
            meaning="a Running task has not taken its partition key, so another task of the key may run beside it",
            broken=lambda _: _running_without_key(),
        ),
        "failed_without_key": Check(
            meaning="a task that Failed with on_dead_letter=hold does not hold its partition key",
            broken=lambda _: _failed_without_key(),
        ),
        "key_running_twice": Check(
            meaning="a task runs beside a later one of its partition key", broken=lambda _: _running_twice()
        ),
        "key_claimed_twice": Check(
            meaning="another task of its partition key was claimed before a claim had ended",
            broken=lambda _: _claimed_twice(),
        ),
    }


def _claim_without_task() -> Select[Any]:
    return select(_claim.task_execution_id.label("id")).where(~TASK_OF_CLAIM.exists())


def _running_without_key() -> Select[Any]:
    return select(EXECUTION.id).where(RUNNING, ~CLAIM_OF_TASK.where(_claim.held == false()).exists())


def _failed_without_key() -> Select[Any]:
    return select(EXECUTION.id).where(HOLDING, ~CLAIM_OF_TASK.where(_claim.held == true()).exists())


def _running_twice() -> Select[Any]:
    key = (EXECUTION.queue, EXECUTION.partition_key)
    nth = func.row_number().over(partition_by=key, order_by=(EXECUTION.position.desc(), EXECUTION.id))
    running = select(EXECUTION.id, nth.label("nth")).where(RUNNING).subquery("running")
    return select(running.c.id).where(running.c.nth > literal_column("1"))


def _claimed_twice() -> Select[Any]:
    """Compare claims by their numbers, not by clocks: a claim of a key after a committed end draws a higher number.

    A replaced task may have had another key before, which is not recorded.
    """
    replaced = execution_events.alias("replaced")
    moved = select(replaced.c.sequence_num).where(
        replaced.c.task_execution_id == EXECUTION.id,
        replaced.c.lease_token.is_(None),
        replaced.c.event_type == word(EventType.REPLACED),
    )
    following = func.lead(EVENT.event_type).over(
        partition_by=(EXECUTION.queue, EXECUTION.partition_key), order_by=EVENT.sequence_num
    )
    steps = (
        select(EXECUTION.id, EVENT.event_type, following.label("following"))
        .join_from(task_executions, execution_events, EVENT.task_execution_id == EXECUTION.id)
        .where(EXECUTION.partition_key.is_not(None), EVENT.lease_token.is_not(None), ~moved.exists())
        .subquery("steps")
    )
    claimed = word(EventType.CLAIMED)
    return select(steps.c.id).where(steps.c.event_type == claimed, steps.c.following == claimed)
