"""The adapter of a task of `django.tasks`: a worker runs it, and Django's signals are sent."""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from django.apps import apps
from django.utils import timezone

from ...context import TaskContext
from ...errors import InvalidCall
from ...model import Cancel, EventType, Outcome, Retry, Snooze
from ...outbox import Outbox
from ...task import Task
from . import compat
from .compat import TaskResultStatus, normalize_json, signals
from .django_task import Options, declared_options
from .results import Call, Past, amend, cancelled, error, new_result, task_as_enqueued


@dataclass(frozen=True, slots=True, kw_only=True)
class DjangoTaskContext(compat.TaskContext):
    """The context of a task with `takes_context=True`."""

    execution: TaskContext
    """outboxq's TaskContext: `should_stop`, `checkpoint()`, `recovery_attempts` and the like."""


class AdaptedBackend(compat.BaseTaskBackend):
    """A backend of `django.tasks` whose tasks `adapter_for` finds: it has an outbox in one of DATABASES."""

    defaults: Options

    @property
    def database(self) -> str:
        """Alias of the database in DATABASES."""
        return self.defaults.database

    @property
    @abstractmethod
    def outbox(self) -> Outbox:
        """Outbox of that database."""


class TaskAdapter(Task[..., Any]):
    """An outboxq task that runs a task of Django's; its name is the import path of that task."""

    def __init__(self, declared: Any, *, backend: Any, outbox: Outbox) -> None:
        self.declared = declared
        self.backend = backend
        self.outbox = outbox
        super().__init__(
            self._call,
            name=declared.module_path,
            outbox=outbox,
            **declared_options(declared, backend.defaults),
            # Django only requires JSON, so a third party's task may be annotated loosely. The stored parameters, `args` and
            # `kwargs`, are checked against none of its annotations anyway.
            check_types=False,
        )
        self.__doc__ = declared.func.__doc__

    def call_as_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        check_call(self.declared, args, kwargs)
        stored = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        return self.parameters.dump((), {**stored, "backend": self.backend.alias})

    def _call(
        self,
        ctx: TaskContext,
        args: list[Any],
        kwargs: dict[str, Any],
        backend: str | None = None,  # noqa: ARG002 - these two are kept for the result
        run_after: str | None = None,  # noqa: ARG002
    ) -> Any:
        """Call Django's function with `args` and `kwargs`. These parameters are what the row stores."""
        result = self._begun(ctx)
        _result.set(result)
        signals.task_started.send_robust(self._sender(result.backend), task_result=result)
        if self.declared.takes_context:
            args = [DjangoTaskContext(task_result=result, execution=ctx), *args]
        returned = self.declared.call(*args, **kwargs)
        return returned if isinstance(returned, Snooze | Cancel | Retry) else normalize_json(returned)

    def ended(self, context: TaskContext, outcome: Outcome) -> None:
        """Send `task_finished` after the last attempt.

        For a failed task it is sent while the error is being handled, so receivers find the error in `sys.exc_info()`.
        """
        result, status = _result.get(), _FINAL.get(outcome.event_type)
        _result.set(None)
        if status is None:
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
        try:
            if context.error is not None and status == TaskResultStatus.FAILED:
                raise context.error
        except BaseException:  # noqa: BLE001 - raised above, for those who ask what is being handled
            self._tell_finished(result)
        else:
            self._tell_finished(result)

    def _tell_finished(self, result: Any) -> None:
        signals.task_finished.send_robust(self._sender(result.backend), task_result=result)

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
        """Return the backend class that the settings name for the alias used at enqueueing."""
        try:
            return type(compat.task_backends[backend])
        except compat.InvalidTaskBackend:  # the alias is no longer in TASKS
            return type(self.backend)


def check_call(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidCall, a TypeError, for arguments that do not fit the function of a Django task."""
    context = [None] if task.takes_context else []
    try:
        inspect.signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as misfit:
        raise InvalidCall(f"{task.module_path}: {misfit}") from None


def adapter_for(path: str, database: str) -> TaskAdapter | None:
    """Return the adapter of the Django task that is declared at this import path; None if there is none.

    Imports the module, if it is one of those that may be imported, and passes on its exceptions.
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
    """Return the adapter of a Django task, also while its module is being imported; None unless its backend has this database."""
    if not isinstance(declared, compat.Task):
        return None
    backend = next((one for one in _backends(database) if one.alias == declared.backend), None)
    return None if backend is None else TaskAdapter(declared, backend=backend, outbox=backend.outbox)


def _backends(database: str) -> Iterator[AdaptedBackend]:
    for alias in compat.task_backends:
        try:
            backend = compat.task_backends[alias]
        except compat.InvalidTaskBackend:  # the system checks report it
            continue
        if isinstance(backend, AdaptedBackend) and backend.database == database:
            yield backend


_result: ContextVar[Any] = ContextVar("outboxq_django_result", default=None)
"""The TaskResult of the task that this thread runs."""

_FINAL = {
    EventType.COMPLETED: TaskResultStatus.SUCCESSFUL,
    EventType.FAILED: TaskResultStatus.FAILED,
    EventType.CANCELLED: TaskResultStatus.FAILED,
}
