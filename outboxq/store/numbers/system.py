"""Describe the database to its operators: its version, its sizes, and the sessions that lock tables or keep dead rows
from being vacuumed. This module can also end such a session.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database import table_locks
from ...database.column_types import Instant
from ...database.dialects import Begin, time_partitions
from ...database.dialects.catalogue import pg_stat_activity, vacuumed
from ...database.grammar import Grammar
from ...database.tables import metadata, version_table
from ...database.target import Target
from ...errors import InvalidArgument, InvalidTransition, NotPermitted, TablesLocked
from ..transactions import Transactions
from .dead_rows import HeldSnapshot, held_snapshots_in

log = logging.getLogger("outboxq.store")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSize:
    """The size of one table."""

    name: str
    size: int
    """Size in bytes, including indexes and partitions."""
    dead_rows: int
    """Number of dead rows that have not been vacuumed yet, as estimated by PostgreSQL."""
    index_size: int = 0
    """Size of the indexes in bytes, which is included in `size`."""
    rows: int = 0
    """Number of rows, as PostgreSQL estimates it."""
    last_vacuumed_at: datetime | None = None
    """Time of the last vacuum, manual or automatic; for a partitioned table, the last time that any of its partitions
    was vacuumed. None if the table has not been vacuumed since the statistics were reset.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionSize:
    """The size of one partition of the history."""

    name: str
    size: int
    """Size in bytes, including indexes."""
    rows: int
    """Number of rows, as PostgreSQL estimates it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """The database: its schema, its version and its sizes."""

    at: datetime
    """Time of the query."""
    revision: str
    """Revision of the schema."""
    oldest_code: str
    """The oldest revision that a release must know in order to use this schema."""
    server: str
    """The name and version of the database, such as PostgreSQL 17.2."""
    size: int | None
    """Size of the whole database in bytes."""
    tables: list[TableSize]
    """The size of each of outboxq's tables; empty on SQLite."""
    snapshots: list[HeldSnapshot]
    """Snapshots that keep dead rows from being vacuumed, oldest first; empty if the role is not permitted to see them,
    and on SQLite.
    """
    partitions: list[PartitionSize]
    """The partitions of the history, sorted by name; empty if it is not partitioned."""


def system(store: Transactions, *, using: object = None) -> System:
    """Return a description of the database, in at most four statements that do not read any rows in the task tables."""
    return store.run(partial(_read, store), using=using, begin=Begin.READ)


def table_sizes(store: Transactions) -> list[TableSize]:
    """Return the size of each of our tables; empty on SQLite, which does not measure individual tables."""
    if not store.dialect.measures_tables:
        return []
    return store.run(_sizes_of, begin=Begin.READ)


def why_locked(store: Transactions, error: BaseException) -> TablesLocked | None:
    """Return an error that names the sessions holding the lock that a statement waited too long for; None if `error`
    has another cause.

    This uses another connection to ask the database which sessions hold locks.
    """
    if store.dialect.one_writer:
        if not store.dialect.is_transient(error):
            return None
        notes = getattr(error, "__notes__", ())
        return TablesLocked(notes[0] if notes else "another connection is keeping the SQLite file locked")
    if not store.dialect.is_locked_out(error):
        return None
    place = store.dialect.place(None if store.engine is None else store.engine.url, lambda: None)
    why = "other sessions are keeping it locked"
    try:
        why = table_locks.explained(store.lock_holders())
    except Exception as unanswered:
        log.debug("the sessions that hold locks could not be listed", exc_info=unanswered)
    return TablesLocked(f"a statement waited too long for a lock in {place}: {why}")


def tables_are_locked(store: Transactions) -> bool:
    """Return, without waiting for a lock, whether another session has locked one of our tables exclusively."""
    return table_locks.are_locked(store.lock_holders())


def _read(store: Transactions, target: Target) -> System:
    store.ensure_schema(target)
    (found,) = target.run(server, store.values(target))
    partitions = target.run(time_partitions.sizes) if target.dialect.has_partitions else []
    return System(
        at=found["now"],
        revision=found["revision"],
        oldest_code=found["oldest_code"],
        server=f"{found['name']} {found['version'].partition(' ')[0]}",
        size=found["size"],
        tables=_sizes_of(target) if target.dialect.measures_tables else [],
        snapshots=held_snapshots_in(target),
        partitions=[PartitionSize(**row) for row in partitions],
    )


def _sizes_of(target: Target) -> list[TableSize]:
    return [TableSize(**row) for row in target.run(sizes)]


