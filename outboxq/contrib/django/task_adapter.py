"""The adapter for `django.tasks` tasks. The adapter lets a worker run these tasks, and sends Django's signals."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import Any, Self

from django.apps import apps
from django.utils import timezone

from ...context import TaskContext
from ...errors import InvalidCall, PayloadError, TaskNotFound
from ...model import STATUS_AFTER, Cancel, Claim, EventType, Outcome, Retry, Snooze, TaskExecution, TaskStatus
from ...model.options import of_column
from ...outbox import Outbox
from ...store import Store
from ...task import Task
from . import compat
from .compat import TaskError, TaskResult, TaskResultStatus, normalize_json, signals
from .django_task import STORED_OF_A_CALL, Options, changed, declared_options, local


@dataclass(frozen=True, slots=True, kw_only=True)
class DjangoTaskContext(compat.TaskContext):
    """The context for a task with `takes_context=True`."""

    execution: TaskContext
    """outboxq's TaskContext, with `should_stop`, `checkpoint()`, `recovery_attempts` and so on."""


class TaskAdapter(Task[..., Any]):
    """An outboxq task that runs a Django task. Its name is the Django task's import path."""

    def __init__(self, declared: Any, *, backend: Any, outbox: Outbox) -> None:
        self.declared = declared
        self.backend = backend
        self.outbox = outbox
        super().__init__(
            self._call,
            name=declared.module_path,
            outbox=outbox,
            **declared_options(declared, backend.defaults),
            # Django only requires JSON, so a third party's task may be annotated loosely. Its annotations do not apply
            # to the stored parameters, `args` and `kwargs`, anyway.
            check_types=False,
        )
        self.__doc__ = declared.func.__doc__

    def call_as_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        check_call(self.declared, args, kwargs)
        stored = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        return self.parameters.dump((), {**stored, "backend": self.backend.alias})

    def call_signature(self) -> inspect.Signature:
        signature = inspect.signature(self.declared.func)
        parameters = list(signature.parameters.values())[int(self.declared.takes_context) :]
        return signature.replace(parameters=parameters)

    def named_arguments(self, stored: str) -> Mapping[str, Any]:
        if (call := Call.parse(stored)) is None:
            raise PayloadError(f"{self.name}: the arguments do not have the form of a Django task's arguments")
        try:
            return self.call_signature().bind(*call.args, **call.kwargs).arguments
        except TypeError as misfit:
            raise PayloadError(f"{self.name}: {misfit}") from None

    def _call(
        self,
        ctx: TaskContext,
        args: list[Any],
        kwargs: dict[str, Any],
        backend: str | None = None,  # noqa: ARG002 - these two are kept for the result
        run_after: str | None = None,  # noqa: ARG002
    ) -> Any:
        """Call the Django task's function with `args` and `kwargs`. The values of these two parameters are stored in
        the row.
        """
        result = self._begun(ctx)
        _result.set(result)
        signals.task_started.send_robust(self._sender(result.backend), task_result=result)
        if self.declared.takes_context:
            args = [DjangoTaskContext(task_result=result, execution=ctx), *args]
        returned = self.declared.call(*args, **kwargs)
        return returned if isinstance(returned, Snooze | Cancel | Retry) else normalize_json(returned)

    def ended(self, context: TaskContext, outcome: Outcome) -> None:
        """Send `task_finished` after the last attempt.

        For a failed task, the signal is sent while the error is being handled, so that receivers find the error in
        `sys.exc_info()`.
        """
        result, status = _result.get(), STATUS[STATUS_AFTER[outcome.event_type]]
        _result.set(None)
        if status == TaskResultStatus.READY:
            return
        if result is None or result.id != str(context.task_id):  # the function was not called
            result = self._begun(context)
        amend(result, finished_at=timezone.now(), status=status)
        if outcome.event_type is EventType.FAILED:
            result.errors.append(error(outcome.data.get("exception"), outcome.data.get("traceback") or outcome.error))
        elif outcome.event_type is EventType.CANCELLED:
            result.errors.append(cancelled(outcome.data.get("reason") or "Cancelled"))
        else:
            amend(result, _return_value=None if outcome.result is None else json.loads(outcome.result))
        tell = partial(signals.task_finished.send_robust, self._sender(result.backend), task_result=result)
        if context.error is None or status != TaskResultStatus.FAILED:
            tell()
            return
        try:
            raise context.error
        except BaseException:  # noqa: BLE001 - raised above, for receivers that read the handled exception
            tell()

    def _begun(self, context: TaskContext) -> Any:
        claim = context.claim
        call = Call.parse(claim.args) or Call(args=[], kwargs={})
        task, past = task_as_enqueued(self.declared, call, claim), Past()
        if claim.lease_token > 1:  # it was claimed before
            with self.backend.reading() as where:
                store = self.outbox.store
                past = Past.read(store, store.get(claim.id, using=where), using=where)
        elif claim.worker_id is not None:
            past.worker_ids.append(str(claim.worker_id))
        return new_result(claim, call, task, past, status=TaskResultStatus.RUNNING)

    def _sender(self, backend: str) -> type:
        """Return the backend class that the settings configure for the alias with which the task was enqueued."""
        try:
            return type(compat.task_backends[backend])
        except compat.InvalidTaskBackend:  # the alias is no longer in TASKS
            return type(self.backend)


