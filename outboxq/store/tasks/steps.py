"""Write the durable steps of a task under its lease, read them back in the next claim, and rewind them."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Begin, Row
from ...database.grammar import Grammar, Relations, Statement, Transition, insert_values, sql_literal, worker_id
from ...database.tables import task_executions, task_leases, task_outbox, task_steps
from ...database.target import Target
from ...errors import InvalidArgument, InvalidTransition
from ...model import Claim, EventType, TaskStatus
from ...model.running import Step
from ...model.uuid7 import uuid7
from .. import task_rows
from ..arguments import AnyId, identifier, parameters
from ..transactions import Noun
from . import operations
from .operations import Change, freed, moving, request_data, row_of, was_done

_LOOKS = 10
"""The maximum number of times that a task may be claimed and released between the read and the write before the call
gives up.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewStep:
    """A step for `Steps.complete` to write."""

    name: str
    number: int
    result: str | None = None
    """The result as JSON."""
    milliseconds: int = 0
    """The run time of the step's function, in milliseconds."""
    delay: timedelta | None = None
    """The length of the sleep; None for other steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A stored step."""

    due_at: datetime | None
    """End of a sleep."""


class Steps(Noun):
    """The steps of tasks."""

    def of_claim(self, claim: Claim) -> builtins.list[Step]:
        """Return the steps that the task has completed so far, for its handler."""
        return self.list(claim.id)

    def complete(self, claim: Claim, step: NewStep, *, using: object = None) -> Written | None:
        """Write a step of this claim with its event. Returns None, and writes nothing, if the claim is lost.

        The step is on disk when the call returns. If the answer to a COMMIT was lost, the row shows whether the COMMIT
        succeeded.
        """
        given = {
            "task_id": claim.id,
            "pipeline_id": claim.pipeline_execution_id,
            **{name: getattr(claim, name) for name in ("lease_token", "worker_id")},
            **{name: getattr(step, name) for name in ("name", "number", "result")},
            "ms": step.milliseconds,
            "delay_seconds": None if step.delay is None else step.delay.total_seconds(),
        }

        def work(target: Target) -> builtins.list[Row]:
            with target.atomic():
                return target.run(complete, self._store.values(target, **given))

        def done(target: Target) -> builtins.list[Row] | None:
            return target.run(written, given) or None

        found = self._store.run(work, using=using, begin=Begin.SINGLE, done=done)
        return Written(due_at=found[0]["due_at"]) if found else None

    def is_written(self, claim: Claim, name: str) -> bool:
        """Return whether this claim has written the step with this name."""
        return bool(self._store.run_one(written, task_id=claim.id, lease_token=claim.lease_token, name=name))

    def rewind(
        self,
        task_id: AnyId,
        from_step: str,
        *,
        take_key_back: bool = False,
        reason: str = "",
        using: object = None,
    ) -> int:
        """Delete the results of this step and of all later steps, and make the task due now, so that it runs again.

        Earlier steps keep their results. A dead letter is redriven from its first attempt; `take_key_back` works as in
        `redrive`. A waiting task keeps its attempt. Returns the number of steps that will run again. Writes
        `task_rewound`. Raises TaskNotFound; InvalidArgument for an unknown step; InvalidTransition unless the task is
        Ready or Failed; DuplicateTask.
        """
        task_id = identifier(task_id)
        request = str(uuid7())

        def work(target: Target) -> int:
            with target.atomic(savepoint=True):
                first = _from(target, task_id, from_step)[0]
                self._make_due(target, task_id, request, reason=reason, take_key_back=take_key_back)
                data = request_data(request, reason, step=from_step)
                values = self._store.values(target, task_id=task_id, number=first.number, data=data)
                return len(target.run(rewind, values))

        return self._store.run(work, using=using, committed=lambda target, _: was_done(target, task_id, request))

    def after(self, task_id: AnyId, from_step: str, *, using: object = None) -> builtins.list[Step]:
        """Return the steps that `rewind` from this step would delete now. Raises the same errors as `rewind`, except
        DuplicateTask.
        """
        task_id = identifier(task_id)

        def work(target: Target) -> builtins.list[Step]:
            status = _status(target, task_id)
            if status not in {TaskStatus.READY, TaskStatus.FAILED}:
                raise _refused(task_id, status)
            return _from(target, task_id, from_step)

        return self._store.run(work, using=using, begin=Begin.READ)

    def _make_due(self, target: Target, task_id: UUID, request: str, *, reason: str, take_key_back: bool) -> None:
        """Make the task due now, and prevent it from being claimed until the transaction ends."""
        for _ in range(_LOOKS):
            status = _status(target, task_id)
            if status is TaskStatus.FAILED:
                change: Change = {"attempt": 1, "reason": reason, "take_key_back": take_key_back}
                moving(self._store, task_id, EventType.REQUEUED, request, **change)(target)
                return
            if status is not TaskStatus.READY:
                raise _refused(task_id, status)
            given = {"task_id": task_id, "due_now": True, "priority": None, "request": request}
            moved = target.run(operations.move, self._store.values(target, **given, reason=reason or None))
            if moved or target.run(lock_waiting, given):
                self._store.wake(target, freed(moved))
                return
        raise InvalidTransition(f"task {task_id} keeps being claimed and released; try the rewind again")

    def list(self, task_id: AnyId, *, using: object = None) -> builtins.list[Step]:
        """Return the steps that a task has completed and the sleeps that it has begun, in order."""
        rows = self._store.run_one(of_task, task_id=identifier(task_id), using=using)
        return [Step(**row) for row in rows]


