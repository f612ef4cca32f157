"""Replay a task's events, and check that they lead to its row and its outbox entry (`model.history.TaskState`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, Select, and_, case, cast, func, literal_column, null, select

from ....model import STATUS_AFTER, TERMINAL, EventType, TaskStatus
from ...tables import execution_events, task_executions, task_outbox
from ..grammar import Grammar, sql_literal
from .check import (
    CLAIMS,
    ENDED,
    ENDS,
    EVENT,
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
    text_literal,
)

_STATUS: ColumnElement[str] = case(*((is_a(kind), sql_literal(status)) for kind, status in STATUS_AFTER.items()))
"""The status to which an event leads."""
_ALL = (CLAIMS, ENDS, OTHERS)
LEADS_HERE = last(_STATUS, TRANSITION, among=_ALL) == EXECUTION.status
"""A condition: the last transition of EXECUTION's task leads to the status that it has."""
LAST_END = last(EVENT.created_at, TRANSITION, among=_ALL)
_CLAIM = of_claim(EVENT.worker_id, EXECUTION.id, EXECUTION.lease_token)
CLAIMED_BY = _CLAIM.correlate(task_executions).scalar_subquery()
"""The worker that claimed EXECUTION's task under its present token."""


def checks() -> Mapping[str, Check]:
    return {
        "position_differs_from_events": Check(
            meaning="a task's position differs from the one it was enqueued with, so the order of its partition key is broken",
            broken=lambda g: select(EXECUTION.id).where(position_differs(said_position(g))),
        ),
        "status_differs_from_events": Check(
            meaning="the task's status is not the one to which its last transition leads",
            broken=_last_differs,
            also={
                "worker_differs_from_claim": "a Running task's worker is not the one that claimed it",
                "end_differs_from_events": "a task ended at another time than its last event says",
                "retry_differs_from_events": "a task's retry time differs from its last event",
                "due_differs_from_events": "an outbox entry is due at another time than the task's last event says",
            },
        ),
        "counters_differ_from_events": Check(
            meaning="a task's attempt or number of recoveries differs from its events",
            broken=_said_differs,
            also={"error_differs_from_events": "a task's error differs from the last one recorded"},
        ),
    }


def said_position(g: Grammar) -> Any:
    """Select the position that EXECUTION's task got in its key; NULL if no event has it."""
    said = g.text_in(EVENT.event_data, "position")
    return last(cast(said, BigInteger), speaks_of("position"), said.is_not(None), among=(OTHERS,))


def position_differs(said: ColumnElement[int]) -> ColumnElement[bool]:
    return and_(EXECUTION.partition_key.is_not(None), EXECUTION.position != said)


def last_due(g: Grammar) -> Any:
    """Select the time at which EXECUTION's task is due."""
    return last(_said_due(g), TRANSITION, among=_ALL)


def last_retry(g: Grammar) -> Any:
    return last(_said_retry(_said_due(g)), TRANSITION, among=_ALL)


def last_error(g: Grammar) -> Any:
    """Select the error of EXECUTION's task from the last event that has one."""
    error = g.text_in(EVENT.event_data, "error")
    return last(error, TRANSITION, speaks_of("error"), error.is_not(None), among=(ENDS, OTHERS))


def _said_due(g: Grammar) -> ColumnElement[Any]:
    return g.instant_in(EVENT.event_data, "available_at")


def _said_retry(due: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the time of the task's retry by its last event; NULL if it waits for none.

    A rescheduled task keeps its retry unless it was made due now, so the row must have that time or none.
    """
    kept = case((EXECUTION.retry_at.is_not(None), due))
    return case((is_a(EventType.RETRY_SCHEDULED), due), (is_a(EventType.RESCHEDULED), kept), else_=null())


def _last_differs(g: Grammar) -> Select[Any]:
    """Check everything that the last transition decides in one pass over the log."""
    newest = (
        select(EVENT.task_execution_id, func.max(EVENT.sequence_num).label("sequence_num"))
        .where(TRANSITION)
        .group_by(EVENT.task_execution_id)
        .subquery("last")
    )
    # The task is so, and its last event leads there.
    ready = and_(READY, EVENT.event_type.in_(leading_to(TaskStatus.READY)))
    running = and_(RUNNING, EVENT.event_type.in_(leading_to(TaskStatus.RUNNING)))
    ended = and_(ENDED, EVENT.event_type.in_(leading_to(*TERMINAL)))
    due, said = task_outbox.c.available_at, _said_due(g)
    rows = (
        select(EXECUTION.id)
        .join_from(task_executions, newest, newest.c.task_execution_id == EXECUTION.id)
        .join(execution_events, EVENT.sequence_num == newest.c.sequence_num)
        .outerjoin(task_outbox, task_outbox.c.task_execution_id == EXECUTION.id)
    )
    return broken_ones(
        rows,
        {
            "status_differs_from_events": EXECUTION.status != _STATUS,
            "worker_differs_from_claim": and_(running, EXECUTION.worker_id.is_distinct_from(EVENT.worker_id)),
            "end_differs_from_events": and_(ended, EXECUTION.completed_at.is_distinct_from(EVENT.created_at)),
            # Read from the event only if the task waits, because parsing JSON takes most of the time here.
            "retry_differs_from_events": EXECUTION.retry_at.is_distinct_from(case((ready, _said_retry(said)))),
            "due_differs_from_events": case((and_(ready, due.is_not(None)), due.is_distinct_from(said))),
        },
    )


def _said_differs(g: Grammar) -> Select[Any]:
    """Check the facts that hold until another event changes them."""
    attempt, recoveries, error = (
        _last_said(g, member).subquery(f"last_{member}") for member in ("attempt", "recovery_attempts", "error")
    )
    rows = select(EXECUTION.id).select_from(
        task_executions.outerjoin(attempt, attempt.c.id == EXECUTION.id)
        .outerjoin(recoveries, recoveries.c.id == EXECUTION.id)
        .outerjoin(error, error.c.id == EXECUTION.id)
    )
    counted = cast(func.coalesce(attempt.c.said, text_literal("1")), Integer)
    recovered = cast(func.coalesce(recoveries.c.said, text_literal("0")), Integer)
    return broken_ones(
        rows,
        {
            "counters_differ_from_events": (EXECUTION.attempt != counted) | (EXECUTION.recovery_attempts != recovered),
            "error_differs_from_events": EXECUTION.last_error.is_distinct_from(error.c.said),
        },
    )


def _last_said(g: Grammar, member: str) -> Select[Any]:
    """Select the member of this name in the last event of each task that has it."""
    value = g.text_in(EVENT.event_data, member)
    nth = func.row_number().over(partition_by=EVENT.task_execution_id, order_by=EVENT.sequence_num.desc())
    said = (
        select(task_of(execution_events), value.label("said"), nth.label("nth"))
        .where(TRANSITION, speaks_of(member), value.is_not(None))
        .subquery(f"said_{member}")
    )
    return select(said.c.id, said.c.said).where(said.c.nth == literal_column("1", Integer))
