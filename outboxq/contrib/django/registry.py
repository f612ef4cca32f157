"""The tasks of one outbox, including those of `django.tasks`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from ...context import TaskContext
from ...errors import UnknownTask
from ...model import Outcome
from ...task import Task, TaskRegistry

if TYPE_CHECKING:
    from .task_adapter import TaskAdapter

log = logging.getLogger("outboxq.worker")


class DjangoRegistry(TaskRegistry):
    """The tasks declared with `@outbox.task`, and those of `django.tasks`, found by their names: their import paths.

    A name comes from a row of the database. So only modules of the installed apps, and those that OPTIONS allows, are imported,
    and only a Django Task that was declared under this very name is used.
    """

    def __init__(self, alias: str) -> None:
        super().__init__()
        self._alias = alias
        self._declared: dict[str, None] = {}
        self._found: dict[str, TaskAdapter] = {}

    def declare(self, path: str) -> None:
        """Remember a task that a module declares while it is being imported. It can be found after the import."""
        self._declared[path] = None

    def forget(self) -> None:
        """Forget the tasks found so far, since the settings have changed."""
        self._found.clear()

    def ended(self, context: TaskContext, outcome: Outcome) -> None:
        """Pass the outcome of a handler on to the adapter, if the task is one of `django.tasks`."""
        if (adapter := self._found.get(context.task_name)) is not None:
            adapter.ended(context, outcome)

    def get(self, name: str) -> Task[..., Any]:
        """Return the task of this name. Raises UnknownTask."""
        if super().__contains__(name):
            return super().get(name)
        found = self._find(name)
        if found is None:
            raise UnknownTask(
                f"task {name!r} is not declared in this process, nor is it the import path of a @task in an installed app"
            )
        return found

    def __contains__(self, name: str) -> bool:
        return super().__contains__(name) or self._find(name) is not None

    def __iter__(self) -> Iterator[Task[..., Any]]:
        yield from super().__iter__()
        for name in list(self._declared):
            if not super().__contains__(name) and (found := self._find(name)) is not None:
                yield found

    def _find(self, name: str) -> TaskAdapter | None:
        if (found := self._found.get(name)) is None:
            try:
                from .task_adapter import adapter_for

                found = adapter_for(name, self._alias)
            except ImproperlyConfigured:  # django.tasks is not installed
                return None
            except Exception:
                log.exception(
                    "task %r cannot be imported; correct its module and restart the worker", name, extra={"task": name}
                )
                return None
            if found is not None:
                self._found[name] = found
        return found
