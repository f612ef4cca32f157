"""outboxq's Django application, for INSTALLED_APPS."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import django
from django.apps import AppConfig
from django.apps import apps as installed
from django.core.checks import Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import autodiscover_modules

from ...cli.serving.starting import leave_on_signals, starts_worker

OLDEST = (5, 2)
"""The oldest supported Django release. outboxq's models need composite primary keys, which that release introduced."""


class OutboxqConfig(AppConfig):
    """The application. `manage.py migrate` creates its tables and stores the subscriptions of the project's tasks."""

    name = "outboxq.contrib.django"
    label = "outboxq"
    verbose_name = "outboxq"
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: ModuleType | None) -> None:
        """Raise ImproperlyConfigured if Django is too old for outboxq's models."""
        if django.VERSION[:2] < OLDEST:
            raise ImproperlyConfigured(
                f"outboxq needs Django {'.'.join(map(str, OLDEST))} or later, but this is Django {django.get_version()}; "
                "upgrade Django, or remove outboxq.contrib.django from INSTALLED_APPS and use outboxq.Outbox alongside Django"
            )
        if sys.argv[1:2] == ["outboxq"] and starts_worker(sys.argv[2:]):
            leave_on_signals()  # the applications' models have not been imported yet
        super().__init__(app_name, app_module)

    def ready(self) -> None:
        """Register checks and signal receivers. Tasks are not imported here, because web processes do not need all
        of them.
        """
        from .operations import check_settings, check_tables

        register(check_settings, "outboxq")
        register(check_tables, Tags.database)
        pre_migrate.connect(_make_tables, sender=self)
        post_migrate.connect(_subscribe, sender=self)


def _make_tables(using: str, **_: Any) -> None:
    """Create the tables if MIGRATION_MODULES disables migrations, as some test settings do. From the models alone,
    Django would create incomplete tables.
    """
    from .operations import bring_to, has_tables

    if has_tables(using) and MigrationLoader.migrations_module("outboxq")[0] is None:
        with transaction.atomic(using=using):
            bring_to("head", connections[using])


def _subscribe(using: str, apps: Any = installed, **_: Any) -> None:
    """Store the subscriptions and schedules, so that they exist before the first worker starts. In tests, they are
    stored again after each flush.
    """
    from ...errors import SchemaOutOfDate
    from ...task.relays import sync
    from ...task.schedules import declare_schedules
    from .django_outbox import outboxes
    from .operations import cannot_migrate, has_tables

    is_migrated_to_zero = "tasksubscription" not in apps.all_models["outboxq"]
    if is_migrated_to_zero or not has_tables(using):
        return
    autodiscover_modules("tasks")
    outbox = outboxes[using]
    try:
        if list(outbox.tasks):
            with transaction.atomic(using=using):
                sync(outbox.store, outbox.tasks, using=using)
        if "taskschedule" in apps.all_models["outboxq"]:
            with transaction.atomic(using=using):
                declare_schedules(outbox.store, outbox.tasks, using=using)
    except SchemaOutOfDate as error:
        raise cannot_migrate(using, error) from error  # manage.py prints this as a sentence
