"""Run on SQLite: a transition's steps one after the other under BEGIN IMMEDIATE, batches sent as one JSON parameter,
and Python's clock. The connections are outboxq's own or a caller's.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, ClassVar, Final

import tenacity
from sqlalchemy import Dialect as SqlalchemyDialect
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError

from ...errors import ConfigurationError, UnsupportedDatabase
from ..engine_events import listen
from ..grammar import Columns, Transition
from . import sqlite_file
from .base import Begin, Dialect, Version
from .plans import Encoder, Script, packed
from .sqlite_grammar import SqliteGrammar

# A deferred transaction that begins to write fails immediately if another has written in the meantime, whatever the
# busy timeout is.
BEGIN: Final[Mapping[Begin, str]] = {
    **dict.fromkeys(Begin, "BEGIN IMMEDIATE"),
    **dict.fromkeys((Begin.READ, Begin.SNAPSHOT), "BEGIN DEFERRED"),
}


class SqliteDialect(Dialect):
    name = "sqlite"
    begin: ClassVar = BEGIN
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
        return sqlite_file.real_path(url.database) if url.database and not url.database.startswith("file:") else None

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
        """Put every connection into WAL mode. Set a long busy timeout, because SQLite does not grant the writer lock in
        the order of the requests.
        """

        def connected(connection: sqlite3.Connection, _record: Any) -> None:
            connection.execute("PRAGMA busy_timeout = 30000")
            # Switching a file to WAL mode locks it, and SQLite does not wait for that lock.
            tenacity.Retrying(
                retry=tenacity.retry_if_exception(self.is_transient),
                wait=tenacity.wait_random(0.001, 0.05),
                stop=tenacity.stop_after_delay(30),
                reraise=True,
            )(connection.execute, "PRAGMA journal_mode = WAL")
            # LOG_KEPT: a long-running reader must not leave a huge log behind.
            connection.execute("PRAGMA journal_size_limit = 67108864")

        event.listen(engine, "connect", connected)
        sqlite_file.follow(engine)

    def keep_settings(self, engine: Engine) -> None:
        """Record the commit durability of our own engine's connections, so that `begin_statements` may vary it."""
        event.listen(engine, "connect", _remember)

    def hurry(self, engine: Engine) -> None:
        """Make an engine's connections wait for the writer's lock for 50 ms at a time.

        SQLite has no queue for that lock. A waiting connection checks the lock after 1, 2, 5 … ms, and eventually only
        every 100 ms. So of two connections, the one that has waited for less time checks more often, and gets the lock
        first. As a result, four busy workers kept a heartbeat waiting for over two seconds. A connection that starts
        waiting again therefore also checks more often.
        """
        event.listen(engine, "connect", lambda raw, _record: raw.execute("PRAGMA busy_timeout = 50"))

    def begin_statements(
        self,
        begin: Begin,
        info: MutableMapping[Any, Any],
        version: Version,  # noqa: ARG002
    ) -> Iterator[str]:
        """Return the statements that begin a transaction. On our own connections, the transaction commits as durably as
        `begin` requires.

        An asynchronous commit is in the log but not yet on disk, so a machine crash may undo it and everything after
        it. A later flush by any connection includes this commit, because the log is a single file, which is read up to
        its first gap.
        """
        if (kept := info.get(_KEPT)) is not None:
            level = min(kept, _NORMAL) if begin in {Begin.ASYNCHRONOUS, Begin.SINGLE_ASYNCHRONOUS} else kept
            if level != info[_NOW]:
                yield f"PRAGMA synchronous = {level}"  # SQLite refuses it inside a transaction
                info[_NOW] = level
        yield BEGIN[begin]

    def execute_begin(self, raw: Any, text: str, execute: Callable[[str], object]) -> None:  # noqa: ARG002
        execute(text)

    def version(self, raw: Any) -> int | None:
        return raw.execute("PRAGMA data_version").fetchone()[0]  # type: ignore[no-any-return]

    def begin_for_real(self, engine: Engine) -> None:
        event.listen(engine, "connect", _begin_by_hand)
        listen(engine, "begin", _begin)
        self.set_up(engine)

    def fetch(
        self,
        raw: sqlite3.Connection,
        sql: str,
        parameters: Mapping[str, Any],
        info: MutableMapping[Any, Any] | None = None,  # noqa: ARG002
    ) -> list[tuple[Any, ...]]:
        """Return rows in the driver's own types, despite the row and text factories of the caller's connection."""
        cursor = raw.cursor()
        cursor.row_factory = None
        text_factory, raw.text_factory = raw.text_factory, str
        try:
            return cursor.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if not self.is_unreadable(sql, error):
                raise
            # An unreadable text in one row must not hide the others.
            raw.text_factory = lambda text: text.decode(errors="replace")
            return cursor.execute(sql, parameters).fetchall()
        finally:
            raw.text_factory = text_factory
            cursor.close()

    def is_unreadable(self, sql: str, error: BaseException) -> bool:
        """Return whether a statement that only reads failed because of text that is not UTF-8."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        return str(cause).startswith(sqlite_file.NO_TEXT) and not _WRITES.search(sql)

    def is_transient(self, error: BaseException) -> bool:
        return sqlite_file.code(error) in _BUSY

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
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE)\b")
"""Matches statements that write. Only statements that read may be run twice."""
_KEPT, _NOW = "outboxq_synchronous", "outboxq_synchronous_now"
"""Keys in the `info` of our own connection: the durability that it was opened with, and the current one."""
_NORMAL = 1


def _remember(connection: sqlite3.Connection, record: Any) -> None:
    cursor = connection.cursor()
    cursor.row_factory = None
    [(level,)] = cursor.execute("PRAGMA synchronous").fetchall()
    cursor.close()
    record.info[_KEPT] = record.info[_NOW] = level


def _begin_by_hand(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None


def _begin(connection: Any) -> None:
    options = connection.get_execution_options()
    if options.get("isolation_level") == "AUTOCOMMIT":
        return
    # SQLAlchemy restores the driver's own way of beginning transactions after every AUTOCOMMIT use of a pooled
    # connection.
    connection.connection.dbapi_connection.isolation_level = None
    connection.exec_driver_sql("BEGIN DEFERRED" if options.get("sqlite_begin") == "DEFERRED" else "BEGIN IMMEDIATE")
