"""Creating and upgrading our tables, with the Alembic migrations that travel inside the package.

The history is our own (`outboxq_alembic_version`), so it never meets the host application's.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.engine import URL

from .database.column_types import Xid8
from .database.dialects import Begin, Dialect, check_schema_name, dialect_for
from .database.dialects.partitioning import PARTITION_NAME, Partitioning
from .database.drivers import is_psycopg
from .database.engine import is_autocommit, make_engine, parse_url
from .database.revisions import UPGRADE, ensure_fit, ensure_ours, is_newer, left_alone
from .database.statements import reading
from .database.tables import VERSION_TABLE, metadata, version_table
from .database.target import SqlalchemyTarget
from .errors import InvalidArgument, InvalidTarget, SchemaOutOfDate, UnsupportedDatabase
from .model.periods import Every, periods

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = [
    "LOCK",
    "VERSION_TABLE",
    "admit_from",
    "current",
    "downgrade",
    "not_ours",
    "ours",
    "partition",
    "sql",
    "upgrade",
]

log = logging.getLogger("outboxq.migrations")

LOCK = "SELECT pg_advisory_xact_lock(hashtext('outboxq:migrate'))"
"""One migration at a time; released with the transaction. On SQLite, BEGIN IMMEDIATE is that lock."""

_ONE_AT_A_TIME = threading.RLock()
"""Alembic keeps what it is doing in module globals: two threads would run in each other's connections."""

_NAMES = frozenset(metadata.tables) | {VERSION_TABLE}

ischema_names.setdefault("xid8", Xid8)  # else every comparison warns that SQLAlchemy does not know the type


def upgrade(database: str | URL | Engine | Connection, revision: str = "head", *, schema: str | None = None) -> None:
    """Bring the tables to `revision`. Safe to run from many processes at once, and to run again.

    On a URL or an Engine it runs in a transaction of its own; on a Connection in that connection's transaction, which stays
    open: inside a host's own migration, pass ``op.get_bind()``. `schema` (PostgreSQL) is created if it is missing.
    The tables of a later release that admits this one are left as they are, which the log says.
    Raises SchemaOutOfDate where they do not admit it, and InvalidTarget for a Connection whose transaction could not take the
    tables back.
    """
    from alembic import command

    with _migrating(database, schema) as (connection, (found, oldest_code)):
        if is_newer(found):
            ensure_fit(found, oldest_code, partial(_place, connection, schema))
            log.info(left_alone(found))
        else:
            command.upgrade(_config(connection=connection, schema=schema), revision)


def downgrade(database: str | URL | Engine | Connection, revision: str, *, schema: str | None = None) -> None:
    """Take the tables back to `revision`; ``base`` removes them with everything in them, trigger and function included.

    Raises SchemaOutOfDate for the tables of a later release.
    """
    from alembic import command

    with _migrating(database, schema) as (connection, (found, _)):
        ensure_ours(found, partial(_place, connection, schema))
        command.downgrade(_config(connection=connection, schema=schema), revision)


def admit_from(oldest_code: str) -> None:
    """Have the schema admit code from this revision on. For our own migration scripts: upgrade() and downgrade() both say it.

    A revision that only adds what older code may overlook says again what the one before it said. One that takes away, or
    needs what older code does not write, says the first revision whose code can do without.
    """
    from alembic import op

    op.execute(version_table.update().values(oldest_code=op.inline_literal(oldest_code)))


def partition(
    database: str | URL | Engine | Connection,
    *,
    every: Every | str = Every.MONTH,
    ahead: int = 3,
    schema: str | None = None,
    dry_run: bool = False,
) -> list[str]:
    """Divide the history (PostgreSQL) by time, so that `Store.prune` drops old partitions whole; returns the tables made.

    `task_executions` and `execution_events` become tables partitioned by the task's id, which is a time. Their rows stay where
    they are, in the partition `first`, which ends with the present month, week or day (UTC); `ahead` more are made, and
    `default` for what belongs to none. Nothing else changes: neither the revision nor a statement. On a partitioned database
    it only makes what is missing of the partitions ahead. `dry_run` only says what would be made.

    One transaction, in which nobody else uses the two tables, and in which PostgreSQL reads each of them once (a second for a
    few million rows). Run it as their owner. It waits for transactions that are open no longer than ten seconds.
    Raises UnsupportedDatabase on SQLite; InvalidArgument for an `every` that differs from that of the partitions there are.
    """
    check_schema_name(schema)
    if every not in [one.value for one in Every]:
        raise InvalidArgument(f"every must be one of {', '.join(Every)}, not {every!r}")
    if type(ahead) is not int or ahead < 1:
        raise InvalidArgument(f"ahead must be a whole number of at least 1, not {ahead!r}")
    with _connected(database, Begin.MIGRATION) as connection:
        dialect = dialect_for(connection.dialect.name, schema=schema)
        if not dialect.has_partitions:
            raise UnsupportedDatabase("only PostgreSQL divides tables into partitions; SQLite prunes row by row")
        execute = _execute(connection)
        connection.exec_driver_sql(LOCK)
        found, oldest_code = _found(connection, dialect)
        if found is None:
            raise SchemaOutOfDate(f"{_place(connection, schema)} has no outboxq tables to partition", remedy=UPGRADE)
        ensure_fit(found, oldest_code, partial(_place, connection, schema))
        now = dialect.compiled[reading.now].run(execute, {})[0]["now"]
        return Partitioning(dialect).bring_up_to_date(execute, periods(Every(every), now, ahead), now, dry_run=dry_run)


