"""Due times of the tasks of a page, and in a word what each waits for: read by a few statements for the whole page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.statements import explaining, queues, reading
from ..database.statements.explaining import WAITING
from ..database.target import Target
from ..model import TaskExecution, TaskStatus
from .explaining import Reason, closed, expired, is_overdue, limited, not_yet, unmanned
from .registry import LiveWorker, live_workers
from .transactions import Transactions
from .unknown import releases_as_unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The reason why a task that has not ended is where it is, and its due time."""

    reason: Reason
    """The reason that `explain` gives; for a running task, what its lease shows."""
    due_at: datetime | None = None
    """When its outbox entry is due; None: it is not Ready."""


def outlooks(store: Transactions, tasks: Sequence[TaskExecution], *, using: object = None) -> Mapping[UUID, Outlook]:
    """Return the outlook of each of these tasks that is Ready or Running, by its id.

    The number of statements does not grow with the tasks, only with the queues among them that have limits. A task that
    has moved on since it was read is left out.
    """
    waiting = [task for task in tasks if task.status is TaskStatus.READY]
    running = [task for task in tasks if task.status is TaskStatus.RUNNING]
    if not waiting and not running:
        return {}
    return store.run(lambda target: _outlooks(store, target, waiting, running), using=using, begin=Begin.SNAPSHOT)


def _outlooks(
    store: Transactions, target: Target, waiting: Sequence[TaskExecution], running: Sequence[TaskExecution]
) -> Mapping[UUID, Outlook]:
    now = target.run(reading.now, store.values(target))[0]["now"]
    found = {task.id: Outlook(reason=_of_lease(task, now)) for task in running}
    if waiting:
        packed = target.dialect.pack("tasks", WAITING, [(task.id,) for task in waiting])
        rows = {row["id"]: row for row in target.run(explaining.waiting, packed)}
        page = _Page(target, waiting, rows, now)
        found |= {
            task.id: Outlook(reason=page.reason(task), due_at=rows[task.id]["available_at"])
            for task in waiting
            if task.id in rows
        }
    return found


class _Page:
    """The answers of the database that the rules need, read once for a whole page."""

    def __init__(self, target: Target, tasks: Sequence[TaskExecution], rows: Mapping[UUID, Row], now: datetime) -> None:
        self._rows, self._now = rows, now
        self._workers: list[LiveWorker] = live_workers(target, now)
        settings = {row["queue"]: row for row in target.run(queues.settings)}
        later = [(task.id, task.lease_token) for task in tasks if task.id in rows and self._due(task) > now]
        self._given_back = releases_as_unknown(target, later) if later else {}
        self._settings: Mapping[str, Mapping[str, Any]] = settings
        self._limits = {
            queue: limited(target, settings[queue], {"queue": queue}, now)
            for queue in {task.queue for task in tasks} & settings.keys()
        }

    def reason(self, task: TaskExecution) -> Reason:
        """Return the reason by the rules of `explain`, in their order."""
        if found := expired(task, self._now):
            return found.reason
        missing = unmanned(task, self._workers)
        if missing and task.id in self._given_back:
            return missing.reason
        found = not_yet(task, self._due(task), self._now) or closed(
            task.queue, self._settings.get(task.queue, {}), self._now
        )
        if found:
            return found.reason
        return self._behind(task) or _reason(self._limits.get(task.queue)) or _reason(missing) or Reason.DUE

    def _due(self, task: TaskExecution) -> datetime:
        due: datetime = self._rows[task.id]["available_at"]
        return due

    def _behind(self, task: TaskExecution) -> Reason | None:
        row = self._rows[task.id]
        if row["held"] is not None:
            return Reason.KEY_HELD if row["held"] else Reason.KEY_RUNNING
        return Reason.KEY_WAITING if row["head"] not in {None, task.id} else None


def _reason(found: Any) -> Reason | None:
    return None if found is None else found.reason


def _of_lease(task: TaskExecution, now: datetime) -> Reason:
    ends = task.lease_expires_at
    if ends is None:
        return Reason.INCONSISTENT
    if ends < now:
        return Reason.LEASE_ENDED
    if task.cancel_requested_at is not None:
        return Reason.CANCEL_REQUESTED
    silent = now - (ends - timedelta(seconds=task.lease_seconds))
    return Reason.WORKER_SILENT if is_overdue(silent, task) else Reason.RUNNING
