"""Change a task without a lease token, as a person or a program asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

from ...model import EventType
from ..column_types import BigId, Instant
from ..grammar import Columns, Grammar, Relations, SqlStatus, Statement, Transition, joined, sql_literal
from ..tables import task_executions, task_leases, task_outbox
from . import task_rows

BY_HAND: Columns = {
    "id": Uuid(),
    "event_type": Text(),
    "status": Text(),
    "attempt": Integer(),
    "available_at": Instant,
    "data": Text(),
}
_entry, _lease, _execution = task_outbox.c, task_leases.c, task_executions.c
_from_ready, _from_running, _from_failed, _due_now = (
    bindparam(name, type_=Boolean, required=True) for name in ("from_ready", "from_running", "from_failed", "due_now")
)
_task_id = bindparam("task_id", type_=Uuid, required=True)
_priority = bindparam("priority", type_=SmallInteger, required=True)
"""The new priority; NULL keeps the present one."""
_request = bindparam("request", type_=Text, required=True)
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
            "gone": partial(_gone, g),
            "freed": partial(_freed, g),
            "moved": partial(_moved, g),
            "entry": partial(_new_entry, g),
            "event": partial(_event, g),
            "letter_gone": lambda r: task_rows.letter_gone(g, r["moved"].c),
            "key_freed": lambda r: task_rows.key_freed(g, r["moved"].c),
        },
        returns="moved",
        joined_steps=("freed",),
    )


def reschedule(g: Grammar) -> Transition:
    """Replace the entry of a waiting task: due now (:due_now), or with another :priority. Its position stays.

    A task that is due already, or has that priority, is not changed.
    """
    differs = or_(and_(_due_now, _entry.available_at > g.now), _entry.priority != _priority)
    return _rescheduling(g, lambda _: and_(_entry.task_execution_id == _task_id, differs))


def make_due(g: Grammar) -> Transition:
    """Make the tasks of these outbox entries due now, if :due_now. Their events carry :reason.

    An entry that is due already, or was replaced meanwhile, is not changed.
    """
    later = and_(_due_now, _entry.available_at > g.now)
    return _rescheduling(g, lambda r: and_(g.among(_entry.id, r["given"].c.entry_id), later), given={"entry_id": BigId})


def _rescheduling(
    g: Grammar, entries: Callable[[Relations], ColumnElement[bool]], *, given: Columns | None = None
) -> Transition:
    """Replace the entries for which the condition is true."""

    def gone(r: Relations) -> Statement:
        return (
            delete(task_outbox).where(entries(r)).returning(_entry.task_execution_id.label("id"), _entry.available_at)
        )

    def moved(r: Relations) -> Statement:
        return (
            update(task_executions)
            .where(g.among(_execution.id, r["gone"].c.id), _execution.status == SqlStatus.READY)
            .values(
                priority=func.coalesce(_priority, _execution.priority),
                retry_at=case((_due_now, null()), else_=_execution.retry_at),
                updated_at=g.now,
            )
            .returning(*task_rows.CARRIED)
        )

    def due(r: Relations) -> ColumnElement[Any]:
        return case((_due_now, g.now), else_=r["gone"].c.available_at)

    def entry(r: Relations) -> Statement:
        moved = r["moved"].c
        return task_rows.entry(
            g, moved, joined(r["moved"], r["gone"]), ready=moved.status == SqlStatus.READY, due=due(r)
        )

    def event(r: Relations) -> Statement:
        return task_rows.event(
            g,
            r["moved"].c,
            joined(r["moved"], r["gone"]),
            event_type=sql_literal(EventType.RESCHEDULED),
            data=g.json(available_at=due(r), priority=_priority, request=_request, reason=_reason),
        )

    steps = {"gone": gone, "moved": moved, "entry": entry, "event": event}
    return Transition(given=given or {}, steps=steps, returns="moved")


def waiting(g: Grammar) -> Select[Any]:
    """Select the priority of a waiting task, and true if it is due; no row unless the task is Ready."""
    asked: tuple[Any, ...] = ((_entry.available_at <= g.now).label("due"), _entry.priority)
    return select(*asked).where(_entry.task_execution_id == _task_id)


def request_cancel(g: Grammar) -> Transition:
    """Ask running tasks to stop. Their workers see the request at the next heartbeat. A repeated request changes nothing."""

    def asked(r: Relations) -> Statement:
        return (
            update(task_executions)
            .where(
                g.among(_execution.id, r["given"].c.id),
                _execution.status == SqlStatus.RUNNING,
                _execution.cancel_requested_at.is_(None),
            )
            .values(cancel_requested_at=g.now, updated_at=g.now)
            .returning(_execution.id, _execution.pipeline_execution_id)
        )

    def event(r: Relations) -> Statement:
        asked, given = r["asked"].c, r["given"].c
        return task_rows.event(
            g,
            asked,
            r["asked"].join(r["given"], asked.id == given.id),
            event_type=sql_literal(EventType.CANCEL_REQUESTED),
            data=given.data,
        )

    return Transition(given={"id": Uuid(), "data": Text()}, steps={"asked": asked, "event": event}, returns="asked")


def _gone(g: Grammar, r: Relations) -> Statement:
    gone = delete(task_outbox).where(_from_ready, g.among(_entry.task_execution_id, r["given"].c.id))
    return gone.returning(_entry.task_execution_id.label("id"))


def _freed(g: Grammar, r: Relations) -> Statement:
    freed = delete(task_leases).where(_from_running, g.among(_lease.task_execution_id, r["given"].c.id))
    return freed.returning(_lease.task_execution_id.label("id"), _lease.lease_token, _lease.worker_id)


def _moved(g: Grammar, r: Relations) -> Statement:
    given = r["given"].c
    ready = given.status == SqlStatus.READY
    return (
        update(task_executions)
        .where(
            g.among(_execution.id, given.id),
            _execution.id == given.id,
            or_(
                and_(_execution.status == SqlStatus.READY, g.among(_execution.id, r["gone"].c.id)),
                and_(_execution.status == SqlStatus.RUNNING, g.among(_execution.id, r["freed"].c.id)),
                and_(_execution.status == SqlStatus.FAILED, _from_failed),
            ),
        )
        .values(
            status=given.status,
            worker_id=null(),
            attempt=func.coalesce(given.attempt, _execution.attempt),
            recovery_attempts=case(
                (given.event_type == sql_literal(EventType.REQUEUED), 0), else_=_execution.recovery_attempts
            ),
            cancel_requested_at=null(),
            retry_at=case((_is_retry(given), given.available_at), else_=null()),
            started_at=case((ready, null()), else_=_execution.started_at),
            completed_at=case((ready, null()), else_=g.now),
            updated_at=g.now,
        )
        .returning(*task_rows.CARRIED, _execution.attempt, _execution.recovery_attempts)
    )


def _new_entry(g: Grammar, r: Relations) -> Statement:
    moved, given = r["moved"].c, r["given"].c
    rows = r["moved"].join(r["given"], moved.id == given.id)
    return task_rows.entry(g, moved, rows, ready=moved.status == SqlStatus.READY, due=_due(g, given))


def _event(g: Grammar, r: Relations) -> Statement:
    moved, given, freed = r["moved"].c, r["given"].c, r["freed"].c
    due = _due(g, given)
    return task_rows.event(
        g,
        moved,
        r["moved"].join(r["given"], moved.id == given.id).outerjoin(r["freed"], moved.id == freed.id),
        event_type=given.event_type,
        data=g.json(
            given.data,
            attempt=moved.attempt,
            recovery_attempts=moved.recovery_attempts,
            available_at=case((given.status == SqlStatus.READY, due)),
            retry_at=case((_is_retry(given), due)),
        ),
        worker_id=freed.worker_id,
        lease_token=freed.lease_token,
    )


def _is_retry(given: Any) -> ColumnElement[bool]:
    return given.event_type == sql_literal(EventType.RETRY_SCHEDULED)  # type: ignore[no-any-return]


def _due(g: Grammar, given: Any) -> ColumnElement[Any]:
    return func.coalesce(given.available_at, g.now)
