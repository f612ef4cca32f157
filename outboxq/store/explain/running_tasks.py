"""Name the running task that a waiting task waits for, with its worker and the cure that helps."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ...database.target import Target
from ...model import TaskExecution
from ..claims.lost_workers import RunningTask, find_running, first_running
from .reasons import Explanation, Reason, cure_of, of_other, span_of, written

BEHIND_A_RUNNING_TASK: Final = frozenset({Reason.KEY_RUNNING, Reason.KEY_LIMIT, Reason.CONCURRENCY_LIMIT})
"""The reasons for which a task waits until a running task ends."""


def with_running_task(target: Target, task: TaskExecution, found: Explanation, now: datetime) -> Explanation:
    """Return the explanation with the running task to deal with first, which may belong to a lost worker."""
    if found.waits_for is not None:
        held = find_running(target, found.waits_for, now)
    else:
        key = task.partition_key if found.reason is Reason.KEY_LIMIT else None
        held = first_running(target, task.queue, key, now)
    if held is None:  # it has ended since
        return found
    first_id = held.lease.id
    if not held.is_lost:
        if found.waits_for is not None:
            return replace(found, sentence=f"{found.sentence}; {_runs(held)}")
        sentence = f"{found.sentence}; the longest running is task {first_id}, which {_runs(held)}"
        return replace(found, sentence=sentence, cures=(*found.cures, *of_other(first_id)))
    unseen = f"{held.worker}, which has not been seen for {span_of(held.silence)}"
    left = span_of(max(held.lease.lease_expires_at - held.now, timedelta(0)))
    held_by = (
        f"it is held by {unseen}"
        if found.waits_for is not None
        else f"one of them is task {first_id}, held by {unseen}"
    )
    sentence = f"{found.sentence}; {held_by}, and its lease expires in {left}"
    cures = cure_of("recover that task from the lost worker", "task", "recover", first_id)
    return replace(found, sentence=sentence, cures=(*cures, *found.cures))


def _runs(held: RunningTask) -> str:
    return f"{held.worker} has run since {written(held.started_at)}"
