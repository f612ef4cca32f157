"""The Store of an outbox in Django."""

from __future__ import annotations

import threading
from typing import Any, Self

from django.db import DEFAULT_DB_ALIAS, Error, connections
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from ...database.drivers import is_unreached
from ...database.engine import reserve
from ...database.privileges import Feature
from ...database.target import DjangoTarget, Target, target_of
from ...errors import InvalidTarget
from ...store import Store
from ..upgrading import upgraded_by
from .engine import engine_of


class DjangoStore(Store):
    """A Store for one of DATABASES. It makes an engine only for work that Django's own connection cannot do."""

    def __init__(self, engine: Engine | None = None, *, alias: str | None = None, **options: Any) -> None:
        """Make the Store; `alias` None: a worker's own Store, made from the engine of another."""
        super().__init__(engine, **options)
        self.alias = alias
        self._migrated = alias
        self._making = threading.Lock()

    @property
    def bound_engine(self) -> Engine:
        """The engine. Raises ConfigurationError for a database that no worker can share."""
        if self.alias is not None:
            with self._making:
                if self.engine is None:
                    # No pool: the engine is seldom used, and an open connection would keep a test's database from being dropped.
                    self.engine = engine_of(self.alias, poolclass=NullPool)
        return super().bound_engine

    def may_pass(self, error: BaseException) -> bool:
        cause = error.__cause__ if isinstance(error, Error) else None
        if is_unreached(cause):
            return True
        return super().may_pass(DBAPIError("", None, cause) if isinstance(cause, Exception) else error)

    def ensure_file(self) -> None:
        with upgraded_by(self._migrate):
            super().ensure_file()

    def ensure_current_on_django(self) -> None:
        """Check the tables as `ensure_current` does, on Django's connection, which must be inside `atomic()`."""
        self.check_schema(target_of(self.alias, schema=self.schema))

    def reserved(self, gone: threading.Event, *, hurried: bool = False) -> Self:
        made = super().reserved(gone, hurried=hurried)
        made._migrated = self._migrated  # noqa: SLF001 - of the same class
        return made

    def reserve_engine(self) -> Engine:
        return super().reserve_engine() if self.alias is None else reserve(engine_of(self.alias))

    def join(self, using: object, enqueues: frozenset[Feature] | None = None) -> Target:
        target = target_of(using, schema=self.schema)
        self.check_database(target)
        self._check_tables(target, enqueues)
        return target

    def check_database(self, target: Target) -> None:
        if self.alias is None or not isinstance(target, DjangoTarget):
            super().check_database(target)
            return
        there = target.connection
        if there.alias != self.alias and _place(there) != _place(connections[self.alias]):
            raise InvalidTarget(
                f"this is Django's database {there.alias!r}, but the outbox is in {self.alias!r}; a task must be written where its "
                f"business rows are: declare it on outboxes[{there.alias!r}]"
            )

    def check_schema(self, target: Target) -> None:
        with upgraded_by(self._migrate):
            super().check_schema(target)

    @property
    def _migrate(self) -> str:
        other = "" if self._migrated in {None, DEFAULT_DB_ALIAS} else f" --database {self._migrated}"
        return f"manage.py migrate{other}"


def _place(connection: Any) -> list[Any]:
    return [connection.vendor, *(str(connection.settings_dict[key] or "") for key in ("NAME", "HOST", "PORT"))]
