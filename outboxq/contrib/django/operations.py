"""Operations for Django migrations. They run outboxq's own migrations on Django's connection, in that connection's
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections, router, transaction
from django.db.migrations import RunPython
from django.db.migrations.executor import MigrationExecutor
from django.utils.module_loading import autodiscover_modules
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool

from ... import migrations
from ...database.dialects import dialect_for
from ...errors import ConfigurationError, InvalidArgument, SchemaOutOfDate, TablesLocked
from .django_outbox import hooks_of_settings, outboxes, setting

_DRIVERS: dict[str, dict[str, Any]] = {
    "sqlite": {"url": "sqlite://"},
    "postgresql": {"url": "postgresql+psycopg://", "use_native_hstore": False},  # otherwise, SQLAlchemy sets up hstore
}


def reaching(revision: str, *, before: str) -> RunPython:
    """Return an operation that brings the tables to an outboxq revision and, in reverse, back to `before`.

    Tables that `outboxq upgrade` has created are kept. Databases that outboxq does not support are left alone.
    """
    return RunPython(_run(migrations.upgrade, revision), _run(_take_back, before))


def bring_to(revision: str, connection: Any, command: Callable[..., None] = migrations.upgrade) -> None:
    """Bring the tables to this revision on Django's connection, inside its open transaction."""
    with _borrowed(connection) as borrowed:
        command(borrowed, revision, schema=setting("SCHEMA"))


def _take_back(connection: Connection, revision: str, *, schema: str | None) -> None:
    """Downgrade the tables if they exist and are newer than this revision. Because of `outboxq upgrade`, a router or
    `--fake`, the tables may be older or missing.
    """
    found = migrations.current(connection, schema=schema)
    if found is not None and (revision == "base" or found > revision):
        migrations.downgrade(connection, revision, schema=schema)


def has_tables(alias: str) -> bool:
    """Return whether outboxq's tables belong in this database: outboxq must support the database, and no router may
    exclude the tables.
    """
    return runs_on(alias) and router.allow_migrate(alias, "outboxq")


def runs_on(alias: str) -> bool:
    return connections[alias].vendor in _DRIVERS


def _run(command: Callable[..., None], revision: str) -> Callable[[Any, Any], None]:
    def run(_apps: Any, schema_editor: Any) -> None:
        if schema_editor.connection.vendor in _DRIVERS:
            try:
                bring_to(revision, schema_editor.connection, command)
            except (SchemaOutOfDate, ConfigurationError, TablesLocked) as error:
                raise CommandError(str(error)) from error  # manage.py prints this as a sentence

    return run


@contextmanager
def _borrowed(django: Any) -> Iterator[Connection]:
    """Yield a SQLAlchemy connection for DDL that uses Django's connection. The SQLAlchemy connection cannot end
    Django's transaction.
    """
    dialect_for(django.vendor)  # raises ConfigurationError if psycopg 3 is missing, in which case Django uses psycopg2
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
    """A driver connection that only Django can commit, roll back, close or set up."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return (lambda *_args, **_options: None) if name in _OWNERS else getattr(self._connection, name)


_OWNERS = frozenset({"commit", "rollback", "close", "create_function", "add_notice_handler"})


_OLDER = (
    "Run `outboxq upgrade` with this database's URL (and `--schema`, if OUTBOXQ sets a SCHEMA) or, if you do not need its data, "
    "`migrate outboxq zero` and `migrate`."
)
_NEWER = "Install the outboxq release that created these tables, or a later one."


def check_settings(**_options: Any) -> list[CheckMessage]:
    """Check the settings, and the databases of all tasks. The tasks are imported in the same way as in a worker. No
    database connection is needed.
    """
    try:
        hooks_of_settings()
        outboxes[DEFAULT_DB_ALIAS]  # checks the other settings, unless a model's module has done so
    except (ConfigurationError, InvalidArgument) as error:
        return [Error(str(error), id="outboxq.E001", hint="Correct OUTBOXQ in the settings.")]
    autodiscover_modules("tasks")
    return [*_begins(), *_places()]


def check_tables(databases: Sequence[str] | None = None, **_options: Any) -> list[CheckMessage]:
    """Check, for `check --database` and `migrate`, that this release can work with the tables in migrated databases."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        if not (has_tables(alias) and _is_migrated(alias)):
            continue
        try:
            with transaction.atomic(using=alias):
                outboxes[alias].store.ensure_current_on_django()
        except SchemaOutOfDate as error:
            fault, hint = _beyond_migrate(error)
            found.append(Caution(f"{alias}: {fault}", hint=hint, id="outboxq.W002"))
    return found


def cannot_migrate(alias: str, error: SchemaOutOfDate) -> CommandError:
    """Return the error with which `migrate` ends if the tables are still incompatible with this release."""
    fault, hint = _beyond_migrate(error) if _is_migrated(alias) else (str(error), None)
    return CommandError(f"{alias}: {fault}" if hint is None else f"{alias}: {fault}. {hint}")


def _beyond_migrate(error: SchemaOutOfDate) -> tuple[str, str | None]:
    """Return what is wrong with tables whose migrations have run, and a hint. Another `migrate` would do nothing,
    although the error names that command.
    """
    if error.is_mended_by_an_upgrade:
        return error.fault, _OLDER
    return str(error), _NEWER if error.code_is_older else None


def _begins() -> Iterator[CheckMessage]:
    for alias in connections:
        connection = connections[alias]
        if connection.vendor != "sqlite" or connection.is_in_memory_db() or not has_tables(alias):
            continue
        mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or "DEFERRED"
        if mode.upper() == "DEFERRED":
            yield Caution(
                f"On the SQLite database {alias!r}, a transaction that first reads and then enqueues a task fails immediately "
                '("database is locked") if a worker writes in between.',
                hint=f'Set DATABASES[{alias!r}]["OPTIONS"]["transaction_mode"] = "IMMEDIATE".',
                id="outboxq.W001",
            )


def _places() -> Iterator[CheckMessage]:
    """Check the databases of the outboxes that have tasks. Declaring a task on an outbox registers the outbox."""
    ours = apps.get_app_config("outboxq")
    written = {router.db_for_write(model) for model in apps.get_models() if model._meta.app_config is not ours}  # noqa: SLF001 - Django's public name for it
    for alias in outboxes.made():
        but = f"Tasks are declared for the database {alias!r}, but"
        if not runs_on(alias):
            hint = "Declare them on the outbox of a PostgreSQL or SQLite database."
            text = f"{but} outboxq does not support {connections[alias].display_name}."
            yield Error(text, hint=hint, id="outboxq.E002")
        elif not has_tables(alias):
            hint = 'Let allow_migrate() return True for the app_label "outboxq" in this database.'
            yield Error(f"{but} DATABASE_ROUTERS keep the app outboxq out of it.", hint=hint, id="outboxq.E003")
        elif written and alias not in written:
            hint = "Declare them on outboxes[alias], with the alias of the database that your models are written to."
            text = f"{but} none of your models are written to it: a task and your rows are committed together only if they are in the same database."
            yield Caution(text, hint=hint, id="outboxq.W003")


def _is_migrated(alias: str) -> bool:
    """Return whether outboxq's migrations have run. If they have not run, Django itself reports this."""
    executor = MigrationExecutor(connections[alias])
    return not executor.migration_plan(executor.loader.graph.leaf_nodes("outboxq"))
