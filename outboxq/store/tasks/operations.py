"""Change single tasks on behalf of people and programs. These changes do not carry a lease token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, Unpack
from uuid import UUID

import sqlalchemy as sa

from ...database.column_types import BigId, Instant
from ...database.dialects import Row
from ...database.grammar import Columns, Grammar, Relations, SqlStatus, Statement, Transition, joined, sql_literal
from ...database.tables import task_executions, task_leases, task_outbox
from ...database.target import Target
from ...errors import InvalidArgument, InvalidTransition
from ...model import EARLIEST, LATEST, MAX_ATTEMPT, STATUS_AFTER, EventType, TaskStatus
from ...model.uuid7 import uuid7
from ...payload.parameters import sanitize
from .. import task_rows
from ..arguments import AnyId, aware, identifier, parameters
from ..task_rows import event_data
from ..transactions import Transactions
from . import tasks
from .chains import futile_redrives
from .idempotency import regain_keys
from .tasks import data_of, get, no_task

_LOOKS = 10
"""The maximum number of times that a task may change its status between the read and the write before the call gives
up.
"""
_ALLOWED = {
    EventType.RETRY_SCHEDULED: ("retried", {TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED}),
    EventType.CANCELLED: ("cancelled", {TaskStatus.READY, TaskStatus.RUNNING}),
    EventType.REQUEUED: ("redriven", {TaskStatus.FAILED}),
    EventType.DISCARDED: ("discarded", {TaskStatus.FAILED}),
    EventType.RESCHEDULED: ("rescheduled", {TaskStatus.READY}),
}
"""Maps each change to its verb and the statuses in which it is allowed."""


def schedule_retry(
    store: Transactions,
    task_id: AnyId,
    retry_at: datetime,
    new_attempt: int,
    *,
    take_key_back: bool = False,
    using: object = None,
) -> None:
    """Schedule another attempt at `retry_at` (aware) with the number `new_attempt`, and write a `task_retry_scheduled`
    event with that time and number. This is allowed for Ready tasks (the outbox entry moves), for Running tasks (the
    worker is fenced, and gets LeaseLost), and for Failed tasks, which need their idempotency key as in `redrive`.
    Raises TaskNotFound; InvalidTransition for Completed and Cancelled tasks; DuplicateTask; InvalidArgument for a naive
    time or an attempt below 1.
    """
    _check_moment(retry_at, "retry_at")
    if type(new_attempt) is not int or not 1 <= new_attempt <= MAX_ATTEMPT:
        raise InvalidArgument(f"new_attempt must be a whole number of at least 1, not {new_attempt!r}")
    details: Change = {"attempt": new_attempt, "retry_at": retry_at, "take_key_back": take_key_back}
    _move(store, task_id, EventType.RETRY_SCHEDULED, using, **details)


def reschedule(
    store: Transactions,
    task_id: AnyId,
    at: datetime,
    *,
    take_key_back: bool = False,
    reason: str = "",
    using: object = None,
) -> None:
    """Make a waiting task due at `at` (aware), or run a dead letter again at that time, from its first attempt.

    A waiting task keeps its attempt, its priority and its position among the tasks with the same key. `take_key_back`
    applies to a dead letter, as in `redrive`. A running task stays with its worker. Raises TaskNotFound;
    InvalidTransition unless the task is Ready or Failed; DuplicateTask; InvalidArgument for a naive time.
    """
    _check_moment(at, "at")
    if get(store, task_id, using=using).status is TaskStatus.FAILED:
        again: Change = {"attempt": 1, "retry_at": at, "reason": reason, "take_key_back": take_key_back}
        _move(store, task_id, EventType.REQUEUED, using, **again)
    else:
        _move(store, task_id, EventType.RESCHEDULED, using, retry_at=at, reason=reason)


def cancel(
    store: Transactions,
    task_id: AnyId,
    *,
    reason: str = "",
    force: bool = False,
    on_change: OnChange | None = None,
    using: object = None,
) -> TaskStatus:
    """Cancel the task, and return its new status.

    A waiting task becomes Cancelled immediately. A running task is asked to stop: its worker reads the request at its
    next heartbeat, and the task stays Running until the worker responds. With `force`, the task becomes Cancelled
    immediately, and its worker is fenced. `on_change` is called in the transaction, unless the task had already been
    asked to stop. Raises TaskNotFound; InvalidTransition for a task that has ended.
    """
    return _move(store, task_id, EventType.CANCELLED, using, reason=reason, ask=not force, on_change=on_change)


def redrive(
    store: Transactions, task_id: AnyId, *, take_key_back: bool = False, reason: str = "", using: object = None
) -> None:
    """Redrive a dead letter: make it due now, so that it runs again from its first attempt.

    The idempotency key of a task enqueued with `unique_until_finished` was free while the task was Failed. The redrive
    takes the key again. If an unfinished task has the key, nothing is written and DuplicateTask names that task; with
    `take_key_back`, the key is taken from that task, and both tasks run. Raises TaskNotFound; InvalidTransition if the
    task is not Failed, or if the previous task in its chain was deleted with its result.
    """
    _move(store, task_id, EventType.REQUEUED, using, attempt=1, reason=reason, take_key_back=take_key_back)


def discard(store: Transactions, task_id: AnyId, *, reason: str = "", using: object = None) -> None:
    """Discard a dead letter: it becomes Cancelled with the event `task_discarded`, and no longer holds its key.

    Raises TaskNotFound; InvalidTransition unless the task is Failed.
    """
    _move(store, task_id, EventType.DISCARDED, using, reason=reason)


def run_now(store: Transactions, task_id: AnyId, *, reason: str = "", using: object = None) -> bool:
    """Make a delayed or retrying task due now. Returns False, and writes nothing, if the task is already due.

    The task keeps its position among the tasks with the same key. Pauses and limits still apply. Raises TaskNotFound;
    InvalidTransition unless the task is Ready.
    """
    return _reschedule(store, task_id, using, priority=None, reason=reason)


def set_priority(store: Transactions, task_id: AnyId, priority: int, *, reason: str = "", using: object = None) -> bool:
    """Set the priority of a waiting task (-100 to 100, higher first); its due time is kept. Returns False if the task
    already has that priority.

    Raises TaskNotFound; InvalidTransition unless the task is Ready.
    """
    if type(priority) is not int or not -100 <= priority <= 100:
        raise InvalidArgument(f"priority must be a whole number from -100 to 100, not {priority!r}")
    return _reschedule(store, task_id, using, priority=priority, reason=reason)


OnChange = Callable[[Target, int], object]
"""A function that is called in each transaction that changes something, with the number of tasks, queues or schedules
that the transaction changes.
"""


class Change(TypedDict, total=False):
    """The details of a change to one task."""

    attempt: int
    retry_at: datetime
    reason: str
    ask: bool
    """If True, a running task is asked to stop, and stays Running."""
    take_key_back: bool
    on_change: OnChange | None


def _move(
    store: Transactions,
    task_id: AnyId,
    event_type: EventType,
    using: object,
    **change: Unpack[Change],
) -> TaskStatus:
    task_id, request = identifier(task_id), str(uuid7())
    work = moving(store, task_id, event_type, request, **change)
    return store.run(work, using=using, committed=lambda target, _: was_done(target, task_id, request))


def moving(
    store: Transactions,
    task_id: UUID,
    event_type: EventType,
    request: str,
    **change: Unpack[Change],
) -> Callable[[Target], TaskStatus]:
    """Return a function that changes a task inside a transaction, and returns the task's status. `request` marks the
    event.
    """
    ask, tell = change.get("ask", False), change.get("on_change") or (lambda *_: None)
    status_after = STATUS_AFTER[event_type]
    allowed = _ALLOWED[event_type][1] - ({TaskStatus.RUNNING} if ask else set())
    data = request_data(request, change.get("reason"))
    row = (task_id, event_type.value, status_after.value, change.get("attempt"), change.get("retry_at"), data)

    def work(target: Target) -> TaskStatus:
        values = store.values(target, **places(allowed))
        from_failed = allowed == {TaskStatus.FAILED}
        for _ in range(_LOOKS):
            with target.atomic():
                if from_failed and status_after is TaskStatus.READY:
                    # Other statuses do not need this check.
                    _ensure_may_run_again(store, target, task_id, take_key_back=change.get("take_key_back", False))
                moved = target.run(manual_change, {**values, "from_failed": from_failed}, [row])
                if moved:
                    tell(target, 1)
            if moved:
                store.wake(target, freed(moved))
                return TaskStatus(moved[0]["status"])
            task = row_of(target, task_id)
            status = TaskStatus(task["status"])
            if ask and status is TaskStatus.RUNNING:
                if task["cancel_requested_at"] is not None:
                    return status
                with target.atomic():
                    if target.run(request_cancel, values, [(task_id, data)]):
                        tell(target, 1)
                        return status
                continue  # meanwhile, it ended, was released, or was asked to stop by another session
            if status not in allowed:
                raise _refused(task_id, status, event_type)
            from_failed = status is TaskStatus.FAILED
        raise _restless(task_id)

    return work


def _ensure_may_run_again(store: Transactions, target: Target, task_id: UUID, *, take_key_back: bool) -> None:
    """Raise an error if the dead letter must not run again. Otherwise, lock the idempotency key and return it to the
    dead letter.
    """
    for refusal in futile_redrives(target, {task_id}).values():
        raise refusal
    for taken in regain_keys(store, target, {task_id}, force=take_key_back).values():
        raise taken


def _check_moment(moment: datetime, name: str) -> None:
    if not EARLIEST <= aware(moment, name) <= LATEST:
        raise InvalidArgument(f"{name} must be between the years 1970 and 9000 (UTC), not {moment}")


def _reschedule(store: Transactions, task_id: AnyId, using: object, *, priority: int | None, reason: str) -> bool:
    """Set the priority of a waiting task, or make the task due now if the priority is None."""
    task_id = identifier(task_id)
    request, due_now, why = str(uuid7()), priority is None, sanitize(reason) or None

    def work(target: Target) -> bool:
        for _ in range(_LOOKS):
            given = {"task_id": task_id, "due_now": due_now, "priority": priority, "request": request, "reason": why}
            values = store.values(target, **given)
            with target.atomic():
                moved = target.run(move, values)
            if moved:
                store.wake(target, freed(moved))  # another task may now be the first with its key
                return True
            found = target.run(waiting, values)
            if found and (found[0]["due"] if due_now else found[0]["priority"] == priority):
                return False
            status = TaskStatus(row_of(target, task_id)["status"])
            if status is not TaskStatus.READY:
                raise _refused(task_id, status, EventType.RESCHEDULED)
        raise _restless(task_id)

    return store.run(work, using=using, committed=lambda target, _: was_done(target, task_id, request))


def places(statuses: Collection[TaskStatus]) -> dict[str, bool]:
    """Return the parameters of `manual_change` that name the places from which tasks with these statuses are moved."""
    return {f"from_{one.lower()}": one in statuses for one in (TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED)}


def freed(moved: Iterable[Row]) -> list[str]:
    """Return the queues in which other tasks may have become claimable, because a key is free or fewer tasks are
    running.
    """
    return [row["queue"] for row in moved if row["partition_key"] is not None or row.get("lease_token") is not None]


def request_data(request: str, reason: str | None = None, **data: Any) -> str | None:
    """Return an event's data as JSON, with the request's id.

    If the answer to a COMMIT was lost, the call finds its own event by this id, no matter what has happened to the task
    since.
    """
    return event_data({**data, **({"reason": reason} if reason else {}), "request": request})


def was_done(target: Target, task_id: UUID, request: str) -> bool:
    """Return whether this request was committed."""
    history = target.run(tasks.select_history, {"task_id": task_id})
    return any(data_of(event["event_data"]).get("request") == request for event in history)


def row_of(target: Target, task_id: UUID) -> Row:
    """Return the row of the task. Raises TaskNotFound."""
    if found := target.run(tasks.select_task, {"task_id": task_id}):
        return found[0]
    raise no_task(task_id)


def _refused(task_id: UUID, status: TaskStatus, event_type: EventType) -> InvalidTransition:
    return InvalidTransition(f"task {task_id} is {status} and cannot be {_ALLOWED[event_type][0]}")


def _restless(task_id: UUID) -> InvalidTransition:
    return InvalidTransition(f"task {task_id} keeps changing its status, so it could not be modified; try again")


MANUAL_CHANGE: Columns = {
    "id": sa.Uuid(),
    "event_type": sa.Text(),
    "status": sa.Text(),
    "attempt": sa.Integer(),
    "available_at": Instant,
    "data": sa.Text(),
}
_entry, _lease, _execution = task_outbox.c, task_leases.c, task_executions.c
_from_ready, _from_running, _from_failed, _due_now = parameters(
    sa.Boolean, "from_ready", "from_running", "from_failed", "due_now"
)
_task_id = sa.bindparam("task_id", type_=sa.Uuid, required=True)
_priority = sa.bindparam("priority", type_=sa.SmallInteger, required=True)
"""The new priority; NULL keeps the current one."""
_request = sa.bindparam("request", type_=sa.Text, required=True)
_reason = sa.bindparam("reason", None, type_=sa.Text)


def manual_change(g: Grammar) -> Transition:
    """Move a task out of the outbox, away from its worker, or out of Failed. The task's worker, if any, loses the
    claim.

    :from_ready, :from_running and :from_failed name the allowed places. The deleted row proves where the task was, so a
    task that moves in the meantime is not changed, and the caller reads it again. Returns the moved tasks, each with
    the lease token under which it was running.
    """
    return Transition(
        given=MANUAL_CHANGE,
        steps={
            "gone": partial(_gone, g),
            "freed": partial(_freed, g),
            "moved": partial(_moved, g),
            "entry": partial(_new_entry, g),
            "event": partial(_event, g),
            "letter_gone": lambda r: task_rows.dead_letter_gone(g, r["moved"].c),
            "key_freed": lambda r: task_rows.key_freed(g, r["moved"].c),
        },
        returns="moved",
        joined_steps=("freed",),
    )


def move(g: Grammar) -> Transition:
    """Replace the entry of a waiting task with one that is due now (:due_now) or has a different :priority. The
    position does not change.

    A task that is already due, or already has that priority, is not changed.
    """
    differs = sa.or_(_is_later(g), _entry.priority != _priority)
    return _rescheduling(g, lambda _: sa.and_(_entry.task_execution_id == _task_id, differs))


def make_due(g: Grammar) -> Transition:
    """Make the tasks of these outbox entries due now if :due_now is true. Their events contain :reason.

    An entry that is already due, or has been replaced since, is not changed.
    """
    return _rescheduling(
        g, lambda r: sa.and_(g.among(_entry.id, r["given"].c.entry_id), _is_later(g)), given={"entry_id": BigId}
    )


def make_all_due(g: Grammar) -> Transition:
    """Make the given waiting tasks due now. A task that is already due, or has moved since, is not changed."""
    return _rescheduling(
        g, lambda r: sa.and_(g.among(_entry.task_execution_id, r["given"].c.id), _is_later(g)), given=task_rows.IDS
    )


def _is_later(g: Grammar) -> sa.ColumnElement[bool]:
    return sa.and_(_due_now, _entry.available_at > g.now)


def _rescheduling(
    g: Grammar, entries: Callable[[Relations], sa.ColumnElement[bool]], *, given: Columns | None = None
) -> Transition:
    """Replace the entries for which the condition is true."""

    def gone(r: Relations) -> Statement:
        replaced = sa.delete(task_outbox).where(entries(r))
        return replaced.returning(_entry.task_execution_id.label("id"), _entry.available_at)

    def moved(r: Relations) -> Statement:
        is_ready = (g.among(_execution.id, r["gone"].c.id), _execution.status == SqlStatus.READY)
        values = {
            "priority": sa.func.coalesce(_priority, _execution.priority),
            "retry_at": sa.case((_due_now, sa.null()), else_=_execution.retry_at),
            "updated_at": g.now,
        }
        return sa.update(task_executions).where(*is_ready).values(values).returning(*task_rows.CARRIED)

    def due(r: Relations) -> sa.ColumnElement[Any]:
        return sa.case((_due_now, g.now), else_=r["gone"].c.available_at)

    def entry(r: Relations) -> Statement:
        return task_rows.entry(g, r["moved"].c, joined(r["moved"], r["gone"]), due=due(r))

    def event(r: Relations) -> Statement:
        data = g.json(available_at=due(r), priority=_priority, request=_request, reason=_reason)
        kind, rows = sql_literal(EventType.RESCHEDULED), joined(r["moved"], r["gone"])
        return task_rows.event(g, r["moved"].c, rows, event_type=kind, data=data)

    steps = {"gone": gone, "moved": moved, "entry": entry, "event": event}
    return Transition(given=given or {}, steps=steps, returns="moved")


def waiting(g: Grammar) -> sa.Select[Any]:
    """Select the priority of a waiting task, and whether it is due. Returns no row unless the task is Ready."""
    asked: tuple[Any, ...] = ((_entry.available_at <= g.now).label("due"), _entry.priority)
    return sa.select(*asked).where(_entry.task_execution_id == _task_id)


def request_cancel(g: Grammar) -> Transition:
    """Ask running tasks to stop. Their workers see the request at the next heartbeat. A repeated request does not
    change anything.
    """

    def asked(r: Relations) -> Statement:
        is_running = (g.among(_execution.id, r["given"].c.id), _execution.status == SqlStatus.RUNNING)
        running = sa.update(task_executions).where(*is_running, _execution.cancel_requested_at.is_(None))
        changed = running.values(cancel_requested_at=g.now, updated_at=g.now)
        return changed.returning(_execution.id, _execution.pipeline_execution_id)

    def event(r: Relations) -> Statement:
        kind, rows = sql_literal(EventType.CANCEL_REQUESTED), joined(r["asked"], r["given"])
        return task_rows.event(g, r["asked"].c, rows, event_type=kind, data=r["given"].c.data)

    given: Columns = {"id": sa.Uuid(), "data": sa.Text()}
    return Transition(given=given, steps={"asked": asked, "event": event}, returns="asked")


def _gone(g: Grammar, r: Relations) -> Statement:
    gone = sa.delete(task_outbox).where(_from_ready, g.among(_entry.task_execution_id, r["given"].c.id))
    return gone.returning(_entry.task_execution_id.label("id"))


def _freed(g: Grammar, r: Relations) -> Statement:
    freed = sa.delete(task_leases).where(_from_running, g.among(_lease.task_execution_id, r["given"].c.id))
    return freed.returning(_lease.task_execution_id.label("id"), _lease.lease_token, _lease.worker_id)


def _moved(g: Grammar, r: Relations) -> Statement:
    given = r["given"].c
    ready, begins_anew = given.status == SqlStatus.READY, given.event_type == sql_literal(EventType.REQUEUED)
    return (
        sa.update(task_executions)
        .where(
            g.among(_execution.id, given.id),
            _execution.id == given.id,
            sa.or_(
                sa.and_(_execution.status == SqlStatus.READY, g.among(_execution.id, r["gone"].c.id)),
                sa.and_(_execution.status == SqlStatus.RUNNING, g.among(_execution.id, r["freed"].c.id)),
                sa.and_(_execution.status == SqlStatus.FAILED, _from_failed),
            ),
        )
        .values(
            status=given.status,
            worker_id=sa.null(),
            attempt=sa.func.coalesce(given.attempt, _execution.attempt),
            recovery_attempts=sa.case((begins_anew, 0), else_=_execution.recovery_attempts),
            cancel_requested_at=sa.null(),
            retry_at=sa.case((_is_retry(given), given.available_at), else_=sa.null()),
            started_at=sa.case((ready, sa.null()), else_=_execution.started_at),
            completed_at=sa.case((ready, sa.null()), else_=g.now),
            updated_at=g.now,
        )
        .returning(*task_rows.CARRIED, _execution.attempt, _execution.recovery_attempts)
    )


def _new_entry(g: Grammar, r: Relations) -> Statement:
    rows = joined(r["moved"], r["given"])
    return task_rows.entry(g, r["moved"].c, rows, due=_due(g, r["given"].c))


def _event(g: Grammar, r: Relations) -> Statement:
    moved, given, freed = r["moved"].c, r["given"].c, r["freed"].c
    due = _due(g, given)
    return task_rows.event(
        g,
        moved,
        joined(r["moved"], r["given"]).outerjoin(r["freed"], moved.id == freed.id),
        event_type=given.event_type,
        data=g.json(
            given.data,
            attempt=moved.attempt,
            recovery_attempts=moved.recovery_attempts,
            available_at=sa.case((given.status == SqlStatus.READY, due)),
            retry_at=sa.case((_is_retry(given), due)),
        ),
        worker_id=freed.worker_id,
        lease_token=freed.lease_token,
    )


def _is_retry(given: Any) -> sa.ColumnElement[bool]:
    return given.event_type == sql_literal(EventType.RETRY_SCHEDULED)  # type: ignore[no-any-return]


def _due(g: Grammar, given: Any) -> sa.ColumnElement[Any]:
    return sa.func.coalesce(given.available_at, g.now)
