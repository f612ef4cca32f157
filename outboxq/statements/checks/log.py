"""Checks of the log: that it is whole, and tells the same story as the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Integer, Select, and_, case, cast, func, literal_column, or_, select

from ...model import ENDS_CLAIM, STATUS_AFTER, TERMINAL, EventType, TaskStatus
from ...tables import execution_events, task_executions
from ..grammar import Grammar, word
from .check import EVENT, EXECUTION, TRANSITION, Check


def checks() -> Mapping[str, Check]:
    return {
        "status_differs_from_events": Check(
            meaning="the last transition recorded leads to another status than the task has", broken=_status_differs
        ),
        "counters_differ_from_events": Check(
            meaning="the last events that say so say another attempt, or number of recoveries, than the task has",
            broken=_counters_differ,
        ),
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
            meaning="a claim ended that never began, or an event that ends no claim carries a token",
            broken=_end_without_claim,
        ),
        "claim_left_open": Check(
            meaning="a claim has no end although its task is not Running under it", broken=_claim_left_open
        ),
        "life_after_end": Check(
            meaning="something happened to a task after its end, and it was not run again by hand",
            broken=_life_after_end,
        ),
        "claimed_early": Check(meaning="a task was claimed before it was due", broken=_claimed_early),
        "recovered_early": Check(meaning="a lease was taken back before it expired", broken=_recovered_early),
    }


def _status_differs(_: Grammar) -> Select[Any]:
    last = (
        select(EVENT.task_execution_id, func.max(EVENT.sequence_num).label("sequence_num"))
        .where(TRANSITION)
        .group_by(EVENT.task_execution_id)
        .subquery("last")
    )
    says = case(*((EVENT.event_type == word(kind), word(status)) for kind, status in STATUS_AFTER.items()))
    return (
        select(EXECUTION.id)
        .join_from(task_executions, last, last.c.task_execution_id == EXECUTION.id)
        .join(execution_events, EVENT.sequence_num == last.c.sequence_num)
        .where(EXECUTION.status != says)
    )


def _counters_differ(g: Grammar) -> Select[Any]:
    attempt, recoveries = _last_said(g, "attempt"), _last_said(g, "recovery_attempts")
    said = task_executions.outerjoin(attempt, attempt.c.id == EXECUTION.id).outerjoin(
        recoveries, recoveries.c.id == EXECUTION.id
    )
    return (
        select(EXECUTION.id)
        .select_from(said)
        .where(
            or_(
                EXECUTION.attempt != func.coalesce(attempt.c.number, literal_column("1", Integer)),
                EXECUTION.recovery_attempts != func.coalesce(recoveries.c.number, literal_column("0", Integer)),
            )
        )
    )


def _last_said(g: Grammar, member: str) -> FromClause:
    """The number under this name in the last event of each task that has one."""
    number = g.text_in(EVENT.event_data, member)
    nth = func.row_number().over(partition_by=EVENT.task_execution_id, order_by=EVENT.sequence_num.desc())
    said = (
        select(EVENT.task_execution_id.label("id"), number.label("number"), nth.label("nth"))
        .where(TRANSITION, number.is_not(None))
        .subquery(f"said_{member}")
    )
    return (
        select(said.c.id, cast(said.c.number, Integer).label("number"))
        .where(said.c.nth == literal_column("1", Integer))
        .subquery(f"last_{member}")
    )


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
