"""What a log says of a failure that comes again and again: a line at once, then one a minute, and one when it is over."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

SAY_EVERY = 60.0
"""Seconds between two lines about the same failure."""
_LONGEST = 300
_MOST_KINDS = 20


class FailureLog:
    """Says that something fails which is done again and again, without saying it each time.

    Each kind of error is said at once, however long the others have lasted. The traceback, with the whole SQL in it, is for the
    level DEBUG; an error that is not the database's keeps it, for then the mistake is in the code. May be used by any thread.
    """

    def __init__(
        self, log: logging.Logger, *, level: int = logging.ERROR, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._level, self._clock = log, level, clock
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}
        """When each kind of error was said last."""
        self._unsaid: dict[str, int] = {}
        self._failures = 0
        self._since = math.nan

    def failed(self, what: str, error: BaseException) -> None:
        """Say that `what` failed ("claiming failed; no task was started") and why, unless that was said within a minute."""
        kind, now = _kind(error), self._clock()
        with self._lock:
            if not self._failures:
                self._since = now
            self._failures += 1
            if now - self._said.get(kind, -math.inf) < SAY_EVERY or len(self._said) > _MOST_KINDS:
                self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
                self._log.debug("%s", what, exc_info=error)
                return
            left_out = self._unsaid.pop(kind, 0)
            self._said[kind] = now
        more = f" ({left_out} more since this was last said)" if left_out else ""
        is_ours = not is_of_database(error)
        self._log.log(self._level, "%s: %s%s", what, sentence(error), more, exc_info=error if is_ours else None)
        if not is_ours:
            self._log.debug("%s", what, exc_info=error)

    def worked(self, what: str) -> None:
        """Say that `what` works again ("claiming works again"), if it had failed. Costs nothing where it had not."""
        if not self._failures:
            return
        with self._lock:
            failures, self._failures = self._failures, 0
            self._said.clear()
            self._unsaid.clear()
            lasted = self._clock() - self._since
        times = "once" if failures == 1 else f"{failures} times"
        self._log.warning("%s; it had failed %s in %.1f s", what, times, lasted)


def sentence(error: BaseException) -> str:
    """Return the error in one line: of the database's what the server or the driver said, without the statement."""
    cause = getattr(error, "orig", None) or error
    try:
        text = str(cause).strip().partition("\n")[0].strip()
    except Exception:  # noqa: BLE001 - a broken __str__ must not end the loop that wants to tell of it
        text = ""
    name, state = type(cause).__name__, getattr(cause, "sqlstate", None)
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
    return f"{name}{f' ({state})' if state else ''}{f': {text}' if text else ''}"


def is_of_database(error: BaseException) -> bool:
    """Return whether the error came from the database, its driver, or the pool of connections to it."""
    module = type(error).__module__.partition(".")[0]
    return module in {"sqlalchemy", "psycopg", "psycopg_pool", "sqlite3"} or isinstance(error, OSError)


def _kind(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    return f"{type(cause).__module__}.{type(cause).__qualname__} {getattr(cause, 'sqlstate', None) or ''}"
