"""Check the rows: the other tables have exactly the rows that a task's status, queue and key require."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_, select

from ....model import STATUS_AFTER, TaskStatus
from ...tables import dead_letters, task_executions, task_leases, task_outbox
from .. import effects
from ..grammar import Grammar, word
from .check import ENTRY_OF_TASK, EVENT, EXECUTION, LEASE_OF_TASK, Check


def checks() -> Mapping[str, Check]:
    return {
        "ready_without_entry": Check(
            meaning="a Ready task has no outbox entry, so no worker will ever claim it", broken=_ready_without_entry
        ),
        "entry_without_ready": Check(
            meaning="an outbox entry belongs to a task that is not Ready, or to none", broken=_entry_without_ready
        ),
        "running_without_lease": Check(
            meaning="a Running task has no lease of its token and worker, so nobody will recover it",
            broken=_running_without_lease,
        ),
        "lease_without_running": Check(
            meaning="a lease belongs to a task that is not Running under it, or to none", broken=_lease_without_running
        ),
        "entry_differs_from_task": Check(
            meaning="an outbox entry differs from its task in queue, priority, key, position, topic or expiry",
            broken=lambda _: _entry_differs(),
        ),
        "lease_differs_from_task": Check(
            meaning="a lease counts in another queue than its task's", broken=lambda _: _lease_differs()
        ),
        "failed_without_letter": Check(
            meaning="a Failed task is not among the dead letters", broken=lambda _: _failed_without_letter()
        ),
        "letter_without_failed": Check(
            meaning="a dead letter belongs to a task that is not Failed, or to none",
            broken=lambda _: _letter_without_failed(),
        ),
        "letter_differs_from_task": Check(
            meaning="a dead letter differs from its task in queue, name, topic, key, end or exception",
            broken=lambda g: select(EXECUTION.id).join_from(task_executions, dead_letters, letter_differs(g)),
        ),
    }


FAILED = EXECUTION.status == word(TaskStatus.FAILED)
LETTER_OF_TASK = select(dead_letters.c.task_execution_id).where(dead_letters.c.task_execution_id == EXECUTION.id)
FAILED_OF_LETTER = select(EXECUTION.id).where(EXECUTION.id == dead_letters.c.task_execution_id, FAILED)


def entry_differs() -> ColumnElement[bool]:
    """Return a condition: an outbox entry differs from its task, which is Ready."""
    return (
        select(EXECUTION.id)
        .where(
            EXECUTION.id == task_outbox.c.task_execution_id,
            EXECUTION.status == word(TaskStatus.READY),
            or_(*(EXECUTION[name].is_distinct_from(task_outbox.c[name]) for name in effects.KEPT)),
        )
        .correlate(task_outbox)
        .exists()
    )


def lease_differs() -> ColumnElement[bool]:
    return (
        select(EXECUTION.id)
        .where(EXECUTION.id == task_leases.c.task_execution_id, EXECUTION.queue != task_leases.c.queue)
        .correlate(task_leases)
        .exists()
    )


def letter_says(g: Grammar) -> Mapping[str, Any]:
    """Return the columns that the dead letter of EXECUTION's task must have."""
    same = {name: EXECUTION[name] for name in ("queue", "task_name", "topic", "partition_key")}
    return {**same, "exception": last_exception(g), "failed_at": EXECUTION.completed_at}


def letter_differs(g: Grammar) -> ColumnElement[bool]:
    """Return a condition: a dead letter differs from EXECUTION's task, which has Failed."""
    differs = (dead_letters.c[name].is_distinct_from(value) for name, value in letter_says(g).items())
    return and_(EXECUTION.id == dead_letters.c.task_execution_id, FAILED, or_(*differs))


def last_exception(g: Grammar) -> Any:
    """Select the class of the exception with which EXECUTION's task finally failed; NULL if it was abandoned or had none."""
    failures = [word(kind) for kind, status in STATUS_AFTER.items() if status is TaskStatus.FAILED]
    return (
        select(g.text_in(EVENT.event_data, "exception"))
        .where(EVENT.task_execution_id == EXECUTION.id, EVENT.event_type.in_(failures))
        .order_by(EVENT.sequence_num.desc())
        .limit(1)
        .correlate(task_executions)
        .scalar_subquery()
    )


def _ready_without_entry(_: Grammar) -> Select[Any]:
    return select(EXECUTION.id).where(EXECUTION.status == word(TaskStatus.READY), ~ENTRY_OF_TASK.exists())


def _entry_without_ready(_: Grammar) -> Select[Any]:
    ready = select(EXECUTION.id).where(
        EXECUTION.id == task_outbox.c.task_execution_id, EXECUTION.status == word(TaskStatus.READY)
    )
    return select(task_outbox.c.task_execution_id.label("id")).where(~ready.exists())


def _running_without_lease(_: Grammar) -> Select[Any]:
    return select(EXECUTION.id).where(EXECUTION.status == word(TaskStatus.RUNNING), ~LEASE_OF_TASK.exists())


def _lease_without_running(_: Grammar) -> Select[Any]:
    lease = task_leases.c
    running = select(EXECUTION.id).where(
        EXECUTION.id == lease.task_execution_id,
        EXECUTION.status == word(TaskStatus.RUNNING),
        EXECUTION.lease_token == lease.lease_token,
        EXECUTION.worker_id == lease.worker_id,
    )
    return select(lease.task_execution_id.label("id")).where(~running.exists())


def _entry_differs() -> Select[Any]:
    return select(task_outbox.c.task_execution_id.label("id")).where(entry_differs())


def _lease_differs() -> Select[Any]:
    return select(task_leases.c.task_execution_id.label("id")).where(lease_differs())


def _failed_without_letter() -> Select[Any]:
    return select(EXECUTION.id).where(FAILED, ~LETTER_OF_TASK.exists())


def _letter_without_failed() -> Select[Any]:
    return select(dead_letters.c.task_execution_id.label("id")).where(~FAILED_OF_LETTER.exists())
