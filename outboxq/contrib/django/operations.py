"""Operations of Django's migrations: they run outboxq's own, on Django's connection and in its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db import connections, router
from django.db.migrations import RunPython
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool

from ... import migrations
from ...database.dialects import dialect_for
from ...errors import ConfigurationError, SchemaOutOfDate, TablesLocked
from .django_outbox import setting

_DRIVERS: dict[str, dict[str, Any]] = {
    "sqlite": {"url": "sqlite://"},
    "postgresql": {"url": "postgresql+psycopg://", "use_native_hstore": False},  # it would be set up on the connection
}


def reaching(revision: str, *, before: str) -> RunPython:
    """Return the operation that brings the tables to a revision of outboxq, and back to the revision `before`.

    Tables that `outboxq upgrade` made are taken over as they are. A database that outboxq does not run on is left alone.
    """
    return RunPython(_run(migrations.upgrade, revision), _run(_take_back, before))


def bring_to(revision: str, connection: Any, command: Callable[..., None] = migrations.upgrade) -> None:
    """Bring the tables to this revision, on Django's connection and inside its open transaction."""
    with _borrowed(connection) as borrowed:
        command(borrowed, revision, schema=setting("SCHEMA"))


def _take_back(connection: Connection, revision: str, *, schema: str | None) -> None:
    """Downgrade the tables, unless they are older already: `outboxq upgrade`, a router or `--fake` may have kept them so."""
    found = migrations.current(connection, schema=schema)
    if found is not None and (revision == "base" or found > revision):
        migrations.downgrade(connection, revision, schema=schema)


def has_tables(alias: str) -> bool:
    """Return whether outboxq's tables belong in this database: outboxq runs on it, and no router keeps them out."""
    return runs_on(alias) and router.allow_migrate(alias, "outboxq")


def runs_on(alias: str) -> bool:
    return connections[alias].vendor in _DRIVERS


def _run(command: Callable[..., None], revision: str) -> Callable[[Any, Any], None]:
    def run(_apps: Any, schema_editor: Any) -> None:
        if schema_editor.connection.vendor in _DRIVERS:
            try:
                bring_to(revision, schema_editor.connection, command)
            except (SchemaOutOfDate, ConfigurationError, TablesLocked) as error:
                raise CommandError(str(error)) from error  # manage.py prints it as a sentence

    return run


@contextmanager
def _borrowed(django: Any) -> Iterator[Connection]:
    """Yield a SQLAlchemy connection over Django's, for DDL; it cannot end Django's transaction."""
    dialect_for(django.vendor)  # raises ConfigurationError if psycopg 3 is missing, so that Django uses psycopg2
    django.ensure_connection()
    engine = create_engine(
        creator=lambda: _Borrowed(django.connection),
        poolclass=StaticPool,
        pool_reset_on_return=None,
        **_DRIVERS[django.vendor],
    )
    with engine.connect() as connection:
        yield connection


class _Borrowed:
    """A driver's connection that only its owner can end or set up."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return _ignored if name in _OWNERS else getattr(self._connection, name)


_OWNERS = frozenset({"commit", "rollback", "close", "create_function", "add_notice_handler"})


def _ignored(*_args: Any, **_options: Any) -> None:
    pass
