"""Describe the holders of table locks, and let an upgrade lock tables without blocking other transactions for long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import DDLElement
from sqlalchemy.sql.compiler import DDLCompiler

from ..model.wording import plural
from .dialects import Dialect, Execute
from .dialects.catalogue import (
    of_server,
    pg_class,
    pg_inherits,
    pg_namespace,
    pg_prepared_xacts,
    pg_stat_activity,
    seconds_since,
)
from .dialects.plans import Row
from .grammar import Grammar, materialized, text_literal
from .tables import VERSION_TABLE, metadata

NAMES: Final = (*sorted(metadata.tables), VERSION_TABLE)
"""The names of our tables, in the order in which they are locked."""

LOCK_TIMEOUT: Final = timedelta(milliseconds=900)
"""The maximum time that other sessions queue behind an upgrade in one round.

It is shorter than the usual deadlock_timeout of 1 s, so that in a deadlock, it is the upgrade that gives up, not a
producer.
"""

WAIT: Final = timedelta(minutes=2)
"""The time for which an upgrade keeps trying to lock tables that other sessions have locked."""

_VACUUM_TIMEOUT: Final = "5s"
"""The time to wait for a lock that blocks neither readers nor writers. A running autovacuum gives way to the lock
request after deadlock_timeout.
"""
_CONFLICTS_WITH_READS: Final = frozenset({"AccessExclusiveLock"})
_CONFLICTS_WITH_WRITES: Final = frozenset(
    {"ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"}
)
_OF_WRITERS: Final = frozenset({"RowShareLock", "RowExclusiveLock"})
_MOST_NAMED: Final = 3
_LONGEST: Final = 100
"""The maximum number of characters of a statement that a description quotes."""
_VALUE: Final = re.compile(
    r"--[^\n]*|/\*.*?(?:\*/|\Z)"  # comments
    r"|\$(\w*)\$.*?(?:\$\1\$|\Z)|(?<!\w)[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z)|\b\d[\w.]*",
    re.DOTALL,
)
"""A comment or a value in the text of a statement, even if the text was cut off."""


class Busy(Exception):
    """The tables could not be locked in this round. The exception's cause is the database's error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A session, or a prepared transaction, that holds or wants locks on our tables."""

    pid: int | None
    """The id of the server's process; None for a prepared transaction."""
    prepared: str | None
    tables: Sequence[str]
    holds: frozenset[str]
    """The modes of the locks that the session holds, such as AccessShareLock."""
    wants: frozenset[str]
    """The modes of the locks that the session is waiting for."""
    waits_for: Sequence[int]
    """The processes that the session is waiting for."""
    application: str | None
    state: str | None
    """The state in pg_stat_activity, such as "idle in transaction"; None if the role is not permitted to see it."""
    query: str | None
    age: timedelta | None
    """The age of the session's transaction."""
    in_state: timedelta | None

    @classmethod
    def of(cls, row: Row) -> Self:
        modes = {name: frozenset(row[name] or ()) for name in ("holds", "wants")}
        spans = {name: None if row[name] is None else timedelta(seconds=row[name]) for name in ("age", "in_state")}
        return cls(**{**row, **modes, **spans, "waits_for": row["waits_for"] or ()})

    def __str__(self) -> str:
        """Return a description of the session: its name, its age, and its statement without values."""
        if self.prepared is not None:
            return f"the prepared transaction {self.prepared!r} ({_aged(self.age)}), which you can end with ROLLBACK PREPARED or COMMIT PREPARED"
        about = [one for one in (self.application, _aged(self.age), self._doing()) if one]
        return f"process {self.pid} ({', '.join(about)})"

    def _doing(self) -> str:
        if self.state is None or self.query is None:
            return "the current role is not permitted to see its statement"
        statement = statement_shown(self.query)
        if self.state == "active":
            return f"running: {statement}"
        return f"{self.state} for {_seconds(self.in_state)}, last statement: {statement}"


def holders(dialect: Dialect, execute: Execute) -> list[Holder]:
    """Return the other sessions that hold or want locks on our tables; an empty list if the database has one lock for
    the whole file.
    """
    if dialect.one_writer:
        return []
    dialect.compiled[fresh_look].run(execute, {})
    return [Holder.of(row) for row in dialect.compiled[select_holders].run(execute, {})]


def culprits(found: Iterable[Holder]) -> list[Holder]:
    """Return the sessions that made our statement wait, the original cause first."""
    known = list(found)
    for modes in (_CONFLICTS_WITH_READS, _CONFLICTS_WITH_WRITES):
        if strong := [one for one in known if (one.holds | one.wants) & modes]:
            behind = {pid for one in strong if not one.holds & modes for pid in one.waits_for}
            return [*(one for one in known if one.pid in behind and one not in strong), *strong]
    return [one for one in known if one.holds & _OF_WRITERS and not one.waits_for]


def in_the_way(found: Iterable[Holder]) -> list[Holder]:
    """Return the sessions that an ACCESS EXCLUSIVE lock has to wait for: all sessions that hold a lock. Sessions that
    are not waiting for another session come first.
    """
    return [one for one in found if one.holds]


