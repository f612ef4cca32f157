"""Check tasks against their events, and the events of each task against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from ...database.grammar import Grammar, sql_literal, text_literal
from ...database.tables import execution_events, task_executions, task_outbox
from ...model import ENDS_CLAIM, STATUS_AFTER, TERMINAL, EventType, TaskStatus
from .check import (
    CLAIMS,
    ENDED,
    ENDS,
    EVENT,
    EVENT_OF_TASK,
    EXECUTION,
    OTHERS,
    READY,
    RUNNING,
    TRANSITION,
    Check,
    broken_ones,
    is_a,
    last,
    leading_to,
    of_claim,
    speaks_of,
    task_of,
)

_STATUS: sa.ColumnElement[str] = sa.case(*((is_a(kind), sql_literal(status)) for kind, status in STATUS_AFTER.items()))
"""The status to which an event leads."""
_ALL = (CLAIMS, ENDS, OTHERS)
LEADS_HERE = last(_STATUS, TRANSITION, among=_ALL) == EXECUTION.status
"""A condition that tests whether the last transition of EXECUTION's task leads to the task's status."""
LAST_END = last(EVENT.created_at, TRANSITION, among=_ALL)
_CLAIM = of_claim(EVENT.worker_id, EXECUTION.id, EXECUTION.lease_token)
CLAIMED_BY = _CLAIM.correlate(task_executions).scalar_subquery()
"""The worker that claimed EXECUTION's task with its current token."""


def recorded_position(g: Grammar) -> Any:
    """Select the position of EXECUTION's task according to its events; NULL if no event has it."""
    recorded = g.text_in(EVENT.event_data, "position")
    return last(sa.cast(recorded, sa.BigInteger), speaks_of("position"), recorded.is_not(None), among=(OTHERS,))


