"""Calls the hooks of an outbox in such a way that an exception of a hook changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from ..context import TaskContext
from ..errors import ConfigurationError
from ..model import Handle, NewTask, Outcome
from ..model.headers import headers_as_json, headers_of_json
from ..model.log_fields import fields_of
from ..model.subscriptions import Emitted, NewEvent
from ..store.failure_log import FailureLog
from .hooks import Hook, Sending, WorkerInfo

log = logging.getLogger("outboxq.hooks")


class HookCalls:
    """The hooks of one outbox. They are entered in their order, and left in the reverse order."""

    @classmethod
    def of(cls, hooks: Iterable[Hook]) -> HookCalls | None:
        """Return the calls of these hooks; None without hooks. Raises ConfigurationError for what is no Hook."""
        if isinstance(hooks, str | type) or not isinstance(hooks, Iterable):
            raise ConfigurationError(f"hooks= takes a list of hooks, not {hooks!r:.80}; write hooks=[MyHook()]")
        given = list(hooks)
        for one in given:
            if not isinstance(one, Hook):
                raise ConfigurationError(
                    f"hooks= takes objects whose class is derived from outboxq.Hook, not {one!r:.80}; write hooks=[MyHook()]"
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
        """Call `write` inside the hooks, with the tasks and the headers that the hooks add. Returns its handles."""
        if not self._sending or not tasks:
            return write(tasks)
        first = tasks[0]
        sent = Sending(
            task_names=(first.task_name,),
            topic=None,
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
        """Call `write` inside the hooks, with the event and the headers that the hooks add. Returns its answer."""
        if not self._sending:
            return write(event)
        sent = Sending(
            task_names=(),
            topic=event.topic,
            queue=None,
            count=None,
            ids=(),
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
        """Enter `handling` of each hook. The error that failed the attempt is raised inside each when it is left."""
        with ExitStack() as stack:
            for hook in self._handling:
                stack.enter_context(hook.around("handling", context, lambda: context.error))
            yield

    def ended(self, context: TaskContext, outcome: Outcome, seconds: float) -> None:
        """Call `ended` of each hook."""
        for hook in reversed(self._ended):
            hook.call("ended", context, outcome, seconds)

    def worker_started(self, worker: WorkerInfo) -> None:
        """Call `worker_started` of each hook."""
        for hook in self._hooks:
            hook.call("worker_started", worker)

    def worker_stopped(self, worker: WorkerInfo) -> None:
        """Call `worker_stopped` of each hook."""
        for hook in reversed(self._hooks):
            hook.call("worker_stopped", worker)

    @contextmanager
    def _around(self, sent: Sending, stored: str | None, what: str) -> Iterator[str | None]:
        """Enter `sending` of each hook. Yields the headers as they are to be stored."""
        with ExitStack() as stack:
            for hook in self._sending:
                added = stack.enter_context(hook.around("sending", sent, lambda: None))
                if added is None:
                    continue
                try:
                    stored = headers_as_json({**sent.headers, **added}, what)
                except Exception as error:  # noqa: BLE001 - the enqueue goes on without them
                    hook.failed("the headers of its sending() were left out", error)
                else:
                    sent = replace(sent, headers=headers_of_json(stored))
            yield stored


class WorkerHooks:
    """The hooks that are called when one worker starts and stops, each once."""

    def __init__(self, hooks: HookCalls | None, worker: WorkerInfo) -> None:
        self._hooks, self._worker = hooks, worker
        self._to_stop: list[HookCalls] = []

    def started(self) -> None:
        """Call `worker_started` of each hook."""
        if self._hooks is not None:
            self._to_stop.append(self._hooks)
            self._hooks.worker_started(self._worker)

    def stopped(self) -> None:
        """Call `worker_stopped` of each hook, unless `started` was not called or this was."""
        with suppress(IndexError):  # one of two threads gets it
            self._to_stop.pop().worker_stopped(self._worker)


class _SafeHook:
    """A hook whose methods raise no Exception: it is logged. KeyboardInterrupt and the like pass."""

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
            self.failed(f"its {method}() failed and is passed over", error, next(iter(about), None))

    def around(self, method: str, about: object, failure: Callable[[], BaseException | None]) -> _SafeManager:
        return _SafeManager(self, about, method, failure)

    def failed(self, what: str, error: Exception, about: object = None) -> None:
        """Log an exception of the hook, at once and then once a minute; with the fields of the task that it was about."""
        fields = fields_of(about.claim) if isinstance(about, TaskContext) else None
        self._logs.setdefault(what, FailureLog(log, level=logging.ERROR)).failed(
            f"hook {self._name}: {what}", error, fields=fields
        )

    def manager(self, method: str, about: object) -> AbstractContextManager[Any]:
        """Return the context manager that a method of the hook makes. Raises TypeError for anything else."""
        found = getattr(self.hook, method)(about)
        if not isinstance(found, AbstractContextManager):
            raise TypeError(
                f"it must return a context manager, not {type(found).__name__}; decorate it with contextlib.contextmanager"
            )
        return found


class _SafeManager:
    """A context manager of a hook. One that cannot be entered is passed over; none can swallow or replace an error."""

    def __init__(
        self,
        hook: _SafeHook,
        about: object,
        method: str,
        failure: Callable[[], BaseException | None],
    ) -> None:
        """Prepare it; `failure` returns the error to leave it with where the block has raised none."""
        self._hook, self._about, self._method, self._failure = hook, about, method, failure
        self._entered: AbstractContextManager[Any] | None = None

    def __enter__(self) -> Any:
        try:
            manager = self._hook.manager(self._method, self._about)
            found = manager.__enter__()
        except Exception as error:  # noqa: BLE001 - logged
            self._hook.failed(f"its {self._method}() could not be entered and is passed over", error, self._about)
            return None
        self._entered = manager
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is None:
            return
        if error is None and (error := self._failure()) is not None:
            kind, trace = type(error), error.__traceback__
        try:
            self._entered.__exit__(kind, error, trace)
        except BaseException as own:
            if own is error:
                return  # not swallowed, as it should be
            if not isinstance(own, Exception):
                raise
            self._hook.failed(f"its {self._method}() failed on leaving and is passed over", own, self._about)
