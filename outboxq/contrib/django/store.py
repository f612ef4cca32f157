"""The store behind an outbox of Django's."""

from __future__ import annotations

import threading
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, connections
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from ...drivers import is_unreached
from ...engine import reserve
from ...errors import InvalidTarget, SchemaOutOfDate
from ...privileges import Feature
from ...store import Store
from ...target import DjangoTarget, Target, target_of
from .engine import engine_of


class DjangoStore(Store):
    """Knows its database by Django's alias, and makes an engine only where Django's own connection will not do."""

    def __init__(self, engine: Engine | None = None, *, alias: str | None = None, **options: Any) -> None:
        """`alias` None: one of a worker's own, made from another's engine."""
        super().__init__(engine, **options)
        self.alias = alias
        self._making = threading.Lock()

    @property
    def bound_engine(self) -> Engine:
        """Raises ConfigurationError for a database that no worker can share."""
        if self.alias is not None:
            with self._making:
                if self.engine is None:
                    # Seldom used, and so kept open by none: a test's database is to be dropped.
                    self.engine = engine_of(self.alias, poolclass=NullPool)
        return super().bound_engine

    def may_pass(self, error: BaseException) -> bool:
        cause = error.__cause__ if isinstance(error, Error) else None
        if is_unreached(cause):
            return True
        return super().may_pass(DBAPIError("", None, cause) if isinstance(cause, Exception) else error)

    def ensure_file(self) -> None:
        try:
            super().ensure_file()
        except SchemaOutOfDate as error:
            raise self._mended(error) from None

    def ensure_current_on_django(self) -> None:
        """As `ensure_current`, on Django's connection, which must be inside `atomic()`."""
        self._check_schema(target_of(self.alias, schema=self.schema))

    def _reserve(self) -> Engine:
        return super()._reserve() if self.alias is None else reserve(engine_of(self.alias))

    def _joined(self, using: object, enqueues: frozenset[Feature] | None = None) -> Target:
        target = target_of(using, schema=self.schema)
        self._check_database(target)
        self._check_tables(target, enqueues)
        return target

    def _check_database(self, target: Target) -> None:
        if self.alias is None or not isinstance(target, DjangoTarget):
            super()._check_database(target)
            return
        there = target.connection
        if there.alias != self.alias and _place(there) != _place(connections[self.alias]):
            raise InvalidTarget(
                f"this is Django's database {there.alias!r}, but the outbox is that of {self.alias!r}; a task must be written "
                "where its business rows are: declare it on outboxes[alias]"
            )

    def _check_schema(self, target: Target) -> None:
        try:
            super()._check_schema(target)
        except SchemaOutOfDate as error:
            raise self._mended(error) from None

    def _mended(self, error: SchemaOutOfDate) -> SchemaOutOfDate:
        other = "" if self.alias in {None, DEFAULT_DB_ALIAS} else f" --database {self.alias}"
        return error.mended_by(f"manage.py migrate{other}")


def _place(connection: Any) -> list[Any]:
    return [connection.vendor, *(str(connection.settings_dict[key] or "") for key in ("NAME", "HOST", "PORT"))]
