"""A transition on a database with data-modifying CTEs: one statement."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import FromClause, Select, select

from ..statements.grammar import Columns, Relations, Statement, Transition
from .prepared import Execute, Prepared, Row


class Batches(Protocol):
    """The part of a grammar that makes a relation of a batch."""

    def rows(self, name: str, columns: Columns, alike: frozenset[str] = frozenset()) -> FromClause: ...


class Pack(Protocol):
    """Makes a batch into its parameters."""

    def __call__(
        self, name: str, columns: Columns, rows: Sequence[Sequence[Any]], alike: frozenset[str] = frozenset()
    ) -> dict[str, Any]: ...


class OneStatement:
    """A transition as one statement of data-modifying CTEs; the same chain once more for a batch of one, which most are, and
    for one whose rows differ in little.

    And each without the steps that the batch has no row for: a step that finds nothing to do is set up all the same.
    """

    def __init__(
        self,
        transition: Transition,
        grammar: Batches,
        *,
        prepare: Callable[[Statement], Prepared],
        pack: Pack,
    ) -> None:
        self._grammar = grammar
        self._transition = transition
        self._prepare = prepare
        self._pack = pack
        self._given = transition.given
        self._names = [f"given_{key}" for key in transition.given]
        positions = {key: position for position, key in enumerate(transition.given)}
        self._spared = [
            (name, operator.itemgetter(positions[when.column]), when.values)
            for name, when in transition.when.items()
            if when.rows == "given"
        ]
        self._all = frozenset(transition.given)
        self._alike = operator.itemgetter(*map(positions.__getitem__, transition.alike)) if transition.alike else None
        self._prepared: dict[tuple[frozenset[str], frozenset[str]], Prepared] = {}

    @property
    def sql(self) -> str:
        return self._statement(alike=frozenset()).sql

    @property
    def sql_of_one(self) -> str | None:
        """Nothing but `given` is another in it. None: it takes no batch."""
        return self._statement(alike=self._all).sql if self._given else None

    def sql_for(self, rows: Sequence[Sequence[Any]]) -> str:
        """What is run for this batch: `given` may be another, and steps may be missing."""
        return self._statement(self._said_once(rows), self._needless(rows)).sql

    def compile(self) -> None:
        """In the forms for batches whose rows differ in little and need none of the steps which may be spared: most do not."""
        spared = frozenset(name for name, *_ in self._spared)
        for alike in {self._all, frozenset(self._transition.alike)}:
            self._statement(alike, spared)

    def run(
        self, execute: Execute, values: Mapping[str, Any], rows: Sequence[Sequence[Any]] | None = None
    ) -> list[Row]:
        if rows is None:
            return self._statement(alike=frozenset()).run(execute, values)
        alike = self._said_once(rows)
        if alike is self._all:
            packed = dict(zip(self._names, rows[0], strict=True))
        else:
            packed = self._pack("given", self._given, rows, alike)
        return self._statement(alike, self._needless(rows)).run(execute, {**values, **packed})

    def _said_once(self, rows: Sequence[Sequence[Any]]) -> frozenset[str]:
        """The columns that have one value in the whole batch: all of a single row, else those where that is to be expected."""
        if len(rows) == 1:
            return self._all
        if self._alike is None or len(set(map(self._alike, rows))) != 1:
            return frozenset()
        return self._transition.alike

    def _needless(self, rows: Sequence[Sequence[Any]]) -> frozenset[str]:
        """The steps that need not be asked about this batch."""
        return frozenset(
            [name for name, cell, values in self._spared if not _says(set(map(cell, rows)), values)],
        )

    def _statement(self, alike: frozenset[str], without: frozenset[str] = frozenset()) -> Prepared:
        found = self._prepared.get((alike, without))
        if found is None:
            given = self._grammar.rows("given", self._given, alike) if self._given else None
            found = self._prepared[alike, without] = self._prepare(_built(self._transition, given, without))
        return found


def _says(found: set[Any], values: frozenset[str]) -> bool:
    return not values.isdisjoint(found) if values else found != {None}


def _built(transition: Transition, given: FromClause | None, without: frozenset[str]) -> Statement:
    """The statement of a transition whose batch is this relation."""
    relations: dict[str, Any] = {} if given is None else {"given": given}
    *inner, (last, build_last) = [(name, build) for name, build in transition.steps.items() if name not in without]
    for name, build in inner:
        relations[name] = _cte(build(relations), name)
    ctes = [relations[name] for name, _ in inner]
    if transition.returns is None:
        return build_last(relations).add_cte(*ctes)
    relations[last] = _cte(build_last(relations), last)
    return _outcome(transition, relations).add_cte(*ctes, relations[last])


def _cte(statement: Statement, name: str) -> Any:
    relation = statement.cte(name)
    # The planner may fold a plain SELECT into its reader and evaluate it more than once, LIMIT and locks included.
    return relation.prefix_with("MATERIALIZED") if isinstance(statement, Select) else relation


def _outcome(transition: Transition, relations: Relations) -> Select[Any]:
    returned = relations[transition.returns or ""]
    columns, rows = {key: returned.c[key] for key in transition.tells or returned.c.keys()}, returned
    for name in transition.completed_by:
        other = relations[name]
        columns |= {key: other.c[key] for key in transition.completed_with(other.c.keys())}
        rows = rows.outerjoin(other, other.c.id == returned.c.id)
    return select(*columns.values()).select_from(rows)
