"""Hooks: an application's own code that runs around the sending and handling of tasks, for example for traces and
metrics.

Hooks only observe. If a hook raises an exception, the exception is logged, and neither the enqueued tasks nor the
outcome of a task changes. Code that must succeed before a handler may run, such as a framework's set-up, belongs in an
`Integration`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from ..context import TaskContext
from ..errors import ConfigurationError
from ..model import Handle, NewTask, Outcome
from ..model.options import headers_as_json, headers_of_json
from ..model.records import fields_of
from ..model.subscriptions import Emitted, NewEvent
from ..store.failure_log import FailureLog


@dataclass(frozen=True, kw_only=True)
class Sending:
    """One enqueue, enqueue_many or emit that is about to be written."""

    task_names: tuple[str, ...] = ()
    """The name of the task; empty for an emit, because only the database knows the subscribers."""
    topic: str | None = None
    """The topic of an emit; None if a task is enqueued by name."""
    queue: str | None = None
    """The queue in which the tasks will wait; None for an emit, because each subscriber has its own queue."""
    count: int | None = None
    """The number of tasks; None for an emit."""
    ids: tuple[UUID, ...] = ()
    """The ids of the new tasks, in call order; empty for an emit. A task is not created if its idempotency key is
    taken.
    """
    pipeline_execution_id: UUID | None
    """The id shared by the tasks from an emit or an enqueue_many; None if the task is enqueued alone."""
    size: int
    """The total size of the tasks' arguments, or the size of an emit's payload, in bytes of JSON."""
    headers: Mapping[str, str] = field(repr=False)
    """The headers so far: the caller's, and those that earlier hooks have added."""
    handles: list[Handle] = field(default_factory=list, repr=False)
    """The tasks' handles. The list is empty until the tasks are written, so a context manager must read it after its
    `yield`.
    """


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """A worker that has started or stopped."""

    id: UUID
    """The worker's id, which is new at each start. It is the `context.claim.worker_id` of the tasks that the worker
    runs.
    """
    label: str
    """A name for people to read, such as `host:pid`."""
    queues: Sequence[str] | None
    """The queues that the worker serves. None means all queues."""
    topics: Sequence[str] | None
    """The topics whose tasks the worker runs; None if it runs all tasks, with or without a topic."""
    concurrency: int
    """The maximum number of handlers that run at once."""
    task_names: Sequence[str]
    """The names of the tasks that the worker knows."""


