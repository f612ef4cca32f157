"""Run a transition on PostgreSQL as one statement: each step is a data-modifying CTE, which reads the steps before it.

`OneStatement.run` chooses a variant of the statement by the batch, compiles it at its first use, and runs it:

1. Columns that hold one value in the whole batch are sent as one value each, the others as arrays. Every column of a batch of
   one is such a column, so the planner sees constants.
2. A step whose condition no row of the batch meets is left out, because the server prepares even a step that finds nothing.
3. The last SELECT reads the step that the transition returns, and joins the columns of the joined steps by id.

`python -m benchmarks.tunings --on postgresql` prints what the variants gain, in CPU time of this process and the server.
Without 1, an enqueue of 100 tasks takes 12 % more, and the end of one task 13 %. Without 2, the end of 100 tasks takes 19 %
more, and that of one task 14 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import FromClause, Select, select

from ..grammar import Columns, Grammar, Relations, Statement, Transition
from .prepared import Cells, Execute, Prepared, Row, cells_of

Pack = Callable[[str, Columns, Sequence[Cells], frozenset[str]], dict[str, Any]]
"""Turns the rows of a relation into its parameters; the columns in the set are constant."""


class OneStatement:
    """A transition as one statement, with a variant for each kind of batch."""

    def __init__(
        self, transition: Transition, grammar: Grammar, *, prepare: Callable[[Statement], Prepared], pack: Pack
    ) -> None:
        self._transition, self._grammar, self._prepare, self._pack = transition, grammar, prepare, pack
        self._every_column = frozenset(transition.given)
        constant = transition.constant_columns
        self._constants = cells_of(transition.given, constant) if constant else None
        self._conditions = [
            (name, condition, cells_of(transition.given, [condition.column]))
            for name, condition in transition.conditions.items()
        ]
        self._variants: dict[tuple[frozenset[str], frozenset[str]], Prepared] = {}

    @property
    def sql(self) -> str:
        return self._variant(frozenset()).sql

    @property
    def sql_of_one(self) -> str | None:
        """The text for a batch of one, which differs in `given` only; None for a transition without a batch."""
        return self._variant(self._every_column).sql if self._every_column else None

    def sql_for(self, rows: Sequence[Cells]) -> str:
        """Return the text that is run for this batch."""
        return self._variant(*self._kind(rows)).sql

    def compile(self) -> None:
        """Compile now, instead of at the first use, the variants that most batches take: those without the needless steps."""
        for constant in {self._every_column, self._transition.constant_columns}:
            self._variant(constant, frozenset(name for name, *_ in self._conditions))

    def run(self, execute: Execute, values: Mapping[str, Any], rows: Sequence[Cells] | None = None) -> list[Row]:
        if rows is None:
            return self._variant(frozenset()).run(execute, values)
        constant, needless = self._kind(rows)
        batch = self._pack("given", self._transition.given, rows, constant)
        return self._variant(constant, needless).run(execute, {**values, **batch})

    def _kind(self, rows: Sequence[Cells]) -> tuple[frozenset[str], frozenset[str]]:
        """Return the columns that hold one value in the whole batch, and the steps for which it has no row."""
        if len(rows) == 1:
            constant = self._every_column
        elif self._constants is not None and len(set(map(self._constants, rows))) == 1:
            constant = self._transition.constant_columns
        else:
            constant = frozenset()
        needless = [name for name, condition, cell in self._conditions if not condition.is_met(map(cell, rows))]
        return constant, frozenset(needless)

    def _variant(self, constant: frozenset[str], without: frozenset[str] = frozenset()) -> Prepared:
        found = self._variants.get((constant, without))
        if found is None:
            columns = self._transition.given
            given = self._grammar.rows("given", columns, constant) if columns else None
            found = self._variants[constant, without] = self._prepare(_built(self._transition, given, without))
        return found


def _built(transition: Transition, given: FromClause | None, without: frozenset[str]) -> Statement:
    """Return the statement of a transition whose batch is the relation `given`, with the steps that are not in `without`."""
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
    # Without MATERIALIZED the planner may merge a SELECT into its reader and run it more than once, with its LIMIT and locks.
    return relation.prefix_with("MATERIALIZED") if isinstance(statement, Select) else relation


def _outcome(transition: Transition, relations: Relations) -> Select[Any]:
    returned = relations[transition.returns or ""]
    columns, rows = {key: returned.c[key] for key in transition.returning or returned.c.keys()}, returned
    for name in transition.joined_steps:
        other = relations[name]
        columns |= {key: other.c[key] for key in transition.joined(other.c.keys())}
        rows = rows.outerjoin(other, other.c.id == returned.c.id)
    return select(*columns.values()).select_from(rows)
