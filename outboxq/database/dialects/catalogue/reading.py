"""Questions."""

from __future__ import annotations

from functools import cached_property

from ...statements import reading
from ...tables import VERSION_TABLE, version_table
from ..prepared import Prepared
from .base import Catalogue


class Reading(Catalogue):
    @cached_property
    def now(self) -> Prepared:
        return self._dialect.prepare(reading.now(self._g))

    @cached_property
    def get(self) -> Prepared:
        return self._dialect.prepare(reading.get())

    @cached_property
    def history(self) -> Prepared:
        return self._dialect.prepare(reading.history())

    @cached_property
    def recent_history(self) -> Prepared:
        return self._dialect.prepare(reading.recent_history())

    @cached_property
    def ready_for_retry(self) -> Prepared:
        return self._dialect.prepare(reading.ready_for_retry(self._g))

    @cached_property
    def version_table(self) -> Prepared:
        """Alembic alone makes this table empty, and without the column that our first revision gives it."""
        return self._dialect.prepare(self._dialect.find_column(VERSION_TABLE, version_table.c.oldest_code.name))

    @cached_property
    def is_standby(self) -> Prepared:
        return self._dialect.prepare(self._dialect.is_standby())

    @cached_property
    def version(self) -> Prepared:
        return self._dialect.prepare(reading.version())
