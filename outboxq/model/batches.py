"""Batches and chains: groups of tasks, and the tasks that follow them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from .options import OPTION_COLUMNS, TaskOptions, in_column
from .records import NewTask, TaskStatus, stored_key
from .uuid7 import FAMILY, family

_FIRST_BIT, _VERSION, _VERSION_7, _VERSION_8 = 1 << 127, 0xF << 76, 7 << 76, 8 << 76


class OnFailed(StrEnum):
    """The effect of a dead letter on its batch."""

    CONTINUE = "continue"
    """A dead letter counts as ended, and the batch continues without it."""
    WAIT = "wait"
    """The batch waits until the dead letter is redriven and completes, or is discarded."""
    CANCEL = "cancel"
    """The other tasks in the batch are cancelled. A chain ends."""


class BatchKind(StrEnum):
    """The kind of a batch: whether its tasks run side by side or one after another."""

    BATCH = "batch"
    CHAIN = "chain"


class BatchStatus(StrEnum):
    """The status of a batch or a chain."""

    RUNNING = "Running"
    """Some tasks in the batch have not ended yet."""
    UNCLOSED = "Unclosed"
    """The `with` block raised an error, but its transaction was committed anyway. No task will follow the batch, and
    the batch does not end unless it is cancelled.
    """
    CANCELLING = "Cancelling"
    """The tasks in the batch are being cancelled."""
    COMPLETED = "Completed"
    """All tasks in the batch have ended, and the task that follows, if any, has been enqueued."""
    CANCELLED = "Cancelled"
    """All tasks in the batch have ended, but no task follows, because a person cancelled the batch or a task in the
    chain did not complete.
    """


UNCLOSED = "the batch's with block raised an error, but the transaction was committed anyway; no task will follow the batch, and the batch will not end unless you cancel it"
"""The explanation for an Unclosed batch, for display."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewBatch:
    """A batch for `Store.batches.create` to write."""

    id: UUID
    kind: BatchKind = BatchKind.BATCH
    name: str | None = None
    """A name for people to read; None if the batch does not have one."""
    on_failed: OnFailed = OnFailed.CONTINUE
    then: Sequence[NewTask] = ()
    """The tasks that follow, one after another. Their ids are derived from the batch's id (`BatchLink.task_id`)."""
    size: int = 0
    """The number of tasks that are written with the batch."""
    closed: bool = False
    """If True, the batch is written as closed, so no `with` block adds tasks to it."""

    @property
    def then_as_json(self) -> str | None:
        """The tasks that follow, as stored in the table; None if there are none."""
        return json.dumps([_link(task) for task in self.then]) if self.then else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A row of `task_batches`."""

    id: UUID
    kind: BatchKind
    name: str | None
    on_failed: OnFailed
    size: int
    """The number of tasks in the batch. For a chain, the number of enqueued tasks that are followed by another task."""
    completed: int
    failed: int
    """The number of dead letters."""
    cancelled: int
    closed: bool
    then_ids: tuple[UUID, ...]
    """The ids of the tasks that follow, whether or not they have been enqueued yet."""
    then_names: tuple[str, ...]
    """The names of the tasks that follow."""
    then_is_readable: bool = True
    """If False, another program's SQL has written the tasks that follow in a form that cannot be enqueued, so they are
    not listed.
    """
    stage: int
    """The number of `then` tasks that have been enqueued."""
    runs_then: bool
    """If False, a person has cancelled the batch, so the tasks that follow will not be enqueued."""
    cancel_requested_at: datetime | None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    """The time at which the last task ended; None if some tasks have not ended yet."""

    @property
    def pending(self) -> int:
        """The number of tasks that have not ended yet. A dead letter counts as ended, unless the batch is waiting for
        it.
        """
        ended = self.completed + self.cancelled + (0 if self.on_failed is OnFailed.WAIT else self.failed)
        return 0 if self.completed_at is not None else max(0, self.size - ended)

    @property
    def awaited(self) -> int:
        """The number of dead letters for which the batch is waiting."""
        return self.failed if self.on_failed is OnFailed.WAIT and self.completed_at is None else 0

    @property
    def status(self) -> BatchStatus:
        """The status of the batch."""
        if self.completed_at is None:
            if self.cancel_requested_at is not None:
                return BatchStatus.CANCELLING
            return BatchStatus.RUNNING if self.closed else BatchStatus.UNCLOSED
        return BatchStatus.COMPLETED if self.stage == len(self.then_ids) and self.runs_then else BatchStatus.CANCELLED


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCounts:
    """The task counts of a batch that has ended."""

    size: int
    completed: int
    failed: int
    """The number of dead letters."""
    cancelled: int
    """The number of tasks that were cancelled or discarded, or that expired."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchResult:
    """The result of one task in a batch."""

    task_id: UUID
    task_name: str
    value: Any
    """The value that the task's function returned, read according to the return annotation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFailure:
    """A Failed or Cancelled task in a batch."""

    task_id: UUID
    task_name: str
    status: TaskStatus
    error: str | None
    """The last error, on one line; None if there was no error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLink:
    """The position of a task that follows a batch or an earlier task in a chain: the batch and a number."""

    batch_id: UUID
    number: int
    """1 for the first task that follows; 0 for the batch itself."""

    @property
    def task_id(self) -> UUID:
        """The id of this task."""
        return UUID(int=self.batch_id.int - _FIRST_BIT | self.number)

    @property
    def before(self) -> UUID:
        """The id of the task before this one, if the batch is a chain."""
        return first_id(self.batch_id) if self.number == 1 else UUID(int=self.task_id.int - 1)


