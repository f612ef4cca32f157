"""Spell expressions for SQLite: a batch is one JSON parameter, times are texts, and the clock is Python's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Table,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    column,
    delete,
    false,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    table,
    true,
    type_coerce,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.types import TypeEngine

from ...model import EARLIEST, LATEST
from .. import queue_order
from ..column_types import Instant
from ..grammar import Columns, Grammar, Statement, limit
from ..tables import task_outbox
from . import catalogue


class SqliteGrammar(Grammar):
    @property
    def now(self) -> ColumnElement[datetime]:
        return bindparam("now", type_=Instant, required=True)

    def later(self, moment: ColumnElement[Any], seconds: ColumnElement[Any]) -> ColumnElement[datetime]:
        """Add seconds in integers, exact to the microsecond.

        SQLite's own date arithmetic rounds to milliseconds, so a task due now could become due half a millisecond later.
        """
        micros = _micros(moment) + cast(func.round(seconds * 1_000_000), Integer)
        whole = func.strftime(
            "%Y-%m-%dT%H:%M:%S", micros.op("/", precedence=20)(literal_column("1000000")), "unixepoch", type_=Text
        )
        fraction = func.printf(".%06d+00:00", micros % literal_column("1000000"), type_=Text)
        return type_coerce(whole + fraction, Instant)

    def due(self, moment: ColumnElement[Any], seconds: ColumnElement[Any]) -> ColumnElement[datetime]:  # noqa: ARG002
        return moment

    def is_instant(self, moment: ColumnElement[Any]) -> ColumnElement[bool]:
        said = type_coerce(moment, Text)
        form = said.op("GLOB", return_type=Boolean())(literal_column("'????-??-??T??:??:??.??????+00:00'"))
        real = or_(said.is_(None), func.julianday(said).is_not(None))
        return and_(
            form, real, said >= literal_column(f"'{EARLIEST.year}'"), said < literal_column(f"'{LATEST.year + 1}'")
        )

    def is_id(self, identity: ColumnElement[Any]) -> ColumnElement[bool]:
        said = type_coerce(identity, Text)
        digits = said.op("GLOB", return_type=Boolean())(literal_column("'*[^0-9a-f]*'"))
        return and_(func.length(said) == literal_column("32"), not_(digits))

    def digit(self, identity: ColumnElement[Any], place: int) -> ColumnElement[str]:
        said = type_coerce(identity, Text)
        return func.substr(said, literal_column(str(place)), literal_column("1"), type_=Text)

    def between(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return _micros(later) - _micros(earlier)

    def steps(
        self, earlier: ColumnElement[Any], later: ColumnElement[Any], micros: ColumnElement[Any]
    ) -> ColumnElement[int]:
        return self.between(earlier, later) // micros

    def hour(self, moment: ColumnElement[Any]) -> ColumnElement[datetime]:
        head = func.substr(type_coerce(moment, Text), literal_column("1"), literal_column("14"), type_=Text)
        return type_coerce(head + literal_column("'00:00.000000+00:00'", Text), Instant)

    def json(self, text: ColumnElement[Any] | None = None, **pairs: ColumnElement[Any]) -> ColumnElement[str]:
        members = [part for name, value in pairs.items() for part in (literal_column(f"'{name}'"), value)]
        base = literal_column("'{}'") if text is None else func.coalesce(text, literal_column("'{}'"))
        return func.json_patch(base, func.json_object(*members), type_=Text)  # json_patch drops members that are NULL

    def json_of_one(self, name: str, value: ColumnElement[Any]) -> ColumnElement[str]:
        return func.json_object(literal_column(f"'{name}'"), value, type_=Text)

    def instant_in(self, text: ColumnElement[Any], member: str) -> ColumnElement[datetime]:
        return func.json_extract(text, literal_column(f"'$.{member}'"), type_=Instant)

    def text_in(self, text: ColumnElement[Any], member: str) -> ColumnElement[str]:
        return func.json_extract(text, literal_column(f"'$.{member}'"), type_=Text)

    def is_json(self, text: ColumnElement[Any], *, an_object: bool = False) -> ColumnElement[bool]:
        valid = func.json_valid(text) == literal_column("1")
        # json_type fails on text that is not JSON, so it is called only on JSON.
        kind = case((valid, func.json_type(text)), else_=literal_column("''"))
        return kind == literal_column("'object'") if an_object else valid

    def rows(self, name: str, columns: Columns, constant: frozenset[str] = frozenset()) -> FromClause:
        """Return the relation `name` as the rows of a JSON array, which is the parameter `name`.

        The array holds arrays, or the values of the only column. Each `constant` column is a parameter instead. `ordinal`
        numbers the rows.
        """
        batch = func.json_each(bindparam(name, type_=Text, required=True)).table_valued(
            "key", "value", name=f"{name}_rows"
        )
        several = {key: kind for key, kind in columns.items() if key not in constant}
        cells = [self._single(name, key, kind) for key, kind in columns.items() if key in constant]
        if len(several) == 1:
            [(key, kind)] = several.items()
            cells.append(type_coerce(batch.c.value, kind).label(key))
        else:
            cells += [
                func.json_extract(batch.c.value, literal_column(f"'$[{position}]'"), type_=kind).label(key)
                for position, (key, kind) in enumerate(several.items())
            ]
        # Materialized, it gets an automatic index. As a view of json_each(), it would parse the whole batch again for
        # each look-up.
        return select(batch.c.key.label("ordinal"), *cells).cte(name).prefix_with("MATERIALIZED")

    def row(self, name: str, columns: Columns) -> FromClause:
        """Return the relation `name` as one row. Each column is a parameter, bound in the form in which SQLite stores it."""
        cells = [self._single(name, key, kind) for key, kind in columns.items()]
        return select(literal_column("0", _SingleOrdinal()).label("ordinal"), *cells).cte(name)

    def _single(self, name: str, key: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
        return bindparam(f"{name}_{key}", None, type_=kind).label(key)

    def among(self, column: ColumnElement[Any], ids: ColumnElement[Any]) -> ColumnElement[bool]:
        return column.in_(select(ids))

    def each(
        self, source: FromClause, name: str, choose: Callable[[FromClause], Select[Any]], limit: Any = 1
    ) -> tuple[FromClause, Any]:
        """Join the entries by their rowids, because SQLite has no LATERAL."""
        inner, entry = task_outbox.alias(f"{name}_entry"), task_outbox.alias(name)
        chosen = choose(inner)
        # Where it reads the entries through a subquery, the id is that subquery's.
        chosen = chosen.with_only_columns(chosen.selected_columns.get("id", inner.c.id))
        ids = chosen.limit(limit).correlate(source).scalar_subquery()
        return source.join(entry, entry.c.id == ids if limit == 1 else entry.c.id.in_(ids)), entry.c

    @property
    def crowded(self) -> ColumnElement[bool]:
        return false()  # SQLite removes a deleted row at once

    def try_lock(self, *names: ColumnElement[str]) -> ColumnElement[bool]:  # noqa: ARG002 - its only writer has every lock
        return true()

    def position(self, given: FromClause | None) -> ColumnElement[int]:
        sequence = table("sqlite_sequence", column("name"), column("seq", Integer))
        last = select(sequence.c.seq).where(sequence.c.name == task_outbox.name).scalar_subquery()
        number: ColumnElement[int] = literal_column("1", Integer)
        # A window function costs as much as all three inserts.
        if given is not None and not isinstance(given.c.ordinal.type, _SingleOrdinal):
            number = func.row_number().over(order_by=given.c.ordinal)
        return func.coalesce(last, literal_column("0")) + number

    def numbered(self, family: ColumnElement[Any], number: ColumnElement[int]) -> ColumnElement[Any]:
        head = func.substr(family, literal_column("1"), literal_column("28"), type_=Text)  # stored without hyphens
        return type_coerce(head + func.printf("%04x", number, type_=Text), Uuid())

    def place(self, batch_id: ColumnElement[Any], number: ColumnElement[int]) -> ColumnElement[Any]:
        one: ColumnElement[int] = literal_column("1")
        known = func.instr(literal_column("'89abcdef'"), func.substr(batch_id, one, one))
        digit = func.substr(literal_column("'01234567'"), known, one, type_=Text)
        rest = func.substr(self.numbered(batch_id, number), literal_column("2"), type_=Text)
        return type_coerce(digit + rest, Uuid())

    def identified(self, rows: Select[Any]) -> Select[Any]:
        return rows

    @property
    def oldest_open(self) -> ColumnElement[int]:
        return literal_column(
            "0", Integer
        )  # there is only one writer: no transaction is open other than what is visible

    @property
    def next_transaction(self) -> ColumnElement[int]:
        return literal_column("0", Integer)

    @property
    def snapshot(self) -> ColumnElement[str]:
        return literal_column("'0:0:'", Text)

    def was_open(self, transaction: ColumnElement[Any], ids: ColumnElement[Any]) -> ColumnElement[bool]:  # noqa: ARG002
        return false()

    def insert(self, table: Table) -> Any:
        return insert(table)

    def take_from_one(self, found: FromClause) -> Statement:
        return self.take_from(found)

    def take_from(self, found: FromClause) -> Statement:
        """Take the best entries among the best of each (queue, priority) pair. SQLite has one writer at a time, so rows need no
        locks.
        """
        ahead, entry = task_outbox.alias("ahead"), task_outbox.alias("entry_due")
        best = queue_order.due(self, found, ahead.c.id, entry=ahead).limit(limit).correlate(found)
        picked = (
            select(entry.c.id)
            .select_from(found)
            .join(entry, entry.c.id.in_(best.scalar_subquery()))
            .order_by(entry.c.priority.desc(), entry.c.available_at, entry.c.id)
            .limit(limit)
        )
        return delete(task_outbox).where(task_outbox.c.id.in_(picked)).returning(*queue_order.taken(self))

    columns_of = staticmethod(catalogue.columns_in_sqlite)
    missing_parts = staticmethod(catalogue.missing_from_sqlite)
    misplaced_functions = staticmethod(catalogue.misplaced_in_sqlite)
    set_back = staticmethod(catalogue.set_back_in_sqlite)
    set_forward = staticmethod(catalogue.set_forward_in_sqlite)

    def oid(self, name: str) -> ColumnElement[Any]:  # noqa: ARG002
        return null()

    def server(self) -> Select[Any]:
        return catalogue.server_of_sqlite(self.now)

    def is_standby(self) -> Select[Any]:
        return select(literal_column("1").label("found")).where(literal_column("0"))


class _SingleOrdinal(Integer):
    """The type of the ordinal of a single row."""


def _micros(moment: ColumnElement[Any]) -> ColumnElement[int]:
    """Return the microseconds since 1970 as an integer."""
    seconds = cast(func.strftime("%s", func.substr(moment, 1, 19)), Integer)
    return seconds * 1_000_000 + cast(func.substr(moment, 21, 6), Integer)
