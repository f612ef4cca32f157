"""Check the database's catalogue: the indexes and the trigger exist, and the counter of positions was not set back.

The two catalogues have nothing in common, so each dialect has its own queries here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Constraint,
    Index,
    Integer,
    Select,
    Table,
    Text,
    UniqueConstraint,
    case,
    column,
    func,
    insert,
    literal_column,
    or_,
    select,
    table,
    union_all,
    update,
)

from ...tables import execution_events, metadata, task_outbox, task_position
from ..grammar import Relations, Statement, Transition
from .check import EXECUTION, Check

_Part = TypeVar("_Part", Index, UniqueConstraint)
Oid = Callable[[str], ColumnElement[Any]]
"""A function that returns the oid of the table or sequence of this name; NULL if there is none."""
NOTIFY = "task_outbox_notify"
"""The trigger that wakes workers."""

_COUNTER: ColumnElement[str] = literal_column(f"'{task_outbox.name}'", Text)
"""The name under which SQLite counts positions."""
_sequence = table("sqlite_sequence", column("name", Text), column("seq", Integer))
_schema = table("sqlite_master", *(column(name, Text) for name in ("type", "name", "tbl_name")))
_index = table(
    "pg_index",
    *(column(name) for name in ("indexrelid", "indrelid")),
    *(column(name, Boolean) for name in ("indisvalid", "indisunique")),
    schema="pg_catalog",
)
_class = table("pg_class", column("oid"), column("relname", Text), schema="pg_catalog")
_trigger = table(
    "pg_trigger", column("tgrelid"), *(column(name, Text) for name in ("tgname", "tgenabled")), schema="pg_catalog"
)


def checks() -> Mapping[str, Check]:
    return {
        "positions_set_back": Check(
            meaning="the next positions are below those in use, so new tasks of a key overtake the older ones",
            broken=lambda g: g.set_back(),
        ),
        "part_missing": Check(
            meaning="an index or trigger that `outboxq upgrade` makes is missing, invalid or switched off; make it again "
            "as `outboxq upgrade --sql` prints it",
            broken=lambda g: g.missing_parts(),
        ),
    }


def missing_from_sqlite() -> Select[Any]:
    """Select our missing indexes. Those of constraints cannot be dropped."""
    parts = [_part(one, index) for one in metadata.sorted_tables for index in _sorted(one.indexes)]
    expected = union_all(*parts).subquery("expected")
    found = select(_schema.c.name).where(
        _schema.c.type == literal_column("'index'", Text),
        _schema.c.name == expected.c.name,
        _schema.c.tbl_name == expected.c.table,
    )
    return select(expected.c.name.label("id")).where(~found.exists())


def missing_from_postgresql(oid: Oid) -> Select[Any]:
    """Select the indexes that are missing, invalid, or wrongly not unique; and the trigger, if no insert fires it."""
    parts = [_part(one, part, oid(one.name)) for one in metadata.sorted_tables for part in _unique_or_index(one)]
    expected = union_all(*parts).subquery("expected")
    found = (
        select(_index.c.indexrelid)
        .join_from(_index, _class, _class.c.oid == _index.c.indexrelid)
        .where(
            _index.c.indrelid == expected.c.table,
            _class.c.relname == expected.c.name,
            _index.c.indisvalid,
            or_(_index.c.indisunique, ~expected.c.is_unique),
        )
    )
    missing = union_all(
        select(expected.c.name.label("id")).where(~found.exists()),
        select(literal_column(f"'{NOTIFY}'", Text)).where(~fires(oid(task_outbox.name)).exists()),
    )
    return select(missing.subquery("missing"))


def fires(entries: ColumnElement[Any]) -> Select[Any]:
    """Select one row if an insert into the outbox with this oid fires the trigger."""
    return select(_trigger.c.tgname).where(
        _trigger.c.tgrelid == entries,
        _trigger.c.tgname == literal_column(f"'{NOTIFY}'", Text),
        _trigger.c.tgenabled.in_([literal_column(f"'{one}'", Text) for one in "OA"]),
    )


def set_back_in_sqlite() -> Select[Any]:
    """Select the counter if it was set back: the AUTOINCREMENT of the outbox counts positions."""
    return select(_COUNTER.label("id")).where(_is_set_back())


def set_forward_in_sqlite() -> Transition:
    """Set the counter forward. Its row may be missing."""
    mine = _sequence.c.name == _COUNTER

    def added(_: Relations) -> Statement:
        row = select(_COUNTER, literal_column("0", Integer))
        return insert(_sequence).from_select(["name", "seq"], row.where(~select(_sequence.c.name).where(mine).exists()))

    def raised(_: Relations) -> Statement:
        return update(_sequence).where(mine, _is_set_back()).values(seq=_largest()).returning(_COUNTER.label("id"))

    return Transition(steps={"added": added, "raised": raised}, returns="raised")


def set_back_in_postgresql(oid: Oid) -> Select[Any]:
    """Select the sequence if it was set back; no row for a role that may not read the sequence."""
    sequence = oid(task_position.name)
    may_look = func.has_sequence_privilege(sequence, literal_column("'USAGE, SELECT'"), type_=Boolean)
    last = func.coalesce(func.pg_sequence_last_value(sequence), literal_column("0"), type_=BigInteger)
    is_set_back = case((may_look, last < _largest()), else_=literal_column("false", Boolean))
    return select(literal_column(f"'{task_position.name}'", Text).label("id")).where(is_set_back)


def set_forward_in_postgresql(oid: Oid) -> Transition:
    def raised(_: Relations) -> Statement:
        behind = set_back_in_postgresql(oid).subquery("behind")
        number = func.setval(oid(task_position.name), _largest(), type_=BigInteger)
        return select(behind.c.id, number.label("number"))

    return Transition(steps={"raised": raised}, returns="raised")


def _is_set_back() -> ColumnElement[bool]:
    counted = select(_sequence.c.seq).where(_sequence.c.name == _COUNTER).scalar_subquery()
    return func.coalesce(counted, literal_column("0"), type_=Integer) < _largest()


def _largest() -> ColumnElement[int]:
    return select(func.max(EXECUTION.position)).scalar_subquery()


def _part(one: Table, part: Index | Constraint, place: ColumnElement[Any] | None = None) -> Select[Any]:
    is_unique = not isinstance(part, Index) or part.unique
    return select(
        (literal_column(f"'{one.name}'", Text) if place is None else place).label("table"),
        literal_column(f"'{part.name}'", Text).label("name"),
        literal_column(str(is_unique).lower(), Boolean).label("is_unique"),
    )


def _unique_or_index(one: Table) -> Iterable[Index | Constraint]:
    """Yield the unique constraints, the primary key and the indexes of a table, which the database must have.

    Partitions number their events separately, so the events' primary key is not checked.
    """
    yield from _sorted(part for part in one.constraints if isinstance(part, UniqueConstraint))
    if one is not execution_events:
        yield one.primary_key
    yield from _sorted(one.indexes)


def _sorted(parts: Iterable[_Part]) -> list[_Part]:
    return sorted(parts, key=lambda part: str(part.name))
