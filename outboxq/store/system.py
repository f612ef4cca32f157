"""The database that the tables are in, for people who operate it; and who keeps the tables locked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from ..database import table_locks
from ..database.dialects import Begin, time_partitions
from ..database.statements import system as statements
from ..database.target import Target
from ..errors import TablesLocked
from .table_sizes import TableSize, sizes_of
from .transactions import Transactions, patience

log = logging.getLogger("outboxq.store")


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionSize:
    """The size of one partition of the history."""

    name: str
    size: int
    """Bytes, with indexes."""
    rows: int
    """Number of rows, as PostgreSQL estimates it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """The database: its schema, its version, and the sizes of what is in it."""

    at: datetime
    """Time of the look."""
    revision: str
    """Revision of the schema."""
    oldest_code: str
    """Oldest revision that a release must know to work with this schema."""
    server: str
    """Name and version, such as PostgreSQL 17.2."""
    size: int | None
    """Bytes of the whole database."""
    tables: list[TableSize]
    """Sizes of outboxq's tables by name; empty on SQLite."""
    oldest_snapshot: timedelta | None
    """Age of the oldest transaction whose snapshot keeps dead rows from being cleaned up; None: there is none, or the role may not
    see it.
    """
    partitions: list[PartitionSize]
    """Partitions of the history by name; empty where it is not partitioned."""


def system(store: Transactions, *, using: object = None) -> System:
    """Return what the database says of itself. Three statements at most, none of which reads a row of the tables of tasks."""
    return store.run(partial(_read, store), using=using, begin=Begin.READ)


def why_locked(store: Transactions, error: BaseException) -> TablesLocked | None:
    """Return the error that names who holds the lock for which a statement waited in vain; None: `error` is of another kind.

    It asks the database, on another connection, for the sessions that have locks now.
    """
    if store.dialect.one_writer:
        if not store.dialect.is_transient(error):
            return None
        notes = getattr(error, "__notes__", ())
        return TablesLocked(notes[-1] if notes else "another connection keeps the SQLite file locked")
    if not store.dialect.is_locked_out(error):
        return None
    place = store.dialect.place(store.bound_engine.url, lambda: None)
    why = "other sessions keep it locked"
    try:
        why = table_locks.explained(_holders(store))
    except Exception as unanswered:
        log.debug("the sessions that hold locks could not be listed", exc_info=unanswered)
    return TablesLocked(f"a statement waited in vain for a lock in {place}: {why}")


def tables_are_locked(store: Transactions) -> bool:
    """Return whether another session has locked one of our tables against all use. It waits for no lock itself."""
    return table_locks.are_locked(_holders(store))


def _holders(store: Transactions) -> list[table_locks.Holder]:
    with patience(0):
        return store.run(lambda target: table_locks.holders(target.dialect, target.execute), begin=Begin.READ)


def _read(store: Transactions, target: Target) -> System:
    store.ensure_schema(target)
    (server,) = target.run(statements.server, store.values(target))
    oldest = server["oldest_snapshot_at"]
    measures = target.dialect.measures_tables
    partitions = target.run(time_partitions.sizes) if target.dialect.has_partitions else []
    return System(
        at=server["now"],
        revision=server["revision"],
        oldest_code=server["oldest_code"],
        server=f"{server['name']} {server['version'].partition(' ')[0]}",
        size=server["size"],
        tables=sizes_of(target) if measures else [],
        oldest_snapshot=None if oldest is None else max(timedelta(0), server["now"] - oldest),
        partitions=[PartitionSize(**row) for row in partitions],
    )