class Hook:
    """The base class of hooks, for `Outbox(hooks=[…])`. Override the methods that you need; the others cost nothing.

    The first hook in the list is entered first and exited last. If a hook raises an Exception, the Exception is logged
    with the hook's name, at most once a minute, and the other hooks still run. Many threads may call a hook at the same
    time.
    """

    def sending(self, sent: Sending) -> AbstractContextManager[Mapping[str, str] | None]:  # noqa: ARG002 - for those who override it
        """Return a context manager around the write of an enqueue, an enqueue_many or an emit.

        It yields headers for all tasks in the call, or None. These headers replace those in `sent.headers` that have
        the same names, and handlers find them in `ctx.headers`. If the call fails, its error is raised inside the
        context manager, and always reaches the caller. The caller's transaction may still be rolled back afterwards.
        """
        return nullcontext()

    def handling(self, context: TaskContext) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context manager around an attempt, in the handler's thread. It encloses the transaction and the
        framework's code.

        If the attempt fails, its exception, `context.error`, is raised inside the context manager. Suppressing the
        exception has no effect.
        """
        return nullcontext()

    def ended(self, context: TaskContext, outcome: Outcome, seconds: float) -> None:
        """Observe the outcome of an attempt that took `seconds`. After a failure, `context.error` is the exception.

        This method is called inside `handling`, unless `context.was_killed` is True because the handler did not stop or
        its child process died. The completion of a transactional task has already been committed; any other outcome is
        about to be written. This method is not called if the lease was lost, because the outcome is then discarded.
        """

    def worker_started(self, worker: WorkerInfo) -> None:
        """React to a worker that is about to start in this process."""

    def worker_stopped(self, worker: WorkerInfo) -> None:
        """React to a worker that has stopped. This method is not called in a process that is killed or told to stop
        immediately.
        """


log = logging.getLogger("outboxq.hooks")


class HookCalls:
    """The hooks of one outbox. They are entered in order and exited in reverse order."""

    @classmethod
    def of(cls, hooks: Iterable[Hook]) -> HookCalls | None:
        """Return a HookCalls for these hooks, or None if `hooks` is empty. Raises ConfigurationError if an object is not
        a Hook.
        """
        if isinstance(hooks, str | type) or not isinstance(hooks, Iterable):
            raise ConfigurationError(f"hooks= takes a list of hooks, not {hooks!r:.80}; write hooks=[MyHook()]")
        given = list(hooks)
        for one in given:
            if not isinstance(one, Hook):
                raise ConfigurationError(
                    f"hooks= takes instances of subclasses of outboxq.Hook, not {one!r:.80}; write hooks=[MyHook()]"
                )
        return cls(given) if given else None

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks = [_SafeHook(hook) for hook in hooks]
        self._sending = [hook for hook in self._hooks if hook.overrides("sending")]
        self._handling = [hook for hook in self._hooks if hook.overrides("handling")]
        self._ended = [hook for hook in self._hooks if hook.overrides("ended")]

    def __iter__(self) -> Iterator[Hook]:
        return (one.hook for one in self._hooks)

    def enqueue(self, tasks: Sequence[NewTask], write: Callable[[Sequence[NewTask]], list[Handle]]) -> list[Handle]:
        """Add the hooks' headers to the tasks, and call `write` with the tasks, inside the hooks. Return the handles
        that `write` returns.
        """
        if not self._sending or not tasks:
            return write(tasks)
        first = tasks[0]
        sent = Sending(
            task_names=(first.task_name,),
            queue=first.queue,
            count=len(tasks),
            ids=tuple(task.id for task in tasks),
            pipeline_execution_id=first.pipeline_execution_id,
            size=sum(len(task.args.encode()) for task in tasks),
            headers=headers_of_json(first.headers),
        )
        with self._around(sent, first.headers, f"task {first.task_name!r}") as headers:
            handles = write([replace(task, headers=headers) for task in tasks])
            sent.handles.extend(handles)
        return handles

    def emit(self, event: NewEvent, write: Callable[[NewEvent], Emitted]) -> Emitted:
        """Add the hooks' headers to the event, and call `write` with the event, inside the hooks. Return the result of
        `write`.
        """
        if not self._sending:
            return write(event)
        sent = Sending(
            topic=event.topic,
            pipeline_execution_id=event.id,
            size=len(event.payload.encode()),
            headers=headers_of_json(event.headers),
        )
        with self._around(sent, event.headers, f"event {event.topic!r}") as headers:
            emitted = write(replace(event, headers=headers))
            sent.handles.extend(emitted.handles.values())
        return emitted

    @contextmanager
    def handling(self, context: TaskContext) -> Iterator[None]:
        """Enter each hook's `handling`. If the attempt failed, its exception is raised inside each of these context
        managers on exit.
        """
        with ExitStack() as stack:
            for hook in self._handling:
                stack.enter_context(hook.around("handling", context, lambda: context.error))
            yield

    def ended(self, context: TaskContext, outcome: Outcome, seconds: float) -> None:
        """Call the `ended` method of every hook."""
        for hook in reversed(self._ended):
            hook.call("ended", context, outcome, seconds)

    def worker_started(self, worker: WorkerInfo) -> None:
        """Tell every hook that the worker has started."""
        for hook in self._hooks:
            hook.call("worker_started", worker)

    def worker_stopped(self, worker: WorkerInfo) -> None:
        """Tell every hook that the worker has stopped."""
        for hook in reversed(self._hooks):
            hook.call("worker_stopped", worker)

    @contextmanager
    def _around(self, sent: Sending, stored: str | None, what: str) -> Iterator[str | None]:
        """Enter each hook's `sending`, and yield the headers to store."""
        with ExitStack() as stack:
            for hook in self._sending:
                added = stack.enter_context(hook.around("sending", sent, lambda: None))
                if added is None:
                    continue
                try:
                    stored = headers_as_json({**sent.headers, **added}, what)
                except Exception as error:  # noqa: BLE001 - the tasks are enqueued without this hook's headers
                    hook.failed("the headers from its sending() were left out", error)
                else:
                    sent = replace(sent, headers=headers_of_json(stored))
            yield stored


