"""Check the log: it is complete, and agrees with the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, and_, func, or_, select

from ....model import ENDS_CLAIM, TERMINAL, EventType, TaskStatus
from ...grammar import Grammar, sql_literal
from ...tables import execution_events, task_executions
from .check import (
    EVENT,
    EVENT_OF_TASK,
    EXECUTION,
    RUNNING,
    TRANSITION,
    Check,
    broken_ones,
    is_a,
    leading_to,
    of_claim,
    task_of,
)

_CLAIMED = is_a(EventType.CLAIMED)
_OF_CLAIM = EVENT.lease_token.is_not(None)
_REQUEST = and_(EVENT_OF_TASK, EVENT.lease_token.is_(None), is_a(EventType.CANCEL_REQUESTED))
UNHEARD = and_(RUNNING, EXECUTION.cancel_requested_at.is_(None))
"""A condition: the task runs, and its row has no cancel request."""


def checks() -> Mapping[str, Check]:
    return {
        "cancel_not_recorded": Check(
            meaning="a task has a cancel request that no event records", broken=_request_not_recorded
        ),
        "cancel_forgotten": Check(
            meaning="an event records a cancel request for a running task, but its row has none, so its worker does not see it",
            broken=lambda _: select(EXECUTION.id).where(UNHEARD, asked_since_claim().is_not(None)),
        ),
        "birth_not_recorded_once": Check(
            meaning="a task has no task_created event, or more than one",
            broken=lambda _: select(EXECUTION.id).where(
                _number(EVENT.lease_token.is_(None), is_a(EventType.CREATED)) != 1
            ),
        ),
        "token_differs_from_claims": Check(
            meaning="the lease token is not the number of claims recorded",
            broken=lambda _: select(EXECUTION.id).where(EXECUTION.lease_token != _number(_CLAIMED)),
        ),
        "claimed_twice": Check(meaning="one lease token was claimed twice", broken=lambda _: _more_than_one(_CLAIMED)),
        "ended_twice": Check(
            meaning="one claim has two ends", broken=lambda _: _more_than_one(and_(~_CLAIMED, _OF_CLAIM))
        ),
        "end_without_claim": Check(
            meaning="a claim that never began has ended, or an event that ends no claim has a lease token",
            broken=_end_without_claim,
        ),
        "claim_left_open": Check(
            meaning="a claim has no end although its task is not Running under it", broken=_claim_left_open
        ),
        "life_after_end": Check(
            meaning="a task has an event after its end, although it was not redriven", broken=_life_after_end
        ),
        "claimed_early": Check(meaning="a task was claimed before it was due", broken=_claimed_early),
        "recovered_early": Check(meaning="a lease was taken back before it expired", broken=_recovered_early),
        "events_without_task": Check(
            meaning="a task has events but no row; pruning deletes both, so the task is lost",
            broken=_lost_or_moved,
            also={"pipeline_differs_from_events": "an event names another pipeline execution than its task"},
        ),
    }


def asked_since_claim() -> Any:
    """Select the time at which the present claim of EXECUTION's task was asked to stop; NULL if it was not."""
    claim = execution_events.alias("claim").c
    begun = of_claim(claim.sequence_num, EXECUTION.id, EXECUTION.lease_token, claim)
    asked = select(func.max(EVENT.created_at)).where(
        _REQUEST, EVENT.sequence_num > begun.correlate(task_executions).scalar_subquery()
    )
    return asked.correlate(task_executions).scalar_subquery()


def _request_not_recorded(_: Grammar) -> Select[Any]:
    request = select(EVENT.sequence_num).where(_REQUEST, EVENT.created_at == EXECUTION.cancel_requested_at)
    return select(EXECUTION.id).where(EXECUTION.cancel_requested_at.is_not(None), ~request.exists())


def _number(*conditions: ColumnElement[bool]) -> Any:
    """Count the events of EXECUTION's task for which all conditions hold."""
    return select(func.count()).where(EVENT_OF_TASK, *conditions).scalar_subquery()


def _more_than_one(kind: ColumnElement[bool]) -> Select[Any]:
    claims = select(task_of(execution_events)).where(kind).group_by(EVENT.task_execution_id, EVENT.lease_token)
    return claims.having(func.count() > 1)


def _end_without_claim(_: Grammar) -> Select[Any]:
    claimed = execution_events.alias("claimed").c
    begun = of_claim(claimed.sequence_num, EVENT.task_execution_id, EVENT.lease_token, claimed)
    no_end = EVENT.event_type.not_in([sql_literal(kind) for kind in sorted(ENDS_CLAIM)])
    return select(task_of(execution_events)).where(~_CLAIMED, _OF_CLAIM, or_(no_end, ~begun.exists()))


def _claim_left_open(_: Grammar) -> Select[Any]:
    ended = execution_events.alias("ended")
    end = select(ended.c.sequence_num).where(
        ended.c.task_execution_id == EVENT.task_execution_id,
        ended.c.lease_token == EVENT.lease_token,
        ~is_a(EventType.CLAIMED, ended.c),
        ended.c.lease_token.is_not(None),
    )
    open_now = and_(RUNNING, EXECUTION.lease_token == EVENT.lease_token)
    return (
        select(EXECUTION.id)
        .join_from(execution_events, task_executions, EXECUTION.id == EVENT.task_execution_id)
        .where(_CLAIMED, open_now == end.exists())
    )


def _life_after_end(_: Grammar) -> Select[Any]:
    steps = _steps(_before(EVENT.event_type).label("before"))
    again = [sql_literal(kind) for kind in (EventType.REQUEUED, EventType.RETRY_SCHEDULED, EventType.DISCARDED)]
    by_hand = and_(steps.c.before.in_(leading_to(TaskStatus.FAILED)), steps.c.event_type.in_(again))
    return select(steps.c.id).where(steps.c.before.in_(leading_to(*TERMINAL)), ~by_hand)


def _claimed_early(g: Grammar) -> Select[Any]:
    due = g.instant_in(EVENT.event_data, "available_at")
    steps = _steps(EVENT.created_at, _before(due).label("due"))
    early = or_(steps.c.due.is_(None), steps.c.created_at < steps.c.due)
    return select(steps.c.id).where(is_a(EventType.CLAIMED, steps.c), early)


def _steps(*columns: ColumnElement[Any]) -> FromClause:
    return select(task_of(execution_events), EVENT.event_type, *columns).where(TRANSITION).subquery("steps")


def _before(said: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return what the transition before says, of the same task."""
    return func.lag(said).over(partition_by=EVENT.task_execution_id, order_by=EVENT.sequence_num)


def _recovered_early(g: Grammar) -> Select[Any]:
    recovered = [sql_literal(EventType.RESET), sql_literal(EventType.ABANDONED)]
    expired = g.instant_in(EVENT.event_data, "lease_expires_at")
    return select(task_of(execution_events)).where(
        EVENT.event_type.in_(recovered), or_(expired.is_(None), EVENT.created_at < expired)
    )


def _lost_or_moved(_: Grammar) -> Select[Any]:
    """Select one row for each task, whatever the number of its events."""
    lost = EXECUTION.id.is_(None)
    rows = (
        select(task_of(execution_events))
        .outerjoin_from(execution_events, task_executions, EXECUTION.id == EVENT.task_execution_id)
        .where(
            EVENT.task_execution_id.is_not(None),
            or_(lost, EXECUTION.pipeline_execution_id != EVENT.pipeline_execution_id),
        )
        .distinct()
    )
    return broken_ones(rows, {"events_without_task": lost, "pipeline_differs_from_events": ~lost})
