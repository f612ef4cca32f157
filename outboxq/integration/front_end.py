"""The form in which outboxq's commands are typed in a program: `outboxq`, `flask outboxq`, `manage.py outboxq`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontEnd:
    """The words before and after a command, so that a command in a message or a log can be typed as it stands."""

    program: str = "outboxq"
    worker: str | None = None
    """The command that starts a worker; None: `program`, then `worker` and the application."""
    app: str | None = None
    """The application (``module:outbox``) that a command needs; None: the program knows its database."""
    options: str = ""
    """The options that name the database, quoted for a shell: ``--url sqlite:///shop.db``. `program`'s own worker takes none of them."""

    def typed(self, command: Sequence[str]) -> str:
        """Return the line for a command given by its words, without the program's: ``("queue", "resume", "mail")``."""
        options = [self.options] if self.options else []
        app = [shlex.quote(self.app)] if self.app else []
        if command[0] != "worker":
            words = [self.program, shlex.join(command), *(["-A", *app] if app else []), *options]
        elif self.worker is not None:
            words = [self.worker, *options, *map(shlex.quote, command[1:])]
        else:
            words = [self.program, "worker", *(app or ["APP"]), *map(shlex.quote, command[1:])]
        return " ".join(words)
