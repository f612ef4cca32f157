"""Compile Core statements and transitions once, to be run through any cursor: SQLAlchemy's, Django's, psycopg's or
sqlite3's.

One object serves callers' connections of every kind, at a third of the cost of executing the SQLAlchemy construct.
`Prepared` is a single statement. A transition is a OneStatement on PostgreSQL, and a Script on SQLite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Dialect as SqlalchemyDialect
from sqlalchemy import Float, FromClause, Select, Uuid, select
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeEngine

from ..column_types import UnreadableId
from ..grammar import Columns, Grammar, Relations, Statement, Transition

Row = dict[str, Any]
Cells = Sequence[Any]
"""A row in the driver's types."""
Execute = Callable[[str, Mapping[str, Any]], Iterable[Cells]]
"""Runs one statement on one connection, and returns the driver's rows. A statement without a result returns no rows."""
Encoder = Callable[[Any], Any]
"""Converts a Python value, or None, into a value for the driver."""


class Prepared:
    """A compiled SQL statement: its text, the conversion of values into parameters, and the conversion of the driver's
    rows into values.
    """

    def __init__(self, statement: Statement, dialect: SqlalchemyDialect, schema: str | None) -> None:
        placed = {"schema_translate_map": {None: schema}, "render_schema_translate": True} if schema else {}
        compiled: Any = statement.compile(
            dialect=dialect,
            compile_kwargs={"render_postcompile": True},
            **placed,  # type: ignore[arg-type]
        )
        self.sql = str(compiled)
        self._required: list[str] = []
        self._optional: list[str] = []
        self._defaults: dict[str, Any] = {}
        """The parameters that are not required: optional parameters, and the constants in the text."""
        self.encoders: dict[str, Encoder] = {}
        for bind, name in compiled.bind_names.items():
            encode = bind.type.dialect_impl(dialect).bind_processor(dialect)
            default = bind.effective_value if encode is None else encode(bind.effective_value)
            if bind.required:
                self._required.append(name)
            else:
                self._defaults[name] = default
                if bind.unique:  # it has no name that a caller could use to set its value
                    continue
                self._optional.append(name)
            if encode is not None:
                self.encoders[name] = encode
        columns = statement.selected_columns if isinstance(statement, Select) else statement.exported_columns
        self.columns = {str(column.key): column.type for column in columns}
        self._decoders = {
            name: (position, _decoder(kind, dialect)) for position, (name, kind) in enumerate(self.columns.items())
        }

    @property
    def names(self) -> frozenset[str]:
        """The names of the statement's parameters."""
        return frozenset((*self._required, *self._defaults))

    def bind(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the driver's parameters for Python's values. `values` may contain more than this statement needs."""
        return self.parameters(encoded(values, self.encoders) if self.encoders else values)

    def parameters(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the driver's parameters for values that have already been encoded."""
        parameters = self._defaults.copy()
        for name in self._required:
            parameters[name] = values[name]
        for name in self._optional:
            if name in values:
                parameters[name] = values[name]
        return parameters

    def run(self, execute: Execute, values: Mapping[str, Any]) -> list[Row]:
        rows = self.fetch(execute, self.bind(values))
        return self.read(rows) if rows else []

    def fetch(self, execute: Execute, parameters: Mapping[str, Any]) -> Iterable[Cells]:
        """Return the driver's rows. An error from the driver gets the attribute `outboxq_sql`, which is this
        statement's text.
        """
        try:
            return execute(self.sql, parameters)
        except Exception as error:
            vars(error)["outboxq_sql"] = self.sql
            raise

    def read(self, rows: Iterable[Cells], names: Collection[str] | None = None) -> list[Row]:
        """Return these columns of the driver's rows (None means all) as Python values, decoded one column at a time."""
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


def encoded(values: Mapping[str, Any], encoders: Mapping[str, Encoder]) -> dict[str, Any]:
    """Return these values, encoded for the driver if they have an encoder."""
    return {**values, **{name: encode(values[name]) for name, encode in encoders.items() if name in values}}


def cells_of(columns: Iterable[str], names: Collection[str]) -> Callable[[Cells], Any]:
    """Return a function that takes these columns from a row of `columns`, and returns a tuple, or the value of a single
    column.
    """
    positions = {name: position for position, name in enumerate(columns)}
    return itemgetter(*(positions[name] for name in names))


def _decoder(kind: TypeEngine[Any], dialect: SqlalchemyDialect) -> Callable[[Any], Any] | None:
    """Return the function that converts a driver's value (never NULL); None if no conversion is needed."""
    if isinstance(kind, Float):
        return None  # every driver returns a float; SQLAlchemy would ask for the driver's type code
    processor = kind.dialect_impl(dialect).result_processor(dialect, None)
    return _uuid if isinstance(kind, Uuid) and processor is not None else processor


_is_stored_id = re.compile("[0-9a-f]{32}").fullmatch


# This saves 4 % of a claim and its end on SQLite: python -m benchmarks.tunings --only ids-remembered
@lru_cache(maxsize=2048)
def _uuid(stored: object) -> UUID | UnreadableId:
    """Return a stored id. Any value other than 32 lower-case hexadecimal digits is kept unchanged, so that it can be
    shown and written back.
    """
    # UUID(stored) takes a third longer, because it first removes hyphens and braces.
    return UUID(int=int(stored, 16)) if isinstance(stored, str) and _is_stored_id(stored) else UnreadableId(stored)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """A batch whose rows differ in only a few columns. It is neither split into rows nor compared row by row."""

    cells: Mapping[str, Any]
    """Each column of the batch: the value that all rows share or, for a column in `several`, the values in row order.
    """
    several: frozenset[str]
    """The columns in which rows may differ. None of them is a constant column of the transition."""

    def different(self, column: str) -> set[Any]:
        """Return the distinct values of a column."""
        cell = self.cells[column]
        return set(cell) if column in self.several else {cell}

    @property
    def columns(self) -> list[Iterable[Any]]:
        """The columns, each with a value for every row."""
        rows = len(self.cells[next(iter(self.several))])
        return [cell if name in self.several else repeat(cell, rows) for name, cell in self.cells.items()]


Batch = Sequence[Cells] | Alike
Pack = Callable[[str, Columns, Sequence[Cells], frozenset[str]], dict[str, Any]]
"""Turns the rows of a relation into its parameters, given the set of constant columns."""


class _Plan:
    """The part of a compiled transition that examines its batch."""

    def __init__(self, transition: Transition) -> None:
        self._transition = transition
        self._conditions = [
            (name, condition.values, condition.column, cells_of(transition.given, [condition.column]))
            for name, condition in transition.conditions.items()
        ]
        constant = transition.constant_columns
        self._constants = cells_of(transition.given, constant) if constant else None

    def _is_constant(self, rows: Sequence[Cells]) -> bool:
        """Return True if each of the constant columns holds one value in the whole batch."""
        return self._constants is not None and len(set(map(self._constants, rows))) == 1

    def _needless(self, rows: Batch) -> frozenset[str]:
        """Return the steps whose condition is not met by any row."""
        needless = []
        for name, values, column, cell in self._conditions:
            found = rows.different(column) if isinstance(rows, Alike) else set(map(cell, rows))
            if not (values & found if values else found - {None}):
                needless.append(name)
        return frozenset(needless)


class OneStatement(_Plan):
    """A transition as one statement on PostgreSQL: each step is a data-modifying CTE, which reads the steps before it.

    `OneStatement.run` chooses a variant of the statement according to the batch, compiles it on first use, and runs it:

    1. Columns that hold one value in the whole batch are sent as one value each, the others as arrays. In a batch of
       one, every column holds one value, so the planner sees constants.
    2. A step whose condition is not met by any row of the batch is left out, because the server prepares even steps
       that find no rows.
    3. The last SELECT reads the step that the transition returns, and joins the columns of the joined steps by id.

    `python -m benchmarks.tunings --on postgresql` prints the CPU time that the variants save in this process and in the
    server. Without 1, an enqueue of 100 tasks takes 12 % more CPU time, and finishing one task takes 13 % more. Without
    2, finishing 100 tasks takes 19 % more CPU time, and finishing one task takes 14 % more.
    """

    def __init__(
        self, transition: Transition, grammar: Grammar, *, prepare: Callable[[Statement], Prepared], pack: Pack
    ) -> None:
        super().__init__(transition)
        self._grammar, self._prepare, self._pack = grammar, prepare, pack
        self._every_column = frozenset(transition.given)
        self._variants: dict[tuple[frozenset[str], frozenset[str]], Prepared] = {}

    @cached_property
    def _general(self) -> Prepared:
        """The statement without a batch, or for any batch."""
        return self._variant(frozenset())

    @property
    def sql(self) -> str:
        return self._general.sql

    @property
    def sql_of_one(self) -> str | None:
        """The text for a batch of one, which differs from `sql` only in `given`; None without a batch."""
        return self._variant(self._every_column).sql if self._every_column else None

    def sql_for(self, rows: Batch) -> str:
        """Return the text that is run for this batch."""
        return self._variant(*self._kind(rows)).sql

    def compile(self) -> None:
        """Compile the variants that most batches need, without the unneeded steps, now instead of on first use."""
        for constant in {self._every_column, self._transition.constant_columns}:
            self._variant(constant, frozenset(name for name, *_ in self._conditions))

    def run(self, execute: Execute, values: Mapping[str, Any], rows: Batch | None = None) -> list[Row]:
        if rows is None:
            return self._general.run(execute, values)
        constant, needless = self._kind(rows)
        if isinstance(rows, Alike):
            batch = {f"given_{name}": cell for name, cell in rows.cells.items()}
        else:
            batch = self._pack("given", self._transition.given, rows, constant)
        return self._variant(constant, needless).run(execute, {**values, **batch})

    def _kind(self, rows: Batch) -> tuple[frozenset[str], frozenset[str]]:
        """Return the columns that hold one value in the whole batch, and the steps whose condition is not met by any
        row of the batch.
        """
        if isinstance(rows, Alike):
            return self._every_column - rows.several, self._needless(rows)
        if len(rows) == 1:
            constant = self._every_column
        elif self._is_constant(rows):
            constant = self._transition.constant_columns
        else:
            constant = frozenset()
        return constant, self._needless(rows)

    def _variant(self, constant: frozenset[str], without: frozenset[str] = frozenset()) -> Prepared:
        found = self._variants.get((constant, without))
        if found is None:
            columns = self._transition.given
            given = self._grammar.rows("given", columns, constant) if columns else None
            found = self._variants[constant, without] = self._prepare(_built(self._transition, given, without))
        return found


def _built(transition: Transition, given: FromClause | None, without: frozenset[str]) -> Statement:
    """Return the statement for a transition whose batch is the relation `given`, leaving out the steps in `without`."""
    relations: dict[str, Any] = {} if given is None else {"given": given}
    *inner, (last, build_last) = [(name, build) for name, build in transition.steps.items() if name not in without]
    for name, build in inner:
        relations[name] = _cte(build(relations), name)
    ctes = [relations[name] for name, _ in inner]
    if transition.returns is None:
        return build_last(relations).add_cte(*ctes)
    relations[last] = _cte(build_last(relations), last)
    return _returned(transition, relations).add_cte(*ctes, relations[last])


def _cte(statement: Statement, name: str) -> Any:
    relation = statement.cte(name)
    # Without MATERIALIZED the planner may merge a SELECT into its reader and run it more than once, with its LIMIT and locks.
    return relation.prefix_with("MATERIALIZED") if isinstance(statement, Select) else relation


def _returned(transition: Transition, relations: Relations) -> Select[Any]:
    returned = relations[transition.returns or ""]
    columns, rows = {key: returned.c[key] for key in transition.returning or returned.c.keys()}, returned
    for name in transition.joined_steps:
        other = relations[name]
        columns |= {key: other.c[key] for key in transition.joined(other.c.keys())}
        rows = rows.outerjoin(other, other.c.id == returned.c.id)
    return select(*columns.values()).select_from(rows)


Found = Mapping[str, Sequence[Cells]]
"""Maps each relation (the batch, and each step so far) to its rows in SQLite's types."""


class RelationGrammar(Protocol):
    """The part of SQLite's grammar that turns parameters into relations."""

    def rows(self, name: str, columns: Columns, constant: frozenset[str] = frozenset()) -> FromClause: ...

    def row(self, name: str, columns: Columns) -> FromClause: ...


class Script(_Plan):
    """A transition as a chain of statements on SQLite, which does not have data-modifying CTEs.

    `Script.run` goes through the steps of the transition in order:

    1. It converts the batch, the relation `given`, into the values that SQLite stores.
    2. It skips each step whose condition is not met by any row.
    3. It runs the step's statement. The rows of the relations that the statement reads (the batch, and the rows that
       earlier steps returned) are its parameters.
    4. It decodes the rows of the step that the transition returns, and adds the columns of the joined steps by id.

    A transition whose statements do not read any relation, such as the enqueue of a plain task, is run without these
    steps.

    A relation is sent as one JSON array, with the columns that the statement reads. Each statement has two further
    forms, which return the same rows with less work:

    * `single`, where every relation has one row: each of its columns is a parameter.
    * `constant`, where the constant columns of the batch hold one value each: these are parameters, and the rest is an array.

    `python -m benchmarks.tunings --on sqlite` prints the CPU time of a call without each tuning. With all columns in
    the arrays, a claim of 100 tasks takes 83 % more CPU time. If no step is skipped, finishing 100 tasks takes 68 %
    more CPU time. Without `constant`, an enqueue of 100 tasks takes 25 % more CPU time, and without `single`, an
    enqueue of one task takes 15 % more.
    """

    def __init__(
        self,
        transition: Transition,
        grammar: RelationGrammar,
        *,
        prepare: Callable[[Statement], Prepared],
        encoders: Sequence[Encoder | None],
    ) -> None:
        super().__init__(transition)
        self._encoders = encoders
        self._steps: dict[str, _Step] = {}
        relations: dict[str, Columns] = {"given": transition.given} if transition.given else {}
        for name, build in transition.steps.items():
            self._steps[name] = step = _Step(build, dict(relations), grammar, prepare, transition.constant_columns)
            relations[name] = step.columns
        self._value_encoders = {
            name: encode for step in self._steps.values() for name, encode in step.packed.prepared.encoders.items()
        }
        reads = transition.returns is not None or any(step.reads for step in self._steps.values())
        self._apart = [] if reads else [step.packed.prepared for step in self._steps.values()]
        """The statements of a transition that does not read any rows of a relation; otherwise empty."""
        self._joined = {name: transition.joined(relations[name]) for name in transition.joined_steps}
        self._id_of = {name: cells_of(columns, ["id"]) for name, columns in relations.items() if "id" in columns}

    @property
    def sql(self) -> str:
        return _sql({name: step.packed for name, step in self._steps.items()})

    @property
    def sql_of_one(self) -> str:
        """The text for relations that have one row each."""
        return _sql({name: step.single for name, step in self._steps.items()})

    @property
    def sql_of_constants(self) -> str:
        """The text for a batch whose constant columns hold one value each."""
        return _sql({name: step.constant for name, step in self._steps.items()})

    def compile(self) -> None:
        """Compile every form now instead of on first use."""
        for step in self._steps.values():
            _ = step.single, step.constant

    def run(self, execute: Execute, values: Mapping[str, Any], rows: Batch | None = None) -> list[Row]:
        values = encoded(values, self._value_encoders)
        if self._apart:
            for prepared in self._apart:
                prepared.fetch(execute, prepared.parameters(values))
            return []
        given = _encoded(rows, self._encoders) if rows else ()
        needless = self._needless(rows if isinstance(rows, Alike) else given)
        constant = isinstance(rows, Alike) or self._is_constant(given)
        found: dict[str, Sequence[Cells]] = {"given": given}
        for name, step in self._steps.items():
            if name in needless:
                found[name] = ()
            else:
                found[name] = step.form(found, constant=constant).run(execute, values, found)
        return self._outcome(found)

    def _outcome(self, found: Found) -> list[Row]:
        """Return the decoded rows of the returned step. To each row, add the columns of the rows with the same id in
        the joined steps.
        """
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
    """A statement in the chain, in its three forms."""

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
        self.reads = _columns_read(build(self._relations), self._relations, relations)
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
        """Return the form for these rows. `constant` is True if the constant columns of the batch hold one value each."""
        if self.reads and all(len(found[name]) == 1 for name in self.reads):
            return self.single
        return self.constant if constant else self.packed

    def _form(self, relation: Callable[[str, Columns], FromClause]) -> _Form:
        """Compile the statement. `relation` creates the relations that it reads."""
        read = {name: relation(name, columns) for name, columns in self.reads.items()}
        return _Form(self._prepare(self._build({**self._relations, **read})), self.reads, self._columns)


class _Form:
    """A compiled statement, and how the rows of the relations that it reads become its parameters."""

    def __init__(self, prepared: Prepared, read: Mapping[str, Columns], columns: Mapping[str, Columns]) -> None:
        self.prepared = prepared
        self._single: list[tuple[str, str, Callable[[Cells], Any]]] = []
        """Each parameter that is a column of a relation's first row: its name, the relation, and the function that
        takes it from the row.
        """
        self._packed: dict[str, Callable[[Cells], Any]] = {}
        """Each relation that is sent as an array, and the function that takes the array's columns from a row."""
        for name, keys in read.items():
            single = [key for key in keys if f"{name}_{key}" in prepared.names]
            self._single += [(f"{name}_{key}", name, cells_of(columns[name], [key])) for key in single]
            if name in prepared.names:
                self._packed[name] = cells_of(columns[name], [key for key in keys if key not in single])

    def run(self, execute: Execute, values: Mapping[str, Any], found: Found) -> list[Cells]:
        packed = {name: _json(list(map(cells, found[name]))) for name, cells in self._packed.items()}
        single = {parameter: cell(found[name][0]) for parameter, name, cell in self._single}
        return list(self.prepared.fetch(execute, self.prepared.parameters({**values, **packed, **single})))


def _columns_read(statement: Statement, relations: Relations, columns: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the relations that a statement reads, each with the columns that are read from it."""
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


def _encoded(rows: Batch, encoders: Sequence[Encoder | None]) -> list[Cells]:
    """Return rows of Python values as rows of the values that SQLite stores."""
    if not rows:
        return []
    columns = rows.columns if isinstance(rows, Alike) else zip(*rows, strict=True)
    both = zip(encoders, columns, strict=True)
    return list(zip(*(column if encode is None else map(encode, column) for encode, column in both), strict=True))


def _text_of_blob(value: object) -> str:
    """Return a BLOB from a text column as a string, because a claim must not fail when it reads such a row."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


_json = json.JSONEncoder(default=_text_of_blob).encode


def _sql(steps: Mapping[str, _Form]) -> str:
    return ";\n\n".join(f"-- {name}\n{form.prepared.sql}" for name, form in steps.items())
