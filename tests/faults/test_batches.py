"""Batches under kills: members fail, are tried again, cancelled, redriven and discarded; what follows comes exactly once.

With `OUTBOXQ_TEST_BEFORE`, an earlier checkout, every second worker runs that code, which may know nothing of batches.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from outboxq.errors import InvalidTransition
from outboxq.model import NewTask, TaskStatus
from outboxq.model.batches import NewBatch, OnFailed, new_batch_id
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.conftest import Database
from tests.faults.workers import Forked, Nursery, Process
from tests.waiting import until

Fork = Callable[..., Process]
_LEASE = timedelta(seconds=2)


@pytest.fixture(scope="module")
def release_before() -> Iterator[Nursery | None]:
    """Processes of an earlier checkout; None: all run this one's code."""
    if not (root := os.environ.get("OUTBOXQ_TEST_BEFORE")):
        yield None
        return
    nursery = Nursery(Path(root))
    yield nursery
    nursery.close()


@pytest.fixture
def workers(database: Database, fork: Fork, release_before: Nursery | None, tmp_path: Path) -> Iterator[Fork]:
    """Start a worker, every second one of the release before if there is one."""
    numbers, started = itertools.count(), list[Process]()

    def start() -> Process:
        number = next(numbers)
        if release_before is None or number % 2:
            return fork(concurrency=4)
        log = tmp_path / f"before-{number}.log"
        started.append(Forked(release_before, log, {"kind": "worker", "url": database.url, "concurrency": 4}))
        return started[-1]

    yield start
    for one in started:
        one.end()


def member(number: int, batch_id: UUID) -> NewTask:
    """One in fifty fails in its first attempt: half of these for good, the others are tried again."""
    return NewTask(
        id=uuid7(),
        task_name="faults.flaky",
        queue="faults",
        args=f'{{"number": {number}}}',
        lease=_LEASE,
        max_attempts=1 if number % 100 == 0 else None,
        pipeline_execution_id=batch_id,
    )


def then() -> NewTask:
    return NewTask(id=uuid7(), task_name="faults.nothing", queue="faults", args='{"number": 1}', lease=_LEASE)


class Fleet:
    """Workers of which one is killed now and then."""

    def __init__(self, start: Fork, size: int, chance: random.Random) -> None:
        self._start, self._chance = start, chance
        self._running = [start() for _ in range(size)]
        self.killed = 0

    def kill(self) -> None:
        which = self._chance.randrange(len(self._running))
        time.sleep(self._chance.uniform(0, 0.05))  # anywhere in its work
        self._running[which].end()
        self._running[which] = self._start()
        self.killed += 1

    def end(self) -> None:
        for one in self._running:
            one.end()


def survive_a_round(store: Store, fleet: Fleet, chance: random.Random, *, members: int, kills: int) -> Counter[str]:
    """Run one batch to its end, while workers are killed and people interfere. Returns what was done."""
    done: Counter[str] = Counter()
    policy = chance.choice([OnFailed.CONTINUE, OnFailed.WAIT])
    batch = NewBatch(id=new_batch_id(), then=(then(),), on_failed=policy)
    tasks = [member(number, batch.id) for number in range(1, members + 1)]
    ids = [task.id for task in tasks]
    with store.unit() as unit:
        store.batches.create(batch, using=unit.connection)
        for start in range(0, members, 1000):
            store.enqueue_many(tasks[start : start + 1000], using=unit.connection)
        store.batches.close(batch.id, using=unit.connection)
    killed = 0
    while (now := store.batches.get(batch.id)).completed_at is None:
        ended = now.completed + now.failed + now.cancelled
        if killed < kills and ended >= members * killed / kills:
            fleet.kill()
            killed += 1
        elif chance.random() < 0.2:
            with suppress(InvalidTransition):
                store.cancel(chance.choice(ids), force=chance.random() < 0.5)
                done["cancel"] += 1
        for letter in store.dead_letters.list(limit=5):
            with suppress(InvalidTransition):
                if chance.random() < 0.3:
                    store.discard(letter.id)
                    done["discard"] += 1
                else:  # as the second attempt, which succeeds
                    store.schedule_retry(letter.id, store.now(), 2)
                    done["redrive"] += 1
        time.sleep(0.01)
    done["kill"] += killed
    (follower,) = batch.then
    until(lambda: store.get(follower.id).status is TaskStatus.COMPLETED, seconds=60)
    kinds = Counter(str(event.event_type) for event in store.history(follower.id))
    assert (kinds["task_created"], kinds["task_completed"]) == (1, 1), kinds
    now = store.batches.get(batch.id)
    assert now.size == members
    assert now.completed + now.cancelled + (now.failed if policy is OnFailed.CONTINUE else 0) == members
    born = store.history(follower.id)[0]
    if policy is OnFailed.WAIT:
        assert now.failed == 0
        late = [one for one in store.batches.members(batch.id) if one.status not in {"Completed", "Cancelled"}]
        assert late == []
    assert (
        born.created_at >= max(event.created_at for event in store.history(ids[-1])[-1:]) or policy is OnFailed.CONTINUE
    )
    return done


def survive(database: Database, start: Fork, *, rounds: int, members: int, kills: int, seed: object) -> Counter[str]:
    chance = random.Random(str(seed))
    store, fleet, done = Store(database.engine), Fleet(start, 3, chance), Counter[str]()
    began = time.monotonic()
    try:
        for _ in range(rounds):
            done += survive_a_round(store, fleet, chance, members=members, kills=kills)
    finally:
        fleet.end()
    print(
        f"\n{database.name}: seed {seed}: {rounds} batches of {members} in {time.monotonic() - began:.0f} s: {dict(done)}"
    )
    completed = database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'batch_completed'")
    assert completed == [(rounds,)]
    until(lambda: not database.rows("SELECT 1 FROM task_leases"), seconds=60)
    return done


@pytest.mark.in_turn
def test_what_follows_a_batch_comes_once_though_workers_are_killed(database: Database, workers: Fork) -> None:
    done = survive(database, workers, rounds=2, members=220, kills=2, seed=19)
    assert done["kill"] == 4


@pytest.mark.campaign
def test_fifty_batches_of_ten_thousand_and_a_hundred_kills_each(database: Database, workers: Fork) -> None:
    rounds, members, kills = (int(one) for one in os.environ.get("OUTBOXQ_BATCHES", "50,10000,100").split(","))
    seed = os.environ.get("OUTBOXQ_SEED") or random.randrange(10**6)
    done = survive(database, workers, rounds=rounds, members=members, kills=kills, seed=seed)
    assert done["kill"] == rounds * kills
