"""The end of a worker: when it is due, why, and the exit code that says so."""

from __future__ import annotations

import queue
from contextlib import suppress
from dataclasses import dataclass, field

from ..errors import FileUnusable
from ..model.forks import EXIT_KILLED
from .timeouts import end_as_killed

_SIGNAL_CHECK = 0.1
"""Seconds between two wakes of the main thread: only then Python handles a signal that another thread got."""


@dataclass(eq=False, repr=False)
class Ending:
    """The end of one worker. Any thread may bring it about."""

    error: BaseException | None = None
    """The reason why it no longer works; None: it works, or was told to stop."""
    has_killed: bool = False
    """A handler did not end, so the process has to."""
    is_abandoned: bool = False
    """It was told to stop at once, and gave back what ran."""
    _requests: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)

    def request(self) -> None:
        """Make `wait` return. May be called in a signal handler."""
        self._requests.put(None)

    def wait(self) -> None:
        """Wait until the end is due. Signals are handled meanwhile."""
        while True:
            with suppress(queue.Empty):
                self._requests.get(timeout=_SIGNAL_CHECK)
                return

    def fail(self, error: BaseException | None) -> None:
        """Note why it no longer works. The first reason stays."""
        self.error = self.error or error

    @property
    def may_start_again(self) -> bool:
        """False if another process in this one's place would destroy the SQLite file by opening it."""
        return not isinstance(self.error, FileUnusable) or self.error.may_start_again

    @property
    def forced_code(self) -> int:
        """The exit code of a process that is ended whatever its threads do."""
        return EXIT_KILLED if self.has_killed else 1

    def code(self, *, clean: bool) -> int:
        """Return the exit code of a worker that has stopped. `clean`: every task that ran has ended."""
        if self.has_killed and not self.is_abandoned:
            return end_as_killed()
        return 0 if clean and self.error is None and not self.is_abandoned else 1
