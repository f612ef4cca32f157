"""The origin of a handle: the outbox and the transaction in which its task was enqueued."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from ..context import TaskContext
from ..integration.ambient import OutboxRef


class Origin:
    """The outbox and the transaction of an enqueue, for the handles that it returns."""

    __slots__ = ("__weakref__", "_outbox", "_target", "_thread")

    def __init__(self, outbox: OutboxRef, target: object) -> None:
        """Remember where the tasks were written; `target` None: in a transaction of its own, which is committed."""
        self._outbox = outbox
        self._target: Callable[[], object] | None = None if target is None else _reference(target)
        self._thread = threading.get_ident()

    def result(self, task_id: UUID, timeout: timedelta | float | None) -> Any:
        return self._outbox.wait_for_result(task_id, timeout, self)

    def batch_result(self, batch_id: UUID, timeout: timedelta | float | None) -> Any:
        return self._outbox.wait_for_batch(batch_id, timeout, self)

    def settle(self) -> None:
        """Note that the transaction is committed."""
        self._target = None

    @property
    def is_committed(self) -> bool:
        """Return whether the transaction was one of its own, which is committed; of a caller's it is not known."""
        return self._target is None

    @property
    def is_this_threads(self) -> bool:
        """Return whether this thread has enqueued."""
        return self._thread == threading.get_ident()

    @property
    def is_open(self) -> bool:
        """Return whether a transaction is open where the task was written."""
        return self._target is not None and has_transaction(self._target())


def has_transaction(target: Any) -> bool:
    """Return whether a transaction is open on a session or connection. Nothing is asked of the database."""
    if isinstance(target, TaskContext):
        return target.inside is not None
    with suppress(Exception):  # a connection that is closed says no more
        if (state := getattr(target, "in_transaction", None)) is not None:  # SQLAlchemy's function, sqlite3's attribute
            return bool(state() if callable(state) else state)
        if (in_block := getattr(target, "in_atomic_block", None)) is not None:  # Django
            return bool(in_block or not target.autocommit)
        return bool(target.info.transaction_status in _OPEN)  # psycopg
    return False


_OPEN = frozenset({1, 2, 3})
"""psycopg's states: a command runs, a transaction is open, or it has failed."""


def _reference(target: Any) -> Callable[[], object]:
    """Return a reference that keeps no session or connection alive."""
    if isinstance(target, str):
        from django.db import connections

        target = connections[target]
    elif type(target).__name__ == "scoped_session":
        target = target()  # in another thread it would be another session
    try:
        return weakref.ref(target)
    except TypeError:
        return lambda: target
