"""End or extend the claims of a worker, and find a task's last end. Every write requires the lease token and the worker id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
    update,
)

from ...model import ENDS_CLAIM, INTERRUPTED, EventType, TaskStatus
from ...store import task_rows
from ...store.task_rows import due_time
from .. import queue_order
from ..column_types import Instant
from ..grammar import (
    Columns,
    Grammar,
    Relations,
    SqlStatus,
    Statement,
    StepCondition,
    Transition,
    joined,
    sql_literal,
    worker_id,
)
from ..tables import execution_events, task_executions, task_leases

_task_id = bindparam("task_id", type_=Uuid, required=True)
_lease_token = bindparam("lease_token", type_=BigInteger, required=True)
HELD: Columns = {"id": Uuid(), "lease_token": BigInteger()}
PROGRESS: Columns = {"progress": Double(), "progress_note": Text()}
"""The columns of the batch of `heartbeat` that hold what handlers have reported; NULL: nothing new."""
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
_BY_HANDLER = ENDS_CLAIM - {EventType.RESET, EventType.RELEASED}
"""The ends of claims that tell something about the handler."""
_BY_HAND = (EventType.RETRY_SCHEDULED, EventType.REQUEUED, EventType.REPLACED)
"""The events that start a task again without a claim."""


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
            "key_held": lambda r: task_rows.key_held(g, r["ended"].c),
            "key_freed": lambda r: task_rows.key_freed(g, r["ended"].c),
        },
        conditions={
            "entry": StepCondition(column="status", values=frozenset({TaskStatus.READY})),
            "letter": StepCondition(column="status", values=frozenset({TaskStatus.FAILED})),
            "key_held": StepCondition(column="partition_key"),
            "key_freed": StepCondition(column="partition_key"),
        },
        returns="ended",
        returning=("id", "queue", "partition_key", "limits"),
    )


def begin(_: Grammar) -> Statement:
    """Record that the handler of a claim begins. Returns the task's id if the worker still holds the claim."""
    lease = task_leases.c
    held = (lease.task_execution_id == _task_id, lease.lease_token == _lease_token, lease.worker_id == worker_id)
    return update(task_leases).where(*held).values(begun=true()).returning(lease.task_execution_id.label("id"))


def heartbeat(g: Grammar) -> Transition:
    """Extend the leases of a worker, and write the progress of their tasks; NULL keeps what was reported before. Returns the
    claims that it still holds, with their cancel requests.

    A lease that another transaction has locked is not extended, and returned without `lease_expires_at`.
    """
    lease = task_leases.c

    def beaten(r: Relations) -> Statement:
        held, given = r["held"].c, r["given"].c
        written = {name: func.coalesce(given[name], lease[name]) for name in PROGRESS}
        return (
            update(task_leases)
            .where(g.among(lease.task_execution_id, held.id), lease.task_execution_id == given.id)
            .values(lease_expires_at=g.later(g.now, given.lease_seconds), **written)
            .returning(lease.task_execution_id.label("id"), lease.lease_expires_at)
        )

    def request(r: Relations) -> Statement:
        execution = task_executions.c
        return select(execution.id, execution.cancel_requested_at).where(g.among(execution.id, r["there"].c.id))

    return Transition(
        given={**HELD, "lease_seconds": Double(), **PROGRESS},
        steps={
            "there": lambda r: _there(g, r, r["given"].c.id),
            "held": lambda r: _held(g, r, r["there"].c.id),
            "beaten": beaten,
            "request": request,
        },
        returns="there",
        joined_steps=("beaten", "request"),
    )


def last_end(g: Grammar) -> Select[Any]:
    """Select the newest event of a task that is an interruption, or that ended a row of them: an end by its handler, an operation.

    An interruption is the release of a transactional task whose transaction an error from outside has ended. Recoveries and
    releases of claims that never began are ignored, and so is a release whose data is no JSON. There is one part for each index.
    """
    event = execution_events.c
    mine = select(event.sequence_num, event.event_type, event.event_data).where(event.task_execution_id == _task_id)
    says = event.event_type.in_([sql_literal(kind) for kind in sorted(_BY_HANDLER)])
    # In this order, so that only what is JSON is parsed.
    interrupted = (
        case((g.is_json(event.event_data, an_object=True), g.text_in(event.event_data, "reason"))) == INTERRUPTED
    )
    ends = union_all(
        mine.where(
            event.event_type != sql_literal(EventType.CLAIMED),
            event.lease_token.is_not(None),
            or_(says, (event.event_type == sql_literal(EventType.RELEASED)) & interrupted),
        ),
        mine.where(event.lease_token.is_(None), event.event_type.in_([sql_literal(kind) for kind in _BY_HAND])),
    ).subquery("ends")
    return select(ends.c.event_type, ends.c.event_data).order_by(ends.c.sequence_num.desc()).limit(1)


