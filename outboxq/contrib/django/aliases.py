"""The outboxes of a project: one for each database, made at first use."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from django.conf import settings
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from ...errors import ConfigurationError
from ...outbox import Outbox
from .integration import DjangoIntegration
from .registry import DjangoRegistry
from .store import DjangoStore

SETTINGS = {"SCHEMA": None}
"""Keys of OUTBOXQ in the settings, with their defaults. SCHEMA: the PostgreSQL schema of outboxq's tables."""


class DjangoOutbox(Outbox):
    """An outbox in one of DATABASES. `task.enqueue()` writes through Django's own connection, in its transaction.

    Outside `transaction.atomic()` it writes in a transaction of its own, as a model's `save()` does.
    """

    def __init__(self, alias: str = "default") -> None:
        """Make the outbox. Raises ConfigurationError for unknown keys of OUTBOXQ in the settings."""
        self.alias = alias
        self._chosen: tuple[str, DjangoStore] | None = None
        self._choosing = threading.Lock()
        super().__init__(schema=setting("SCHEMA"), integration=DjangoIntegration(alias))
        self.tasks: DjangoRegistry = DjangoRegistry(alias)

    def bind(self, database: str | URL | Engine) -> None:  # noqa: ARG002
        """Raise ConfigurationError: DATABASES in the settings names the database."""
        raise ConfigurationError(
            f"this outbox is in Django's database {self.alias!r} and cannot be bound; change DATABASES in the settings"
        )

    @property
    def is_bound(self) -> bool:
        """True: the settings name the database."""
        return True

    @property
    def store(self) -> DjangoStore:
        """The Store. Its methods with ``using=`` use Django's connection only; the others make an engine.

        It follows the settings: when a test gives the database another name, this is another Store.
        """
        database = repr(
            [connections[self.alias].settings_dict[key] for key in ("ENGINE", "NAME", "HOST", "PORT", "USER")]
        )
        with self._choosing:
            if self._chosen is None or self._chosen[0] != database:
                self._chosen = database, DjangoStore(alias=self.alias, schema=self.schema)
            return self._chosen[1]

    def _database_of_the_environment(self) -> None:
        return None  # OUTBOXQ_DATABASE_URL is for programs without settings

    def _engine(self) -> Engine:
        return self.store.bound_engine


class Outboxes:
    """The outboxes by alias, like `django.db.connections`, but shared by all threads: an outbox holds the tasks."""

    def __init__(self) -> None:
        self._made: dict[str, DjangoOutbox] = {}
        self._making = threading.Lock()

    def __getitem__(self, alias: str) -> DjangoOutbox:
        """Return the outbox in this database. Raises ConfigurationError for an alias that DATABASES does not have."""
        with self._making:
            if alias not in self._made:
                try:
                    connections[alias]
                except ConnectionDoesNotExist:
                    raise ConfigurationError(
                        f"Django knows no database {alias!r}; give one of DATABASES in the settings"
                    ) from None
                self._made[alias] = DjangoOutbox(alias)
            return self._made[alias]

    def made(self) -> list[str]:
        """Return the aliases whose outboxes have tasks."""
        return [alias for alias, outbox in self._made.items() if any(outbox.tasks)]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the aliases of DATABASES."""
        return iter(connections)


outboxes = Outboxes()


def setting(name: str) -> str | None:
    """Return one of SETTINGS. Raises ConfigurationError if OUTBOXQ has unknown keys."""
    given = getattr(settings, "OUTBOXQ", {})
    unknown = sorted(set(given) - set(SETTINGS))
    if unknown:
        raise ConfigurationError(
            f"OUTBOXQ in the settings has unknown keys: {', '.join(unknown)}; it knows {', '.join(SETTINGS)}"
        )
    return given.get(name, SETTINGS[name])
