"""Query a database's catalogue for its version and size, for the columns of a table, and for missing indexes and
triggers.

PostgreSQL's and SQLite's catalogues have nothing in common, so this module has separate queries for each dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from .. import tables
from ..column_types import Instant
from ..grammar import Grammar, Transition, text_literal

Oid = Callable[[str], sa.ColumnElement[Any]]
"""A function that returns the oid of the table or sequence with this name; NULL if there is none."""
NOTIFY = "task_outbox_notify"
"""The trigger that wakes workers."""
OF_BATCHES = {
    tables.task_executions.name: "task_executions_batch",
    tables.task_batch_changes.name: "task_batch_changes_count",
    tables.task_batches.name: "task_batches_advance",
}
"""The triggers that count the finished tasks of each batch, keyed by table."""
OF_RELAYS = {tables.relay_messages.name: "relay_messages_notify"}
"""The trigger that wakes relay senders (PostgreSQL), keyed by its table."""
FUNCTIONS = ("outboxq_enqueue", "outboxq_backlog")
"""The functions that users call."""
_NAMED = tuple(
    one.name for one in (tables.task_outbox, tables.task_batches, tables.task_batch_changes, tables.relay_shards)
)
"""The tables that our functions name: each function names one table, qualified with its schema."""

_COUNTER = text_literal(tables.task_outbox.name)
"""The name under which SQLite counts positions."""
_sequence = sa.table("sqlite_sequence", sa.column("name", sa.Text), sa.column("seq", sa.Integer))
_schema = sa.table("sqlite_master", *map(sa.column, ("type", "name", "tbl_name")))


def of_server(name: str, /, **columns: TypeEngine[Any] | None) -> sa.TableClause:
    """Return a PostgreSQL catalogue table with these columns. A type of None means that the type does not matter."""
    return sa.table(name, *(sa.column(key, kind) for key, kind in columns.items()), schema="pg_catalog")


pg_class = of_server(
    "pg_class",
    oid=None,
    relname=sa.Text(),
    relowner=None,
    relkind=None,
    relpartbound=None,
    relnamespace=None,
    relacl=None,
    relrowsecurity=sa.Boolean(),
    reloptions=None,
)
pg_namespace = of_server("pg_namespace", oid=None, nspname=sa.Text())
pg_inherits = of_server("pg_inherits", inhrelid=None, inhparent=None)
pg_trigger = of_server(
    "pg_trigger", oid=None, tgrelid=None, tgname=sa.Text(), tgenabled=None, tgfoid=None, tgisinternal=sa.Boolean()
)
pg_constraint = of_server("pg_constraint", conname=sa.Text(), contype=None, conrelid=None, confrelid=None)
pg_depend = of_server("pg_depend", classid=None, objid=None, refobjid=None)
pg_policy = of_server("pg_policy", polname=sa.Text(), polrelid=None)
pg_publication = of_server("pg_publication", oid=None, pubname=sa.Text())
pg_publication_rel = of_server("pg_publication_rel", prpubid=None, prrelid=None)
pg_rewrite = of_server("pg_rewrite", oid=None, ev_class=None)
pg_stat_activity = of_server(
    "pg_stat_activity",
    pid=sa.Integer(),
    datname=sa.Text(),
    application_name=sa.Text(),
    state=sa.Text(),
    query=sa.Text(),
    backend_xid=None,
    backend_xmin=None,
    backend_type=sa.Text(),
    backend_start=Instant,
    xact_start=Instant,
    state_change=None,
)
pg_settings = of_server("pg_settings", name=sa.Text(), setting=sa.Text())
pg_tablespace = of_server("pg_tablespace", oid=None, spcname=sa.Text())
pg_prepared_xacts = of_server(
    "pg_prepared_xacts", transaction=None, gid=sa.Text(), database=sa.Text(), prepared=Instant
)
_slot = of_server("pg_replication_slots", slot_name=sa.Text(), xmin=None)
_vacuuming = of_server("pg_stat_progress_vacuum", pid=sa.Integer())
_index = of_server("pg_index", indexrelid=None, indrelid=None, indisvalid=None, indisunique=None)
_function = of_server("pg_proc", oid=None, proname=None, pronamespace=None, prosrc=None)
pg_attribute = of_server("pg_attribute", attrelid=None, attname=sa.Text(), attacl=None)


class SqliteCatalogue(Grammar):
    """The queries of SQLite's catalogue."""

    def missing_parts(self) -> sa.Select[Any]:
        """Select the missing indexes and triggers of our tables. Indexes that belong to constraints cannot be dropped."""
        expected = _expected(_indexes)
        found = _in_schema("index", expected.c.name, expected.c.table)
        indexes = sa.select(expected.c.name.label("id")).where(~found.exists())
        triggers = [
            sa.select(name).where(~_in_schema("trigger", name, of_table).exists())
            for of_table, name in (map(text_literal, pair) for pair in OF_BATCHES.items())
        ]
        return sa.select(sa.union_all(indexes, *triggers).subquery("missing"))

    def misplaced_functions(self) -> sa.Select[Any]:
        """Select no rows: on SQLite, a trigger is in the same file as its table."""
        return sa.select(_schema.c.name.label("id")).where(sa.false())

    def set_back(self) -> sa.Select[Any]:
        """Select the counter of positions (the outbox's AUTOINCREMENT) if it was set back."""
        return sa.select(_COUNTER.label("id")).where(_is_set_back())

    def set_forward(self) -> Transition:
        """Advance the counter, whose row may be missing."""
        mine = _sequence.c.name == _COUNTER
        zero = sa.select(_COUNTER, sa.literal_column("0", sa.Integer)).where(
            ~sa.select(_sequence.c.name).where(mine).exists()
        )
        added = sa.insert(_sequence).from_select(["name", "seq"], zero)
        raised = sa.update(_sequence).where(mine, _is_set_back()).values(seq=_largest()).returning(_COUNTER.label("id"))
        return Transition(steps={"added": lambda _: added, "raised": lambda _: raised}, returns="raised")

    def columns_of(self, table: str) -> sa.Select[Any]:
        columns = sa.func.pragma_table_info(table).table_valued("name").alias("columns")
        return sa.select(columns.c.name)

    def server(self) -> sa.Select[Any]:
        pages = sa.func.pragma_page_count().table_valued("page_count").alias("pages")
        sizes = sa.func.pragma_page_size().table_valued("page_size").alias("sizes")
        return sa.select(
            text_literal("SQLite").label("name"),
            sa.func.sqlite_version(type_=sa.Text).label("version"),
            (pages.c.page_count * sizes.c.page_size).label("size"),
            self.now.label("now"),
        ).select_from(pages.join(sizes, sa.literal_column("true")))


