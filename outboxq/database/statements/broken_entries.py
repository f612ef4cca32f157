"""Find the row that makes a claim fail, and set it aside, so that the other tasks can be claimed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Select, Text, bindparam, delete, null, select, update

from ...model import EventType, TaskStatus
from ..tables import task_executions, task_outbox
from . import claim, task_rows
from .grammar import Columns, Grammar, Relations, Statement, Transition, sql_literal

ENTRY: Columns = {"entry_id": BigInteger()}
_after = bindparam("after", type_=BigInteger, required=True)
_entry_id = bindparam("entry_id", type_=BigInteger, required=True)
_error = bindparam("error", type_=Text, required=True)


def due_entries(g: Grammar) -> Select[Any]:
    """Select up to :limit due entries of all queues after :after; locks nothing."""
    entry = task_outbox.c
    due = select(entry.id.label("entry_id")).where(entry.id > _after, entry.available_at <= g.now)
    return due.order_by(entry.id).limit(claim.limit)


def claim_entries(g: Grammar) -> Transition:
    """Claim exactly these entries, whatever their keys and limits. The caller rolls it back: it only shows which entries fail.

    Skips entries that another transaction has locked.
    """

    def take(r: Relations) -> Statement:
        entry = task_outbox.alias("entry")
        free = select(entry.c.id).where(g.among(entry.c.id, r["given"].c.entry_id)).with_for_update(skip_locked=True)
        picked = free.subquery("picked")
        read = (
            task_outbox.c[name].label(f"entry_{name}") for name in ("queue", "partition_key")
        )  # reads the columns that a claim reads
        return delete(task_outbox).where(g.among(task_outbox.c.id, picked.c.id)).returning(*claim.taken(g), *read)

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
