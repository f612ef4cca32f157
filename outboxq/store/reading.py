"""Questions to the tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ..database.dialects import Begin
from ..database.target import Target
from ..errors import TaskNotFound
from ..model import ExecutionEvent, TaskExecution, TaskStatus, event_type_of
from .base import Transactions, identifier, positive


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What lies ahead."""

    settled: bool = True
    """No transaction is open that this may have missed (`store/sleeping.py`)."""
    due: bool
    """Something may be claimed, unless another worker is about to."""
    seconds: float | None
    """Until the next task is due; None: none is waiting."""


class Reading(Transactions):
    def now(self, *, using: object = None) -> datetime:
        """The clock that due times and leases go by."""
        return self._run(  # type: ignore[no-any-return]
            lambda target: target.dialect.statements.now.run(target.execute, self._values(target))[0]["now"],
            using=using,
            begin=Begin.READ,
        )

    def get(self, task_id: UUID, *, using: object = None) -> TaskExecution:
        """One task execution. Raises TaskNotFound."""
        rows = self._run(
            lambda target: target.dialect.statements.get.run(target.execute, {"task_id": identifier(task_id)}),
            using=using,
            begin=Begin.READ,
        )
        if not rows:
            raise TaskNotFound(f"there is no task {task_id}")
        return execution_of(rows[0])

    def history(self, task_id: UUID, *, using: object = None) -> list[ExecutionEvent]:
        """The task's events, oldest first; empty for an unknown task."""
        rows = self._run(
            lambda target: target.dialect.statements.history.run(target.execute, {"task_id": identifier(task_id)}),
            using=using,
            begin=Begin.READ,
        )
        return [event_of(row) for row in rows]

    def recent_history(self, task_id: UUID, limit: int, *, using: object = None) -> list[ExecutionEvent]:
        """The task's newest events, at most `limit`, oldest first; empty for an unknown task. It reads few more than it returns,
        however long the history is.
        """
        values = {"task_id": identifier(task_id), "limit": positive(limit)}
        rows = self._run(
            lambda target: target.dialect.statements.recent_history.run(target.execute, values),
            using=using,
            begin=Begin.READ,
        )
        return [event_of(row) for row in reversed(rows)]

    def get_ready_for_retry(self, limit: int = 1000, *, using: object = None) -> list[TaskExecution]:
        """Ready tasks that may run now: never tried, or with a retry time that has come (equal counts). Oldest first."""
        positive(limit)
        rows = self._run(
            lambda target: target.dialect.statements.ready_for_retry.run(
                target.execute, self._values(target, limit=limit)
            ),
            using=using,
            begin=Begin.READ,
        )
        return [execution_of(row) for row in rows]

    def next_available_at(self, queues: Sequence[str] | None = None, *, using: object = None) -> datetime | None:
        """The next moment, strictly in the future, at which a task of these queues becomes due; None: none is waiting."""

        def work(target: Target) -> Any:
            statements = target.dialect.statements
            query = statements.next_available_at if queues is None else statements.next_available_at_given
            values = self._values(target) | self._scope(target, queues, None)
            return query.run(target.execute, values)[0]["available_at"]

        return self._run(work, using=using, begin=Begin.READ)  # type: ignore[no-any-return]

    def look_ahead(
        self,
        queues: Sequence[str] | None = None,
        *,
        topics: Sequence[str] | None = None,
        recent: bool = False,
        using: object = None,
    ) -> Look:
        """Whether a task of these queues is due, and when the next one is.

        In this order of reading, so that a task that becomes due meanwhile is seen by one or the other. `recent` asks only
        for what became claimable lately: a short look behind any number of keys that cannot be claimed, which may miss others.
        """

        def work(target: Target) -> Look:
            statements = target.dialect.statements
            following, any_due = statements.next_available_at, statements.any_due
            if recent:
                any_due = statements.any_recent
            if queues is not None:
                following = statements.next_available_at_given
                any_due = statements.any_recent_given if recent else statements.any_due_given
            values = self._values(target) | self._scope(target, queues, topics)
            moment = following.run(target.execute, values)[0]["available_at"]
            values |= self._values(target)
            now = statements.now.run(target.execute, values)[0]["now"]
            due = bool(any_due.run(target.execute, values))
            return Look(due=due, seconds=None if moment is None else max(0.0, (moment - now).total_seconds()))

        return self._run(work, using=using, begin=Begin.READ)


def execution_of(row: dict[str, Any]) -> TaskExecution:
    return TaskExecution(**{**row, "status": TaskStatus(row["status"])})


def event_of(row: dict[str, Any]) -> ExecutionEvent:
    kind, data = event_type_of(row["event_type"]), data_of(row["event_data"])
    return ExecutionEvent(**{**row, "event_type": kind, "event_data": data})


def data_of(text: str | None) -> dict[str, Any]:
    """Return what an event says; text that is no JSON object, which outboxq does not write, comes under ``unreadable``."""
    try:
        data = json.loads(text or "{}")
    except ValueError:
        data = None
    return data if isinstance(data, dict) else {"unreadable": text}
