"""Find the version of the tables, and whether the server takes writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Select, select

from ..grammar import Builder, Grammar
from ..revisions import ensure_released
from ..tables import VERSION_TABLE, version_table


def found(run: Callable[[Builder], list[dict[str, Any]]], place: Callable[[], str]) -> tuple[str | None, str | None]:
    """Return the revision of the tables and the oldest code that they admit; twice None if there are no tables.

    Columns are looked up before they are read: an error would abort the caller's transaction. Raises SchemaOutOfDate for the
    tables of an unreleased version. `place` returns the name of the database for it.
    """
    columns = {row["name"] for row in run(version_columns)}
    if version_table.c.oldest_code.name not in columns:  # Alembic alone has made the table
        return None, None
    if version_table.c.fingerprint.name not in columns:
        ensure_released(None, place)
    if not (rows := run(version)):
        return None, None
    ensure_released(rows[0]["fingerprint"], place)
    return rows[0]["version_num"], rows[0]["oldest_code"]


def version(_: Grammar) -> Select[Any]:
    """Select the revision of our schema, the oldest code that it admits, and the text of revision 0001 that made it."""
    return select(version_table)


def version_columns(g: Grammar) -> Select[Any]:
    """Select the names of the columns that the table of our revision has."""
    return g.columns_of(VERSION_TABLE)


def is_standby(g: Grammar) -> Select[Any]:
    """Select one row if this server is a standby, and takes no writes."""
    return g.is_standby()
