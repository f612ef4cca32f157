"""The differences between PostgreSQL and SQLite (claims, BEGIN, the clock, transient errors, wake-ups), and nothing
else.
"""

from __future__ import annotations

import re
import sqlite3
from functools import lru_cache

from ...errors import ConfigurationError, UnsupportedDatabase
from ..drivers import ensure_psycopg
from .base import Begin, Dialect, milliseconds_of_a_statement, signal_behind, statement_timeout
from .plans import Alike, Batch, Execute, Prepared, Row
from .sqlite_file import LOG_KEPT, Log, OpenFile, damaged, is_damaged, real_path

__all__ = [
    "LOG_KEPT",
    "Alike",
    "Batch",
    "Begin",
    "Dialect",
    "Execute",
    "Log",
    "OpenFile",
    "Prepared",
    "Row",
    "check_schema_name",
    "damaged",
    "dialect_for",
    "is_damaged",
    "milliseconds_of_a_statement",
    "real_path",
    "signal_behind",
    "statement_timeout",
]

SQLITE_MINIMUM = (3, 35)


def dialect_for(name: str, *, schema: str | None = None, paramstyle: str | None = None) -> Dialect:
    """Return the dialect of a database. Its statements are compiled once for each schema and parameter style
    (PostgreSQL has only one style).

    Raises UnsupportedDatabase for anything but PostgreSQL and SQLite 3.35 or later, and ConfigurationError for
    PostgreSQL if psycopg is missing.
    """
    return _dialect_for(name, schema, None if name == "postgresql" else paramstyle)


# Called by position: the cache distinguishes an argument that is left out from one that equals its default.
@lru_cache(maxsize=64)
def _dialect_for(name: str, schema: str | None, paramstyle: str | None) -> Dialect:
    check_schema_name(schema)
    if name == "postgresql":
        ensure_psycopg()
        from sqlalchemy.dialects.postgresql import psycopg

        from .postgresql import PostgresDialect

        return PostgresDialect(psycopg.dialect(), schema)  # type: ignore[no-untyped-call]
    if name == "sqlite":
        from sqlalchemy.dialects.sqlite import pysqlite

        from .sqlite import SqliteDialect

        if schema is not None:
            raise ConfigurationError("SQLite has no schemas; give outboxq its own file, or leave out schema=")
        if sqlite3.sqlite_version_info < SQLITE_MINIMUM:
            raise UnsupportedDatabase(
                f"outboxq needs SQLite 3.35 or later for RETURNING; this Python was built with {sqlite3.sqlite_version}"
            )
        return SqliteDialect(pysqlite.dialect(paramstyle=paramstyle or "named"), None)
    raise UnsupportedDatabase(f"outboxq runs on PostgreSQL and SQLite, not on {name!r}")


def check_schema_name(schema: object) -> None:
    """Raise ConfigurationError for a schema name that is not a string or would need quotes, because the name becomes
    part of SQL statements and of a channel name.
    """
    if schema is not None and not (isinstance(schema, str) and re.fullmatch(r"[a-z_][a-z0-9_]{0,47}", schema)):
        raise ConfigurationError(f"schema {schema!r} is not a plain lower-case name of at most 48 letters, digits or _")
