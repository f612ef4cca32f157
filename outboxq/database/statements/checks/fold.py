"""Replay a task's events, and check that they lead to its row and its outbox entry (`model.replay.TaskState`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    literal_column,
    null,
    select,
)

from ....model import STATUS_AFTER, TERMINAL, EventType, TaskStatus
from ...tables import execution_events, task_executions, task_outbox
from ..grammar import Grammar, word
from .check import ENDED, EVENT, EXECUTION, TRANSITION, Check, broken_ones

_STATUS: ColumnElement[str] = case(
    *((EVENT.event_type == word(kind), word(status)) for kind, status in STATUS_AFTER.items())
)
"""The status to which an event leads."""
MOMENT = EVENT.created_at


def checks() -> Mapping[str, Check]:
    return {
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


def said_due(g: Grammar) -> ColumnElement[Any]:
    """The time at which the event's task is due."""
    return g.instant_in(EVENT.event_data, "available_at")


def said_retry(due: ColumnElement[Any]) -> ColumnElement[Any]:
    """The time of the task's retry by its last event; NULL if it waits for none.

    A rescheduled task keeps its retry unless it was made due now, so the row must have that time or none.
    """
    kept = case((EXECUTION.retry_at.is_not(None), due))
    return case(
        (EVENT.event_type == word(EventType.RETRY_SCHEDULED), due),
        (EVENT.event_type == word(EventType.RESCHEDULED), kept),
        else_=null(),
    )


def last(said: ColumnElement[Any]) -> Any:
    """Return the data of the last transition of EXECUTION's task."""
    return (
        select(said)
        .where(EVENT.task_execution_id == EXECUTION.id, TRANSITION)
        .order_by(EVENT.sequence_num.desc())
        .limit(1)
        .correlate(task_executions)
        .scalar_subquery()
    )


def leads_here() -> ColumnElement[bool]:
    """Return a condition: the last transition of EXECUTION's task leads to the status that it has."""
    return last(_STATUS) == EXECUTION.status  # type: ignore[no-any-return]


def claimed_by() -> Any:
    """Select the worker that claimed EXECUTION's task under its present token."""
    return (
        select(EVENT.worker_id)
        .where(
            EVENT.task_execution_id == EXECUTION.id,
            EVENT.lease_token == EXECUTION.lease_token,
            EVENT.event_type == word(EventType.CLAIMED),
        )
        .correlate(task_executions)
        .scalar_subquery()
    )


def last_error(g: Grammar) -> Any:
    """Select the error of EXECUTION's task from the last event that has one."""
    error = g.text_in(EVENT.event_data, "error")
    return (
        select(error)
        .where(EVENT.task_execution_id == EXECUTION.id, TRANSITION, _speaks_of("error"), error.is_not(None))
        .order_by(EVENT.sequence_num.desc())
        .limit(1)
        .correlate(task_executions)
        .scalar_subquery()
    )


def _last_differs(g: Grammar) -> Select[Any]:
    """Check everything that the last transition decides in one pass over the log."""
    newest = (
        select(EVENT.task_execution_id, func.max(EVENT.sequence_num).label("sequence_num"))
        .where(TRANSITION)
        .group_by(EVENT.task_execution_id)
        .subquery("last")
    )
    ready, running = (_agree(one) for one in (TaskStatus.READY, TaskStatus.RUNNING))
    due, said = task_outbox.c.available_at, said_due(g)
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
            "end_differs_from_events": and_(
                ENDED, EVENT.event_type.in_(_leading_to(*TERMINAL)), EXECUTION.completed_at != EVENT.created_at
            ),
            # Read from the event only if the task waits, because parsing JSON takes most of the time here.
            "retry_differs_from_events": EXECUTION.retry_at.is_distinct_from(case((ready, said_retry(said)))),
            "due_differs_from_events": case((and_(ready, due.is_not(None)), due.is_distinct_from(said))),
        },
    )


def _agree(status: TaskStatus) -> ColumnElement[bool]:
    """Return a condition: the task has this status, and its last event leads to it."""
    return and_(EXECUTION.status == word(status), EVENT.event_type.in_(_leading_to(status)))


def _leading_to(*statuses: TaskStatus) -> list[ColumnElement[str]]:
    return [word(kind) for kind, status in STATUS_AFTER.items() if status in statuses]


def _said_differs(g: Grammar) -> Select[Any]:
    """Check the facts that hold until another event changes them."""
    attempt, recoveries, error = (_last_said(g, member) for member in ("attempt", "recovery_attempts", "error"))
    rows = select(EXECUTION.id).select_from(
        task_executions.outerjoin(attempt, attempt.c.id == EXECUTION.id)
        .outerjoin(recoveries, recoveries.c.id == EXECUTION.id)
        .outerjoin(error, error.c.id == EXECUTION.id)
    )
    counted = cast(func.coalesce(attempt.c.said, literal_column("'1'", Text)), Integer)
    recovered = cast(func.coalesce(recoveries.c.said, literal_column("'0'", Text)), Integer)
    return broken_ones(
        rows,
        {
            "counters_differ_from_events": (EXECUTION.attempt != counted) | (EXECUTION.recovery_attempts != recovered),
            "error_differs_from_events": EXECUTION.last_error.is_distinct_from(error.c.said),
        },
    )


def _last_said(g: Grammar, member: str) -> FromClause:
    """Return the member of this name in the last event of each task that has it."""
    value = g.text_in(EVENT.event_data, member)
    nth = func.row_number().over(partition_by=EVENT.task_execution_id, order_by=EVENT.sequence_num.desc())
    said = (
        select(EVENT.task_execution_id.label("id"), value.label("said"), nth.label("nth"))
        .where(TRANSITION, _speaks_of(member), value.is_not(None))
        .subquery(f"said_{member}")
    )
    return select(said.c.id, said.c.said).where(said.c.nth == literal_column("1", Integer)).subquery(f"last_{member}")


def _speaks_of(member: str) -> ColumnElement[bool]:
    """Return a condition: the name occurs in the event. It takes a tenth of the work of parsing the JSON."""
    return EVENT.event_data.like(literal_column(f"'%\"{member}\"%'", Text))
