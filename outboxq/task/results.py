"""The part of an Outbox that waits for results."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from ..context import current, process
from ..errors import InvalidArgument, TaskCancelled, TaskFailed, WaitRefused
from ..integration import Integration
from ..integration.hooks import HookCalls
from ..model import EventType, TaskStatus, duration
from ..model.batches import BatchCounts, BatchKind, is_batch
from ..model.wording import plural
from ..payload.parameters import parsed_result
from ..store import BatchStanding, Standing, Store
from ..store.arguments import identifier
from ..store.failure_log import sentence
from .registry import TaskRegistry
from .task import Origin
from .waiting import Poller, ResultWaiter, Wait, WaiterOfProcess, uncommitted


class AwaitedResults(ABC):
    """The results of an Outbox's tasks."""

    tasks: TaskRegistry
    integration: Integration
    _waiters: WaiterOfProcess

    @property
    @abstractmethod
    def store(self) -> Store:
        """The Store, the lower-level interface."""

    @property
    @abstractmethod
    def hooks(self) -> HookCalls | None:
        """The hooks; None if there are none."""

    def result(self, task_id: UUID | str, timeout: timedelta | float | None = None) -> Any:
        """Wait until the task has ended, and return what its function returned, read according to the return
        annotation.

        If this process does not know the task, the value is plain JSON. `timeout` is a timedelta or seconds. None waits
        forever; 0 checks once. A single thread polls for all waiting callers in the process, and stops when there are
        no more callers.

        You can wait for the task that follows a batch (`OpenBatch.then_id`), and for any task in a chain
        (`ChainHandle.task_ids`), before that task is enqueued. If an earlier task stops the chain, the wait ends
        immediately.

        Raises TaskFailed for a dead letter, TaskCancelled for a task that was cancelled, was discarded or has expired,
        and, when the time is up, the built-in TimeoutError, with the reason why the task has not ended. Raises
        TaskNotFound for a task that does not exist or has been pruned, PayloadError for a result that does not fit the
        annotation, and NotPermitted if the database role is not permitted to read results.

        Unless the timeout is 0, raises WaitRefused inside a handler, in a thread that is running an event loop, and in
        any thread in a worker process except the main thread.
        """
        return self.wait_for_result(task_id, timeout, None)

    def wait_for_result(self, task_id: UUID | str, timeout: timedelta | float | None, origin: Origin | None) -> Any:
        """Return the result of a task. `origin` is where the task was enqueued; None if its transaction has already
        been committed.
        """
        task_id = identifier(task_id)
        if is_batch(task_id):
            raise InvalidArgument(
                f"{task_id} is the id of a batch or a chain, not of a task; write batch.result() or chain.result(), or, in another "
                "process, outbox.result(then_id) for a batch or outbox.result(task_ids[-1]) for a chain"
            )
        standing = self._waited(task_id, timeout, origin).standing
        assert standing is not None
        if standing.status is not TaskStatus.COMPLETED:
            raise ended_otherwise(standing)
        if standing.task_name in self.tasks:
            return self.tasks.get(standing.task_name).returned.load(standing.result)
        return parsed_result(standing.result, name=standing.task_name)

    def wait_for_batch(self, batch_id: UUID, timeout: timedelta | float | None, origin: Origin | None) -> BatchCounts:
        """Wait until the tasks in a batch have ended, and return its counts."""
        standing = self._waited(batch_id, timeout, origin).batch
        assert standing is not None
        return standing.counts

    def _waited(self, task_id: UUID, timeout: timedelta | float | None, origin: Origin | None) -> Wait:
        """Wait until a task or a batch ends, and return the finished wait."""
        seconds, store = _seconds(timeout), self.store
        if seconds == 0 or store.runs_alone:
            if seconds != 0:
                _ensure_may_wait(Wait(task_id=task_id))
            wait = _ask_once(store, task_id, origin)
        else:
            wait = Wait(task_id=task_id, transaction=origin, is_own=origin is not None and origin.is_this_threads)
            _ensure_may_wait(wait)
            waiter = self._waiters.of(store)
            waiter.wait(wait, seconds)
            if wait.error is None and not wait.done.is_set():
                raise TimeoutError(
                    f"{wait.what} has not ended within {seconds:g} s: {_why(waiter, wait)}"
                ) from wait.trouble
        if wait.error is not None:
            raise wait.error
        if wait.is_blocked:
            assert wait.batch is not None
            raise gone_no_further(wait.batch)
        return wait


