"""SQLite connections as outboxq needs them: its own, and a caller's put right."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tenacity
from sqlalchemy import Engine, event

from ..engine_events import listen
from .sqlite_file import NO_TEXT

_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE)\b")
"""Only a statement that reads may be run twice."""


def set_up(engine: Engine, is_transient: Callable[[BaseException], bool]) -> None:
    """Every connection in WAL mode, waiting long: the queue for the one writer's lock is not fair."""

    def connected(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA busy_timeout = 30000")
        # A file that is not in WAL mode yet is locked for the switch, and for that lock SQLite does not wait.
        tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_transient),
            wait=tenacity.wait_random(0.001, 0.05),
            stop=tenacity.stop_after_delay(30),
            reraise=True,
        )(connection.execute, "PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA journal_size_limit = 67108864")  # a long reader must not leave a huge log behind

    event.listen(engine, "connect", connected)


def keep_settings(engine: Engine) -> None:
    """Have the connections of an engine that is ours alone say how durable their commits are, so that `settled` may vary it."""
    event.listen(engine, "connect", _remember)


def hurry(engine: Engine) -> None:
    """Have an engine's connections wait for the writer's lock for 50 ms at a time.

    SQLite has no queue for that lock. Who waits looks after 1, 2, 5 … ms, and at last only every 100 ms; whoever comes later
    looks more often and wins. Four busy workers kept a heartbeat waiting for over two seconds that way. Who begins to wait
    anew looks often again.
    """

    def connected(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA busy_timeout = 50")

    event.listen(engine, "connect", connected)


def settled(info: MutableMapping[Any, Any], *, flushed: bool) -> Iterator[str]:
    """What is to be said before a transaction begins. `flushed`: it commits as durably as the connection was made to.

    Otherwise its commit is in the log, but not on the disk: a crash of the machine may take it back, with all that follows it.
    What is flushed later, by whomever, is never kept without it: the log is one file, and is read up to its first gap.
    """
    if (kept := info.get(_KEPT)) is not None:
        level = kept if flushed else min(kept, _NORMAL)
        if level != info[_NOW]:
            yield f"PRAGMA synchronous = {level}"  # inside a transaction it is an error
            info[_NOW] = level


def begin_for_real(engine: Engine) -> None:
    """Have SQLAlchemy begin each transaction, as a writer unless told otherwise, instead of the driver."""
    event.listen(engine, "connect", _begin_by_hand)
    listen(engine, "begin", _begin)


_KEPT, _NOW = "outboxq_synchronous", "outboxq_synchronous_now"
"""In the `info` of a connection that is ours alone: how it was made, and how it is."""
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
    # SQLAlchemy gives the driver its own way of beginning back after every AUTOCOMMIT use of a pooled connection.
    connection.connection.dbapi_connection.isolation_level = None
    connection.exec_driver_sql("BEGIN DEFERRED" if options.get("sqlite_begin") == "DEFERRED" else "BEGIN IMMEDIATE")


def fetch(raw: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Rows in the driver's own types, whatever the caller's connection makes of rows and texts."""
    cursor = raw.cursor()
    cursor.row_factory = None
    text_factory, raw.text_factory = raw.text_factory, str
    try:
        return cursor.execute(sql, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if _WRITES.search(sql) or not str(error).startswith(NO_TEXT):
            raise
        raw.text_factory = _read_leniently  # one row's text must not hide the others
        return cursor.execute(sql, parameters).fetchall()
    finally:
        raw.text_factory = text_factory
        cursor.close()


def _read_leniently(text: bytes) -> str:
    return text.decode(errors="replace")


def real_path(file: str) -> str:
    """By which two connections to one file are known to be to the same database."""
    return _resolved(file if file.startswith("/") else str(Path(file).absolute()))  # of where the process is now


@lru_cache(maxsize=64)
def _resolved(file: str) -> str:
    return str(Path(file).resolve())
