"""Log a repeated failure: immediately, then once a minute, and when it is over."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import OutboxqError
from ..model.wording import plural

SAY_EVERY = 60.0
"""Seconds between log lines about the same failure."""
_LONGEST = 300
_DATABASE = {"sqlalchemy", "psycopg", "psycopg_pool", "sqlite3"}


class FailureLog:
    """Logs each kind of error immediately and then once a minute, even if the error comes and goes. Any thread may use
    a FailureLog.
    """

    def __init__(
        self, log: logging.Logger, *, level: int = logging.ERROR, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._level, self._clock = log, level, clock
        self._lock = threading.Lock()
        self._logged_at: dict[str, float] = {}
        """Time at which each kind of error was last logged."""
        self._unsaid: Counter[str] = Counter()
        """For each kind, the number of unlogged failures before the current series."""
        self._unsaid_now: Counter[str] = Counter()
        """For each kind, the number of unlogged failures in the current series."""
        self._failures = 0
        self._since = math.nan
        self._is_known = False
        """True if the current failure was logged, in which case its end must be logged too."""

    def failed(self, what: str, error: BaseException, *, fields: Mapping[str, Any] | None = None) -> None:
        """Log `what` ("claiming failed; no task was started") and the error, unless this kind of error was logged
        within the last minute.

        `fields` are the fields of the log record if a single task caused the failure.
        """
        kind, now = _kind(error), self._clock()
        with self._lock:
            if not self._failures:
                self._since = now
            self._failures += 1
            if now - self._logged_at.get(kind, -math.inf) < SAY_EVERY:
                self._unsaid_now[kind] += 1
                return
            self._logged_at = {each: moment for each, moment in self._logged_at.items() if now - moment < SAY_EVERY}
            self._logged_at[kind] = now
            left_out = self._unsaid.pop(kind, 0) + self._unsaid_now.pop(kind, 0)
            self._is_known = True
        text = f"{what} ({left_out} more since this was last logged)" if left_out else what
        say(self._log, self._level, text, error, fields=fields)

    def worked(self, what: str) -> None:
        """Log `what` ("claiming works again") if the failure was logged. The call costs nothing if there was no
        failure.
        """
        if not self._failures:
            return
        with self._lock:
            failures, is_known, lasted = self._failures, self._is_known, self._clock() - self._since
            self._failures, self._is_known = 0, False
            if not is_known:  # otherwise, the line below counts them
                self._unsaid.update(self._unsaid_now)
            self._unsaid_now.clear()
        if failures and is_known:
            times = f"{failures} {plural(failures, 'failure')}"
            self._log.warning("%s after %s in %.1f s", what, times, lasted)


def say(
    log: logging.Logger, level: int, what: str, error: BaseException, *, fields: Mapping[str, Any] | None = None
) -> None:
    """Log `what` and the error on one line. `fields` are the fields of a log record about a task; the exception is
    added to them.

    The traceback, including the complete SQL statement, is logged at DEBUG level. The traceback of an error that comes
    neither from the database nor from outboxq is logged with the line, because such an error is a bug.
    """
    extra = None if fields is None else {**fields, "exception": exception_field(error)}
    library = type(error).__module__.partition(".")[0]
    is_expected = library in _DATABASE or isinstance(error, OutboxqError | OSError)
    log.log(level, "%s: %s", what, sentence(error), exc_info=None if is_expected else error, extra=extra)
    if is_expected:
        log.debug("the full error", exc_info=error, extra=extra)


def sentence(error: BaseException) -> str:
    """Return the error on one line. For a database error, this is the message from the server or the driver, without
    the statement.
    """
    cause, text = getattr(error, "orig", None) or error, _first_line(error)
    name, state = type(cause).__name__, getattr(cause, "sqlstate", None)
    return f"{name}{f' ({state})' if state else ''}{f': {text}' if text else ''}"


def exception_field(error: BaseException) -> dict[str, str]:
    """Return the `exception` field of a record about a task: the type and the first line of the message."""
    kind = type(getattr(error, "orig", None) or error)
    return {"type": f"{kind.__module__}.{kind.__qualname__}", "message": _first_line(error)}


def _first_line(error: BaseException) -> str:
    try:
        text = str(getattr(error, "orig", None) or error).strip().partition("\n")[0].strip()
    except Exception:  # noqa: BLE001 - a broken __str__ must not end the loop that logs the error
        return ""
    if len(text) > _LONGEST and not isinstance(error, OutboxqError):  # outboxq's own errors end with advice
        return text[:_LONGEST] + " ..."
    return text


def _kind(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    return f"{type(cause).__module__}.{type(cause).__qualname__} {getattr(cause, 'sqlstate', None) or ''}"
