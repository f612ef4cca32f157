"""Tasks that follow a batch or another task of a chain: why one is not enqueued yet, and what a dead letter keeps from following."""

from __future__ import annotations

from uuid import UUID

from ..database.statements import batches
from ..database.target import Target
from ..model import TaskExecution, TaskStatus
from ..model.batches import Batch, BatchKind, OnFailed, is_batch, place_of
from ..model.wording import plural
from .batch_standings import BatchTask, first_task
from .batches import batch_of
from .reasons import (
    Cure,
    Explanation,
    Reason,
    cancel_of_batch,
    cure_of,
    inconsistent,
    of_dead_letter,
    of_other,
    written,
)


def batch_that_waits(target: Target, task: TaskExecution) -> Batch | None:
    """Return the batch that goes on only once this dead letter has been redriven or discarded; None if none does."""
    batch_id = task.pipeline_execution_id
    found = _batch(target, batch_id) if is_batch(batch_id) else None
    return found if found is not None and found.awaited else None


def explanation_of_link(target: Target, task_id: UUID) -> Explanation | None:
    """Return why this task of which there is no row is not enqueued; None if it is to follow no batch."""
    place = place_of(task_id)
    found = None if place is None else _batch(target, place.batch_id)
    return None if found is None or task_id not in found.then_ids[found.stage :] else _explained(target, found, task_id)


def _batch(target: Target, batch_id: UUID) -> Batch | None:
    rows = target.run(batches.get, {"batch_id": batch_id})
    return batch_of(rows[0]) if rows else None


def _explained(target: Target, batch: Batch, task_id: UUID) -> Explanation:
    name = f"the {batch.kind} {batch.id}"
    shown = cure_of(f"see the {batch.kind}", "batch", "show", batch.id)
    if batch.completed_at is not None:
        sentence = (
            f"it is never enqueued: {name}, which it was to follow, ended as Cancelled at {written(batch.completed_at)}"
        )
        return Explanation(Reason.NOT_ENQUEUED, sentence, shown)
    if not batch.runs_then:
        sentence = f"it is never enqueued: {name}, which it was to follow, is being cancelled"
        return Explanation(Reason.NOT_ENQUEUED, sentence, shown)
    if not batch.closed:
        sentence = (
            f"it is never enqueued: {name}, which it was to follow, is not closed, since an error has left its `with` block; cancel "
            "the batch, and make it anew"
        )
        return Explanation(Reason.NOT_ENQUEUED, sentence, (*cancel_of_batch(batch.id), *shown))
    left, between = batch.pending, batch.then_ids.index(task_id) - batch.stage
    counted = f"{left} {plural(left, 'task has', 'tasks have')} not ended"
    sentence = f"it is not enqueued yet: it follows {name}, of which {counted}"
    if between:
        sentence += f" and {between} more {plural(between, 'comes', 'come')} before it"
    if (first := _first(target, batch)) is not None:
        why, cures = _why(batch, first)
        return Explanation(Reason.NOT_ENQUEUED, f"{sentence}; {why}", (*cures, *shown), first.id)
    return inconsistent(f"{sentence}, though none is found that has not")


def _first(target: Target, batch: Batch) -> BatchTask | None:
    """Return the first task that has not ended; of a batch that waits for dead letters, the first of these before others."""
    dead = first_task(target, batch.id, TaskStatus.FAILED) if batch.on_failed is OnFailed.WAIT else None
    return dead or first_task(target, batch.id, TaskStatus.READY, TaskStatus.RUNNING)


def _why(batch: Batch, first: BatchTask) -> tuple[str, tuple[Cure, ...]]:
    name = f"{first.id} ({first.task_name})"
    if first.status is TaskStatus.FAILED:
        return f"it waits for the dead letter {name}; {advice(batch, 'that')}", of_dead_letter(
            first.id, "the dead letter"
        )
    return f"the first of them is {name}, which is {first.status}", of_other(first.id)


def advice(batch: Batch, which: str) -> str:
    """Return what to do with the dead letter that a batch waits for, and what follows."""
    end = "ends the chain" if batch.kind is BatchKind.CHAIN else "lets the batch go on without it"
    return f"redrive or discard {which}; a discard {end}"
