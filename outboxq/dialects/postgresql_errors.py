"""The errors of PostgreSQL by what helps against them: another try, patience with a lock, or room on the disk."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

# Deadlock, serialization failure, lock not available, statement timeout, and the server going away.
_TRANSIENT_STATES = frozenset({"40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "25006", "53300"})
_LOCK_NOT_AVAILABLE = "55P03"
_NO_CONNECTION = "08"
_DATA = "22"
_NO_ROOM = ("53", "58")
"""Insufficient resources (a full disk, no memory), and errors of the system below (I/O)."""


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


def is_bad_value(error: BaseException) -> bool:
    """Return whether the server could not compute with a value: out of range, or not what it should be."""
    return _state(error).startswith(_DATA)


def _state(error: BaseException) -> str:
    """Return the server's SQLSTATE; "": it gave none."""
    return getattr(error.orig, "sqlstate", None) or "" if isinstance(error, DBAPIError) else ""