LONGEST_CHAIN = FAMILY + 1
"""The maximum number of calls in a chain."""


def new_batch_id() -> UUID:
    """Return a new batch id: a version 8 UUID (RFC 9562) whose first bit is one. Otherwise, it is like a uuid7.

    The first bit of ids that are derived from the time remains zero until the year 6429, so a single comparison
    distinguishes tasks in batches from other tasks. The last 16 bits are zero. In the ids of the tasks that follow,
    these bits contain the task's number (`BatchLink.task_id`), and the first bit is zero. So the id of a task that does
    not exist yet shows which batch it follows.
    """
    return UUID(int=family().int & ~_VERSION | _VERSION_8 | _FIRST_BIT)


def first_id(chain_id: UUID) -> UUID:
    """Return the id of the first task in a chain: the uuid7 from which the chain's id was made."""
    return UUID(int=chain_id.int & ~_FIRST_BIT & ~_VERSION | _VERSION_7)


def link_of(id: UUID) -> BatchLink | None:
    """Return the link that an id represents; None if a task with this id does not follow other tasks."""
    if id.int & _VERSION != _VERSION_8:
        return None
    if id.int & _FIRST_BIT:
        return BatchLink(batch_id=id, number=0)
    number = id.int & FAMILY
    return BatchLink(batch_id=UUID(int=id.int - number | _FIRST_BIT), number=number) if number else None


def is_batch(pipeline_execution_id: UUID | None) -> bool:
    """Return whether this is the id of a batch or a chain."""
    if not isinstance(pipeline_execution_id, UUID):  # SQLite may have stored an invalid id
        return False
    number = pipeline_execution_id.int
    return number >= _FIRST_BIT and number & _VERSION == _VERSION_8


def links_of(stored: str | None) -> list[dict[str, Any]]:
    """Return the tasks that follow a batch, as stored in the table. Raises ValueError if they cannot be enqueued."""
    try:
        links = json.loads(stored or "[]")
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(links, list) or not all(isinstance(link, dict) and link.keys() >= _NEEDED for link in links):
        raise ValueError("it is not a JSON array of tasks")
    if any(link[name] is None for link in links for name in _NEEDED):
        raise ValueError("a task lacks a value")
    if not all(isinstance(link["id"], str) and UUID(link["id"]) for link in links):
        raise ValueError("a task's id is not a string")
    return links


_NEEDED = frozenset(
    {
        "id",
        "task_name",
        "args",
        "delay_seconds",
        *(OPTION_COLUMNS[one.name] for one in fields(TaskOptions) if one.default is not None),
    }
)


def _link(task: NewTask) -> dict[str, Any]:
    return {
        "id": task.id.hex,
        "task_name": task.task_name,
        "args": task.args,
        "headers": task.headers,
        "delay_seconds": task.delay.total_seconds(),
        "expires_seconds": in_column(task.expires_in),
        "partition_key": stored_key(task.partition_key, task.concurrency_key),
        **task.stored,
    }
