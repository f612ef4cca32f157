"""What people and programs do to a task by hand; none of it carries a lease token."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn
from uuid import UUID

from ..database.dialects import Row
from ..database.statements import operations, reading
from ..database.target import Target
from ..errors import InvalidArgument, InvalidTransition, TaskNotFound
from ..model import EARLIEST, LATEST, MAX_ATTEMPT, EventType, TaskStatus
from ..model.uuid7 import uuid7
from .arguments import aware, identifier
from .event_data import event_data
from .reading import data_of
from .regaining import regain_keys
from .transactions import Transactions

_LOOKS = 10
"""How often a task may change its status between our look and our write before we give up."""


def schedule_retry(
    store: Transactions,
    task_id: UUID,
    retry_at: datetime,
    new_attempt: int,
    *,
    take_key_back: bool = False,
    using: object = None,
) -> None:
    """Have the task tried at `retry_at` (aware) as attempt number `new_attempt`.

    Allowed on Ready (its one outbox entry moves), on Running (its worker is fenced: whatever it does then is LeaseLost)
    and on Failed. Writes `task_retry_scheduled` with both values, in the same transaction. `using` as in `enqueue`.
    A Failed task needs its idempotency key, and `take_key_back`, as for `redrive`.
    Raises TaskNotFound; InvalidTransition on Completed and Cancelled; DuplicateTask; InvalidArgument for a naive time or an
    attempt below 1.
    """
    if not EARLIEST <= aware(retry_at, "retry_at") <= LATEST:
        raise InvalidArgument(f"retry_at must be in the years 1970 to 9000 (UTC), not {retry_at}")
    if type(new_attempt) is not int or not 1 <= new_attempt <= MAX_ATTEMPT:
        raise InvalidArgument(f"new_attempt must be a whole number of at least 1, not {new_attempt!r}")
    row = (task_id, EventType.RETRY_SCHEDULED, TaskStatus.READY, new_attempt, retry_at, None)
    allowed = frozenset({TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED})
    _move(store, row, using, allowed=allowed, take_key_back=take_key_back)


def cancel(
    store: Transactions, task_id: UUID, *, reason: str = "", force: bool = False, using: object = None
) -> TaskStatus:
    """Cancel the task; returns its status now.

    A waiting task is Cancelled at once. A running one is asked to stop: its worker reads that with its next heartbeat,
    and the task stays Running until the worker answers; with `force` it is Cancelled at once and its worker fenced.
    Raises TaskNotFound; InvalidTransition on a task that has ended.
    """
    data = event_data({"reason": reason} if reason else {})
    row = (task_id, EventType.CANCELLED, TaskStatus.CANCELLED, None, None, data)
    allowed = {TaskStatus.READY, TaskStatus.RUNNING} if force else {TaskStatus.READY}
    return _move(store, row, using, allowed=frozenset(allowed), ask=not force)


def redrive(store: Transactions, task_id: UUID, *, take_key_back: bool = False, using: object = None) -> None:
    """Redrive a dead letter: run it again, from its first attempt, due now.

    The idempotency key of a task enqueued with `unique_until_finished` was free while it was Failed. It is the task's again;
    where another task has taken it over and not ended, nothing is done, or, with `take_key_back`, the key is taken from
    that task, which goes on beside this one. Raises TaskNotFound; InvalidTransition unless Failed; DuplicateTask, which
    names the other task.
    """
    row = (task_id, EventType.REQUEUED, TaskStatus.READY, 1, None, None)
    _move(store, row, using, allowed=frozenset({TaskStatus.FAILED}), take_key_back=take_key_back)


def discard(store: Transactions, task_id: UUID, *, reason: str = "", using: object = None) -> None:
    """Give a dead letter up for good: Cancelled, with `task_discarded`; a key it holds is free.

    Raises TaskNotFound; InvalidTransition unless Failed.
    """
    data = event_data({"reason": reason} if reason else {})
    row = (task_id, EventType.DISCARDED, TaskStatus.CANCELLED, None, None, data)
    _move(store, row, using, allowed=frozenset({TaskStatus.FAILED}))


def run_now(store: Transactions, task_id: UUID, *, using: object = None) -> bool:
    """Have a task that is delayed, or waits for its retry, due now. False: it was due already; nothing is written.

    Its place in its key stays, and so do pauses and limits. Raises TaskNotFound; InvalidTransition unless Ready.
    """
    return _reschedule(store, task_id, using, due_now=True, priority=None)


def set_priority(store: Transactions, task_id: UUID, priority: int, *, using: object = None) -> bool:
    """Give a waiting task another priority, -100 to 100, higher first; when it is due stays. False: it has that one.

    Raises TaskNotFound; InvalidTransition unless Ready.
    """
    if type(priority) is not int or not -100 <= priority <= 100:
        raise InvalidArgument(f"priority must be a whole number from -100 to 100, not {priority!r}")
    return _reschedule(store, task_id, using, due_now=False, priority=priority)


def _move(
    store: Transactions,
    row: tuple[Any, ...],
    using: object,
    *,
    allowed: frozenset[TaskStatus],
    ask: bool = False,
    take_key_back: bool = False,
) -> TaskStatus:
    task_id, event_type = identifier(row[0]), row[1]
    row = marked(row, request := str(uuid7()))
    given = [value.value if isinstance(value, EventType | TaskStatus) else value for value in row]

    def work(target: Target) -> TaskStatus:
        values = store.values(
            target, from_ready=TaskStatus.READY in allowed, from_running=TaskStatus.RUNNING in allowed
        )
        # Who leaves Failed to run needs its key, which must be locked before all else: others are not to pay for that.
        needs_key = given[2] == TaskStatus.READY
        from_failed = allowed == {TaskStatus.FAILED}
        for _ in range(_LOOKS):
            with target.atomic():
                if from_failed and needs_key:
                    _need_key(store, target, task_id, force=take_key_back)
                moved = target.run(operations.by_hand, {**values, "from_failed": from_failed}, [given])
            if moved:
                store.wake(target, freed(moved))
                return TaskStatus(moved[0]["status"])
            status = _status(target, task_id)
            if ask and status is TaskStatus.RUNNING:
                with target.atomic():
                    asked = target.run(operations.request_cancel, values, [(task_id, given[-1])])
                if asked or _was_asked(target, task_id):
                    return status
                continue  # it ended, or was given back, meanwhile
            if status not in allowed:
                _refuse(task_id, status, event_type)
            from_failed = status is TaskStatus.FAILED
        raise _restless(task_id)

    return store.run(
        work,
        using=using,
        done=lambda target: TaskStatus(str(row[2])) if was_done(target, task_id, request) else None,
    )


def _need_key(store: Transactions, target: Target, task_id: UUID, *, force: bool) -> None:
    """Have the task's idempotency key be its own. Raises DuplicateTask."""
    for refusal in regain_keys(store, target, {task_id}, force=force).values():
        raise refusal


