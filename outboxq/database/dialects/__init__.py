"""The differences between PostgreSQL and SQLite (claims, BEGIN, the clock, transient errors, wake-ups), and nothing
else.
"""

from __future__ import annotations

import re
import sqlite3
from functools import lru_cache

from ...errors import ConfigurationError, UnsupportedDatabase
from ..drivers import ensure_psycopg

# `as` makes a name public to type checkers.
from .base import Begin as Begin
from .base import Dialect as Dialect
from .base import milliseconds_of_a_statement as milliseconds_of_a_statement
from .base import signal_behind as signal_behind
from .base import statement_timeout as statement_timeout
from .plans import Alike as Alike
from .plans import Batch as Batch
from .plans import Execute as Execute
from .plans import Prepared as Prepared
from .plans import Row as Row
from .sqlite_file import LOG_KEPT as LOG_KEPT
from .sqlite_file import Log as Log
from .sqlite_file import OpenFile as OpenFile
from .sqlite_file import damaged as damaged
from .sqlite_file import is_damaged as is_damaged
from .sqlite_file import real_path as real_path

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