def are_locked(found: Iterable[Holder]) -> bool:
    """Return whether a session holds a lock that every statement on a table has to wait for."""
    return any(one.holds & _CONFLICTS_WITH_READS for one in found)


def sentence(found: Sequence[Holder], *, whole: bool) -> str:
    """Describe the sessions that lock our tables or, if `whole` is False, the sessions that may lock a row in them."""
    if not found:
        return "other sessions keep locking the tables"
    named = "; ".join(f"{one} has {_locks_of(one)}" for one in found[:_MOST_NAMED])
    more = len(found) - _MOST_NAMED
    rest = f"; and {more} {plural(more, 'other', 'others')}" if more > 0 else ""
    return f"{named}{rest}" if whole else f"a row is locked, perhaps by one of these: {named}{rest}"


def explained(found: Sequence[Holder]) -> str:
    """Explain why our statement reached the lock timeout, using the sessions that `holders` found."""
    why = culprits(found)
    strong = any((one.holds | one.wants) & _CONFLICTS_WITH_WRITES for one in why)
    return sentence(why, whole=strong or not why)


def take(dialect: Dialect, execute: Execute, lock_timeout: str, names: Sequence[str] = NAMES) -> None:
    """Lock these tables, if they exist, in ACCESS EXCLUSIVE mode until the transaction ends.

    No session waits for longer than `lock_timeout`, however many tables there are, because the time for the whole
    statement is limited too. This call locks all of the tables, in a fixed order, so that no later statement has to
    wait for a lock while other sessions wait for this transaction. Raises Busy.
    """
    places = [
        (row["schema"], row["name"]) for row in dialect.compiled[select_places].run(execute, {}) if row["name"] in names
    ]
    if not places:
        return
    try:
        # This waits for vacuums only, and does not block any other statement.
        before = limit(dialect, execute, _VACUUM_TIMEOUT, "0")
        _lock(dialect, execute, places, "SHARE UPDATE EXCLUSIVE")
        limit(dialect, execute, lock_timeout, lock_timeout)
        _lock(dialect, execute, places, "ACCESS EXCLUSIVE")
    except DBAPIError as error:
        if dialect.gives_up_waiting(error):
            raise Busy from error
        raise
    limit(dialect, execute, lock_timeout, before["statement_timeout"])


def limit(dialect: Dialect, execute: Execute, lock_timeout: str, statement_timeout: str | None = None) -> Row:
    """Set these timeouts for the rest of the transaction; None leaves a timeout unchanged. Returns the previous ones."""
    values = {"lock_timeout": lock_timeout, "statement_timeout": statement_timeout}
    return dialect.compiled[limits].run(execute, values)[0]


