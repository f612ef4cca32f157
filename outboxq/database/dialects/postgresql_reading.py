"""Read rows with times that Python cannot hold. psycopg refuses to read them after the statement has done its work."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader, Transformer
from psycopg.pq import Format
from psycopg.types.datetime import TimestamptzLoader

from ..column_types import UnreadableInstant


def read_again(cursor: psycopg.Cursor[Any], result: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a result that the cursor could not read, with an UnreadableInstant for each such time.

    Only rows that were written in spite of the columns' types come here. All others are read at full speed.
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