def check_call(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidCall, which is a TypeError, if the arguments do not match a Django task's signature."""
    context = [None] if task.takes_context else []
    try:
        inspect.signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as misfit:
        raise InvalidCall(f"{task.module_path}: {misfit}") from None


def adapter_for(path: str, database: str) -> TaskAdapter | None:
    """Return the adapter for the Django task that is declared at this import path; None if there is no such task.

    The module is imported if that is allowed. Exceptions raised by the import are passed on.
    """
    backends = list(_backends(database))
    allowed = [config.name for config in apps.get_app_configs()]
    allowed += [module for backend in backends for module in backend.defaults.modules]
    module, _, name = path.rpartition(".")
    if not backends or not any(module == one or module.startswith(f"{one}.") for one in allowed):
        return None
    if module.endswith(".__main__"):  # an import would run the program
        return None
    try:
        declared = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            return None
        raise
    if not isinstance(declared, compat.Task) or declared.module_path != path:
        return None
    backend = next((one for one in backends if one.alias == declared.backend), backends[0])
    return TaskAdapter(declared, backend=backend, outbox=backend.outbox)


def adapter_of(declared: object, database: str) -> TaskAdapter | None:
    """Return the adapter for a Django task, even while its module is being imported; None if its backend uses another
    database.
    """
    if not isinstance(declared, compat.Task):
        return None
    backend = next((one for one in _backends(database) if one.alias == declared.backend), None)
    return None if backend is None else TaskAdapter(declared, backend=backend, outbox=backend.outbox)


def _backends(database: str) -> Iterator[Any]:
    """Yield the outboxq backends that use this database. Only outboxq's backends have `defaults`."""
    for alias in compat.task_backends:
        with suppress(compat.InvalidTaskBackend):  # the system checks report it
            backend = compat.task_backends[alias]
            if isinstance(getattr(backend, "defaults", None), Options) and backend.database == database:
                yield backend


_result: ContextVar[Any] = ContextVar("outboxq_django_result", default=None)
"""The TaskResult of the task that this thread is running."""

STATUS = {
    TaskStatus.READY: TaskResultStatus.READY,
    TaskStatus.RUNNING: TaskResultStatus.RUNNING,
    TaskStatus.COMPLETED: TaskResultStatus.SUCCESSFUL,
    TaskStatus.FAILED: TaskResultStatus.FAILED,
    TaskStatus.CANCELLED: TaskResultStatus.FAILED,
}

_UNUSED = frozenset({EventType.RESET, EventType.RELEASED, EventType.SNOOZED})
"""Events that end an attempt without counting it, so the next attempt has the same number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The stored arguments of a task that was enqueued through Django."""

    args: list[Any]
    kwargs: dict[str, Any]
    backend: str | None = None
    """The alias of the backend. None means the declared task's backend."""
    run_after: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse stored arguments. Return None if the task was not enqueued through Django's tasks."""
        stored = json.loads(text)
        match stored:
            case {"args": list(args), "kwargs": dict(kwargs)}:
                due = stored.get("run_after")
                run_after = None if due is None else datetime.fromisoformat(due)
                return cls(args=args, kwargs=kwargs, backend=stored.get("backend"), run_after=run_after)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """A task's past attempts."""

    worker_ids: list[str] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)

    @classmethod
    def read(cls, store: Store, execution: TaskExecution, *, using: object) -> Self:
        """Read the attempts that existed when `execution` was read. Later events are ignored."""
        if execution.first_started_at is None and execution.status is not TaskStatus.CANCELLED:
            return cls()
        try:
            attempts = store.attempts(execution.id, using=using)
        except TaskNotFound:  # its events were pruned
            attempts = []
        running = execution.status is TaskStatus.RUNNING
        known = [one for one in attempts if one.lease_token <= execution.lease_token]
        ended = [one for one in known if not (running and one.lease_token == execution.lease_token)]
        past = cls(
            worker_ids=[str(one.worker_id) for one in known if one not in ended or one.outcome not in _UNUSED],
            errors=[
                error(one.exception or _KINDS.get(one.outcome), one.traceback or one.error)
                for one in ended
                if one.outcome in _FAILED
            ],
        )
        if execution.status is TaskStatus.CANCELLED:
            past.errors.append(_cancelled(store, execution, using=using))
        return past


