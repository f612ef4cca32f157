"""Run a transition on SQLite, which has no data-modifying CTEs: one statement after the other.

`Script.run` goes through the steps of the transition in order:

1. It converts the batch, the relation `given`, into the values that SQLite stores.
2. It passes over each step whose condition no row meets.
3. It runs the step's statement. The rows of the relations that the statement reads (the batch, and what earlier steps
   returned) are parameters of it.
4. It decodes the rows of the step that the transition returns, and adds the columns of the joined steps by id.

A relation is sent as one JSON array, with the columns that the statement reads. Each statement has two further forms, which
return the same rows for less work:

* `single`, where every relation has one row: each of its columns is a parameter.
* `constant`, where the constant columns of the batch hold one value each: these are parameters, and the rest is an array.

`python -m benchmarks.tunings --on sqlite` prints the CPU time that a call takes without a tuning. With all columns in the
arrays a claim of 100 takes 83 % more, without conditions the end of 100 tasks 68 %, without `constant` an enqueue of 100 tasks
25 %, and without `single` an enqueue of one 15 %.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from sqlalchemy import FromClause
from sqlalchemy.sql import visitors

from ..grammar import Columns, Relations, Statement, Transition
from .prepared import Cells, Execute, Prepared, Row, cells_of

Encoder = Callable[[Any], Any]
Found = Mapping[str, Sequence[Cells]]
"""The rows of the batch and of each step so far, by relation, as SQLite has them."""


class RelationGrammar(Protocol):
    """The part of SQLite's grammar that turns parameters into relations."""

    def rows(self, name: str, columns: Columns, constant: frozenset[str] = frozenset()) -> FromClause: ...

    def row(self, name: str, columns: Columns) -> FromClause: ...


class Script:
    """A transition as a chain of statements."""

    def __init__(
        self,
        transition: Transition,
        grammar: RelationGrammar,
        *,
        prepare: Callable[[Statement], Prepared],
        encoders: Sequence[Encoder | None],
    ) -> None:
        self._transition = transition
        self._encoders = encoders
        self._steps: dict[str, _Step] = {}
        relations: dict[str, Columns] = {"given": transition.given} if transition.given else {}
        for name, build in transition.steps.items():
            self._steps[name] = step = _Step(build, dict(relations), grammar, prepare, transition.constant_columns)
            relations[name] = step.columns
        self._conditions = {
            name: (condition, cells_of(transition.given, [condition.column]))
            for name, condition in transition.conditions.items()
        }
        self._joined = {name: transition.joined(relations[name]) for name in transition.joined_steps}
        self._id_of = {name: cells_of(columns, ["id"]) for name, columns in relations.items() if "id" in columns}
        constant = transition.constant_columns
        self._constants = cells_of(transition.given, constant) if constant else None

    @property
    def sql(self) -> str:
        return _sql({name: step.packed for name, step in self._steps.items()})

    @property
    def sql_of_one(self) -> str:
        """The text for relations of one row each."""
        return _sql({name: step.single for name, step in self._steps.items()})

    @property
    def sql_of_constants(self) -> str:
        """The text for a batch whose constant columns hold one value each."""
        return _sql({name: step.constant for name, step in self._steps.items()})

    def compile(self) -> None:
        """Compile every form now instead of at its first use."""
        for step in self._steps.values():
            _ = step.single, step.constant

    def run(self, execute: Execute, values: Mapping[str, Any], rows: Sequence[Cells] | None = None) -> list[Row]:
        given = _encoded(rows, self._encoders) if rows else ()
        constant = self._constants is not None and len(set(map(self._constants, given))) == 1
        found: dict[str, Sequence[Cells]] = {"given": given}
        for name, step in self._steps.items():
            if name in self._conditions and not self._is_met(name, found):
                found[name] = ()
            else:
                found[name] = step.form(found, constant=constant).run(execute, values, found)
        return self._outcome(found)

    def _is_met(self, name: str, found: Found) -> bool:
        condition, cell = self._conditions[name]
        return condition.is_met(map(cell, found["given"]))

    def _outcome(self, found: Found) -> list[Row]:
        """Return the decoded rows of the returned step, each with the columns of the joined steps' row of its id."""
        if self._transition.returns is None:
            return []
        returned = self._transition.returns
        outcome = self._steps[returned].decode(found[returned], self._transition.returning)
        for name, columns in self._joined.items():
            rows = self._steps[name].decode(found[name], columns)
            by_id = dict(zip(map(self._id_of[name], found[name]), rows, strict=True))
            nothing = dict.fromkeys(columns)
            ids = map(self._id_of[returned], found[returned])
            outcome = [{**row, **by_id.get(key, nothing)} for key, row in zip(ids, outcome, strict=True)]
        return outcome


