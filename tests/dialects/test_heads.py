"""Heads on PostgreSQL: claims among many queues read only a few of them. The tests also cover the tasks that these might miss
(`outboxq/store/claims/heads.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from outboxq.database.queue_order import MANY_QUEUES
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store.claims import claim, floors, heads
from tests.dialects.test_floors import PERIOD, TICK, Watch, Worker, bury, late

QUEUES = [f"queue-{place:03}" for place in range(MANY_QUEUES + 20)]
LAST = QUEUES[-1]


@pytest.fixture
def watch(monkeypatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(floors, "time", watch)
    monkeypatch.setattr(floors, "_LEAST", PERIOD)
    monkeypatch.setattr(floors, "_REST", 0)
    return watch


@pytest.fixture
def old_snapshot(postgresql) -> Iterator[None]:
    """Keep 3,000 dead entries by means of an old snapshot."""
    with postgresql.engine.connect().execution_options(isolation_level="REPEATABLE READ") as old:
        old.exec_driver_sql("SELECT 1")
        bury(postgresql)
        yield


def new(queue: str, available_at: datetime, **fields: Any) -> NewTask:
    return NewTask(id=uuid7(), task_name="tests.work", args="{}", queue=queue, available_at=available_at, **fields)


def fill(database, each: int = 2, queues=QUEUES) -> list[Any]:
    """Enqueue `each` tasks in each queue, alternating between queues. Return their ids in the order of their due times."""
    began = database.store.now() - timedelta(minutes=1)
    tasks = [new(queue, began + timedelta(milliseconds=place)) for place, queue in enumerate(queues * each)]
    database.store.enqueue_many(tasks)
    return [one.id for one in tasks]


@pytest.mark.parametrize("limit", [1, 7, 100])
@pytest.mark.parametrize("queues", [None, QUEUES], ids=["all", "given"])
def test_all_tasks_are_claimed_roughly_in_the_order_of_their_due_times(postgresql, limit, queues):
    tasks = fill(postgresql, 3)
    worker, found = Worker(postgresql, queues=queues), []
    while claimed := worker.claim(limit):
        assert len(claimed) == limit or len(found) + len(claimed) == len(tasks)
        found += claimed
    assert sorted(found) == sorted(tasks)
    late_by = [place - tasks.index(task) for place, task in enumerate(found)]
    assert max(late_by) <= 2 * len(QUEUES), "no task waits for more than two rounds of all queues"


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_no_task_is_claimed_before_one_with_a_higher_priority(postgresql, limit):
    began = postgresql.store.now() - timedelta(hours=1)
    urgent = [new(queue, began + timedelta(minutes=1), priority=9) for queue in QUEUES]
    others = [new(queue, began, priority=0) for queue in QUEUES for _ in range(5)]
    worker = Worker(postgresql)
    postgresql.store.enqueue_many(others + urgent)
    found: list[Any] = []
    while claimed := worker.claim(limit):
        found += claimed
    assert set(found[: len(QUEUES)]) == {one.id for one in urgent}
    assert len(found) == len(others) + len(urgent)


def test_a_claim_that_has_a_task_stops_at_expired_tasks(postgresql, monkeypatch):
    began = postgresql.store.now() - timedelta(hours=1)
    expired = [
        new(queue, began + timedelta(milliseconds=place), expires_at=began + timedelta(minutes=1))
        for place, queue in enumerate(QUEUES * 2)
    ]
    postgresql.store.enqueue_many([*(new(queue, began) for queue in QUEUES[:3]), *expired])
    worker, taken = Worker(postgresql), []
    worker.claim(), worker.claim()
    take = claim._Call._take
    monkeypatch.setattr(claim._Call, "_take", lambda *arguments: taken.append(1) or take(*arguments))
    assert len(worker.claim(50)) == 1
    assert len(taken) == 1


def test_tasks_beyond_the_kept_heads_are_claimed(postgresql, monkeypatch):
    monkeypatch.setattr(heads, "MOST", 10)
    monkeypatch.setattr(claim, "MOST", 10)
    tasks = fill(postgresql, 1)
    worker = Worker(postgresql)
    found = worker.claim()
    with postgresql.host.connect() as connection, connection.begin():
        locked = "SELECT task_execution_id FROM task_outbox ORDER BY available_at, id LIMIT 10 FOR UPDATE"
        held = {row[0] for row in connection.exec_driver_sql(locked)}
        while claimed := worker.claim():
            found += claimed
        assert len(found) == len(tasks) - 10
        assert not held & set(found)


def test_a_better_task_is_claimed_within_the_bound_while_claims_are_full(postgresql, watch):
    fill(postgresql, 20)
    worker = Worker(postgresql)
    worker.claim(), worker.claim()
    better = postgresql.add(postgresql.store, queue=LAST, priority=5)
    other = postgresql.add(postgresql.store, queue="a new queue", priority=4)
    assert worker.finds(better, watch)
    assert worker.claim() == [other.id], "the heads have been read"


def test_a_claim_that_is_not_full_has_read_all_queues(postgresql, watch):
    tasks = fill(postgresql, 1)
    worker = Worker(postgresql)
    assert len(worker.claim(10)) == len(worker.claim(10)) == 10
    late_task = late(postgresql, queue="a new queue")
    found = worker.claim(1000)
    assert late_task.id in found
    assert len(found) == len(tasks) - 20 + 1
    assert worker.claim() == []


def test_tasks_of_a_claim_that_was_rolled_back_are_claimed(postgresql):
    tasks = fill(postgresql, 1)
    worker = Worker(postgresql)
    found = worker.claim(2) + worker.claim(2)
    with postgresql.host.connect() as connection, connection.begin() as transaction:
        claims = worker.store.claim_ready_task(20, worker_id=worker.id, cursor=worker.cursor, using=connection)
        assert len(claims) == 20
        transaction.rollback()
    while claimed := worker.claim(3):
        found += claimed
    assert sorted(found) == sorted(tasks)


def test_a_claim_that_fails_after_its_first_statement_keeps_no_task(postgresql, monkeypatch):
    tasks = fill(postgresql, 1)
    worker = Worker(postgresql, store=postgresql.own_store())
    assert len(worker.claim() + worker.claim()) == 2
    take, calls = claim._Call._take, []

    def fails(self, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the second statement failed")
        return take(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(claim._Call, "_take", fails)
        with pytest.raises(RuntimeError, match="second statement"):
            worker.claim(1000)
    assert len(worker.claim(1000)) == len(tasks) - 2


def test_each_choice_of_queues_or_topics_has_separate_heads(postgresql):
    fill(postgresql, 3)
    store, worker_id = postgresql.store, uuid4()
    for _ in range(2):
        store.claim_ready_task(1, worker_id=worker_id)
    own = postgresql.add(store, queue="own", topic="order.paid")
    for options in ({"queues": ["own", "other"]}, {"topics": ["order.*"]}):
        with postgresql.host.connect() as connection, connection.begin() as transaction:
            claims = store.claim_ready_task(1, worker_id=worker_id, using=connection, **options)
            assert [one.id for one in claims] == [own.id]
            transaction.rollback()


def test_a_paused_queue_is_left_out_until_it_is_resumed(postgresql, watch):
    fill(postgresql, 2)
    worker = Worker(postgresql)
    worker.claim(), worker.claim()
    paused = QUEUES[40]
    postgresql.store.queues.pause(paused)
    found = worker.claim(1000)
    assert len(found) == 2 * len(QUEUES) - 2 - 2
    postgresql.store.queues.resume(paused)
    assert len(worker.claim(1000)) == 2


def test_the_claimer_returns_to_reading_all_queues(postgresql, watch):
    fill(postgresql, 1)
    worker = Worker(postgresql)
    worker.claim(), worker.claim()
    assert worker.cursor.heads.are_used
    assert len(worker.claim(1000)) == len(QUEUES) - 2
    assert not worker.cursor.heads.are_used
    last = postgresql.add(postgresql.store)
    assert worker.claim() == [last.id]
    assert not worker.cursor.heads.are_used


def test_a_late_task_behind_a_floor_is_claimed_within_the_bound(postgresql, old_snapshot, watch):
    fill(postgresql, 20)
    worker = Worker(postgresql)
    first = postgresql.add(postgresql.store, queue=QUEUES[0], priority=9)
    assert worker.claim() == [first.id]
    assert (QUEUES[0], 9) in worker.cursor.floors._since
    worker.claim()
    task = late(postgresql, queue=QUEUES[0], priority=9)
    assert worker.finds(task, watch)


def test_a_claim_from_a_few_queues_keeps_the_floors_of_others(postgresql, old_snapshot, watch):
    fill(postgresql, 20)
    worker = Worker(postgresql)
    other = postgresql.add(
        postgresql.store, queue=LAST, priority=-9, available_at=postgresql.store.now() - timedelta(hours=1)
    )
    worker.claim(), worker.claim()
    pair = LAST, -9
    worker.cursor.floors._since[pair] = before = postgresql.store.now() - timedelta(hours=2)
    found = worker.claim(10)
    assert other.id not in found
    assert worker.cursor.floors._since[pair] == before


def test_tasks_of_unlimited_queues_wait_only_briefly_for_many_limited_queues(postgresql, monkeypatch):
    """After a claim finds none, tasks of limited queues come last for a multiple of the time that the claim took."""
    watch = Watch()
    watch.step = TICK
    monkeypatch.setattr(claim, "time", watch)
    monkeypatch.setattr(floors, "time", watch)
    take, limited = claim._Call._every_queue, QUEUES[:20]

    def slowly(self, *arguments: Any) -> Any:
        watch.now += watch.step
        return take(self, *arguments)

    monkeypatch.setattr(claim._Call, "_every_queue", slowly)
    fill(postgresql, 5, limited)
    for queue in limited:
        postgresql.store.queues.limit(queue, concurrency=10, create=True)
    worker = Worker(postgresql)
    began = watch.now
    for _ in range(6):
        worker.claim()
    assert watch.now - began == 2 * TICK, (
        "the second claim found that there are many limited queues, and the later ones did not check"
    )
    plain = postgresql.add(postgresql.store, priority=9)
    assert worker.claim() != [plain.id]
    watch.now += floors._REST * TICK
    assert plain.id in worker.claim()
    monkeypatch.setattr(watch, "step", 3600.0)
    watch.now += 3600
    worker.claim()
    last = postgresql.add(postgresql.store, priority=9)
    watch.now += floors._LONGEST
    assert last.id in worker.claim(), "a claim that was frozen for an hour does not make these tasks wait any longer"
