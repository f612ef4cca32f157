"""Batches while workers are killed: tasks fail and are retried, cancelled, redriven and discarded, and `then` runs exactly once.

One variant constantly prunes everything that ended more than two seconds ago. If `OUTBOXQ_TEST_BEFORE` names an earlier checkout,
every second worker runs its code, which may not support batches.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from outboxq.database.engine import make_engine
from outboxq.errors import BatchNotFound, InvalidTransition
from outboxq.model import NewTask, TaskStatus
from outboxq.model.batches import BatchLink, NewBatch, OnFailed, new_batch_id
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.conftest import Database
from tests.faults.workers import Forked, Nursery, Process
from tests.waiting import until

Fork = Callable[..., Process]
_LEASE = timedelta(seconds=2)


@pytest.fixture(scope="module")
def release_before() -> Iterator[Nursery | None]:
    """The nursery of an earlier checkout, or None if all processes run this checkout's code."""
    if not (root := os.environ.get("OUTBOXQ_TEST_BEFORE")):
        yield None
        return
    nursery = Nursery(Path(root))
    yield nursery
    nursery.close()


@pytest.fixture
def workers(database: Database, fork: Fork, release_before: Nursery | None, tmp_path: Path) -> Iterator[Fork]:
    """Start workers. Every second one runs the earlier release, if there is one."""
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
    """Return a task of a batch. One in fifty fails in its first attempt, and half of these are not retried."""
    return NewTask(
        id=uuid7(),
        task_name="faults.flaky",
        queue="faults",
        args=f'{{"number": {number}}}',
        lease=_LEASE,
        max_attempts=1 if number % 100 == 0 else None,
        pipeline_execution_id=batch_id,
    )


def then(batch_id: UUID, counts: Path) -> NewTask:
    """Return a `then` task, which fails in its first attempt and is then a dead letter."""
    args = json.dumps({"path": str(counts)})
    return NewTask(
        id=BatchLink(batch_id=batch_id, number=1).task_id,
        task_name="faults.counted",
        queue="faults",
        args=args,
        lease=timedelta(seconds=30),
        max_attempts=1,
    )


class Pruning:
    """A thread that constantly deletes tasks that ended longer than `AGE` ago."""

    AGE = timedelta(seconds=2)

    def __init__(self, database: Database) -> None:
        self._store = Store(database.own(make_engine(database.url)))
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._rounds: list[tuple[datetime, int]] = []
        """The start of each round, by the database's clock, and the number of tasks that it deleted."""
        self._pool = ThreadPoolExecutor(1)
        self._run = self._pool.submit(self._prune)

    @property
    def deleted(self) -> int:
        with self._lock:
            return sum(deleted for _, deleted in self._rounds)

    def wait_past(self, moment: datetime) -> None:
        """Wait until a whole round has run that could delete tasks that ended at that moment."""

        def has_passed() -> bool:
            if self._run.done():
                self._run.result()  # raises its error
            with self._lock:
                return any(began > moment + self.AGE for began, _ in self._rounds)

        until(has_passed, seconds=60)

    def end(self) -> None:
        self._over.set()
        self._pool.shutdown()
        self._run.result()

    def _prune(self) -> None:
        while not self._over.is_set():
            began = self._store.now()
            deleted = self._store.prune(self.AGE)
            with self._lock:
                self._rounds.append((began, deleted))


class Fleet:
    """Workers, one of which is killed and replaced from time to time."""

    def __init__(self, start: Fork, size: int, chance: random.Random) -> None:
        self._start, self._chance = start, chance
        self._running = [start() for _ in range(size)]
        self.killed = 0

    def kill(self) -> None:
        which = self._chance.randrange(len(self._running))
        time.sleep(self._chance.uniform(0, 0.05))  # a random moment in its work
        self._running[which].end()
        self._running[which] = self._start()
        self.killed += 1

    def end(self) -> None:
        for one in self._running:
            one.end()


def survive_a_round(
    store: Store,
    fleet: Fleet,
    chance: random.Random,
    *,
    members: int,
    kills: int,
    counts: Path,
    pruning: Pruning | None,
) -> Counter[str]:
    """Run one batch to its end while workers are killed and tasks are changed manually. Return the number of each action."""
    done: Counter[str] = Counter()
    policy = chance.choice([OnFailed.CONTINUE, OnFailed.WAIT])
    batch_id = new_batch_id()
    batch = NewBatch(id=batch_id, then=(then(batch_id, counts),), on_failed=policy)
    (follower,) = batch.then
    tasks = [member(number, batch.id) for number in range(1, members + 1)]
    ids = [task.id for task in tasks]
    with store.unit() as unit:
        store.batches.create(batch, using=unit.connection)
        for start in range(0, members, 1000):
            store.enqueue_many(tasks[start : start + 1000], using=unit.connection)
        store.batches.close(batch.id, using=unit.connection)
    while (now := store.batches.get(batch.id)).completed_at is None:
        ended = now.completed + now.failed + now.cancelled
        if done["kill"] < kills and ended >= members * done["kill"] / kills:
            fleet.kill()
            done["kill"] += 1
        elif chance.random() < 0.2:
            with suppress(InvalidTransition):
                store.cancel(chance.choice(ids), force=chance.random() < 0.5)
                done["cancel"] += 1
        done += end_dead_letters(store, chance, besides=follower.id)
        time.sleep(0.01)
    assert now.size == members
    assert now.completed + now.cancelled + (now.failed if policy is OnFailed.CONTINUE else 0) == members
    if policy is OnFailed.WAIT:
        assert now.failed == 0
        late = [one.id for one in store.batches.members(batch.id) if one.status not in {"Completed", "Cancelled"}]
        assert set(late) <= {follower.id}
    until(lambda: store.get(follower.id).status is TaskStatus.FAILED, seconds=60)
    if pruning is not None:
        pruning.wait_past(now.completed_at)
    store.schedule_retry(follower.id, store.now(), 2)
    until(lambda: counted(counts)[-1]["attempt"] == 2, seconds=60)
    for one in counted(counts):
        # The number is higher if a dead letter was redriven after the batch had completed. It is never lower.
        assert one["read"] == one["distinct"] >= one["completed"] == now.completed, one
    if pruning is None:
        follows_once(store, follower.id, ids[-1], policy)
        return done

    def is_pruned() -> bool:
        end_dead_letters(store, chance, besides=follower.id)
        return is_gone(store, batch.id)

    until(is_pruned, seconds=120)
    return done


