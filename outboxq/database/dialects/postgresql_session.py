"""The session on PostgreSQL: its encoding, and the messages that begin its transactions, with settings that are sent
each time or, on our own connections, once.

BEGIN with its settings, the statement, and COMMIT take three round trips, but a claim of one task needs only the second
of them. So a worker's own connections get the settings when they are opened, and a transaction of one statement is sent
as that statement alone.

The encoding must be UTF-8, in the database and on the connection, because no other encoding can represent every string.
The server reports both encodings when a connection is opened and when they change, so checking them does not require a
statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from ...errors import InvalidTarget, UnsupportedDatabase
from .base import Begin, Dialect, Version, milliseconds_of_a_statement

# If a server vanishes without an answer (a cut cable, a firewall that drops state), this is noticed within a minute
# instead of hours.
_TCP_TIMEOUTS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
# This is sent while connecting, so it overrides the settings of a role, a database or PGCLIENTENCODING without a round
# trip.
_UNICODE: Final = {"client_encoding": "utf8"}
_UTF8: Final = "UTF8"
_UNKNOWN: Final = "SQL_ASCII"
"""No encoding: psycopg returns text as bytes."""

# A handler may take as long as its own timeout allows. With our timeout, the handler would fail, because a pause would
# close its connection.
_NO_IDLE_TIMEOUT: Final = "idle_in_transaction_session_timeout = 0"
# The duration of a migration or of a statement that reads whole tables depends on the tables' size, so a limit set for
# the role must not apply. A command sets its own limit (`statement_timeout` in base.py).
_NO_STATEMENT_TIMEOUT: Final = "statement_timeout = 0"
# From version 17 on, a server can close the connection of a long transaction. Earlier versions do not know the setting.
_NO_TRANSACTION_TIMEOUT: Final = "transaction_timeout = 0"
_ENDS_TRANSACTIONS: Final = 17
WATCH_CLIENT: Final = (
    "SELECT set_config('client_connection_check_interval', '1s', true) "
    "WHERE current_setting('dynamic_shared_memory_type') <> 'windows'"
)
"""Make the server check every second, during the statements of this transaction, whether the client still exists.