def result_of(store: Store, execution: TaskExecution, call: Call, task: Any, *, using: object) -> Any:
    """Return a task's result, read from the tables. `using` is passed to the store's methods."""
    past = Past.read(store, execution, using=using)
    result = new_result(execution, call, task, past, status=STATUS[execution.status])
    amend(result, finished_at=local(execution.completed_at))
    if execution.status is TaskStatus.COMPLETED and execution.result is not None:
        amend(result, _return_value=json.loads(execution.result))
    return result


def new_result(row: TaskExecution | Claim, call: Call, task: Any, past: Past, *, status: Any) -> Any:
    """Return a result for an unfinished task, whose `finished_at` is None."""
    return TaskResult(
        task=task,
        id=str(row.id),
        status=status,
        enqueued_at=local(row.created_at),
        started_at=local(row.first_started_at),
        last_attempted_at=local(row.started_at),
        finished_at=None,
        args=call.args,
        kwargs=call.kwargs,
        backend=task.backend,
        errors=past.errors,
        worker_ids=past.worker_ids,
    )


def task_as_enqueued(declared: Any, call: Call, row: TaskExecution | Claim) -> Any:
    """Return the declared task with the options with which it was enqueued, regardless of the current settings."""
    return changed(
        declared,
        queue_name=row.queue,
        priority=row.priority,
        backend=call.backend or declared.backend,
        run_after=local(call.run_after),
        partition_key=row.partition_key if row.concurrency_key is None else None,
        concurrency_key=row.concurrency_key,
        **{name: of_column(name, getattr(row, column)) for name, column in STORED_OF_A_CALL.items()},
    )


def amend(result: Any, **values: Any) -> None:
    """Set attributes on a frozen TaskResult."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def error(kind: str | None, text: str | None) -> Any:
    """Return a TaskError. `kind` is the import path of the exception's class; None if the worker gave up on the task."""
    return TaskError(exception_class_path=kind or "outboxq.errors.OutboxqError", traceback=text or "")


def cancelled(why: str) -> Any:
    return error("outboxq.model.records.Cancel", why)


_KINDS: dict[object, str] = {EventType.ABANDONED: "outboxq.errors.LeaseLost"}
"""The exception to report for an attempt that ended without one."""
_FAILED = frozenset({EventType.RETRY_SCHEDULED, EventType.FAILED, EventType.ABANDONED})
_CANCELLED = frozenset({EventType.CANCELLED, EventType.EXPIRED, EventType.DISCARDED})


def _cancelled(store: Store, execution: TaskExecution, *, using: object) -> Any:
    why = "Cancelled"
    for one in store.history(execution.id, using=using):
        if one.event_type in _CANCELLED:
            reason = one.event_data.get("reason")
            why = f"{one.event_type}: {reason}" if reason else str(one.event_type)
    return cancelled(why)
