"""The batch of a handler's task: its counts, its results and its failures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from ..context import TaskContext
from ..errors import TaskNotFound
from ..model import TaskStatus
from ..model.batches import Batch, BatchKind
from ..model.wording import plural
from ..payload.parameters import parsed_result
from ..store import Member
from .registry import TaskRegistry

_COMPLETED = frozenset({TaskStatus.COMPLETED})
_NOT_COMPLETED = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchResult:
    """The result of one task of a batch."""

    task_id: UUID
    task_name: str
    value: Any
    """The value that its function returned, read by the return annotation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFailure:
    """A task of a batch that Failed or was Cancelled."""

    task_id: UUID
    task_name: str
    status: TaskStatus
    error: str | None
    """The last error in one line; None: there was none."""


class RunningBatch:
    """The batch or chain of a handler's task: `ctx.batch`. Its counts are read when the first of them is asked for."""

    def __init__(self, outbox: Any, context: TaskContext) -> None:
        self.id: UUID = context.pipeline_execution_id
        """The id of the batch."""
        self.outbox = outbox
        self._context = context

    def __repr__(self) -> str:
        return f"<RunningBatch {self.id}>"

    @property
    def target(self) -> object:
        """The transaction in which ``using(ctx.batch)`` enqueues: the transactional task's, or one of its own."""
        return self.outbox if self._within is None else self._within

    def takes_tasks(self) -> bool:
        """Return whether the batch goes on, by what was read of it."""
        return self.record.completed_at is None

    @cached_property
    def record(self) -> Batch:
        """The row of the batch. Raises BatchNotFound if it was pruned."""
        found: Batch = self.outbox.store.batches.get(self.id, using=self._within)
        return found

    @property
    def name(self) -> str | None:
        """The name that the batch was given."""
        return self.record.name

    @property
    def size(self) -> int:
        """The number of its tasks, without those that follow."""
        return self.record.size

    @property
    def completed(self) -> int:
        """The number of its tasks that completed."""
        return self.record.completed

    @property
    def failed(self) -> int:
        """The number of its dead letters."""
        return self.record.failed

    @property
    def cancelled(self) -> int:
        """The number of its tasks that were cancelled, expired or discarded."""
        return self.record.cancelled

    @property
    def pending(self) -> int:
        """The number of its tasks that have not ended."""
        return self.record.pending

    def results(self) -> Iterator[BatchResult]:
        """Yield the result of each task that completed, in the order of their ids.

        They are read 200 at a time, as they are asked for. Of a batch, those that follow it are left out. Raises TaskNotFound if
        fewer of them are there than have `completed`, before it yields the first, or after the last if one is deleted meanwhile.
        Raises PayloadError for a result that does not fit its annotation.
        """
        completed, found = self.completed, 0
        there = self.outbox.store.batches.statuses(self.id, using=self._within).get(TaskStatus.COMPLETED, 0)
        if there < completed:
            raise _missing(self.record, there)
        for member in self._members(_COMPLETED):
            found += 1
            yield BatchResult(task_id=member.id, task_name=member.task_name, value=value_of(self.outbox.tasks, member))
        if found < completed:
            raise _missing(self.record, found)

    def failures(self) -> Iterator[BatchFailure]:
        """Yield each task that Failed or was Cancelled, in the order of their ids."""
        for member in self._members(_NOT_COMPLETED):
            yield BatchFailure(task_id=member.id, task_name=member.task_name, status=member.status, error=member.error)

    def _members(self, statuses: frozenset[TaskStatus]) -> Iterator[Member]:
        record = self.record
        hidden = set(record.then_ids) if record.kind is BatchKind.BATCH else set()
        for member in self.outbox.store.batches.members(self.id, statuses, using=self._within):
            if member.id not in hidden:
                yield member

    @property
    def _within(self) -> object:
        """The transaction of the handler; None: it has none."""
        return None if self._context.inside is None else self._context


def _missing(batch: Batch, found: int) -> TaskNotFound:
    gone = batch.completed - found
    return TaskNotFound(
        f"{gone} of the {batch.completed} tasks of {batch.kind} {batch.id} that completed {plural(gone, 'was', 'were')} deleted, so "
        f"{plural(gone, 'its result is', 'their results are')} not known any more; outboxq prune deletes none of them before what "
        "follows the batch has completed or is cancelled"
    )


def value_of(tasks: TaskRegistry, member: Member) -> Any:
    """Return the result of a task of a batch, read by the return annotation."""
    if member.task_name in tasks:
        return tasks.get(member.task_name).returned.load(member.result)
    return parsed_result(member.result, name=member.task_name)
