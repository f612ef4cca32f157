"""Due times of the tasks of a page, and in a word what each waits for: read by a few statements for the whole page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.statements import explaining
from ..database.statements.explaining import WAITING
from ..database.target import Target
from ..model import TaskExecution, TaskStatus
from .claims.limits import limits_keys, states_of
from .claims.workers import live_workers, releases_as_unknown
from .explaining import (
    closed,
    expired,
    is_impossible_lease,
    limited,
    limited_key,
    not_yet,
    runs_in_no_order,
    silence,
    unmanned,
)
from .reasons import Reason
from .tasks.tasks import select_now
from .transactions import Transactions


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The reason why a task that has not ended is where it is, and its due time."""

    reason: Reason
    """The reason that `explain` gives; for a running task, what its lease shows."""
    due_at: datetime | None = None
    """When its outbox entry is due; None: it is not Ready."""


def outlooks(store: Transactions, tasks: Sequence[TaskExecution], *, using: object = None) -> Mapping[UUID, Outlook]:
    """Return the outlook of each of these tasks that is Ready or Running, by its id.

    It takes three statements, however many tasks there are. A task that has moved on since it was read is left out.
    """
    waiting = [task for task in tasks if task.status is TaskStatus.READY]
    running = [task for task in tasks if task.status is TaskStatus.RUNNING]

    def work(target: Target) -> dict[UUID, Outlook]:
        packed = target.dialect.pack("tasks", WAITING, [(task.id,) for task in waiting])
        rows = target.run(explaining.waiting, store.values(target, **packed)) if waiting else []
        now = (rows or target.run(select_now, store.values(target)))[0]["now"]
        found = {task.id: Outlook(reason=_of_lease(task, now)) for task in running}
        return found | (_of_waiting(store, target, waiting, {row["id"]: row for row in rows}, now) if rows else {})

    return store.run(work, using=using, begin=Begin.SNAPSHOT) if waiting or running else {}


def _of_waiting(
    store: Transactions, target: Target, tasks: Sequence[TaskExecution], rows: Mapping[UUID, Row], now: datetime
) -> dict[UUID, Outlook]:
    """Apply the rules to each task that still waits. What they need is read once for all of them."""
    tasks = [task for task in tasks if task.id in rows]
    workers = live_workers(target, now)
    later = [(task.id, task.lease_token) for task in tasks if rows[task.id]["available_at"] > now]
    by_key = [(task.queue, task.partition_key) for task in tasks if limits_keys(rows[task.id])]
    states = states_of(store, target, by_key)
    given_back = releases_as_unknown(target, later) if later else {}

    def reason(task: TaskExecution) -> Reason:
        """Apply the rules of `explain`, in their order."""
        row, missing = rows[task.id], unmanned(task, workers)
        found = (
            expired(task, now)
            or (missing if task.id in given_back else None)
            or not_yet(task, row["available_at"], now)
            or closed(task.queue, row, now)
        )
        if found:
            return found.reason
        state = states.get((task.queue, task.partition_key))
        if not runs_in_no_order(task, state) and (behind := _behind(task, row)):
            return behind
        found = limited_key(task, state, now) or limited(task.queue, row, now, lambda: int(row["running"])) or missing
        return found.reason if found else Reason.DUE

    return {task.id: Outlook(reason=reason(task), due_at=rows[task.id]["available_at"]) for task in tasks}


def _behind(task: TaskExecution, row: Row) -> Reason | None:
    if row["held"] is not None:
        return Reason.KEY_HELD if row["held"] else Reason.KEY_RUNNING
    return Reason.KEY_WAITING if row["head"] not in {None, task.id} else None


def _of_lease(task: TaskExecution, now: datetime) -> Reason:
    ends = task.lease_expires_at
    if ends is None or is_impossible_lease(task):
        return Reason.INCONSISTENT
    if ends < now:
        return Reason.LEASE_ENDED
    if task.cancel_requested_at is not None:
        return Reason.CANCEL_REQUESTED
    return Reason.WORKER_SILENT if silence(task, ends, now) else Reason.RUNNING
