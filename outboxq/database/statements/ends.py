"""End or extend the claims of a worker. Every write requires its lease token and its worker id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Select,
    Text,
    Update,
    Uuid,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    null,
    select,
    true,
    tuple_,
    update,
)

from ...model import EventType, TaskStatus
from ..column_types import Instant
from ..tables import task_executions, task_leases
from . import effects, limits
from .claim import worker_id
from .grammar import Columns, Grammar, Relations, Statement, StepCondition, Transition, word

_task_id = bindparam("task_id", type_=Uuid, required=True)
_lease_token = bindparam("lease_token", type_=BigInteger, required=True)
HELD: Columns = {"id": Uuid(), "lease_token": BigInteger()}
END: Columns = {
    **HELD,
    "event_type": Text(),
    "status": Text(),
    "available_at": Instant,
    "delay_seconds": Double(),
    "error": Text(),
    "result": Text(),
    "data": Text(),
    "partition_key": Text(),
}
CONSTANT_COLUMNS = frozenset(END) - {"id", "lease_token", "result", "partition_key"}
"""Columns in which most ends of a batch agree: most tasks complete, and differ in their result only."""


def end(g: Grammar) -> Transition:
    """End claims of one worker, each with its own outcome. Returns the ids of the claims that the worker still held.

    Waits for a transaction that has locked a lease or a task.
    """
    return _end(g, {"freed": lambda r: _freed(g, r, r["given"].c.id)})


def end_unlocked(g: Grammar) -> Transition:
    """End the claims whose lease and task no other transaction has locked, as `end` does. Leaves the others unchanged."""
    return _end(
        g,
        {
            "held": lambda r: _held(g, r, r["given"].c.id),
            "unlocked": lambda r: unlocked(g, r["held"].c.id),
            "freed": lambda r: _freed(g, r, r["unlocked"].c.id),
        },
    )


def held(g: Grammar) -> Transition:
    """Return the ids of the claims that the worker still holds. Locks nothing."""
    return Transition(given=HELD, steps={"there": lambda r: _there(g, r, r["given"].c.id)}, returns="there")


def _end(g: Grammar, freed: Mapping[str, Callable[[Relations], Statement]]) -> Transition:
    """End the claims whose leases the steps of `freed` delete."""
    return Transition(
        given=END,
        constant_columns=CONSTANT_COLUMNS,
        steps={
            **freed,
            "ended": lambda r: _ended(g, r),
            "entry": lambda r: _entry(g, r),
            "event": lambda r: _event(g, r),
            "letter": lambda r: _letter(g, r),
            "key_held": lambda r: effects.key_held(g, r["ended"].c),
            "key_freed": lambda r: effects.key_freed(g, r["ended"].c),
        },
        conditions={
            "entry": StepCondition(relation="given", column="status", values=frozenset({TaskStatus.READY})),
            "letter": StepCondition(relation="given", column="status", values=frozenset({TaskStatus.FAILED})),
            "key_held": StepCondition(relation="given", column="partition_key"),
            "key_freed": StepCondition(relation="given", column="partition_key"),
        },
        returns="ended",
        returning=("id", "queue", "partition_key", "limits"),
    )


def begin(_: Grammar) -> Update:
    """Record that the handler of a claim begins. Returns the task's id if the worker still holds the claim."""
    lease = task_leases.c
    held = (lease.task_execution_id == _task_id, lease.lease_token == _lease_token, lease.worker_id == worker_id)
    return update(task_leases).where(*held).values(begun=true()).returning(lease.task_execution_id.label("id"))


def heartbeat(g: Grammar) -> Transition:
    """Extend the leases of a worker. Returns the claims that it still holds, with their cancel requests.

    A lease that another transaction has locked is not extended, and returned without `lease_expires_at`.
    """

    def beaten(r: Relations) -> Statement:
        held, given = r["held"].c, r["given"].c
        return (
            update(task_leases)
            .where(g.among(task_leases.c.task_execution_id, held.id), task_leases.c.task_execution_id == given.id)
            .values(lease_expires_at=g.later(g.now, given.lease_seconds))
            .returning(task_leases.c.task_execution_id.label("id"), task_leases.c.lease_expires_at)
        )

    def request(r: Relations) -> Statement:
        execution = task_executions.c
        return select(execution.id, execution.cancel_requested_at).where(g.among(execution.id, r["there"].c.id))

    return Transition(
        given={**HELD, "lease_seconds": Double()},
        steps={
            "there": lambda r: _there(g, r, r["given"].c.id),
            "held": lambda r: _held(g, r, r["there"].c.id),
            "beaten": beaten,
            "request": request,
        },
        returns="there",
        joined_steps=("beaten", "request"),
    )


def unlocked(g: Grammar, ids: ColumnElement[Any]) -> Select[Any]:
    """Lock the tasks of these ids in the order of the ids. Skips tasks that another transaction has locked."""
    execution = task_executions.c
    return (
        select(execution.id).where(g.among(execution.id, ids)).order_by(execution.id).with_for_update(skip_locked=True)
    )


