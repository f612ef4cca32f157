"""Use psycopg 3 for PostgreSQL's dialect: its errors, its connections, and statements that bypass SQLAlchemy's layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from typing import Any, ClassVar

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader, Transformer
from psycopg.pq import Format
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy.engine import URL

from ...errors import UnsupportedDatabase
from ..column_types import UnreadableInstant
from . import postgresql_session

_CURSOR = "outboxq_cursor"
"""The first part of the key of a cursor to write with, in the `info` of a connection. The second part is the encoding
of the texts that the cursor sends.
"""


class PsycopgDriver:
    """The part of the PostgreSQL dialect that depends on its driver."""

    driver_connection: ClassVar[type] = psycopg.Connection
    driver_error: ClassVar[type[Exception]] = psycopg.Error

    def fetch(
        self, raw: Any, sql: str, parameters: Mapping[str, Any], info: MutableMapping[Any, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        text, names = _numbered(sql)
        encoding = raw.pgconn.parameter_status(b"client_encoding")
        # A cursor that has written rows knows how to send such values, which saves a third of the time that an enqueue
        # spends in psycopg. A cursor that has read rows is dropped with them.
        cursor = None if info is None else info.pop((_CURSOR, encoding), None)
        if cursor is None or cursor.connection is not raw:
            # Not connection.cursor(): the caller's cursor class may use other placeholders.
            cursor = psycopg.RawCursor(raw, row_factory=tuple_row)
        cursor.execute(text, [parameters[name] for name in names])
        # Not cursor.description, which describes every column and takes a tenth of psycopg's time for a claim.
        if cursor.pgresult is None or not cursor.pgresult.nfields:
            if info is not None:
                info[_CURSOR, encoding] = cursor
            return []
        try:
            return list(cursor.fetchall())
        except psycopg.DataError:
            return read_again(cursor, cursor.pgresult)  # an unreadable time in one row must not hide the other rows

    def read_again(self, cursor: Any, found: Any) -> list[tuple[Any, ...]]:
        return read_again(cursor, found)

    def normalize_url(self, url: URL) -> URL:
        if "+" not in url.drivername:
            url = url.set(drivername="postgresql+psycopg")
        if url.get_driver_name() != "psycopg":
            raise UnsupportedDatabase(
                f"outboxq uses psycopg 3, not {url.get_driver_name()}; write postgresql+psycopg://…"
            )
        return postgresql_session.made_ours(url)


@lru_cache(maxsize=1024)
def _numbered(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the text with the server's placeholders, and the names of its parameters in order. psycopg would do this
    on each call.
    """
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return "%" if found[1] is None else f"${names.setdefault(found[1], len(names) + 1)}"

    return re.sub(r"%(?:\((\w+)\)s|%)", number, sql).encode(), tuple(names)


def read_again(cursor: psycopg.Cursor[Any], result: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a result that the cursor could not read, with an UnreadableInstant for each such time.

    Only rows that violate the columns' types are read in this way. All other rows are read at full speed.
    """
    cursor.adapters.register_loader("timestamptz", _Lenient)
    reading = Transformer(cursor)
    reading.set_pgresult(result)
    return list(reading.load_rows(0, result.ntuples, tuple))


class _Lenient(Loader):
    format = Format.TEXT

    def __init__(self, oid: int, context: Any = None) -> None:
        super().__init__(oid, context)
        self._strict = TimestamptzLoader(oid, context)

    def load(self, data: Buffer) -> Any:
        try:
            return self._strict.load(data)
        except psycopg.DataError:
            text = bytes(data).decode()
            return UnreadableInstant.of(text, is_late=not (text.startswith("-") or text.endswith("BC")))
