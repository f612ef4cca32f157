"""8 processes and 20 000 tasks; a session of its own (`nox -s faults`), with a short version in every run."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from datetime import timedelta

import pytest

from outboxq.model import EventType, NewTask, TaskStatus
from outboxq.uuid7 import uuid7
from tests.waiting import until

COMPLAINTS = ("database is locked", "deadlock", "Traceback", "running it again")


def fill(database, tasks, name, *, lease):
    rows = [
        NewTask(id=uuid7(), task_name=name, queue="faults", args=f'{{"number": {number}}}', lease=lease)
        for number in range(tasks)
    ]
    for start in range(0, tasks, 5000):
        database.store.enqueue_many(rows[start : start + 5000])
    return [row.id for row in rows]


def counts(database):
    return next(queue for queue in database.store.stats() if queue.queue == "faults")


def left(database):
    return database.rows("SELECT (SELECT count(*) FROM task_outbox) + (SELECT count(*) FROM task_leases)")[0][0]


def deadlocks(database):
    if database.name == "sqlite":
        return 0
    return database.rows("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")[0][0]


def drain_with_processes(database, start, *, processes, tasks):
    before = deadlocks(database)
    fill(database, tasks, "faults.nothing", lease=timedelta(seconds=30))
    workers = [start("-c", "4") for _ in range(processes)]
    began = time.monotonic()
    until(lambda: left(database) == 0, seconds=600, every=0.1)
    seconds = time.monotonic() - began
    for worker in workers:
        worker.send(signal.SIGTERM)
    assert [worker.wait(60) for worker in workers] == [0] * processes
    claims = database.rows(
        "SELECT count(*), count(DISTINCT task_execution_id) FROM execution_events WHERE event_type = 'task_claimed'"
    )
    assert claims == [(tasks, tasks)]
    assert counts(database).completed == tasks
    complaints = Counter(word for worker in workers for word in COMPLAINTS if word in worker.text())
    assert complaints == Counter()
    assert deadlocks(database) == before
    print(f"\n{database.name}: {processes} processes drained {tasks} tasks in {seconds:.1f} s, including their start")


def kill_at_random(database, start, *, processes, tasks, kills):
    """Workers are killed again and again; at the end nothing is lost, nothing stuck, nothing ended twice."""
    before = deadlocks(database)
    ids = fill(database, tasks, "faults.flaky", lease=timedelta(seconds=2))
    chance = random.Random(os.environ.get("OUTBOXQ_SEED", "7"))
    workers = [start("-c", "2") for _ in range(processes)]
    killed = 0
    while killed < kills and left(database):
        number = chance.randrange(processes)
        victim = workers[number]
        until(lambda: victim.is_up() or not left(database))  # noqa: B023
        time.sleep(chance.uniform(0, 0.3))  # a random moment of its life
        victim.send(signal.SIGKILL)
        victim.wait()
        killed += 1
        workers[number] = start("-c", "2")
    until(lambda: left(database) == 0, seconds=600, every=0.1)
    for worker in workers:
        worker.send(signal.SIGTERM)
        worker.wait()
    assert database.store.verify() == []
    ended = Counter(database.store.get(one).status for one in ids)
    assert set(ended) <= {TaskStatus.COMPLETED, TaskStatus.FAILED}
    resets = database.rows(f"SELECT count(*) FROM execution_events WHERE event_type = '{EventType.RESET}'")[0][0]
    assert killed > 0, "no worker was killed: the test proved nothing"
    assert deadlocks(database) == before
    print(f"\n{database.name}: {tasks} tasks, {killed} kills, {resets} recoveries, {dict(ended)}")
    return resets


def test_every_task_is_claimed_once_by_four_processes(database, start):
    drain_with_processes(database, start, processes=4, tasks=600)


def test_nothing_is_lost_when_workers_are_killed(database, start):
    assert kill_at_random(database, start, processes=3, tasks=400, kills=4) > 0


@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_every_one_of_20_000_tasks_is_claimed_once_by_eight_processes(database, start):
    drain_with_processes(database, start, processes=8, tasks=20_000)


@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_nothing_of_20_000_tasks_is_lost_when_workers_are_killed_100_times(database, start):
    assert kill_at_random(database, start, processes=4, tasks=20_000, kills=100) > 0
