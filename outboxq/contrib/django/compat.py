"""Names from `django.tasks` in Django 6, or from the backport `django_tasks`.

The choice between the two depends on the installed packages, so a type checker sees Any.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.core.exceptions import ImproperlyConfigured

_HOMES = [name for name in ("django.tasks", "django_tasks") if find_spec(name) is not None]
if not _HOMES:
    raise ImproperlyConfigured("django.tasks needs Django 6.0; install the backport: pip install django-tasks")
PACKAGE = _HOMES[0]
"""The name of the package, which is also the name of its logger."""

_base, _exceptions = import_module(f"{PACKAGE}.base"), import_module(f"{PACKAGE}.exceptions")
BaseTaskBackend: Any = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
InvalidTaskBackend: Any = getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist

task_backends: Any = import_module(PACKAGE).task_backends
signals: Any = import_module(f"{PACKAGE}.signals")
_utilities = "django.utils.json" if PACKAGE == "django.tasks" else "django_tasks.utils"
normalize_json: Any = import_module(_utilities).normalize_json
"""A function that converts mappings, sequences, bytes and scalars to JSON types. Raises TypeError for anything else."""
