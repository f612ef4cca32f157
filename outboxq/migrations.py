"""Migrations, which create and upgrade outboxq's tables with the Alembic scripts inside the package.

The version table is `outboxq_alembic_version`, so these migrations never interfere with the application's own.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

import tenacity
from sqlalchemy import Connection, Engine
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.engine import URL
from sqlalchemy.schema import DropTable

from .database import table_locks
from .database.column_types import Xid8
from .database.dialects import Begin, check_schema_name, dialect_for, time_partitions
from .database.dialects.partitioning import PARTITION_NAME, Partitioning
from .database.drivers import is_psycopg, refuse_async
from .database.engine import is_autocommit, make_engine, parse_url
from .database.revisions import UPGRADE, ensure_fit, ensure_ours, is_newer, left_alone, script_location
from .database.tables import VERSION_TABLE, metadata, version_table
from .database.target import SqlalchemyTarget
from .errors import InvalidArgument, InvalidTarget, SchemaOutOfDate, TablesLocked, UnsupportedDatabase
from .model.periods import Every, periods
from .store import schema, transactions

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
    "revisions",
    "sql",
    "upgrade",
]

T = TypeVar("T")
log = logging.getLogger("outboxq.migrations")

_PAUSE = tenacity.wait_random(1.5, 3)
"""The pause between rounds, in seconds. During the pause, the statements that queued up behind the previous round can
run.
"""

LOCK = "SELECT pg_advisory_xact_lock(hashtext('outboxq:migrate'))"
"""A lock that lets only one migration run at a time. The lock is released when the transaction ends. On SQLite, BEGIN
IMMEDIATE does the same.
"""

_ONE_AT_A_TIME = threading.RLock()
"""A lock within this process. Alembic keeps its state in module globals, so two threads would otherwise use each
other's connections.
"""

_NAMES = frozenset(metadata.tables) | {VERSION_TABLE}

ischema_names.setdefault("xid8", Xid8)  # otherwise every comparison would warn about an unknown type


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """The limits on how long an upgrade may keep other transactions waiting and on how long it keeps trying."""

    lock_timeout: timedelta = table_locks.LOCK_TIMEOUT
    wait: timedelta = table_locks.WAIT

    def __post_init__(self) -> None:
        """Raise InvalidArgument for a lock timeout that PostgreSQL would interpret as no timeout."""
        if self.lock_timeout < timedelta(milliseconds=1):
            raise InvalidArgument(f"lock_timeout must be at least 1 ms, not {_span(self.lock_timeout)}")

    @property
    def milliseconds(self) -> str:
        """`lock_timeout` in the form that PostgreSQL expects."""
        return f"{self.lock_timeout / timedelta(milliseconds=1):.0f}ms"


def upgrade(
    database: str | URL | Engine | Connection,
    revision: str = "head",
    *,
    schema: str | None = None,
    lock_timeout: timedelta = table_locks.LOCK_TIMEOUT,
    wait: timedelta = table_locks.WAIT,
) -> None:
    """Upgrade the tables to `revision`. Many processes may call this function at once, and it may be called again at
    any time.

    With a URL or an Engine, the upgrade runs in its own transaction. With a Connection, it runs in that connection's
    transaction, which remains open; inside an application's own migration, pass ``op.get_bind()``. If the `schema`
    (PostgreSQL) does not exist, it is created. If the tables belong to a later release that supports this one, the
    upgrade leaves them unchanged and logs a message. Raises SchemaOutOfDate if the later release does not support this
    one, and InvalidTarget for a Connection whose transaction cannot roll back the upgrade.

    On PostgreSQL, the upgrade first locks all tables. If another transaction is using one of the tables, the upgrade
    waits no longer than `lock_timeout`, because enqueues have to wait for the upgrade during that time. The upgrade
    then releases its locks, logs a warning that names the other transaction, and tries again. After `wait`, the upgrade
    raises TablesLocked and leaves the tables unchanged. A `lock_timeout` of a second or more may cause a deadlock that
    aborts a producer's transaction; a value below 1 ms raises InvalidArgument.
    """
    from alembic import command

    rounds = Rounds(lock_timeout=lock_timeout, wait=wait)
    with _migrating(database, schema) as (connection, (found, oldest_code)):
        if is_newer(found):
            ensure_fit(found, oldest_code, partial(_place, connection, schema))
            log.info(left_alone(found))
        else:
            command.upgrade(_config(connection=connection, schema=schema, rounds=rounds), revision)


def downgrade(database: str | URL | Engine | Connection, revision: str, *, schema: str | None = None) -> None:
    """Downgrade the tables to `revision`. ``base`` removes the triggers, the functions, and the tables with their data.

    Raises SchemaOutOfDate if the tables belong to a later release, and TablesLocked as `upgrade` does.
    """
    from alembic import command

    with _migrating(database, schema) as (connection, (found, _)):
        ensure_ours(found, partial(_place, connection, schema))
        command.downgrade(_config(connection=connection, schema=schema), revision)
        if _found(connection, schema)[0] is None:  # Alembic does not drop its version table
            drop = DropTable(version_table).execution_options(schema_translate_map={None: schema})
            connection.execute(drop)


def admit_from(oldest_code: str) -> None:
    """Set the oldest revision whose code the schema supports. outboxq's own migration scripts call this in upgrade()
    and downgrade().

    A revision that only adds things that older code can ignore repeats the previous revision's value. A revision that
    removes something, or needs something that older code does not write, names the first revision whose code can work
    with the new schema.
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
    lock_timeout: timedelta = table_locks.LOCK_TIMEOUT,
    wait: timedelta = table_locks.WAIT,
) -> list[str]:
    """Partition the history by time (PostgreSQL), so that `Store.prune` can drop whole old partitions. Return the new
    tables.

    `task_executions` and `execution_events` become tables that are partitioned by the task's id, which contains the
    task's creation time. Existing rows are not moved: they form the `first` partition, which ends with the current
    month, week or day (UTC). The function also creates `ahead` further partitions, and a `default` partition for rows
    that do not fit into any other partition. The schema's revision and outboxq's statements do not change. If the
    database is already partitioned, only missing partitions are created. With `dry_run`, nothing is created and only
    the names are returned.

    The function uses one transaction, which locks the two tables and reads each of them once. This takes about a second
    for a few million rows. Call the function as the tables' owner. Like `upgrade`, it waits for open transactions.
    Raises UnsupportedDatabase on SQLite, InvalidArgument if `every` differs from the existing partitions' period,
    ConfigurationError if one of the application's views, foreign keys, policies or publications refers to one of the
    two tables, and TablesLocked if other sessions keep the tables locked.
    """
    rounds = Rounds(lock_timeout=lock_timeout, wait=wait)
    check_schema_name(schema)
    if every not in [one.value for one in Every]:
        raise InvalidArgument(f"every must be one of {', '.join(Every)}, not {every!r}")
    if type(ahead) is not int or ahead < 1:
        raise InvalidArgument(f"ahead must be a whole number of at least 1, not {ahead!r}")
    with _connected(database, Begin.MIGRATION) as connection:
        dialect = dialect_for(connection.dialect.name, schema=schema)
        if not dialect.has_partitions:
            raise UnsupportedDatabase(
                "only PostgreSQL supports partitioned tables; on SQLite, tasks are pruned row by row"
            )
        execute = _execute(connection)
        connection.exec_driver_sql(LOCK)
        found, oldest_code = _found(connection, schema)
        if found is None:
            raise SchemaOutOfDate(f"{_place(connection, schema)} has no outboxq tables to partition", remedy=UPGRADE)
        ensure_fit(found, oldest_code, partial(_place, connection, schema))
        now = dialect.compiled[transactions.select_now].run(execute, {})[0]["now"]
        partitioning = Partitioning(dialect)
        wanted = periods(Every(every), now, ahead)

        def work() -> list[str]:
            if not dry_run and partitioning.layout(execute) is None:
                names = [table.name for table in time_partitions.PARTITIONED]
                table_locks.take(dialect, execute, rounds.milliseconds, names)
            return partitioning.bring_up_to_date(execute, wanted, now, dry_run=dry_run)

        return in_rounds(connection, work, schema=schema, rounds=rounds)


