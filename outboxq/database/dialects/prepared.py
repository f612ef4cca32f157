"""Compile a Core statement once, to be run through any cursor: SQLAlchemy's, Django's, psycopg's or sqlite3's.

One object serves every kind of caller's connection, and costs a third of what executing the construct does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any
from uuid import UUID

from sqlalchemy import Dialect as SqlalchemyDialect
from sqlalchemy import Float, Select, Uuid
from sqlalchemy.types import TypeEngine

from ..column_types import UnreadableId
from ..grammar import Statement

Row = dict[str, Any]
Cells = Sequence[Any]
"""A row as the driver returns or takes it."""
Execute = Callable[[str, Mapping[str, Any]], Iterable[Cells]]
"""Runs one statement on one connection; returns the driver's rows, none for a statement without a result."""


class Prepared:
    """SQL text, with the conversion of values into its parameters and of rows into values."""

    def __init__(self, statement: Statement, dialect: SqlalchemyDialect, schema: str | None) -> None:
        placed = {"schema_translate_map": {None: schema}, "render_schema_translate": True} if schema else {}
        compiled: Any = statement.compile(
            dialect=dialect,
            compile_kwargs={"render_postcompile": True},
            **placed,  # type: ignore[arg-type]
        )
        self.sql = str(compiled)
        self._constants: dict[str, Any] = {}
        self._required: list[str] = []
        self._optional: dict[str, Any] = {}
        self._encoders: dict[str, Callable[[Any], Any]] = {}
        for bind, name in compiled.bind_names.items():
            encode = bind.type.dialect_impl(dialect).bind_processor(dialect)
            default = bind.effective_value if encode is None else encode(bind.effective_value)
            if bind.unique:  # it has no name by which a caller could set its value
                self._constants[name] = default
                continue
            if bind.required:
                self._required.append(name)
            else:
                self._optional[name] = default
            if encode is not None:
                self._encoders[name] = encode
        columns = statement.selected_columns if isinstance(statement, Select) else statement.exported_columns
        self.columns = {str(column.key): column.type for column in columns}
        self._decoders = {
            name: (position, _decoder(kind, dialect)) for position, (name, kind) in enumerate(self.columns.items())
        }

    @property
    def names(self) -> frozenset[str]:
        """The names of the statement's parameters."""
        return frozenset((*self._required, *self._optional, *self._constants))

    def bind(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the driver's parameters. `values` may hold more than this statement takes."""
        parameters = {**self._constants, **self._optional}
        for name in self._required:
            parameters[name] = values[name]
        for name in self._optional:
            if name in values:
                parameters[name] = values[name]
        for name, encode in self._encoders.items():
            if name in values:
                parameters[name] = encode(values[name])
        return parameters

    def run(self, execute: Execute, values: Mapping[str, Any]) -> list[Row]:
        return self.read(execute(self.sql, self.bind(values)))

    def read(self, rows: Iterable[Cells], names: Collection[str] | None = None) -> list[Row]:
        """Return these columns (None: all) of the driver's rows as Python values, decoded a column at a time."""
        columns = list(zip(*rows, strict=True))
        if not columns:
            return []
        wanted = self.columns if names is None else names
        values = [
            columns[position]
            if decode is None
            else [None if cell is None else decode(cell) for cell in columns[position]]
            for position, decode in map(self._decoders.__getitem__, wanted)
        ]
        return [dict(zip(wanted, row, strict=True)) for row in zip(*values, strict=True)]


def cells_of(columns: Iterable[str], names: Collection[str]) -> Callable[[Cells], Any]:
    """Return a function that takes these columns from a row of `columns`: a tuple, or the value of a single column."""
    positions = {name: position for position, name in enumerate(columns)}
    return itemgetter(*(positions[name] for name in names))


def _decoder(kind: TypeEngine[Any], dialect: SqlalchemyDialect) -> Callable[[Any], Any] | None:
    """Return the function that converts a driver's value, which is not NULL; None if it needs none."""
    if isinstance(kind, Float):
        return None  # every driver returns a float; SQLAlchemy would ask for the driver's type code
    processor = kind.dialect_impl(dialect).result_processor(dialect, None)
    return _uuid if isinstance(kind, Uuid) and processor is not None else processor


_is_stored_id = re.compile("[0-9a-f]{32}").fullmatch


@lru_cache(maxsize=2048)  # 4 % of a claim and its end on SQLite: python -m benchmarks.tunings --only ids-remembered
def _uuid(stored: object) -> UUID | UnreadableId:
    """Return a stored id. Anything but 32 lower-case hexadecimal digits stays as it is, to be shown and written again."""
    return UUID(stored) if isinstance(stored, str) and _is_stored_id(stored) else UnreadableId(stored)
