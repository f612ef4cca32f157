"""Repair what needs no guess. Each repair checks again in its own snapshot before it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import ColumnElement, delete, false, func, select, true, update

from ....model import TaskStatus
from ...column_types import Instant
from ...tables import dead_letters, partition_claims, task_executions, task_leases, task_outbox
from .. import effects
from ..grammar import Grammar, Relations, Statement, Transition, word
from . import fold, keys, restore, rows
from .check import ENTRY_OF_TASK, EXECUTION, LEASE_OF_TASK


def _repairs() -> Mapping[str, Callable[[Grammar], Transition]]:
    return {
        "positions_set_back": lambda g: g.set_forward(),
        **restore.repairs(),
        "ready_without_entry": _repair_ready,
        "entry_without_ready": _repair_entry,
        "running_without_lease": _repair_running,
        "lease_without_running": _repair_lease,
        "entry_differs_from_task": _repair_entry_differs,
        "lease_differs_from_task": lambda _: _repair_lease_differs(),
        "failed_without_letter": _repair_failed,
        "letter_without_failed": lambda _: _repair_letter(),
        "claimed_key_without_task": lambda _: _repair_claim(),
        "running_without_key": lambda g: _repair_key(g, keys.RUNNING, false()),
        "failed_without_key": lambda g: _repair_key(g, keys.HOLDING, true()),
    }


def _repair_ready(g: Grammar) -> Transition:
    """Insert the missing entry, due at the time of the last event."""
    last = fold.last(fold.said_due(g))

    def entry(_: Relations) -> Statement:
        same = ("id", "queue", "priority", "partition_key", "position", "topic", "expires_at")
        rows = (
            select(*(EXECUTION[name] for name in same), func.coalesce(last, g.now, type_=Instant), g.now)
            .where(EXECUTION.status == word(TaskStatus.READY), ~ENTRY_OF_TASK.exists())
            .with_for_update(of=task_executions)
        )
        columns = ["task_execution_id", *same[1:], "available_at", "created_at"]
        new = g.insert(task_outbox).from_select(columns, rows)
        return new.on_conflict_do_nothing().returning(task_outbox.c.task_execution_id.label("id"))  # type: ignore[no-any-return]

    return Transition(steps={"entry": entry}, returns="entry")


def _repair_entry(_: Grammar) -> Transition:
    ready = select(EXECUTION.id).where(
        EXECUTION.id == task_outbox.c.task_execution_id, EXECUTION.status == word(TaskStatus.READY)
    )
    gone = delete(task_outbox).where(~ready.exists()).returning(task_outbox.c.task_execution_id.label("id"))
    return Transition(steps={"gone": lambda _: gone}, returns="gone")


def _repair_running(g: Grammar) -> Transition:
    """Give the task an expired lease, so that the next recovery takes it back and counts it."""
    columns = ["task_execution_id", "queue", "lease_token", "worker_id", "lease_expires_at"]

    def lease(_: Relations) -> Statement:
        rows = (
            select(EXECUTION.id, EXECUTION.queue, EXECUTION.lease_token, EXECUTION.worker_id, g.now)
            .where(EXECUTION.status == word(TaskStatus.RUNNING), ~LEASE_OF_TASK.exists())
            .with_for_update(of=task_executions)
        )
        new = g.insert(task_leases).from_select(columns, rows)
        return (  # type: ignore[no-any-return]
            new.on_conflict_do_update(
                index_elements=[task_leases.c.task_execution_id],
                set_={name: new.excluded[name] for name in columns[1:]},
            ).returning(task_leases.c.task_execution_id.label("id"))
        )

    return Transition(steps={"lease": lease}, returns="lease")


def _repair_lease(_: Grammar) -> Transition:
    running = select(EXECUTION.id).where(
        EXECUTION.id == task_leases.c.task_execution_id, EXECUTION.status == word(TaskStatus.RUNNING)
    )
    gone = delete(task_leases).where(~running.exists()).returning(task_leases.c.task_execution_id.label("id"))
    return Transition(steps={"gone": lambda _: gone}, returns="gone")


def _repair_entry_differs(g: Grammar) -> Transition:
    """Replace the entry by one with the task's values; its due time stays."""
    entry = task_outbox.c
    columns = ("id", *effects.KEPT)

    def gone(_: Relations) -> Statement:
        return (
            delete(task_outbox)
            .where(rows.entry_differs())
            .returning(entry.task_execution_id.label("id"), entry.available_at)
        )

    def task(r: Relations) -> Statement:
        return select(*(EXECUTION[name] for name in columns)).where(g.among(EXECUTION.id, r["gone"].c.id))

    def again(r: Relations) -> Statement:
        task, gone = r["task"].c, r["gone"].c
        both = r["task"].join(r["gone"], task.id == gone.id)
        return effects.entry(g, task, both, ready=true(), due=gone.available_at)

    return Transition(steps={"gone": gone, "task": task, "again": again}, returns="gone")


def _repair_lease_differs() -> Transition:
    lease = task_leases.c
    queue = select(EXECUTION.queue).where(EXECUTION.id == lease.task_execution_id).scalar_subquery()
    moved = (
        update(task_leases)
        .where(rows.lease_differs())
        .values(queue=queue)
        .returning(lease.task_execution_id.label("id"), lease.queue)
    )
    return Transition(steps={"moved": lambda _: moved}, returns="moved")


def _repair_failed(g: Grammar) -> Transition:
    """Insert the missing dead letter with the values of the last failure."""
    same = ("id", "queue", "task_name", "topic", "partition_key")

    def letter(_: Relations) -> Statement:
        failed = (
            select(*(EXECUTION[name] for name in same), rows.last_exception(g), EXECUTION.completed_at)
            .where(rows.FAILED, ~rows.LETTER_OF_TASK.exists())
            .with_for_update(of=task_executions)
        )
        new = g.insert(dead_letters).from_select(["task_execution_id", *same[1:], "exception", "failed_at"], failed)
        return new.on_conflict_do_nothing().returning(dead_letters.c.task_execution_id.label("id"))  # type: ignore[no-any-return]

    return Transition(steps={"letter": letter}, returns="letter")


def _repair_letter() -> Transition:
    letter = dead_letters.c
    gone = delete(dead_letters).where(~rows.FAILED_OF_LETTER.exists()).returning(letter.task_execution_id.label("id"))
    return Transition(steps={"gone": lambda _: gone}, returns="gone")


def _repair_claim() -> Transition:
    claim = partition_claims.c
    gone = (
        delete(partition_claims)
        .where(~keys.TASK_OF_CLAIM.exists())
        .returning(claim.task_execution_id.label("id"), claim.queue)
    )
    return Transition(steps={"gone": lambda _: gone}, returns="gone")


def _repair_key(g: Grammar, owns: ColumnElement[bool], held: ColumnElement[bool]) -> Transition:
    """Give the task its key unless another task has it: which of the two should have it is not known."""
    claim = partition_claims.c

    def taken(_: Relations) -> Statement:
        owners = (
            select(EXECUTION.queue, EXECUTION.partition_key, EXECUTION.id, held)
            .where(owns, ~keys.CLAIM_OF_TASK.exists())
            .with_for_update(of=task_executions)
        )
        columns = ["queue", "partition_key", "task_execution_id", "held"]
        new = g.insert(partition_claims).from_select(columns, owners)
        return new.on_conflict_do_nothing().returning(claim.task_execution_id.label("id"))  # type: ignore[no-any-return]

    return Transition(steps={"taken": taken}, returns="taken")


REPAIRS = _repairs()
"""Return the repairs by the names of their checks. Each returns the repaired ids, and the queue if work became claimable."""
