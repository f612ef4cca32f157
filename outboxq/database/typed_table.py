"""Define tables whose individual columns are known to type checkers, under both SQLAlchemy 2.0 and 2.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from sqlalchemy import Column, MetaData, Table
from sqlalchemy.schema import SchemaItem

from . import bounds

if TYPE_CHECKING:
    from sqlalchemy import TypedColumns
else:

    class TypedColumns:
        """Columns as attributes of a class. SQLAlchemy 2.1 and later have a class for this, and type checkers use that
        class.
        """


__all__ = ["TypedColumns", "in_words", "metadata", "storage_of", "typed_table"]

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)
"""The metadata of all tables."""

_STORAGE: Final = "outboxq_storage"

ColumnsT = TypeVar("ColumnsT", bound=TypedColumns)


def typed_table(
    name: str,
    columns: type[ColumnsT],
    *others: SchemaItem,
    storage: Mapping[str, float] | None = None,
    **options: Any,
) -> Table[ColumnsT]:
    """Return the table with the columns that the class declares, and with the CHECKs of `bounds.py`. Each column has
    the name of its attribute.

    Columns that the class inherits are copied. They are placed at the attribute whose value is the class that they come
    from, or at the end if there is no such attribute. A column that the class inherits by name (``queue = Base.queue``)
    is placed at that attribute.

    `storage` contains PostgreSQL's storage parameters. The table only records the parameters, because SQLAlchemy 2.0
    cannot express them. The migrations set them, and partitions are created with them. The other `options` are the
    options of `Table`.
    """
    declared = [_named(key, column) for key, column in _columns(columns).items()]
    table = Table(
        name, metadata, *declared, *others, *bounds.of(name, declared), info={_STORAGE: dict(storage or {})}, **options
    )
    return cast("Table[ColumnsT]", table)


def _columns(columns: type[TypedColumns]) -> dict[str, Column[Any]]:
    found: dict[str, Column[Any]] = {}
    for key, one in [*vars(columns).items(), *((base.__name__, base) for base in columns.__bases__)]:
        if isinstance(one, Column):
            found[key] = one
        elif isinstance(one, type) and issubclass(one, TypedColumns):
            found |= {name: column for name, column in _columns(one).items() if name not in found}
    return found


def _named(key: str, column: Column[Any]) -> Column[Any]:
    """Return the column with this name; if the column already belongs to a table, return a copy."""
    if getattr(column, "table", None) is not None:
        return Column(key, column.type, nullable=column.nullable)
    column.name = column.key = key
    return column


def storage_of(table: Table) -> Mapping[str, float]:
    """Return PostgreSQL's storage parameters for a table; empty if the table uses the server's defaults."""
    return table.info.get(_STORAGE, {})  # type: ignore[no-any-return]


def in_words(storage: Mapping[str, float]) -> str:
    """Return storage parameters as SQL, for the parentheses of WITH and SET."""
    return ", ".join(f"{name} = {value}" for name, value in storage.items())