def current(database: str | URL | Engine | Connection, *, schema: str | None = None) -> str | None:
    """The revision the database has; None without our tables."""
    with _connected(database, Begin.READ) as connection:
        return _found(connection, dialect_for(connection.dialect.name, schema=schema))[0]


def sql(url: str | URL, revision: str = "head", *, schema: str | None = None) -> str:
    """The migrations as one SQL script, for people who apply it themselves. Connects to nothing."""
    from alembic import command

    output, parsed = StringIO(), parse_url(url)
    dialect_for(parsed.get_backend_name(), schema=schema)
    text = parsed.render_as_string(hide_password=False)
    command.upgrade(_config(schema=schema, url=text, output=output), revision, sql=True)
    return output.getvalue()


def ours(name: str | None, type_: str, _parents: object = None) -> bool:
    """Alembic's `include_name` for our own comparison: the tables of `tables.py` and nothing else."""
    return type_ != "table" or name in metadata.tables


def not_ours(name: str | None, type_: str, _parents: object = None) -> bool:
    """Alembic's `include_name` for a host's env.py, so that its autogenerate does not want to drop our tables::

    context.configure(..., include_name=outboxq.migrations.not_ours)
    """
    return type_ != "table" or not (name in _NAMES or (name and PARTITION_NAME.fullmatch(name)))


def script_location() -> Path:
    """Inside an installed wheel beside this module; in a checkout at its top level."""
    packaged = Path(__file__).parent / "_migrations" / "alembic"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "alembic"


@contextmanager
def _migrating(
    database: str | URL | Engine | Connection, schema: str | None
) -> Iterator[tuple[Connection, tuple[str | None, str | None]]]:
    """Yield the connection on which nobody else migrates, and what `_found` says there."""
    check_schema_name(schema)
    with _ONE_AT_A_TIME, _connected(database, Begin.MIGRATION) as connection:
        dialect = dialect_for(connection.dialect.name, schema=schema)
        dialect.ensure_readable(connection.connection.driver_connection)
        if not dialect.one_writer:
            connection.exec_driver_sql(LOCK)  # another process may be about to bring a newer schema
        with _outer_proxies():
            yield connection, _found(connection, dialect)


def _found(connection: Connection, dialect: Dialect) -> tuple[str | None, str | None]:
    """Return the revision of the tables and the oldest code that they admit; None twice: they are not there."""
    execute = _execute(connection)
    if not dialect.compiled[reading.has_version_table].run(execute, {}):
        return None, None
    found = dialect.compiled[reading.version].run(execute, {})
    return (found[0]["version_num"], found[0]["oldest_code"]) if found else (None, None)


def _place(connection: Connection, schema: str | None) -> str:
    """Return how a sentence calls the database of this connection."""
    target = SqlalchemyTarget(connection, schema)
    return target.dialect.place(connection.engine.url, target.database)


def _config(*, output: StringIO | None = None, **attributes: Any) -> Config:
    """Read from no file, so that nothing of the host's project gets in. Attributes, since a password may contain a %."""
    from alembic.config import Config

    config = Config(output_buffer=output) if output is not None else Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(attributes)
    return config


@contextmanager
def _connected(database: str | URL | Engine | Connection, begin: Begin) -> Iterator[Connection]:
    if isinstance(database, Connection):
        if begin is Begin.MIGRATION:
            _check_transaction(database)
        yield database
        return
    engine = database if isinstance(database, Engine) else make_engine(database)
    options = {} if is_autocommit(engine) else {"isolation_level": "AUTOCOMMIT"}
    try:
        with engine.connect().execution_options(**options) as connection, connection.begin():
            if getattr(connection.connection.dbapi_connection, "in_transaction", False):
                connection.exec_driver_sql("ROLLBACK")
            begin_on(connection, begin)
            yield connection
    finally:
        if engine is not database:
            engine.dispose()


def begin_on(connection: Connection, begin: Begin = Begin.MIGRATION) -> None:
    """Begin a transaction of our own on a connection that is in none."""
    for text in dialect_for(connection.dialect.name).begin[begin].split("; "):  # each may be prepared
        connection.exec_driver_sql(text)


def _check_transaction(connection: Connection) -> None:
    """Raise InvalidTarget where the migration could not run, or could not be taken back."""
    if connection.dialect.driver == "asyncpg":
        raise InvalidTarget(
            "outboxq's tables cannot be made through asyncpg, which reads the migrations' SQL otherwise; pass the URL, an Engine "
            "or a Connection of psycopg: postgresql+psycopg://…"
        )
    raw: Any = connection.connection.dbapi_connection
    if isinstance(raw, sqlite3.Connection) or is_psycopg(raw):
        try:
            SqlalchemyTarget(connection, None).check()
        except InvalidTarget:
            raise InvalidTarget(
                "this connection has no transaction that could take the tables back (it is AUTOCOMMIT, or in a savepoint that "
                "SQLite would commit); pass one in an open transaction, or the Engine or its URL"
            ) from None


def _execute(connection: Connection) -> Any:
    def execute(text: str, parameters: Mapping[str, Any]) -> Any:
        result = connection.exec_driver_sql(text, dict(parameters))
        return result.all() if result.returns_rows else []

    return execute


@contextmanager
def _outer_proxies() -> Iterator[None]:
    """Let our migrations run inside a host's: Alembic's `op` and `context` are module globals and do not nest."""
    import alembic.context
    import alembic.op

    saved = [proxy for module in (alembic.context, alembic.op) if (proxy := module.__dict__.get("_proxy")) is not None]
    for proxy in reversed(saved):
        proxy._remove_proxy()  # noqa: SLF001 - a test pins it
    try:
        yield
    finally:
        for proxy in saved:
            proxy._install_proxy()  # noqa: SLF001
