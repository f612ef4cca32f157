"""Run on PostgreSQL: one statement for each transition, rows locked with SKIP LOCKED, the database's own clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import Dialect as SqlalchemyDialect
from sqlalchemy.engine import URL

from ..grammar import Columns, Transition
from . import postgresql_errors, postgresql_session
from .base import Dialect
from .plans import OneStatement
from .postgresql_grammar import PostgresGrammar
from .psycopg_driver import PsycopgDriver


class PostgresDialect(PsycopgDriver, Dialect):
    name = "postgresql"
    begin: ClassVar = postgresql_session.BEGIN
    watch_client = postgresql_session.WATCH_CLIENT
    clock = None
    reads_before_writing = one_writer = False
    one_statement = notifies = stops_midway = has_roles = has_partitions = measures_tables = True
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
        return f"SET LOCAL {postgresql_session.PLAN_ONCE}"

    def count_rows(self, table: str) -> str | None:
        return f"ANALYZE {self._placed(table)}"  # a role that does not own the table only gets a warning

    def _placed(self, name: str) -> str:
        return name if self.schema is None else f"{self.compiler.identifier_preparer.quote(self.schema)}.{name}"

    def database_name(self, url: URL) -> str | None:
        return url.database or url.username

    begin_statements = staticmethod(postgresql_session.begin_statements)
    execute_begin = staticmethod(postgresql_session.execute_begin)
    is_open = staticmethod(postgresql_session.is_open)
    is_spoilt = staticmethod(postgresql_session.is_spoilt)
    is_aborted = staticmethod(postgresql_session.is_spoilt)
    set_up = staticmethod(postgresql_session.set_up)
    keep_settings = staticmethod(postgresql_session.keep_settings)
    ensure_readable = staticmethod(postgresql_session.ensure_readable)
    is_transient = staticmethod(postgresql_errors.is_transient)
    is_of_standby = staticmethod(postgresql_errors.names_standby)
    is_locked_out = staticmethod(postgresql_errors.is_locked_out)
    is_cut_off = staticmethod(postgresql_errors.is_cut_off)
    is_starting = staticmethod(postgresql_errors.is_starting)
    gives_up_waiting = staticmethod(postgresql_errors.gives_up_waiting)
    is_denied = staticmethod(postgresql_errors.is_denied)
    is_undefined = staticmethod(postgresql_errors.is_undefined)
    is_bad_value = staticmethod(postgresql_errors.is_bad_value)
    cannot_write_now = staticmethod(postgresql_errors.cannot_write_now)
    comes_from_outside = staticmethod(postgresql_errors.comes_from_outside)
    hide_rows = staticmethod(postgresql_errors.hide_rows)

    def abandon(self, raw: Any) -> None:
        pass  # others can write

    def mark(self, raw: Any, execute: Callable[[str, Mapping[str, Any]], object]) -> bool:  # noqa: ARG002 - HANDLER does
        return postgresql_session.is_marked(raw)

    def is_marked(self, raw: Any, execute: Callable[[str, Mapping[str, Any]], object]) -> bool:  # noqa: ARG002
        return postgresql_session.is_marked(raw)

    def explain(self, error: Exception, raw: Callable[[], Any]) -> None:
        postgresql_session.explain_encoding(error, raw)
        postgresql_errors.add_hint(error)
