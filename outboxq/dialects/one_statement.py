"""A transition on a database with data-modifying CTEs: one statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import FromClause, Select, select

from ..statements.grammar import Columns, Relations, Statement, Transition
from .prepared import Execute, Prepared, Row


class Batches(Protocol):
    """The part of a grammar that makes a relation of a batch."""

    def rows(self, name: str, columns: Columns) -> FromClause: ...

    def row(self, name: str, columns: Columns) -> FromClause: ...


class OneStatement:
    """A transition as one statement of data-modifying CTEs; the same chain once more for a batch of one, which most are.

    And each without the steps that the batch has no row for: a step that finds nothing to do is set up all the same.
    """

    def __init__(
        self,
        transition: Transition,
        grammar: Batches,
        *,
        prepare: Callable[[Statement], Prepared],
        pack: Callable[[str, Columns, Sequence[Sequence[Any]]], dict[str, Any]],
    ) -> None:
        self._grammar = grammar
        self._transition = transition
        self._prepare = prepare
        self._pack = pack
        self._given = transition.given
        self._names = [f"given_{key}" for key in transition.given]
        positions = {key: position for position, key in enumerate(transition.given)}
        self._spared: dict[int, list[tuple[str, frozenset[str]]]] = {}
        """By the position of the column that tells, the steps and the values that they are for."""
        for name, when in transition.when.items():
            if when.rows == "given":
                self._spared.setdefault(positions[when.column], []).append((name, when.values))
        self._prepared: dict[tuple[bool, frozenset[str]], Prepared] = {}

    @property
    def sql(self) -> str:
        return self._statement(of_one=False).sql

    @property
    def sql_of_one(self) -> str | None:
        """Nothing but `given` is another in it. None: it takes no batch."""
        return self._statement(of_one=True).sql if self._given else None

    def sql_for(self, rows: Sequence[Sequence[Any]]) -> str:
        """What is run for this batch: steps may be missing."""
        return self._statement(of_one=len(rows) == 1, without=self._needless(rows)).sql

    def run(
        self, execute: Execute, values: Mapping[str, Any], rows: Sequence[Sequence[Any]] | None = None
    ) -> list[Row]:
        if rows is None:
            return self._statement(of_one=False).run(execute, values)
        of_one = len(rows) == 1
        packed = dict(zip(self._names, rows[0], strict=True)) if of_one else self._pack("given", self._given, rows)
        return self._statement(of_one=of_one, without=self._needless(rows)).run(execute, {**values, **packed})

    def _needless(self, rows: Sequence[Sequence[Any]]) -> frozenset[str]:
        """The steps that need not be asked about this batch."""
        needless = []
        for position, steps in self._spared.items():
            said = {row[position] for row in rows} - {None}
            needless += [name for name, values in steps if not (said & values if values else said)]
        return frozenset(needless)

    def _statement(self, *, of_one: bool, without: frozenset[str] = frozenset()) -> Prepared:
        found = self._prepared.get((of_one, without))
        if found is None:
            batch = self._grammar.row if of_one else self._grammar.rows
            given = batch("given", self._given) if self._given else None
            found = self._prepared[of_one, without] = self._prepare(_built(self._transition, given, without))
        return found


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
        columns |= {c.key: c for c in other.c if c.key != "id"}
        rows = rows.outerjoin(other, other.c.id == returned.c.id)
    return select(*columns.values()).select_from(rows)