def _ask_once(store: Store, task_id: UUID, origin: Origin | None) -> Wait:
    """Poll once, and return the finished wait. Raises TimeoutError if the task or the batch has not ended."""
    may_come, wait = origin is not None and origin.is_open, Wait(task_id=task_id, transaction=origin)
    Poller(store, may_pass=store.may_pass).at([wait], everything=True)
    if wait.done.is_set():
        return wait
    if wait.trouble is not None:
        text = f"it is not known whether {wait.what} has ended: {sentence(wait.trouble)}"
        raise TimeoutError(text) from wait.trouble
    if not wait.is_found and may_come:
        raise TimeoutError(uncommitted(wait.what))
    if not wait.is_found:
        raise wait.absence()
    runs = "; in a test, only drain() and inline() run it" if store.runs_alone else ""
    if wait.standing is not None:
        raise TimeoutError(
            f"task {task_id} ({wait.standing.task_name}) has not ended: it is {wait.standing.status}{runs}"
        )
    raise TimeoutError(f"{wait.what} has not ended: {not_come(store, wait)}{runs}")


def _why(waiter: ResultWaiter, wait: Wait) -> str:
    """Return the reason why the task or the batch has not ended, as a clause."""
    if wait.trouble is not None:
        return f"the database is not responding: {sentence(wait.trouble)}"
    if not wait.is_found:
        return "it is not committed, or the database has not responded; is the transaction that enqueued it still open?"
    if wait.is_ahead and wait.batch is not None:
        where = f"{wait.batch.kind} {wait.batch.link.batch_id}"
        found = waiter.explained(lambda: not_come(waiter.store, wait, explains=True))
        return found or f"{where} is still in progress; see outboxq batch show {wait.batch.link.batch_id}"
    standing = "" if wait.standing is None else f"it was {wait.standing.status}; "
    found = waiter.explained(lambda: waiter.store.explain(wait.task_id).sentence)
    return found or f"{standing}see outboxq task explain {wait.task_id}"


def _ensure_may_wait(wait: Wait) -> None:
    """Raise WaitRefused if the wait could keep the awaited task from running, or would block an event loop."""
    running = current.get()
    if running is not None and not running.has_ended:
        raise WaitRefused(
            f"{running.task_name} cannot wait for the result of {wait.what}: if every handler in a worker waited, no thread would be "
            "left to run the tasks they wait for. Move the remaining work into a task that the awaited task enqueues when it finishes, or "
            "call with timeout=0 and raise Snooze."
        )
    if _has_event_loop():
        raise WaitRefused(
            f"{wait.what} cannot be awaited here: an event loop is running in this thread and would be blocked; "
            "wait in another thread with await asyncio.to_thread(handle.result), or with anyio: "
            "await anyio.to_thread.run_sync(handle.result); or call with timeout=0"
        )
    if process.is_worker and threading.current_thread() is not threading.main_thread():
        raise WaitRefused(
            f"the thread {threading.current_thread().name!r} of a worker process cannot wait for the result of {wait.what}: "
            "a handler may be waiting for this thread, and if every handler in a worker waited, no thread would be left to run the tasks they "
            "wait for; call with timeout=0"
        )


def _has_event_loop() -> bool:
    """Return whether an asyncio event loop is running in this thread, without importing asyncio."""
    asyncio = sys.modules.get("asyncio")
    with suppress(RuntimeError):  # there is none
        return asyncio is not None and asyncio.get_running_loop() is not None
    return False


