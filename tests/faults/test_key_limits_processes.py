"""Limits per key in several processes, one of which is killed: no key has more concurrent tasks, or more starts per period, than allowed.

The test reads the events. A claim sees an end only after that end is committed, so an end always has a lower event number than the
claim that it makes possible.
"""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from datetime import datetime, timedelta

import pytest

from outboxq.model import ENDS_CLAIM, EventType, NewTask
from outboxq.model.uuid7 import uuid7
from tests.faults.helpers import left
from tests.faults.test_keys_processes import events
from tests.waiting import until

pytestmark = pytest.mark.in_turn

KEYS, TASKS, AT_ONCE, STARTS, SECONDS = 4, 56, 2, 8, 2.0


def most_at_once(seen):
    running, most = set(), 0
    for event in seen:
        if event.event_type is EventType.CLAIMED:
            running.add(event.task)
        elif event.event_type in ENDS_CLAIM:
            running.discard(event.task)
        most = max(most, len(running))
    return most


def excess(starts: list[datetime]) -> float:
    """Return the largest excess of starts over a token bucket's limit in any span. The bucket is full at first, and refills constantly."""
    return max(
        (last - first + 1) - STARTS - (starts[last] - starts[first]).total_seconds() * STARTS / SECONDS
        for first in range(len(starts))
        for last in range(first, len(starts))
    )


def new(name: str, key: int, **args: object) -> NewTask:
    lease, key_of = timedelta(seconds=1), f"key-{key}"
    return NewTask(
        id=uuid7(), task_name=name, queue="faults", args=json.dumps(args), concurrency_key=key_of, lease=lease
    )


def holder(database, crowd, task_id):
    """Return the process that runs the task now, or None."""
    worker_id = database.store.get(task_id).worker_id
    return next((one for one in crowd if worker_id is not None and f"({worker_id}) started" in one.text()), None)


def test_limits_per_key_are_not_exceeded_although_processes_are_killed(database, fork):
    database.store.queues.limit("faults", concurrency_per_key=AT_ONCE, rate_per_key=(STARTS, SECONDS), create=True)
    chance = random.Random(7)
    crowd = [fork(concurrency=3, heartbeat=None) for _ in range(3)]
    until(lambda: all(worker.is_up() for worker in crowd))
    slow = new("faults.slow", 0, seconds=2)  # so that its worker's death leaves a task to recover
    database.store.enqueue(slow)
    for _ in range(4):
        tasks = [new("faults.turn", chance.randrange(KEYS), number=chance.randrange(10**6)) for _ in range(TASKS // 4)]
        database.store.enqueue_many(tasks)
    victim = until(lambda: holder(database, crowd, slow.id))
    victim.send(signal.SIGKILL)
    assert victim.wait() == -9
    until(lambda: left(database) == 0, seconds=120, every=0.05)
    survivors = [worker for worker in crowd if worker is not victim]
    for worker in survivors:
        worker.send(signal.SIGTERM)
    assert [worker.wait(60) for worker in survivors] == [0, 0]
    assert database.rows("SELECT status, count(*) FROM task_executions GROUP BY status") == [("Completed", TASKS + 1)]
    found = events(database)
    assert len(found) == KEYS
    assert {most_at_once(seen) for seen in found.values()} == {AT_ONCE}
    for seen in found.values():
        starts = sorted(event.at for event in seen if event.event_type is EventType.CLAIMED)
        assert len(starts) > STARTS
        assert excess(starts) < 0.001, starts
    kinds = Counter(event.event_type for seen in found.values() for event in seen)
    assert kinds[EventType.RESET] > 0