def statement_shown(query: str) -> str:
    """Return the beginning of a statement on one line, with an ellipsis in place of each value, which may be secret."""
    shown = _VALUE.sub(lambda found: " " if found[0].startswith(("--", "/*")) else "…", query)
    text = " ".join(shown.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _lock(dialect: Dialect, execute: Execute, places: Sequence[tuple[str, str]], mode: str) -> None:
    execute(str(LockTables(places, mode).compile(dialect=dialect.compiler)), {})


def _locks_of(one: Holder) -> str:
    tables = ", ".join(one.tables[:_MOST_NAMED]) + (", …" if len(one.tables) > _MOST_NAMED else "")
    if one.holds:
        return f"locks on {tables}"
    return f"has requested a lock on {tables}, and other sessions are waiting behind it"


def _aged(age: timedelta | None) -> str:
    return "" if age is None else f"its transaction began {_seconds(age)} ago"


def _seconds(span: timedelta | None) -> str:
    return "some time" if span is None else f"{max(0.0, span.total_seconds()):.0f} s"


_locks = of_server(
    "pg_locks",
    locktype=sa.Text(),
    database=None,
    relation=None,
    virtualtransaction=sa.Text(),
    transactionid=None,
    pid=sa.Integer(),
    mode=sa.Text(),
    granted=sa.Boolean(),
)
_database = of_server("pg_database", oid=None, datname=sa.Text())


def select_places(g: Grammar) -> sa.Select[Any]:
    """Select the name and schema of each of our tables that exists, in the order of `NAMES`."""
    wanted = [g.oid(name) for name in NAMES]
    return (
        sa.select(pg_class.c.relname.label("name"), pg_namespace.c.nspname.label("schema"))
        .select_from(pg_class)
        .join(pg_namespace, pg_namespace.c.oid == pg_class.c.relnamespace)
        .where(pg_class.c.oid.in_(wanted))
        .order_by(pg_class.c.relname == text_literal(VERSION_TABLE), pg_class.c.relname)
    )


class LockTables(DDLElement):
    """Lock these tables in this mode, one after the other, until the transaction ends."""

    def __init__(self, tables: Sequence[tuple[str, str]], mode: str) -> None:
        """`tables` contains the schema and the name of each table. Locking a table also locks its partitions."""
        self.tables, self.mode = tables, mode


@compiles(LockTables)
def _lock_tables(element: LockTables, compiler: DDLCompiler, **_: object) -> str:
    quote = compiler.preparer.quote
    names = ", ".join(f"{quote(schema)}.{quote(name)}" for schema, name in element.tables)
    return f"LOCK TABLE {names} IN {element.mode} MODE"


def limits(_: Grammar) -> sa.Select[Any]:
    """Set these timeouts for the rest of the transaction, and return the previous timeouts as strings with units.

    A :statement_timeout of NULL leaves that timeout unchanged.
    """
    locking, running = map(text_literal, ("lock_timeout", "statement_timeout"))
    lock_timeout = sa.bindparam("lock_timeout", type_=sa.Text, required=True)
    statement_timeout = sa.bindparam("statement_timeout", type_=sa.Text, required=True)
    now = sa.select(
        sa.func.current_setting(locking, type_=sa.Text).label("lock_timeout"),
        sa.func.current_setting(running, type_=sa.Text).label("statement_timeout"),
    )
    before = materialized(now, "earlier")
    kept = sa.func.coalesce(statement_timeout, before.c.statement_timeout)
    return sa.select(
        before,
        sa.func.set_config(locking, lock_timeout, sa.true()).label("lock_timeout_now"),
        sa.func.set_config(running, kept, sa.true()).label("statement_timeout_now"),
    )


def fresh_look(_: Grammar) -> sa.Select[Any]:
    """Make the server read the state of other sessions again. Otherwise, a transaction sees an unchanged state until it
    ends.
    """
    return sa.select(sa.cast(sa.func.pg_stat_clear_snapshot(), sa.Text).label("done"))


def select_holders(g: Grammar) -> sa.Select[Any]:
    """Select the other sessions that hold or want locks on our tables: first the sessions that are not waiting, then
    the others, each group oldest first.

    For another role's session, a role without the privilege to see more gets only the pid and the name of the
    application. A prepared transaction has no session, and so no pid.
    """
    parents = sa.select(sa.func.unnest(array([g.oid(name) for name in NAMES])).label("oid")).cte("parents")
    leaves = sa.select(pg_inherits.c.inhrelid).join(parents, parents.c.oid == pg_inherits.c.inhparent)
    ours = sa.select(parents.c.oid).union_all(leaves).cte("ours")
    here = sa.select(_database.c.oid).where(_database.c.datname == sa.func.current_database(type_=sa.Text))
    each = (
        sa.select(
            _locks.c.pid,
            _locks.c.virtualtransaction,
            sa.func.array_agg(sa.func.distinct(sa.cast(pg_class.c.relname, sa.Text)), type_=sa.ARRAY(sa.Text)).label(
                "tables"
            ),
            _modes().filter(_locks.c.granted).label("holds"),
            _modes().filter(_locks.c.granted.is_not(sa.true())).label("wants"),
        )
        .select_from(_locks)
        .join(ours, ours.c.oid == _locks.c.relation)
        .join(pg_class, pg_class.c.oid == _locks.c.relation)
        .where(
            _locks.c.locktype == text_literal("relation"),
            _locks.c.database == here.scalar_subquery(),
            _locks.c.pid.is_distinct_from(sa.func.pg_backend_pid()),
        )
        .group_by(_locks.c.pid, _locks.c.virtualtransaction)
        .cte("each")
    )
    return _described(each)


def _modes() -> Any:
    return sa.func.array_agg(sa.func.distinct(_locks.c.mode), type_=sa.ARRAY(sa.Text))


def _described(each: sa.FromClause) -> sa.Select[Any]:
    other = _locks.alias("other")
    waits = (
        sa.exists(sa.literal_column("1"))
        .select_from(other)
        .where(other.c.pid == each.c.pid, other.c.granted.is_not(sa.true()))
        .correlate(each)
    )
    own = _locks.alias("own")
    numbers = (
        sa.select(own.c.transactionid)
        .where(own.c.pid.is_(None), own.c.virtualtransaction == each.c.virtualtransaction)
        .correlate(each)
    )
    is_prepared = each.c.pid.is_(None) & pg_prepared_xacts.c.transaction.in_(numbers)
    since = sa.func.coalesce(pg_stat_activity.c.xact_start, pg_prepared_xacts.c.prepared)
    return (
        sa.select(
            each.c.pid,
            each.c.tables,
            each.c.holds,
            each.c.wants,
            pg_stat_activity.c.application_name.label("application"),
            pg_stat_activity.c.state,
            pg_stat_activity.c.query,
            pg_prepared_xacts.c.gid.label("prepared"),
            seconds_since(since).label("age"),
            seconds_since(pg_stat_activity.c.state_change).label("in_state"),
            # The function blocks all locking for a moment, so it is called only for sessions that are waiting.
            sa.case((waits, sa.func.pg_blocking_pids(each.c.pid))).cast(sa.ARRAY(sa.Integer)).label("waits_for"),
        )
        .select_from(each)
        .outerjoin(pg_stat_activity, pg_stat_activity.c.pid == each.c.pid)
        .outerjoin(pg_prepared_xacts, is_prepared)
        .order_by(waits, since.asc().nulls_last())
        .limit(sa.literal_column("100"))
    )