def server(g: Grammar) -> sa.Select[Any]:
    """Select the database's name, version and size, our schema's revision, and the oldest code that the schema
    supports.
    """
    found, schema = g.server().subquery("server"), version_table.c
    revision, oldest_code = (sa.select(one).scalar_subquery() for one in (schema.version_num, schema.oldest_code))
    return sa.select(found, revision.label("revision"), oldest_code.label("oldest_code"))


def sizes(g: Grammar) -> sa.Select[Any]:
    """Select the size of each of our tables, with indexes and partitions, and the number of its dead rows.

    This reads the catalog and the file sizes, but not the tables' rows.
    """
    named = sa.union_all(
        *(
            sa.select(sa.literal_column(f"'{name}'", sa.Text).label("name"), g.oid(name).label("oid"))
            for name in sorted(metadata.tables)
        )
    ).subquery("named")
    # A table without partitions is not in the partition tree.
    part = (
        sa.func.pg_partition_tree(named.c.oid)
        .table_valued(sa.column("relid"))
        .render_derived(name="part")
        .lateral("part")
    )
    one = sa.func.coalesce(part.c.relid, named.c.oid)
    return (
        sa.select(
            named.c.name,
            sa.func.sum(sa.func.pg_total_relation_size(one)).cast(sa.BigInteger).label("size"),
            sa.func.sum(sa.func.pg_stat_get_dead_tuples(one)).cast(sa.BigInteger).label("dead_rows"),
            sa.func.sum(sa.func.pg_indexes_size(one)).cast(sa.BigInteger).label("index_size"),
            sa.func.sum(sa.func.pg_stat_get_live_tuples(one)).cast(sa.BigInteger).label("rows"),
            sa.func.max(vacuumed(one)).label("last_vacuumed_at"),
        )
        .select_from(named.outerjoin(part, sa.true()))
        .where(named.c.oid.is_not(None))
        .group_by(named.c.name)
        .order_by(named.c.name)
    )


def end_session(store: Transactions, session: str, *, using: object = None) -> None:
    """End a session that holds a snapshot or a transaction in this database. `session` is `HeldSnapshot.session`, which
    includes the session's start time, because the server may have reused the session's process ID for another session.

    Raises InvalidArgument for any other text and on SQLite, InvalidTransition if the session holds nothing, and
    NotPermitted if the role may not end the session.
    """
    pid, began_at = _parts_of(session)
    if not store.dialect.measures_tables:
        raise InvalidArgument(
            "only PostgreSQL sessions can be ended; on SQLite, end the process that is reading the file"
        )

    def work(target: Target) -> bool:
        try:
            return bool(target.run(terminate, {"pid": pid, "began_at": began_at}))
        except Exception as error:
            if not store.dialect.is_denied(error):
                raise
            raise NotPermitted(
                f"this role is not permitted to end process {pid}: it needs the privileges of the session's role or of "
                f"pg_signal_backend; the session of a superuser can be ended only by a superuser, with "
                f"SELECT pg_terminate_backend({pid})"
            ) from error

    if not store.run(work, using=using):
        raise InvalidTransition(
            f"process {pid} was not ended: its session is over or no longer holds a snapshot; `db sizes` names the "
            "session with the oldest snapshot"
        )


def _parts_of(session: str) -> tuple[int, datetime]:
    pid, _, moment = session.partition("@")
    try:
        began_at = datetime.fromisoformat(moment)
        if began_at.tzinfo is not None:
            return int(pid), began_at
    except ValueError:
        pass
    raise InvalidArgument(
        f"{session!r} is not a session: give the process ID and start time, as `check` prints them, such as "
        "4711@2026-11-23T02:30:00.123456Z"
    )


_pid = sa.bindparam("pid", type_=sa.Integer, required=True)
_began_at = sa.bindparam("began_at", type_=Instant, required=True)


def terminate(_: Grammar) -> sa.Select[Any]:
    """End the session with this process ID and start time, if it belongs to a client and holds a snapshot or a
    transaction.
    """
    session = pg_stat_activity.c
    return sa.select(sa.func.pg_terminate_backend(session.pid).label("ended")).where(
        session.pid == _pid,
        session.backend_start == _began_at,
        session.pid != sa.func.pg_backend_pid(),
        session.datname == sa.func.current_database(type_=sa.Text),
        session.backend_type == sa.literal_column("'client backend'", sa.Text),
        sa.or_(session.backend_xid.is_not(None), session.backend_xmin.is_not(None)),
    )
