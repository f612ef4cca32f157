"""Heartbeats, and the ways in which a claim can end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Protocol
from uuid import UUID

import sqlalchemy as sa

from ...database import queue_order, table_locks
from ...database.column_types import Instant
from ...database.dialects import Alike, Batch, Begin
from ...database.grammar import (
    Builder,
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
from ...database.tables import execution_events, task_executions, task_leases
from ...database.target import Target
from ...errors import InvalidArgument, LeaseLost
from ...model import ENDS_CLAIM, INTERRUPTED, STATUS_AFTER, Claim, EventType, Outcome, TaskStatus, duration
from ...model.running import Progress
from ...payload.parameters import sanitize
from .. import task_rows
from ..task_rows import due_time, event_data
from ..tasks import tasks
from ..tasks.tasks import data_of
from ..transactions import Transactions

_BEGIN = {
    (True, True): Begin.SINGLE,
    (True, False): Begin.WRITE,
    (False, True): Begin.SINGLE_ASYNCHRONOUS,
    (False, False): Begin.ASYNCHRONOUS,
}
"""The kinds of transactions, keyed by whether a transaction is durable and whether it is a single statement."""
A_MOMENT: Final = {"lock_timeout": "50ms", "statement_timeout": None}
"""A lock timeout that is long enough to wait for a batch's row while other workers commit the ends of its tasks one by
one.
"""
NO_PROGRESS: Final[Mapping[UUID, Progress]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Beat:
    """A lease that the worker still held at a heartbeat."""

    lease_expires_at: datetime | None
    """The time at which the lease now expires; None if the lease was neither extended nor lost, because another
    transaction had locked it.
    """
    cancel_requested: bool


class Finishes(Protocol):
    """A store whose `finish` these functions call. If a subclass overrides `finish`, its method is called for every
    end.
    """

    def finish(self, outcomes: Sequence[Outcome], *, using: object = None) -> frozenset[UUID]: ...


def compile_ends(store: Transactions) -> None:
    """Compile in advance the statements that a worker needs after its first claims, so that no claim waits for the
    compilation.
    """
    store.dialect.warm(extend_leases, end)


def complete(store: Finishes, claim: Claim, result: str | None = None, *, using: object = None) -> None:
    """End the claim as Completed, with the encoded result. Raises LeaseLost if the worker no longer holds the claim."""
    _finish_one(store, Outcome(claim=claim, event_type=EventType.COMPLETED, result=result), using)


def fail(store: Finishes, claim: Claim, error: str, *, using: object = None) -> None:
    """End the claim as Failed, which makes the task a dead letter. `error` is one line. Raises LeaseLost."""
    data = {"error": error}
    _finish_one(store, Outcome(claim=claim, event_type=EventType.FAILED, error=error, data=data), using)


def release(
    store: Finishes, claim: Claim, *, delay: timedelta | float = 0, reason: str = "", using: object = None
) -> None:
    """Release the unfinished task, which is due again after `delay`. This does not use up an attempt. Raises LeaseLost."""
    data = {"reason": reason} if reason else {}
    outcome = Outcome(claim=claim, event_type=EventType.RELEASED, delay=duration(delay, "delay"), data=data)
    _finish_one(store, outcome, using)


def finish(
    store: Transactions, outcomes: Sequence[Outcome], *, durable: bool = True, waits: bool = True, using: object = None
) -> frozenset[UUID]:
    """End many claims of one worker in one statement, each with its own outcome.

    Returns the ids of the lost claims, for which nothing was written. Unless `durable` is true, PostgreSQL answers
    before the commit is on disk. A crash of the server, but not of this process, may then undo the most recent ends,
    and the tasks run again when their leases expire. SQLite behaves in the same way on a worker's own connections. If
    `waits` is False and another session keeps a row locked for more than two seconds, the call raises an error that
    `is_locked_out` recognizes, and the transaction is not retried.
    """
    if not outcomes:
        return frozenset()
    _check(outcomes)

    def done(target: Target) -> frozenset[UUID] | None:
        lost = frozenset(
            outcome.claim.id for outcome in outcomes if not has_ended(target, outcome.claim, outcome.event_type)
        )
        return lost if len(lost) < len(outcomes) else None

    # If the end lets another task start, workers are notified in the same transaction.
    alone = not any(outcome.claim.makes_way for outcome in outcomes)
    return store.run(
        lambda target: _end(store, target, end, outcomes),
        using=using,
        begin=_BEGIN[durable, alone],
        done=done,
        gives_up=None if waits else store.is_locked_out,
    )


def finish_unlocked(
    store: Transactions, outcomes: Sequence[Outcome], *, durable: bool = True
) -> tuple[frozenset[UUID], frozenset[UUID]]:
    """End claims as `finish` does, but only those whose lease and task no other session has locked.

    Returns two sets of ids: those of the lost claims, and those of the locked claims, which have not ended. For any
    other locked row, such as a batch's row, the call waits briefly. If that row stays locked, the call raises an error
    that `is_locked_out` recognizes, and no claim has ended.
    """
    if not outcomes:
        return frozenset(), frozenset()
    _check(outcomes)

    def work(target: Target) -> tuple[frozenset[UUID], frozenset[UUID]]:
        if not target.dialect.one_writer:
            target.run(table_locks.limits, A_MOMENT)
        left = _end(store, target, end_unlocked, outcomes)
        if not left:
            return frozenset(), frozenset()
        values = store.values(target, worker_id=outcomes[0].claim.worker_id)
        rest = [outcome for outcome in outcomes if outcome.claim.id in left]
        rows = [(outcome.claim.id, outcome.claim.lease_token) for outcome in rest]
        locked = frozenset(row["id"] for row in target.run(held, values, rows))
        # An earlier attempt may have ended some of the claims if the answer to its COMMIT was lost.
        ended = {outcome.claim.id for outcome in rest if has_ended(target, outcome.claim, outcome.event_type)}
        return left - locked - ended, locked

    return store.run(work, begin=_BEGIN[durable, False], gives_up=store.is_locked_out)


def begin(store: Transactions, claim: Claim) -> bool:
    """Record that the claim's handler is about to begin, and return whether the worker still holds the claim.

    This is for claims made with `says_begin`. A server crash may undo the record.
    """
    return bool(store.run_one(mark_begun, begin=Begin.SINGLE_ASYNCHRONOUS, **_fence_of(claim)))


def heartbeat(
    store: Transactions,
    claims: Sequence[Claim],
    *,
    progress: Mapping[UUID, Progress] = NO_PROGRESS,
    using: object = None,
) -> dict[UUID, Beat]:
    """Extend the leases of these claims, all held by one worker, to their full length, counted from now. Lost claims
    are missing from the result. The call never waits for a row that another session has locked: see
    `Beat.lease_expires_at`. The call also writes `progress`, which is keyed by task id. A task without new progress
    keeps its last report.
    """
    if not claims:
        return {}
    if len({claim.worker_id for claim in claims}) > 1:
        raise InvalidArgument("all claims passed to heartbeat() must belong to the same worker")
    rows = [(claim.id, claim.lease_token, claim.lease_seconds, *_cells(progress.get(claim.id))) for claim in claims]

    def work(target: Target) -> dict[UUID, Beat]:
        values = store.values(target, worker_id=claims[0].worker_id)
        with target.atomic():
            beaten = target.run(extend_leases, values, rows)
        return {row["id"]: Beat(row["lease_expires_at"], row["cancel_requested_at"] is not None) for row in beaten}

    # If the server loses this commit, the lease expires as if it had not been extended.
    return store.run(work, using=using, begin=Begin.SINGLE_ASYNCHRONOUS)


def _cells(progress: Progress | None) -> tuple[float | None, str | None]:
    return (None, None) if progress is None else (progress.fraction, progress.note)


def _finish_one(store: Finishes, outcome: Outcome, using: object) -> None:
    if store.finish([outcome], using=using):
        raise LeaseLost(
            f"task {outcome.claim.id} is no longer held under lease token {outcome.claim.lease_token} by worker "
            f"{outcome.claim.worker_id}; nothing was written"
        )


def _end(store: Transactions, target: Target, end: Builder, outcomes: Sequence[Outcome]) -> frozenset[UUID]:
    """End the claims with this statement, and return the ids of the claims that it did not end."""
    values = store.values(target, worker_id=outcomes[0].claim.worker_id)
    with target.atomic():
        ended = target.run(end, values, _rows(outcomes))
    store.wake(target, {row["queue"] for row in ended if row["limits"] or row["partition_key"] is not None})
    if len(ended) == len(outcomes):
        return frozenset()
    return frozenset(outcome.claim.id for outcome in outcomes) - {row["id"] for row in ended}


def has_ended(target: Target, claim: Any, event_type: EventType) -> bool:
    """Return whether the claim, given as a Claim or a Lease, has ended with this event."""
    return [row["event_type"] for row in target.run(tasks.ended_by, _fence_of(claim))] == [event_type]


def _fence_of(claim: Any) -> dict[str, Any]:
    return {"task_id": claim.id, "lease_token": claim.lease_token, "worker_id": claim.worker_id}


def _check(outcomes: Sequence[Outcome]) -> None:
    workers = {outcome.claim.worker_id for outcome in outcomes}
    if len(workers) > 1 or len({outcome.claim.id for outcome in outcomes}) < len(outcomes):
        raise InvalidArgument("finish() accepts only outcomes of the same worker, and only one outcome for each task")
    if wrong := {outcome.event_type for outcome in outcomes} - ENDS_CLAIM:
        raise InvalidArgument(f"{', '.join(sorted(wrong))} does not end a claim, so it cannot be an outcome")


def _rows(outcomes: Sequence[Outcome]) -> Batch:
    """Return the batch with the columns of `END`. Most outcomes are completions that differ only in their results."""
    if len(outcomes) == 1 or not all(map(_only_completes, outcomes)):
        return [_row(outcome) for outcome in outcomes]
    claims = [outcome.claim for outcome in outcomes]
    several = {
        "id": [claim.id for claim in claims],
        "lease_token": [claim.lease_token for claim in claims],
        "result": [outcome.result for outcome in outcomes],
        "partition_key": [claim.partition_key for claim in claims],
    }
    row = dict(zip(END, _row(outcomes[0]), strict=True))
    return Alike(cells=row | several, several=frozenset(several))


def _only_completes(outcome: Outcome) -> bool:
    return (
        outcome.event_type is EventType.COMPLETED
        and not outcome.claim.recovery_attempts
        and not outcome.data
        and outcome.error is None
        and outcome.available_at is None
        and not outcome.delay
    )


def _row(outcome: Outcome) -> tuple[object, ...]:
    data = outcome.data
    if outcome.claim.recovery_attempts and outcome.event_type is not EventType.RELEASED:
        data = {**data, "recovery_attempts": 0}
    if outcome.error is not None and "error" not in data:
        data = {**data, "error": outcome.error}  # the event has the same error as the row
    return (
        outcome.claim.id,
        outcome.claim.lease_token,
        *_WRITTEN[outcome.event_type],
        outcome.available_at,
        outcome.delay.total_seconds(),
        None if outcome.error is None else sanitize(outcome.error),
        outcome.result,
        event_data(data) if data else None,
        outcome.claim.partition_key,
    )


_WRITTEN = {kind: (kind.value, STATUS_AFTER[kind].value) for kind in ENDS_CLAIM}
"""The event type and the status for each kind of end, as stored."""


def interruptions(store: Transactions, claim: Claim, *, using: object = None) -> int:
    """Return the number of consecutive releases before this claim that were due to an interrupted transaction.

    The count is reset when the handler ends the task, or when a person runs the task again. If the count in the last
    release is unreadable, this returns 0.
    """
    if claim.lease_token <= 1:  # the first claim
        return 0
    ends = store.run_one(last_end, task_id=claim.id, using=using)
    if not ends or ends[0]["event_type"] != EventType.RELEASED:
        return 0
    times = data_of(ends[0]["event_data"]).get("times", 1)
    return times if isinstance(times, int) else 0


_task_id = sa.bindparam("task_id", type_=sa.Uuid, required=True)
_lease_token = sa.bindparam("lease_token", type_=sa.BigInteger, required=True)
HELD: Columns = {"id": sa.Uuid(), "lease_token": sa.BigInteger()}
PROGRESS: Columns = {"progress": sa.Double(), "progress_note": sa.Text()}
"""The columns of the heartbeat's batch that contain what handlers have reported; NULL if there is no new report."""
END: Columns = {
    **HELD,
    "event_type": sa.Text(),
    "status": sa.Text(),
    "available_at": Instant,
    "delay_seconds": sa.Double(),
    "error": sa.Text(),
    "result": sa.Text(),
    "data": sa.Text(),
    "partition_key": sa.Text(),
}
CONSTANT_COLUMNS = frozenset(END) - {"id", "lease_token", "result", "partition_key"}
"""Columns that have the same value for most ends in a batch, because most tasks complete and differ only in their
results.
"""
_BY_HANDLER = ENDS_CLAIM - {EventType.RESET, EventType.RELEASED}
"""The events with which a handler can choose to end its claim."""
_MANUAL = (EventType.RETRY_SCHEDULED, EventType.REQUEUED, EventType.REPLACED)
"""Events that start a task again without a claim."""


