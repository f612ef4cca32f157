"""The errors that stand for ends other than a result, and the reasons why there is none yet."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import TaskCancelled, TaskFailed
from ..model import EventType, TaskStatus
from ..model.batches import BatchKind
from ..model.wording import plural
from ..store import BatchStanding, Standing, Store
from .wait import Wait

NAMED_UP_TO = 1000
"""The largest size of a batch of which an error names the first task that has not ended: to find it, all of them are read."""
_ENDS: Mapping[str | None, tuple[str, str]] = {
    EventType.EXPIRED: ("expired", "expired before it was started"),
    EventType.DISCARDED: ("discarded", "failed and was discarded"),
}
"""The reason and the words for ends that are no cancellation."""


def ended_otherwise(standing: Standing, *, before: str = "", after: str = "") -> TaskFailed | TaskCancelled:
    """Return the error that stands for the end of a task that did not complete, with words before and after it."""
    what, end = f"{before}task {standing.id} ({standing.task_name})", standing.end
    data = {} if end is None else end.event_data
    if standing.status is TaskStatus.FAILED:
        error = standing.error or ""
        return TaskFailed(
            f"{what} failed in attempt {standing.attempt}{f': {error}' if error else ''}{after}",
            task_id=standing.id,
            error=error,
            exception=data.get("exception"),
            attempt=standing.attempt,
        )
    given, kind = str(data.get("reason") or ""), None if end is None else end.event_type
    short, text = _ENDS.get(kind, ("", "was cancelled"))
    return TaskCancelled(
        f"{what} {text}{f': {given}' if given else ''}{after}", task_id=standing.id, reason=given or short
    )


def gone_no_further(batch: BatchStanding) -> TaskFailed | TaskCancelled:
    """Return the error of a wait for what follows a batch that goes on no more, or waits for a dead letter."""
    what, blocker = f"{batch.kind} {batch.place.batch_id}", batch.blocker
    waits = batch.completed_at is None and (batch.runs_then or batch.place.number == 0)
    if blocker is not None and blocker.status is TaskStatus.FAILED and waits:
        after = f"; after outboxq failed redrive {blocker.id} it can be waited for again"
        return ended_otherwise(blocker, before=f"{what} waits for a dead letter: ", after=after)
    if blocker is not None and batch.kind is BatchKind.CHAIN:
        return ended_otherwise(blocker, before=f"{what} has stopped: ")
    how, reason = "has stopped" if batch.runs_then else "was cancelled", batch.reason
    text = f"{what} {how}, so its task {batch.place.task_id} is not enqueued{f': {reason}' if reason else ''}"
    return TaskCancelled(text, task_id=batch.place.task_id, reason=reason)


def not_come(store: Store, wait: Wait, *, explains: bool = False) -> str:
    """Return why the batch has not gone on to the task that is waited for, as a clause; with why its first task does not run.

    Callers may ask again and again, so of a large batch it is the number of tasks alone.
    """
    assert wait.place is not None
    batch_id = wait.place.batch_id
    batch = store.batch_standings([wait.place]).get(wait.place) or wait.batch
    assert batch is not None
    what = f"{batch.kind} {batch_id}"
    left, size = batch.pending, batch.counts.size
    counted = f"{left} of {size} {plural(size, 'task')} of {what} {plural(left, 'has', 'have')} not ended"
    if left and size > NAMED_UP_TO:
        return counted
    task = store.first_of_batch(batch_id, TaskStatus.READY, TaskStatus.RUNNING)
    if task is None:
        return f"{what} goes on"
    named = f"task {task.id} ({task.task_name})"
    if batch.kind is BatchKind.CHAIN:
        text = f"{what} waits for {named}, which is {task.status}"
    else:
        text = f"{counted}; the first is {named}, which is {task.status}"
    return f"{text}: {store.explain(task.id).sentence}" if explains else text
