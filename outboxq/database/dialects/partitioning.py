"""Create, fill and drop the partitions of the history on PostgreSQL.

`task_executions` and `execution_events` are divided by RANGE on the task's id, which contains the time. Each pair of
partitions holds the tasks of one period with all their events. Rows from before the division are in the partition
`first`. Rows that do not belong to a period are in `default`: events without a task, tasks whose id comes from a wrong
clock, and tasks that outlived their period.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, FromClause, Select, Table, TableClause, Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, DDLElement
from sqlalchemy.sql.compiler import DDLCompiler

from ...errors import ConfigurationError, InvalidArgument
from ...model.periods import Every, Period, first_id, moment_of
from ..grammar import Grammar, Statement
from ..tables import execution_events, task_executions
from ..typed_table import in_words, storage_of
from . import time_partitions
from .base import Dialect
from .plans import Execute, Prepared, Row
from .time_partitions import PARTITIONED

FIRST, DEFAULT = "first", "default"
SEQUENCE = "execution_events_sequence_num_seq"
PARTITION_NAME = re.compile(rf"({'|'.join(table.name for table in PARTITIONED)})_({FIRST}|{DEFAULT}|p\d{{8}})")
"""Pattern for the names of outboxq's partitions."""

_BOUND = re.compile(r"FOR VALUES FROM \((?:MINVALUE|'(.+)')\) TO \('(.+)'\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A pair of partitions: the tasks with ids from `lower` up to, but not including, `upper`, and their events."""

    name: str
    """The suffix of both tables' names."""
    schema: str
    lower: UUID
    upper: UUID

    @property
    def end(self) -> datetime:
        return moment_of(self.upper)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The current partitions of a database's history."""

    schema: str
    owner: str
    owned: bool
    """True if this session's role may act as the owner, and so can create and drop partitions."""
    partitions: Sequence[Partition]
    """The partitions in chronological order, without `default`."""

    @property
    def every(self) -> Every:
        """Return the length of the last partition; a month if `first` is the only one."""
        last = self.partitions[-1] if self.partitions else None
        if last is None or last.name == FIRST:
            return Every.MONTH
        return Period(begin=moment_of(last.lower), end=last.end).every

    def missing(self, wanted: Iterable[Period]) -> list[Period]:
        """Return the periods that no partition overlaps."""
        return [period for period in wanted if not any(_overlaps(period, one) for one in self.partitions)]


class Partitioning:
    """The statements for partitions, whose names are read from the database."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def layout(self, execute: Execute) -> Layout | None:
        """Return the current partitions; None for ordinary tables."""
        rows = self._dialect.compiled[time_partitions.found].run(execute, {})
        if not rows:
            return None
        pairs: dict[str, Partition] = {}
        for row in rows:
            name = row["name"].removeprefix(f"{row['parent']}_")
            # A partition without a bound is currently being dropped by another transaction.
            if (bound := _BOUND.fullmatch(row["bound"] or "")) is not None:
                lower, upper = UUID(bound[1]) if bound[1] else UUID(int=0), UUID(bound[2])
                pairs[name] = Partition(name=name, schema=row["schema"], lower=lower, upper=upper)
        return Layout(
            schema=rows[0]["schema"],
            owner=rows[0]["owner"],
            owned=rows[0]["owned"],
            partitions=sorted(pairs.values(), key=lambda one: one.lower),
        )

    def prepared(self, build: Callable[[Grammar, FromClause, FromClause], Statement], one: Partition) -> Prepared:
        """Prepare a statement for a partition. The statement is built from the tables that hold the partition's tasks
        and events.
        """
        tasks, events = (_leaf(table, one.schema, one.name) for table in PARTITIONED)
        return self._dialect.prepare(build(self._dialect.grammar, tasks, events))

    def alone_in_making(self, execute: Execute, schema: str) -> None:
        """Let only one transaction add partitions at a time. The tables remain usable."""
        one, other = (_Name(schema, table.name) for table in PARTITIONED)
        self._do(execute, "LOCK TABLE ONLY ", one, ", ONLY ", other, " IN SHARE UPDATE EXCLUSIVE MODE")

    def alone(self, execute: Execute, schema: str) -> None:
        """Lock both tables in ACCESS EXCLUSIVE mode, in one statement, until the transaction ends; see
        `time_partitions.patience`.
        """
        parents = [_Name(schema, table.name) for table in PARTITIONED]
        self._do(execute, "LOCK TABLE ", parents[0], ", ", parents[1], " IN ACCESS EXCLUSIVE MODE")

    def detach(self, execute: Execute, one: Partition) -> None:
        for table in PARTITIONED:
            leaf = _Name(one.schema, _called(table, one.name))
            self._do(execute, "ALTER TABLE ", _Name(one.schema, table.name), " DETACH PARTITION ", leaf)

    def drop(self, execute: Execute, one: Partition) -> None:
        for table in PARTITIONED:
            self._do(execute, "DROP TABLE ", _Name(one.schema, _called(table, one.name)))

    def make(self, execute: Execute, layout: Layout, missing: Sequence[Period], now: datetime) -> None:
        """Add these partitions, and move their rows out of `default`. Meanwhile, the tables remain usable, except for
        `default`, which does not normally contain any of today's tasks. If the partitions have run out, `default` does
        contain such tasks. All other transactions then have to wait, because an insert that has just chosen `default`
        would otherwise be refused.
        """
        schema = layout.schema
        if missing[0].begin <= now:
            self.alone(execute, schema)
        else:
            one, other = (_Name(schema, _called(table, DEFAULT)) for table in PARTITIONED)
            self._do(execute, "LOCK TABLE ", one, ", ", other, " IN ACCESS EXCLUSIVE MODE")
        for period in missing:
            bounds = {"lower": first_id(period.begin), "upper": first_id(period.end)}
            for table in PARTITIONED:
                parent, leaf = _Name(schema, table.name), _Name(schema, _called(table, _name(period)))
                like = " INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)"
                self._do(execute, "CREATE TABLE ", leaf, " (LIKE ", parent, like, *_storage(table))
                self._settle(execute, table, leaf, layout.owner)
                source, target = _leaf(table, schema, DEFAULT), _leaf(table, schema, _name(period))
                self._dialect.prepare(time_partitions.take_over(table, source, target)).run(execute, bounds)
                values = (" FOR VALUES FROM (", bounds["lower"], ") TO (", bounds["upper"], ")")
                self._do(execute, "ALTER TABLE ", parent, " ATTACH PARTITION ", leaf, *values)

    def bring_up_to_date(
        self, execute: Execute, periods: Sequence[Period], now: datetime, *, dry_run: bool
    ) -> list[str]:
        """Convert the tables, or create the partitions that these periods lack. Returns the names of the tables
        created.

        Raises InvalidArgument if the existing partitions have a different length, and ConfigurationError if objects of
        the application are tied to the ordinary tables.
        """
        layout = self.layout(execute)
        if layout is None:
            self._ensure_untied(execute)
            made = [DEFAULT, FIRST, *(_name(period) for period in periods[1:])]
            if not dry_run:
                self.convert(execute, periods)
        else:
            if periods[0].every is not layout.every:
                raise InvalidArgument(
                    f"the history is already partitioned by {layout.every}, and this cannot be changed"
                )
            missing = layout.missing(periods)
            made = [_name(period) for period in missing]
            if missing and not dry_run:
                self.alone_in_making(execute, layout.schema)
                self.make(execute, layout, missing, now)
        return [_called(table, name) for name in made for table in PARTITIONED]

    def _ensure_untied(self, execute: Execute) -> None:
        """Raise ConfigurationError for objects that refer to a table rather than to its name. They would stay with the
        partition `first`: a view would no longer show new tasks, and a policy would no longer apply.
        """
        for table in PARTITIONED:
            if tied := self._about(execute, time_partitions.tied, table):
                listed = ", ".join(row["object"] for row in tied)
                raise ConfigurationError(
                    f"{table.name} cannot be partitioned, because these objects would stay with its oldest partition: {listed}; remove "
                    "them, and create them again afterwards"
                )

    def convert(self, execute: Execute, periods: Sequence[Period]) -> None:
        """Turn the two ordinary tables into partitioned ones. They become the partition `first`, which holds everything
        older than the second period.

        Their rows stay where they are. PostgreSQL reads both tables once to check that the rows fit, and all other
        sessions wait until it has finished.
        """
        found = self._about(execute, time_partitions.owner, task_executions)[0]
        schema, owner = found["schema"], found["owner"]
        self.alone(execute, schema)
        for table in PARTITIONED:
            self._convert(execute, table, schema, owner, periods)

    def _convert(self, execute: Execute, table: Table, schema: str, owner: str, periods: Sequence[Period]) -> None:
        parent, first = _Name(schema, table.name), _Name(schema, _called(table, FIRST))
        granted = self._about(execute, time_partitions.privileges, table)
        triggers = self._about(execute, time_partitions.triggers, table)
        for trigger in triggers:  # the parent gets the triggers again below, and passes them on to each partition
            self._do(execute, "DROP TRIGGER ", _Name(None, trigger["name"]), " ON ", parent)
        if table is execution_events:
            # A partition cannot have an identity (PostgreSQL 17).
            values = {"table": f"{parent.schema}.{parent.last}"}
            number = self._dialect.compiled[time_partitions.next_number].run(execute, values)[0]["number"]
            self._do(execute, "ALTER TABLE ", parent, " ALTER COLUMN sequence_num DROP IDENTITY")
        self._do(execute, "ALTER TABLE ", parent, " RENAME TO ", first.last)
        indexes = [str(index.name) for index in table.indexes]
        for name in (f"pk_{table.name}", *indexes):
            renamed = _Name(None, f"{name}_{FIRST}")
            self._do(execute, "ALTER INDEX ", _Name(schema, name), " RENAME TO ", renamed)
        like = " INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING COMMENTS INCLUDING STORAGE) PARTITION BY RANGE ("
        key = _Name(None, PARTITIONED[table])
        self._do(execute, "CREATE TABLE ", parent, " (LIKE ", first, like, key, ")")
        if table is execution_events:
            self._count_from(execute, parent, number)
        else:
            primary = _Name(None, f"pk_{table.name}")
            self._do(execute, "ALTER TABLE ", parent, " ADD CONSTRAINT ", primary, " PRIMARY KEY (", key, ")")
        for index in sorted(table.indexes, key=lambda one: str(one.name)):
            create = CreateIndex(index).compile(
                dialect=self._dialect.compiler, schema_translate_map={None: schema}, render_schema_translate=True
            )
            execute(str(create), {})
        self._attach(execute, table, schema, owner, periods)
        for trigger in triggers:
            execute(trigger["statement"].replace("%", "%%"), {})  # a condition may contain LIKE
            if trigger["state"] is not None:
                called = _Name(None, trigger["name"])
                self._do(execute, "ALTER TABLE ", parent, f" {trigger['state']} TRIGGER ", called)
        self._do(execute, "ALTER TABLE ", parent, " OWNER TO ", _Name(None, owner))
        for grant in granted:
            columns = () if grant["column"] is None else (" (", _Name(None, grant["column"]), ")")
            to = "PUBLIC" if grant["grantee"] is None else _Name(None, grant["grantee"])
            option = " WITH GRANT OPTION" if grant["is_grantable"] else ""
            self._do(execute, "GRANT ", grant["privilege_type"], *columns, " ON ", parent, " TO ", to, option)

    def _attach(self, execute: Execute, table: Table, schema: str, owner: str, periods: Sequence[Period]) -> None:
        """Attach `default` and the later periods, then the existing table."""
        parent, boundary = _Name(schema, table.name), first_id(periods[0].end)
        bounds: Iterator[tuple[str, tuple[Any, ...]]] = (
            (_name(one), (" FOR VALUES FROM (", first_id(one.begin), ") TO (", first_id(one.end), ")"))
            for one in periods[1:]
        )
        for name, values in ((DEFAULT, (" DEFAULT",)), *bounds):
            leaf = _Name(schema, _called(table, name))
            self._do(execute, "CREATE TABLE ", leaf, " PARTITION OF ", parent, *values, *_storage(table))
            self._settle(execute, table, leaf, owner)
        first = _leaf(table, schema, FIRST)
        self._dialect.prepare(time_partitions.give_up(table, first)).run(execute, {"upper": boundary})
        leaf, values = _Name(schema, first.name), (" FOR VALUES FROM (MINVALUE) TO (", boundary, ")")
        self._do(execute, "ALTER TABLE ", parent, " ATTACH PARTITION ", leaf, *values)

    def _settle(self, execute: Execute, table: Table, leaf: _Name, owner: str) -> None:
        """Set the properties that a partition does not inherit. (Unique numbers would need an index over all
        partitions, which PostgreSQL does not support.)
        """
        if table is execution_events:
            self._do(execute, "ALTER TABLE ", leaf, " ADD PRIMARY KEY (sequence_num)")
        self._do(execute, "ALTER TABLE ", leaf, " OWNER TO ", _Name(None, owner))

    def _count_from(self, execute: Execute, parent: _Name, number: int) -> None:
        """Number the rows from a sequence. Every role may draw from the sequence, as from an identity, so that a role
        that gets the INSERT privilege later does not need another privilege. If a role that lacks the INSERT privilege
        draws a number, that number is merely skipped.
        """
        sequence = _Name(parent.schema, SEQUENCE)
        text = f"{sequence.schema}.{sequence.last}"
        self._do(execute, "CREATE SEQUENCE ", sequence, " OWNED BY ", parent, ".sequence_num")
        self._dialect.compiled[time_partitions.set_number].run(execute, {"sequence": text, "number": number})
        default = " ALTER COLUMN sequence_num SET DEFAULT nextval("
        self._do(execute, "ALTER TABLE ", parent, default, _Literal(text), ")")
        self._do(execute, "GRANT USAGE ON SEQUENCE ", sequence, " TO PUBLIC")

    def _about(self, execute: Execute, build: Callable[[ColumnElement[Any]], Select[Any]], table: Table) -> list[Row]:
        """Return the rows of a query about one of our tables. The query is built from the table's oid."""
        return self._dialect.prepare(build(self._dialect.grammar.oid(table.name))).run(execute, {})

    def _do(self, execute: Execute, *parts: _Part) -> None:
        execute(str(_Words(*parts).compile(dialect=self._dialect.compiler)), {})


@dataclass(frozen=True, slots=True)
class _Name:
    """The name of a table or another object, to be quoted if it needs quotes."""

    schema: str | None
    last: str


@dataclass(frozen=True, slots=True)
class _Literal:
    text: str


_Part = str | _Name | _Literal | UUID


class _Words(DDLElement):
    """A statement that SQLAlchemy cannot express, as a sequence of words, names and values."""

    def __init__(self, *parts: _Part) -> None:
        self.parts = parts


@compiles(_Words)
def _speak(element: _Words, compiler: DDLCompiler, **_: object) -> str:
    quote, literal = compiler.preparer.quote, compiler.sql_compiler.render_literal_value

    def spoken(part: _Part) -> str:
        match part:
            case _Name(schema, last):
                return ".".join(quote(name) for name in (schema, last) if name is not None)
            case _Literal(text):
                return str(literal(text, Text()))
            case UUID():
                return str(literal(str(part), Text()))
            case _:
                return part

    return "".join(spoken(part) for part in element.parts)


def _called(table: Table, name: str) -> str:
    return f"{table.name}_{name}"


def _leaf(table: Table, schema: str, name: str) -> TableClause:
    return time_partitions.leaf(table, _called(table, name), schema)


def _name(period: Period) -> str:
    return f"p{period.begin:%Y%m%d}"


def _overlaps(period: Period, one: Partition) -> bool:
    return first_id(period.begin) < one.upper and one.lower < first_id(period.end)


def _storage(table: Table) -> tuple[str, ...]:
    """Return the storage parameters of the tables that hold the rows. The partitions' parent does not have storage
    parameters.
    """
    storage = storage_of(table)
    return (f" WITH ({in_words(storage)})",) if storage else ()
