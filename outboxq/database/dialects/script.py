"""A transition on a database without data-modifying CTEs: its steps one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from sqlalchemy import FromClause
from sqlalchemy.sql import visitors

from ..statements.grammar import Columns, Relations, Statement, Transition
from .prepared import Execute, Prepared, Row, reader

Encoder = Callable[[Any], Any]
Build = Callable[[Relations], Statement]
Prepare = Callable[[Statement], Prepared]
_Found = Mapping[str, Sequence[Sequence[Any]]]
"""The rows of the batch and of each step so far, as the driver has them."""


class Rows(Protocol):
    """The part of a grammar that makes relations of rows."""

    def rows(self, name: str, columns: Columns, alike: frozenset[str] = frozenset()) -> FromClause: ...

    def row(self, name: str, columns: Columns) -> FromClause: ...


class Script:
    """A transition as one statement after the other, each given the rows that the earlier ones returned."""

    def __init__(
        self,
        transition: Transition,
        grammar: Rows,
        *,
        prepare: Prepare,
        encoders: Sequence[Encoder | None],
    ) -> None:
        self._transition = transition
        self._encoders = encoders
        self._steps: dict[str, _Step] = {}
        self._when: dict[str, tuple[str, int, frozenset[str]]] = {}
        relations: dict[str, Columns] = {"given": transition.given} if transition.given else {}
        for name, build in transition.steps.items():
            if (when := transition.when.get(name)) is not None:
                self._when[name] = when.rows, list(relations[when.rows]).index(when.column), when.values
            self._steps[name] = step = _Step(grammar, build, dict(relations), transition.alike, prepare)
            relations[name] = step.columns
        positions = {key: position for position, key in enumerate(transition.given)}
        self._alike = itemgetter(*map(positions.__getitem__, transition.alike)) if transition.alike else None
        self._completed = [
            (name, list(self._steps[name].columns).index("id"), (None,) * len(self._steps[name].columns))
            for name in transition.completed_by
        ]
        self._read = self._reader() if transition.returns is not None else None

    @property
    def sql(self) -> str:
        return _script({name: step.of_any.prepared for name, step in self._steps.items()})

    @property
    def sql_of_one(self) -> str:
        """Where every step has one row to go by."""
        return _script({name: step.of_one.prepared for name, step in self._steps.items()})

    @property
    def sql_of_alike(self) -> str:
        """Where the rows of a batch have that in common which is to be expected."""
        return _script({name: step.of_alike.prepared for name, step in self._steps.items()})

    def compile(self) -> None:
        for step in self._steps.values():
            _ = step.of_one, step.of_alike

    def run(
        self, execute: Execute, values: Mapping[str, Any], rows: Sequence[Sequence[Any]] | None = None
    ) -> list[Row]:
        given = _encoded(rows, self._encoders) if rows else ()
        alike = self._alike is not None and len(set(map(self._alike, given))) == 1
        found: dict[str, Sequence[Sequence[Any]]] = {"given": given}
        for name, step in self._steps.items():
            found[name] = step.run(execute, values, found, alike=alike) if self._has_work(name, found) else ()
        return self._outcome(found)

    def _has_work(self, name: str, found: _Found) -> bool:
        if name not in self._when:
            return True
        rows, position, values = self._when[name]
        return any(row[position] in values if values else row[position] is not None for row in found[rows])

    def _outcome(self, found: _Found) -> list[Row]:
        """The rows of the step asked, each with those of the completing steps that have its id."""
        if self._read is None:
            return []
        returned = self._transition.returns or ""
        rows, at = found[returned], list(self._steps[returned].columns).index("id")
        for name, position, nothing in self._completed:
            known = {row[position]: row for row in found[name]}
            rows = [(*row, *known.get(row[at], nothing)) for row in rows]
        return self._read(rows)

    def _reader(self) -> Callable[[Iterable[Sequence[Any]]], list[Row]]:
        """Reads the rows of the step asked with those of the completing steps behind them; the id comes from the first."""
        first, *others = self._transition.returns or "", *self._transition.completed_by
        wanted = self._steps[first].of_any.prepared.wanted(self._transition.tells)
        behind = len(self._steps[first].columns)
        for name in others:
            step = self._steps[name].of_any.prepared
            wanted += step.wanted(self._transition.completed_with(step.columns), behind)
            behind += len(step.columns)
        return reader(wanted)


class _Form(NamedTuple):
    """A statement of the script, and where what it is given stands in the rows of the relations that it reads."""

    prepared: Prepared
    several: Mapping[str, Callable[[Any], Any]]
    """By relation, which is packed under its name: what takes the columns that are read from a row."""
    single: Sequence[tuple[str, str, int]]
    """Values of a relation's first row, each a parameter: its name, the relation, the position."""

    def run(self, execute: Execute, values: Mapping[str, Any], found: _Found) -> list[tuple[Any, ...]]:
        packing = {relation: _dump(list(map(cells, found[relation]))) for relation, cells in self.several.items()}
        parameters = self.prepared.bind({**values, **packing})
        parameters.update((name, found[relation][0][position]) for name, relation, position in self.single)
        return list(execute(self.prepared.sql, parameters))


