"""The part of an Outbox that waits for results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from ..context import current
from ..errors import InvalidArgument, TaskCancelled, TaskFailed, TaskNotFound, WaitRefused
from ..model import EventType, TaskStatus, duration
from ..payload.parameters import parsed_result
from ..store import Standing, Store
from ..store.failure_log import sentence
from .origin import Origin
from .task import TaskRegistry
from .waiting import ResultWaiter, Wait, WaiterOfProcess, uncommitted


class AwaitedResults(ABC):
    """The results of an Outbox's tasks."""

    tasks: TaskRegistry
    _waiters: WaiterOfProcess

    @property
    @abstractmethod
    def store(self) -> Store:
        """The Store, the layer below."""

    def result(self, task_id: UUID | str, timeout: timedelta | float | None = None) -> Any:
        """Wait until the task has ended, and return what its function returned, read by the return annotation.

        If this process does not know the task, the value is plain JSON. `timeout` is a timedelta or seconds. None waits without
        end; 0 asks once. One thread looks for all callers of the process that wait. It ends with them.

        Raises TaskFailed for a dead letter, TaskCancelled for a task that was cancelled, expired or discarded, the builtin
        TimeoutError when the time is over, with the reason why the task has not ended. Raises TaskNotFound for a task that does
        not exist or was pruned, WaitRefused inside a handler unless the timeout is 0, PayloadError for a result that does not fit
        the annotation, NotPermitted for a database role that may not read results.
        """
        return self.wait_for_result(task_id, timeout, None)

    def wait_for_result(self, task_id: UUID | str, timeout: timedelta | float | None, origin: Origin | None) -> Any:
        """Return the result of a task that was enqueued there; None: in a transaction that is committed."""
        task_id, seconds = _identifier(task_id), _seconds(timeout)
        store = self.store
        if seconds != 0:
            _refuse_inside_a_handler(task_id)
        if seconds == 0 or store.runs_alone:
            return self._value(_ask_once(store, task_id, origin))
        wait = Wait(task_id=task_id, transaction=origin, is_own=origin is not None and origin.is_this_threads)
        waiter = self._waiters.of(store)
        waiter.wait(wait, seconds)
        if wait.error is not None:
            raise wait.error
        if wait.standing is not None and wait.standing.has_ended:
            return self._value(wait.standing)
        raise TimeoutError(f"task {task_id} has not ended within {seconds:g} s: {_why(waiter, wait)}") from wait.trouble

    def _value(self, standing: Standing) -> Any:
        if standing.status is not TaskStatus.COMPLETED:
            raise ended_otherwise(standing)
        if standing.task_name in self.tasks:
            return self.tasks.get(standing.task_name).returned.load(standing.result)
        return parsed_result(standing.result, name=standing.task_name)


def ended_otherwise(standing: Standing) -> TaskFailed | TaskCancelled:
    """Return the error that stands for the end of a task that did not complete."""
    what, end = f"task {standing.id} ({standing.task_name})", standing.end
    data = {} if end is None else end.event_data
    if standing.status is TaskStatus.FAILED:
        error = standing.error or ""
        return TaskFailed(
            f"{what} failed in attempt {standing.attempt}{f': {error}' if error else ''}",
            task_id=standing.id,
            error=error,
            exception=data.get("exception"),
            attempt=standing.attempt,
        )
    given, kind = str(data.get("reason") or ""), None if end is None else end.event_type
    short, text = _ENDS.get(kind, ("", "was cancelled"))
    return TaskCancelled(f"{what} {text}{f': {given}' if given else ''}", task_id=standing.id, reason=given or short)


_ENDS: Mapping[str | None, tuple[str, str]] = {
    EventType.EXPIRED: ("expired", "expired before it was started"),
    EventType.DISCARDED: ("discarded", "failed and was discarded"),
}
"""The reason and the words for ends that are no cancellation."""


def _ask_once(store: Store, task_id: UUID, origin: Origin | None) -> Standing:
    """Return the end of a task that has ended. Raises TimeoutError for one that has not."""
    may_come = origin is not None and origin.is_open
    try:
        standing = store.standings([task_id]).get(task_id)
    except Exception as error:
        if not store.may_pass(error):
            raise
        raise TimeoutError(f"it is not known whether task {task_id} has ended: {sentence(error)}") from error
    if standing is None and may_come:
        raise TimeoutError(uncommitted(task_id))
    if standing is None:
        raise TaskNotFound(f"there is no task {task_id}")
    if not standing.has_ended:
        runs = "; in a test nothing runs it but drain() and inline()" if store.runs_alone else ""
        raise TimeoutError(f"task {task_id} ({standing.task_name}) has not ended: it is {standing.status}{runs}")
    return standing


def _why(waiter: ResultWaiter, wait: Wait) -> str:
    """Return why the task has not ended, as a clause."""
    if wait.trouble is not None:
        return f"the database does not answer: {sentence(wait.trouble)}"
    if wait.standing is None:
        return "it is not committed, or the database has not answered; is the transaction that enqueued it still open?"
    return waiter.explained(wait.task_id) or f"it was {wait.standing.status}; outboxq task explain {wait.task_id}"


def _refuse_inside_a_handler(task_id: UUID) -> None:
    running = current.get()
    if running is None or running.has_ended:
        return
    raise WaitRefused(
        f"inside the handler of {running.task_name} the result of task {task_id} cannot be waited for: once all handlers of a "
        "worker wait, none is left to run what they wait for; enqueue the rest as a task of its own, which that task "
        "enqueues at its end, or ask with timeout=0 and raise Snooze to look again later"
    )


def _identifier(task_id: object) -> UUID:
    if isinstance(task_id, UUID):
        return task_id
    try:
        return UUID(task_id if isinstance(task_id, str) else "")
    except ValueError:
        raise InvalidArgument(f"result() takes the id of a task, a UUID or its text, not {task_id!r}") from None


def _seconds(timeout: timedelta | float | None) -> float | None:
    """Return the timeout in seconds. Raises InvalidArgument for one below zero."""
    if timeout is None:
        return None
    seconds = duration(timeout, "timeout").total_seconds()
    if seconds < 0:
        raise InvalidArgument("timeout must be zero or more; None waits without end")
    return seconds
