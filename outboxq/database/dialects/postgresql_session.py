"""How our transactions begin on PostgreSQL: under settings that are said each time, or once to a connection that is ours alone.

BEGIN with its settings, the statement and COMMIT are three round trips, of which a claim of one needs the second only. So a
worker's own connections are given the settings when they are made, and a transaction of one statement is that statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from ...errors import UnsupportedDatabase
from . import postgresql_encoding
from .base import Begin

# A server that vanishes without a word (a cable, a firewall's forgetting) is noticed within a minute, not within hours.
_PATIENCE: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
# Said while connecting, so whatever a role, a database or PGCLIENTENCODING has is no matter and costs nothing.
_UNICODE: Final = {"client_encoding": "utf8"}

# A handler may take as long as its own timeout says, and ours would fail with a connection that was closed over a pause.
_PATIENT: Final = "idle_in_transaction_session_timeout = 0"
# A look at whole tables, or a migration, takes as long as they are large, whatever a role allows its statements.
_UNHURRIED: Final = "statement_timeout = 0"
# psycopg reads times in ISO only, and our patterns have backslashes that are no escapes.
_READABLE: Final = (_PATIENT, "datestyle = 'ISO'", "standard_conforming_strings = on")
# READ COMMITTED and short timeouts whatever the engine's or the role's defaults are.
# A batch of ends waits two seconds for a row that a stuck transaction has locked; then it goes on without that one.
# Plans are index look-ups even where they were made, and kept, while a table was empty: an idle queue's tables are.
# Such a plan may be kept: planning takes longer than a claim of one (1.6 ms against 0.9) and finds nothing better.
# Recursive CTEs are estimated a hundred times too dear, which would have each claim compiled first (95 ms for 5).
_SETTINGS: Final = (
    "lock_timeout = '2s'",
    "statement_timeout = '60s'",
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    "jit = off",
    "plan_cache_mode = force_generic_plan",
    *_READABLE,
)
# A batch joins its CTEs by hash: the planner takes them for ten rows, and would compare each with each.
_WRITES: Final = (*_SETTINGS, "enable_nestloop = off")
_READS: Final = (*_SETTINGS, "enable_nestloop TO DEFAULT")


def _said(first: str, how: str, *settings: str) -> str:
    """One message."""
    return "; ".join([first, *(f"{how} {setting}" for setting in settings)])


_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
# It says how later transactions begin, and is taken back before the next one does: so nobody ever goes by it. But the server
# tells its clients what it is (from version 14 on) whenever it changes, without being asked.
_MARK: Final = "default_transaction_read_only"
BEGIN: Final[Mapping[Begin, str]] = {
    Begin.WRITE: _said(_WRITE, "SET LOCAL", *_WRITES),
    Begin.SINGLE: _said(_WRITE, "SET LOCAL", *_WRITES),
    Begin.INSERT: "",
    Begin.READ: _said("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY", "SET LOCAL", *_READS),
    Begin.SNAPSHOT: _said(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SET LOCAL", "jit = off", _UNHURRIED, *_READABLE
    ),
    Begin.ASYNCHRONOUS: _said(_WRITE, "SET LOCAL", *_WRITES, "synchronous_commit = off"),
    Begin.SINGLE_ASYNCHRONOUS: _said(_WRITE, "SET LOCAL", *_WRITES, "synchronous_commit = off"),
    Begin.HANDLER: _said(_WRITE, "SET LOCAL", f"{_MARK} = on", _PATIENT),
    Begin.MIGRATION: _said(_WRITE, "SET LOCAL", "jit = off", _UNHURRIED, *_READABLE),
}
"""On a connection of which nothing is known."""
# Times come back in UTC, which psycopg reads in half the time of any other zone.
_OWN: Final = _said(
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    "SET",
    *_WRITES,
    "timezone = 'UTC'",
    "client_encoding = 'UTF8'",
    "intervalstyle = 'postgres'",
    "bytea_output = 'hex'",
)
_COMMITS: Final[Mapping[Begin, str]] = {
    Begin.WRITE: "DEFAULT",
    Begin.SINGLE: "DEFAULT",
    Begin.ASYNCHRONOUS: "off",
    Begin.SINGLE_ASYNCHRONOUS: "off",
}
"""What `synchronous_commit` is for those that go by a connection's own settings."""
_KEY: Final = "outboxq_commits"
"""In the `info` of a connection that has our settings: what its `synchronous_commit` is."""
_DIRECT: Final = "outboxq_direct"
"""In the `info` of a connection: whether nothing stands between it and one session of the server."""


