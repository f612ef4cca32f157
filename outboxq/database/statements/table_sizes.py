"""Measure outboxq's tables (PostgreSQL)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Select, Text, column, func, literal_column, select, true, union_all

from ..column_types import Instant
from ..grammar import Grammar
from ..tables import metadata


def sizes(g: Grammar) -> Select[Any]:
    """Select for each of our tables that is there its bytes, with indexes and partitions, and its dead rows.

    It reads the catalogue and the sizes of files, and no row of a table.
    """
    named = union_all(
        *(
            select(literal_column(f"'{name}'", Text).label("name"), g.oid(name).label("oid"))
            for name in sorted(metadata.tables)
        )
    ).subquery("named")
    # A table without partitions has no tree.
    part = func.pg_partition_tree(named.c.oid).table_valued(column("relid")).render_derived(name="part").lateral("part")
    one = func.coalesce(part.c.relid, named.c.oid)
    vacuumed = (func.pg_stat_get_last_vacuum_time(one), func.pg_stat_get_last_autovacuum_time(one))
    return (
        select(
            named.c.name,
            func.sum(func.pg_total_relation_size(one)).cast(BigInteger).label("size"),
            func.sum(func.pg_stat_get_dead_tuples(one)).cast(BigInteger).label("dead_rows"),
            func.sum(func.pg_indexes_size(one)).cast(BigInteger).label("index_size"),
            func.sum(func.pg_stat_get_live_tuples(one)).cast(BigInteger).label("rows"),
            func.max(func.greatest(*vacuumed), type_=Instant).label("last_vacuumed_at"),
        )
        .select_from(named.outerjoin(part, true()))
        .where(named.c.oid.is_not(None))
        .group_by(named.c.name)
        .order_by(named.c.name)
    )
