"""Classify PostgreSQL's errors by the remedy: a retry, a wait for a lock, more disk space, or a privilege."""

from __future__ import annotations

from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from .base import Dialect

# Serialization failure; deadlock; a server that shuts down or drops an idle session; a read-only transaction; a
# transaction that was idle or open for too long.
_OUTSIDE = frozenset({"40001", "40P01", "57P01", "57P02", "57P03", "57P04", "57P05", "25006", "25P03", "25P04"})
_TRANSIENT_STATES = _OUTSIDE | {"55P03", "57014", "53300"}
_LOCK_NOT_AVAILABLE = "55P03"
_QUERY_CANCELED = "57014"
"""A statement timeout, or pg_cancel_backend()."""
_GIVES_UP_WAITING = frozenset({_LOCK_NOT_AVAILABLE, _QUERY_CANCELED, "40P01"})
_READ_ONLY, _NOT_SUPPORTED = "25006", "0A000"
_INSUFFICIENT_PRIVILEGE = "42501"
_UNDEFINED = frozenset({"42P01", "42703", "42883"})
"""A table, a column or a function that does not exist."""
_NO_CONNECTION = "08"
_STARTING = (
    "the database system is starting up",
    "the database system is not yet accepting connections",
    "Connection refused",
)
_OF_VALUES = ("22", "23")
"""Errors due to a statement's values: a value that does not fit its type, or a row that violates a constraint."""
_DATA = "22"
_TOO_MUCH_ASKED = "53400"
"""A configured limit, such as temp_file_limit, which the statement exceeded."""
_NO_ROOM = ("53", "58")
"""Insufficient resources (a full disk, no memory), and operating-system errors (I/O)."""

_PREPARED = frozenset({"26000", "42P05", "08P01"})
"""A prepared statement that is missing, already exists, or takes different parameters."""
_POOLED = (
    "a pooler between this connection and the server, such as PgBouncer in transaction mode, shares server connections: "
    "turn off prepared statements, with create_engine(url, connect_args={'prepare_threshold': None}) or "
    "psycopg.connect(url, prepare_threshold=None)"
)


class PostgresErrors(Dialect):
    """The part of PostgreSQL's dialect that classifies errors."""

    def is_transient(self, error: BaseException) -> bool:
        """Return True if the same transaction may succeed when it runs again from its start."""
        if not isinstance(error, DBAPIError):
            return False
        return _is_lost(error) or _state(error) in _TRANSIENT_STATES or _is_of_standby(error)

    def is_locked_out(self, error: BaseException) -> bool:
        """Return True if a row stayed locked for longer than `lock_timeout`."""
        return isinstance(error, DBAPIError) and _state(error) == _LOCK_NOT_AVAILABLE

    def is_cut_off(self, error: BaseException) -> bool:
        """Return True if a statement reached its timeout or was cancelled."""
        return isinstance(error, DBAPIError) and _state(error) == _QUERY_CANCELED

    def is_starting(self, error: BaseException) -> bool:
        """Return True if an attempt to connect failed because the server is starting, or is not listening yet.

        The error from a failed connection has no SQLSTATE, so its text is checked. If the server's messages are in
        another language, the server does not count as starting.
        """
        return isinstance(error, DBAPIError) and any(words in str(error.orig) for words in _STARTING)

    def gives_up_waiting(self, error: BaseException) -> bool:
        """Return True if the statement that locks whole tables reached one of its timeouts or was cancelled to end a
        deadlock.
        """
        return isinstance(error, DBAPIError) and _state(error) in _GIVES_UP_WAITING

    def is_denied(self, error: BaseException) -> bool:
        """Return True if the role lacks a privilege, or if a row-level policy refuses the statement."""
        return _state(error) == _INSUFFICIENT_PRIVILEGE

    def is_undefined(self, error: BaseException) -> bool:
        """Return True if the server does not recognize a table, a column or a function named in a statement."""
        return _state(error) in _UNDEFINED

    def is_bad_value(self, error: BaseException) -> bool:
        """Return True if the server could not compute with a value, because the value is out of range or has the wrong
        form.
        """
        return _state(error).startswith(_DATA)

    def cannot_write_now(self, error: BaseException) -> bool:
        """Return True if the server is out of disk space or memory, or if its disk is failing."""
        return isinstance(error, DBAPIError) and _state(error).startswith(_NO_ROOM) and not self.is_transient(error)

    def comes_from_outside(self, error: BaseException) -> bool:
        """Return True if a transaction ended for an external reason; `error` is SQLAlchemy's or psycopg's.

        Lock timeouts and statement timeouts do not count as external, because the transaction itself set these
        timeouts.
        """
        state = _state(error)
        no_room = state.startswith(_NO_ROOM) and state != _TOO_MUCH_ASKED
        return _is_lost(error) or state in _OUTSIDE or no_room or _is_of_standby(error)

    def is_of_standby(self, error: BaseException, raw: Any) -> bool:
        """Return True if the error says that the server behind a driver's connection is a standby, which does not
        accept writes.
        """
        if _is_of_standby(error):
            return True
        return _state(error) == _READ_ONLY and raw.info.parameter_status("in_hot_standby") == "on"

    def hide_rows(self, error: BaseException) -> None:
        """Reduce an error's text to its first line if a value or a row is at fault, because DETAIL and CONTEXT show
        them in full.

        The error may come from the driver, or from another library that wraps the driver's error.
        """
        around = (error, error.__cause__, getattr(error, "orig", None))
        if any(isinstance(one, psycopg.Error) and (one.sqlstate or "").startswith(_OF_VALUES) for one in around):
            for one in around:
                if one is not None and one.args:
                    one.args = (str(one.args[0]).partition("\n")[0], *one.args[1:])


def _is_of_standby(error: BaseException) -> bool:
    """Return True if a standby refused to begin a transaction that writes.

    The error's text depends on the server's language, and its SQLSTATE covers every unsupported feature. So the
    statement is checked too: the only feature of outboxq's BEGIN that a server could lack is writing.
    """
    begins = isinstance(error, DBAPIError) and (error.statement or "").startswith("BEGIN")
    return _state(error) == _NOT_SUPPORTED and (begins or "during recovery" in str(error))


def _is_lost(error: BaseException) -> bool:
    """Return True if the connection was lost or could not be established."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if state := _state(error):
        return state.startswith(_NO_CONNECTION)
    # psycopg's own OperationalError or a subclass, such as the error for a timeout while waiting for a connection
    return any(
        kind.__name__ == "OperationalError" and kind.__module__.partition(".")[0] == "psycopg"
        for kind in type(_driver_error(error)).__mro__
    )


def _driver_error(error: BaseException) -> BaseException | None:
    """Return psycopg's own error; None if the error is not PostgreSQL's."""
    if isinstance(error, DBAPIError):
        return error.orig
    return error if isinstance(error, psycopg.Error) else None


def add_hint(error: BaseException) -> None:
    """Name the setting that caused a prepared-statement error. Other errors are left unchanged."""
    orig = getattr(error, "orig", None) or (error if isinstance(error, psycopg.Error) else error.__cause__)
    if getattr(orig, "sqlstate", None) not in _PREPARED or "prepared statement" not in str(orig):
        return
    if isinstance(error, DBAPIError):
        error.add_detail(_POOLED)
    else:
        error.add_note(_POOLED)


def _state(error: BaseException) -> str:
    """Return the server's SQLSTATE; "" if it sent none."""
    return getattr(_driver_error(error), "sqlstate", None) or ""
