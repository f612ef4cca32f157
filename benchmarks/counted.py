"""Count the pages that a call reads and the WAL that it writes. Unlike times, these counts do not depend on other processes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection

from benchmarks.place import Place
from outboxq.database.dialects import Begin

# The pages of outboxq's tables and indexes that this transaction has fetched, whether cached or not. The system catalog is
# not included.
FETCHED = """
SELECT coalesce(sum(pg_stat_get_xact_blocks_fetched(oid)), 0) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i')
"""
WRITTEN = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
BEGINS = {
    "get": Begin.READ,
    "history": Begin.READ,
    "stats": Begin.SNAPSHOT,
    "explain, of the last": Begin.SNAPSHOT,
}
"""The kind of transaction for each call that only reads."""


@dataclass(slots=True)
class Counts:
    """The counts of one kind of call."""

    buffers: list[float] = field(default_factory=list)
    wal: list[float] = field(default_factory=list)

    @property
    def middle(self) -> tuple[float, float]:
        return statistics.median(self.buffers), statistics.median(self.wal)


class Counter(AbstractContextManager["Counter"]):
    """A connection to PostgreSQL that runs each call in a separate transaction and counts its pages and its WAL."""

    def __init__(self, place: Place) -> None:
        self._begin = place.store.dialect.begin
        options = place.store.dialect.connection_options
        self._connection = place.store.bound_engine.connect().execution_options(**options)
        self.counts: dict[str, Counts] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def count(self, name: str, call: Callable[[Connection], Any]) -> Any:
        """Run the call, count it, and return its result. The transaction begins as in the store, because its settings affect the
        plans."""
        before = self._ask(WRITTEN)
        self._connection.exec_driver_sql(self._begin[BEGINS.get(name, Begin.WRITE)])
        seen = self._ask(FETCHED)
        found = call(self._connection)
        fetched = self._ask(FETCHED) - seen
        self._connection.exec_driver_sql("COMMIT")
        mine = self.counts.setdefault(name, Counts())
        mine.buffers.append(float(fetched))
        mine.wal.append(float(self._ask(WRITTEN) - before))
        return found

    def _ask(self, sql: str) -> int:
        return int(self._connection.exec_driver_sql(sql).scalar_one())
