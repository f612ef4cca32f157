"""The names of `django.tasks` in Django 6, or of the backport `django_tasks`.

Only the installed packages decide between the two, so a type checker sees Any.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

_HOMES = [name for name in ("django.tasks", "django_tasks") if find_spec(name) is not None]
if not _HOMES:
    raise ImproperlyConfigured(
        "this Django has no django.tasks, which came with 6.0; install the backport: pip install django-tasks"
    )
PACKAGE = _HOMES[0]
"""Name of the package, and of its logger."""

if TYPE_CHECKING:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
else:
    _base, _exceptions = import_module(f"{PACKAGE}.base"), import_module(f"{PACKAGE}.exceptions")
    BaseTaskBackend = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
    Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
    TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
    InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
    InvalidTaskBackend = getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
    TaskResultDoesNotExist = _exceptions.TaskResultDoesNotExist

_IN_DJANGO = PACKAGE == "django.tasks"
task_backends: Any = import_module(PACKAGE).task_backends
signals: Any = import_module(f"{PACKAGE}.signals")
normalize_json: Any = import_module("django.utils.json" if _IN_DJANGO else "django_tasks.utils").normalize_json
"""Function that turns mappings, sequences, bytes and scalars into JSON's types. Raises TypeError for anything else."""

__all__ = [
    "PACKAGE",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "signals",
    "task_backends",
]
