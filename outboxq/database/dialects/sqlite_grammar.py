"""Spell expressions for SQLite: a batch is one JSON parameter, times are strings, and the clock is Python's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.types import TypeEngine

from ...model import EARLIEST, LATEST
from .. import queue_order
from ..column_types import Instant
from ..grammar import Columns, Statement, limit, materialized, text_literal
from ..tables import task_outbox
from .catalogue import SqliteCatalogue


class SqliteGrammar(SqliteCatalogue):
    one_statement = False

    @property
    def now(self) -> sa.ColumnElement[datetime]:
        return sa.bindparam("now", type_=Instant, required=True)

    def later(self, moment: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        """Add seconds using integer arithmetic, exact to the microsecond.

        SQLite's own date arithmetic rounds to milliseconds, so a task due now could become due half a millisecond
        later.
        """
        micros = _micros(moment) + sa.cast(sa.func.round(seconds * 1_000_000), sa.Integer)
        whole = sa.func.strftime(
            "%Y-%m-%dT%H:%M:%S", micros.op("/", precedence=20)(sa.literal_column("1000000")), "unixepoch", type_=sa.Text
        )
        fraction = sa.func.printf(".%06d+00:00", micros % sa.literal_column("1000000"), type_=sa.Text)
        return sa.type_coerce(whole + fraction, Instant)

    def due(self, moment: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:  # noqa: ARG002
        return moment

    def is_instant(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        said = sa.type_coerce(moment, sa.Text)
        form = said.op("GLOB", return_type=sa.Boolean())(text_literal("????-??-??T??:??:??.??????+00:00"))
        real = sa.or_(said.is_(None), sa.func.julianday(said).is_not(None))
        return sa.and_(form, real, said >= text_literal(EARLIEST.year), said < text_literal(LATEST.year + 1))

    def is_id(self, identity: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        said = sa.type_coerce(identity, sa.Text)
        digits = said.op("GLOB", return_type=sa.Boolean())(text_literal("*[^0-9a-f]*"))
        return sa.and_(sa.func.length(said) == sa.literal_column("32"), sa.not_(digits))

    def digit(self, identity: sa.ColumnElement[Any], place: int) -> sa.ColumnElement[str]:
        said = sa.type_coerce(identity, sa.Text)
        return sa.func.substr(said, sa.literal_column(str(place)), sa.literal_column("1"), type_=sa.Text)

    def between(self, earlier: sa.ColumnElement[Any], later: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return _micros(later) - _micros(earlier)

    def steps(
        self, earlier: sa.ColumnElement[Any], later: sa.ColumnElement[Any], micros: sa.ColumnElement[Any]
    ) -> sa.ColumnElement[int]:
        return self.between(earlier, later) // micros

    def hour(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        head = sa.func.substr(
            sa.type_coerce(moment, sa.Text), sa.literal_column("1"), sa.literal_column("14"), type_=sa.Text
        )
        return sa.type_coerce(head + text_literal("00:00.000000+00:00"), Instant)

    def json(self, text: sa.ColumnElement[Any] | None = None, **pairs: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
        members = [part for name, value in pairs.items() for part in (text_literal(name), value)]
        base = text_literal("{}") if text is None else sa.func.coalesce(text, text_literal("{}"))
        # json_patch drops members that are NULL.
        return sa.func.json_patch(base, sa.func.json_object(*members), type_=sa.Text)

    def json_of_one(self, name: str, value: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
        return sa.func.json_object(text_literal(name), value, type_=sa.Text)

    def instant_in(self, text: sa.ColumnElement[Any], member: str) -> sa.ColumnElement[datetime]:
        return sa.func.json_extract(text, text_literal(f"$.{member}"), type_=Instant)

    def text_in(self, text: sa.ColumnElement[Any], member: str) -> sa.ColumnElement[str]:
        return sa.func.json_extract(text, text_literal(f"$.{member}"), type_=sa.Text)

    def is_json(self, text: sa.ColumnElement[Any], *, an_object: bool = False) -> sa.ColumnElement[bool]:
        valid = sa.func.json_valid(text) == sa.literal_column("1")
        # json_type fails on text that is not JSON, so it is called only on JSON.
        kind = sa.case((valid, sa.func.json_type(text)), else_=text_literal(""))
        return kind == text_literal("object") if an_object else valid

    def rows(self, name: str, columns: Columns, constant: frozenset[str] = frozenset()) -> sa.FromClause:
        """Return the relation `name` as the rows of a JSON array, which is the parameter `name`.

        The array contains one array per row, or the values of the only column. Each `constant` column is a parameter
        instead. `ordinal` numbers the rows.
        """
        batch = sa.func.json_each(sa.bindparam(name, type_=sa.Text, required=True)).table_valued(
            "key", "value", name=f"{name}_rows"
        )
        several = {key: kind for key, kind in columns.items() if key not in constant}
        cells = [self._single(name, key, kind) for key, kind in columns.items() if key in constant]
        if len(several) == 1:
            [(key, kind)] = several.items()
            cells.append(sa.type_coerce(batch.c.value, kind).label(key))
        else:
            cells += [
                sa.func.json_extract(batch.c.value, text_literal(f"$[{position}]"), type_=kind).label(key)
                for position, (key, kind) in enumerate(several.items())
            ]
        # A materialized relation gets an automatic index. A view of json_each() would parse the whole batch again for
        # each lookup.
        return materialized(sa.select(batch.c.key.label("ordinal"), *cells), name)

    def row(self, name: str, columns: Columns) -> sa.FromClause:
        """Return the relation `name` as one row. Each column is a parameter, bound in the form in which SQLite stores
        it.
        """
        cells = [self._single(name, key, kind) for key, kind in columns.items()]
        return sa.select(sa.literal_column("0", _SingleOrdinal()).label("ordinal"), *cells).cte(name)

    def _single(self, name: str, key: str, kind: TypeEngine[Any]) -> sa.ColumnElement[Any]:
        return sa.bindparam(f"{name}_{key}", None, type_=kind).label(key)

    def among(self, column: sa.ColumnElement[Any], ids: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return column.in_(sa.select(ids))

    def each(
        self, source: sa.FromClause, name: str, choose: Callable[[sa.FromClause], sa.Select[Any]], limit: Any = 1
    ) -> tuple[sa.FromClause, Any]:
        """Join the entries by their rowids, because SQLite has no LATERAL."""
        inner, entry = task_outbox.alias(f"{name}_entry"), task_outbox.alias(name)
        chosen = choose(inner)
        # If the query reads the entries through a subquery, the id is a column of the subquery.
        chosen = chosen.with_only_columns(chosen.selected_columns.get("id", inner.c.id))
        ids = chosen.limit(limit).correlate(source).scalar_subquery()
        return source.join(entry, entry.c.id == ids if limit == 1 else entry.c.id.in_(ids)), entry.c

    def crowded(self, outbox: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:  # noqa: ARG002
        return sa.false()  # SQLite removes a deleted row immediately

    def try_lock(self, *names: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:  # noqa: ARG002 - its only writer has every lock
        return sa.true()

    def position(self, given: sa.FromClause | None) -> sa.ColumnElement[int]:
        sequence = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq", sa.Integer))
        last = sa.select(sequence.c.seq).where(sequence.c.name == text_literal(task_outbox.name)).scalar_subquery()
        number: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
        # A window function costs as much as all three inserts.
        if given is not None and not isinstance(given.c.ordinal.type, _SingleOrdinal):
            number = sa.func.row_number().over(order_by=given.c.ordinal)
        return sa.func.coalesce(last, sa.literal_column("0")) + number

    def numbered(self, family: sa.ColumnElement[Any], number: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        # An id is stored without hyphens.
        head = sa.func.substr(family, sa.literal_column("1"), sa.literal_column("28"), type_=sa.Text)
        return sa.type_coerce(head + sa.func.printf("%04x", number, type_=sa.Text), sa.Uuid())

    def place(self, batch_id: sa.ColumnElement[Any], number: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        one: sa.ColumnElement[int] = sa.literal_column("1")
        known = sa.func.instr(text_literal("89abcdef"), sa.func.substr(batch_id, one, one))
        digit = sa.func.substr(text_literal("01234567"), known, one, type_=sa.Text)
        rest = sa.func.substr(self.numbered(batch_id, number), sa.literal_column("2"), type_=sa.Text)
        return sa.type_coerce(digit + rest, sa.Uuid())

    def identified(self, rows: sa.Select[Any]) -> sa.Select[Any]:
        return rows

    @property
    def oldest_open(self) -> sa.ColumnElement[int]:
        # There is only one writer, so all other transactions have ended.
        return sa.literal_column("0", sa.Integer)

    @property
    def next_transaction(self) -> sa.ColumnElement[int]:
        return sa.literal_column("0", sa.Integer)

    @property
    def snapshot(self) -> sa.ColumnElement[str]:
        return text_literal("0:0:")

    def was_open(self, transaction: sa.ColumnElement[Any], ids: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:  # noqa: ARG002
        return sa.false()

    def insert(self, table: sa.Table) -> Any:
        return insert(table)

    def take_from_one(self, found: sa.FromClause) -> Statement:
        return self.take_from(found)

    def take_from(self, found: sa.FromClause) -> Statement:
        """Find the best entries of each (queue, priority) pair, and take the best of these. SQLite has one writer at a
        time, so rows need no locks.
        """
        ahead, entry = task_outbox.alias("ahead"), task_outbox.alias("entry_due")
        best = queue_order.due(self, found, ahead.c.id, entry=ahead).limit(limit).correlate(found)
        picked = (
            sa.select(entry.c.id)
            .select_from(found)
            .join(entry, entry.c.id.in_(best.scalar_subquery()))
            .order_by(entry.c.priority.desc(), entry.c.available_at, entry.c.id)
            .limit(limit)
        )
        return sa.delete(task_outbox).where(task_outbox.c.id.in_(picked)).returning(*queue_order.taken(self))

    def oid(self, name: str) -> sa.ColumnElement[Any]:  # noqa: ARG002
        return sa.null()

    def is_standby(self) -> sa.Select[Any]:
        return sa.select(sa.literal_column("1").label("found")).where(sa.literal_column("0"))


class _SingleOrdinal(sa.Integer):
    """The type of a single row's ordinal."""


def _micros(moment: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Return the microseconds since 1970 as an integer."""
    seconds = sa.cast(sa.func.strftime("%s", sa.func.substr(moment, 1, 19)), sa.Integer)
    return seconds * 1_000_000 + sa.cast(sa.func.substr(moment, 21, 6), sa.Integer)
