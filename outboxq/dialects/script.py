"""A transition on a database without data-modifying CTEs: its steps one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import FromClause
from sqlalchemy.sql import visitors

from ..statements.grammar import Columns, Relations, Statement, Transition
from .prepared import Execute, Prepared, Row

Encoder = Callable[[Any], Any]


class Rows(Protocol):
    """The part of a grammar that makes a relation of a packed batch."""

    def rows(self, name: str, columns: Columns, only: Container[str] | None = None) -> FromClause: ...


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
        self._passed: dict[str, list[int]] = {}
        self._when: dict[str, tuple[str, int, frozenset[str]]] = {}
        relations: dict[str, Columns] = {"given": transition.given} if transition.given else {}
        for name, build in transition.steps.items():
            if (when := transition.when.get(name)) is not None:
                self._when[name] = when.rows, list(relations[when.rows]).index(when.column), when.values
            self._steps[name] = step = prepare(_reading_little(grammar, build, relations))
            passed = transition.passes.get(name, tuple(step.columns))
            self._passed[name] = [position for position, key in enumerate(step.columns) if key in passed]
            relations[name] = {key: step.columns[key] for key in step.columns if key in passed}
        self._read = {name for step in self._steps.values() for name in step.names & self._steps.keys()}
        self._read |= {rows for rows, _, _ in self._when.values()}
        self._outcome = [
            (name, list(self._steps[name].columns).index("id"), self._steps[name].reader(asked))
            for name, asked in self._asked()
        ]

    @property
    def sql(self) -> str:
        return ";\n\n".join(f"-- {name}\n{step.sql}" for name, step in self._steps.items())

    def compile(self) -> None:
        """It is."""

    def run(
        self, execute: Execute, values: Mapping[str, Any], rows: Sequence[Sequence[Any]] | None = None
    ) -> list[Row]:
        bound = dict(values)
        if rows is not None:
            bound["given"] = packed(rows, self._encoders)
        outcome: dict[str, list[tuple[Any, ...]]] = {}
        passed: dict[str, Sequence[Sequence[Any]]] = {"given": rows or ()}
        asked = {name for name, *_ in self._outcome}
        for name, step in self._steps.items():
            found = list(execute(step.sql, step.bind(bound))) if self._has_work(name, passed) else []
            if name in self._read:
                passed[name] = [[row[position] for position in self._passed[name]] for row in found]
                bound[name] = json.dumps(passed[name])
            if name in asked:
                outcome[name] = found
        return self._complete(outcome)

    def _has_work(self, name: str, passed: Mapping[str, Sequence[Sequence[Any]]]) -> bool:
        if name not in self._when:
            return True
        rows, position, values = self._when[name]
        return any(row[position] in values if values else row[position] is not None for row in passed[rows])

    def _asked(self) -> Iterator[tuple[str, Iterable[str]]]:
        """Of which steps which columns make the outcome; the id comes from the first."""
        first = self._transition.returns
        if first is not None:
            yield first, self._transition.tells or self._steps[first].columns
        for name in self._transition.completed_by:
            yield name, [key for key in self._steps[name].columns if key != "id"]

    def _complete(self, outcome: Mapping[str, list[tuple[Any, ...]]]) -> list[Row]:
        """The rows of the first step asked, each with those of the others that have its id."""
        if not self._outcome:
            return []
        (first, at, read), *others = self._outcome
        found = read(outcome[first])
        for name, position, read_other in others:
            known = {row[position]: row for row in outcome[name]}
            nothing = (None,) * len(self._steps[name].columns)
            completing = read_other(known.get(row[at], nothing) for row in outcome[first])
            found = [{**row, **other} for row, other in zip(found, completing, strict=True)]
        return found


def packed(rows: Iterable[Sequence[Any]], encoders: Sequence[Encoder | None]) -> str:
    """A batch as one parameter: a JSON array of arrays."""
    return json.dumps(
        [
            [value if encode is None else encode(value) for value, encode in zip(row, encoders, strict=True)]
            for row in rows
        ]
    )


def _reading_little(g: Rows, build: Callable[[Relations], Statement], relations: Mapping[str, Columns]) -> Statement:
    """The statement, and of each relation no more columns than it reads: each costs a look into each row's JSON."""
    whole = {name: g.rows(name, columns) for name, columns in relations.items()}
    read: dict[Any, set[str]] = {relation: set() for relation in whole.values()}
    for element in visitors.iterate(build(whole)):
        if (relation := getattr(element, "table", None)) in read:
            read[relation].add(element.key)  # type: ignore[attr-defined]
    return build({name: g.rows(name, relations[name], read[relation]) for name, relation in whole.items()})
