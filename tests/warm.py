"""Database connections that outlive the engines of single tests.

A new connection costs the server 10 to 20 ms of CPU time: it starts a process, which loads the catalog entries of every table and
plans each statement for the first time.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import ReferenceType, WeakSet, ref

import psycopg
from psycopg._adapters_map import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Dialect, Engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import make_url

NOBODYS = "outboxq-tests-reuse"
"""The `application_name` of a connection that no test uses."""

# The same as DISCARD ALL, except that plans and prepared statements stay.
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
_MOST = 8
"""The maximum number of idle connections kept for each key."""

Key = tuple[str, ...]


class Warm:
    """The connections of this process's engines to one database. A connection that one engine closes is lent to the next one."""

    def __init__(self, url: str) -> None:
        address = make_url(url)
        self._place = address.host, address.port, address.username, address.database
        self._owner = os.getpid()
        self._borrowers: WeakSet[Dialect] = WeakSet()
        self.lends_to_all = True
        """True if every engine gets lent connections; False if only the engines given to `lend_to` do."""
        self._idle: defaultdict[Key, list[psycopg.Connection[Any]]] = defaultdict(list)
        _open.append(self)

    def lend_to(self, engine: Engine) -> None:
        self._borrowers.add(engine.dialect)

    def forget_statements(self) -> None:
        """Forget prepared statements after tables were dropped: new tables may have the same names but other columns."""
        for kind in self._idle.values():
            for raw in kind:
                raw._prepared.clear()  # psycopg does not notice a second DEALLOCATE ALL

    def close(self) -> None:
        _open.remove(self)
        for kind in self._idle.values():
            for raw in kind:
                psycopg.Connection.close(raw)
        self._idle.clear()

    def is_for(self, dialect: Dialect, options: dict[str, Any]) -> bool:
        """Return whether this dialect is lent a connection with these options. A forked child opens its own."""
        if dialect.is_async or not (self.lends_to_all or dialect in self._borrowers):
            return False
        place = tuple(options.get(name) for name in ("host", "port", "user", "dbname"))
        return os.getpid() == self._owner and place == self._place and "prepare_threshold" not in options

    def give(self, key: Key) -> psycopg.Connection[Any] | None:
        """Return an idle connection, or None if there is none or a test has ended all connections."""
        while self._idle[key]:
            with suppress(IndexError, psycopg.Error), _closed_by_an_error(self._idle[key].pop()) as raw:
                raw.execute("RESET application_name", prepare=False)
                if not _has_settings_of_its_own(raw):
                    raw.autocommit = False
                    return raw
                psycopg.Connection.close(raw)
        return None

    def keep(self, raw: psycopg.Connection[Any], key: Key) -> None:
        """Keep the connection for the next engine when this one closes it."""
        with _closed_by_an_error(raw):
            raw.autocommit = True
            has_settings = _has_settings_of_its_own(raw)
            raw.autocommit = False
        if not has_settings:
            raw.prepared_max = 500
            raw.close = partial(self._take_back, ref(raw), key)  # type: ignore[method-assign]

    def _take_back(self, reference: ReferenceType[psycopg.Connection[Any]], key: Key) -> None:
        raw = reference()
        assert raw is not None
        unfit = raw.closed or raw.info.transaction_status is not TransactionStatus.IDLE
        if unfit or self not in _open or os.getpid() != self._owner or len(self._idle[key]) >= _MOST:
            return psycopg.Connection.close(raw)
        for name, value in _AS_MADE.items():
            setattr(raw, name, value)
        raw._notice_handlers.clear()
        raw._notify_handlers.clear()
        raw.autocommit = True
        with suppress(psycopg.Error), _closed_by_an_error(raw):  # the server may have closed it
            raw.execute(_RESET.encode(), prepare=False)
            self._idle[key].append(raw)
        return None


@contextmanager
def _closed_by_an_error(raw: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """Close the connection on any error, such as the Ctrl-C of a test."""
    try:
        yield raw
    except BaseException:
        psycopg.Connection.close(raw)
        raise


def _has_settings_of_its_own(raw: psycopg.Connection[Any]) -> bool:
    """Return whether the database or a role has settings from a test, which apply only to new connections."""
    return raw.execute("SELECT EXISTS (SELECT FROM pg_db_role_setting)").fetchone() == (True,)


_open: list[Warm] = []
_connect = PGDialect_psycopg.connect


def _connect_warm(dialect: PGDialect_psycopg, *arguments: Any, **options: Any) -> Any:
    warm = next((one for one in _open if not arguments and one.is_for(dialect, options)), None)
    if warm is None:
        return _connect(dialect, *arguments, **options)
    named = sorted((name, value) for name, value in options.items() if name != "context")
    key = (str(dialect._on_connect_isolation_level), *(f"{name}={value}" for name, value in named))
    if (raw := warm.give(key)) is not None:
        context = options.get("context")
        raw._adapters = context and AdaptersMap(context.adapters)
    else:
        raw = _connect(dialect, **options)
        warm.keep(raw, key)
    return raw


def lend_warm_connections() -> None:
    """Lend connections of the reused databases to this process's engines."""
    PGDialect_psycopg.connect = _connect_warm  # type: ignore[method-assign]
