"""Read the state of a sqlite3 connection, also of one that outboxq did not make."""

from __future__ import annotations

import sqlite3

from .dialects import real_path
from .dialects.sqlite_engine import fetch


def begins_by_itself(raw: sqlite3.Connection) -> bool:
    """Return True if the driver opens transactions (its default mode), and not the user or SQLAlchemy's begin event."""
    legacy = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", None)
    return raw.isolation_level is not None and getattr(raw, "autocommit", legacy) == legacy


def file_of(raw: sqlite3.Connection) -> str | None:
    for _, name, file in fetch(raw, "PRAGMA database_list", {}):
        if name == "main":
            return real_path(file) if file else None
    return None
