"""SQLAlchemy engines as outboxq needs them: its own, and a caller's SQLite engine put right."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import Pool, SingletonThreadPool, StaticPool

from ..errors import ConfigurationError
from ..model.forks import in_children
from .dialects import dialect_for

_OWN: Final = "outboxq_own"
"""An option of the engines made here."""


def make_engine(url: str | URL, *, poolclass: type[Pool] | None = None) -> Engine:
    """An engine of our own. Connections are autocommit: every transaction says itself how it begins (`store`).

    `poolclass` None: SQLAlchemy's choice. A new SQLite file is made for its owner alone.
    Raises ConfigurationError for a text that is no URL, UnsupportedDatabase for a database outboxq does not run on.
    """
    parsed = parse_url(url)
    dialect = dialect_for(parsed.get_backend_name())
    engine = create_engine(
        dialect.own_url(parsed),
        isolation_level="AUTOCOMMIT",
        execution_options={_OWN: True, **_but_isolation(dialect.connection_options)},
        hide_parameters=True,
        poolclass=poolclass,
    )
    dialect.keep_private(engine)
    dialect.set_up(engine)
    _forget_in_children(engine)
    return engine


def is_own(engine: Engine) -> bool:
    """Whether it was made here, so that its connections are as we take those of others."""
    return _OWN in engine.get_execution_options()


def taking(engine: Engine) -> Mapping[str, Any]:
    """Return the options with which a connection of an engine is taken for a transaction that begins with our own words."""
    if is_own(engine):
        return {}
    options = dialect_for(engine.dialect.name).connection_options
    return _but_isolation(options) if is_autocommit(engine) else options


def is_autocommit(engine: Engine) -> bool:
    """Return whether its connections are AUTOCOMMIT by themselves.

    They are not to be told so again: when SQLAlchemy up to 2.0.18 takes such a connection back, it takes that from it.
    """
    by_itself = getattr(engine.dialect, "_on_connect_isolation_level", None) == "AUTOCOMMIT"
    return by_itself and "isolation_level" not in engine.get_execution_options()


def reserve(engine: Engine) -> Engine:
    """The same database through a pool of its own: whoever takes every connection of `engine` takes none of these.

    Made as the engine's own are, with its arguments and by its creator. Raises ConfigurationError for an engine that has one
    connection for all.
    """
    if isinstance(engine.pool, StaticPool | SingletonThreadPool):
        raise ConfigurationError("an in-memory SQLite database cannot be shared with a worker; give outboxq a file")
    options = engine.get_execution_options() if is_own(engine) else None
    pool = engine.pool.recreate()
    reserved = Engine(pool, engine.dialect, engine.url, hide_parameters=True, execution_options=options)
    dialect_for(engine.dialect.name).keep_settings(reserved)
    _forget_in_children(reserved)
    return reserved


def detached(engine: Engine) -> Any:
    """A driver's connection of the caller's own, in no pool; made as the engine's are."""
    fairy = engine.pool.recreate().connect()
    connection = fairy.dbapi_connection
    fairy.detach()
    return connection


def _but_isolation(options: Mapping[str, Any]) -> dict[str, Any]:
    """That is the driver's own here, and costs nothing; as an option it would be set anew for each transaction."""
    return {name: value for name, value in options.items() if name != "isolation_level"}


def _forget_in_children(engine: Engine) -> None:
    """A forked child must not speak on its parent's connections; it makes its own."""
    alive = weakref.ref(engine)

    def forget() -> None:
        if (ours := alive()) is not None:
            # Kept: to finalize an SQLite connection takes a lock that a thread of the parent's may have held.
            _inherited.append(ours.pool)
            ours.dispose(close=False)

    in_children(forget)


_inherited: list[Pool] = []
"""Of the processes that forked us."""


def parse_url(url: str | URL) -> URL:
    """Raises ConfigurationError for what is no URL, or would be taken apart so that a piece of the password becomes the host."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "this is not a database URL; outboxq takes sqlite:///file.db or postgresql+psycopg://user@host/database"
        ) from None
    if parsed.drivername == "postgres":  # as many hosts still write it into DATABASE_URL
        parsed = parsed.set(drivername="postgresql")
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

    An engine for PostgreSQL is returned as it is, so that an application may use SQLite while it is developed and PostgreSQL
    later. Call it once, before the engine is used. Returns the engine. Raises UnsupportedDatabase for another database.
    """
    dialect_for(engine.dialect.name).begin_for_real(engine)
    return engine
