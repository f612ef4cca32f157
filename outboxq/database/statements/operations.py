"""Change a task without a lease token, as a person or a program asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    Select,
    SmallInteger,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    delete,
    func,
    null,
    or_,
    select,
    update,
)

from ...model import EventType, TaskStatus
from ..column_types import BigId, Instant
from ..tables import task_executions, task_leases, task_outbox
from . import effects
from .grammar import Columns, Grammar, Relations, Statement, Transition, word

BY_HAND: Columns = {
    "id": Uuid(),
    "event_type": Text(),
    "status": Text(),
    "attempt": Integer(),
    "available_at": Instant,
    "data": Text(),
}
_from_ready, _from_running, _from_failed = (
    bindparam(name, type_=Boolean, required=True) for name in ("from_ready", "from_running", "from_failed")
)
_task_id = bindparam("task_id", type_=Uuid, required=True)
_due_now = bindparam("due_now", type_=Boolean, required=True)
_priority = bindparam("priority", type_=SmallInteger, required=True)
_request = bindparam("request", type_=Text, required=True)
"""The new priority; NULL keeps the present one."""
_reason = bindparam("reason", None, type_=Text)


def by_hand(g: Grammar) -> Transition:
    """Move a task out of the outbox, away from its worker, or out of Failed. Its worker, if it has one, loses the claim.

    :from_ready, :from_running and :from_failed say from which of the three it may be moved. The deleted row proves where the
    task was, so a task that moves meanwhile is not changed, and the caller looks again. Returns the moved tasks, each with the
    lease token under which it was running, if it was.
    """
    return Transition(
        given=BY_HAND,
        steps={
            "gone": lambda r: _gone(g, r),
            "freed": lambda r: _freed(g, r),
            "moved": lambda r: _moved(g, r),
            "entry": lambda r: _entry(g, r),
            "event": lambda r: _event(g, r),
            "letter_gone": lambda r: effects.letter_gone(g, r["moved"].c),
            "key_freed": lambda r: effects.key_freed(g, r["moved"].c),
        },
        returns="moved",
        joined_steps=("freed",),
    )


def reschedule(g: Grammar) -> Transition:
    """Replace the entry of a waiting task: due now (:due_now), or with another :priority. Its position stays.

    A task that is due already, or has that priority, is not changed.
    """
    return _rescheduling(g, lambda _: _gone_to_change(g))


def make_due(g: Grammar) -> Transition:
    """Make the tasks of these outbox entries due now, if :due_now. Their events carry :reason.

    An entry that is due already, or was replaced meanwhile, is not changed.
    """
    return _rescheduling(g, lambda r: _gone_to_be_due(g, r), given={"entry_id": BigId})


def _rescheduling(g: Grammar, gone: Callable[[Relations], Statement], *, given: Columns | None = None) -> Transition:
    return Transition(
        given=given or {},
        steps={
            "gone": gone,
            "moved": lambda r: _rescheduled(g, r),
            "entry": lambda r: _changed_entry(g, r),
            "event": lambda r: _rescheduled_event(g, r),
        },
        returns="moved",
    )


def waiting(g: Grammar) -> Select[Any]:
    """Return the priority of a waiting task, and true if it is due; no row unless the task is Ready."""
    entry = task_outbox.c
    asked: tuple[Any, ...] = ((entry.available_at <= g.now).label("due"), entry.priority)
    return select(*asked).where(entry.task_execution_id == _task_id)


def request_cancel(g: Grammar) -> Transition:
    """Ask running tasks to stop. Their workers see the request at the next heartbeat. A repeated request changes nothing."""
    execution = task_executions.c

    def asked(r: Relations) -> Statement:
        return (
            update(task_executions)
            .where(
                g.among(execution.id, r["given"].c.id),
                execution.status == word(TaskStatus.RUNNING),
                execution.cancel_requested_at.is_(None),
            )
            .values(cancel_requested_at=g.now, updated_at=g.now)
            .returning(execution.id, execution.pipeline_execution_id)
        )

    def event(r: Relations) -> Statement:
        asked, given = r["asked"].c, r["given"].c
        return effects.event(
            g,
            asked,
            r["asked"].join(r["given"], asked.id == given.id),
            event_type=word(EventType.CANCEL_REQUESTED),
            data=given.data,
            worker_id=null(),
            lease_token=null(),
        )

    return Transition(
        given={"id": Uuid(), "data": Text()},
        steps={"asked": asked, "event": event},
        returns="asked",
    )


def _gone(g: Grammar, r: Relations) -> Statement:
    entry = task_outbox.c
    return (
        delete(task_outbox)
        .where(_from_ready, g.among(entry.task_execution_id, r["given"].c.id))
        .returning(entry.task_execution_id.label("id"))
    )


def _freed(g: Grammar, r: Relations) -> Statement:
    lease = task_leases.c
    return (
        delete(task_leases)
        .where(_from_running, g.among(lease.task_execution_id, r["given"].c.id))
        .returning(lease.task_execution_id.label("id"), lease.lease_token, lease.worker_id)
    )


def _moved(g: Grammar, r: Relations) -> Statement:
    execution, given = task_executions.c, r["given"].c
    ready = given.status == word(TaskStatus.READY)
    return (
        update(task_executions)
        .where(
            g.among(execution.id, given.id),
            execution.id == given.id,
            or_(
                and_(execution.status == word(TaskStatus.READY), g.among(execution.id, r["gone"].c.id)),
                and_(execution.status == word(TaskStatus.RUNNING), g.among(execution.id, r["freed"].c.id)),
                and_(execution.status == word(TaskStatus.FAILED), _from_failed),
            ),
        )
        .values(
            status=given.status,
            worker_id=null(),
            attempt=func.coalesce(given.attempt, execution.attempt),
            recovery_attempts=case(
                (given.event_type == word(EventType.REQUEUED), 0), else_=execution.recovery_attempts
            ),
            cancel_requested_at=null(),
            retry_at=case((_is_retry(given), given.available_at), else_=null()),
            started_at=case((ready, null()), else_=execution.started_at),
            completed_at=case((ready, null()), else_=g.now),
            updated_at=g.now,
        )
        .returning(
            *(execution[name] for name in effects.CARRIED),
            execution.attempt,
            execution.recovery_attempts,
        )
    )


def _entry(g: Grammar, r: Relations) -> Statement:
    moved, given = r["moved"].c, r["given"].c
    rows = r["moved"].join(r["given"], moved.id == given.id)
    return effects.entry(g, moved, rows, ready=moved.status == word(TaskStatus.READY), due=_due(g, given))


def _event(g: Grammar, r: Relations) -> Statement:
    moved, given, freed = r["moved"].c, r["given"].c, r["freed"].c
    due = _due(g, given)
    return effects.event(
        g,
        moved,
        r["moved"].join(r["given"], moved.id == given.id).outerjoin(r["freed"], moved.id == freed.id),
        event_type=given.event_type,
        data=g.json(
            given.data,
            attempt=moved.attempt,
            recovery_attempts=moved.recovery_attempts,
            available_at=case((given.status == word(TaskStatus.READY), due)),
            retry_at=case((_is_retry(given), due)),
        ),
        worker_id=freed.worker_id,
        lease_token=freed.lease_token,
    )


def _is_retry(given: Any) -> ColumnElement[bool]:
    return given.event_type == word(EventType.RETRY_SCHEDULED)  # type: ignore[no-any-return]


def _due(g: Grammar, given: Any) -> ColumnElement[Any]:
    return func.coalesce(given.available_at, g.now)


def _gone_to_change(g: Grammar) -> Statement:
    entry = task_outbox.c
    return (
        delete(task_outbox)
        .where(
            entry.task_execution_id == _task_id,
            or_(and_(_due_now, entry.available_at > g.now), entry.priority != _priority),
        )
        .returning(entry.task_execution_id.label("id"), entry.available_at)
    )


def _gone_to_be_due(g: Grammar, r: Relations) -> Statement:
    entry = task_outbox.c
    return (
        delete(task_outbox)
        .where(g.among(entry.id, r["given"].c.entry_id), _due_now, entry.available_at > g.now)
        .returning(entry.task_execution_id.label("id"), entry.available_at)
    )


def _rescheduled(g: Grammar, r: Relations) -> Statement:
    execution = task_executions.c
    return (
        update(task_executions)
        .where(g.among(execution.id, r["gone"].c.id), execution.status == word(TaskStatus.READY))
        .values(
            priority=func.coalesce(_priority, execution.priority),
            retry_at=case((_due_now, null()), else_=execution.retry_at),
            updated_at=g.now,
        )
        .returning(*(execution[name] for name in effects.CARRIED))
    )


def _changed_entry(g: Grammar, r: Relations) -> Statement:
    moved, gone = r["moved"].c, r["gone"].c
    rows = r["moved"].join(r["gone"], moved.id == gone.id)
    return effects.entry(g, moved, rows, ready=moved.status == word(TaskStatus.READY), due=_changed_due(g, gone))


def _rescheduled_event(g: Grammar, r: Relations) -> Statement:
    moved, gone = r["moved"].c, r["gone"].c
    return effects.event(
        g,
        moved,
        r["moved"].join(r["gone"], moved.id == gone.id),
        event_type=word(EventType.RESCHEDULED),
        data=g.json(available_at=_changed_due(g, gone), priority=_priority, request=_request, reason=_reason),
        worker_id=null(),
        lease_token=null(),
    )


def _changed_due(g: Grammar, gone: Any) -> ColumnElement[Any]:
    return case((_due_now, g.now), else_=gone.available_at)
