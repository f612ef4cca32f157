"""A connection that outlives the engines of one test after another.

A new one costs the server 10 to 20 ms of a processor's time: a process is started, reads what there is to know of every table,
and plans each statement for the first time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import URL, Engine, event
from sqlalchemy.pool import QueuePool

from outboxq.database.engine import detached

NOBODYS = "outboxq-tests-reuse"
"""The `application_name` of a connection that no test has."""

# All that DISCARD ALL does, except that plans and prepared statements stay.
_RESET = f"""
CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD SEQUENCES;
DISCARD TEMP; SET application_name = '{NOBODYS}'
"""
_AS_MADE = {
    "autocommit": False,
    "isolation_level": None,
    "read_only": None,
    "deferrable": None,
    "prepare_threshold": 5,
    "row_factory": tuple_row,
    "cursor_factory": psycopg.Cursor,
}


class Warm:
    """One connection, lent to the first engine of each test that connects. The engines, their pools and their listeners are the
    test's own.
    """

    def __init__(self, make: Callable[[URL], Engine]) -> None:
        self._make = make
        self._owner = os.getpid()
        self._idle: list[psycopg.Connection[Any]] = []  # one, or none while a test has it
        self._lent: psycopg.Connection[Any] | None = None

    def lend(self, engine: Engine) -> None:
        """Have the engine's first connection be this one, if nobody has it by then."""
        if not self._idle and self._lent is None:
            # Now, not in the middle of what a test does to its database.
            self._lent = detached(self._make(engine.url))
            self._lent.prepared_max = 500
            self._clean()
        event.listen(engine, "do_connect", self._give)

    def take_back(self, engines: Iterable[Engine]) -> None:
        """Clean the connection, if it lies in one of the pools. Else it is closed, or a thread still has it: it is forgotten."""
        entries = [
            entry for engine in engines if isinstance(engine.pool, QueuePool) for entry in [*engine.pool._pool.queue]
        ]
        for entry in entries:
            if self._lent is not None and entry.dbapi_connection is self._lent:
                entry.dbapi_connection = None
                with suppress(psycopg.Error):  # the server has ended it
                    self._clean()
        self._lent = None

    def forget_statements(self) -> None:
        """To be called when tables are gone: the next test's may have the same name and other columns."""
        for raw in self._idle:
            raw._prepared.clear()  # psycopg does not take note of a second DEALLOCATE ALL

    def close(self) -> None:
        for raw in self._idle:
            raw.close()
        self._idle.clear()

    def _give(self, *_: object) -> psycopg.Connection[Any] | None:
        """Return it; None: SQLAlchemy makes one, as in a forked child, or where a test has ended everybody's connections."""
        if os.getpid() == self._owner:
            with suppress(IndexError, psycopg.Error):
                raw = self._idle.pop()
                raw.execute("RESET application_name", prepare=False)
                raw.autocommit = False
                self._lent = raw
                return raw
        return None

    def _clean(self) -> None:
        raw, self._lent = self._lent, None
        assert raw is not None
        if raw.closed or raw.info.transaction_status is not TransactionStatus.IDLE:
            return raw.close()
        for name, value in _AS_MADE.items():
            setattr(raw, name, value)
        raw._notice_handlers.clear()
        raw._notify_handlers.clear()
        raw.autocommit = True
        raw.execute(_RESET.encode(), prepare=False)
        self._idle.append(raw)
        return None
