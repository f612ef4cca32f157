"""SQLAlchemy engines as outboxq needs them: its own, and a caller's SQLite engine put right."""

from __future__ import annotations

import sqlite3
from typing import Any

import tenacity
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from .dialects import dialect_for
from .errors import ConfigurationError, UnsupportedDatabase

BUSY_TIMEOUT_SECONDS = 30
"""How long an SQLite writer waits for its turn. The queue for the one writer's lock is not fair, so the bound is long."""


def make_engine(url: str | URL) -> Engine:
    """An engine of our own. Connections are autocommit: every transaction says itself how it begins (`store`).

    Raises ConfigurationError for a text that is no URL, UnsupportedDatabase for a database outboxq does not run on.
    """
    parsed = parse_url(url)
    dialect_for(parsed.get_backend_name())
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "postgresql" and parsed.get_driver_name() != "psycopg":
        raise UnsupportedDatabase(
            f"outboxq uses psycopg 3, not {parsed.get_driver_name()}; write postgresql+psycopg://… for its own engine"
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigurationError("an in-memory SQLite database cannot be shared with a worker; give outboxq a file")
    engine = create_engine(parsed, isolation_level="AUTOCOMMIT", hide_parameters=True)
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _set_pragmas)
    return engine


def parse_url(url: str | URL) -> URL:
    """Raises ConfigurationError for what is no URL, or would be taken apart so that a piece of the password becomes the host."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "this is not a database URL; outboxq takes sqlite:///file.db or postgresql+psycopg://user@host/database"
        ) from None
    if "@" in (parsed.host or ""):
        raise ConfigurationError("the database URL has more than one @; inside a password it is written %40")
    return parsed


def configure_sqlite(engine: Engine) -> Engine:
    """Make transactions on this SQLite engine real, so that a task enqueued inside a savepoint is rolled back with it.

    By default the sqlite3 driver begins no transaction before a SAVEPOINT; releasing that savepoint then commits, and the
    outer rollback takes nothing back. With this, SQLAlchemy begins every transaction itself, as a writer from the start
    (BEGIN IMMEDIATE): a transaction that reads first and writes later fails at once in WAL mode when anybody else, such as a
    worker, has written meanwhile, and no busy timeout helps. A connection that only reads may say
    ``execution_options(sqlite_begin="DEFERRED")``. Sets WAL mode and a busy timeout of 30 seconds on every connection.

    Call it once, before the engine is used. Returns the engine. Raises ConfigurationError for another database.
    """
    if engine.dialect.name != "sqlite":
        raise ConfigurationError(f"configure_sqlite() is for SQLite engines; this one is for {engine.dialect.name}")
    event.listen(engine, "connect", _begin_by_hand)
    event.listen(engine, "connect", _set_pragmas)
    event.listen(engine, "begin", _begin)
    return engine


def _begin_by_hand(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None


def _set_pragmas(connection: sqlite3.Connection, _record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_SECONDS * 1000}")
    _switch_to_wal(connection)
    connection.execute("PRAGMA journal_size_limit = 67108864")  # a long reader must not leave a huge log behind


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """On a file that is not in WAL mode yet this takes a lock for which SQLite does not wait, whatever the busy timeout."""
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(dialect_for("sqlite").is_transient),
        wait=tenacity.wait_random(0.001, 0.05),
        stop=tenacity.stop_after_delay(BUSY_TIMEOUT_SECONDS),
        reraise=True,
    )
    attempts(connection.execute, "PRAGMA journal_mode = WAL")


def _begin(connection: Any) -> None:
    options = connection.get_execution_options()
    if options.get("isolation_level") != "AUTOCOMMIT":
        # SQLAlchemy gives the driver its own way of beginning back after every AUTOCOMMIT use of a pooled connection.
        connection.connection.dbapi_connection.isolation_level = None
        mode = "DEFERRED" if options.get("sqlite_begin") == "DEFERRED" else "IMMEDIATE"
        connection.exec_driver_sql(f"BEGIN {mode}")
