"""Restore rows from the log: a row that differs from its events is changed to what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, select, true, update

from ....model import OnDeadLetter, TaskStatus
from ...tables import dead_letters, idempotency_keys, queue_settings, task_executions, task_leases, task_outbox
from .. import effects
from ..grammar import Grammar, Relations, Statement, Transition, word
from . import cancels, fold, limits, positions, rows, unique
from .check import ENDED, EXECUTION

_entry, _lease, _key, _letter = task_outbox.c, task_leases.c, idempotency_keys.c, dead_letters.c
_READY = EXECUTION.status == word(TaskStatus.READY)
_RUNNING = EXECUTION.status == word(TaskStatus.RUNNING)


def repairs() -> Mapping[str, Callable[[Grammar], Transition]]:
    return {
        "position_differs_from_events": _repair_position,
        "due_differs_from_events": _repair_due,
        "worker_differs_from_claim": lambda _: _repair_worker(),
        "end_differs_from_events": lambda _: _repair_end(),
        "retry_differs_from_events": _repair_retry,
        "error_differs_from_events": _repair_error,
        "cancel_forgotten": lambda _: _repair_cancel(),
        "lease_ends_too_late": _repair_lease,
        "rate_full_too_late": _repair_rate,
        "hold_without_key": lambda _: _repair_hold(),
        "letter_differs_from_task": _repair_letter,
        "key_differs_from_birth": _repair_other_key,
        "key_lost": _repair_lost_key,
    }


def _written(where: ColumnElement[bool], **values: Any) -> Transition:
    """Write these columns of the executions for which `where` is true."""
    moved = update(task_executions).where(where).values(**values).returning(EXECUTION.id)
    return Transition(steps={"moved": lambda _: moved}, returns="moved")


def _repair_position(g: Grammar) -> Transition:
    """Give the task its position back, and a new outbox entry, because entries are never updated."""
    said = positions.said_position(g)

    def moved(_: Relations) -> Statement:
        differs = (EXECUTION.partition_key.is_not(None), EXECUTION.position != said)
        columns = (EXECUTION[name] for name in ("id", *effects.KEPT))
        return update(task_executions).where(*differs).values(position=said).returning(*columns)

    def gone(r: Relations) -> Statement:
        return (
            delete(task_outbox)
            .where(g.among(_entry.task_execution_id, r["moved"].c.id))
            .returning(_entry.task_execution_id.label("id"), _entry.available_at)
        )

    def again(r: Relations) -> Statement:
        moved, gone = r["moved"].c, r["gone"].c
        both = r["moved"].join(r["gone"], moved.id == gone.id)
        return effects.entry(g, moved, both, ready=true(), due=gone.available_at)

    return Transition(
        steps={"moved": moved, "gone": gone, "again": again},
        returns="moved",
    )


def _repair_due(g: Grammar) -> Transition:
    """Give the task another entry, due at the time of its last event."""
    due = fold.last(fold.said_due(g))

    def task(_: Relations) -> Statement:
        columns = (EXECUTION[name] for name in ("id", *effects.KEPT))
        return (
            select(*columns, due.label("due"))
            .join_from(task_executions, task_outbox, _entry.task_execution_id == EXECUTION.id)
            .where(_READY, fold.leads_here(), _entry.available_at != due)
            .with_for_update(of=task_executions)
        )

    def gone(r: Relations) -> Statement:
        return (
            delete(task_outbox)
            .where(g.among(_entry.task_execution_id, r["task"].c.id))
            .returning(_entry.task_execution_id.label("id"))
        )

    def again(r: Relations) -> Statement:
        task, gone = r["task"].c, r["gone"].c
        both = r["task"].join(r["gone"], task.id == gone.id)
        return effects.entry(g, task, both, ready=true(), due=task.due)

    return Transition(steps={"task": task, "gone": gone, "again": again}, returns="task")


def _repair_worker() -> Transition:
    """Give the task and its lease back to the worker that claimed it."""
    claimed_by = fold.claimed_by()

    def moved(_: Relations) -> Statement:
        return (
            update(task_executions)
            .where(_RUNNING, EXECUTION.worker_id != claimed_by)
            .values(worker_id=claimed_by)
            .returning(EXECUTION.id, EXECUTION.worker_id, EXECUTION.lease_token)
        )

    def lease(r: Relations) -> Statement:
        moved = r["moved"].c
        return (
            update(task_leases)
            .where(_lease.task_execution_id == moved.id, _lease.lease_token == moved.lease_token)
            .values(worker_id=moved.worker_id)
        )

    return Transition(steps={"moved": moved, "lease": lease}, returns="moved")


def _repair_end() -> Transition:
    ended = fold.last(fold.MOMENT)
    differs = EXECUTION.completed_at.is_distinct_from(ended)
    return _written(ENDED & fold.leads_here() & differs, completed_at=ended)


def _repair_retry(g: Grammar) -> Transition:
    retry = fold.last(fold.said_retry(fold.said_due(g)))
    waits = fold.leads_here() & EXECUTION.retry_at.is_distinct_from(retry)
    return _written(waits, retry_at=retry)


def _repair_error(g: Grammar) -> Transition:
    error = fold.last_error(g)
    differs = EXECUTION.last_error.is_distinct_from(error)
    return _written(differs, last_error=error)


def _repair_cancel() -> Transition:
    """Ask the task's worker again to stop; it reads the request at its next heartbeat."""
    asked = cancels.asked_since_claim()
    return _written(cancels.UNHEARD & asked.is_not(None), cancel_requested_at=asked)


