"""Lock whole tables of outboxq's on PostgreSQL, and find the sessions that hold locks on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    Boolean,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Select,
    Text,
    bindparam,
    case,
    cast,
    column,
    exists,
    func,
    literal_column,
    select,
    table,
    true,
)
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import DDLElement
from sqlalchemy.sql.compiler import DDLCompiler

from ..tables import VERSION_TABLE, metadata
from .grammar import Grammar

NAMES: Final = (*sorted(metadata.tables), VERSION_TABLE)
"""The names of our tables, in the order in which they are locked."""

_class = table("pg_class", column("oid"), column("relname", Text), column("relnamespace"), schema="pg_catalog")
_namespace = table("pg_namespace", column("oid"), column("nspname", Text), schema="pg_catalog")
_inherits = table("pg_inherits", column("inhrelid"), column("inhparent"), schema="pg_catalog")
_locks = table(
    "pg_locks",
    column("locktype", Text),
    column("database"),
    column("relation"),
    column("virtualtransaction", Text),
    column("transactionid"),
    column("pid", Integer),
    column("mode", Text),
    column("granted", Boolean),
    schema="pg_catalog",
)
_database = table("pg_database", column("oid"), column("datname", Text), schema="pg_catalog")
_activity = table(
    "pg_stat_activity",
    column("pid", Integer),
    column("application_name", Text),
    column("state", Text),
    column("query", Text),
    column("xact_start"),
    column("state_change"),
    schema="pg_catalog",
)
_prepared = table(
    "pg_prepared_xacts", column("transaction"), column("gid", Text), column("prepared"), schema="pg_catalog"
)


def places(g: Grammar) -> Select[Any]:
    """Select the name and the schema of each of our tables that is there, in the order of `NAMES`."""
    wanted = [g.oid(name) for name in NAMES]
    return (
        select(_class.c.relname.label("name"), _namespace.c.nspname.label("schema"))
        .select_from(_class)
        .join(_namespace, _namespace.c.oid == _class.c.relnamespace)
        .where(_class.c.oid.in_(wanted))
        .order_by(_class.c.relname == literal_column(f"'{VERSION_TABLE}'"), _class.c.relname)
    )


class LockTables(DDLElement):
    """Lock these tables in this mode, one after the other, until the transaction ends."""

    def __init__(self, tables: Sequence[tuple[str, str]], mode: str) -> None:
        """`tables`: the schema and the name of each. Partitions of a table are locked with it."""
        self.tables, self.mode = tables, mode


@compiles(LockTables)
def _lock_tables(element: LockTables, compiler: DDLCompiler, **_: object) -> str:
    quote = compiler.preparer.quote
    names = ", ".join(f"{quote(schema)}.{quote(name)}" for schema, name in element.tables)
    return f"LOCK TABLE {names} IN {element.mode} MODE"


def limits(_: Grammar) -> Select[Any]:
    """Set the transaction's timeouts from now on, and return the previous ones: texts with their units.

    A statement timeout of NULL leaves it as it is.
    """
    locking: ColumnElement[str]
    running: ColumnElement[str]
    locking, running = (literal_column(f"'{name}'") for name in ("lock_timeout", "statement_timeout"))
    lock_timeout = bindparam("lock_timeout", type_=Text, required=True)
    statement_timeout = bindparam("statement_timeout", type_=Text, required=True)
    before = (
        select(
            func.current_setting(locking, type_=Text).label("lock_timeout"),
            func.current_setting(running, type_=Text).label("statement_timeout"),
        )
        .cte("earlier")
        .prefix_with("MATERIALIZED")
    )
    kept = func.coalesce(statement_timeout, before.c.statement_timeout)
    return select(
        before,
        func.set_config(locking, lock_timeout, true()).label("lock_timeout_now"),
        func.set_config(running, kept, true()).label("statement_timeout_now"),
    )


def fresh_look(_: Grammar) -> Select[Any]:
    """Have the server read the state of other sessions again. Otherwise it shows a transaction the same state until its end."""
    return select(cast(func.pg_stat_clear_snapshot(), Text).label("done"))


def holders(g: Grammar) -> Select[Any]:
    """Select the other sessions that hold or want locks on our tables: those first that wait for nothing, the oldest first.

    A role that may not see what another role's session does gets its pid and its application's name only. A prepared
    transaction has no session, and so no pid.
    """
    parents = select(func.unnest(array([g.oid(name) for name in NAMES])).label("oid")).cte("parents")
    leaves = select(_inherits.c.inhrelid).join(parents, parents.c.oid == _inherits.c.inhparent)
    ours = select(parents.c.oid).union_all(leaves).cte("ours")
    here = select(_database.c.oid).where(_database.c.datname == func.current_database(type_=Text)).scalar_subquery()
    each = (
        select(
            _locks.c.pid,
            _locks.c.virtualtransaction,
            func.array_agg(func.distinct(cast(_class.c.relname, Text)), type_=ARRAY(Text)).label("tables"),
            _modes().filter(_locks.c.granted).label("holds"),
            _modes().filter(_locks.c.granted.is_not(true())).label("wants"),
        )
        .select_from(_locks)
        .join(ours, ours.c.oid == _locks.c.relation)
        .join(_class, _class.c.oid == _locks.c.relation)
        .where(
            _locks.c.locktype == literal_column("'relation'"),
            _locks.c.database == here,
            _locks.c.pid.is_distinct_from(func.pg_backend_pid()),
        )
        .group_by(_locks.c.pid, _locks.c.virtualtransaction)
        .cte("each")
    )
    return _described(each)


def _modes() -> Any:
    return func.array_agg(func.distinct(_locks.c.mode), type_=ARRAY(Text))


def _described(each: FromClause) -> Select[Any]:
    other = _locks.alias("other")
    waits = (
        exists(literal_column("1"))
        .select_from(other)
        .where(other.c.pid == each.c.pid, other.c.granted.is_not(true()))
        .correlate(each)
    )
    own = _locks.alias("own")
    numbers = (
        select(own.c.transactionid)
        .where(own.c.pid.is_(None), own.c.virtualtransaction == each.c.virtualtransaction)
        .correlate(each)
    )
    is_prepared = each.c.pid.is_(None) & _prepared.c.transaction.in_(numbers)
    since = func.coalesce(_activity.c.xact_start, _prepared.c.prepared)
    return (
        select(
            each.c.pid,
            each.c.tables,
            each.c.holds,
            each.c.wants,
            _activity.c.application_name.label("application"),
            _activity.c.state,
            _activity.c.query,
            _prepared.c.gid.label("prepared"),
            _seconds_since(since).label("age"),
            _seconds_since(_activity.c.state_change).label("in_state"),
            # The function stops all lock traffic for a moment, so it is called for waiting sessions alone.
            case((waits, func.pg_blocking_pids(each.c.pid))).cast(ARRAY(Integer)).label("waits_for"),
        )
        .select_from(each)
        .outerjoin(_activity, _activity.c.pid == each.c.pid)
        .outerjoin(_prepared, is_prepared)
        .order_by(waits, since.asc().nulls_last())
        .limit(literal_column("100"))
    )


def _seconds_since(moment: Any) -> Any:
    return cast(func.extract("epoch", func.clock_timestamp() - moment), Double)