def made_ours(url: URL) -> URL:
    """Return the URL as our own connections are made by it."""
    return url.set(query={**_PATIENCE, **url.query, **_UNICODE})


def set_up(engine: Engine) -> None:
    """Have the connections of an engine of our own refuse a database that is not UTF-8, and prepare nothing behind a pooler."""
    event.listen(engine, "connect", _meet, insert=True)  # before SQLAlchemy asks the server for what it could not read


def keep_settings(engine: Engine) -> None:
    """Have the connections of an engine that is ours alone know our settings."""
    if engine.pool.dispatch.reset or engine.pool.dispatch.checkin:
        return  # a host that cleans its connections would take the settings back
    event.listen(engine, "connect", _settle)


def opening(begin: Begin, info: MutableMapping[Any, Any]) -> Iterator[str]:
    """What is said to begin, a message each; `info` is what SQLAlchemy remembers of the connection."""
    wanted, commits = _COMMITS.get(begin), info.get(_KEY)
    if begin is Begin.INSERT:
        return
    if wanted is None or commits is None:
        yield BEGIN[begin]
        return
    if wanted != commits:
        yield f"SET synchronous_commit TO {wanted}"
        info[_KEY] = wanted
    if begin not in {Begin.SINGLE, Begin.SINGLE_ASYNCHRONOUS}:
        yield _WRITE


def is_open(raw: psycopg.Connection[Any]) -> bool:
    """Return whether a transaction is open; a driver that begins them by itself, as under Django, counts as open."""
    return raw.info.transaction_status is not TransactionStatus.IDLE or not raw.autocommit


def is_spoilt(raw: psycopg.Connection[Any]) -> bool:
    """Return whether the transaction is aborted, or the connection lost."""
    return raw.closed or raw.info.transaction_status in {TransactionStatus.INERROR, TransactionStatus.UNKNOWN}


def is_marked(raw: psycopg.Connection[Any]) -> bool:
    """Return whether HANDLER began this transaction, as far as the server has told. Some poolers do not pass that on."""
    return raw.info.parameter_status(_MARK) == "on"


def say(raw: Any, text: str, execute: Callable[[str], object]) -> None:
    # Several commands cannot be prepared, and a host may have asked for everything to be.
    threshold, raw.prepare_threshold = raw.prepare_threshold, None
    try:
        execute(text)
    finally:
        raw.prepare_threshold = threshold


def _meet(raw: psycopg.Connection[Any], record: Any) -> None:
    """Look at a new connection before anything is said on it, which needs one round trip."""
    try:
        postgresql_encoding.ensure_server(raw)
    except UnsupportedDatabase:
        raw.close()  # the pool does not know it yet
        raise
    _is_direct(raw, record)


def _settle(raw: psycopg.Connection[Any], record: Any) -> None:
    """Give a connection our settings, unless a pooler may lend the server's session to others after each transaction."""
    if not _is_direct(raw, record):
        return
    with _autocommit(raw):  # else the settings would be rolled back
        _asked(raw, _OWN)
    record.info[_KEY] = "DEFAULT"
    if raw.prepare_threshold is not None:
        raw.prepare_threshold = 0  # the plan is kept from the first time on


def _is_direct(raw: psycopg.Connection[Any], record: Any) -> bool:
    """Return whether no pooler stands between; where one does, nothing is prepared from now on.

    A pooler has to give its clients keys of its own, or it could not tell whose statement a request to cancel means; so the
    process that was told is not the one that answers. What is prepared in one server session would be missing in the next
    one it lends us, or be somebody else's of the same name.
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
