"""Check the log: it is complete, and agrees with the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select

from ....model import ENDS_CLAIM, STATUS_AFTER, TERMINAL, EventType, TaskStatus
from ...tables import execution_events, task_executions
from ..grammar import Grammar, word
from .check import EVENT, EXECUTION, TRANSITION, Check, broken_ones


def checks() -> Mapping[str, Check]:
    return {
        "birth_not_recorded_once": Check(
            meaning="a task has no task_created event, or more than one", broken=_birth_not_once
        ),
        "token_differs_from_claims": Check(
            meaning="the lease token is not the number of claims recorded", broken=_token_differs
        ),
        "claimed_twice": Check(
            meaning="one lease token was claimed twice",
            broken=lambda _: _more_than_one(EVENT.event_type == word(EventType.CLAIMED)),
        ),
        "ended_twice": Check(
            meaning="one claim has two ends",
            broken=lambda _: _more_than_one(
                and_(EVENT.event_type != word(EventType.CLAIMED), EVENT.lease_token.is_not(None))
            ),
        ),
        "end_without_claim": Check(
            meaning="a claim that never began has ended, or an event that ends no claim has a lease token",
            broken=_end_without_claim,
        ),
        "claim_left_open": Check(
            meaning="a claim has no end although its task is not Running under it", broken=_claim_left_open
        ),
        "life_after_end": Check(
            meaning="a task has an event after its end, although it was not redriven",
            broken=_life_after_end,
        ),
        "claimed_early": Check(meaning="a task was claimed before it was due", broken=_claimed_early),
        "recovered_early": Check(meaning="a lease was taken back before it expired", broken=_recovered_early),
        "events_without_task": Check(
            meaning="a task has events but no row; pruning deletes both, so the task is lost",
            broken=lambda _: _lost_or_moved(),
            also={"pipeline_differs_from_events": "an event names another pipeline execution than its task"},
        ),
    }


def _birth_not_once(_: Grammar) -> Select[Any]:
    births = select(func.count()).where(
        EVENT.task_execution_id == EXECUTION.id,
        EVENT.lease_token.is_(None),
        EVENT.event_type == word(EventType.CREATED),
    )
    return select(EXECUTION.id).where(births.scalar_subquery() != 1)


def _token_differs(_: Grammar) -> Select[Any]:
    claims = select(func.count()).where(
        EVENT.task_execution_id == EXECUTION.id, EVENT.event_type == word(EventType.CLAIMED)
    )
    return select(EXECUTION.id).where(EXECUTION.lease_token != claims.scalar_subquery())


def _more_than_one(kind: ColumnElement[bool]) -> Select[Any]:
    return (
        select(EVENT.task_execution_id.label("id"))
        .where(kind)
        .group_by(EVENT.task_execution_id, EVENT.lease_token)
        .having(func.count() > 1)
    )


def _end_without_claim(_: Grammar) -> Select[Any]:
    claimed = execution_events.alias("claimed")
    begun = select(claimed.c.sequence_num).where(
        claimed.c.task_execution_id == EVENT.task_execution_id,
        claimed.c.lease_token == EVENT.lease_token,
        claimed.c.event_type == word(EventType.CLAIMED),
    )
    no_end = EVENT.event_type.not_in([word(kind) for kind in sorted(ENDS_CLAIM)])
    return select(EVENT.task_execution_id.label("id")).where(
        EVENT.event_type != word(EventType.CLAIMED),
        EVENT.lease_token.is_not(None),
        or_(no_end, ~begun.exists()),
    )


def _claim_left_open(_: Grammar) -> Select[Any]:
    ended = execution_events.alias("ended")
    end = select(ended.c.sequence_num).where(
        ended.c.task_execution_id == EVENT.task_execution_id,
        ended.c.lease_token == EVENT.lease_token,
        ended.c.event_type != word(EventType.CLAIMED),
        ended.c.lease_token.is_not(None),
    )
    open_now = and_(EXECUTION.status == word(TaskStatus.RUNNING), EXECUTION.lease_token == EVENT.lease_token)
    return (
        select(EXECUTION.id)
        .join_from(execution_events, task_executions, EXECUTION.id == EVENT.task_execution_id)
        .where(EVENT.event_type == word(EventType.CLAIMED), open_now == end.exists())
    )


def _life_after_end(_: Grammar) -> Select[Any]:
    before = func.lag(EVENT.event_type).over(partition_by=EVENT.task_execution_id, order_by=EVENT.sequence_num)
    steps = (
        select(EVENT.task_execution_id.label("id"), EVENT.event_type, before.label("before"))
        .where(TRANSITION)
        .subquery("steps")
    )
    ends = [word(kind) for kind, status in STATUS_AFTER.items() if status in TERMINAL]
    failed = [word(kind) for kind, status in STATUS_AFTER.items() if status is TaskStatus.FAILED]
    again = [word(EventType.REQUEUED), word(EventType.RETRY_SCHEDULED), word(EventType.DISCARDED)]
    by_hand = and_(steps.c.before.in_(failed), steps.c.event_type.in_(again))
    return select(steps.c.id).where(steps.c.before.in_(ends), ~by_hand)


def _claimed_early(g: Grammar) -> Select[Any]:
    due = g.instant_in(EVENT.event_data, "available_at")
    before = func.lag(due).over(partition_by=EVENT.task_execution_id, order_by=EVENT.sequence_num)
    steps = (
        select(EVENT.task_execution_id.label("id"), EVENT.event_type, EVENT.created_at, before.label("due"))
        .where(TRANSITION)
        .subquery("steps")
    )
    return select(steps.c.id).where(
        steps.c.event_type == word(EventType.CLAIMED), or_(steps.c.due.is_(None), steps.c.created_at < steps.c.due)
    )


def _recovered_early(g: Grammar) -> Select[Any]:
    recovered = [word(EventType.RESET), word(EventType.ABANDONED)]
    expired = g.instant_in(EVENT.event_data, "lease_expires_at")
    return select(EVENT.task_execution_id.label("id")).where(
        EVENT.event_type.in_(recovered), or_(expired.is_(None), EVENT.created_at < expired)
    )


def _lost_or_moved() -> Select[Any]:
    """Select one row for each task, whatever the number of its events."""
    rows = (
        select(EVENT.task_execution_id.label("id"))
        .outerjoin_from(execution_events, task_executions, EXECUTION.id == EVENT.task_execution_id)
        .where(
            EVENT.task_execution_id.is_not(None),
            or_(EXECUTION.id.is_(None), EXECUTION.pipeline_execution_id != EVENT.pipeline_execution_id),
        )
        .distinct()
    )
    lost = EXECUTION.id.is_(None)
    return broken_ones(rows, {"events_without_task": lost, "pipeline_differs_from_events": ~lost})