def end(g: Grammar) -> Transition:
    """End claims of one worker, each with its own outcome. Returns the ids of the claims that the worker still held.

    The statement waits for any transaction that has locked one of the leases or tasks.
    """
    return _changed(g, {"freed": lambda r: _freed(g, r, r["given"].c.id)})


def end_unlocked(g: Grammar) -> Transition:
    """End claims as `end` does, but only those whose lease and task no other transaction has locked."""
    return _changed(
        g,
        {
            "held": lambda r: lock_in_order(_there(g, r, r["given"].c.id)),
            "unlocked": lambda r: unlocked(g, r["held"].c.id),
            "freed": lambda r: _freed(g, r, r["unlocked"].c.id),
        },
    )


def held(g: Grammar) -> Transition:
    """Return the ids of the claims that the worker still holds, without locking them."""
    return Transition(given=HELD, steps={"there": lambda r: _there(g, r, r["given"].c.id)}, returns="there")


def _changed(g: Grammar, freed: Mapping[str, Callable[[Relations], Statement]]) -> Transition:
    """End the claims whose leases are deleted by the steps in `freed`."""
    return Transition(
        given=END,
        constant_columns=CONSTANT_COLUMNS,
        steps={
            **freed,
            "ended": lambda r: _ended(g, r),
            "entry": lambda r: task_rows.entry(
                g, r["ended"].c, joined(r["ended"], r["given"]), due=due_time(g, r["given"].c)
            ),
            "event": lambda r: _event(g, r),
            "letter": lambda r: _dead_letter(g, r),
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


def mark_begun(_: Grammar) -> Statement:
    """Record that the handler of a claim is about to begin. Returns the task's id if the worker still holds the
    claim.
    """
    lease = task_leases.c
    held = (lease.task_execution_id == _task_id, lease.lease_token == _lease_token, lease.worker_id == worker_id)
    return sa.update(task_leases).where(*held).values(begun=sa.true()).returning(lease.task_execution_id.label("id"))


def extend_leases(g: Grammar) -> Transition:
    """Extend a worker's leases, and write the progress of their tasks (NULL keeps the last report). Returns the claims
    that the worker still holds, with their cancel requests.

    A lease that another transaction has locked is not extended, and is returned without `lease_expires_at`.
    """
    lease = task_leases.c

    def beaten(r: Relations) -> Statement:
        held, given = r["held"].c, r["given"].c
        written = {name: sa.func.coalesce(given[name], lease[name]) for name in PROGRESS}
        return (
            sa.update(task_leases)
            .where(g.among(lease.task_execution_id, held.id), lease.task_execution_id == given.id)
            .values(lease_expires_at=g.later(g.now, given.lease_seconds), **written)
            .returning(lease.task_execution_id.label("id"), lease.lease_expires_at)
        )

    def request(r: Relations) -> Statement:
        execution = task_executions.c
        return sa.select(execution.id, execution.cancel_requested_at).where(g.among(execution.id, r["there"].c.id))

    return Transition(
        given={**HELD, "lease_seconds": sa.Double(), **PROGRESS},
        steps={
            "there": lambda r: _there(g, r, r["given"].c.id),
            "held": lambda r: lock_in_order(_there(g, r, r["there"].c.id)),
            "beaten": beaten,
            "request": request,
        },
        returns="there",
        joined_steps=("beaten", "request"),
    )


def last_end(g: Grammar) -> sa.Select[Any]:
    """Select the newest of a task's interruptions, ends by the handler, and restarts without a claim. The last two
    end a series of interruptions.

    An interruption is the release of a transactional task whose transaction was ended by an error from outside. The
    query ignores recoveries, releases of claims that never began, and releases whose data is invalid JSON. The query
    has one part for each index that it reads.
    """
    event = execution_events.c
    mine = sa.select(event.sequence_num, event.event_type, event.event_data).where(event.task_execution_id == _task_id)
    says = event.event_type.in_([sql_literal(kind) for kind in sorted(_BY_HANDLER)])
    # The conditions are in this order so that only valid JSON is parsed.
    interrupted = (
        sa.case((g.is_json(event.event_data, an_object=True), g.text_in(event.event_data, "reason"))) == INTERRUPTED
    )
    ends = sa.union_all(
        mine.where(
            event.event_type != sql_literal(EventType.CLAIMED),
            event.lease_token.is_not(None),
            sa.or_(says, (event.event_type == sql_literal(EventType.RELEASED)) & interrupted),
        ),
        mine.where(event.lease_token.is_(None), event.event_type.in_([sql_literal(kind) for kind in _MANUAL])),
    ).subquery("ends")
    return sa.select(ends.c.event_type, ends.c.event_data).order_by(ends.c.sequence_num.desc()).limit(1)


def unlocked(g: Grammar, ids: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Lock the tasks with these ids, in id order. Skips tasks that another transaction has locked."""
    execution = task_executions.c
    return (
        sa.select(execution.id)
        .where(g.among(execution.id, ids))
        .order_by(execution.id)
        .with_for_update(skip_locked=True)
    )


def fence(g: Grammar, ids: sa.ColumnElement[Any], claim: Any, worker: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the task, one of `ids`, is Running under this claim of this worker."""
    execution = task_executions.c
    return sa.and_(
        g.among(execution.id, ids),
        execution.id == claim.id,
        execution.lease_token == claim.lease_token,
        execution.worker_id == worker,
        execution.status == SqlStatus.RUNNING,
    )


def given_leases(
    g: Grammar, r: Relations, ids: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """Select the leases on the tasks with these ids that meet all conditions, which may compare them with the batch."""
    lease, given = task_leases.c, r["given"]
    both = task_leases.join(given, lease.task_execution_id == given.c.id)
    found = sa.select(lease.task_execution_id.label("id")).select_from(both)
    return found.where(g.among(lease.task_execution_id, ids), *conditions)


def lock_in_order(leases: sa.Select[Any]) -> sa.Select[Any]:
    """Lock these leases, in id order. Skips leases that another transaction has locked."""
    return leases.order_by(task_leases.c.task_execution_id).with_for_update(of=task_leases, skip_locked=True)


def _there(g: Grammar, r: Relations, ids: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select the leases that the worker still holds on the tasks with these ids."""
    lease = task_leases.c
    return given_leases(g, r, ids, lease.lease_token == r["given"].c.lease_token, lease.worker_id == worker_id)


def _freed(g: Grammar, r: Relations, ids: sa.ColumnElement[Any]) -> Statement:
    """Delete the leases that the worker still holds on the tasks with these ids. The deletion uses the index, so it
    runs in id order. The leases are not locked first, because a lock and a deletion would each add a record to the
    database's log.
    """
    lease, given = task_leases.c, r["given"].c
    # IS TRUE makes the database test this condition for each lease that it finds. A join might not run in id order.
    held = sa.tuple_(lease.task_execution_id, lease.lease_token).in_(sa.select(given.id, given.lease_token))
    return (
        sa.delete(task_leases)
        .where(g.among(lease.task_execution_id, ids), lease.worker_id == worker_id, held.is_(sa.true()))
        .returning(lease.task_execution_id.label("id"))
    )


def _ended(g: Grammar, r: Relations) -> Statement:
    """End the tasks whose leases were deleted. A task with a cancel request is Cancelled instead of returning to the
    outbox.

    The count of recoveries is reset to 0, because the worker survived the task. A task that is released unfinished
    keeps its count, because its release does not prove that a worker survives the task.
    """
    execution, given = task_executions.c, r["given"].c
    goes_on = execution.cancel_requested_at.is_(None)
    ready, retry = sa.and_(given.status == SqlStatus.READY, goes_on), sa.and_(_is_retry(given), goes_on)
    return (
        sa.update(task_executions)
        .where(fence(g, r["freed"].c.id, given, worker_id))
        .values(
            status=sa.case(
                (ready, given.status), (given.status == SqlStatus.READY, SqlStatus.CANCELLED), else_=given.status
            ),
            worker_id=sa.null(),
            attempt=execution.attempt + sa.case((retry, 1), else_=0),
            recovery_attempts=sa.case(
                (given.event_type == sql_literal(EventType.RELEASED), execution.recovery_attempts),
                else_=sa.literal_column("0"),
            ),
            retry_at=sa.case((retry, due_time(g, given)), else_=sa.null()),
            started_at=sa.case((ready, sa.null()), else_=execution.started_at),
            completed_at=sa.case((ready, sa.null()), else_=g.now),
            updated_at=g.now,
            last_error=sa.func.coalesce(given.error, execution.last_error),
            result=given.result,
        )
        .returning(*task_rows.CARRIED, execution.attempt, queue_order.any_limited().label("limits"))
    )


def _event(g: Grammar, r: Relations) -> Statement:
    ended, given = r["ended"].c, r["given"].c
    ready, due_at = ended.status == SqlStatus.READY, due_time(g, given)
    recorded = g.json(
        given.data,
        attempt=ended.attempt,
        available_at=sa.case((ready, due_at)),
        retry_at=sa.case((sa.and_(ready, _is_retry(given)), due_at)),
    )
    return task_rows.event(
        g,
        ended,
        joined(r["ended"], r["given"]),
        event_type=sa.case((ended.status != given.status, sql_literal(EventType.CANCELLED)), else_=given.event_type),
        # Most ends are completions, and their events do not need data.
        data=sa.case((given.status == SqlStatus.COMPLETED, given.data), else_=recorded),
        worker_id=worker_id,
        lease_token=given.lease_token,
    )


def _dead_letter(g: Grammar, r: Relations) -> Statement:
    exception = g.text_in(r["given"].c.data, "exception")
    return task_rows.dead_letter(g, r["ended"].c, joined(r["ended"], r["given"]), exception=exception)


def _is_retry(given: Any) -> sa.ColumnElement[bool]:
    return given.event_type == sql_literal(EventType.RETRY_SCHEDULED)  # type: ignore[no-any-return]
