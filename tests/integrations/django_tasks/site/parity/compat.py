"""`from django.tasks import …`, under the name that the package has here."""

from importlib import import_module

from outboxq.contrib.django.compat import PACKAGE

_tasks = import_module(PACKAGE)
task = _tasks.task
default_task_backend = _tasks.default_task_backend
DUMMY = f"{PACKAGE}.backends.dummy.DummyBackend"
IMMEDIATE = f"{PACKAGE}.backends.immediate.ImmediateBackend"
LOGGER = PACKAGE
