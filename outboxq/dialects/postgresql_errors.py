"""The errors of PostgreSQL by what helps against them: another try, patience with a lock, room on the disk, or a right."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

# Deadlock, serialization failure, lock not available, statement timeout, and the server going away.
_TRANSIENT_STATES = frozenset({"40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "25006", "53300"})
_LOCK_NOT_AVAILABLE = "55P03"
_INSUFFICIENT_PRIVILEGE = "42501"
_NO_CONNECTION = "08"
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


def is_denied(error: BaseException) -> bool:
    """Return whether the role lacks a right, or a policy of its rows forbids what it does."""
    return _state(error) == _INSUFFICIENT_PRIVILEGE


def cannot_write_now(error: BaseException) -> bool:
    """Return whether the server has no room, no memory, or a disk that fails."""
    return _state(error).startswith(_NO_ROOM) and not is_transient(error)


def _state(error: BaseException) -> str:
    """Return the server's SQLSTATE; "": it gave none."""
    return getattr(error.orig, "sqlstate", None) or "" if isinstance(error, DBAPIError) else ""