def in_rounds(connection: Connection, work: Callable[[], T], *, schema: str | None, rounds: Rounds | None = None) -> T:
    """Run `work`, which locks tables, in a savepoint, and repeat it until the locks are acquired. Returns the result of
    `work`.

    The rollback to the savepoint releases all locks from the round, so that other sessions can continue before the next
    round. Raises TablesLocked after the last round. SQLite has only one lock, which the transaction already holds.
    """
    dialect, known = dialect_for(connection.dialect.name, schema=schema), rounds or Rounds()
    if dialect.one_writer:
        return work()
    execute = _execute(connection)
    connection.exec_driver_sql(dialect.watch_client)

    def why() -> str:
        return table_locks.sentence(table_locks.in_the_way(table_locks.holders(dialect, execute)), whole=True)

    def tell(state: tenacity.RetryCallState) -> None:
        pause = state.next_action.sleep if state.next_action else 0
        log.warning("the tables are in use and could not be locked: %s; trying again in %.0f s", why(), pause)

    def is_busy(error: BaseException) -> bool:
        return isinstance(error, table_locks.Busy) or dialect.is_locked_out(error)

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_busy),
        wait=_PAUSE,
        stop=tenacity.stop_after_delay(known.wait.total_seconds()),
        before_sleep=tell,
    )
    try:
        for attempt in attempts:
            with attempt, connection.begin_nested():
                before = table_locks.limit(dialect, execute, known.milliseconds)
                found = work()
                table_locks.limit(dialect, execute, before["lock_timeout"])
    except tenacity.RetryError as error:
        raise TablesLocked(
            f"nothing was changed, because the tables of {_place(connection, schema)} could not be locked within "
            f"{_span(known.wait)}: {why()}; try again when the locks have been released"
        ) from error.last_attempt.exception()
    return found


