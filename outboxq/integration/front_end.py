"""The words that call outboxq's commands in the program at hand: `outboxq`, `flask outboxq`, `manage.py outboxq`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontEnd:
    """The words before a command, and those behind it, so that what a sentence or a log names can be typed as it stands."""

    program: str = "outboxq"
    worker: str | None = None
    """The command that starts a worker; None: `program` followed by `worker`, and the application."""
    app: str | None = None
    """The application (``module:outbox``) that a command has to be given; None: the program knows its database."""
    options: str = ""
    """The options that say the database, as a shell reads it: ``--url sqlite:///shop.db``. `program`'s own worker takes none of it."""

    def typed(self, command: Sequence[str]) -> str:
        """Return the line for a command given by its words, without the program's: ``("queue", "resume", "mail")``."""
        words = shlex.join(command)
        if command[0] == "worker":
            rest = shlex.join(command[1:])
            return f"{self._worker()} {rest}".rstrip()
        return f"{self.program} {words}" + (f" -A {shlex.quote(self.app)}" if self.app else "") + self._options()

    def _options(self) -> str:
        return f" {self.options}" if self.options else ""

    def _worker(self) -> str:
        if self.worker is not None:
            return self.worker + self._options()
        return f"{self.program} worker {shlex.quote(self.app) if self.app else 'APP'}"