def _from(target: Target, task_id: UUID, name: str) -> list[Step]:
    """Return the step with this name and all later ones. Raises InvalidArgument for an unknown step."""
    _status(target, task_id)
    found = [Step(**row) for row in target.run(of_task, {"task_id": task_id})]
    for step in found:
        if step.name == name:
            return [one for one in found if one.number >= step.number]
    names = f"{', '.join(repr(step.name) for step in found[:10])}{' and more' if len(found) > 10 else ''}"
    has = f"it has {names}" if found else "it has not completed any steps"
    raise InvalidArgument(f"task {task_id} has no step {name!r}; {has}")


def _status(target: Target, task_id: UUID) -> TaskStatus:
    return TaskStatus(row_of(target, task_id)["status"])


def _refused(task_id: UUID, status: TaskStatus) -> InvalidTransition:
    if status is TaskStatus.RUNNING:
        return InvalidTransition(f"task {task_id} is Running, so its steps cannot be rewound; wait until it has ended")
    return InvalidTransition(f"task {task_id} is {status} and will not run again, so its steps cannot be rewound")


_step, _lease, _execution = task_steps.c, task_leases.c, task_executions.c
_task_id, _pipeline_id = parameters(sa.Uuid, "task_id", "pipeline_id")
_lease_token = sa.bindparam("lease_token", type_=sa.BigInteger, required=True)
_name, _result, _data = parameters(sa.Text, "name", "result", "data")
_number, _milliseconds = parameters(sa.Integer, "number", "ms")
_delay_seconds = sa.bindparam("delay_seconds", type_=sa.Double, required=True)
"""Length of a sleep; NULL for other steps."""


def complete(g: Grammar) -> Transition:
    """Write a step of a claim that the worker still holds. Returns the step's number and, for a sleep, the time at
    which the sleep ends.

    Returns no row if the claim is lost or the step already exists. The lease is locked until the transaction ends, so
    that the claim cannot be lost before the step is committed. The event does not have a lease token, because it does
    not end the claim.
    """

    def held(_: Relations) -> Statement:
        mine = (_lease.task_execution_id == _task_id, _lease.lease_token == _lease_token, _lease.worker_id == worker_id)
        seconds = sa.cast(_delay_seconds, sa.Double)
        due_at = sa.case((seconds.is_not(None), g.later(g.now, seconds)))
        lease = sa.select(_lease.task_execution_id.label("id"), _lease.lease_token, due_at.label("due_at")).where(*mine)
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


def of_task(_: Grammar) -> sa.Select[Any]:
    """Select the steps of a task in the order in which it completed them."""
    return sa.select(*_step).where(_step.task_execution_id == _task_id).order_by(_step.number, _step.name)


def written(_: Grammar) -> sa.Select[Any]:
    """Select the step with this name that the claim with this token has written, in case the answer was lost with the
    connection.
    """
    return sa.select(_step.task_execution_id.label("id"), _step.number, _step.due_at).where(
        _step.task_execution_id == _task_id, _step.name == _name, _step.lease_token == _lease_token
    )


def lock_waiting(_: Grammar) -> sa.Select[Any]:
    """Lock the entry of a waiting task, so that claims skip it until the transaction ends. Returns no row unless the
    task is Ready.
    """
    entry = task_outbox.c.task_execution_id
    return sa.select(entry.label("id")).where(entry == _task_id).with_for_update()


def rewind(g: Grammar) -> Transition:
    """Delete a task's steps from this number onward, and write one event. Returns the deleted steps."""

    def task(_: Relations) -> Statement:
        return sa.select(_execution.id, _execution.pipeline_execution_id).where(_execution.id == _task_id)

    def gone(r: Relations) -> Statement:
        later = sa.delete(task_steps).where(g.among(_step.task_execution_id, r["task"].c.id), _step.number >= _number)
        return later.returning(_step.task_execution_id.label("id"), _step.name, _step.number)

    def event(r: Relations) -> Statement:
        data = g.json(_data, number=sa.cast(_number, sa.Integer))
        return task_rows.event(g, r["task"].c, r["task"], event_type=sql_literal(EventType.REWOUND), data=data)

    return Transition(steps={"task": task, "gone": gone, "event": event}, returns="gone")
