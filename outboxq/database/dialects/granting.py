"""Write GRANT statements for PostgreSQL, and find the privileges that a role lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ..column_types import Packed
from ..grammar import Grammar
from ..privileges import Kind, Right
from ..tables import VERSION_TABLE
from .catalogue import pg_class, pg_namespace

_roles = sa.table("pg_roles", sa.column("rolname", sa.Text), schema="pg_catalog")
_PARTS = ("kind", "name", "privilege", "column")
_grantee = sa.bindparam("grantee", None, type_=sa.Text)


def grant(right: Right, schema: str, role: str) -> str:
    """Return the statement that grants the privilege on an object of `schema`, with every identifier in quotes."""
    from psycopg import sql  # imported here, because most programs that import this module do not use PostgreSQL

    where = {
        Kind.SCHEMA: sql.SQL("SCHEMA {}").format(sql.Identifier(schema)),
        Kind.SEQUENCE: sql.SQL("SEQUENCE {}").format(sql.Identifier(schema, right.name)),
        Kind.TABLE: sql.SQL("TABLE {}").format(sql.Identifier(schema, right.name)),
    }[right.kind]
    columns = sql.SQL(", ").join(map(sql.Identifier, right.columns))
    text = sql.SQL("GRANT {} ON {} TO {}").format(
        sql.SQL(right.privilege.value) + (sql.SQL(" ({})").format(columns) if right.columns else sql.SQL("")),
        where,
        sql.Identifier(role),
    )
    return text.as_string(None)


def _cells(rights: Sequence[Right]) -> list[tuple[str, ...]]:
    """Return the rows for `missing`: one for each column of the privilege, or a single row if it does not name
    columns.
    """
    return [
        (right.kind.value, right.name, right.privilege.value, one) for right in rights for one in right.columns or ("",)
    ]


def pack(rights: Sequence[Right]) -> dict[str, Any]:
    """Return the parameters of `missing`."""
    given = _cells(rights)
    return {f"right_{part}": [row[at] for row in given] for at, part in enumerate(_PARTS)}


def role(_: Grammar) -> sa.Select[Any]:
    """Select one row if the role :grantee exists."""
    return sa.select(sa.literal_column("1").label("found")).select_from(_roles).where(_roles.c.rolname == _grantee)


def missing(g: Grammar) -> sa.Select[Any]:
    """Select the given privileges that :grantee, or the current role, lacks in our schema, and the name of that role.

    If our statements find the tables by the search path, it also selects the tables that a table in another schema
    hides (`hidden_by`).

    It returns at least one row, with a NULL `name` if nothing is missing. The statement never fails, even for a role
    without any privileges.
    """
    lies_in, by_path = _schema_of(g), g.schema is None
    arrays = [sa.bindparam(f"right_{part}", type_=Packed(sa.Text()), required=True) for part in _PARTS]
    wanted = (
        sa.func.unnest(*arrays)
        .table_valued(*(sa.column(part, sa.Text) for part in _PARTS))
        .render_derived(name="wanted")
    )
    who = sa.func.coalesce(_grantee, sa.func.current_user(), type_=sa.Text)
    place = sa.select(pg_namespace.c.oid, pg_namespace.c.nspname).where(pg_namespace.c.oid == lies_in).subquery("place")
    may = sa.case(
        (wanted.c.kind == _word(Kind.SCHEMA), sa.func.has_schema_privilege(who, place.c.oid, wanted.c.privilege)),
        (pg_class.c.oid.is_(None), sa.literal_column("true", sa.Boolean)),  # a missing table is reported elsewhere
        (
            wanted.c.kind == _word(Kind.SEQUENCE),
            sa.func.has_sequence_privilege(who, pg_class.c.oid, wanted.c.privilege),
        ),
        (wanted.c.column == _word(""), sa.func.has_table_privilege(who, pg_class.c.oid, wanted.c.privilege)),
        else_=sa.func.has_column_privilege(who, pg_class.c.oid, wanted.c.column, wanted.c.privilege),
    )
    other, there = pg_class.alias("other"), pg_namespace.alias("there")
    seen = sa.func.to_regclass(sa.func.quote_ident(wanted.c.name)) if by_path else sa.null()
    hidden_by = (
        sa.select(there.c.nspname)
        .where(other.c.oid == seen, there.c.oid == other.c.relnamespace, other.c.oid != pg_class.c.oid)
        .correlate(wanted, pg_class)
        .scalar_subquery()
    )
    found = (
        sa.select(*(wanted.c[part] for part in _PARTS), hidden_by.label("hidden_by"))
        .select_from(wanted)
        .outerjoin(pg_class, sa.and_(pg_class.c.relname == wanted.c.name, pg_class.c.relnamespace == place.c.oid))
        .where(sa.or_(~may, hidden_by.is_not(None)))
    )
    lacks = found.correlate(place).lateral("lacks")
    cells = (lacks.c[part] for part in (*_PARTS, "hidden_by"))
    return sa.select(who.label("role"), place.c.nspname.label("schema"), *cells).select_from(
        place.outerjoin(lacks, sa.true())
    )


def _schema_of(g: Grammar) -> sa.ColumnElement[Any]:
    """Return the oid of our schema: the schema with the configured name, or else the schema in which the search path
    finds, or would create, our tables.
    """
    if g.schema is not None:
        return sa.select(pg_namespace.c.oid).where(pg_namespace.c.nspname == _word(g.schema)).scalar_subquery()
    found = sa.select(pg_class.c.relnamespace).where(pg_class.c.oid == g.oid(VERSION_TABLE)).scalar_subquery()
    made = (
        sa.select(pg_namespace.c.oid)
        .where(pg_namespace.c.nspname == sa.cast(sa.func.current_schema(), sa.Text))
        .scalar_subquery()
    )
    return sa.func.coalesce(found, made)


def _word(text: str) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{text}'", sa.Text)
