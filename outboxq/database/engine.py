"""Create outboxq's SQLAlchemy engines, and configure a caller's SQLite engine."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import Pool, SingletonThreadPool, StaticPool

from ..errors import ConfigurationError
from ..model.forks import in_children
from .dialects import dialect_for

_OWN: Final = "outboxq_own"
"""The execution option that marks engines created by `make_engine`."""


def make_engine(url: str | URL, *, poolclass: type[Pool] | None = None) -> Engine:
    """Create an engine of our own. Its connections are autocommit: `store` begins transactions with explicit
    statements.

    With `poolclass` None, SQLAlchemy chooses the pool. If the engine creates a SQLite file, only the file's owner can
    read and write it. Raises ConfigurationError for a string that is not a URL, and UnsupportedDatabase for a database
    that outboxq does not run on.
    """
    parsed = parse_url(url)
    dialect = dialect_for(parsed.get_backend_name())
    engine = create_engine(
        dialect.normalize_url(parsed),
        isolation_level="AUTOCOMMIT",
        execution_options={_OWN: True, **_but_isolation(dialect.connection_options)},
        hide_parameters=True,
        poolclass=poolclass,
    )
    dialect.keep_private(engine)
    dialect.set_up(engine)
    _ours.add(engine)
    return engine


def is_own(engine: Engine) -> bool:
    """Return True if `make_engine` created this engine, whose connections then do not need further options."""
    return _OWN in engine.get_execution_options()


def connection_options(engine: Engine) -> Mapping[str, Any]:
    """Return the execution options for the engine's connections, if we begin transactions on them ourselves."""
    if is_own(engine):
        return {}
    options = dialect_for(engine.dialect.name).connection_options
    return _but_isolation(options) if is_autocommit(engine) else options


def is_autocommit(engine: Engine) -> bool:
    """Return True if the engine's connections are AUTOCOMMIT by default.

    The isolation level of these connections must not be set again, because SQLAlchemy up to 2.0.18 removes AUTOCOMMIT
    when it resets the isolation level.
    """
    by_itself = getattr(engine.dialect, "_on_connect_isolation_level", None) == "AUTOCOMMIT"
    return by_itself and "isolation_level" not in engine.get_execution_options()


def reserve(engine: Engine) -> Engine:
    """Return an engine for the same database with its own pool, whose connections are free even while callers occupy
    every connection of `engine`.

    The new pool's connections are opened with the arguments and the creator of `engine`. Raises ConfigurationError for
    an engine that has one connection for all threads.
    """
    if isinstance(engine.pool, StaticPool | SingletonThreadPool):
        raise ConfigurationError("an in-memory SQLite database cannot be shared with a worker; give outboxq a file")
    options = engine.get_execution_options() if is_own(engine) else None
    pool = engine.pool.recreate()
    reserved = Engine(pool, engine.dialect, engine.url, hide_parameters=True, execution_options=options)
    dialect_for(engine.dialect.name).keep_settings(reserved)
    _ours.add(reserved)
    return reserved


def close(engine: Engine) -> None:
    """Close the connections of an engine that only we use. A connection in use is closed when its thread returns it.

    `Engine.dispose()` alone would leave that connection open until the garbage collector finds it.
    """
    # A second close would add the listener while another thread calls the listeners.
    if _invalidate not in engine.pool.dispatch.checkin:
        event.listen(engine.pool, "checkin", _invalidate)
    engine.dispose()


def _invalidate(_connection: Any, record: Any) -> None:
    record.invalidate()


def detached(engine: Engine) -> Any:
    """Return a driver connection that does not belong to a pool. It is opened like the engine's connections, and the
    caller closes it.
    """
    fairy = engine.pool.recreate().connect()
    connection = fairy.dbapi_connection
    fairy.detach()
    return connection


def _but_isolation(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without the isolation level, which the driver already has and which would otherwise be set
    again in each transaction.
    """
    return {name: value for name, value in options.items() if name != "isolation_level"}


def _forget_in_children() -> None:
    """Make a forked child process use its own connections instead of its parent's."""
    for engine in list(_ours):
        # The pool is kept, because closing a SQLite connection takes a lock that a thread of the parent may have held.
        _inherited.append(engine.pool)
        engine.dispose(close=False)


_ours: weakref.WeakSet[Engine] = weakref.WeakSet()
"""The engines that we created. A single function handles all of these engines, because a function that runs at each
fork cannot be unregistered, and each wait for results creates an engine.
"""
_inherited: list[Pool] = []
"""Pools of the processes that forked this one."""
in_children(_forget_in_children)


def parse_url(url: str | URL) -> URL:
    """Parse a database URL. Raises ConfigurationError for any other string, and for a URL in which part of the password
    would be read as the host.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "this is not a database URL; outboxq accepts sqlite:///file.db or postgresql+psycopg://user@host/database"
        ) from None
    if parsed.drivername == "postgres":  # many hosting providers still use it in DATABASE_URL
        parsed = parsed.set(drivername="postgresql")
    if "@" in (parsed.host or ""):
        raise ConfigurationError("the database URL has more than one @; write an @ in a password as %40")
    return parsed


def configure_sqlite(engine: Engine) -> Engine:
    """Make this SQLite engine begin every transaction explicitly, so that a task enqueued inside a savepoint is rolled
    back with the savepoint.

    By default, the sqlite3 driver does not begin a transaction before a SAVEPOINT. Releasing that savepoint then
    commits, and the outer rollback has no effect. With this call, SQLAlchemy begins every transaction itself, as a
    writer from the start (BEGIN IMMEDIATE). In WAL mode, a transaction that reads first and writes later fails
    immediately if another connection, such as a worker's, has written in the meantime, and a busy timeout does not
    help. A connection that only reads may set ``execution_options(sqlite_begin="DEFERRED")``. Every connection gets WAL
    mode and a busy timeout of 30 seconds.

    Call this function once, before the engine is used. Returns the engine. An engine for PostgreSQL is returned
    unchanged, so that an application may use SQLite in development and PostgreSQL in production. Raises
    UnsupportedDatabase for any other database.
    """
    dialect_for(engine.dialect.name).begin_for_real(engine)
    return engine
