"""Run on PostgreSQL with psycopg 3: one statement for each transition, rows locked with SKIP LOCKED, and the database's
own clock.

Statements bypass SQLAlchemy's layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader, Transformer
from psycopg.pq import Format
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy import Dialect as SqlalchemyDialect
from sqlalchemy.engine import URL

from ..column_types import UnreadableInstant
from ..grammar import Columns, Transition
from .plans import OneStatement
from .postgresql_errors import PostgresErrors, add_hint
from .postgresql_grammar import PostgresGrammar
from .postgresql_session import PLAN_ONCE, PostgresSession, explain_encoding


class PostgresDialect(PostgresErrors, PostgresSession):
    name = "postgresql"
    driver_connection: ClassVar[type] = psycopg.Connection
    driver_error: ClassVar[type[Exception]] = psycopg.Error
    reads_before_writing = one_writer = False
    one_statement = notifies = stops_midway = has_roles = has_partitions = measures_tables = has_clock = True
    connection_options: ClassVar = {"isolation_level": "AUTOCOMMIT"}

    def __init__(self, compiler: SqlalchemyDialect, schema: str | None) -> None:
        super().__init__(compiler, schema, PostgresGrammar(schema))

    def plan(self, transition: Transition) -> OneStatement:
        return OneStatement(transition, self.grammar, prepare=self.prepare, pack=self.pack)

    def pack(
        self, name: str, columns: Columns, rows: Sequence[Sequence[Any]], constant: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        return {
            f"{name}_{key}": rows[0][position] if key in constant else [row[position] for row in rows]
            for position, key in enumerate(columns)
        }

    def count_batches_at_once(self) -> str | None:
        return f"SET CONSTRAINTS {self._placed('task_batch_changes_count')} IMMEDIATE"

    def plan_once(self) -> str | None:
        return f"SET LOCAL {PLAN_ONCE}"

    def count_rows(self, table: str) -> str | None:
        return f"ANALYZE {self._placed(table)}"  # a role that does not own the table only gets a warning

    def _placed(self, name: str) -> str:
        return name if self.schema is None else f"{self.compiler.identifier_preparer.quote(self.schema)}.{name}"

    def database_name(self, url: URL) -> str | None:
        return url.database or url.username

    def explain(self, error: Exception, raw: Callable[[], Any]) -> None:
        explain_encoding(error, raw)
        add_hint(error)

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
            # An unreadable time in one row must not hide the other rows.
            return self.read_again(cursor, cursor.pgresult)

    def read_again(self, cursor: Any, found: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a result that the cursor could not read, with an UnreadableInstant for each unreadable
        time.

        Only rows that violate the columns' types are read in this way. All other rows are read at full speed.
        """
        cursor.adapters.register_loader("timestamptz", _Lenient)
        reading = Transformer(cursor)
        reading.set_pgresult(found)
        return list(reading.load_rows(0, found.ntuples, tuple))


_CURSOR = "outboxq_cursor"
"""The first part of the key under which a connection's `info` holds a cursor for writing. The second part is the
encoding of the text that the cursor sends.
"""


@lru_cache(maxsize=1024)
def _numbered(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the text with the server's placeholders, and the names of its parameters in order. psycopg would do this
    on each call.
    """
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return "%" if found[1] is None else f"${names.setdefault(found[1], len(names) + 1)}"

    return re.sub(r"%(?:\((\w+)\)s|%)", number, sql).encode(), tuple(names)


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