def position_differs(recorded: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    return sa.and_(EXECUTION.partition_key.is_not(None), EXECUTION.position != recorded)


def last_due(g: Grammar) -> Any:
    """Select the time at which EXECUTION's task is due according to its last event."""
    return last(_recorded_due(g), TRANSITION, among=_ALL)


def last_retry(g: Grammar) -> Any:
    return last(_recorded_retry(_recorded_due(g)), TRANSITION, among=_ALL)


def last_error(g: Grammar) -> Any:
    """Select the error of EXECUTION's task from the last event that has one."""
    error = g.text_in(EVENT.event_data, "error")
    return last(error, TRANSITION, speaks_of("error"), error.is_not(None), among=(ENDS, OTHERS))


def _recorded_due(g: Grammar) -> sa.ColumnElement[Any]:
    return g.instant_in(EVENT.event_data, "available_at")


def _recorded_retry(due: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return the retry time of the task according to its last event; NULL if it is not waiting for a retry.

    A rescheduled task keeps its retry time unless it was made due now, so the row must have that time or NULL.
    """
    kept = sa.case((EXECUTION.retry_at.is_not(None), due))
    return sa.case((is_a(EventType.RETRY_SCHEDULED), due), (is_a(EventType.RESCHEDULED), kept), else_=sa.null())


def _last_differs(g: Grammar) -> sa.Select[Any]:
    """Check all values that the last transition determines, in one pass over the log."""
    newest = (
        sa.select(EVENT.task_execution_id, sa.func.max(EVENT.sequence_num).label("sequence_num"))
        .where(TRANSITION)
        .group_by(EVENT.task_execution_id)
        .subquery("last")
    )
    # Each condition says that the task has a certain status, and that its last event leads to that status.
    ready = sa.and_(READY, EVENT.event_type.in_(leading_to(TaskStatus.READY)))
    running = sa.and_(RUNNING, EVENT.event_type.in_(leading_to(TaskStatus.RUNNING)))
    ended = sa.and_(ENDED, EVENT.event_type.in_(leading_to(*TERMINAL)))
    due, recorded = task_outbox.c.available_at, _recorded_due(g)
    rows = (
        sa.select(EXECUTION.id)
        .join_from(task_executions, newest, newest.c.task_execution_id == EXECUTION.id)
        .join(execution_events, EVENT.sequence_num == newest.c.sequence_num)
        .outerjoin(task_outbox, task_outbox.c.task_execution_id == EXECUTION.id)
    )
    return broken_ones(
        rows,
        {
            "status_differs_from_events": EXECUTION.status != _STATUS,
            "worker_differs_from_claim": sa.and_(running, EXECUTION.worker_id.is_distinct_from(EVENT.worker_id)),
            "end_differs_from_events": sa.and_(ended, EXECUTION.completed_at.is_distinct_from(EVENT.created_at)),
            # The event is read only if the task is waiting, because parsing JSON takes most of the time here.
            "retry_differs_from_events": EXECUTION.retry_at.is_distinct_from(
                sa.case((ready, _recorded_retry(recorded)))
            ),
            "due_differs_from_events": sa.case((sa.and_(ready, due.is_not(None)), due.is_distinct_from(recorded))),
        },
    )


def _recorded_values_differ(g: Grammar) -> sa.Select[Any]:
    """Check values that are valid until another event changes them."""
    attempt, recoveries, error = (
        _last_recorded(g, member).subquery(f"last_{member}") for member in ("attempt", "recovery_attempts", "error")
    )
    rows = sa.select(EXECUTION.id).select_from(
        task_executions.outerjoin(attempt, attempt.c.id == EXECUTION.id)
        .outerjoin(recoveries, recoveries.c.id == EXECUTION.id)
        .outerjoin(error, error.c.id == EXECUTION.id)
    )
    counted = sa.cast(sa.func.coalesce(attempt.c.recorded, text_literal("1")), sa.Integer)
    recovered = sa.cast(sa.func.coalesce(recoveries.c.recorded, text_literal("0")), sa.Integer)
    return broken_ones(
        rows,
        {
            "counters_differ_from_events": (EXECUTION.attempt != counted) | (EXECUTION.recovery_attempts != recovered),
            "error_differs_from_events": EXECUTION.last_error.is_distinct_from(error.c.recorded),
        },
    )


def _last_recorded(g: Grammar, member: str) -> sa.Select[Any]:
    """Select the member with this name from each task's last event that contains it."""
    value = g.text_in(EVENT.event_data, member)
    nth = sa.func.row_number().over(partition_by=EVENT.task_execution_id, order_by=EVENT.sequence_num.desc())
    recorded = (
        sa.select(task_of(execution_events), value.label("recorded"), nth.label("nth"))
        .where(TRANSITION, speaks_of(member), value.is_not(None))
        .subquery(f"recorded_{member}")
    )
    return sa.select(recorded.c.id, recorded.c.recorded).where(recorded.c.nth == sa.literal_column("1", sa.Integer))


TASK_EVENT_CHECKS: Mapping[str, Check] = {
    "position_differs_from_events": Check(
        meaning="a task's position does not match the one it was enqueued with, so tasks with its partition key run out of order",
        broken=lambda g: sa.select(EXECUTION.id).where(position_differs(recorded_position(g))),
    ),
    "status_differs_from_events": Check(
        meaning="a task's status does not match its last transition",
        broken=_last_differs,
        also={
            "worker_differs_from_claim": "a Running task's worker is not the one that claimed it",
            "end_differs_from_events": "a task's completion time does not match its last event",
            "retry_differs_from_events": "a task's retry time does not match its last event",
            "due_differs_from_events": "the due time of an outbox entry does not match its task's last event",
        },
    ),
    "counters_differ_from_events": Check(
        meaning="a task's number of attempts or recoveries does not match its events",
        broken=_recorded_values_differ,
        also={"error_differs_from_events": "a task's error does not match the last recorded error"},
    ),
}


_CLAIMED = is_a(EventType.CLAIMED)
_OF_CLAIM = EVENT.lease_token.is_not(None)
_REQUEST = sa.and_(EVENT_OF_TASK, EVENT.lease_token.is_(None), is_a(EventType.CANCEL_REQUESTED))
UNHEARD = sa.and_(RUNNING, EXECUTION.cancel_requested_at.is_(None))
"""A condition that tests whether the task is running without a cancel request in its row."""


def asked_since_claim() -> Any:
    """Select the time at which EXECUTION's task was asked to stop under its current claim; NULL if there was no
    request.
    """
    claim = execution_events.alias("claim").c
    begun = of_claim(claim.sequence_num, EXECUTION.id, EXECUTION.lease_token, claim)
    asked = sa.select(sa.func.max(EVENT.created_at)).where(
        _REQUEST, EVENT.sequence_num > begun.correlate(task_executions).scalar_subquery()
    )
    return asked.correlate(task_executions).scalar_subquery()


def _request_not_recorded(_: Grammar) -> sa.Select[Any]:
    request = sa.select(EVENT.sequence_num).where(_REQUEST, EVENT.created_at == EXECUTION.cancel_requested_at)
    return sa.select(EXECUTION.id).where(EXECUTION.cancel_requested_at.is_not(None), ~request.exists())


def _number(*conditions: sa.ColumnElement[bool]) -> Any:
    """Count the events of EXECUTION's task that meet all conditions."""
    return sa.select(sa.func.count()).where(EVENT_OF_TASK, *conditions).scalar_subquery()


def _more_than_one(kind: sa.ColumnElement[bool]) -> sa.Select[Any]:
    claims = sa.select(task_of(execution_events)).where(kind).group_by(EVENT.task_execution_id, EVENT.lease_token)
    return claims.having(sa.func.count() > 1)


def _end_without_claim(_: Grammar) -> sa.Select[Any]:
    claimed = execution_events.alias("claimed").c
    begun = of_claim(claimed.sequence_num, EVENT.task_execution_id, EVENT.lease_token, claimed)
    no_end = EVENT.event_type.not_in([sql_literal(kind) for kind in sorted(ENDS_CLAIM)])
    return sa.select(task_of(execution_events)).where(~_CLAIMED, _OF_CLAIM, sa.or_(no_end, ~begun.exists()))


def _claim_left_open(_: Grammar) -> sa.Select[Any]:
    ended = execution_events.alias("ended")
    end = sa.select(ended.c.sequence_num).where(
        ended.c.task_execution_id == EVENT.task_execution_id,
        ended.c.lease_token == EVENT.lease_token,
        ~is_a(EventType.CLAIMED, ended.c),
        ended.c.lease_token.is_not(None),
    )
    open_now = sa.and_(RUNNING, EXECUTION.lease_token == EVENT.lease_token)
    return (
        sa.select(EXECUTION.id)
        .join_from(execution_events, task_executions, EXECUTION.id == EVENT.task_execution_id)
        .where(_CLAIMED, open_now == end.exists())
    )


def _life_after_end(_: Grammar) -> sa.Select[Any]:
    steps = _steps(_before(EVENT.event_type).label("before"))
    again = [sql_literal(kind) for kind in (EventType.REQUEUED, EventType.RETRY_SCHEDULED, EventType.DISCARDED)]
    is_manual = sa.and_(steps.c.before.in_(leading_to(TaskStatus.FAILED)), steps.c.event_type.in_(again))
    return sa.select(steps.c.id).where(steps.c.before.in_(leading_to(*TERMINAL)), ~is_manual)


def _claimed_early(g: Grammar) -> sa.Select[Any]:
    due = g.instant_in(EVENT.event_data, "available_at")
    steps = _steps(EVENT.created_at, _before(due).label("due"))
    early = sa.or_(steps.c.due.is_(None), steps.c.created_at < steps.c.due)
    return sa.select(steps.c.id).where(is_a(EventType.CLAIMED, steps.c), early)


def _steps(*columns: sa.ColumnElement[Any]) -> sa.FromClause:
    return sa.select(task_of(execution_events), EVENT.event_type, *columns).where(TRANSITION).subquery("steps")


def _before(recorded: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return a value from the previous transition of the same task."""
    return sa.func.lag(recorded).over(partition_by=EVENT.task_execution_id, order_by=EVENT.sequence_num)


def _recovered_early(g: Grammar) -> sa.Select[Any]:
    recovered = [sql_literal(EventType.RESET), sql_literal(EventType.ABANDONED)]
    expired = g.instant_in(EVENT.event_data, "lease_expires_at")
    return sa.select(task_of(execution_events)).where(
        EVENT.event_type.in_(recovered), sa.or_(expired.is_(None), EVENT.created_at < expired)
    )


def _lost_or_moved(_: Grammar) -> sa.Select[Any]:
    """Select only one row for each task, even if it has many events."""
    lost = EXECUTION.id.is_(None)
    rows = (
        sa.select(task_of(execution_events))
        .outerjoin_from(execution_events, task_executions, EXECUTION.id == EVENT.task_execution_id)
        .where(
            EVENT.task_execution_id.is_not(None),
            sa.or_(lost, EXECUTION.pipeline_execution_id != EVENT.pipeline_execution_id),
        )
        .distinct()
    )
    return broken_ones(rows, {"events_without_task": lost, "pipeline_differs_from_events": ~lost})


LOG_CHECKS: Mapping[str, Check] = {
    "cancel_not_recorded": Check(
        meaning="a task has a cancel request that no event records", broken=_request_not_recorded
    ),
    "cancel_forgotten": Check(
        meaning="an event records a cancel request for a running task, but the task's row has none, so its worker does not see it",
        broken=lambda _: sa.select(EXECUTION.id).where(UNHEARD, asked_since_claim().is_not(None)),
    ),
    "birth_not_recorded_once": Check(
        meaning="a task has no task_created event, or more than one",
        broken=lambda _: sa.select(EXECUTION.id).where(
            _number(EVENT.lease_token.is_(None), is_a(EventType.CREATED)) != 1
        ),
    ),
    "token_differs_from_claims": Check(
        meaning="a task's lease token does not equal the number of its recorded claims",
        broken=lambda _: sa.select(EXECUTION.id).where(EXECUTION.lease_token != _number(_CLAIMED)),
    ),
    "claimed_twice": Check(
        meaning="a task was claimed twice with the same lease token", broken=lambda _: _more_than_one(_CLAIMED)
    ),
    "ended_twice": Check(meaning="a claim ended twice", broken=lambda _: _more_than_one(sa.and_(~_CLAIMED, _OF_CLAIM))),
    "end_without_claim": Check(
        meaning="a claim that never began has ended, or an event has a lease token although it does not end a claim",
        broken=_end_without_claim,
    ),
    "claim_left_open": Check(
        meaning="a claim has not ended, although the task is not Running under that claim", broken=_claim_left_open
    ),
    "life_after_end": Check(
        meaning="a task has an event after it ended, although it was not redriven", broken=_life_after_end
    ),
    "claimed_early": Check(meaning="a task was claimed before it was due", broken=_claimed_early),
    "recovered_early": Check(meaning="a lease was recovered before it expired", broken=_recovered_early),
    "events_without_task": Check(
        meaning="a task has events but no row, so the task is lost (a prune would have deleted both)",
        broken=_lost_or_moved,
        also={"pipeline_differs_from_events": "an event and its task name different pipeline executions"},
    ),
}
