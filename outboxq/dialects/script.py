"""A transition on a database without data-modifying CTEs: its steps one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

from sqlalchemy import FromClause
from sqlalchemy.sql import visitors

from ..statements.grammar import Columns, Relations, Statement, Transition
from .prepared import Execute, Prepared, Row, reader

Encoder = Callable[[Any], Any]
Build = Callable[[Relations], Statement]
_Found = Mapping[str, Sequence[Sequence[Any]]]
"""The rows of the batch and of each step so far, as the driver has them."""


class Rows(Protocol):
    """The part of a grammar that makes a relation of a packed batch."""

    def rows(self, name: str, columns: Columns) -> FromClause: ...


class Script:
    """A transition as one statement after the other, each given the rows that the earlier ones returned."""

    def __init__(
        self,
        transition: Transition,
        grammar: Rows,
        *,
        prepare: Callable[[Statement], Prepared],
        encoders: Sequence[Encoder | None],
    ) -> None:
        self._transition = transition
        self._encoders = encoders
        self._steps: dict[str, Prepared] = {}
        self._given: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {}
        self._when: dict[str, tuple[str, int, frozenset[str]]] = {}
        relations: dict[str, Columns] = {"given": transition.given} if transition.given else {}
        for name, build in transition.steps.items():
            if (when := transition.when.get(name)) is not None:
                self._when[name] = when.rows, list(relations[when.rows]).index(when.column), when.values
            statement, read = _reading_little(grammar, build, relations)
            self._steps[name] = step = prepare(statement)
            self._given[name] = [
                (relation, itemgetter(*map(list(relations[relation]).index, columns)))
                for relation, columns in read.items()
                if relation in step.names
            ]
            relations[name] = step.columns
        self._completed = [
            (name, list(self._steps[name].columns).index("id"), (None,) * len(self._steps[name].columns))
            for name in transition.completed_by
        ]
        self._read = self._reader() if transition.returns is not None else None

    @property
    def sql(self) -> str:
        return ";\n\n".join(f"-- {name}\n{step.sql}" for name, step in self._steps.items())

    def compile(self) -> None:
        """It is."""

    def run(
        self, execute: Execute, values: Mapping[str, Any], rows: Sequence[Sequence[Any]] | None = None
    ) -> list[Row]:
        bound = dict(values)
        found: dict[str, Sequence[Sequence[Any]]] = {"given": _encoded(rows, self._encoders) if rows else ()}
        for name, step in self._steps.items():
            found[name] = ()
            if self._has_work(name, found):
                for relation, cells in self._given[name]:
                    bound[relation] = json.dumps(list(map(cells, found[relation])))
                found[name] = list(execute(step.sql, step.bind(bound)))
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
        wanted, behind = self._steps[first].wanted(self._transition.tells), len(self._steps[first].columns)
        for name in others:
            step = self._steps[name]
            wanted += step.wanted([key for key in step.columns if key != "id"], behind)
            behind += len(step.columns)
        return reader(wanted)


def packed(rows: Sequence[Sequence[Any]], encoders: Sequence[Encoder | None]) -> str:
    """A batch as one parameter: a JSON array of arrays, or of the only column's values."""
    cells = _encoded(rows, encoders)
    return json.dumps([cell for (cell,) in cells] if len(encoders) == 1 else cells)


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


def _reading_little(g: Rows, build: Build, relations: Mapping[str, Columns]) -> tuple[Statement, Mapping[str, Columns]]:
    """The statement, and of each relation the columns it reads: each is packed, and looked up in each row's JSON."""
    whole = {name: g.rows(name, columns) for name, columns in relations.items()}
    read = _read(build(whole), whole)
    little = {name: {key: kind for key, kind in relations[name].items() if key in keys} for name, keys in read.items()}
    return build({**whole, **{name: g.rows(name, columns) for name, columns in little.items()}}), little


def _read(statement: Statement, relations: Relations) -> dict[str, set[str]]:
    """The relations that the statement reads, and which columns of them."""
    names = {relation: name for name, relation in relations.items()}
    read: dict[str, set[str]] = {}
    for element in visitors.iterate(statement):
        if (name := names.get(getattr(element, "table", None))) is not None:
            read.setdefault(name, set()).add(element.key)  # type: ignore[attr-defined]
    return read
