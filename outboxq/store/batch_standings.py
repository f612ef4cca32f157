"""The standing of batches, for callers that wait for the tasks that follow them. One statement asks for any number of links."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from ..database.dialects import Begin
from ..database.privileges import Feature
from ..database.statements import batch_standings as statements
from ..database.statements import results
from ..database.statements.results import TASKS
from ..database.target import Target
from ..model import EventType, TaskStatus
from ..model.batches import BatchCounts, BatchKind, BatchLink, OnFailed
from .arguments import identifier
from .results import Standing, standing_of
from .transactions import Transactions

_READS = frozenset({Feature.RESULTS, Feature.BATCHES})


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchStanding:
    """The progress of a batch or a chain, as it is seen from one task that follows it."""

    link: BatchLink
    kind: BatchKind
    on_failed: OnFailed
    counts: BatchCounts
    closed: bool
    stage: int
    """The number of tasks that follow and are enqueued."""
    runs_then: bool
    cancel_requested_at: datetime | None
    completed_at: datetime | None
    blocker: Standing | None = field(default=None, repr=False)
    """The task whose end keeps the batch from going on to this task."""

    @property
    def has_come(self) -> bool:
        """Return whether this task is enqueued."""
        return 0 < self.link.number <= self.stage

    @property
    def reason(self) -> str:
        """The reason of the batch's cancel, as the task has it that keeps it from going on; "" if that was cancelled before, or not."""
        end, since = None if self.blocker is None else self.blocker.end, self.cancel_requested_at
        if end is None or since is None or end.event_type is not EventType.CANCELLED or end.created_at < since:
            return ""
        return str(end.event_data.get("reason") or "")

    @property
    def is_beyond(self) -> bool:
        """Return whether all that follows the batch is enqueued, and this task is not among it."""
        goes_on = self.kind is BatchKind.BATCH or self.counts.failed + self.counts.cancelled == 0
        return self.completed_at is not None and self.runs_then and goes_on and self.link.number > self.stage

    @property
    def is_decided(self) -> bool:
        """Return whether there is nothing to wait for here: the batch has ended, or a task keeps it from going on.

        One that is being cancelled is not over: the reason comes with the tasks that are cancelled.
        """
        return self.blocker is not None or self.completed_at is not None

    @property
    def pending(self) -> int:
        """The number of tasks that have not ended."""
        ended = self.counts.completed + self.counts.cancelled + self.counts.failed
        return max(0, self.counts.size - ended)

    @property
    def blocked_by(self) -> TaskStatus | None:
        """The status of the tasks that may keep it from going on to this task; None: none does."""
        waits = self.on_failed is OnFailed.WAIT and self.counts.failed > 0
        if self.link.number == 0:
            return TaskStatus.FAILED if waits and self.completed_at is None else None
        if self.has_come:
            return None
        has_cancelled = self.counts.cancelled > 0
        is_broken = self.kind is BatchKind.CHAIN and self.counts.failed > 0
        if is_broken or (waits and (self.runs_then or not has_cancelled)):
            return TaskStatus.FAILED
        goes_on = self.runs_then and self.kind is BatchKind.BATCH
        return TaskStatus.CANCELLED if has_cancelled and not goes_on else None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTask:
    """A task of a batch, and its status."""

    id: UUID
    task_name: str
    status: TaskStatus


def batch_standings(
    store: Transactions, links: Collection[BatchLink], *, everything: bool = True
) -> Mapping[BatchLink, BatchStanding]:
    """Return the standing of the batch of each link whose task is enqueued, or may never be. With `everything`, of all links.

    A link that is missing there is of no batch, or of one that is not committed. The transaction is not run again after an error.
    Raises NotPermitted if the database role may not read both results and batches.
    """
    try:
        with store.transaction(Begin.READ) as target:
            return _standings(target, links, everything=everything)
    except Exception as error:
        store.rights.explain(error, Begin.READ, _READS)
        raise


def first_of_batch(store: Transactions, batch_id: UUID, *statuses: TaskStatus) -> BatchTask | None:
    """Return the first task of a batch that has one of these statuses, one or two. None: there is none."""
    try:
        with store.transaction(Begin.READ) as target:
            return first_task(target, identifier(batch_id), *statuses)
    except Exception as error:
        store.rights.explain(error, Begin.READ, _READS)
        raise


def _standings(target: Target, links: Collection[BatchLink], *, everything: bool) -> dict[BatchLink, BatchStanding]:
    given = target.dialect.pack("places", statements.PLACES, [(link.batch_id, link.number) for link in links])
    found: dict[BatchLink, BatchStanding] = {}
    blockers: dict[tuple[UUID, TaskStatus], Standing | None] = {}
    for row in target.run(statements.standings, {**given, "everything": everything}):
        standing = BatchStanding(
            link=BatchLink(batch_id=row["id"], number=row["number"]),
            kind=BatchKind(row["kind"]),
            on_failed=OnFailed(row["on_failed"]),
            counts=BatchCounts(**{name: row[name] for name in ("size", "completed", "failed", "cancelled")}),
            **{name: row[name] for name in ("closed", "stage", "runs_then", "cancel_requested_at", "completed_at")},
        )
        if (status := standing.blocked_by) is not None:
            key = (standing.link.batch_id, status)
            if key not in blockers:
                blockers[key] = _blocker(target, *key)
            standing = replace(standing, blocker=blockers[key])
        found[standing.link] = standing
    return found


def _blocker(target: Target, batch_id: UUID, status: TaskStatus) -> Standing | None:
    """Return how the first task of this status ended. None: it was redriven or pruned meanwhile, and may have ended again."""
    task = first_task(target, batch_id, status)
    if task is None:
        return None
    values = target.dialect.pack("tasks", TASKS, [(task.id,)])
    rows = target.run(results.ended, {**values, "everything": False})
    return next((standing_of(target, row) for row in rows if row["status"] == status), None)


def first_task(target: Target, batch_id: UUID, status: TaskStatus, other: TaskStatus | None = None) -> BatchTask | None:
    """Return the first task of a batch that has one of these statuses, inside a transaction."""
    asked = {"batch_id": batch_id, "status": status.value, "other_status": (other or status).value}
    rows = target.run(statements.first, asked)
    return next(
        (BatchTask(id=row["id"], task_name=row["task_name"], status=TaskStatus(row["status"])) for row in rows), None
    )
