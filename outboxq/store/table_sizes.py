"""The sizes of outboxq's tables, for people who operate the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..database.dialects import Begin
from ..database.statements import table_sizes as statements
from ..database.target import Target
from .transactions import Transactions


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSize:
    """The size of one table."""

    name: str
    size: int
    """Bytes, with indexes and partitions."""
    dead_rows: int
    """Rows that are not vacuumed yet, as PostgreSQL estimates them."""
    index_size: int = 0
    """Bytes of the indexes, which are among `size`."""
    rows: int = 0
    """Number of rows, as PostgreSQL estimates it."""
    last_vacuumed_at: datetime | None = None
    """Time of the last vacuum, an automatic one or not; of a partitioned table, that of its last partition. None: not since the
    statistics were reset.
    """


def table_sizes(store: Transactions) -> list[TableSize]:
    """Return the sizes of the tables that are there, by name. On SQLite, whose tables have no sizes of their own, return nothing."""
    if not store.dialect.measures_tables:
        return []
    return store.run(sizes_of, begin=Begin.READ)


def sizes_of(target: Target) -> list[TableSize]:
    """Return the sizes, inside a transaction of a database that measures its tables."""
    return [TableSize(**row) for row in target.run(statements.sizes)]