def _repair_lease(g: Grammar) -> Transition:
    """Make the lease end its own length from now, as after a heartbeat."""
    moved = (
        update(task_leases)
        .where(limits.lease_too_late(g))
        .values(lease_expires_at=g.later(g.now, limits.lease_length(g)))
        .returning(_lease.task_execution_id.label("id"))
    )
    return Transition(steps={"moved": lambda _: moved}, returns="moved")


def _repair_rate(g: Grammar) -> Transition:
    """Set the rate limit to used up as of now, so that it is not exceeded whatever has started."""
    setting = queue_settings.c
    moved = (
        update(queue_settings)
        .where(limits.rate_too_late(g))
        .values(rate_full_at=g.later(g.now, setting.rate_seconds))
        .returning(setting.queue.label("id"), setting.queue)
    )
    return Transition(steps={"moved": lambda _: moved}, returns="moved")


def _repair_hold() -> Transition:
    return _written(limits.holds_nothing(), on_dead_letter=word(OnDeadLetter.RELEASE))


def _repair_letter(g: Grammar) -> Transition:
    """Replace the dead letter by one with the values of its task and the last failure."""
    said = rows.letter_says(g)
    differs = exists(select(EXECUTION.id).where(rows.letter_differs(g)).correlate(dead_letters))
    values = {
        name: select(value).where(EXECUTION.id == _letter.task_execution_id).correlate(dead_letters).scalar_subquery()
        for name, value in said.items()
    }
    moved = update(dead_letters).where(differs).values(**values).returning(_letter.task_execution_id.label("id"))
    return Transition(steps={"moved": lambda _: moved}, returns="moved")


def _repair_other_key(g: Grammar) -> Transition:
    """Delete a key with which the task was not enqueued. If it has lost its own, the next repair gives it back."""
    gone = delete(idempotency_keys).where(unique.holds_another(g)).returning(_key.task_execution_id.label("id"))
    return Transition(steps={"gone": lambda _: gone}, returns="gone")


def _repair_lost_key(g: Grammar) -> Transition:
    """Give the key back for the time that was asked for. The task that holds it meanwhile never asked for it."""
    tasks, without_key, birth = unique.lost(g)
    columns = ["scope", "key", "task_execution_id", "expires_at", "until_finished", "created_at"]
    found = (
        select(EXECUTION.task_name, birth.key, EXECUTION.id, birth.until, birth.until_finished, EXECUTION.created_at)
        .select_from(tasks)
        .where(without_key)
    )
    new = g.insert(idempotency_keys).from_select(columns, found)
    again = new.on_conflict_do_update(
        index_elements=[_key.scope, _key.key], set_={name: new.excluded[name] for name in columns[2:]}
    ).returning(_key.task_execution_id.label("id"))
    return Transition(steps={"again": lambda _: again}, returns="again")
