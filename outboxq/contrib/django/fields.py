"""Model fields for outboxq's columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.db import models

from ...database.column_types import iso
from .django_outbox import setting


class InstantField(models.DateTimeField):
    """A field of aware UTC datetimes, whatever USE_TZ says. On SQLite outboxq stores and compares them as ISO text."""

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if connection.vendor != "sqlite" or not isinstance(value, datetime):
            return super().get_db_prep_value(value, connection, prepared)
        return iso(_aware(value, connection))

    def from_db_value(self, value: Any, _expression: Any, connection: Any) -> Any:
        return _aware(value, connection).astimezone(UTC) if isinstance(value, datetime) else value


def _aware(value: datetime, connection: Any) -> datetime:
    """Return an aware datetime: with USE_TZ False, Django means the connection's time zone."""
    return value if value.tzinfo is not None else value.replace(tzinfo=ZoneInfo(connection.timezone_name))


def table(name: str) -> str:
    """Return the name for `db_table`; with a schema, written so that Django's quotes enclose each part."""
    schema = setting("SCHEMA")
    return name if schema is None else f'{schema}"."{name}'