def end_dead_letters(store: Store, chance: random.Random, *, besides: UUID) -> Counter[str]:
    """Discard three in ten of the current dead letters, and redrive the others. Return the number of each action."""
    done: Counter[str] = Counter()
    for letter in store.dead_letters.list(limit=5):
        if letter.id == besides:
            continue
        with suppress(InvalidTransition):
            if chance.random() < 0.3:
                store.discard(letter.id)
                done["discard"] += 1
            else:  # the second attempt succeeds
                store.schedule_retry(letter.id, store.now(), 2)
                done["redrive"] += 1
    return done


def follows_once(store: Store, follower: UUID, last: UUID, policy: OnFailed) -> None:
    until(lambda: store.get(follower).status is TaskStatus.COMPLETED, seconds=60)
    history = store.history(follower)
    kinds = Counter(str(event.event_type) for event in history)
    assert (kinds["task_created"], kinds["task_completed"]) == (1, 1), kinds
    assert policy is OnFailed.CONTINUE or history[0].created_at >= store.history(last)[-1].created_at


def counted(path: Path) -> list[dict[str, int]]:
    """Return what the `then` task has recorded in each attempt."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_gone(store: Store, batch_id: UUID) -> bool:
    """Return whether the batch and all its tasks have been deleted."""
    with suppress(BatchNotFound):
        store.batches.get(batch_id)
        return False
    return not any(store.batches.members(batch_id))


def survive(
    database: Database,
    start: Fork,
    directory: Path,
    *,
    rounds: int,
    members: int,
    kills: int,
    seed: object,
    prune: bool = False,
) -> Counter[str]:
    chance = random.Random(str(seed))
    store, fleet, done = Store(database.engine), Fleet(start, 3, chance), Counter[str]()
    pruning = Pruning(database) if prune else None
    began = time.monotonic()
    try:
        for number in range(rounds):
            counts = directory / f"counts-{number}"
            counts.touch()
            done += survive_a_round(store, fleet, chance, members=members, kills=kills, counts=counts, pruning=pruning)
    finally:
        fleet.end()
        if pruning is not None:
            pruning.end()
            done["prune"] = pruning.deleted
    print(
        f"\n{database.name}: seed {seed}: {rounds} batches of {members} in {time.monotonic() - began:.0f} s: {dict(done)}"
    )
    completed = database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'batch_completed'")
    assert completed == [(0 if prune else rounds,)]
    until(lambda: not database.rows("SELECT 1 FROM task_leases"), seconds=60)
    return done


@pytest.mark.in_turn
def test_a_then_task_is_enqueued_once_while_workers_are_killed(
    database: Database, workers: Fork, tmp_path: Path
) -> None:
    done = survive(database, workers, tmp_path, rounds=2, members=120, kills=2, seed=19)
    assert done["kill"] >= 2  # a batch may complete before its second kill


def planned() -> tuple[int, int, int, object]:
    """Return the number of batches, the tasks and kills per batch, and the seed."""
    rounds, members, kills = (int(one) for one in os.environ.get("OUTBOXQ_BATCHES", "50,10000,100").split(","))
    return rounds, members, kills, os.environ.get("OUTBOXQ_SEED") or random.randrange(10**6)


@pytest.mark.campaign
def test_fifty_large_batches_enqueue_their_then_task_once_despite_kills(
    database: Database, workers: Fork, tmp_path: Path
) -> None:
    rounds, members, kills, seed = planned()
    done = survive(database, workers, tmp_path, rounds=rounds, members=members, kills=kills, seed=seed)
    assert done["kill"] == rounds * kills


@pytest.mark.campaign
def test_a_then_task_reads_all_results_although_ended_tasks_are_pruned_after_two_seconds(
    database: Database, workers: Fork, tmp_path: Path
) -> None:
    rounds, members, kills, seed = planned()
    rounds = -(-rounds // 50)
    done = survive(database, workers, tmp_path, rounds=rounds, members=members, kills=kills, seed=seed, prune=True)
    assert done["kill"] == rounds * kills
    assert done["prune"] == rounds * (members + 1)
