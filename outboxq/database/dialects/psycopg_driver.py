"""psycopg 3 as PostgreSQL's dialect uses it: its errors, its connections, and a statement run past SQLAlchemy's layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import psycopg
from psycopg.rows import tuple_row
from sqlalchemy.engine import URL

from ...errors import UnsupportedDatabase
from . import postgresql_session
from .postgresql_reading import read_again


class PsycopgDriver:
    """The part of the dialect that knows its driver."""

    driver_error: ClassVar[type[Exception]] = psycopg.Error

    def is_drivers(self, raw: object) -> bool:
        return isinstance(raw, psycopg.Connection)

    def fetch(self, raw: Any, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        text, names = _numbered(sql)
        # Not connection.cursor(): the caller's class may take other placeholders.
        with psycopg.RawCursor(raw, row_factory=tuple_row) as cursor:
            cursor.execute(text, [parameters[name] for name in names])
            if not cursor.description:
                return []
            try:
                return list(cursor.fetchall())
            except psycopg.DataError:
                return read_again(cursor, cursor.pgresult)  # such an instant must not cost its neighbours their claim

    def read_again(self, cursor: Any, found: Any) -> list[tuple[Any, ...]]:
        return read_again(cursor, found)

    def own_url(self, url: URL) -> URL:
        if "+" not in url.drivername:
            url = url.set(drivername="postgresql+psycopg")
        if url.get_driver_name() != "psycopg":
            raise UnsupportedDatabase(
                f"outboxq uses psycopg 3, not {url.get_driver_name()}; write postgresql+psycopg://…"
            )
        return postgresql_session.made_ours(url)


@lru_cache(maxsize=1024)
def _numbered(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """The text as the server reads it, and the names of its parameters in order. psycopg would do it anew at each call."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return "%" if found[1] is None else f"${names.setdefault(found[1], len(names) + 1)}"

    return re.sub(r"%(?:\((\w+)\)s|%)", number, sql).encode(), tuple(names)