def unlocked(g: Grammar, ids: ColumnElement[Any]) -> Select[Any]:
    """Lock the tasks of these ids in the order of the ids. Skips tasks that another transaction has locked."""
    execution = task_executions.c
    return (
        select(execution.id).where(g.among(execution.id, ids)).order_by(execution.id).with_for_update(skip_locked=True)
    )


def fence(g: Grammar, ids: ColumnElement[Any], claim: Any, worker: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return a condition: the task, one of `ids`, is Running under this claim of this worker."""
    execution = task_executions.c
    return and_(
        g.among(execution.id, ids),
        execution.id == claim.id,
        execution.lease_token == claim.lease_token,
        execution.worker_id == worker,
        execution.status == SqlStatus.RUNNING,
    )


def _there(g: Grammar, r: Relations, ids: ColumnElement[Any]) -> Select[Any]:
    """Select the leases of these ids that the worker still holds."""
    lease, given = task_leases.c, r["given"].c
    return (
        select(lease.task_execution_id.label("id"))
        .join_from(task_leases, r["given"], lease.task_execution_id == given.id)
        .where(
            g.among(lease.task_execution_id, ids), lease.lease_token == given.lease_token, lease.worker_id == worker_id
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
    goes_on = execution.cancel_requested_at.is_(None)
    ready, retry = and_(given.status == SqlStatus.READY, goes_on), and_(_is_retry(given), goes_on)
    return (
        update(task_executions)
        .where(fence(g, r["freed"].c.id, given, worker_id))
        .values(
            status=case(
                (ready, given.status), (given.status == SqlStatus.READY, SqlStatus.CANCELLED), else_=given.status
            ),
            worker_id=null(),
            attempt=execution.attempt + case((retry, 1), else_=0),
            recovery_attempts=case(
                (given.event_type == sql_literal(EventType.RELEASED), execution.recovery_attempts),
                else_=literal_column("0"),
            ),
            retry_at=case((retry, due_time(g, given)), else_=null()),
            started_at=case((ready, null()), else_=execution.started_at),
            completed_at=case((ready, null()), else_=g.now),
            updated_at=g.now,
            last_error=func.coalesce(given.error, execution.last_error),
            result=given.result,
        )
        .returning(*task_rows.CARRIED, execution.attempt, queue_order.any_limited().label("limits"))
    )


def _entry(g: Grammar, r: Relations) -> Statement:
    return task_rows.entry(g, r["ended"].c, joined(r["ended"], r["given"]), due=due_time(g, r["given"].c))


def _event(g: Grammar, r: Relations) -> Statement:
    ended, given = r["ended"].c, r["given"].c
    ready, due_at = ended.status == SqlStatus.READY, due_time(g, given)
    said = g.json(
        given.data,
        attempt=ended.attempt,
        available_at=case((ready, due_at)),
        retry_at=case((and_(ready, _is_retry(given)), due_at)),
    )
    return task_rows.event(
        g,
        ended,
        joined(r["ended"], r["given"]),
        event_type=case((ended.status != given.status, sql_literal(EventType.CANCELLED)), else_=given.event_type),
        # Completed is the most frequent end, and its event needs no data.
        data=case((given.status == SqlStatus.COMPLETED, given.data), else_=said),
        worker_id=worker_id,
        lease_token=given.lease_token,
    )


def _letter(g: Grammar, r: Relations) -> Statement:
    exception = g.text_in(r["given"].c.data, "exception")
    return task_rows.letter(g, r["ended"].c, joined(r["ended"], r["given"]), exception=exception)


def _is_retry(given: Any) -> ColumnElement[bool]:
    return given.event_type == sql_literal(EventType.RETRY_SCHEDULED)  # type: ignore[no-any-return]