class _Step:
    """A statement of the chain in its three forms."""

    def __init__(
        self,
        build: Callable[[Relations], Statement],
        relations: Mapping[str, Columns],
        grammar: RelationGrammar,
        prepare: Callable[[Statement], Prepared],
        constant: frozenset[str],
    ) -> None:
        self._build, self._grammar, self._prepare, self._constant = build, grammar, prepare, constant
        self._columns = relations
        self._relations = {name: grammar.rows(name, columns) for name, columns in relations.items()}
        self._read = _columns_read(build(self._relations), self._relations, relations)
        self.packed = self._form(grammar.rows)
        self.columns = self.packed.prepared.columns
        self.decode = self.packed.prepared.read

    @cached_property
    def single(self) -> _Form:
        return self._form(self._grammar.row)

    @cached_property
    def constant(self) -> _Form:
        def rows(name: str, columns: Columns) -> FromClause:
            return self._grammar.rows(name, columns, self._constant if name == "given" else frozenset())

        return self._form(rows) if self._constant else self.packed

    def form(self, found: Found, *, constant: bool) -> _Form:
        """Return the form for these rows; `constant`: the constant columns of the batch hold one value each."""
        if self._read and all(len(found[name]) == 1 for name in self._read):
            return self.single
        return self.constant if constant else self.packed

    def _form(self, relation: Callable[[str, Columns], FromClause]) -> _Form:
        """Compile the statement, with the relations that it reads made by `relation`."""
        read = {name: relation(name, columns) for name, columns in self._read.items()}
        return _Form(self._prepare(self._build({**self._relations, **read})), self._read, self._columns)


class _Form:
    """A compiled statement, and how the rows of the relations that it reads become its parameters."""

    def __init__(self, prepared: Prepared, read: Mapping[str, Columns], columns: Mapping[str, Columns]) -> None:
        self.prepared = prepared
        self._single: list[tuple[str, str, Callable[[Cells], Any]]] = []
        """Each parameter that is a column of a relation's first row: its name, the relation, and what takes it from the row."""
        self._packed: dict[str, Callable[[Cells], Any]] = {}
        """Each relation that is sent as an array, and what takes the array's columns from a row."""
        for name, keys in read.items():
            single = [key for key in keys if f"{name}_{key}" in prepared.names]
            self._single += [(f"{name}_{key}", name, cells_of(columns[name], [key])) for key in single]
            if name in prepared.names:
                self._packed[name] = cells_of(columns[name], [key for key in keys if key not in single])

    def run(self, execute: Execute, values: Mapping[str, Any], found: Found) -> list[Cells]:
        packed = {name: _json(list(map(cells, found[name]))) for name, cells in self._packed.items()}
        parameters = self.prepared.bind({**values, **packed})
        # Cells are as SQLite stores them already: bind() would convert them a second time.
        parameters.update((parameter, cell(found[name][0])) for parameter, name, cell in self._single)
        return list(execute(self.prepared.sql, parameters))


def _columns_read(statement: Statement, relations: Relations, columns: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the relations that a statement reads, each with the columns that it reads."""
    names = {relation: name for name, relation in relations.items()}
    read: dict[str, set[str]] = {}
    for element in visitors.iterate(statement):
        if (name := names.get(getattr(element, "table", None))) is not None:
            read.setdefault(name, set()).add(element.key)  # type: ignore[attr-defined]
    return {name: {key: kind for key, kind in columns[name].items() if key in keys} for name, keys in read.items()}


def packed(rows: Sequence[Cells], encoders: Sequence[Encoder | None]) -> str:
    """Return a batch as one parameter: a JSON array of arrays, or of the values of its only column."""
    cells = _encoded(rows, encoders)
    return _json([cell for (cell,) in cells] if len(encoders) == 1 else cells)


def _encoded(rows: Sequence[Cells], encoders: Sequence[Encoder | None]) -> list[Cells]:
    """Return rows of Python values as rows of the values that SQLite stores."""
    if not rows:
        return []
    columns = zip(encoders, zip(*rows, strict=True), strict=True)
    return list(zip(*(column if encode is None else map(encode, column) for encode, column in columns), strict=True))


def _text_of_blob(value: object) -> str:
    """Return a BLOB in a text column as text: a claim must not fail because of the row that holds it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    raise TypeError(f"{type(value).__name__} is not for JSON")


_json = json.JSONEncoder(default=_text_of_blob).encode


def _sql(steps: Mapping[str, _Form]) -> str:
    return ";\n\n".join(f"-- {name}\n{form.prepared.sql}" for name, form in steps.items())
