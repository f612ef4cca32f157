"""Find the version of the tables, and whether the server takes writes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, Text, column, func, select, table

from ..tables import VERSION_TABLE, version_table
from .grammar import Grammar

_attribute = table("pg_attribute", column("attrelid"), column("attname", Text), schema="pg_catalog")


def version(_: Grammar) -> Select[Any]:
    """Select the revision of our schema and the oldest code that it admits."""
    return select(version_table.c.version_num, version_table.c.oldest_code)


def has_version_table(g: Grammar) -> Select[Any]:
    """Select one row if the table of our revision exists. Alembic alone creates it empty, and without the column of our first
    one.
    """
    return g.find_column(VERSION_TABLE, version_table.c.oldest_code.name)


def is_standby(g: Grammar) -> Select[Any]:
    """Select one row if this server is a standby, and takes no writes."""
    return g.is_standby()


def column_in_postgresql(table_oid: ColumnElement[Any], name: str) -> Select[Any]:
    """Select one row if the table of this oid, which may be NULL, has the column."""
    return select(_attribute.c.attname).where(_attribute.c.attrelid == table_oid, _attribute.c.attname == name)


def column_in_sqlite(table_name: str, name: str) -> Select[Any]:
    """Select one row if the table exists and has the column."""
    columns = func.pragma_table_info(table_name).table_valued("name").alias("columns")
    return select(columns.c.name).where(columns.c.name == name)
