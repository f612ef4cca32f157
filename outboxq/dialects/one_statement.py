"""A transition on a database with data-modifying CTEs: one statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from sqlalchemy import FromClause, Select, select

from ..statements.grammar import Columns, Relations, Statement, Transition
from .prepared import Execute, Prepared, Row


class Batches(Protocol):
    """The part of a grammar that makes a relation of a batch."""

    def rows(self, name: str, columns: Columns) -> FromClause: ...

    def row(self, name: str, columns: Columns) -> FromClause: ...


class OneStatement:
    """A transition as one statement of data-modifying CTEs; the same chain once more for a batch of one, which most are."""

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

    @property
    def sql(self) -> str:
        return self._many.sql

    @property
    def sql_of_one(self) -> str | None:
        """Nothing but `given` is another in it. None: it takes no batch."""
        return self._one.sql if self._given else None

    def compile(self) -> None:
        for form in ("_many", "_one") if self._given else ("_many",):
            getattr(self, form)

    def run(
        self, execute: Execute, values: Mapping[str, Any], rows: Sequence[Sequence[Any]] | None = None
    ) -> list[Row]:
        if rows is None:
            return self._many.run(execute, values)
        if len(rows) == 1:
            return self._one.run(execute, {**values, **dict(zip(self._names, rows[0], strict=True))})
        return self._many.run(execute, {**values, **self._pack("given", self._given, rows)})

    @cached_property
    def _many(self) -> Prepared:
        given = self._grammar.rows("given", self._given) if self._given else None
        return self._prepare(_built(self._transition, given))

    @cached_property
    def _one(self) -> Prepared:
        return self._prepare(_built(self._transition, self._grammar.row("given", self._given)))


def _built(transition: Transition, given: FromClause | None) -> Statement:
    """The statement of a transition whose batch is this relation."""
    relations: dict[str, Any] = {} if given is None else {"given": given}
    *inner, (last, build_last) = transition.steps.items()
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