Without a timeout, a killed client's statement would keep running, keep its locks and delay vacuum. A server on Windows
cannot check, and refuses the setting.
"""
_LOCK_TIMEOUT: Final = "lock_timeout = '2s'"
# psycopg reads times only in ISO format, and our patterns have backslashes that are not escapes.
_READABLE: Final = (_NO_IDLE_TIMEOUT, "datestyle = 'ISO'", "standard_conforming_strings = on")
PLAN_ONCE: Final = "plan_cache_mode = force_generic_plan"
# * READ COMMITTED and short timeouts, whatever the engine's or the role's defaults are.
# * A batch of task ends waits two seconds for a row that a stuck transaction has locked, and then continues without
#   that row.
# * Plans are index lookups, even if they were made and cached while a table was empty, as the tables of an idle queue
#   are.
# * Such a plan may be kept: planning takes longer than a claim of one task (1.6 ms compared with 0.9 ms) and does not
#   find a better plan.
# * The cost of recursive CTEs is overestimated a hundredfold, so JIT would compile each claim first (95 ms for a claim
#   of 5 tasks).
_SETTINGS: Final = (
    _LOCK_TIMEOUT,
    "statement_timeout = '60s'",
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    "jit = off",
    PLAN_ONCE,
    *_READABLE,
)
# The CTEs of a batch are joined by hash. The planner expects ten rows, and would otherwise compare every row with every
# other row.
_WRITES: Final = (*_SETTINGS, "enable_nestloop = off")
_READS: Final = (*_SETTINGS, "enable_nestloop TO DEFAULT")


def _message(first: str, how: str, *settings: str) -> str:
    """Return a statement and the settings after it as one message."""
    return "; ".join([first, *(f"{how} {setting}" for setting in settings)])


_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
# This setting applies to later transactions, and is undone before the next one begins, so none ever uses it. However,
# the server (from version 14 on) reports the value to the client whenever it changes, without being asked.
_MARK: Final = "default_transaction_read_only"
BEGIN: Final[Mapping[Begin, str]] = {
    **dict.fromkeys((Begin.WRITE, Begin.SINGLE), _message(_WRITE, "SET LOCAL", *_WRITES)),
    Begin.INSERT: "",
    Begin.READ: _message("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY", "SET LOCAL", *_READS),
    Begin.SNAPSHOT: "; ".join(
        [
            _message(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                "SET LOCAL",
                "jit = off",
                _LOCK_TIMEOUT,
                _NO_STATEMENT_TIMEOUT,
                *_READABLE,
            ),
            WATCH_CLIENT,
        ]
    ),
    Begin.ASYNCHRONOUS: _message(_WRITE, "SET LOCAL", *_WRITES, "synchronous_commit = off"),
    Begin.SINGLE_ASYNCHRONOUS: _message(_WRITE, "SET LOCAL", *_WRITES, "synchronous_commit = off"),
    Begin.HANDLER: _message(_WRITE, "SET LOCAL", f"{_MARK} = on", _NO_IDLE_TIMEOUT),
    Begin.MIGRATION: "; ".join(
        [_message(_WRITE, "SET LOCAL", "jit = off", _NO_STATEMENT_TIMEOUT, *_READABLE), WATCH_CLIENT]
    ),
}
"""The first statement of a transaction on a connection whose settings are not known."""
# Times are returned in UTC, which psycopg reads twice as fast as any other zone.
_OWN: Final = _message(
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    "SET",
    *_WRITES,
    "timezone = 'UTC'",
    "client_encoding = 'UTF8'",
    "intervalstyle = 'postgres'",
    "bytea_output = 'hex'",
)
# A read resets the one setting that only writes need. So a read begins with 2 commands in one message instead of 11.
_OWN_READ: Final = _message("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY", "SET LOCAL", "enable_nestloop TO DEFAULT")
"""The first statement of a READ transaction on a connection that has our settings."""
_COMMITS: Final[Mapping[Begin, str]] = {
    **dict.fromkeys((Begin.WRITE, Begin.SINGLE), "DEFAULT"),
    **dict.fromkeys((Begin.ASYNCHRONOUS, Begin.SINGLE_ASYNCHRONOUS), "off"),
}
"""The value of `synchronous_commit` for transactions on connections that have our settings."""
_KEY: Final = "outboxq_commits"
"""The key under which the `info` of a connection with our settings holds its current `synchronous_commit`."""
_DIRECT: Final = "outboxq_direct"
"""The key of a flag in a connection's `info`: True if there is no pooler between the connection and the server session.
"""


class PostgresSession(Dialect):
    """The part of PostgreSQL's dialect that sets up sessions and begins transactions."""

    begin: ClassVar = BEGIN
    watch_client = WATCH_CLIENT

    def normalize_url(self, url: URL) -> URL:
        if "+" not in url.drivername:
            url = url.set(drivername="postgresql+psycopg")
        if url.get_driver_name() != "psycopg":
            raise UnsupportedDatabase(
                f"outboxq uses psycopg 3, not {url.get_driver_name()}; write postgresql+psycopg://…"
            )
        return url.set(query={**_TCP_TIMEOUTS, **url.query, **_UNICODE})

    def set_up(self, engine: Engine) -> None:
        """Make our own engine refuse databases that do not use UTF-8, and avoid prepared statements behind a pooler."""
        # This must be the first listener, because SQLAlchemy's own listener would request values from the server that
        # SQLAlchemy cannot read in such a database.
        event.listen(engine, "connect", _examine, insert=True)

    def keep_settings(self, engine: Engine) -> None:
        """Apply our settings to our own engine's connections."""
        if engine.pool.dispatch.reset or engine.pool.dispatch.checkin:
            return  # an application that resets its connections would undo the settings
        event.listen(engine, "connect", _apply_settings)

    def begin_statements(self, begin: Begin, info: MutableMapping[Any, Any], version: Version) -> Iterator[str]:
        """Return the messages that begin a transaction. `info` is SQLAlchemy's record of the connection, and `version`
        is the server's version.
        """
        wanted, commits = _COMMITS.get(begin), info.get(_KEY)
        if begin is Begin.INSERT:
            return
        if begin is Begin.READ and commits is not None:
            yield _OWN_READ
            return
        if wanted is None or commits is None:
            text = BEGIN[begin].replace(_NO_STATEMENT_TIMEOUT, f"statement_timeout = {milliseconds_of_a_statement()}")
            if commits is None and version and version[0] >= _ENDS_TRANSACTIONS:
                text = _message(text, "SET LOCAL", _NO_TRANSACTION_TIMEOUT)
            yield text
            return
        if wanted != commits:
            yield f"SET synchronous_commit TO {wanted}"
            info[_KEY] = wanted
        if begin not in {Begin.SINGLE, Begin.SINGLE_ASYNCHRONOUS}:
            yield _WRITE

    def execute_begin(self, raw: Any, text: str, execute: Callable[[str], object]) -> None:
        # A message with several commands cannot be prepared, and an application may have asked for everything to be
        # prepared.
        threshold, raw.prepare_threshold = raw.prepare_threshold, None
        try:
            execute(text)
        finally:
            raw.prepare_threshold = threshold

    def is_open(self, raw: psycopg.Connection[Any]) -> bool:
        """Return True if a transaction is open. A connection whose driver begins transactions implicitly, as it can
        under Django, counts as having one open.
        """
        # Not raw.info, which creates an object, and looks the status up by its number.
        return raw.pgconn.transaction_status != TransactionStatus.IDLE or not raw.autocommit

    def is_spoilt(self, raw: psycopg.Connection[Any]) -> bool:
        """Return True if the transaction is aborted, or if the connection is lost."""
        return raw.closed or raw.info.transaction_status in {TransactionStatus.INERROR, TransactionStatus.UNKNOWN}

    is_aborted = is_spoilt

    def is_marked(self, raw: psycopg.Connection[Any], execute: Callable[[str, Mapping[str, Any]], object]) -> bool:  # noqa: ARG002
        """Return True if the server has reported that HANDLER began this transaction. Some poolers do not pass the
        report on.
        """
        return raw.info.parameter_status(_MARK) == "on"

    mark = is_marked  # HANDLER has set the mark

    def ensure_readable(self, raw: Any) -> None:
        """Raise the error from `ensure_server`, or InvalidTarget if a caller's connection does not have an encoding."""
        if not hasattr(raw, "info"):
            return
        ensure_server(raw)
        if _told(raw, "client_encoding") == _UNKNOWN:
            raise InvalidTarget(
                f"this connection's client encoding is {_UNKNOWN}, so text is returned as bytes; outboxq needs UTF-8: "
                "connect with client_encoding=utf8, or run ALTER ROLE … RESET client_encoding"
            )


