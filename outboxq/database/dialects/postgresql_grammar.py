"""Spell expressions for PostgreSQL: rows locked with SKIP LOCKED, batches as arrays, and the database's own clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import INT8MULTIRANGE, JSONB, insert

from .. import queue_order
from ..column_types import Instant, Packed, Xid, Xid8
from ..grammar import Columns, Grammar, Statement, limit, materialized, text_literal
from ..tables import task_outbox, task_position
from .catalogue import PostgresCatalogue


class PostgresGrammar(PostgresCatalogue):
    """PostgreSQL's spelling, with one clock for a transition: `clock_timestamp()` as a scalar subquery, or the injected
    :now.

    A bare volatile function could not be an index condition: with 100,000 future rows, the search would take 11 ms
    instead of 0.02 ms. `now()` does not advance during a long transaction, so a lease could have expired before it
    begins.
    """

    one_statement = True

    def __init__(self, schema: str | None) -> None:
        super().__init__(schema)
        self.floors = self.rows("floors", queue_order.FLOORS)
        injected = sa.bindparam("now", None, type_=Instant)
        moment = sa.select(sa.func.coalesce(injected, sa.func.clock_timestamp(), type_=Instant).label("now"))
        self.clock = materialized(moment, "clock")
        self._assigned = materialized(sa.select(sa.func.pg_current_xact_id(type_=Xid8()).label("xact_id")), "assigned")

    @property
    def now(self) -> sa.ColumnElement[datetime]:
        return sa.select(self.clock.c.now).scalar_subquery()

    def later(self, moment: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        return moment + seconds * sa.literal_column("interval '1 second'")

    def due(self, moment: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        return sa.func.coalesce(moment, self.later(self.now, seconds))

    def is_instant(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.and_(moment >= _EARLIEST, moment < _LATEST)

    def is_id(self, identity: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:  # noqa: ARG002 - its type says so
        return sa.true()

    def digit(self, identity: sa.ColumnElement[Any], place: int) -> sa.ColumnElement[str]:
        digits = sa.func.replace(sa.cast(identity, sa.Text), text_literal("-"), text_literal(""), type_=sa.Text)
        return sa.func.substr(digits, sa.literal_column(str(place)), sa.literal_column("1"), type_=sa.Text)

    def between(self, earlier: sa.ColumnElement[Any], later: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        micros = sa.cast(sa.extract("epoch", later - earlier) * 1_000_000, sa.BigInteger)
        return sa.case((sa.and_(sa.func.isfinite(earlier), sa.func.isfinite(later)), micros))

    def steps(
        self, earlier: sa.ColumnElement[Any], later: sa.ColumnElement[Any], micros: sa.ColumnElement[Any]
    ) -> sa.ColumnElement[int]:
        # EXTRACT would compute with numerics, and take four times as long.
        seconds = sa.func.date_part(text_literal("epoch"), later - earlier, type_=sa.Double)
        million, half = (sa.literal_column(f"{value}::float8", sa.Double) for value in ("1000000.0", "0.5"))
        exact = seconds * million + half
        return sa.cast(sa.func.floor(exact / sa.cast(micros, sa.Double)), sa.BigInteger)

    def hour(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        return sa.func.date_trunc(text_literal("hour"), moment, text_literal("UTC"), type_=Instant)

    def json(self, text: sa.ColumnElement[Any] | None = None, **pairs: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
        if text is None and len(pairs) == 1:
            [(name, value)] = pairs.items()
            # Each claim's event has one integer, which needs no quotes, so no JSON object is built and printed. If it
            # were, a claim would take 4 to 16 % more CPU time: python -m benchmarks.tunings --on postgresql --only
            # json-of-integer
            if isinstance(value.type, sa.Integer):
                begin, end = text_literal(f'{{"{name}": '), text_literal("}")
                return sa.func.coalesce(
                    begin.concat(sa.cast(value, sa.Text)).concat(end), text_literal("{}"), type_=sa.Text
                )
        members = [part for name, value in pairs.items() for part in (text_literal(name), value)]
        built: sa.ColumnElement[Any] = sa.func.jsonb_strip_nulls(
            sa.func.jsonb_build_object(*members, type_=JSONB), type_=JSONB
        )
        if text is not None:
            built = sa.func.coalesce(sa.cast(text, JSONB), sa.literal_column("'{}'", JSONB)).concat(built)
        return sa.cast(built, sa.Text)

    def json_of_one(self, name: str, value: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
        return text_literal(f'{{"{name}": ') + sa.cast(sa.func.to_json(value), sa.Text) + text_literal("}")

    def instant_in(self, text: sa.ColumnElement[Any], member: str) -> sa.ColumnElement[datetime]:
        return sa.cast(self.text_in(text, member), Instant)

    def text_in(self, text: sa.ColumnElement[Any], member: str) -> sa.ColumnElement[str]:
        return sa.cast(text, JSONB)[text_literal(member)].astext  # type: ignore[no-any-return]

    def is_json(self, text: sa.ColumnElement[Any], *, an_object: bool = False) -> sa.ColumnElement[bool]:
        return is_json(text, an_object=an_object)

    def rows(self, name: str, columns: Columns, constant: frozenset[str] = frozenset()) -> sa.FromClause:
        """Return each column as an array or, if it is `constant`, as a single value, which neither side has to unpack."""
        single = {
            key: sa.cast(sa.bindparam(f"{name}_{key}", type_=kind, required=True), kind).label(key)
            for key, kind in columns.items()
            if key in constant
        }
        if len(single) == len(columns):  # a batch of one: the planner sees its values as constants everywhere
            one = sa.select(*single.values(), sa.literal_column("1", sa.BigInteger).label("ordinal"))
            return one.cte(name).prefix_with("NOT MATERIALIZED")
        several = {key: kind for key, kind in columns.items() if key not in constant}
        arrays = [sa.bindparam(f"{name}_{key}", type_=Packed(kind), required=True) for key, kind in several.items()]
        named = [sa.column(key, kind) for key, kind in several.items()]
        unnested = sa.func.unnest(*arrays).table_valued(*named, with_ordinality="ordinal").render_derived(name="batch")
        cells = [single[key] if key in constant else unnested.c[key] for key in columns]
        return sa.select(*cells, unnested.c.ordinal).cte(name)

    def among(self, column: sa.ColumnElement[Any], ids: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        # This is an array of known rows, not a join. So the plan is an index lookup even if it was made, and kept,
        # while the table was empty, as the vacuumed tables of an idle queue are. It is also evaluated only once. IN
        # (SELECT …) of rows that a CTE deleted would be evaluated again for a row that changed while we waited for it
        # ("ModifyTable … during EvalPlanQual").
        return column == sa.func.any(sa.func.array(sa.select(ids).scalar_subquery()))

    def each(
        self, source: sa.FromClause, name: str, choose: Callable[[sa.FromClause], sa.Select[Any]], limit: Any = 1
    ) -> tuple[sa.FromClause, Any]:
        found = choose(task_outbox.alias(f"{name}_entry")).limit(limit).correlate(source).lateral(name)
        return source.join(found, sa.true()), found.c

    def crowded(self, outbox: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        # Autovacuum runs at 5,000. It counts rows that are still visible to an old snapshot, and leaves them in place.
        dead = sa.func.pg_stat_get_dead_tuples(outbox, type_=sa.BigInteger)
        return dead > sa.literal_column("2000")

    def try_lock(self, *names: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        name = sa.func.concat_ws(sa.literal_column("chr(31)"), text_literal("outboxq"), *names)
        return sa.func.pg_try_advisory_xact_lock(
            sa.func.hashtextextended(name, sa.literal_column("0")), type_=sa.Boolean
        )

    def position(self, given: sa.FromClause | None) -> sa.ColumnElement[int]:  # noqa: ARG002 - drawn row by row
        return task_position.next_value()

    def numbered(self, family: sa.ColumnElement[Any], number: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        head = sa.func.substr(sa.cast(family, sa.Text), sa.literal_column("1"), sa.literal_column("32"), type_=sa.Text)
        tail = sa.func.lpad(sa.func.to_hex(number), sa.literal_column("4"), text_literal("0"), type_=sa.Text)
        return sa.cast(head + tail, sa.Uuid)

    def place(self, batch_id: sa.ColumnElement[Any], number: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        first = sa.func.substr(sa.cast(batch_id, sa.Text), sa.literal_column("1"), sa.literal_column("1"))
        digit = sa.func.translate(first, text_literal("89abcdef"), text_literal("01234567"), type_=sa.Text)
        rest = sa.func.substr(sa.cast(self.numbered(batch_id, number), sa.Text), sa.literal_column("2"), type_=sa.Text)
        return sa.cast(digit + rest, sa.Uuid)

    def identified(self, rows: sa.Select[Any]) -> sa.Select[Any]:
        # The SELECT reads from `_assigned`, so the id exists before any value in the row is computed, including its
        # default. `_assigned` is one CTE, because several steps of a statement may need it.
        return rows.select_from(self._assigned).where(self._assigned.c.xact_id.is_not(None))

    @property
    def oldest_open(self) -> sa.ColumnElement[int]:
        return sa.cast(sa.cast(self._xmin, sa.Text), sa.BigInteger)

    @property
    def next_transaction(self) -> sa.ColumnElement[int]:
        return self.oldest_open + sa.func.age(sa.cast(self._xmin, Xid), type_=sa.BigInteger)

    @property
    def snapshot(self) -> sa.ColumnElement[str]:
        return sa.cast(sa.func.pg_current_snapshot(), sa.Text)

    def was_open(self, transaction: sa.ColumnElement[Any], ids: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        number = sa.cast(sa.cast(transaction, sa.Text), sa.BigInteger)
        return number.op("<@", return_type=sa.Boolean())(sa.cast(ids, INT8MULTIRANGE))

    @property
    def _xmin(self) -> sa.ColumnElement[int]:
        return sa.func.pg_snapshot_xmin(sa.func.pg_current_snapshot(), type_=Xid8())

    def insert(self, table: sa.Table) -> Any:
        return insert(table)

    def take_from_one(self, found: sa.FromClause) -> Statement:
        """Delete due entries of one queue, from the highest priority down. Entries are locked lazily, so no more than
        :limit of them are locked.
        """
        pair = _best_first(found)
        locked = _locked(self, pair, limit)
        return _delete(self, sa.select(locked.c.ctid).select_from(pair).join(locked, sa.true()).limit(limit))

    def take_from(self, found: sa.FromClause) -> Statement:
        """Merge the (queue, priority) pairs by index, best first, without sorting the backlog.

        The first pass counts how many of the best :limit entries belong to each pair, without locking them, and then
        locks that number of entries in each pair. This pass skips entries that other claims hold. If other claims hold
        all entries of a pair, a second pass fills the gap from any pair that has entries left. So a claim returns fewer
        than :limit entries only if all due entries are taken.
        """
        entry = task_outbox.alias("entry")
        unlocked = queue_order.due(self, found, entry.c.available_at, entry.c.id, entry=entry)
        ahead = unlocked.limit(limit).correlate(found).lateral("ahead")
        merged = (
            sa.select(found)
            .join(ahead, sa.true())
            .order_by(found.c.priority.desc(), ahead.c.available_at, ahead.c.id)
            .limit(limit)
            .subquery("merged")
        )
        share = materialized(sa.select(*merged.c, sa.func.count().label("share")).group_by(*merged.c), "share")
        shares = sa.select(share).order_by(share.c.priority.desc()).subquery("shares")
        locked = _locked(self, shares, shares.c.share)
        first = materialized(sa.select(locked.c.ctid).select_from(shares).join(locked, sa.true()), "first")

        pair = _best_first(found)
        gap = limit - sa.select(sa.func.count()).select_from(first).scalar_subquery()
        others = _locked(self, pair, limit, besides=first)
        rest = materialized(sa.select(others.c.ctid).select_from(pair).join(others, sa.true()).limit(gap), "rest")
        return _delete(self, sa.select(first.c.ctid).union_all(sa.select(rest.c.ctid)), found)

    def oid(self, name: str) -> sa.ColumnElement[Any]:
        return sa.func.to_regclass(f"{self.schema}.{name}" if self.schema else name)

    def is_standby(self) -> sa.Select[Any]:
        return sa.select(sa.literal_column("1").label("found")).where(sa.func.pg_is_in_recovery())


_EARLIEST, _LATEST = (sa.literal_column(f"'{year}-01-01 00:00:00+00'", Instant) for year in (1970, 9001))


def _best_first(pairs: sa.FromClause) -> sa.FromClause:
    return sa.select(pairs).where(pairs.c.priority.is_not(None)).order_by(pairs.c.priority.desc()).subquery("pair")


def _locked(g: Grammar, pair: sa.FromClause, limit: Any, *, besides: Any = None) -> Any:
    """Select and lock up to `limit` due entries of each pair. Each entry is locked as it is read, and entries that are
    already locked are skipped.
    """
    entry = task_outbox.alias("due")
    ctid: sa.ColumnElement[Any] = sa.literal_column("due.ctid").label("ctid")
    due = queue_order.due(g, pair, ctid, entry=entry)
    if besides is not None:
        taken = sa.func.array(sa.select(besides.c.ctid).scalar_subquery())
        due = due.where(sa.literal_column("due.ctid") != sa.func.all(taken))
    return due.limit(limit).with_for_update(skip_locked=True).correlate(pair).lateral("locked")


def _delete(g: Grammar, ctids: Any, found: sa.FromClause | None = None) -> Statement:
    """Delete the selected entries. ARRAY(…) is evaluated once, so the limit is respected under every plan."""
    picked = materialized(ctids, "picked")
    return (
        sa.delete(task_outbox)
        .where(sa.literal_column("ctid") == sa.func.any(sa.func.array(sa.select(picked.c.ctid).scalar_subquery())))
        .returning(*queue_order.taken(g, found))
    )


_STRING = r'"([^"\\]|\\.)*"'
_WORDS = "([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)"
_VALUE = r'(?:"[^"\\]*"|-?[0-9.]+|true|false|null)'
_FLAT, _FLAT_OBJECT = f"^{_VALUE}$", rf'^\{{(?:"[^"\\]*": ?{_VALUE},? ?)*\}}$'
"""Patterns for the usual forms of arguments and results. Matching them takes a third as long as the general test."""


def is_json(text: sa.ColumnElement[Any], *, an_object: bool) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the text is JSON, as far as PostgreSQL 15 can tell.

    The condition is true if all strings are closed, if only JSON words appear outside the strings, and if the numbers
    of opening and closing brackets are equal. This test detects text that is truncated, concatenated, or not JSON.
    PostgreSQL 16 and later have a built-in test.
    """
    flat = _FLAT_OBJECT if an_object else _FLAT
    strings = text_literal(_STRING)
    outside = sa.func.regexp_replace(text, strings, text_literal("0"), text_literal("g"), type_=sa.Text)
    shape = rf"^[[:space:]]*\{{{_WORDS}*\}}[[:space:]]*$" if an_object else f"^{_WORDS}+$"
    nested = sa.and_(_matches(outside, shape), _less(outside, "{[") == _less(outside, "}]"))
    return sa.case((_matches(text, flat), sa.true()), else_=nested)


def _matches(text: sa.ColumnElement[str], pattern: str) -> sa.ColumnElement[bool]:
    return text.op("~", return_type=sa.Boolean())(text_literal(pattern))


def _less(text: sa.ColumnElement[str], letters: str) -> sa.ColumnElement[int]:
    """Return the length of the text without these characters."""
    return sa.func.length(sa.func.translate(text, text_literal(letters), text_literal("")), type_=sa.Integer)
