"""Many processes and 20 000 tasks; a session of its own (`nox -s faults`), with a short version in every run."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import pytest

from outboxq.model import MAX_RECOVERIES, EventType, NewTask
from outboxq.uuid7 import uuid7
from tests.faults.helpers import left
from tests.waiting import until

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


@pytest.fixture
def orders(database):
    """The application's table that producers write, each row beside a task."""
    database.run("CREATE TABLE orders (id CHAR(32) NOT NULL, task CHAR(32) NOT NULL, vain BOOLEAN NOT NULL)")
    yield lambda: [UUID(row[0]) for row in database.rows("SELECT task FROM orders")]
    database.run("DROP TABLE orders")


class Campaign:
    """Workers and producers that die all the time, and what they have done."""

    def __init__(self, database, fork, directory, *, tasks, kills, stops, processes, seed):
        self.database, self.fork, self.directory = database, fork, directory
        self.tasks, self.kills, self.stops = tasks, kills, stops
        self.chance = random.Random(seed)
        self.workers = [self.worker() for _ in range(processes)]
        self.producers = []
        self.frozen = []
        self.done = Counter()

    def worker(self):
        return self.fork(concurrency=2, heartbeat=None)

    def acknowledged(self):
        """Ids of tasks whose transaction was committed, and of those that were to be rolled back."""
        told = {"committed": set(), "vain": set()}
        for path in self.directory.glob("acknowledged-*"):
            for line in path.read_text().splitlines():
                what, _, task_id = line.partition(" ")
                with suppress(ValueError):  # the last line of one that was killed
                    told[what].add(UUID(task_id))
        return told["committed"], told["vain"]

    def missing(self):
        """Tasks come as fast as blows do, so that there is always something to lose."""
        blows, planned = self.done["kills"] + self.done["stops"], self.kills + self.stops
        wanted = self.tasks * min(blows + 2, planned) / planned
        return int(wanted - self.database.rows("SELECT count(*) FROM task_executions")[0][0])

    def busy(self):
        return self.database.rows("SELECT count(*) FROM task_leases")[0][0] > 0

    def is_over(self):
        self.produce()
        return self.missing() <= 0 and left(self.database) == 0

    def produce(self):
        """As long as tasks are missing, two producers are at work."""
        self.producers = [one for one in self.producers if one.poll() is None]
        while len(self.producers) < 2 and (missing := self.missing()) > 0:
            number = self.done["producers"]
            self.done["producers"] += 1
            self.producers.append(
                self.fork(
                    "producer",
                    seed=self.chance.randrange(10**9),
                    tasks=max(1, missing // 2),
                    acknowledged=str(self.directory / f"acknowledged-{number}"),
                )
            )

    def strike(self):
        """Something bad happens to somebody."""
        number = self.chance.randrange(len(self.workers))
        victim = self.workers[number]
        until(lambda: self.thaw() or victim.is_up())  # a frozen one may have SQLite's lock, and nobody starts
        until(lambda: self.thaw() or self.busy() or self.is_over())
        time.sleep(self.chance.uniform(0, 0.1))  # a random moment of its life
        stops, kills = self.stops - self.done["stops"], self.kills - self.done["kills"]
        if self.chance.random() * (stops + kills) < stops:
            victim.send(signal.SIGSTOP)
            self.done["stops"] += 1
            self.frozen.append((time.monotonic() + 3.0, victim))  # longer than any lease
        else:
            victim.send(signal.SIGKILL)
            assert victim.wait() == -9
            self.done["kills"] += 1
        self.workers[number] = self.worker()
        if self.producers and (self.done["producers killed"] == 0 or self.chance.random() < 0.3):
            producer = self.chance.choice(self.producers)
            producer.send(signal.SIGKILL)
            self.done["producers killed"] += producer.wait() == -9

    def thaw(self, *, all_of_them=False):
        """Those whose leases are over go on, as if nothing had happened; and are told to end."""
        for moment, zombie in list(self.frozen):
            if all_of_them or time.monotonic() > moment:
                self.frozen.remove((moment, zombie))
                zombie.send(signal.SIGCONT)
                until(lambda: not zombie.is_frozen())  # noqa: B023
                zombie.send(signal.SIGTERM)
                assert zombie.wait(60) in {0, 1}, zombie.text()
                self.done["woken"] += 1
                self.done["fenced"] += zombie.text().count("is discarded") + zombie.text().count("lost the lease")

    def run(self):
        while self.done["kills"] < self.kills or self.done["stops"] < self.stops:
            self.produce()
            self.strike()
            self.thaw()
        while self.missing() > 0 or any(producer.poll() is None for producer in self.producers):
            self.produce()
            self.thaw()  # who was frozen with SQLite's lock in its hands stops everybody
            time.sleep(0.05)
        until(lambda: not self.frozen or self.thaw(), seconds=60, every=0.1)
        until(lambda: left(self.database) == 0, seconds=600, every=0.1)
        for worker in self.workers:
            until(worker.is_up)
            worker.send(signal.SIGTERM)
        assert [worker.wait(60) for worker in self.workers] == [0] * len(self.workers)


def survive(database, fork, effects, orders, directory, *, tasks, kills, stops, processes):
    seed = os.environ.get("OUTBOXQ_SEED") or str(random.randrange(10**6))
    print(f"\n{database.name}: OUTBOXQ_SEED={seed}")
    before, began = deadlocks(database), time.monotonic()
    campaign = Campaign(
        database, fork, directory, tasks=tasks, kills=kills, stops=stops, processes=processes, seed=seed
    )
    campaign.run()
    seconds = time.monotonic() - began
    committed, vain = campaign.acknowledged()
    rows = database.rows("SELECT id, task_name, status, recovery_attempts FROM task_executions")
    ended = {UUID(str(row[0])): row[1:] for row in rows}
    events = Counter(dict(database.rows("SELECT event_type, count(*) FROM execution_events GROUP BY event_type")))
    done = campaign.done
    assert committed - ended.keys() == set(), "acknowledged and lost"
    assert vain & ended.keys() == set(), "rolled back and there"
    assert sorted(orders()) == sorted(ended), "a task without its order, or an order without its task"
    assert len(ended) >= tasks
    unfinished = {one: database.store.history(one) for one, (_, status, _) in ended.items() if status != "Completed"}
    killed = [one for one, history in unfinished.items() if history[-1].event_type is EventType.ABANDONED]
    assert list(unfinished) == killed, [
        [(event.event_type, event.event_data) for event in history] for history in list(unfinished.values())[:3]
    ]
    # A recovered task runs alone in its process, which may be the next one struck; four times is bad luck.
    assert len(killed) <= kills / 50
    assert {ended.pop(one)[2] for one in killed} <= {MAX_RECOVERIES}
    completed = database.rows(
        "SELECT task_execution_id FROM execution_events WHERE event_type = 'task_completed' "
        "GROUP BY task_execution_id HAVING count(*) > 1"
    )
    assert completed == []
    assert events[EventType.COMPLETED] == len(ended)
    transactional = sorted(one.hex for one, (name, _, _) in ended.items() if name == "faults.entry")
    assert effects() == transactional
    assert database.store.verify() == []
    assert deadlocks(database) == before
    logs = "".join(path.read_text(errors="replace") for path in directory.glob("forked-*.log"))
    assert [word for word in ("IntegrityError", "Violation", "could not be handled", "CRITICAL") if word in logs] == []
    print(
        f"{len(ended)} tasks ({len(transactional)} transactional) in {seconds:.1f} s; {done['kills']} workers and "
        f"{done['producers killed']} producers killed, {done['stops']} frozen past their lease; "
        f"{events[EventType.RESET]} recoveries, {len(killed)} tasks killed four times, {done['fenced']} fenced, "
        f"{events[EventType.RETRY_SCHEDULED]} retries, "
        f"{events[EventType.RELEASED]} released; {len(committed)} acknowledged, 0 lost; {len(vain)} rolled back, "
        f"0 visible; 0 completed twice"
    )
    assert (done["kills"], done["stops"], done["woken"]) == (kills, stops, stops)
    assert done["producers killed"] > 0
    assert vain
    assert transactional
    assert events[EventType.RESET] > 0
    return done, events


def test_every_task_is_claimed_once_by_four_processes(database, fork):
    drain_with_processes(database, fork, processes=4, tasks=600)


def test_nothing_is_lost_and_nothing_done_twice_when_processes_are_killed(database, fork, effects, orders, tmp_path):
    survive(database, fork, effects, orders, tmp_path, tasks=400, kills=6, stops=2, processes=3)


@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_every_one_of_20_000_tasks_is_claimed_once_by_eight_processes(database, fork):
    drain_with_processes(database, fork, processes=8, tasks=20_000)


@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_nothing_of_20_000_tasks_is_lost_or_done_twice_when_processes_are_killed_200_times(
    database, fork, effects, orders, tmp_path
):
    done, _ = survive(database, fork, effects, orders, tmp_path, tasks=20_000, kills=200, stops=20, processes=4)
    assert done["fenced"] > 0
