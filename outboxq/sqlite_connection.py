"""What a sqlite3 connection says of itself, whoever made it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from .dialects import real_path
from .dialects.sqlite_file import NO_TEXT

Rows = list[tuple[Any, ...]]

_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE)\b")
"""Only a statement that reads may be run twice."""


def _read_leniently(text: bytes) -> str:
    return text.decode(errors="replace")


def begins_by_itself(raw: sqlite3.Connection) -> bool:
    """Return whether the driver opens transactions (its default mode) rather than the user or SQLAlchemy's begin event."""
    legacy = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", None)
    return raw.isolation_level is not None and getattr(raw, "autocommit", legacy) == legacy


def file_of(raw: sqlite3.Connection) -> str | None:
    for _, name, file in fetch(raw, "PRAGMA database_list", {}):
        if name == "main":
            return real_path(file) if file else None
    return None


def fetch(raw: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> Rows:
    """Rows in the driver's own types, whatever the caller's connection makes of rows and texts."""
    cursor = raw.cursor()
    cursor.row_factory = None
    text_factory, raw.text_factory = raw.text_factory, str
    try:
        return cursor.execute(sql, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if _WRITES.search(sql) or not str(error).startswith(NO_TEXT):
            raise
        raw.text_factory = _read_leniently  # one row's text must not hide the others
        return cursor.execute(sql, parameters).fetchall()
    finally:
        raw.text_factory = text_factory
        cursor.close()
