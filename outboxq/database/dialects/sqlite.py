"""Run on SQLite: a transition's steps one after the other under BEGIN IMMEDIATE, batches sent as one JSON parameter,
and Python's clock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, ClassVar

from sqlalchemy import Dialect as SqlalchemyDialect
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError

from ...errors import ConfigurationError, UnsupportedDatabase
from ..grammar import Columns, Transition
from . import sqlite_engine, sqlite_file
from .base import Dialect
from .plans import Encoder, Script, packed
from .sqlite_grammar import SqliteGrammar


class SqliteDialect(Dialect):
    name = "sqlite"
    begin: ClassVar = sqlite_engine.BEGIN
    reads_before_writing = True
    one_writer = True
    one_statement = notifies = stops_midway = has_roles = has_partitions = measures_tables = has_clock = False
    driver_connection = sqlite3.Connection
    driver_error = sqlite3.Error
    # The engine's own BEGIN, which is undone immediately, must not take a lock.
    connection_options: ClassVar = {"sqlite_begin": "DEFERRED", "outboxq_begins": True}

    grammar: SqliteGrammar

    def __init__(self, compiler: SqlalchemyDialect, schema: None) -> None:
        super().__init__(compiler, schema, SqliteGrammar())

    fetch = staticmethod(sqlite_engine.fetch)
    is_unreadable = staticmethod(sqlite_engine.is_unreadable)
    begin_statements = staticmethod(sqlite_engine.begin_statements)
    execute_begin = staticmethod(sqlite_engine.execute_begin)
    keep_settings = staticmethod(sqlite_engine.keep_settings)

    hurry = staticmethod(sqlite_engine.hurry)
    is_open = staticmethod(attrgetter("in_transaction"))
    keep_private = staticmethod(sqlite_file.keep_private)
    open_file = staticmethod(sqlite_file.open_file)
    address = staticmethod(sqlite_file.path_of)
    is_in_memory = staticmethod(sqlite_file.is_in_memory)
    missing_file = staticmethod(sqlite_file.missing)
    log_of = staticmethod(sqlite_file.log_of)
    is_damaged = staticmethod(sqlite_file.is_damaged)
    is_undefined = staticmethod(sqlite_file.is_undefined)

    def plan(self, transition: Transition) -> Script:
        return Script(transition, self.grammar, prepare=self.prepare, encoders=self.encoders(transition.given))

    def pack(self, name: str, columns: Columns, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        return {name: packed(rows, self.encoders(columns)) if rows else "[]"}

    def encoders(self, columns: Columns) -> list[Encoder | None]:
        """Return, for each column, the function that converts Python's values into SQLite's; None if no conversion is
        needed.
        """
        return [kind.dialect_impl(self.compiler).bind_processor(self.compiler) for kind in columns.values()]

    def database_name(self, url: URL) -> str | None:
        return sqlite_engine.real_path(url.database) if url.database and not url.database.startswith("file:") else None

    def called(self, address: str) -> str:
        return f"the SQLite file {address}"

    def normalize_url(self, url: URL) -> URL:
        if (driver := url.get_driver_name()) != "pysqlite":
            raise UnsupportedDatabase(f"outboxq uses Python's sqlite3, not {driver}; write sqlite:///…")
        if url.host:
            raise ConfigurationError(
                f"sqlite://{url.host}/… names a host, which SQLite does not have; write sqlite:///{url.host}, with three slashes, "
                "for a file in this directory, or four slashes for an absolute path"
            )
        if sqlite_file.is_in_memory(url):
            raise ConfigurationError("an in-memory SQLite database cannot be shared with a worker; give outboxq a file")
        return url

    def abandon(self, raw: Any) -> None:
        with suppress(sqlite3.Error):
            raw.interrupt()
            raw.execute("PRAGMA query_only = ON")  # otherwise, the handler's next write would be a separate transaction
            raw.rollback()

    def mark(self, raw: Any, execute: Callable[[str, Mapping[str, Any]], object]) -> bool:  # noqa: ARG002
        execute("SAVEPOINT outboxq_task", {})  # a COMMIT also ends it
        return True

    def is_marked(self, raw: Any, execute: Callable[[str, Mapping[str, Any]], object]) -> bool:  # noqa: ARG002
        try:
            execute("RELEASE outboxq_task", {})
        except OperationalError as error:
            if "no such savepoint" not in str(error.orig):
                raise
            return False
        return True

    def set_up(self, engine: Engine) -> None:
        sqlite_engine.set_up(engine, self.is_transient)
        sqlite_file.follow(engine)

    def version(self, raw: Any) -> int | None:
        return raw.execute("PRAGMA data_version").fetchone()[0]  # type: ignore[no-any-return]

    def begin_for_real(self, engine: Engine) -> None:
        sqlite_engine.begin_for_real(engine)
        self.set_up(engine)

    def is_transient(self, error: BaseException) -> bool:
        return sqlite_file.code(error) in _BUSY

    def is_locked_out(self, error: BaseException) -> bool:  # noqa: ARG002 - there is one lock, for the whole file
        return False

    def cannot_write_now(self, error: BaseException) -> bool:
        return sqlite_file.code(error) in _NO_ROOM

    def comes_from_outside(self, error: BaseException) -> bool:
        return sqlite_file.code(error) in _FAILS

    def is_spoilt(self, raw: Any) -> bool:  # noqa: ARG002
        # SQLite undoes only the statement, and does not record that it did. But a full or failing disk is not the
        # handler's fault, whichever file it wrote to.
        return True

    def is_bad_value(self, error: BaseException) -> bool:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, sqlite3.OperationalError) and str(cause).startswith(sqlite_file.NO_TEXT):
            return True  # the driver's own error, without a code
        return sqlite_file.code(error) in {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR} and any(
            part in str(cause) for part in _OF_OURS
        )


_OF_OURS = (
    "NOT NULL constraint failed: task_",
    "CHECK constraint failed: ck_task_",
    "malformed JSON",
    "integer overflow",
    "JSON cannot hold BLOB values",
)
"""Texts of the errors from values that SQLite cannot compute with, and from results that would be NULL or too large."""
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FAILS = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM})
_NO_ROOM = _FAILS | {sqlite3.SQLITE_READONLY}