def _there(g: Grammar, r: Relations, ids: ColumnElement[Any]) -> Select[Any]:
    """Select the leases of these ids that the worker still holds."""
    lease, given = task_leases.c, r["given"].c
    return (
        select(lease.task_execution_id.label("id"))
        .join_from(task_leases, r["given"], lease.task_execution_id == given.id)
        .where(
            g.among(lease.task_execution_id, ids),
            lease.lease_token == given.lease_token,
            lease.worker_id == worker_id,
        )
    )


def _held(g: Grammar, r: Relations, ids: ColumnElement[Any]) -> Select[Any]:
    """Lock the leases of these ids that the worker still holds, in the order of the ids. Skips locked ones."""
    there = _there(g, r, ids).order_by(task_leases.c.task_execution_id)
    return there.with_for_update(of=task_leases, skip_locked=True)


def _freed(g: Grammar, r: Relations, ids: ColumnElement[Any]) -> Statement:
    """Delete the leases of these ids that the worker still holds, through the index, so in the order of the ids.

    They are not locked first: a lock and a deletion are two records in the database's log.
    """
    lease, given = task_leases.c, r["given"].c
    # IS TRUE keeps this a test of each lease found. A join could be planned in another order than that of the ids.
    held = tuple_(lease.task_execution_id, lease.lease_token).in_(select(given.id, given.lease_token))
    return (
        delete(task_leases)
        .where(g.among(lease.task_execution_id, ids), lease.worker_id == worker_id, held.is_(true()))
        .returning(lease.task_execution_id.label("id"))
    )


def _ended(g: Grammar, r: Relations) -> Statement:
    """End the tasks of deleted leases. A task with a cancel request is Cancelled instead of returning to the outbox.

    The count of recoveries starts again at 0, because the worker survived the task. A task that is released unfinished keeps
    the count: it has not proved anything.
    """
    execution, given = task_executions.c, r["given"].c
    ready = and_(_is_ready(given), execution.cancel_requested_at.is_(None))
    retry = and_(_is_retry(given), execution.cancel_requested_at.is_(None))
    return (
        update(task_executions)
        .where(
            g.among(execution.id, r["freed"].c.id),
            execution.id == given.id,
            execution.lease_token == given.lease_token,
            execution.worker_id == worker_id,
            execution.status == word(TaskStatus.RUNNING),
        )
        .values(
            status=case((ready, given.status), (_is_ready(given), word(TaskStatus.CANCELLED)), else_=given.status),
            worker_id=null(),
            attempt=execution.attempt + case((retry, 1), else_=0),
            recovery_attempts=case(
                (given.event_type == word(EventType.RELEASED), execution.recovery_attempts), else_=literal_column("0")
            ),
            retry_at=case((retry, _due(g, given)), else_=null()),
            started_at=case((ready, null()), else_=execution.started_at),
            completed_at=case((ready, null()), else_=g.now),
            updated_at=g.now,
            last_error=func.coalesce(given.error, execution.last_error),
            result=given.result,
        )
        .returning(
            *(execution[name] for name in effects.CARRIED),
            execution.attempt,
            limits.any_limited().label("limits"),
        )
    )


def _entry(g: Grammar, r: Relations) -> Statement:
    ended, given = r["ended"].c, r["given"].c
    rows = r["ended"].join(r["given"], ended.id == given.id)
    return effects.entry(g, ended, rows, ready=_is_ready(ended), due=_due(g, given))


def _event(g: Grammar, r: Relations) -> Statement:
    ended, given = r["ended"].c, r["given"].c
    due = _due(g, given)
    stopped = ended.status != given.status
    said = g.json(
        given.data,
        attempt=ended.attempt,
        available_at=case((_is_ready(ended), due)),
        retry_at=case((and_(_is_ready(ended), _is_retry(given)), due)),
    )
    return effects.event(
        g,
        ended,
        r["ended"].join(r["given"], ended.id == given.id),
        event_type=case((stopped, word(EventType.CANCELLED)), else_=given.event_type),
        # Completed is the most frequent end, and its event needs no data.
        data=case((given.status == word(TaskStatus.COMPLETED), given.data), else_=said),
        worker_id=worker_id,
        lease_token=given.lease_token,
    )


def _letter(g: Grammar, r: Relations) -> Statement:
    ended, given = r["ended"].c, r["given"].c
    rows = r["ended"].join(r["given"], ended.id == given.id)
    return effects.letter(g, ended, rows, exception=g.text_in(given.data, "exception"))


def _is_ready(row: Any) -> ColumnElement[bool]:
    return row.status == word(TaskStatus.READY)  # type: ignore[no-any-return]


def _is_retry(given: Any) -> ColumnElement[bool]:
    return given.event_type == word(EventType.RETRY_SCHEDULED)  # type: ignore[no-any-return]


def _due(g: Grammar, given: Any) -> ColumnElement[Any]:
    return func.coalesce(given.available_at, g.later(g.now, given.delay_seconds))
