"""Find what keeps the database from reusing the space of dead rows: old snapshots, and tables that are not vacuumed. On
SQLite, a reader similarly keeps the log next to the database file from shrinking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from ...database import tables
from ...database.dialects import Begin, Log
from ...database.dialects.catalogue import autovacuums, pg_class, snapshots, vacuumed
from ...database.grammar import Grammar
from ...database.table_locks import statement_shown
from ...database.target import Target
from ...model.wording import plural
from ..explain.reasons import span_of
from ..transactions import Transactions

_MOST = 20
"""Maximum number of snapshots that are selected."""
HOT = tuple(
    sorted(table.name for table in (tables.task_outbox, tables.task_leases, tables.partition_claims, tables.key_rates))
)
"""The tables whose rows are short-lived, and whose indexes every claim reads."""


class SnapshotKind(StrEnum):
    """The kinds of snapshot owners."""

    SESSION = "session"
    PREPARED = "prepared"
    """A transaction that was prepared for a two-phase commit. It has no session, and survives a restart."""
    SLOT = "slot"
    """A replication slot. It keeps the snapshot of its standby even while the standby is disconnected."""
    STANDBY = "standby"
    """A standby with hot_standby_feedback, which reports the snapshot of its oldest query."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldSnapshot:
    """A snapshot, or the id of a writing transaction, that keeps newer dead rows from being vacuumed."""

    kind: SnapshotKind
    name: str
    """The session's application_name, the id of the prepared transaction, or the name of the slot or of the standby."""
    pid: int | None
    """The id of the server's process; None for a prepared transaction and for a slot."""
    state: str | None
    """The session's state, such as "idle in transaction"."""
    query: str | None
    """The session's current or last statement, with an ellipsis in place of each value."""
    began_at: datetime | None = None
    """Start of the session; None for a prepared transaction and for a slot."""
    age: timedelta | None
    """Age of the transaction; None for a slot and for a standby, because the server does not know it."""
    transactions: int
    """Age of the snapshot, as a number of transactions."""

    def __str__(self) -> str:
        """Return a description with the name, the state and the statement."""
        match self.kind:
            case SnapshotKind.PREPARED:
                return f"the prepared transaction {self.name!r}"
            case SnapshotKind.SLOT:
                return f"the replication slot {self.name!r}"
            case SnapshotKind.STANDBY:
                return f"a query on the standby {self.name!r}"
        about = ", ".join(one for one in (self.name, self.state) if one)
        statement = f": {self.query}" if self.query else ""
        return f"process {self.pid} ({about}{statement})" if about else f"process {self.pid}"

    @property
    def session(self) -> str | None:
        """The session in a form that `end_session` accepts, such as 4711@2026-11-23T02:30:00.123456Z; None if
        `end_session` cannot end it.
        """
        if self.kind is not SnapshotKind.SESSION or self.began_at is None:
            return None
        return f"{self.pid}@{self.began_at.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"

    @property
    def since(self) -> str:
        """The age in words."""
        if self.age is not None:
            return span_of(self.age)
        return f"{self.transactions:,} {plural(self.transactions, 'transaction')}"

    @property
    def remedy(self) -> str:
        """The instructions for ending the snapshot."""
        match self.kind:
            case SnapshotKind.SESSION:
                return f"end it: SELECT pg_terminate_backend({self.pid})"
            case SnapshotKind.PREPARED:
                quoted = self.name.replace("'", "''")
                return f"end it: ROLLBACK PREPARED '{quoted}', or COMMIT PREPARED"
            case SnapshotKind.SLOT:
                return "end the old query on its standby, or drop the slot if the standby is gone: pg_drop_replication_slot"
        return "end the old query on that standby, or set hot_standby_feedback = off in its configuration"


@dataclass(frozen=True, kw_only=True, slots=True)
class HotTable:
    """A table whose rows are short-lived."""

    name: str
    rows: int
    """Number of live rows, as PostgreSQL estimates it."""
    dead_rows: int
    """Number of dead rows that have not been vacuumed yet, as PostgreSQL estimates it."""
    last_vacuumed_at: datetime | None
    autovacuum: bool
    """False if autovacuum is off on the server or for this table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadRows:
    """The dead rows: their causes and their counts."""

    snapshots: Sequence[HeldSnapshot] = ()
    """The oldest snapshots, oldest first; those of unknown age come last."""
    tables: Sequence[HotTable] = ()
    log: Log | None = None
    """The write-ahead log next to a SQLite file."""

    @classmethod
    def read(cls, store: Transactions, target: Target) -> DeadRows:
        """Read the causes and the counts: with two statements on PostgreSQL, and without a statement on SQLite."""
        if not target.dialect.measures_tables:
            return cls(log=None if store.engine is None else target.dialect.log_of(store.engine.url))
        return cls(snapshots=held_snapshots_in(target), tables=[HotTable(**row) for row in target.run(hot_tables)])


def held_snapshots_now(store: Transactions) -> list[HeldSnapshot] | None:
    """Return the snapshots that keep dead rows from being vacuumed, oldest first; None on SQLite."""
    return store.run(held_snapshots_in, begin=Begin.READ) if store.dialect.measures_tables else None


def held_snapshots_in(target: Target) -> list[HeldSnapshot]:
    """Return the snapshots of other transactions, as this transaction sees them; empty on SQLite."""
    if not target.dialect.measures_tables:
        return []
    found = []
    for row in target.run(held_snapshots):
        seconds, query = row["age"], row["query"]
        read = {
            "kind": SnapshotKind(row["kind"]),
            "age": None if seconds is None else timedelta(seconds=max(0.0, seconds)),
            "query": statement_shown(query) if query else None,
        }
        found.append(HeldSnapshot(**{**row, **read}))
    return found


def held_snapshots(_: Grammar) -> sa.Select[Any]:
    """Select the oldest snapshots in this database."""
    return snapshots(sa.literal_column(str(_MOST)))


def hot_tables(g: Grammar) -> sa.Select[Any]:
    """Select, for each table with short-lived rows, the row counts, the last vacuum, and whether autovacuum is on."""
    oids = [g.oid(name) for name in HOT]
    return (
        sa.select(
            pg_class.c.relname.label("name"),
            sa.func.pg_stat_get_live_tuples(pg_class.c.oid, type_=sa.BigInteger).label("rows"),
            sa.func.pg_stat_get_dead_tuples(pg_class.c.oid, type_=sa.BigInteger).label("dead_rows"),
            vacuumed(pg_class.c.oid).label("last_vacuumed_at"),
            autovacuums(pg_class.c.reloptions).label("autovacuum"),
        )
        .where(pg_class.c.oid.in_(oids))
        .order_by(pg_class.c.relname)
    )
