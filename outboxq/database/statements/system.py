"""Ask the database about itself: its version, its size, and the snapshot that keeps dead rows from being cleaned up."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Select, Text, column, func, literal_column, null, select, table

from ..column_types import Instant
from ..tables import version_table
from .grammar import Grammar

_activity = table(
    "pg_stat_activity",
    column("pid"),
    column("datname", Text),
    column("backend_xmin"),
    column("backend_type", Text),
    column("xact_start", Instant),
    schema="pg_catalog",
)
_prepared = table("pg_prepared_xacts", column("database", Text), column("prepared", Instant), schema="pg_catalog")


def server(g: Grammar) -> Select[Any]:
    """Select the database's name and version, its bytes, the begin of the oldest transaction that has a snapshot, and the revision
    of our schema with the oldest code that it admits.
    """
    found, schema = g.server().subquery("server"), version_table.c
    revision, oldest_code = (select(one).scalar_subquery() for one in (schema.version_num, schema.oldest_code))
    return select(found, revision.label("revision"), oldest_code.label("oldest_code"))


def server_of_postgresql(now: Any) -> Select[Any]:
    """Select them on PostgreSQL. A role that may not see other sessions' transactions gets no begin."""
    here = func.current_database(type_=Text)
    oldest = select(func.min(_activity.c.xact_start, type_=Instant)).where(
        _activity.c.backend_xmin.is_not(None),
        _activity.c.pid != func.pg_backend_pid(),
        _activity.c.datname == here,
        _activity.c.backend_type != literal_column("'autovacuum worker'"),  # a vacuum does not wait for another one
    )
    prepared = select(func.min(_prepared.c.prepared, type_=Instant)).where(_prepared.c.database == here)
    return select(
        literal_column("'PostgreSQL'", Text).label("name"),
        func.current_setting(literal_column("'server_version'"), type_=Text).label("version"),
        func.pg_database_size(here, type_=BigInteger).label("size"),
        func.least(oldest.scalar_subquery(), prepared.scalar_subquery(), type_=Instant).label("oldest_snapshot_at"),
        now.label("now"),
    )


def server_of_sqlite(now: Any) -> Select[Any]:
    """Select them on SQLite, which has no snapshots to tell of."""
    pages = func.pragma_page_count().table_valued("page_count").alias("pages")
    sizes = func.pragma_page_size().table_valued("page_size").alias("sizes")
    return select(
        literal_column("'SQLite'", Text).label("name"),
        func.sqlite_version(type_=Text).label("version"),
        (pages.c.page_count * sizes.c.page_size).label("size"),
        null().label("oldest_snapshot_at"),
        now.label("now"),
    ).select_from(pages.join(sizes, literal_column("true")))
