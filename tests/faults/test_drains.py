"""Many processes that run 20,000 tasks in a separate session (`nox -s faults`), and a short version in every run."""

from __future__ import annotations

import signal
import time
from collections import Counter
from datetime import timedelta

import pytest

from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from tests.faults.helpers import left
from tests.waiting import until

pytestmark = pytest.mark.in_turn

COMPLAINTS = ("database is locked", "deadlock", "Traceback", "running it again")


def fill(database, tasks, name, *, lease):
    rows = [
        NewTask(id=uuid7(), task_name=name, queue="faults", args=f'{{"number": {number}}}', lease=lease)
        for number in range(tasks)
    ]
    for start in range(0, tasks, 5000):
        database.store.enqueue_many(rows[start : start + 5000])


def counts(database):
    return next(queue for queue in database.store.stats() if queue.queue == "faults")


def deadlocks(database):
    if database.name == "sqlite":
        return 0
    return database.rows("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")[0][0]


def drain_with_processes(database, fork, *, processes, tasks):
    before = deadlocks(database)
    fill(database, tasks, "faults.nothing", lease=timedelta(seconds=30))
    workers = [fork("cli", options=["-q", "faults", "-c", "4"]) for _ in range(processes)]
    began = time.monotonic()
    until(lambda: left(database) == 0, seconds=600, every=0.1)
    seconds = time.monotonic() - began
    for worker in workers:
        until(worker.is_up)
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


def test_every_task_is_claimed_once_by_four_processes(database, fork):
    drain_with_processes(database, fork, processes=4, tasks=600)


@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_every_one_of_20_000_tasks_is_claimed_once_by_eight_processes(database, fork):
    drain_with_processes(database, fork, processes=8, tasks=20_000)
