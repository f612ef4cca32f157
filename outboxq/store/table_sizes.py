"""The sizes of outboxq's tables, for people who operate the database."""

from __future__ import annotations

from dataclasses import dataclass

from ..database.statements import table_sizes as statements
from .transactions import Transactions


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSize:
    """The size of one table."""

    name: str
    size: int
    """Bytes, with indexes and partitions."""
    dead_rows: int
    """Rows that are not vacuumed yet, as PostgreSQL estimates them."""


def table_sizes(store: Transactions) -> list[TableSize]:
    """Return the sizes of the tables that are there, by name. On SQLite, whose tables have no sizes of their own, return nothing."""
    if not store.dialect.measures_tables:
        return []
    return [TableSize(**row) for row in store.read(statements.sizes)]
