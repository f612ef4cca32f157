"""Spell expressions for PostgreSQL: rows locked with SKIP LOCKED, batches as arrays, the database's own clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Double,
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
    extract,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import INT8MULTIRANGE, JSONB, insert

from .. import queue_order
from ..column_types import Instant, Packed, Xid, Xid8
from ..grammar import Columns, Grammar, Statement, Transition, limit
from ..tables import task_outbox, task_position
from . import catalogue


class PostgresGrammar(Grammar):
    """PostgreSQL's spelling, with one clock for a transition: `clock_timestamp()` as a scalar subquery, or the injected :now.

    A bare volatile function could not be an index condition (11 ms against 0.02 ms behind 100 000 future rows). `now()` stands
    still in a long transaction, so a lease could be expired from its start.
    """

    def __init__(self, schema: str | None) -> None:
        super().__init__(schema)
        self.floors = self.rows("floors", queue_order.FLOORS)
        injected = bindparam("now", None, type_=Instant)
        moment = select(func.coalesce(injected, func.clock_timestamp(), type_=Instant).label("now"))
        self.clock = moment.cte("clock").prefix_with("MATERIALIZED")

    @property
    def now(self) -> ColumnElement[datetime]:
        return select(self.clock.c.now).scalar_subquery()

    def later(self, moment: ColumnElement[Any], seconds: ColumnElement[Any]) -> ColumnElement[datetime]:
        return moment + seconds * literal_column("interval '1 second'")

    def is_instant(self, moment: ColumnElement[Any]) -> ColumnElement[bool]:
        return and_(moment >= _EARLIEST, moment < _LATEST)

    def is_id(self, identity: ColumnElement[Any]) -> ColumnElement[bool]:  # noqa: ARG002 - its type says so
        return true()

    def digit(self, identity: ColumnElement[Any], place: int) -> ColumnElement[str]:
        digits = func.replace(cast(identity, Text), literal_column("'-'"), literal_column("''"), type_=Text)
        return func.substr(digits, literal_column(str(place)), literal_column("1"), type_=Text)

    def between(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        micros = cast(extract("epoch", later - earlier) * 1_000_000, BigInteger)
        return case((and_(func.isfinite(earlier), func.isfinite(later)), micros))

    def steps(
        self, earlier: ColumnElement[Any], later: ColumnElement[Any], micros: ColumnElement[Any]
    ) -> ColumnElement[int]:
        # EXTRACT would compute with numerics, and take four times as long.
        seconds = func.date_part(literal_column("'epoch'"), later - earlier, type_=Double)
        exact = seconds * literal_column("1000000.0::float8", Double) + literal_column("0.5::float8", Double)
        return cast(func.floor(exact / cast(micros, Double)), BigInteger)

    def hour(self, moment: ColumnElement[Any]) -> ColumnElement[datetime]:
        return func.date_trunc(literal_column("'hour'"), moment, literal_column("'UTC'"), type_=Instant)

    def json(self, text: ColumnElement[Any] | None = None, **pairs: ColumnElement[Any]) -> ColumnElement[str]:
        if text is None and len(pairs) == 1:
            [(name, value)] = pairs.items()
            # The event of each claim has one integer, which needs no quotes, so no JSON object is built and printed. With one,
            # a claim takes 4 to 16 % more CPU time: python -m benchmarks.tunings --on postgresql --only json-of-integer
            if isinstance(value.type, Integer):
                begin, end = literal_column(f"'{{\"{name}\": '", Text), literal_column("'}'", Text)
                return func.coalesce(
                    begin.concat(cast(value, Text)).concat(end), literal_column("'{}'", Text), type_=Text
                )
        members = [part for name, value in pairs.items() for part in (literal_column(f"'{name}'"), value)]
        built: ColumnElement[Any] = func.jsonb_strip_nulls(func.jsonb_build_object(*members, type_=JSONB), type_=JSONB)
        if text is not None:
            built = func.coalesce(cast(text, JSONB), literal_column("'{}'", JSONB)).concat(built)
        return cast(built, Text)

    def json_of_one(self, name: str, value: ColumnElement[Any]) -> ColumnElement[str]:
        return literal_column(f"'{{\"{name}\": '", Text) + cast(func.to_json(value), Text) + literal_column("'}'", Text)

    def instant_in(self, text: ColumnElement[Any], member: str) -> ColumnElement[datetime]:
        return cast(self.text_in(text, member), Instant)

    def text_in(self, text: ColumnElement[Any], member: str) -> ColumnElement[str]:
        return cast(text, JSONB)[literal_column(f"'{member}'", Text)].astext  # type: ignore[no-any-return]

    def is_json(self, text: ColumnElement[Any], *, an_object: bool = False) -> ColumnElement[bool]:
        return is_json(text, an_object=an_object)

    def rows(self, name: str, columns: Columns, constant: frozenset[str] = frozenset()) -> FromClause:
        """Return each column as an array, or as a single value if it is `constant`: neither side needs to unpack that."""
        single = {
            key: cast(bindparam(f"{name}_{key}", type_=kind, required=True), kind).label(key)
            for key, kind in columns.items()
            if key in constant
        }
        if len(single) == len(columns):  # a batch of one: the planner sees its values as constants everywhere
            one = select(*single.values(), literal_column("1", BigInteger).label("ordinal"))
            return one.cte(name).prefix_with("NOT MATERIALIZED")
        several = {key: kind for key, kind in columns.items() if key not in constant}
        arrays = [bindparam(f"{name}_{key}", type_=Packed(kind), required=True) for key, kind in several.items()]
        named = [column(key, kind) for key, kind in several.items()]
        unnested = func.unnest(*arrays).table_valued(*named, with_ordinality="ordinal").render_derived(name="batch")
        cells = [single[key] if key in constant else unnested.c[key] for key in columns]
        return select(*cells, unnested.c.ordinal).cte(name)

    def among(self, column: ColumnElement[Any], ids: ColumnElement[Any]) -> ColumnElement[bool]:
        # An array of known rows and not a join: the plan is an index look-up even if it was made, and kept, while the table
        # was empty, as an idle queue's vacuumed tables are. It is also evaluated once. IN (SELECT …) of rows that a CTE
        # deleted would be evaluated again for a row that changed while we waited for it ("ModifyTable … during EvalPlanQual").
        return column == func.any(func.array(select(ids).scalar_subquery()))

    def each(
        self, source: FromClause, name: str, choose: Callable[[FromClause], Select[Any]], limit: Any = 1
    ) -> tuple[FromClause, Any]:
        found = choose(task_outbox.alias(f"{name}_entry")).limit(limit).correlate(source).lateral(name)
        return source.join(found, true()), found.c

    @property
    def crowded(self) -> ColumnElement[bool]:
        # Autovacuum runs at 5 000. It counts rows that an old snapshot may still see, and leaves them.
        dead = func.pg_stat_get_dead_tuples(literal_column("task_outbox.tableoid"), type_=BigInteger)
        return dead > literal_column("2000")

    def try_lock(self, *names: ColumnElement[str]) -> ColumnElement[bool]:
        name = func.concat_ws(literal_column("chr(31)"), literal_column("'outboxq'"), *names)
        return func.pg_try_advisory_xact_lock(func.hashtextextended(name, literal_column("0")), type_=Boolean)

    def position(self, given: FromClause) -> ColumnElement[int]:  # noqa: ARG002 - drawn row by row
        return task_position.next_value()

    def numbered(self, family: ColumnElement[Any], number: ColumnElement[int]) -> ColumnElement[Any]:
        head = func.substr(cast(family, Text), literal_column("1"), literal_column("32"), type_=Text)
        tail = func.lpad(func.to_hex(number), literal_column("4"), literal_column("'0'"), type_=Text)
        return cast(head + tail, Uuid)

    def place(self, batch_id: ColumnElement[Any], number: ColumnElement[int]) -> ColumnElement[Any]:
        first = func.substr(cast(batch_id, Text), literal_column("1"), literal_column("1"))
        digit = func.translate(first, literal_column("'89abcdef'"), literal_column("'01234567'"), type_=Text)
        rest = func.substr(cast(self.numbered(batch_id, number), Text), literal_column("2"), type_=Text)
        return cast(digit + rest, Uuid)

    def identified(self, rows: Select[Any]) -> Select[Any]:
        # The SELECT reads from it, so the id exists before anything of the row is computed, its default included.
        assigned = select(func.pg_current_xact_id(type_=Xid8()).label("xact_id")).cte("assigned")
        assigned = assigned.prefix_with("MATERIALIZED")
        return rows.select_from(assigned).where(assigned.c.xact_id.is_not(None))

    @property
    def oldest_open(self) -> ColumnElement[int]:
        return cast(cast(self._xmin, Text), BigInteger)

    @property
    def next_transaction(self) -> ColumnElement[int]:
        return self.oldest_open + func.age(cast(self._xmin, Xid), type_=BigInteger)

    @property
    def snapshot(self) -> ColumnElement[str]:
        return cast(func.pg_current_snapshot(), Text)

    def was_open(self, transaction: ColumnElement[Any], ids: ColumnElement[Any]) -> ColumnElement[bool]:
        number = cast(cast(transaction, Text), BigInteger)
        return number.op("<@", return_type=Boolean())(cast(ids, INT8MULTIRANGE))

    @property
    def _xmin(self) -> ColumnElement[int]:
        return func.pg_snapshot_xmin(func.pg_current_snapshot(), type_=Xid8())

    def insert(self, table: Table) -> Any:
        return insert(table)

    def take_from_one(self, found: FromClause) -> Statement:
        """Delete due entries of one queue, from the highest priority down. It locks lazily, so no more than :limit
        entries are locked.
        """
        pair = _best_first(found)
        locked = _locked(self, pair, limit)
        return _delete(self, select(locked.c.ctid).select_from(pair).join(locked, true()).limit(limit))

    def take_from(self, found: FromClause) -> Statement:
        """Merge the (queue, priority) pairs by index, best first, without sorting the backlog.

        The first pass reads without locks how many of the best :limit entries each pair holds, and then locks that number of each pair.
        It skips entries that other claims hold. If others hold a whole pair, a second pass fills the gap from any pair that
        has entries left. So a claim returns fewer than :limit only if everything due is taken.
        """
        entry = task_outbox.alias("entry")
        unlocked = queue_order.due(self, found, entry.c.available_at, entry.c.id, entry=entry)
        ahead = unlocked.limit(limit).correlate(found).lateral("ahead")
        merged = (
            select(found)
            .join(ahead, true())
            .order_by(found.c.priority.desc(), ahead.c.available_at, ahead.c.id)
            .limit(limit)
            .subquery("merged")
        )
        share = (
            select(*merged.c, func.count().label("share")).group_by(*merged.c).cte("share").prefix_with("MATERIALIZED")
        )
        shares = select(share).order_by(share.c.priority.desc()).subquery("shares")
        locked = _locked(self, shares, shares.c.share)
        first = select(locked.c.ctid).select_from(shares).join(locked, true()).cte("first").prefix_with("MATERIALIZED")

        pair = _best_first(found)
        gap = limit - select(func.count()).select_from(first).scalar_subquery()
        others = _locked(self, pair, limit, besides=first)
        rest = (
            select(others.c.ctid)
            .select_from(pair)
            .join(others, true())
            .limit(gap)
            .cte("rest")
            .prefix_with("MATERIALIZED")
        )
        return _delete(self, select(first.c.ctid).union_all(select(rest.c.ctid)))

    def columns_of(self, table: str) -> Select[Any]:
        return catalogue.columns_in_postgresql(self.oid(table))

    def missing_parts(self) -> Select[Any]:
        return catalogue.missing_from_postgresql(self.oid)

    def misplaced_functions(self) -> Select[Any]:
        return catalogue.misplaced_in_postgresql(self.oid)

    def set_back(self) -> Select[Any]:
        return catalogue.set_back_in_postgresql(self.oid)

    def set_forward(self) -> Transition:
        return catalogue.set_forward_in_postgresql(self.oid)

    def oid(self, name: str) -> ColumnElement[Any]:
        return func.to_regclass(f"{self.schema}.{name}" if self.schema else name)

    def server(self) -> Select[Any]:
        return catalogue.server_of_postgresql(self.now)

    def is_standby(self) -> Select[Any]:
        return select(literal_column("1").label("found")).where(func.pg_is_in_recovery())


_EARLIEST, _LATEST = (literal_column(f"'{year}-01-01 00:00:00+00'", Instant) for year in (1970, 9001))


def _best_first(pairs: FromClause) -> FromClause:
    return select(pairs).where(pairs.c.priority.is_not(None)).order_by(pairs.c.priority.desc()).subquery("pair")


def _locked(g: Grammar, pair: FromClause, limit: Any, *, besides: Any = None) -> Any:
    """Select and lock up to `limit` due entries of each pair. Each is locked as it is read, and locked ones are skipped."""
    entry = task_outbox.alias("due")
    ctid: ColumnElement[Any] = literal_column("due.ctid").label("ctid")
    due = queue_order.due(g, pair, ctid, entry=entry)
    if besides is not None:
        due = due.where(literal_column("due.ctid") != _all_of(besides))
    return due.limit(limit).with_for_update(skip_locked=True).correlate(pair).lateral("locked")


def _all_of(relation: Any) -> Any:
    return func.all(func.array(select(relation.c.ctid).scalar_subquery()))


def _delete(g: Grammar, ctids: Any) -> Statement:
    """Delete the selected entries. ARRAY(…) is evaluated once, so the limit holds under every plan."""
    picked = ctids.cte("picked").prefix_with("MATERIALIZED")
    return (
        delete(task_outbox)
        .where(literal_column("ctid") == func.any(func.array(select(picked.c.ctid).scalar_subquery())))
        .returning(*queue_order.taken(g))
    )


_STRING = r'"([^"\\]|\\.)*"'
_WORDS = "([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)"
_VALUE = r'(?:"[^"\\]*"|-?[0-9.]+|true|false|null)'
_FLAT, _FLAT_OBJECT = f"^{_VALUE}$", rf'^\{{(?:"[^"\\]*": ?{_VALUE},? ?)*\}}$'
"""The usual forms of arguments and results, which are recognised in a third of the time."""


def is_json(text: ColumnElement[Any], *, an_object: bool) -> ColumnElement[bool]:
    """Return a condition: the text is JSON, as far as PostgreSQL 15 can tell.

    It holds if the strings of the text are closed, the text outside of them has words of JSON only, and as many brackets open
    as close. This detects text that is truncated, pasted together, or not JSON. PostgreSQL 16 and later have their own
    test.
    """
    flat = _FLAT_OBJECT if an_object else _FLAT
    strings = literal_column(f"'{_STRING}'", Text)
    outside = func.regexp_replace(text, strings, literal_column("'0'"), literal_column("'g'"), type_=Text)
    shape = rf"^[[:space:]]*\{{{_WORDS}*\}}[[:space:]]*$" if an_object else f"^{_WORDS}+$"
    nested = and_(_matches(outside, shape), _less(outside, "{[") == _less(outside, "}]"))
    return case((_matches(text, flat), true()), else_=nested)


def _matches(text: ColumnElement[str], pattern: str) -> ColumnElement[bool]:
    return text.op("~", return_type=Boolean())(literal_column(f"'{pattern}'", Text))


def _less(text: ColumnElement[str], letters: str) -> ColumnElement[int]:
    """Return the length of the text without these characters."""
    return func.length(func.translate(text, literal_column(f"'{letters}'"), literal_column("''")), type_=Integer)
