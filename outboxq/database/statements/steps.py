"""Write and read the durable steps of a task, and delete those from one step on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sqlalchemy import BigInteger, Double, Integer, Select, Text, Uuid, bindparam, case, cast, delete, select

from ...model import EventType
from ..grammar import Grammar, Relations, Statement, Transition, insert_values, sql_literal, worker_id
from ..tables import task_executions, task_leases, task_outbox, task_steps
from . import task_rows

_step, _lease, _execution = task_steps.c, task_leases.c, task_executions.c
_task_id = bindparam("task_id", type_=Uuid, required=True)
_pipeline_id = bindparam("pipeline_id", type_=Uuid, required=True)
_lease_token = bindparam("lease_token", type_=BigInteger, required=True)
_name = bindparam("name", type_=Text, required=True)
_number = bindparam("number", type_=Integer, required=True)
_result = bindparam("result", type_=Text, required=True)
_milliseconds = bindparam("ms", type_=Integer, required=True)
_delay_seconds = bindparam("delay_seconds", type_=Double, required=True)
"""The length of a sleep; NULL: it is no sleep."""
_data = bindparam("data", type_=Text, required=True)


def complete(g: Grammar) -> Transition:
    """Write a step of a claim that the worker still holds. Returns its number and, of a sleep, its end.

    No row: the claim is lost, or the step is there already. The lease is locked until the transaction ends, so that the claim
    cannot be lost before the step is committed. The event has no lease token: it ends no claim.
    """

    def held(_: Relations) -> Statement:
        mine = (_lease.task_execution_id == _task_id, _lease.lease_token == _lease_token, _lease.worker_id == worker_id)
        seconds = cast(_delay_seconds, Double)
        due_at = case((seconds.is_not(None), g.later(g.now, seconds)))
        lease = select(_lease.task_execution_id.label("id"), _lease.lease_token, due_at.label("due_at")).where(*mine)
        return lease.with_for_update(read=True, of=task_leases)

    def step(r: Relations) -> Statement:
        held = r["held"].c
        values = {
            "task_execution_id": held.id,
            "name": _name,
            "number": _number,
            "lease_token": held.lease_token,
            "result": _result,
            "due_at": held.due_at,
            "created_at": g.now,
        }
        new = insert_values(g.insert(task_steps), values, r["held"], held.id.is_not(None)).on_conflict_do_nothing()
        return new.returning(_step.task_execution_id.label("id"), _step.number, _step.due_at)  # type: ignore[no-any-return]

    def event(r: Relations) -> Statement:
        step = r["step"].c
        return task_rows.event(
            g,
            SimpleNamespace(id=step.id, pipeline_execution_id=_pipeline_id),
            r["step"],
            event_type=sql_literal(EventType.STEP_COMPLETED),
            data=g.json(step=_name, number=step.number, ms=_milliseconds, due_at=step.due_at),
            worker_id=worker_id,
        )

    return Transition(steps={"held": held, "step": step, "event": event}, returns="step")


def of_task(_: Grammar) -> Select[Any]:
    """Select the steps of a task in the order in which it completed them."""
    return select(*_step).where(_step.task_execution_id == _task_id).order_by(_step.number, _step.name)


def written(_: Grammar) -> Select[Any]:
    """Select the step of this name that the claim of this token has written: the answer that a lost connection did not deliver."""
    return select(_step.task_execution_id.label("id"), _step.number, _step.due_at).where(
        _step.task_execution_id == _task_id, _step.name == _name, _step.lease_token == _lease_token
    )


def lock_waiting(_: Grammar) -> Select[Any]:
    """Lock the entry of a waiting task: claims pass over it until the transaction ends. No row unless the task is Ready."""
    entry = task_outbox.c.task_execution_id
    return select(entry.label("id")).where(entry == _task_id).with_for_update()


def rewind(g: Grammar) -> Transition:
    """Delete the steps of a task from this number on, with one event. Returns those that are gone."""

    def task(_: Relations) -> Statement:
        return select(_execution.id, _execution.pipeline_execution_id).where(_execution.id == _task_id)

    def gone(r: Relations) -> Statement:
        later = delete(task_steps).where(g.among(_step.task_execution_id, r["task"].c.id), _step.number >= _number)
        return later.returning(_step.task_execution_id.label("id"), _step.name, _step.number)

    def event(r: Relations) -> Statement:
        return task_rows.event(
            g,
            r["task"].c,
            r["task"],
            event_type=sql_literal(EventType.REWOUND),
            data=g.json(_data, number=cast(_number, Integer)),
        )

    return Transition(steps={"task": task, "gone": gone, "event": event}, returns="gone")
