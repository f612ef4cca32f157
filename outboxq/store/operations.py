"""Operations on a task by people and programs; none of them carries a lease token."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from ..database.dialects import Row
from ..database.statements import batches, operations, tasks
from ..database.target import Target
from ..errors import InvalidArgument, InvalidTransition
from ..model import EARLIEST, LATEST, MAX_ATTEMPT, STATUS_AFTER, EventType, TaskStatus
from ..model.batches import link_of
from ..model.uuid7 import uuid7
from ..payload.parameters import sanitize
from .arguments import aware, identifier
from .idempotency import regain_keys
from .rows import event_data
from .tasks import data_of, get, no_task
from .transactions import Transactions

_LOOKS = 10
"""Number of times that a task may change its status between a look and the write before the call gives up."""
_ALLOWED = {
    EventType.RETRY_SCHEDULED: ("retried", {TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED}),
    EventType.CANCELLED: ("cancelled", {TaskStatus.READY, TaskStatus.RUNNING}),
    EventType.REQUEUED: ("redriven", {TaskStatus.FAILED}),
    EventType.DISCARDED: ("discarded", {TaskStatus.FAILED}),
    EventType.RESCHEDULED: ("rescheduled", {TaskStatus.READY}),
}
"""For each change, its verb and the statuses in which it is allowed."""


def schedule_retry(
    store: Transactions,
    task_id: UUID,
    retry_at: datetime,
    new_attempt: int,
    *,
    take_key_back: bool = False,
    using: object = None,
) -> None:
    """Have the task tried at `retry_at` (aware) as attempt number `new_attempt`; writes `task_retry_scheduled` with both.

    Allowed on Ready (its one outbox entry moves), on Running (its worker is fenced: whatever it does then is LeaseLost)
    and on Failed, which needs its idempotency key, as for `redrive`. Raises TaskNotFound; InvalidTransition on Completed
    and Cancelled; DuplicateTask; InvalidArgument for a naive time or an attempt below 1.
    """
    _check_moment(retry_at, "retry_at")
    if type(new_attempt) is not int or not 1 <= new_attempt <= MAX_ATTEMPT:
        raise InvalidArgument(f"new_attempt must be a whole number of at least 1, not {new_attempt!r}")
    _move(
        store,
        task_id,
        EventType.RETRY_SCHEDULED,
        using,
        attempt=new_attempt,
        retry_at=retry_at,
        take_key_back=take_key_back,
    )


def reschedule(
    store: Transactions, task_id: UUID, at: datetime, *, take_key_back: bool = False, using: object = None
) -> None:
    """Have a waiting task due at `at` (aware), or run a dead letter again then, from its first attempt.

    A waiting task keeps its attempt, its priority and its place in its key. `take_key_back` is for a dead letter, as in `redrive`.
    A running task is left alone: no claim is taken from its worker. Raises TaskNotFound; InvalidTransition unless Ready or
    Failed; DuplicateTask; InvalidArgument for a naive time.
    """
    _check_moment(at, "at")
    if get(store, task_id, using=using).status is TaskStatus.FAILED:
        _move(store, task_id, EventType.REQUEUED, using, attempt=1, retry_at=at, take_key_back=take_key_back)
    else:
        _move(store, task_id, EventType.RESCHEDULED, using, retry_at=at)


def cancel(
    store: Transactions, task_id: UUID, *, reason: str = "", force: bool = False, using: object = None
) -> TaskStatus:
    """Cancel the task; returns its status now.

    A waiting task is Cancelled at once. A running one is asked to stop: its worker reads that with its next heartbeat,
    and the task stays Running until the worker answers; with `force` it is Cancelled at once and its worker fenced.
    Raises TaskNotFound; InvalidTransition on a task that has ended.
    """
    return _move(store, task_id, EventType.CANCELLED, using, reason=reason, ask=not force)


def redrive(
    store: Transactions, task_id: UUID, *, take_key_back: bool = False, reason: str = "", using: object = None
) -> None:
    """Redrive a dead letter: run it again, from its first attempt, due now.

    The idempotency key of a task enqueued with `unique_until_finished` was free while it was Failed. It is the task's again.
    Where another task has taken it over and not ended, nothing is done and DuplicateTask names that task; or, with
    `take_key_back`, the key is taken from it, and both go on. Raises TaskNotFound; InvalidTransition unless Failed, and for a
    task of a chain whose previous task was deleted: it could not read that one's result.
    """
    _move(store, task_id, EventType.REQUEUED, using, attempt=1, reason=reason, take_key_back=take_key_back)


def discard(store: Transactions, task_id: UUID, *, reason: str = "", using: object = None) -> None:
    """Give a dead letter up for good: Cancelled, with `task_discarded`; a key it holds is free.

    Raises TaskNotFound; InvalidTransition unless Failed.
    """
    _move(store, task_id, EventType.DISCARDED, using, reason=reason)


def run_now(store: Transactions, task_id: UUID, *, reason: str = "", using: object = None) -> bool:
    """Have a task that is delayed, or waits for its retry, due now. False: it was due already; nothing is written.

    Its place in its key stays, and so do pauses and limits. Raises TaskNotFound; InvalidTransition unless Ready.
    """
    return _reschedule(store, task_id, using, priority=None, reason=reason)


def set_priority(store: Transactions, task_id: UUID, priority: int, *, reason: str = "", using: object = None) -> bool:
    """Give a waiting task another priority, -100 to 100, higher first; when it is due stays. False: it has that one.

    Raises TaskNotFound; InvalidTransition unless Ready.
    """
    if type(priority) is not int or not -100 <= priority <= 100:
        raise InvalidArgument(f"priority must be a whole number from -100 to 100, not {priority!r}")
    return _reschedule(store, task_id, using, priority=priority, reason=reason)


def _move(
    store: Transactions,
    task_id: UUID,
    event_type: EventType,
    using: object,
    *,
    attempt: int | None = None,
    retry_at: datetime | None = None,
    reason: str = "",
    ask: bool = False,
    take_key_back: bool = False,
) -> TaskStatus:
    request = str(uuid7())
    work = moving(
        store,
        task_id,
        event_type,
        request,
        attempt=attempt,
        retry_at=retry_at,
        reason=reason,
        ask=ask,
        take_key_back=take_key_back,
    )
    return store.run(work, using=using, done=lambda target: _status_if_done(target, task_id, request))


def moving(
    store: Transactions,
    task_id: UUID,
    event_type: EventType,
    request: str,
    *,
    attempt: int | None = None,
    retry_at: datetime | None = None,
    reason: str = "",
    ask: bool = False,
    take_key_back: bool = False,
) -> Callable[[Target], TaskStatus]:
    """Return what moves a task inside a transaction, and returns its status then. `request` marks the event."""
    status_after = STATUS_AFTER[event_type]
    allowed = _ALLOWED[event_type][1] - ({TaskStatus.RUNNING} if ask else set())
    data = event_data({"reason": reason} if reason else {})
    row = marked((identifier(task_id), event_type.value, status_after.value, attempt, retry_at, data), request)

    def work(target: Target) -> TaskStatus:
        values = store.values(
            target, from_ready=TaskStatus.READY in allowed, from_running=TaskStatus.RUNNING in allowed
        )
        from_failed = allowed == {TaskStatus.FAILED}
        for _ in range(_LOOKS):
            with target.atomic():
                if from_failed and status_after is TaskStatus.READY:
                    # From another status, nobody pays for that.
                    _ensure_may_run_again(store, target, task_id, take_key_back=take_key_back)
                moved = target.run(operations.by_hand, {**values, "from_failed": from_failed}, [row])
            if moved:
                store.wake(target, freed(moved))
                return TaskStatus(moved[0]["status"])
            task = _task(target, task_id)
            status = TaskStatus(task["status"])
            if ask and status is TaskStatus.RUNNING:
                if task["cancel_requested_at"] is not None:
                    return status
                with target.atomic():
                    if target.run(operations.request_cancel, values, [(task_id, row[-1])]):
                        return status
                continue  # it ended, was given back, or was asked by another session meanwhile
            if status not in allowed:
                raise _refused(task_id, status, event_type)
            from_failed = status is TaskStatus.FAILED
        raise _restless(task_id)

    return work


def _ensure_may_run_again(store: Transactions, target: Target, task_id: UUID, *, take_key_back: bool) -> None:
    """Raise where a dead letter must not run again. It gets its idempotency key back, which is locked before all else."""
    for refusal in futile_redrives(target, {task_id}).values():
        raise refusal
    for taken in regain_keys(store, target, {task_id}, force=take_key_back).values():
        raise taken


def futile_redrives(target: Target, task_ids: Collection[UUID]) -> Mapping[UUID, InvalidTransition]:
    """Return an error for each of these tasks whose previous task in its chain was deleted. Without a chain, nothing is read."""
    links = {task_id: link for task_id in task_ids if (link := link_of(task_id)) is not None and link.number}
    if not links:
        return {}
    rows = [(task_id, link.batch_id, link.before) for task_id, link in links.items()]
    found = target.run(batches.links_without_previous, target.dialect.pack("links", batches.LINKS, rows))
    return {
        row["id"]: InvalidTransition(
            f"task {row['id']} cannot be redriven: the task before it in its chain, {row['before']}, was deleted, so its result "
            "is not known any more; discard this one, and enqueue the rest of the chain anew"
        )
        for row in found
    }


def _check_moment(moment: datetime, name: str) -> None:
    if not EARLIEST <= aware(moment, name) <= LATEST:
        raise InvalidArgument(f"{name} must be in the years 1970 to 9000 (UTC), not {moment}")


def _reschedule(store: Transactions, task_id: UUID, using: object, *, priority: int | None, reason: str) -> bool:
    """Give a waiting task this priority; None: have it due now."""
    identifier(task_id)
    request, due_now, why = str(uuid7()), priority is None, sanitize(reason) or None

    def work(target: Target) -> bool:
        for _ in range(_LOOKS):
            values = store.values(
                target, task_id=task_id, due_now=due_now, priority=priority, request=request, reason=why
            )
            with target.atomic():
                moved = target.run(operations.reschedule, values)
            if moved:
                store.wake(target, freed(moved))  # another task may be the first of its key now
                return True
            found = target.run(operations.waiting, values)
            if found and (found[0]["due"] if due_now else found[0]["priority"] == priority):
                return False
            status = TaskStatus(_task(target, task_id)["status"])
            if status is not TaskStatus.READY:
                raise _refused(task_id, status, EventType.RESCHEDULED)
        raise _restless(task_id)

    return store.run(work, using=using, done=lambda target: was_done(target, task_id, request) or None)


def freed(moved: Iterable[Row]) -> list[str]:
    """Return the queues in which others may be claimable now: a key is free, or one fewer is running."""
    return [row["queue"] for row in moved if row["partition_key"] is not None or row.get("lease_token") is not None]


def marked(row: tuple[Any, ...], request: str) -> tuple[Any, ...]:
    """Return the row with the request's id in the event's data.

    By that a call whose COMMIT was not answered finds its own event again, whatever has happened to the task since.
    """
    return (*row[:5], json.dumps({**json.loads(row[5] or "{}"), "request": request}))


def was_done(target: Target, task_id: UUID, request: str) -> bool:
    """Return whether this very request has been committed."""
    history = target.run(tasks.history, {"task_id": task_id})
    return any(data_of(event["event_data"]).get("request") == request for event in history)


def _status_if_done(target: Target, task_id: UUID, request: str) -> TaskStatus | None:
    return TaskStatus(_task(target, task_id)["status"]) if was_done(target, task_id, request) else None


def _task(target: Target, task_id: UUID) -> Row:
    if found := target.run(tasks.get, {"task_id": task_id}):
        return found[0]
    raise no_task(task_id)


def _refused(task_id: UUID, status: TaskStatus, event_type: EventType) -> InvalidTransition:
    return InvalidTransition(f"task {task_id} is {status} and cannot be {_ALLOWED[event_type][0]}")


def _restless(task_id: UUID) -> InvalidTransition:
    return InvalidTransition(f"task {task_id} changes its status faster than it can be changed by hand; try again")