def _in_schema(kind: str, name: sa.ColumnElement[str], table: sa.ColumnElement[str]) -> sa.Select[Any]:
    """Select the index or trigger with this name in SQLite's schema."""
    is_kind = _schema.c.type == text_literal(kind)
    return sa.select(_schema.c.name).where(is_kind, _schema.c.name == name, _schema.c.tbl_name == table)


class PostgresCatalogue(Grammar):
    """The queries of PostgreSQL's catalogue."""

    def missing_parts(self) -> sa.Select[Any]:
        """Select the indexes that are missing, invalid, or not unique although they should be, and also the triggers
        that do not fire, in the tables or in one of their partitions.
        """
        oid = self.oid
        expected = _expected(_constraints_and_indexes, oid)
        found = (
            sa.select(_index.c.indexrelid)
            .join_from(_index, pg_class, pg_class.c.oid == _index.c.indexrelid)
            .where(
                _index.c.indrelid == expected.c.table,
                pg_class.c.relname == expected.c.name,
                _index.c.indisvalid,
                sa.or_(_index.c.indisunique, ~expected.c.is_unique),
            )
        )
        missing = sa.union_all(
            sa.select(expected.c.name.label("id")).where(expected.c.table.is_not(None), ~found.exists()),
            sa.select(text_literal(NOTIFY)).where(~fires(oid(tables.task_outbox.name)).exists()),
            *(
                sa.select(text_literal(name)).where(
                    oid(tables.task_batches.name).is_not(None),
                    sa.or_(~fires(oid(of_table), name).exists(), _partitions_without(oid(of_table), name).exists()),
                )
                for of_table, name in (OF_BATCHES | OF_RELAYS).items()
            ),
            _without_primary_key(oid(tables.execution_events.name)),
        )
        return sa.select(missing.subquery("missing"))

    def misplaced_functions(self) -> sa.Select[Any]:
        """Select our functions that do not name the schema of our tables: the trigger functions, in any schema, and the
        functions that users call, in the schema of the tables. `outboxq_notify` is not checked, because that function
        finds its own table.
        """
        ours = (
            sa.select(
                pg_class.c.relnamespace,
                sa.func.concat(text_literal(" "), sa.func.quote_ident(pg_namespace.c.nspname)).label("name"),
            )
            .join_from(pg_class, pg_namespace, pg_namespace.c.oid == pg_class.c.relnamespace)
            .where(pg_class.c.oid == self.oid(tables.task_executions.name))
            .subquery("ours")
        )
        triggers = sa.union_all(
            *(
                sa.select(self.oid(one).label("oid"), text_literal(name).label("name"))
                for one, name in (OF_BATCHES | OF_RELAYS).items()
            )
        ).subquery("triggers")
        fired = sa.select(pg_trigger.c.tgfoid).where(
            pg_trigger.c.tgrelid == triggers.c.oid, pg_trigger.c.tgname == triggers.c.name
        )
        beside = sa.and_(
            _function.c.pronamespace == ours.c.relnamespace,
            _function.c.proname.in_([text_literal(name) for name in FUNCTIONS]),
        )
        names = [sa.func.strpos(_function.c.prosrc, ours.c.name.concat(text_literal(f".{one}"))) for one in _NAMED]
        return (
            sa.select(_function.c.proname.label("id"))
            .join_from(_function, ours, sa.or_(beside, _function.c.oid.in_(fired)))
            .where(sa.func.greatest(*names) == sa.literal_column("0"))
            .distinct()
        )

    def set_back(self) -> sa.Select[Any]:
        """Select the sequence if it was set back. Selects no rows for a role that is not permitted to read the
        sequence.
        """
        sequence = self.oid(tables.task_position.name)
        may_look = sa.func.has_sequence_privilege(sequence, text_literal("USAGE, SELECT"), type_=sa.Boolean)
        last = sa.func.coalesce(sa.func.pg_sequence_last_value(sequence), sa.literal_column("0"), type_=sa.BigInteger)
        is_set_back = sa.case((may_look, last < _largest()), else_=sa.literal_column("false", sa.Boolean))
        return sa.select(text_literal(tables.task_position.name).label("id")).where(is_set_back)

    def set_forward(self) -> Transition:
        behind = self.set_back().subquery("behind")
        number = sa.func.setval(self.oid(tables.task_position.name), _largest(), type_=sa.BigInteger)
        raised = sa.select(behind.c.id, number.label("number"))
        return Transition(steps={"raised": lambda _: raised}, returns="raised")

    def columns_of(self, table: str) -> sa.Select[Any]:
        return sa.select(pg_attribute.c.attname.label("name")).where(pg_attribute.c.attrelid == self.oid(table))

    def server(self) -> sa.Select[Any]:
        here = sa.func.current_database(type_=sa.Text)
        return sa.select(  # type: ignore[return-value]
            text_literal("PostgreSQL").label("name"),
            sa.func.current_setting(text_literal("server_version"), type_=sa.Text).label("version"),
            sa.func.pg_database_size(here, type_=sa.BigInteger).label("size"),
            self.now.label("now"),
        )


