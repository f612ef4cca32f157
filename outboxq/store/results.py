"""Results of tasks, for callers that wait for them: one look asks for any number of tasks."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.engine import close, detached
from ..database.privileges import Feature
from ..database.statements import results, tasks
from ..database.statements.results import TASKS
from ..database.target import Target
from ..errors import ConfigurationError
from ..model import TERMINAL, ExecutionEvent, TaskStatus, status_after
from .tasks import event_of
from .transactions import Transactions

_NEWEST = 8
"""The number of events among which the end of a task is: after it, people may have redriven the task."""
_READS = frozenset({Feature.RESULTS})


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The status of a task, and how it ended if it has."""

    id: UUID
    task_name: str
    status: TaskStatus
    attempt: int
    result: str | None = field(repr=False)
    """The result as JSON; None: there is none."""
    error: str | None = field(repr=False)
    """The last error in one line."""
    end: ExecutionEvent | None = field(default=None, repr=False)
    """The event with which it ended otherwise than Completed; None: it has not, or the event is gone."""

    @property
    def has_ended(self) -> bool:
        """Return whether the task has ended. A dead letter has."""
        return self.status in TERMINAL


def standings(store: Transactions, task_ids: Collection[UUID], *, everything: bool = True) -> Mapping[UUID, Standing]:
    """Return the standing of each of these tasks that has ended. With `everything`, of those too that have not ended.

    A task that is missing there does not exist, or is not committed. The transaction is not run again after an error: the caller
    decides about another look. Raises NotPermitted if the database role may not read results.
    """
    try:
        with store.transaction(Begin.READ) as target:
            values = target.dialect.pack("tasks", TASKS, [(task_id,) for task_id in task_ids])
            rows = target.run(results.ended, {**values, "everything": everything})
            return {row["id"]: _standing(target, row) for row in rows}
    except Exception as error:
        store.rights.explain(error, Begin.READ, _READS)
        raise


def _standing(target: Target, row: Row) -> Standing:
    status, end = TaskStatus(row["status"]), None
    if status in {TaskStatus.FAILED, TaskStatus.CANCELLED}:
        newest = target.run(tasks.recent_history, {"task_id": row["id"], "limit": _NEWEST})
        ends = (one for one in map(event_of, newest) if status_after(one.event_type) is status)
        end = next(ends, None)
    return Standing(
        id=row["id"],
        task_name=row["task_name"],
        status=status,
        attempt=row["attempt"],
        result=row["result"],
        error=row["last_error"],
        end=end,
    )


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
