"""Configure SQLite connections, both outboxq's own and a caller's."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import tenacity
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from ..engine_events import listen
from .base import Begin, Version
from .sqlite_file import NO_TEXT

# A deferred transaction that begins to write fails immediately if another has written in the meantime, whatever the
# busy timeout is.
BEGIN: Final[Mapping[Begin, str]] = {
    **dict.fromkeys(Begin, "BEGIN IMMEDIATE"),
    **dict.fromkeys((Begin.READ, Begin.SNAPSHOT), "BEGIN DEFERRED"),
}
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE)\b")
"""Matches statements that write. Only statements that read may be run twice."""


def set_up(engine: Engine, is_transient: Callable[[BaseException], bool]) -> None:
    """Put every connection into WAL mode. Set a long busy timeout, because SQLite does not grant the writer lock in the
    order of the requests.
    """

    def connected(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA busy_timeout = 30000")
        # Switching a file to WAL mode locks it, and SQLite does not wait for that lock.
        tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_transient),
            wait=tenacity.wait_random(0.001, 0.05),
            stop=tenacity.stop_after_delay(30),
            reraise=True,
        )(connection.execute, "PRAGMA journal_mode = WAL")
        # LOG_KEPT: a long-running reader must not leave a huge log behind.
        connection.execute("PRAGMA journal_size_limit = 67108864")

    event.listen(engine, "connect", connected)


def keep_settings(engine: Engine) -> None:
    """Record the commit durability of our own engine's connections, so that `begin_statements` may vary it."""
    event.listen(engine, "connect", _remember)


def hurry(engine: Engine) -> None:
    """Make an engine's connections wait for the writer's lock for 50 ms at a time.

    SQLite has no queue for that lock. A waiting connection checks the lock after 1, 2, 5 … ms, and eventually only
    every 100 ms. So of two connections, the one that has waited for less time checks more often, and gets the lock
    first. As a result, four busy workers kept a heartbeat waiting for over two seconds. A connection that starts
    waiting again therefore also checks more often.
    """

    def connected(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA busy_timeout = 50")

    event.listen(engine, "connect", connected)


def begin_statements(begin: Begin, info: MutableMapping[Any, Any], version: Version) -> Iterator[str]:  # noqa: ARG001
    """Return the statements that begin a transaction. On our own connections, the transaction commits as
    durably as `begin` requires.

    An asynchronous commit is in the log but not yet on disk, so a machine crash may undo it and everything after it. A
    later flush by any connection includes this commit, because the log is a single file, which is read up to its first
    gap.
    """
    if (kept := info.get(_KEPT)) is not None:
        level = min(kept, _NORMAL) if begin in {Begin.ASYNCHRONOUS, Begin.SINGLE_ASYNCHRONOUS} else kept
        if level != info[_NOW]:
            yield f"PRAGMA synchronous = {level}"  # SQLite refuses it inside a transaction
            info[_NOW] = level
    yield BEGIN[begin]


def execute_begin(raw: sqlite3.Connection, text: str, execute: Callable[[str], object]) -> None:  # noqa: ARG001
    execute(text)


def begin_for_real(engine: Engine) -> None:
    """Make SQLAlchemy, not the driver, begin each transaction: a write transaction unless an option says otherwise."""
    event.listen(engine, "connect", _begin_by_hand)
    listen(engine, "begin", _begin)


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


def fetch(
    raw: sqlite3.Connection,
    sql: str,
    parameters: Mapping[str, Any],
    info: MutableMapping[Any, Any] | None = None,  # noqa: ARG001
) -> list[tuple[Any, ...]]:
    """Return rows in the driver's own types, despite the row and text factories of the caller's connection."""
    cursor = raw.cursor()
    cursor.row_factory = None
    text_factory, raw.text_factory = raw.text_factory, str
    try:
        return cursor.execute(sql, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if not is_unreadable(sql, error):
            raise
        raw.text_factory = _read_leniently  # an unreadable text in one row must not hide the others
        return cursor.execute(sql, parameters).fetchall()
    finally:
        raw.text_factory = text_factory
        cursor.close()


def is_unreadable(sql: str, error: BaseException) -> bool:
    """Return whether a statement that only reads failed because of text that is not UTF-8."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).startswith(NO_TEXT) and not _WRITES.search(sql)


def _read_leniently(text: bytes) -> str:
    return text.decode(errors="replace")


def real_path(file: str) -> str:
    """Return the path by which connections to one file are recognized as connections to the same database."""
    # A relative path depends on the process's current directory, so it is made absolute outside the cache.
    return _resolved(file if file.startswith("/") else str(Path(file).absolute()))


@lru_cache(maxsize=64)
def _resolved(file: str) -> str:
    return str(Path(file).resolve())


def file_of(raw: sqlite3.Connection) -> str | None:
    for _, name, file in fetch(raw, "PRAGMA database_list", {}):
        if name == "main":
            return real_path(file) if file else None
    return None
