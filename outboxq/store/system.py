"""The database that the tables are in, for people who operate it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from ..database.dialects import Begin
from ..database.statements import system as statements
from ..database.statements import time_partitions
from ..database.target import Target
from .table_sizes import TableSize, sizes_of
from .transactions import Transactions


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
