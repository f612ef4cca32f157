"""How our columns look to Django."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.db import models

from ...database.column_types import iso


class InstantField(models.DateTimeField):
    """An aware UTC datetime whatever USE_TZ says. On SQLite outboxq stores it as ISO text, and compares it as that."""

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if connection.vendor != "sqlite" or not isinstance(value, datetime):
            return super().get_db_prep_value(value, connection, prepared)
        return iso(_aware(value, connection))

    def from_db_value(self, value: Any, _expression: Any, connection: Any) -> Any:
        return _aware(value, connection).astimezone(UTC) if isinstance(value, datetime) else value


def _aware(value: datetime, connection: Any) -> datetime:
    """With USE_TZ False Django speaks of the connection's own zone."""
    return value if value.tzinfo is not None else value.replace(tzinfo=ZoneInfo(connection.timezone_name))


def table(name: str) -> str:
    """The table's name for `db_table`; in our schema, written so that Django's quotes come out around each part."""
    from .aliases import setting

    schema = setting("SCHEMA")
    return name if schema is None else f'{schema}"."{name}'
