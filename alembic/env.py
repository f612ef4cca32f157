"""Run outboxq's migrations: from the alembic command, from outboxq's own API, or on a caller's connection."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from logging.config import fileConfig
from typing import Any

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from outboxq.database.dialects import dialect_for
from outboxq.database.engine import make_engine
from outboxq.database.tables import metadata
from outboxq.errors import TablesLocked
from outboxq.migrations import LOCK, VERSION_TABLE, Rounds, begin_on, hold, in_rounds, ours

config = context.config
rounds: Rounds | None = config.attributes.get("rounds")
schema: str | None = config.attributes.get("schema", context.get_x_argument(as_dictionary=True).get("schema"))


def configure(**where: Any) -> None:
    context.configure(
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        version_table_schema=schema,
        include_name=ours,
        transactional_ddl=True,
        **where,
    )


def database_url() -> str:
    """Return the given database URL. Raises CommandError if there is none."""
    url = (
        config.attributes.get("url")
        or context.get_x_argument(as_dictionary=True).get("url")
        or os.environ.get("OUTBOXQ_DATABASE_URL")
        or config.get_main_option("sqlalchemy.url")
    )
    if not url:
        raise CommandError(
            "no database was given; pass -x url=…, or set OUTBOXQ_DATABASE_URL, or sqlalchemy.url in alembic.ini"
        )
    return str(url)


def run_offline() -> None:
    """Print the SQL instead of running it, so that the user can apply it with another program."""
    url = database_url()
    dialect_for(make_url(url).get_backend_name(), schema=schema)
    configure(url=url, literal_binds=True, dialect_opts={"paramstyle": "named"})
    with context.begin_transaction():
        if schema is not None:
            quoted = context.get_context().dialect.identifier_preparer.quote(schema)
            context.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
            context.execute(f"SET LOCAL search_path TO {quoted}")
        context.run_migrations()


def run_on(connection: Connection) -> None:
    """Run all migrations in the connection's open transaction, so that a failed migration leaves nothing behind."""
    dialect_for(connection.dialect.name, schema=schema)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(LOCK)
    configure(connection=connection)
    scripts = partial(locked, connection, context.get_context().opts["fn"])
    with inside_schema(connection):
        in_rounds(connection, partial(run_round, connection, scripts), schema=schema, rounds=rounds)


def run_round(connection: Connection, scripts: Callable[..., list[Any]]) -> None:
    configure(connection=connection, fn=scripts)
    with context.begin_transaction():
        context.run_migrations()


def locked(connection: Connection, find: Callable[..., Iterable[Any]], *where: Any) -> list[Any]:
    """Return the scripts that the command has to run. If there are any, lock all tables first."""
    steps = list(find(*where))
    if steps:
        hold(connection, schema=schema, rounds=rounds)
    return steps


@contextmanager
def inside_schema(connection: Connection) -> Iterator[None]:
    """Make names without a schema refer to outboxq's schema inside the block, and then restore the caller's settings."""
    if schema is None:
        yield
        return
    quoted = connection.dialect.identifier_preparer.quote(schema)  # the name may be an SQL keyword, such as user
    before = connection.dialect.default_schema_name
    path = connection.exec_driver_sql("SHOW search_path").scalar_one()
    there = connection.exec_driver_sql("SELECT FROM pg_namespace WHERE nspname = %(schema)s", {"schema": schema})
    if not there.rowcount:  # CREATE SCHEMA needs a privilege on the database, even if the schema exists
        connection.exec_driver_sql(f"CREATE SCHEMA {quoted}")
    connection.exec_driver_sql(f"SET LOCAL search_path TO {quoted}")
    connection.dialect.default_schema_name = schema
    try:
        yield
    finally:
        connection.dialect.default_schema_name = before
    connection.exec_driver_sql("SELECT set_config('search_path', %(path)s, true)", {"path": path})


if context.is_offline_mode():
    run_offline()
elif (given := config.attributes.get("connection")) is not None:
    run_on(given)
else:
    if config.config_file_name is not None:
        fileConfig(config.config_file_name, disable_existing_loggers=False)
    engine = make_engine(database_url())
    try:
        with engine.connect() as own, own.begin():
            begin_on(own)
            run_on(own)
    except TablesLocked as error:
        raise CommandError(str(error)) from error  # prints a sentence without a traceback
    finally:
        engine.dispose()
