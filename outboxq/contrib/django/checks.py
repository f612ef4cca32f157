"""The checks of `manage.py check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution
from django.db import connections, router, transaction
from django.db.migrations.executor import MigrationExecutor

from ...errors import ConfigurationError, SchemaOutOfDate
from .django_outbox import hooks_of_settings, outboxes
from .operations import has_tables, runs_on

_OLDER = (
    "Run `outboxq upgrade` with the URL of this database, or `migrate outboxq zero` and `migrate` if it may be emptied."
)
_NEWER = "Install the release of outboxq that made these tables, or a later one."


def check_settings(**_options: Any) -> list[CheckMessage]:
    """Check the settings, without a connection."""
    try:
        hooks_of_settings()
    except ConfigurationError as error:
        return [Error(str(error), id="outboxq.E001", hint="Correct OUTBOXQ in the settings.")]
    return [*_begins(), *_places()]


def check_tables(databases: Sequence[str] | None = None, **_options: Any) -> list[CheckMessage]:
    """Check that this release can work with the tables of migrated databases; for `check --database` and `migrate`."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        if not (has_tables(alias) and _is_migrated(alias)):
            continue
        try:
            with transaction.atomic(using=alias):
                outboxes[alias].store.ensure_current_on_django()
        except SchemaOutOfDate as error:
            older = _OLDER if error.is_mended_by_an_upgrade else None
            hint = _NEWER if error.code_is_older else older
            found.append(Caution(f"{alias}: {error}", hint=hint, id="outboxq.W002"))
    return found


def _begins() -> Iterator[CheckMessage]:
    for alias in connections:
        connection = connections[alias]
        if connection.vendor != "sqlite" or connection.is_in_memory_db() or not has_tables(alias):
            continue
        mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or "DEFERRED"
        if mode.upper() == "DEFERRED":
            yield Caution(
                f"On the SQLite database {alias!r}, a transaction that reads first and enqueues later fails at once "
                '("database is locked") when a worker has written meanwhile.',
                hint=f'Set DATABASES[{alias!r}]["OPTIONS"]["transaction_mode"] = "IMMEDIATE".',
                id="outboxq.W001",
            )


def _places() -> Iterator[CheckMessage]:
    """Check the databases of the outboxes that have tasks so far."""
    ours = apps.get_app_config("outboxq")
    written = {router.db_for_write(model) for model in apps.get_models() if model._meta.app_config is not ours}  # noqa: SLF001 - Django's public name for it
    for alias in outboxes.made():
        if not runs_on(alias):
            yield Error(
                f"Tasks are declared for the database {alias!r}, but outboxq does not run on {connections[alias].display_name}.",
                hint="Declare them on the outbox of a PostgreSQL or SQLite database.",
                id="outboxq.E002",
            )
        elif not has_tables(alias):
            yield Error(
                f"Tasks are declared for the database {alias!r}, but DATABASE_ROUTERS keep the app outboxq out of it.",
                hint='Have allow_migrate() return True for the app_label "outboxq" there.',
                id="outboxq.E003",
            )
        elif written and alias not in written:
            yield Caution(
                f"Tasks are declared for the database {alias!r}, but no model is written there: a task is committed together "
                "with rows of its own database only.",
                hint="Declare them on outboxes[alias] of the database that your models are written to.",
                id="outboxq.W003",
            )


def _is_migrated(alias: str) -> bool:
    """Return whether outboxq's migrations have run; if not, Django reports that itself."""
    executor = MigrationExecutor(connections[alias])
    return not executor.migration_plan(executor.loader.graph.leaf_nodes("outboxq"))
