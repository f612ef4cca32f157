"""outboxq's own tasks: one deletes old tasks, and the other changes many tasks at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import tenacity

from ..context import TaskContext
from ..errors import ConfigurationError, InvalidArgument
from ..integration.ambient import OutboxRef
from ..model import TaskExecution, TaskOptions, TaskStatus, Waiting, duration
from ..model.options import is_span
from ..model.schedules import NewSchedule, Overlap
from ..model.wording import grouped
from ..retry import RetryPolicy
from ..store import Count, DeadLetter, Part, Snapshot, Store
from ..store.numbers.maintenance_jobs import PRUNE
from ..store.tasks.operations import OnChange
from .schedules import RETENTION, schedule_for
from .task import ContextTask, Task

BULK: Final = "outboxq.bulk"
"""The name of the task that changes many tasks."""
BULK_QUEUE: Final = "outboxq"
"""The bulk task's queue."""


class BulkAction(StrEnum):
    """The change to make to all matching tasks."""

    REDRIVE = "redrive"
    DISCARD = "discard"
    CANCEL = "cancel"
    RUN_NOW = "run-now"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """An action, and the filters that select what it changes: waiting or running tasks for CANCEL, tasks that are not
    due yet for RUN_NOW, and dead letters for the other actions. A filter set to None is ignored.
    """

    action: BulkAction
    at: datetime
    """The time at which a person was asked to confirm the action, as an aware datetime. This time is shown to people.
    """
    snapshot: Snapshot | None = None
    """The snapshot in which the tasks were counted; None before the count. Tasks that failed or were enqueued after the
    snapshot are left alone, so that a run after a crash continues where the previous run stopped and never changes a
    task twice.
    """
    queue: str | None = None
    task: str | None = None
    """The name of the task."""
    key: str | None = None
    """The partition key."""
    topic: str | None = None
    exception: str | None = None
    """The exception's class, for dead letters."""
    group: str | None = None
    """The id of a dead letter group."""
    since: datetime | None = None
    """The earliest time at which the task failed or was enqueued."""
    until: datetime | None = None
    """The time before which the task failed or was enqueued."""
    status: TaskStatus | None = None
    """The status of the tasks to cancel: READY or RUNNING."""
    waiting: Waiting | None = None
    """The state of the tasks to run now: DELAYED or RETRYING."""
    limit: int | None = None
    """The maximum number of tasks to change, oldest first."""

    @property
    def filters(self) -> dict[str, Any]:
        """The filters that are set, by name."""
        return {name: value for name in sorted(_FILTERS) if (value := getattr(self, name)) is not None}

    @property
    def digest(self) -> str:
        """The idempotency key, which is the same string for equal selections."""
        return sha256(json.dumps(self.as_json, sort_keys=True).encode()).hexdigest()

    @property
    def as_json(self) -> dict[str, str]:
        """The selection as it is passed in the task's arguments."""
        return {name: _plain(value) for name in _NAMES if (value := getattr(self, name)) is not None}

    @classmethod
    def of_json(cls, given: Mapping[str, str]) -> Selection:
        """Return the selection that the arguments describe. Raises InvalidArgument."""
        try:
            return cls(**{name: _READ.get(name, str)(value) for name, value in given.items()})
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"the arguments do not fit {BULK}: {error}") from error

    def count(self, store: Store, *, most: int = 100_000) -> Count:
        """Count the matching tasks, up to `most`. With a `snapshot`, count the tasks in it that still match."""
        if self.action is BulkAction.RUN_NOW:
            return store.count_later(most=most, snapshot=self.snapshot, **self._of_later())
        if self.action is BulkAction.CANCEL:
            return store.count_tasks(most=most, snapshot=self.snapshot, **self._of_tasks())
        return store.dead_letters.count(most=most, snapshot=self.snapshot, **self._of_dead_letters())

    def parts(self, store: Store) -> list[Part]:
        """Return the numbers of tasks in the `snapshot` that would change, by task, queue and status. For each
        status, up to 10,000 tasks are read.
        """
        assert self.snapshot is not None, "the tasks were counted"
        if self.action is BulkAction.RUN_NOW:
            return store.later_parts(snapshot=self.snapshot, limit=self.limit, **self._of_later())
        if self.action is BulkAction.CANCEL:
            return store.parts(snapshot=self.snapshot, limit=self.limit, **self._of_tasks())
        return store.dead_letters.parts(snapshot=self.snapshot, limit=self.limit, **self._of_dead_letters())

    def oldest(self, store: Store, *, limit: int) -> list[TaskExecution | DeadLetter]:
        """Return the oldest matching tasks. If the selection has a limit, waiting tasks come before running ones."""
        limit = limit if self.limit is None else min(limit, self.limit)
        if self.action is BulkAction.RUN_NOW:
            states = (Waiting.DELAYED, Waiting.RETRYING) if self.waiting is None else (self.waiting,)
            wanted = [{**self._of_later(), "status": TaskStatus.READY, "waiting": state} for state in states]
        elif self.action is BulkAction.CANCEL:
            statuses = (TaskStatus.READY, TaskStatus.RUNNING) if self.status is None else (self.status,)
            wanted = [{**self._of_tasks(), "status": status} for status in statuses]
        else:
            return [*store.dead_letters.oldest(limit=limit, **self._of_dead_letters())]
        found = [one for where in wanted for one in store.tasks(**where, after=UUID(int=0), limit=limit)]
        if self.action is BulkAction.RUN_NOW or self.limit is None:
            found.sort(key=lambda one: one.id)
        else:
            found = [one for one in found if one.status is TaskStatus.READY or one.cancel_requested_at is None]
        return [*found[:limit]]

    def run(
        self,
        store: Store,
        *,
        reason: str,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
        stop: Callable[[], bool] | None = None,
        on_change: OnChange | None = None,
    ) -> int:
        """Run the action in transactions of 500 tasks each, and return the number of changed tasks. `stop` is called
        between transactions, and ends the run by returning True. `on_change` is called in each transaction with the
        number of tasks that the transaction changes.
        """
        given: dict[str, Any] = {"reason": reason, "snapshot": self.snapshot, "limit": limit}
        given |= {"stop": stop, "on_change": on_change, "on_progress": on_progress}
        if self.action is BulkAction.RUN_NOW:
            return store.run_all_now(**given, **self._of_later())
        if self.action is BulkAction.CANCEL:
            return store.cancel_all(**given, **self._of_tasks())
        act = store.dead_letters.redrive_all if self.action is BulkAction.REDRIVE else store.dead_letters.discard_all
        return act(**given, **self._of_dead_letters())

    def _of_later(self) -> dict[str, Any]:
        return self._given("key", "waiting")

    def _of_tasks(self) -> dict[str, Any]:
        return self._given("key", "status")

    def _of_dead_letters(self) -> dict[str, Any]:
        return {**self._given("exception", "group"), "partition_key": self.key}

    def _given(self, *own: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("queue", "task", "topic", "since", "until", *own)}


