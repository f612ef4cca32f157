"""`manage.py outboxq_worker`: runs the tasks of the project."""

from __future__ import annotations

from typing import Any

from .....cli.worker import worker
from ..clicked import ClickedCommand
from ..working import work


class Command(ClickedCommand):
    help = "Run the tasks in the tasks.py of the installed apps until SIGTERM, SIGINT or SIGHUP."
    source = worker

    def run(self, alias: str, **given: Any) -> None:
        work(alias, from_command_line=self._called_from_command_line, **given)