class WorkerHooks:
    """Calls the hooks once when a worker starts and once when it stops."""

    def __init__(self, hooks: HookCalls | None, worker: WorkerInfo) -> None:
        self._hooks, self._worker = hooks, worker
        self._to_stop: list[HookCalls] = []

    def started(self) -> None:
        """Tell every hook that the worker has started."""
        if self._hooks is not None:
            self._to_stop.append(self._hooks)
            self._hooks.worker_started(self._worker)

    def stopped(self) -> None:
        """Call each hook's `worker_stopped`, but only once and only after `started`."""
        with suppress(IndexError):  # if two threads get here, only one of them finds the hooks
            self._to_stop.pop().worker_stopped(self._worker)


class _SafeHook:
    """A hook whose Exceptions are logged and not raised. KeyboardInterrupt and similar exceptions are raised."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self._name = f"{type(hook).__module__}.{type(hook).__qualname__}"
        self._logs: dict[str, FailureLog] = {}

    def overrides(self, method: str) -> bool:
        return getattr(getattr(self.hook, method), "__func__", None) is not getattr(Hook, method)

    def call(self, method: str, *about: object) -> None:
        try:
            getattr(self.hook, method)(*about)
        except Exception as error:  # noqa: BLE001 - logged
            self.failed(f"its {method}() failed and was skipped", error, next(iter(about), None))

    @contextmanager
    def around(self, method: str, about: object, failure: Callable[[], BaseException | None]) -> Iterator[Any]:
        """Enter the context manager that one of the hook's methods returns. If entering fails, run the block without
        the context manager.

        On exit, the context manager gets the block's error or, if there is none, the error that `failure` returns. The
        context manager can neither suppress nor replace an error.
        """
        try:
            manager = getattr(self.hook, method)(about)
            if not isinstance(manager, AbstractContextManager):
                raise TypeError(
                    f"it must return a context manager, not {type(manager).__name__}; decorate it with contextlib.contextmanager"
                )
            found = manager.__enter__()
        except Exception as error:  # noqa: BLE001 - logged
            self.failed(f"its {method}() could not be entered and was skipped", error, about)
            yield None
            return
        try:
            yield found
        except BaseException as error:
            self._leave(manager, method, about, error)
            raise
        self._leave(manager, method, about, failure())

    def _leave(
        self, manager: AbstractContextManager[Any], method: str, about: object, error: BaseException | None
    ) -> None:
        try:
            manager.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as own:
            if own is not error:
                if not isinstance(own, Exception):
                    raise
                self.failed(f"its {method}() failed on exit, and the error was ignored", own, about)

    def failed(self, what: str, error: Exception, about: object = None) -> None:
        """Log an exception that the hook raised, with the fields of the task if the hook was called for a task. The
        first exception is logged immediately; later exceptions are logged at most once a minute.
        """
        fields = fields_of(about.claim) if isinstance(about, TaskContext) else None
        self._logs.setdefault(what, FailureLog(log, level=logging.ERROR)).failed(
            f"hook {self._name}: {what}", error, fields=fields
        )
