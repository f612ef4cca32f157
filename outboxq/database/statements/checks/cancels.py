"""Check cancel requests: the row of a running task and the log agree on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, and_, func, select

from ....model import EventType, TaskStatus
from ...tables import execution_events, task_executions
from ..grammar import word
from .check import EVENT, EXECUTION, Check

_REQUEST = and_(
    EVENT.task_execution_id == EXECUTION.id,
    EVENT.lease_token.is_(None),
    EVENT.event_type == word(EventType.CANCEL_REQUESTED),
)
UNHEARD = and_(EXECUTION.status == word(TaskStatus.RUNNING), EXECUTION.cancel_requested_at.is_(None))
"""A condition: the task runs, and its row has no cancel request."""


def checks() -> Mapping[str, Check]:
    return {
        "cancel_not_recorded": Check(
            meaning="a task has a cancel request that no event records",
            broken=lambda _: _unrecorded(),
        ),
        "cancel_forgotten": Check(
            meaning="an event records a cancel request for a running task, but its row has none, so its worker does not see it",
            broken=lambda _: select(EXECUTION.id).where(UNHEARD, asked_since_claim().is_not(None)),
        ),
    }


def asked_since_claim() -> Any:
    """Select the time at which the present claim of EXECUTION's task was asked to stop; NULL if it was not."""
    claim = execution_events.alias("claim")
    begun = (
        select(claim.c.sequence_num)
        .where(
            claim.c.task_execution_id == EXECUTION.id,
            claim.c.lease_token == EXECUTION.lease_token,
            claim.c.event_type == word(EventType.CLAIMED),
        )
        .correlate(task_executions)
        .scalar_subquery()
    )
    return (
        select(func.max(EVENT.created_at))
        .where(_REQUEST, EVENT.sequence_num > begun)
        .correlate(task_executions)
        .scalar_subquery()
    )


def _unrecorded() -> Select[Any]:
    request = select(EVENT.sequence_num).where(_REQUEST, EVENT.created_at == EXECUTION.cancel_requested_at)
    return select(EXECUTION.id).where(EXECUTION.cancel_requested_at.is_not(None), ~request.exists())