_NAMES = frozenset(one.name for one in fields(Selection))
_FILTERS = _NAMES - {"action", "at", "snapshot", "limit"}
_READ: Mapping[str, Callable[[str], Any]] = {
    "action": BulkAction,
    "status": TaskStatus,
    "waiting": Waiting,
    "snapshot": Snapshot.parse,
    "limit": int,
    **dict.fromkeys(("at", "since", "until"), datetime.fromisoformat),
}


def bulk(ctx: TaskContext, selection: dict[str, str], reason: str, counted: int) -> int:
    """Redrive, discard, cancel or immediately run the matching tasks, and return how many tasks this run has changed.
    `counted` is the number of tasks that a person was asked to confirm.

    The changes are committed in batches of 500. Each commit also updates the number of changes in the action's record,
    which has this task's id. If the worker stops, the next run makes the remaining changes.
    """
    wanted = Selection.of_json(selection)
    if wanted.snapshot is None:
        raise InvalidArgument(f"the selection of {BULK} has no snapshot, so it is not known which tasks were counted")
    store: Store = ctx.outbox.store
    recorded = store.actions.get(ctx.task_id)
    before = 0 if recorded is None else recorded.changed  # by earlier runs of this task
    left = None if wanted.limit is None else wanted.limit - before

    def on_progress(number: int) -> None:
        done = before + number
        ctx.progress(min(1.0, done / max(counted, 1)), f"{grouped(done)} of {grouped(counted)}")

    changed = 0
    if left is None or left > 0:
        changed = wanted.run(
            store,
            reason=reason,
            limit=left,
            on_progress=on_progress,
            stop=lambda: ctx.should_stop,
            on_change=store.actions.adding_to(ctx.task_id),
        )
    ctx.checkpoint()
    return changed


def bulk_task(outbox: OutboxRef) -> Task[..., Any]:
    """Return the bulk task for an outbox. The task is not retried if a privilege is missing."""
    options = TaskOptions(queue=BULK_QUEUE)
    retry = RetryPolicy(retry=tenacity.retry_if_not_exception_type((ConfigurationError, InvalidArgument)))
    return ContextTask(bulk, name=BULK, options=options, retry=retry, outbox=outbox)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def prune(ctx: TaskContext, seconds: float) -> int:
    """Delete the tasks that ended more than `seconds` ago, as `outboxq prune` does, and return the number of tasks
    deleted.

    Each batch of tasks is committed separately. If the worker stops, the next run deletes the rest.
    """
    store: Store = ctx.outbox.store
    deleted = store.prune(timedelta(seconds=seconds), stop=lambda: ctx.should_stop)
    ctx.checkpoint()
    return deleted


def prune_task(outbox: OutboxRef) -> Task[..., Any]:
    """Return the prune task for an outbox."""
    options = TaskOptions(priority=-100)  # the lowest priority, so that all other tasks start first
    return ContextTask(prune, name=PRUNE, options=options, retry=RetryPolicy.of(None), outbox=outbox)


def retention_schedule(task: Task[..., Any], retention: timedelta | float) -> NewSchedule:
    """Return the schedule that deletes tasks that ended more than `retention` ago. Raises InvalidArgument."""
    age = duration(retention, "retention")
    if not is_span(age, timedelta(seconds=1)):
        raise InvalidArgument(
            f"retention must be a timedelta of at least a second, and at most a hundred years, not {retention!r}"
        )
    return schedule_for(
        task,
        name=RETENTION,
        rule="every 3600",
        args={"seconds": age.total_seconds()},
        overlap=Overlap.SKIP,
        catch_up_limit=1,
        jitter=timedelta(minutes=5),
    )