def _reschedule(store: Transactions, task_id: UUID, using: object, *, due_now: bool, priority: int | None) -> bool:
    identifier(task_id)
    request = str(uuid7())

    def work(target: Target) -> bool:
        for _ in range(_LOOKS):
            values = store.values(target, task_id=task_id, due_now=due_now, priority=priority, request=request)
            with target.atomic():
                moved = target.run(operations.reschedule, values)
            if moved:
                store.wake(target, freed(moved))  # another task may be the first of its key now
                return True
            found = target.run(operations.waiting, values)
            if found and (found[0]["due"] if due_now else found[0]["priority"] == priority):
                return False
            status = _status(target, task_id)
            if status is not TaskStatus.READY:
                _refuse(task_id, status, EventType.RESCHEDULED)
        raise _restless(task_id)

    return store.run(work, using=using, done=lambda target: was_done(target, task_id, request) or None)


def freed(moved: Iterable[Row]) -> list[str]:
    """The queues in which others may be claimable now: a key is free, or one fewer is running."""
    return [row["queue"] for row in moved if row["partition_key"] is not None or row.get("lease_token") is not None]


def marked(row: tuple[Any, ...], request: str) -> tuple[Any, ...]:
    """With the request's id in the event's data: a call whose COMMIT was not answered finds its own event again by that,
    whatever has happened to the task since.
    """
    return (*row[:5], json.dumps({**json.loads(row[5] or "{}"), "request": request}))


def was_done(target: Target, task_id: UUID, request: str) -> bool:
    """Whether this very request has been committed."""
    history = target.run(reading.history, {"task_id": task_id})
    return any(data_of(event["event_data"]).get("request") == request for event in history)


def _status(target: Target, task_id: UUID) -> TaskStatus:
    found = target.run(reading.get, {"task_id": task_id})
    if not found:
        raise TaskNotFound(f"there is no task {task_id}")
    return TaskStatus(found[0]["status"])


def _was_asked(target: Target, task_id: UUID) -> bool:
    found = target.run(reading.get, {"task_id": task_id})
    return bool(found) and found[0]["status"] == TaskStatus.RUNNING and found[0]["cancel_requested_at"] is not None


def _refuse(task_id: UUID, status: TaskStatus, event_type: object) -> NoReturn:
    action = {
        EventType.RETRY_SCHEDULED: "retried",
        EventType.CANCELLED: "cancelled",
        EventType.REQUEUED: "redriven",
        EventType.DISCARDED: "discarded",
        EventType.RESCHEDULED: "rescheduled",
    }
    raise InvalidTransition(f"task {task_id} is {status} and cannot be {action[EventType(str(event_type))]}")


def _restless(task_id: UUID) -> InvalidTransition:
    return InvalidTransition(f"task {task_id} changes its status faster than it can be changed by hand; try again")
