"""Tables whose columns a type checker knows one by one, made the same on SQLAlchemy 2.0 and 2.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from sqlalchemy import Column, MetaData, Table
from sqlalchemy.schema import SchemaItem

if TYPE_CHECKING:
    from sqlalchemy import TypedColumns
else:

    class TypedColumns:
        """Columns as attributes of a class. SQLAlchemy has such a class from 2.1 on: type checkers are shown that one."""


__all__ = ["TypedColumns", "in_words", "storage_of", "typed_table"]

_STORAGE: Final = "outboxq_storage"

ColumnsT = TypeVar("ColumnsT", bound=TypedColumns)


def typed_table(
    name: str,
    metadata: MetaData,
    columns: type[ColumnsT],
    *others: SchemaItem,
    storage: Mapping[str, float] | None = None,
    **options: Any,
) -> Table[ColumnsT]:
    """Return the table of the columns that the class declares, each named as its attribute.

    `storage` is what PostgreSQL calls storage parameters: it is only kept here, for SQLAlchemy 2.0 has no words for them. The
    migrations set them, and partitions are made with them. Other `options` are those of `Table`.
    """
    declared: list[SchemaItem] = []
    for key, column in vars(columns).items():
        if isinstance(column, Column):
            column.name = column.key = key
            declared.append(column)
    table = Table(name, metadata, *declared, *others, info={_STORAGE: dict(storage or {})}, **options)
    return cast("Table[ColumnsT]", table)


def storage_of(table: Table) -> Mapping[str, float]:
    """Return the storage parameters with which PostgreSQL keeps the rows of a table; empty: its own choice."""
    return table.info.get(_STORAGE, {})  # type: ignore[no-any-return]


def in_words(storage: Mapping[str, float]) -> str:
    """Return storage parameters as they stand between the parentheses of WITH and SET."""
    return ", ".join(f"{name} = {value}" for name, value in storage.items())
