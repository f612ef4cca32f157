"""Find the rows that make a claim fail, and set them aside, so that the other tasks can be claimed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Double,
    Select,
    Text,
    Uuid,
    bindparam,
    delete,
    literal,
    literal_column,
    null,
    select,
    update,
)

from ...model import EventType, TaskStatus
from ...store import task_rows
from .. import grammar, queue_order
from ..grammar import Columns, Grammar, Relations, Statement, Transition, sql_literal
from ..tables import task_executions, task_outbox
from . import claim, recovery

ENTRY: Columns = {"entry_id": BigInteger()}
_FIRST_BATCH = literal(UUID(int=1 << 127), Uuid)
"""The ids of batches begin here. Those of tasks are lower."""
_after = bindparam("after", type_=BigInteger, required=True)
_entry_id = bindparam("entry_id", type_=BigInteger, required=True)
_error = bindparam("error", type_=Text, required=True)


def due_entries(g: Grammar) -> Select[Any]:
    """Select up to :limit due entries of all queues after :after; locks nothing."""
    entry = task_outbox.c
    due = select(entry.id.label("entry_id")).where(entry.id > _after, entry.available_at <= g.now)
    return due.order_by(entry.id).limit(grammar.limit)


def claim_entries(g: Grammar) -> Transition:
    """Claim exactly these entries, whatever their keys and limits. The caller rolls it back, or has entries of expired tasks.

    Skips entries that another transaction has locked.
    """

    def take(r: Relations) -> Statement:
        entry = task_outbox.alias("entry")
        free = select(entry.c.id).where(g.among(entry.c.id, r["given"].c.entry_id)).with_for_update(skip_locked=True)
        picked = free.subquery("picked")
        read = (
            task_outbox.c[name].label(f"entry_{name}") for name in ("queue", "partition_key")
        )  # reads the columns that a claim reads
        return delete(task_outbox).where(g.among(task_outbox.c.id, picked.c.id)).returning(*queue_order.taken(g), *read)

    return claim.claim(g, take, given=ENTRY)


def set_aside(g: Grammar) -> Transition:
    """Delete the entry :entry_id, and fail its task, which no worker can claim, with :error. Returns the task's id."""
    return Transition(
        steps={
            "gone": lambda _: _gone(),
            "failed": lambda r: _failed(g, r),
            "event": lambda r: _event(g, r),
            "letter": lambda r: task_rows.letter(g, r["failed"].c, r["failed"], exception=null()),
        },
        returns="gone",
    )


def expired_in_batches(g: Grammar) -> Select[Any]:
    """Select up to :limit due entries of expired tasks of batches, with their batches; locks nothing."""
    entry, execution = task_outbox.c, task_executions.c
    # A scalar subquery stays a look-up by key. A join could read all tasks.
    pipeline = select(execution.pipeline_execution_id).where(execution.id == entry.task_execution_id)
    batch = pipeline.correlate(task_outbox).scalar_subquery()
    late = (entry.available_at <= g.now, entry.expires_at <= g.now, batch >= _FIRST_BATCH)
    return (
        select(entry.id.label("entry_id"), batch.label("batch_id")).where(*late).order_by(entry.id).limit(grammar.limit)
    )


def put_off(g: Grammar) -> Transition:
    """Have claims pass over these entries, of tasks that expired, for half a minute. Skips locked entries and tasks."""

    def found(r: Relations) -> Statement:
        entry, execution = task_outbox.alias("entry"), task_executions.alias("execution")
        both = entry.join(execution, execution.c.id == entry.c.task_execution_id)
        given = g.among(entry.c.id, r["given"].c.entry_id)
        return select(entry.c.id).select_from(both).where(given).with_for_update(skip_locked=True)

    due = g.later(g.now, literal_column("30.0", Double))
    return recovery.rescheduled(g, found, due=due, reason="the row of its batch is locked", given=ENTRY)


def forget_entry(_: Grammar) -> Statement:
    """Delete the entry :entry_id and nothing else, because its task cannot be failed either."""
    entry = task_outbox.c
    return (
        delete(task_outbox).where(entry.id == _entry_id).returning(entry.id)
    )  # the task's id may be the unreadable value


def _gone() -> Statement:
    entry = task_outbox.c
    return delete(task_outbox).where(entry.id == _entry_id).returning(entry.task_execution_id.label("id"))


def _failed(g: Grammar, r: Relations) -> Statement:
    execution = task_executions.c
    return (
        update(task_executions)
        .where(g.among(execution.id, r["gone"].c.id), execution.status == sql_literal(TaskStatus.READY))
        .values(status=sql_literal(TaskStatus.FAILED), completed_at=g.now, updated_at=g.now, last_error=_error)
        .returning(*task_rows.CARRIED)
    )


def _event(g: Grammar, r: Relations) -> Statement:
    return task_rows.event(
        g,
        r["failed"].c,
        r["failed"],
        event_type=sql_literal(EventType.FAILED),
        data=g.json(error=_error),
        worker_id=null(),
        lease_token=null(),
    )
