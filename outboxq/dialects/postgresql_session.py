"""How our transactions begin on PostgreSQL: under settings that are said each time, or once to a connection that is ours alone.

BEGIN with its settings, the statement and COMMIT are three round trips, of which a claim of one needs the second only. So a
worker's own connections are given the settings when they are made, and a transaction of one statement is that statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Engine, event

from .base import Begin

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
    Begin.SNAPSHOT: _said("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SET LOCAL", "jit = off"),
    Begin.ASYNCHRONOUS: _said(_WRITE, "SET LOCAL", *_WRITES, "synchronous_commit = off"),
    Begin.SINGLE_ASYNCHRONOUS: _said(_WRITE, "SET LOCAL", *_WRITES, "synchronous_commit = off"),
    Begin.HANDLER: _said(_WRITE, "SET LOCAL", f"{_MARK} = on"),
}
"""On a connection of which nothing is known."""
# Times come back in UTC, which psycopg reads in half the time of any other zone.
_OWN: Final = _said(
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    "SET",
    *_WRITES,
    "timezone = 'UTC'",
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


def _settle(raw: psycopg.Connection[Any], record: Any) -> None:
    """Unless a pooler stands between, which may lend the server's session to others after each transaction.

    A pooler has to give its clients keys of its own, or it could not tell whose statement a request to cancel means; so the
    process that was told is not the one that answers.
    """
    autocommit, raw.autocommit = raw.autocommit, True  # else the settings would be rolled back
    try:
        with psycopg.Cursor(raw, row_factory=tuple_row) as cursor:
            found = cursor.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
            if found == (raw.info.backend_pid,):
                cursor.execute(_OWN.encode(), prepare=False)
                record.info[_KEY] = "DEFAULT"
                if raw.prepare_threshold is not None:
                    raw.prepare_threshold = 0  # the plan is kept from the first time on
    finally:
        raw.autocommit = autocommit
