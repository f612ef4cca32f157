"""`manage.py outboxq_worker`: run the tasks of the project."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.management.base import CommandError
from django.db import connections
from django.utils.autoreload import get_child_arguments
from django.utils.module_loading import autodiscover_modules

from .....cli.serving.worker import serve, worker
from .....outbox import Outbox
from ...django_outbox import outboxes
from . import ClickCommand


class Command(ClickCommand):
    help = "Run the tasks in the tasks.py of the installed apps until SIGTERM, SIGINT or SIGHUP."
    source = worker

    def run(self, alias: str, **given: Any) -> None:
        work(alias, from_command_line=self._called_from_command_line, **given)


def work(alias: str, *, from_command_line: bool, **given: Any) -> None:
    """Run the tasks of an outbox with the options of `outboxq worker`.

    Raises CommandError for options that do not work with `call_command`, and SystemExit at the end.
    """
    again = given["processes"] > 1 or given["reload"]
    if again and not from_command_line:
        raise CommandError("--processes and --reload run this command again, so start it from the command line")
    serve(partial(_find, alias), _command, **given)


def _find(alias: str) -> Outbox:
    autodiscover_modules("tasks")
    for connection in connections.all(initialized_only=True):  # opened by the checks; handler threads have their own
        if not connection.in_atomic_block:
            connection.close()
    return outboxes[alias]


def _command(lifeline: int) -> list[str]:
    return [*get_child_arguments(), "--lifeline", str(lifeline)]