def _partitions_without(of_table: sa.ColumnElement[Any], trigger: str) -> sa.Select[Any]:
    """Select the partitions of the table with this oid on which this trigger does not fire."""
    partition = pg_inherits.alias("partition").c
    here = fires(partition.inhrelid, trigger).correlate(partition.inhrelid.table)
    return sa.select(partition.inhrelid).where(partition.inhparent == of_table, ~here.exists())


def _without_primary_key(of_table: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select the table with this oid if it does not have its primary key. If the table is partitioned, select the
    partitions without a primary key instead. Partitions number their rows separately, so their parent does not have a
    primary key.
    """
    partitions = sa.select(pg_inherits.c.inhrelid).where(pg_inherits.c.inhparent == of_table)
    holds_rows = pg_class.c.relkind == text_literal("r")
    key = sa.select(pg_constraint.c.conname).where(
        pg_constraint.c.conrelid == pg_class.c.oid, pg_constraint.c.contype == text_literal("p")
    )
    mine = sa.or_(pg_class.c.oid == of_table, pg_class.c.oid.in_(partitions))
    name = sa.func.concat(text_literal("primary key of "), pg_class.c.relname).label("id")
    return sa.select(name).where(mine, holds_rows, ~key.exists())


def fires(of_table: sa.ColumnElement[Any], name: str = NOTIFY) -> sa.Select[Any]:
    """Select one row if the table with this oid, such as the outbox, has this trigger, and the trigger is enabled."""
    return sa.select(pg_trigger.c.tgname).where(
        pg_trigger.c.tgrelid == of_table,
        pg_trigger.c.tgname == text_literal(name),
        pg_trigger.c.tgenabled.in_([text_literal("O"), text_literal("A")]),
    )


def snapshots(most: Any) -> sa.Select[Any]:
    """Select up to `most` holders of row versions on PostgreSQL, oldest first: sessions, prepared transactions,
    replication slots, and standbys that report their oldest snapshot.

    A session holds row versions through its snapshot, and also through the id of a transaction that has written rows.
    If the role is not permitted to see the other sessions' transactions, these sessions are left out. The age, in
    seconds, is NULL for a slot and for a standby, because the server knows it only as a number of transactions. A
    vacuum is left out, because no other vacuum waits for it.
    """
    session, here = pg_stat_activity.c, sa.func.current_database(type_=sa.Text)
    of_standby = session.backend_type == text_literal("walsender")
    sessions = sa.select(
        sa.case((of_standby, text_literal("standby")), else_=text_literal("session")).label("kind"),
        session.application_name.label("name"),
        session.pid,
        session.state,
        session.query,
        session.backend_start.label("began_at"),
        seconds_since(session.xact_start).label("age"),
        sa.func.greatest(_age(session.backend_xid), _age(session.backend_xmin)).label("transactions"),
    ).where(
        sa.or_(session.backend_xid.is_not(None), session.backend_xmin.is_not(None)),
        sa.or_(session.datname == here, of_standby),
        session.pid != sa.func.pg_backend_pid(),
        session.backend_type != text_literal("autovacuum worker"),
        session.pid.not_in(sa.select(_vacuuming.c.pid)),
    )
    prepared = sa.select(
        *_without_session("prepared", pg_prepared_xacts.c.gid),
        seconds_since(pg_prepared_xacts.c.prepared).label("age"),
        _age(pg_prepared_xacts.c.transaction).label("transactions"),
    ).where(pg_prepared_xacts.c.database == here)
    slots = sa.select(
        *_without_session("slot", sa.cast(_slot.c.slot_name, sa.Text)),
        sa.cast(sa.null(), sa.Double).label("age"),
        _age(_slot.c.xmin).label("transactions"),
    ).where(_slot.c.xmin.is_not(None))
    found = sa.union_all(sessions, prepared, slots).subquery("found")
    return sa.select(found).order_by(found.c.age.desc().nulls_last(), found.c.transactions.desc()).limit(most)


def _without_session(kind: str, name: Any) -> list[sa.ColumnElement[Any]]:
    none: list[sa.ColumnElement[Any]] = [
        sa.cast(sa.null(), type_of).label(column)
        for column, type_of in (("pid", sa.Integer), ("state", sa.Text), ("query", sa.Text), ("began_at", Instant))
    ]
    return [text_literal(kind).label("kind"), name.label("name"), *none]


def seconds_since(moment: Any) -> sa.ColumnElement[float]:
    return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp() - moment), sa.Double)


def writing_transactions(_: Any) -> sa.Select[Any]:
    """Select the server's transactions that have written rows, oldest first, including prepared transactions.

    A role that is not permitted to see the transactions of other roles finds only its own.
    """
    session = pg_stat_activity.c
    of_sessions = sa.select(
        session.pid,
        session.application_name.label("name"),
        session.datname.label("database"),
        seconds_since(session.xact_start).label("age"),
    ).where(session.backend_xid.is_not(None), session.pid != sa.func.pg_backend_pid())
    prepared = sa.select(
        sa.cast(sa.null(), sa.Integer).label("pid"),
        pg_prepared_xacts.c.gid.label("name"),
        pg_prepared_xacts.c.database,
        seconds_since(pg_prepared_xacts.c.prepared).label("age"),
    )
    found = sa.union_all(of_sessions, prepared).subquery("found")
    return sa.select(found).order_by(found.c.age.desc().nulls_last()).limit(sa.literal_column("10"))


def _age(transaction: Any) -> sa.ColumnElement[int]:
    return sa.cast(sa.func.age(transaction), sa.BigInteger)


def vacuumed(table: Any) -> sa.ColumnElement[Any]:
    """Return the time of a table's last vacuum, manual or automatic; NULL if there was none."""
    times = (sa.func.pg_stat_get_last_vacuum_time(table), sa.func.pg_stat_get_last_autovacuum_time(table))
    return sa.func.greatest(*times, type_=Instant)


def autovacuums(options: Any) -> sa.ColumnElement[bool]:
    """Return whether the server automatically vacuums a table with these options."""
    on = text_literal("on")
    server = [
        sa.func.current_setting(text_literal(name), type_=sa.Text) == on for name in ("autovacuum", "track_counts")
    ]
    off: sa.ColumnElement[Any] = sa.literal_column(
        "'{autovacuum_enabled=false,autovacuum_enabled=off,autovacuum_enabled=no,autovacuum_enabled=0}'::text[]"
    )
    return sa.and_(*server, sa.not_(sa.func.coalesce(options.op("&&", is_comparison=True)(off), sa.false())))


def _is_set_back() -> sa.ColumnElement[bool]:
    counted = sa.select(_sequence.c.seq).where(_sequence.c.name == _COUNTER).scalar_subquery()
    return sa.func.coalesce(counted, sa.literal_column("0"), type_=sa.Integer) < _largest()


def _largest() -> sa.ColumnElement[int]:
    return sa.select(sa.func.max(tables.task_executions.c.position)).scalar_subquery()


def _expected(
    parts_of: Callable[[sa.Table], Iterable[sa.Index | sa.Constraint]], place: Oid = text_literal
) -> sa.FromClause:
    """Return the indexes and constraints that the database must have, each with its table and whether it is unique."""
    parts = [
        sa.select(
            place(one.name).label("table"),
            text_literal(part.name).label("name"),
            sa.literal_column(str(not isinstance(part, sa.Index) or part.unique).lower(), sa.Boolean).label(
                "is_unique"
            ),
        )
        for one in tables.metadata.sorted_tables
        for part in parts_of(one)
    ]
    return sa.union_all(*parts).subquery("expected")


def _constraints_and_indexes(one: sa.Table) -> Iterable[sa.Index | sa.Constraint]:
    """Yield the unique constraints, the primary key and the indexes of a table.

    The events' primary key is left out, because each partition has its own.
    """
    unique = (part for part in one.constraints if isinstance(part, sa.UniqueConstraint))
    yield from sorted(unique, key=attrgetter("name"))
    if one is not tables.execution_events:
        yield one.primary_key
    yield from _indexes(one)


def _indexes(one: sa.Table) -> Iterable[sa.Index]:
    return sorted(one.indexes, key=attrgetter("name"))
