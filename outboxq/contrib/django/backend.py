"""The backend for `TASKS`: Django's own tasks in the outbox."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core import checks
from django.core.signals import setting_changed
from django.db import connections

from ...errors import TaskNotFound, UnknownTask
from ...integration.ambient import CURRENT, resolve_target
from ...model import TaskExecution
from .compat import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    normalize_json,
    signals,
)
from .django_outbox import APP, DjangoOutbox, outboxes
from .django_task import Options, OutboxqTask, aware, call_options, task, unvalidated, validate
from .integration import present_transaction
from .task_adapter import Call, TaskAdapter, amend, check_call, result_of, task_as_enqueued

__all__ = ["OutboxqBackend", "OutboxqTask", "task"]


class OutboxqBackend(BaseTaskBackend):
    """A backend that enqueues tasks in the transaction of Django's connection. outboxq's workers run the committed
    tasks.
    """

    task_class = OutboxqTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Read QUEUES and OPTIONS. Raises InvalidTaskBackend for options that outboxq does not know."""
        if isinstance(params.get("QUEUES"), str):
            raise InvalidTaskBackend(f"TASKS[{alias!r}]: QUEUES takes a list; write [{params['QUEUES']!r}]")
        super().__init__(alias, params)
        self.defaults = Options.of(self.options, alias)

    @property
    def database(self) -> str:
        """The alias of the database in DATABASES."""
        return self.defaults.database

    @property
    def outbox(self) -> DjangoOutbox:
        """The outbox in the backend's database."""
        return outboxes[self.database]

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask for a task that cannot be enqueued or run."""
        super().validate_task(task)
        if inspect.isgeneratorfunction(task.func) or inspect.isasyncgenfunction(task.func):
            raise InvalidTask(f"{task.module_path} is a generator function; return a list instead")
        validate(task, self.defaults)
        if self.database in connections:  # `check()` reports an unknown one
            self.outbox.tasks.declare(task.module_path)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue the task in the transaction of Django's connection. Outside `atomic()`, use a separate transaction,
        as `save()` does.

        Return the TaskResult, or the TaskResult of the task that already has the idempotency key. Raises InvalidTask
        for a task that no worker can find, TypeError for arguments that do not match the function or are not JSON, and
        PayloadError for arguments that cannot be stored. If one of these errors is raised, nothing is written.
        """
        self.validate_task(task)
        if (adapter := self._adapter(task.module_path)) is None:
            places = f"in a module of an installed app, or in one of OPTIONS['modules'] in TASKS[{self.alias!r}]"
            raise InvalidTask(f"no worker would find {task.module_path}; declare it with @task, {places}")
        call = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs)), "backend": self.alias}
        check_call(task, call["args"], call["kwargs"])
        if task.run_after is not None:
            call["run_after"] = aware(task.run_after).astimezone(UTC).isoformat()
        with resolve_target(self.outbox, CURRENT, task.module_path) as where:
            handle = adapter.using(where, **call_options(task)).enqueue(**call)
            execution = self.outbox.store.get(handle.id, using=where)
            result = self._result(execution, using=where)
        if handle.created:
            amend(result, task=task)
            signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the TaskResult with this id. Raises TaskResultDoesNotExist if there is no such task, or if it was not
        enqueued through Django's tasks.
        """
        try:
            task_id = UUID(str(result_id))
        except ValueError as error:
            raise TaskResultDoesNotExist(result_id) from error
        with self.reading() as where:
            try:
                execution = self.outbox.store.get(task_id, using=where)
            except TaskNotFound as error:
                raise TaskResultDoesNotExist(result_id) from error
            return self._result(execution, using=where)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Check the backend's settings for `manage.py check`."""
        where = f"TASKS[{self.alias!r}]"
        found = list(super().check(**kwargs))
        if not apps.is_installed(APP):
            hint = f"Add {APP!r} to INSTALLED_APPS and run manage.py migrate."
            found.append(
                checks.Error(
                    f"{where} uses outboxq, but outboxq's Django app is not installed.", hint=hint, id="outboxq.E101"
                )
            )
        if self.database not in connections:
            text = f"{where} names the database {self.database!r}, which is not in DATABASES."
            hint = f"Set OPTIONS['database'] to one of: {', '.join(connections)}."
            found.append(checks.Error(text, hint=hint, id="outboxq.E102"))
        for queue in sorted(self.queues, key=str):
            try:
                validate(unvalidated(where, backend=self.alias, queue_name=queue), self.defaults)
            except InvalidTask as error:
                found.append(checks.Error(f"{where} has the queue {queue!r}: {error}", id="outboxq.E103"))
        return found

    def reading(self) -> AbstractContextManager[object]:
        """Return a transaction for reading: the current one, or a short one that, on SQLite, does not wait for a
        writer.
        """
        return present_transaction(self.database, mode="DEFERRED")

    def _adapter(self, name: str) -> TaskAdapter | None:
        try:
            found = self.outbox.tasks.get(name)
        except UnknownTask:
            return None
        return found if isinstance(found, TaskAdapter) else None

    def _result(self, execution: TaskExecution, *, using: object) -> Any:
        """Return the result with the task as it was enqueued. If the task is no longer in the code, include what is
        known about it.
        """
        if (call := Call.parse(execution.args)) is None:
            raise TaskResultDoesNotExist(str(execution.id))
        adapter = self._adapter(execution.task_name)
        declared = adapter.declared if adapter else unvalidated(execution.task_name, backend=self.alias)
        task = task_as_enqueued(declared, call, execution)
        return result_of(self.outbox.store, execution, call, task, using=using)


def _forget(*, setting: str, **_: Any) -> None:
    """Forget the tasks that were found, because a test has changed the settings."""
    if setting in {"TASKS", "INSTALLED_APPS"}:
        for alias in outboxes:
            outboxes[alias].tasks.forget()


setting_changed.connect(_forget, dispatch_uid="outboxq.contrib.django.backend")