def hold(connection: Connection, *, schema: str | None, rounds: Rounds | None = None) -> None:
    """Lock all tables that exist. outboxq's env.py calls this before the first script, inside `in_rounds`."""
    dialect = dialect_for(connection.dialect.name, schema=schema)
    if not dialect.one_writer:
        table_locks.take(dialect, _execute(connection), (rounds or Rounds()).milliseconds)


def _span(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"


def current(database: str | URL | Engine | Connection, *, schema: str | None = None) -> str | None:
    """Return the tables' revision; None if there are no tables. A missing SQLite file is not created."""
    if not isinstance(database, Connection):
        refuse_async(database)
        url = database.url if isinstance(database, Engine) else make_engine(database).url
        if dialect_for(url.get_backend_name()).missing_file(url) is not None:
            return None
    with _connected(database, Begin.READ) as connection:
        return _found(connection, schema)[0]


def revisions() -> list[tuple[str, str]]:
    """Return the revisions that this release knows, oldest first, each with a sentence about what the revision adds."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(script_location()))
    known = [(str(one.revision), (one.doc or "").partition("\n")[0]) for one in scripts.walk_revisions()]
    return known[::-1]


def sql(url: str | URL, revision: str = "head", *, schema: str | None = None) -> str:
    """Return the migrations as one SQL script that can be applied by other means. The function does not connect to a
    database.
    """
    from alembic import command

    output, parsed = StringIO(), parse_url(url)
    dialect_for(parsed.get_backend_name(), schema=schema)
    text = parsed.render_as_string(hide_password=False)
    command.upgrade(_config(schema=schema, url=text, output=output), revision, sql=True)
    return output.getvalue()


def ours(name: str | None, type_: str, _parents: object = None) -> bool:
    """Return whether to compare this name. Tables are compared only if they are in `database/tables`. outboxq's own
    schema comparison passes this function to Alembic as `include_name`.
    """
    return type_ != "table" or name in metadata.tables


def not_ours(name: str | None, type_: str, _parents: object = None) -> bool:
    """Hide outboxq's tables from autogenerate. Pass this function as `include_name` in env.py or to Flask-Migrate::

    context.configure(..., include_name=outboxq.migrations.not_ours)
    Migrate(app, db, include_name=outboxq.migrations.not_ours)
    """
    return type_ != "table" or not (name in _NAMES or (name and PARTITION_NAME.fullmatch(name)))


@contextmanager
def _migrating(
    database: str | URL | Engine | Connection, schema: str | None
) -> Iterator[tuple[Connection, tuple[str | None, str | None]]]:
    """Yield a connection that holds the migration lock, and the result of `_found` on that connection."""
    check_schema_name(schema)
    with _ONE_AT_A_TIME, _connected(database, Begin.MIGRATION) as connection:
        dialect = dialect_for(connection.dialect.name, schema=schema)
        dialect.ensure_readable(connection.connection.driver_connection)
        if not dialect.one_writer:
            connection.exec_driver_sql(LOCK)  # another process may be writing a newer schema
        with _outer_proxies():
            yield connection, in_rounds(connection, partial(_found, connection, schema), schema=schema)


def _found(connection: Connection, own_schema: str | None) -> tuple[str | None, str | None]:
    """Return the tables' revision and the oldest code that they support; both are None if there are no tables.

    Raises SchemaOutOfDate if the tables belong to an unreleased version.
    """
    compiled, execute = dialect_for(connection.dialect.name, schema=own_schema).compiled, _execute(connection)
    return schema.found(lambda builder: compiled[builder].run(execute, {}), partial(_place, connection, own_schema))


def _place(connection: Connection, schema: str | None) -> str:
    """Return the name of this connection's database, for messages."""
    target = SqlalchemyTarget(connection, schema)
    return target.dialect.place(connection.engine.url, target.database)


def _config(*, output: StringIO | None = None, **attributes: Any) -> Config:
    """Return Alembic's configuration. None of the application's files are read. The values are passed as attributes,
    because options cannot contain a %.
    """
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
    refuse_async(database)
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
    """Begin a transaction on a connection that is not in a transaction."""
    version = connection.dialect.server_version_info
    for message in dialect_for(connection.dialect.name).begin_statements(begin, {}, version):
        for text in message.split("; "):  # separately, because a prepared statement can contain only one
            connection.exec_driver_sql(text)


def _check_transaction(connection: Connection) -> None:
    """Raise InvalidTarget if the migration cannot run on the connection or cannot be rolled back there."""
    if connection.dialect.driver == "asyncpg":
        raise InvalidTarget(
            "outboxq's tables cannot be created through asyncpg, which does not accept the migrations' SQL; pass a "
            "psycopg URL, Engine or Connection: postgresql+psycopg://…"
        )
    raw: Any = connection.connection.dbapi_connection
    if isinstance(raw, sqlite3.Connection) or is_psycopg(raw):
        try:
            SqlalchemyTarget(connection, None).check()
        except InvalidTarget:
            raise InvalidTarget(
                "this connection has no transaction in which the tables could be rolled back (it is in AUTOCOMMIT mode, or in a savepoint that "
                "SQLite would commit); pass an Engine or its URL, or a connection with an open transaction"
            ) from None


def _execute(connection: Connection) -> Any:
    def execute(text: str, parameters: Mapping[str, Any]) -> Any:
        result = connection.exec_driver_sql(text, dict(parameters))
        return result.all() if result.returns_rows else []

    return execute


@contextmanager
def _outer_proxies() -> Iterator[None]:
    """Let these migrations run inside an application's migration. Alembic's `op` and `context` are module globals and
    do not nest.
    """
    import alembic.context
    import alembic.op

    saved = [proxy for module in (alembic.context, alembic.op) if (proxy := module.__dict__.get("_proxy")) is not None]
    for proxy in reversed(saved):
        proxy._remove_proxy()  # noqa: SLF001 - a test checks that it exists
    try:
        yield
    finally:
        for proxy in saved:
            proxy._install_proxy()  # noqa: SLF001