class _Step:
    """A statement of the script; once more for where each relation that it reads has one row, which most have, and for where
    the rows of the batch are alike.

    Rows are packed; what is the same in all of them is a value, which the statement finds without looking.
    """

    def __init__(
        self, grammar: Rows, build: Build, relations: Mapping[str, Columns], alike: frozenset[str], prepare: Prepare
    ) -> None:
        self._grammar, self._build, self._prepare, self._alike = grammar, build, prepare, alike
        self._relations, self._little = _reading_little(grammar, build, relations)
        self._positions = {
            relation: {key: list(relations[relation]).index(key) for key in columns}
            for relation, columns in self._little.items()
        }
        self.of_any = self._form(grammar.rows)
        self.columns = self.of_any.prepared.columns

    @cached_property
    def of_one(self) -> _Form:
        return self._form(self._grammar.row)

    @cached_property
    def of_alike(self) -> _Form:
        def rows(name: str, columns: Columns) -> FromClause:
            return self._grammar.rows(name, columns, self._alike if name == "given" else frozenset())

        return self._form(rows)

    def run(self, execute: Execute, values: Mapping[str, Any], found: _Found, *, alike: bool) -> list[tuple[Any, ...]]:
        if self.of_any.several and all(len(found[relation]) == 1 for relation in self.of_any.several):
            return self.of_one.run(execute, values, found)
        return (self.of_alike if alike else self.of_any).run(execute, values, found)

    def _form(self, relation: Callable[[str, Columns], FromClause]) -> _Form:
        little = {name: relation(name, columns) for name, columns in self._little.items()}
        prepared = self._prepare(self._build({**self._relations, **little}))
        single = [
            (name, relation, position)
            for relation, positions in self._positions.items()
            for key, position in positions.items()
            if (name := f"{relation}_{key}") in prepared.names
        ]
        said = {name for name, *_ in single}
        several = {
            relation: itemgetter(*[at for key, at in positions.items() if f"{relation}_{key}" not in said])
            for relation, positions in self._positions.items()
            if relation in prepared.names
        }
        return _Form(prepared, several, single)


def _text(value: object) -> str:
    """Return a BLOB in a column of texts as one: a claim must not fail at the row that it stands in."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    raise TypeError(f"{type(value).__name__} is not for JSON")


_dump = json.JSONEncoder(default=_text).encode


def packed(rows: Sequence[Sequence[Any]], encoders: Sequence[Encoder | None]) -> str:
    """A batch as one parameter: a JSON array of arrays, or of the only column's values."""
    cells = _encoded(rows, encoders)
    return _dump([cell for (cell,) in cells] if len(encoders) == 1 else cells)


def _encoded(rows: Sequence[Sequence[Any]], encoders: Sequence[Encoder | None]) -> list[tuple[Any, ...]]:
    return list(
        zip(
            *(
                column if encode is None else map(encode, column)
                for column, encode in zip(zip(*rows, strict=True), encoders, strict=False)
            ),
            strict=True,
        )
    )


def _script(steps: Mapping[str, Prepared]) -> str:
    return ";\n\n".join(f"-- {name}\n{step.sql}" for name, step in steps.items())


def _reading_little(g: Rows, build: Build, relations: Mapping[str, Columns]) -> tuple[Relations, Mapping[str, Columns]]:
    """The relations, and of each the columns that are read: each is packed, and looked up in each row's JSON."""
    whole = {name: g.rows(name, columns) for name, columns in relations.items()}
    read = _read(build(whole), whole)
    little = {name: {key: kind for key, kind in relations[name].items() if key in keys} for name, keys in read.items()}
    return whole, little


def _read(statement: Statement, relations: Relations) -> dict[str, set[str]]:
    """The relations that the statement reads, and which columns of them."""
    names = {relation: name for name, relation in relations.items()}
    read: dict[str, set[str]] = {}
    for element in visitors.iterate(statement):
        if (name := names.get(getattr(element, "table", None))) is not None:
            read.setdefault(name, set()).add(element.key)  # type: ignore[attr-defined]
    return read
