"""Delete old finished tasks with their events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, Table, Uuid, and_, bindparam, delete, func, or_, select

from ...model import EventType, TaskStatus
from ..column_types import Instant
from ..tables import (
    dead_letters,
    execution_events,
    idempotency_keys,
    partition_claims,
    schedule_ticks,
    task_batches,
    task_executions,
    task_steps,
)
from .claim import limit
from .grammar import Grammar, Relations, Statement, Transition, sql_literal

_before = bindparam("before", type_=Instant, required=True)
_from_id = bindparam("from_id", type_=Uuid, required=True)
_to_id = bindparam("to_id", type_=Uuid, required=True)
_event, _execution = execution_events.c, task_executions.c
_statuses = {
    status: bindparam(f"prune_{status.lower()}", type_=Integer, required=True)
    for status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
}


def prune(g: Grammar) -> Transition:
    """Delete up to :limit finished tasks between two ids, with their events, idempotency keys, dead letters, ticks and steps.

    A partition key that a dead letter held is freed. Returns every task that was looked at. A task whose idempotency key is
    locked is skipped, and returned without a status: another transaction is taking the key over.

    Ids contain the time (uuid7), so old tasks are a range of the primary key, and no index over `completed_at` is needed. The
    statement waits for no lock, so transactions that lock keys in their order never wait for one that waits for them.
    """
    key = idempotency_keys.c.task_execution_id

    def doomed(_: Relations) -> Statement:
        return (
            select(_execution.id)
            .where(_prunable(g))
            .order_by(_execution.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

    def with_key(r: Relations) -> Select[Any]:
        return select(key.label("id")).where(g.among(key, r["doomed"].c.id))

    def free(r: Relations) -> Statement:
        doomed, keyed, locked = r["doomed"], r["keyed"], r["locked"]
        rows = doomed.outerjoin(keyed, keyed.c.id == doomed.c.id).outerjoin(locked, locked.c.id == doomed.c.id)
        return select(doomed.c.id).select_from(rows).where(or_(keyed.c.id.is_(None), locked.c.id.is_not(None)))

    def executions(r: Relations) -> Statement:
        gone = delete(task_executions).where(g.among(_execution.id, r["free"].c.id))
        return gone.returning(*(_execution[name] for name in ("id", "queue", "partition_key", "status")))

    def of_pruned(table: Table, *also: ColumnElement[bool]) -> Callable[[Relations], Statement]:
        return lambda r: delete(table).where(g.among(table.c.task_execution_id, r["executions"].c.id), *also)

    return Transition(
        steps={
            "doomed": doomed,
            "keyed": with_key,
            "locked": lambda r: with_key(r).with_for_update(skip_locked=True),
            "free": free,
            "executions": executions,
            **{f"{name}_events": of_pruned(execution_events, kind) for name, kind in kinds(_event).items()},
            "keys": of_pruned(idempotency_keys),
            "letters": of_pruned(dead_letters),
            "claims": of_pruned(partition_claims),
            "ticks": of_pruned(schedule_ticks),
            "steps": of_pruned(task_steps),
        },
        returns="doomed",
        joined_steps=("executions",),
    )


def prunable(g: Grammar) -> Select[Any]:
    """Count the tasks that `prune` would delete in all."""
    return select(func.count().label("tasks")).select_from(task_executions).where(_prunable(g))


def prune_unrouted(g: Grammar) -> Transition:
    """Delete up to :limit events that belong to no task (an emit without subscribers, skipped ticks) and are older than :before.

    They are not ordered: with an order, the planner would scan the whole log by number instead of the events without a task.
    """
    old = (_event.task_execution_id.is_(None), _event.lease_token.is_(None), _event.created_at < _before)

    def doomed(_: Relations) -> Statement:
        return select(_event.sequence_num).where(*old).limit(limit)

    def events(r: Relations) -> Statement:
        return (
            delete(execution_events)
            .where(_event.task_execution_id.is_(None), g.among(_event.sequence_num, r["doomed"].c.sequence_num))
            .returning(_event.sequence_num.label("id"))
        )

    return Transition(steps={"doomed": doomed, "events": events}, returns="events")


def kinds(event: Any) -> Mapping[str, ColumnElement[bool]]:
    """The conditions of the three disjoint indexes of events. The events of a task are looked up through all of them."""
    claim = event.event_type == sql_literal(EventType.CLAIMED)
    ended = and_(event.event_type != sql_literal(EventType.CLAIMED), event.lease_token.is_not(None))
    return {"claim": claim, "end": ended, "other": event.lease_token.is_(None)}


def done(g: Grammar, execution: Any) -> ColumnElement[bool]:
    """Return a condition: the task ended before :before in one of the statuses to delete, and so did its batch if it has one.

    A task of a batch is kept until what follows the batch has completed or was cancelled, since it reads the results of the
    batch, as does a redrive of it. A dead letter is deleted in any case: the batch then waits for it no longer.
    """
    wanted = [(execution.status == sql_literal(status)) & (flag == 1) for status, flag in _statuses.items()]
    ended = and_(execution.completed_at < _before, or_(*wanted))
    batch = task_batches.c
    # Not a join, which might read all batches.
    kept = (
        select(batch.id)
        .where(
            batch.id == execution.pipeline_execution_id,
            or_(batch.completed_at.is_(None), batch.completed_at >= _before, _may_be_read(g)),
        )
        .scalar_subquery()
    )
    return and_(ended, or_(execution.status == sql_literal(TaskStatus.FAILED), kept.is_(None)))


def _may_be_read(g: Grammar) -> ColumnElement[bool]:
    """Return a condition: the last task that was enqueued behind a batch may still run, and read the results of the batch.

    Of a batch that has completed, those before the last one have completed too. So one task is looked up, by its id.
    """
    follower = task_executions.alias("follower")
    unended = (TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED)
    return (
        select(follower.c.id)
        .where(
            follower.c.id == g.place(task_batches.c.id, task_batches.c.stage),
            follower.c.status.in_([sql_literal(status) for status in unended]),
        )
        .correlate(task_batches)
        .exists()
    )


def _prunable(g: Grammar) -> ColumnElement[bool]:
    return and_(_execution.id > _from_id, _execution.id < _to_id, done(g, _execution))
