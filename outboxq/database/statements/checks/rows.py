"""Check the rows: the other tables have exactly the rows that a task's status, queue and key require."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select

from ....model import TaskStatus
from ....store import task_rows
from ...grammar import Grammar
from ...tables import dead_letters, task_executions, task_leases, task_outbox
from .check import ENDS, EVENT, EXECUTION, FAILED, OTHERS, READY, RUNNING, Check, last, leading_to, task_of


def checks() -> Mapping[str, Check]:
    return {
        "ready_without_entry": Check(
            meaning="a Ready task has no outbox entry, so no worker will ever claim it",
            broken=lambda _: select(EXECUTION.id).where(READY, ~ENTRY_OF_TASK.exists()),
        ),
        "entry_without_ready": Check(
            meaning="an outbox entry belongs to a task that is not Ready, or to none",
            broken=lambda _: select(task_of(task_outbox)).where(~READY_OF_ENTRY.exists()),
        ),
        "running_without_lease": Check(
            meaning="a Running task has no lease of its token and worker, so nobody will recover it",
            broken=lambda _: select(EXECUTION.id).where(RUNNING, ~LEASE_OF_TASK.exists()),
        ),
        "lease_without_running": Check(
            meaning="a lease belongs to a task that is not Running under it, or to none",
            broken=lambda _: select(task_of(task_leases)).where(~_RUNNING_UNDER_LEASE.exists()),
        ),
        "entry_differs_from_task": Check(
            meaning="an outbox entry differs from its task in queue, priority, key, position, topic or expiry",
            broken=lambda _: select(task_of(task_outbox)).where(ENTRY_DIFFERS),
        ),
        "lease_differs_from_task": Check(
            meaning="a lease counts in another queue than its task's",
            broken=lambda _: select(task_of(task_leases)).where(LEASE_DIFFERS),
        ),
        "failed_without_letter": Check(
            meaning="a Failed task is not among the dead letters",
            broken=lambda _: select(EXECUTION.id).where(FAILED, ~LETTER_OF_TASK.exists()),
        ),
        "letter_without_failed": Check(
            meaning="a dead letter belongs to a task that is not Failed, or to none",
            broken=lambda _: select(task_of(dead_letters)).where(~FAILED_OF_LETTER.exists()),
        ),
        "letter_differs_from_task": Check(
            meaning="a dead letter differs from its task in queue, name, topic, key, end or exception",
            broken=lambda g: select(EXECUTION.id).join_from(task_executions, dead_letters, letter_differs(g)),
        ),
    }


_lease = task_leases.c
ENTRY_OF_TASK = select(task_outbox.c.id).where(task_outbox.c.task_execution_id == EXECUTION.id)
LEASE_OF_TASK = select(_lease.task_execution_id).where(
    _lease.task_execution_id == EXECUTION.id,
    _lease.lease_token == EXECUTION.lease_token,
    _lease.worker_id == EXECUTION.worker_id,
)
READY_OF_ENTRY = select(EXECUTION.id).where(EXECUTION.id == task_outbox.c.task_execution_id, READY)
RUNNING_OF_LEASE = select(EXECUTION.id).where(EXECUTION.id == _lease.task_execution_id, RUNNING)
_RUNNING_UNDER_LEASE = RUNNING_OF_LEASE.where(
    EXECUTION.lease_token == _lease.lease_token, EXECUTION.worker_id == _lease.worker_id
)
LETTER_OF_TASK = select(dead_letters.c.task_execution_id).where(dead_letters.c.task_execution_id == EXECUTION.id)
FAILED_OF_LETTER = select(EXECUTION.id).where(EXECUTION.id == dead_letters.c.task_execution_id, FAILED)
_VALUES_DIFFER = or_(*(EXECUTION[name].is_distinct_from(task_outbox.c[name]) for name in task_rows.KEPT))
ENTRY_DIFFERS = READY_OF_ENTRY.where(_VALUES_DIFFER).correlate(task_outbox).exists()
"""A condition: an outbox entry differs from its task, which is Ready."""
_ELSEWHERE = select(EXECUTION.id).where(EXECUTION.id == _lease.task_execution_id, EXECUTION.queue != _lease.queue)
LEASE_DIFFERS = _ELSEWHERE.correlate(task_leases).exists()


def letter_says(g: Grammar) -> Mapping[str, Any]:
    """Return the columns that the dead letter of EXECUTION's task must have."""
    same = {name: EXECUTION[name] for name in ("queue", "task_name", "topic", "partition_key")}
    return {**same, "exception": _last_exception(g), "failed_at": EXECUTION.completed_at}


def letter_differs(g: Grammar) -> ColumnElement[bool]:
    """Return a condition: a dead letter differs from EXECUTION's task, which has Failed."""
    differs = (dead_letters.c[name].is_distinct_from(value) for name, value in letter_says(g).items())
    return and_(EXECUTION.id == dead_letters.c.task_execution_id, FAILED, or_(*differs))


def _last_exception(g: Grammar) -> Any:
    """Select the class of the exception with which EXECUTION's task finally failed; NULL if it was abandoned or had none."""
    said = g.text_in(EVENT.event_data, "exception")
    return last(said, EVENT.event_type.in_(leading_to(TaskStatus.FAILED)), among=(ENDS, OTHERS))
