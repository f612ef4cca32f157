"""Delete old finished tasks with their events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, Uuid, and_, bindparam, delete, func, or_, select

from ..grammar import Grammar, Relations, Statement, Transition, limit
from ..history import before, done, kinds
from ..tables import (
    dead_letters,
    execution_events,
    idempotency_keys,
    partition_claims,
    schedule_ticks,
    task_executions,
    task_steps,
)

_from_id = bindparam("from_id", type_=Uuid, required=True)
_to_id = bindparam("to_id", type_=Uuid, required=True)
_event, _execution = execution_events.c, task_executions.c


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
    old = (_event.task_execution_id.is_(None), _event.lease_token.is_(None), _event.created_at < before)

    def doomed(_: Relations) -> Statement:
        return select(_event.sequence_num).where(*old).limit(limit)

    def events(r: Relations) -> Statement:
        return (
            delete(execution_events)
            .where(_event.task_execution_id.is_(None), g.among(_event.sequence_num, r["doomed"].c.sequence_num))
            .returning(_event.sequence_num.label("id"))
        )

    return Transition(steps={"doomed": doomed, "events": events}, returns="events")


def _prunable(g: Grammar) -> ColumnElement[bool]:
    return and_(_execution.id > _from_id, _execution.id < _to_id, done(g, _execution))
