"""Tasks with a partition key, run by several processes that are killed: for each key, one at a time and in order.

The test reads the events. A key's claim follows the commit that freed the key, so a key's events alternate between a claim and an end
when sorted by number, regardless of the clocks.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from outboxq.model import ENDS_CLAIM, TERMINAL, EventType, NewTask
from outboxq.model import STATUS_AFTER as AFTER
from outboxq.model.uuid7 import uuid7
from tests.faults.helpers import left
from tests.waiting import until

pytestmark = pytest.mark.in_turn

KEYS = 8


class Producer(threading.Thread):
    """A producer that commits late, so that producers commit in a different order than they draw positions."""

    def __init__(self, database, *, seed, tasks, committed):
        super().__init__(daemon=True)
        self.engine, self.store = database.host_engine(), database.store
        self.chance, self.tasks, self.committed = random.Random(seed), tasks, committed
        self.is_alone = database.name == "sqlite"
        """True if no other connection can write at the same time. The producer then never pauses in its transaction."""
        self.error = None

    def run(self):
        try:
            for _ in range(self.tasks):
                self.produce()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def produce(self):
        chance = self.chance
        new = NewTask(
            id=uuid7(),
            task_name="faults.turn",
            queue="faults",
            args=json.dumps({"number": chance.randrange(10**6)}),
            partition_key=f"key-{chance.randrange(KEYS)}",
            lease=timedelta(seconds=1),
        )
        with self.engine.connect() as connection, connection.begin():
            self.store.enqueue(new, using=connection)
            if not self.is_alone:
                time.sleep(chance.choice([0, 0, 0, 0.15]))  # its position is drawn, but not visible yet
        self.committed[new.id] = datetime.now(UTC)
        time.sleep(chance.uniform(0, 0.05))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An event of a task with a key."""

    task: UUID
    position: int
    event_type: EventType
    at: datetime


def events(database):
    """Return the events by key, in the order of their numbers."""
    rows = database.rows(
        "SELECT partition_key, execution.id, position, event.event_type, event.created_at FROM execution_events event "
        "JOIN task_executions execution ON execution.id = event.task_execution_id ORDER BY sequence_num"
    )
    found = defaultdict(list)
    for key, task, position, event_type, at in rows:
        moment = at if isinstance(at, datetime) else datetime.fromisoformat(str(at))
        found[key].append(Seen(task=UUID(str(task)), position=position, event_type=EventType(event_type), at=moment))
    return found


def prove_one_at_a_time(seen):
    """Check that no other task with the same key is claimed between a task's claim and its end. A recovery is also an end."""
    running = None
    for event in seen:
        if event.event_type is EventType.CLAIMED:
            assert running is None, (running, event)
            running = event.task
        elif event.event_type in ENDS_CLAIM:
            assert running == event.task, (running, event)
            running = None
    assert running is None


def prove_order(seen, committed):
    """Check that no task is claimed before an earlier task with the same key that was committed when the key was freed.

    The claim's snapshot is younger than the end that freed the key. So the claim must see all tasks that were committed before that
    end was written. Return the number of claims checked, and the number that passed an earlier task that was not committed yet.
    """
    places = {event.task: event.position for event in seen}
    ended, freed, judged, passed = set(), None, 0, 0
    for event in seen:
        if event.event_type is EventType.CLAIMED:
            if freed is not None:
                before = [task for task, place in places.items() if place < event.position and task not in ended]
                assert [task for task in before if committed[task] < freed] == [], event
                judged, passed = judged + 1, passed + bool(before)
        elif event.event_type in ENDS_CLAIM:
            freed = event.at
            if AFTER[event.event_type] in TERMINAL:
                ended.add(event.task)
    return judged, passed


def busy(database, crowd):
    """Return the pids of the processes that have a lease now."""
    holders = {UUID(str(row[0])) for row in database.rows("SELECT worker_id FROM task_leases")}
    ids = {one.pid: re.search(r"worker \S+ \(([0-9a-f-]{36})\) started", one.text()) for one in crowd}
    return {pid for pid, found in ids.items() if found and UUID(found[1]) in holders}


def survive(database, fork, *, workers, producers, tasks, kills):
    seed = os.environ.get("OUTBOXQ_SEED") or str(random.randrange(10**6))
    print(f"\n{database.name}: OUTBOXQ_SEED={seed}")
    chance, committed, began = random.Random(seed), {}, time.monotonic()
    crowd = [fork(concurrency=2, heartbeat=None) for _ in range(workers)]
    sources = [
        Producer(database, seed=f"{seed}-{n}", tasks=tasks // producers, committed=committed) for n in range(producers)
    ]
    until(lambda: all(worker.is_up() for worker in crowd))
    for source in sources:
        source.start()
    for number in range(kills):
        victim = chance.randrange(workers)
        until(crowd[victim].is_up)
        share = producers * (tasks // producers) * (number + 1) // (kills + 2)
        until(lambda: len(committed) >= share and crowd[victim].pid in busy(database, crowd), seconds=60)  # noqa: B023
        crowd[victim].send(signal.SIGKILL)
        assert crowd[victim].wait() == -9
        crowd[victim] = fork(concurrency=2, heartbeat=None)
    for source in sources:
        source.join(300)
        assert (source.error, source.is_alive()) == (None, False)
    until(lambda: left(database) == 0, seconds=300, every=0.05)
    for worker in crowd:
        until(worker.is_up)
        worker.send(signal.SIGTERM)
    assert [worker.wait(60) for worker in crowd] == [0] * workers
    assert database.rows("SELECT * FROM partition_claims") == []
    assert database.rows("SELECT status, count(*) FROM task_executions GROUP BY status") == [
        ("Completed", len(committed))
    ]
    judged = passed = 0
    found = events(database)
    for seen in found.values():
        prove_one_at_a_time(seen)
        more, overtaken = prove_order(seen, committed)
        judged, passed = judged + more, passed + overtaken
    kinds = Counter(event.event_type for seen in found.values() for event in seen)
    print(
        f"{len(committed)} tasks of {len(found)} keys in {time.monotonic() - began:.1f} s by {workers} processes, {kills} "
        f"killed; {kinds[EventType.RETRY_SCHEDULED]} retries, {kinds[EventType.RESET]} recoveries; {judged} claims judged, "
        f"{passed} passed one that was not committed yet; 0 beside another of their key, 0 out of turn"
    )
    assert len(found) == KEYS
    assert kinds[EventType.RETRY_SCHEDULED] > 0
    assert judged > len(committed) // 2
    return kinds, passed


def test_keys_keep_their_order_although_processes_are_killed(database, fork):
    survive(database, fork, workers=3, producers=3, tasks=90, kills=1)


@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_keys_keep_their_order_in_six_processes_and_5000_tasks(database, fork):
    kinds, passed = survive(database, fork, workers=6, producers=6, tasks=5000, kills=40)
    assert kinds[EventType.RESET] > 0
    assert passed > 0 or database.name == "sqlite"  # SQLite's writers take turns