def _seconds(timeout: timedelta | float | None) -> float | None:
    """Return the timeout in seconds. Raises InvalidArgument if the timeout is negative."""
    seconds = None if timeout is None else duration(timeout, "timeout").total_seconds()
    if seconds is not None and seconds < 0:
        raise InvalidArgument("timeout must be zero or more; None waits forever")
    return seconds


NAMED_UP_TO = 1000
"""The size of the largest batch for which an error names the first task that has not ended. Finding that task means
reading the whole batch.
"""
_ENDS: Mapping[str | None, tuple[str, str]] = {
    EventType.EXPIRED: ("expired", "expired before it was started"),
    EventType.DISCARDED: ("discarded", "failed and was discarded"),
}
"""Maps each event, other than a cancellation, that makes a task Cancelled to a reason and its wording."""


def ended_otherwise(standing: Standing, *, before: str = "", after: str = "") -> TaskFailed | TaskCancelled:
    """Return the error for a task that ended without completing. `before` and `after` surround the error's message."""
    what, end = f"{before}task {standing.id} ({standing.task_name})", standing.end
    data = {} if end is None else end.event_data
    if standing.status is TaskStatus.FAILED:
        error = standing.error or ""
        return TaskFailed(
            f"{what} failed in attempt {standing.attempt}{f': {error}' if error else ''}{after}",
            task_id=standing.id,
            error=error,
            exception=data.get("exception"),
            attempt=standing.attempt,
        )
    given, kind = str(data.get("reason") or ""), None if end is None else end.event_type
    short, text = _ENDS.get(kind, ("", "was cancelled"))
    return TaskCancelled(
        f"{what} {text}{f': {given}' if given else ''}{after}", task_id=standing.id, reason=given or short
    )


def gone_no_further(batch: BatchStanding) -> TaskFailed | TaskCancelled:
    """Return the error for a wait if the batch before the task has stopped or is waiting for a dead letter."""
    what, blocker = f"{batch.kind} {batch.link.batch_id}", batch.blocker
    waits = batch.completed_at is None and (batch.runs_then or batch.link.number == 0)
    if blocker is not None and blocker.status is TaskStatus.FAILED and waits:
        after = f"; run outboxq failed redrive {blocker.id}, then wait for it again"
        return ended_otherwise(blocker, before=f"{what} is waiting for a dead letter: ", after=after)
    if blocker is not None and batch.kind is BatchKind.CHAIN:
        return ended_otherwise(blocker, before=f"{what} has stopped: ")
    how, reason = "has stopped" if batch.runs_then else "was cancelled", batch.reason
    text = f"{what} {how}, so the task that follows it, {batch.link.task_id}, will not be enqueued{f': {reason}' if reason else ''}"
    return TaskCancelled(text, task_id=batch.link.task_id, reason=reason)


def not_come(store: Store, wait: Wait, *, explains: bool = False) -> str:
    """Return the reason why the batch has not enqueued the awaited task yet, as a clause.

    With `explains`, the reason includes why the batch's first task is not running. For a large batch, the reason gives
    only the number of unfinished tasks, because callers may poll.
    """
    assert wait.link is not None
    batch_id = wait.link.batch_id
    batch = store.batch_standings([wait.link]).get(wait.link) or wait.batch
    assert batch is not None
    what = f"{batch.kind} {batch_id}"
    left, size = batch.pending, batch.counts.size
    counted = f"{left} of {size} {plural(size, 'task')} of {what} {plural(left, 'has', 'have')} not ended"
    if left and size > NAMED_UP_TO:
        return counted
    task = store.first_of_batch(batch_id, TaskStatus.READY, TaskStatus.RUNNING)
    if task is None:
        return f"{what} is still in progress"
    named = f"task {task.id} ({task.task_name})"
    if batch.kind is BatchKind.CHAIN:
        text = f"{what} is waiting for {named}, which is {task.status}"
    else:
        text = f"{counted}; the first is {named}, which is {task.status}"
    return f"{text}: {store.explain(task.id).sentence}" if explains else text
