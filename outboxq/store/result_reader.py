"""The reader of results: on connections of its own, for the thread that looks for callers that wait."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

from ..database.engine import close, detached
from ..errors import ConfigurationError
from ..model.batches import BatchLink
from .batch_standings import BatchStanding, batch_standings
from .results import Standing, standings
from .transactions import Transactions


class ResultReader:
    """A store's results, read on connections that nothing else uses. It is for one thread.

    Callers that wait may have every connection of the application's engine.
    """

    def __init__(self, store: Transactions) -> None:
        """Prepare the reader; it connects at its first look."""
        self._own: Any = None
        try:
            self._store = store.reserved(threading.Event())
            self._own = self._store.engine
        except ConfigurationError:  # one connection for all threads: there is no other
            self._store = store
        self._watched: Any = None
        self._version: int | None = None

    def standings(self, task_ids: Collection[UUID], *, everything: bool) -> Mapping[UUID, Standing]:
        return standings(self._store, task_ids, everything=everything)

    def batch_standings(self, links: Collection[BatchLink], *, everything: bool) -> Mapping[BatchLink, BatchStanding]:
        return batch_standings(self._store, links, everything=everything)

    def has_changed(self) -> bool:
        """Return whether anything may have been committed since the last call. A server is not asked: the answer is yes."""
        if self._own is None or not self._store.dialect.one_writer:
            return True
        if self._watched is None:
            self._watched = detached(self._own)
        version = self._store.dialect.version(self._watched)
        before, self._version = self._version, version
        return version is None or version != before

    def close(self) -> None:
        """Close the connections."""
        watched, self._watched = self._watched, None
        if watched is not None:
            with suppress(Exception):
                watched.close()
        if self._own is not None:
            close(self._own)
