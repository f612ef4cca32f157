"""SQLite connections as outboxq needs them: its own, and a caller's put right."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import tenacity
from sqlalchemy import Engine, event


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


def begin_for_real(engine: Engine) -> None:
    """Have SQLAlchemy begin each transaction, as a writer unless told otherwise, instead of the driver."""
    event.listen(engine, "connect", _begin_by_hand)
    event.listen(engine, "begin", _begin)


def _begin_by_hand(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None


def _begin(connection: Any) -> None:
    options = connection.get_execution_options()
    if options.get("isolation_level") == "AUTOCOMMIT":
        return
    # SQLAlchemy gives the driver its own way of beginning back after every AUTOCOMMIT use of a pooled connection.
    connection.connection.dbapi_connection.isolation_level = None
    connection.exec_driver_sql("BEGIN DEFERRED" if options.get("sqlite_begin") == "DEFERRED" else "BEGIN IMMEDIATE")


def real_path(file: str) -> str:
    """By which two connections to one file are known to be to the same database."""
    return _resolved(file if file.startswith("/") else str(Path(file).absolute()))  # of where the process is now


@lru_cache(maxsize=64)
def _resolved(file: str) -> str:
    return str(Path(file).resolve())
