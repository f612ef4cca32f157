"""Errors as a status and a sentence, which tell the viewer no more than is good."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from werkzeug.exceptions import HTTPException

from ..errors import (
    ConfigurationError,
    FileUnusable,
    NotPermitted,
    OutboxqError,
    QueueNotFound,
    ScheduleNotFound,
    TablesLocked,
    TaskNotFound,
)
from ..store.failure_log import FailureLog
from .access import TooManyTries
from .freshness import TooSlow

log = logging.getLogger("outboxq.web")

_TITLES = {
    400: "That request cannot be understood",
    403: "Not permitted",
    404: "Not found",
    405: "Not possible that way",
    413: "Too much at once",
    415: "Not understood",
    429: "Too many tries",
    500: "The dashboard failed",
    503: "The database does not answer",
}
_SENTENCES = {
    404: "There is no such page.",
    405: "This address is used in another way: an action is sent by a form, a page is asked for.",
    413: "The form is larger than 64 kB, or has too many fields.",
    415: "A form is sent as application/x-www-form-urlencoded.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """An error as a page shows it."""

    status: int
    title: str
    sentence: str
    headers: dict[str, str] = field(default_factory=dict)


class Problems:
    """Turns exceptions into what a page shows, and logs what an operator has to know."""

    def __init__(self) -> None:
        self._outage = FailureLog(log)
        self._refusals = FailureLog(log)
        self._locks = FailureLog(log)

    def worked(self) -> None:
        """Note that a page could be made: an outage is over."""
        self._outage.worked("the dashboard reaches the database again")
        self._locks.worked("the dashboard waits for no lock any more")

    def problem(self, error: Exception, path: str) -> Problem:
        """Return what a page shows of the error. One that is not expected is logged with its traceback."""
        match error:
            case HTTPException():
                return _of_http(error)
            case SQLAlchemyError() | ConfigurationError() | FileUnusable() | TooSlow():
                return self._of_database(error, path)
            case TablesLocked():
                self._locks.failed("the dashboard waits for a lock", error)
                sentence = f"The database answers, but {error}."
                return _problem(503, sentence, {"Retry-After": "5"}, title="The tables are locked")
            case TooManyTries(seconds=seconds):
                wait = str(max(1, math.ceil(seconds)))
                sentence = f"Too many wrong tokens were given. Try again in {wait} s."
                return _problem(429, sentence, {"Retry-After": wait})
            case TaskNotFound() | ScheduleNotFound() | QueueNotFound():
                return _problem(404, str(error))
            case OutboxqError():
                return _problem(400, str(error))
        return self._unexpected(error, path)

    def _of_database(self, error: Exception, path: str) -> Problem:
        match error:
            case OperationalError() | InterfaceError() | PoolTimeout() | TooSlow():
                return self._away(error)
            case DBAPIError(connection_invalidated=True):
                return self._away(error)
            case NotPermitted():
                self._refusals.failed("the database refuses what the dashboard asks", error)
                return _problem(403, f"{error}.", title="The database does not permit that")
            case DBAPIError() if _takes_no_writes(error):
                self._refusals.failed("the database refuses what the dashboard asks", error)
                sentence = (
                    "It only follows another server. Start the dashboard with the address of the one that takes writes."
                )
                return _problem(503, sentence, title="The database takes no writes")
            case FileUnusable() | ConfigurationError():
                self._outage.failed("the dashboard cannot read the database", error)
                return _problem(503, str(error), {"Retry-After": "5"}, title="The database cannot be used")
        return self._unexpected(error, path)

    def _unexpected(self, error: Exception, path: str) -> Problem:
        log.error("the dashboard failed at %r", path, exc_info=error)
        return _problem(500, "The log of the dashboard says why.")

    def _away(self, error: Exception) -> Problem:
        self._outage.failed("the dashboard does not reach the database", error)
        return _problem(
            503, "The log of the dashboard says why. Load the page again in a moment.", {"Retry-After": "5"}
        )


def _problem(status: int, sentence: str, headers: dict[str, str] | None = None, *, title: str = "") -> Problem:
    title = title or _TITLES.get(status, _TITLES[400])
    return Problem(status=status, title=title, sentence=sentence, headers=headers or {})


def _takes_no_writes(error: DBAPIError) -> bool:
    """Return whether a standby has refused this. It says so by "not supported" where a transaction begins that writes."""
    state = getattr(error.orig, "sqlstate", None)
    return state == "25006" or (state == "0A000" and (error.statement or "").startswith("BEGIN"))


def _of_http(error: HTTPException) -> Problem:
    status = error.code or 500
    own = type(error).description
    sentence = error.description if error.description and error.description != own else _SENTENCES.get(status, "")
    headers = {name: value for name, value in error.get_headers() if name in {"Allow", "Retry-After"}}
    return _problem(status, sentence or own or "", headers)