def ensure_server(raw: Any) -> None:
    """Raise UnsupportedDatabase unless the database behind a driver's connection uses UTF-8."""
    found = _told(raw, "server_encoding")
    if found is not None and found != _UTF8:
        raise UnsupportedDatabase(
            f"the database {raw.info.dbname!r} uses the encoding {found}, which cannot store every string; outboxq needs UTF-8: "
            "create a database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and move the data with pg_dump"
        )


def explain_encoding(error: Exception, raw: Callable[[], Any]) -> None:
    """Raise InvalidTarget for a string that a caller's connection cannot encode, or for times in a format that psycopg
    cannot read.
    """
    if isinstance(error, UnicodeEncodeError) and (found := _told(raw(), "client_encoding")) not in (None, _UTF8):
        raise InvalidTarget(
            f"this connection's client encoding {found} cannot represent {error.object[error.start : error.end]!r}; nothing "
            "was written: connect with client_encoding=utf8, or run ALTER ROLE … RESET client_encoding"
        ) from error
    if isinstance(error, NotImplementedError) and "DateStyle" in str(error):  # psycopg raises it
        style = _told(raw(), "DateStyle")
        raise InvalidTarget(
            f"this connection's datestyle is {style!r}, in which psycopg cannot read times; connect with "
            "options='-c datestyle=ISO', or run ALTER ROLE … RESET datestyle"
        ) from error


def _told(raw: Any, name: str) -> str | None:
    return raw.info.parameter_status(name)  # type: ignore[no-any-return]


def _examine(raw: psycopg.Connection[Any], record: Any) -> None:
    """Examine a new connection before anything is sent on it. The check takes one round trip."""
    try:
        ensure_server(raw)
    except UnsupportedDatabase:
        raw.close()  # the pool does not know the connection yet
        raise
    _is_direct(raw, record)


def _apply_settings(raw: psycopg.Connection[Any], record: Any) -> None:
    """Give a connection our settings, unless a pooler may lend the server's session to other clients after each
    transaction.
    """
    if not _is_direct(raw, record):
        return
    further = (_NO_TRANSACTION_TIMEOUT,) if raw.info.server_version >= 10_000 * _ENDS_TRANSACTIONS else ()
    with _autocommit(raw):  # otherwise the settings would be rolled back
        _asked(raw, _message(_OWN, "SET", *further))
    record.info[_KEY] = "DEFAULT"
    if raw.prepare_threshold is not None:
        raw.prepare_threshold = 0  # the plan is kept from the first run on


def _is_direct(raw: psycopg.Connection[Any], record: Any) -> bool:
    """Return True if there is no pooler between the connection and the server session. Behind a pooler, statements are
    no longer prepared.

    A pooler has to issue its own cancel keys to its clients, because it could not otherwise tell which statement a
    cancel request belongs to. So the process id in the key differs from that of the process that answers. A statement
    prepared in one server session would be missing in the next session that the pooler lends us, or that session might
    have another client's statement with the same name.
    """
    direct = record.info.get(_DIRECT)
    if direct is None:
        with _autocommit(raw):
            direct = _asked(raw, "SELECT pg_backend_pid()") == (raw.info.backend_pid,)
        record.info[_DIRECT] = direct
        if not direct:
            raw.prepare_threshold = None
    return bool(direct)


@contextmanager
def _autocommit(raw: psycopg.Connection[Any]) -> Iterator[None]:
    autocommit, raw.autocommit = raw.autocommit, True
    try:
        yield
    finally:
        raw.autocommit = autocommit


def _asked(raw: psycopg.Connection[Any], text: str) -> tuple[Any, ...] | None:
    with psycopg.Cursor(raw, row_factory=tuple_row) as cursor:
        cursor.execute(text.encode(), prepare=False)
        return cursor.fetchone() if cursor.description else None
