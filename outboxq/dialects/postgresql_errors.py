"""The errors of PostgreSQL by what helps against them: another try, patience with a lock, or room on the disk."""

from __future__ import annotations

import psycopg
from sqlalchemy.exc import DBAPIError

# Deadlock, serialization failure, lock not available, statement timeout, and the server going away.
_TRANSIENT_STATES = frozenset({"40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "25006", "53300"})
_LOCK_NOT_AVAILABLE = "55P03"
_NO_CONNECTION = "08"
_NO_ROOM = ("53", "58")
"""Insufficient resources (a full disk, no memory), and errors of the system below (I/O)."""

_PREPARED = frozenset({"26000", "42P05", "08P01"})
"""A prepared statement that is missing, is there already, or takes other parameters."""
_POOLED = (
    "something between this connection and the server lends server connections out, as PgBouncer does in transaction mode: let "
    "psycopg prepare no statements, by create_engine(url, connect_args={'prepare_threshold': None}) or "
    "psycopg.connect(url, prepare_threshold=None)"
)


def is_transient(error: BaseException) -> bool:
    """Return whether the same transaction may well succeed when run again from its start."""
    if not isinstance(error, DBAPIError):
        return False
    state = _state(error)
    if error.connection_invalidated or (state == "" and type(error.orig).__name__ == "OperationalError"):
        return True
    return state in _TRANSIENT_STATES or state.startswith(_NO_CONNECTION)


def is_locked_out(error: BaseException) -> bool:
    """Return whether a row stayed locked for longer than `lock_timeout`."""
    return _state(error) == _LOCK_NOT_AVAILABLE


def cannot_write_now(error: BaseException) -> bool:
    """Return whether the server has no room, no memory, or a disk that fails."""
    return _state(error).startswith(_NO_ROOM) and not is_transient(error)


def add_hint(error: BaseException) -> None:
    """Say in the error of a prepared statement which setting is to blame; any other is left as it is."""
    orig = getattr(error, "orig", None) or (error if isinstance(error, psycopg.Error) else error.__cause__)
    if getattr(orig, "sqlstate", None) not in _PREPARED or "prepared statement" not in str(orig):
        return
    if isinstance(error, DBAPIError):
        error.add_detail(_POOLED)
    else:
        error.add_note(_POOLED)


def _state(error: BaseException) -> str:
    """Return the server's SQLSTATE; "": it gave none."""
    return getattr(error.orig, "sqlstate", None) or "" if isinstance(error, DBAPIError) else ""
