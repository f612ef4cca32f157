"""Floors on PostgreSQL: claims and checks skip dead entries. The tests also cover the tasks that these might miss
(`outboxq/store/claims/floors.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from benchmarks import scale
from outboxq import Outbox
from outboxq.model import NewTask, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store import ClaimCursor, Store
from outboxq.store.claims import floors as module
from outboxq.store.claims.floors import Floors
from outboxq.testing.claims import Claimer as Claims
from outboxq.testing.clock import Clock
from outboxq.worker.distributor import create_work_distributor
from tests.contract import helpers
from tests.sleeper import Claimer
from tests.waiting import PROMPTLY, until

MINUTE = timedelta(minutes=1)
PERIOD = 0.5
"""Seconds between two claims from the front, or between two checks from the front, in these tests."""
TICK = 0.125
"""Seconds by which a test advances the watch. PERIOD is a multiple of it."""


class Watch:
    """The clock that decides when claims and checks begin at the front. Only tests advance it, so a slow machine makes no difference."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(module, "time", watch)
    return watch


@pytest.fixture
def crowded(postgresql, monkeypatch) -> Iterator[Any]:
    """The database, with 3,000 dead entries that an old snapshot keeps."""
    monkeypatch.setattr(module, "_LEAST", PERIOD)
    monkeypatch.setattr(module, "_REST", 0)
    with postgresql.engine.connect().execution_options(isolation_level="REPEATABLE READ") as old:
        old.exec_driver_sql("SELECT 1")
        bury(postgresql)
        yield postgresql


def bury(database) -> None:
    with database.engine.begin() as connection:
        connection.execute(text(scale.DEAD), {"queue": "default", "number": 3000})
    with database.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM task_outbox")
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")


class Worker:
    """A claimer with its own cursor, which has a floor for the first task's pair."""

    def __init__(self, database, **options: Any) -> None:
        self.database, self.cursor, self.id, self.options = database, ClaimCursor(), uuid4(), options
        self.store = options.pop("store", database.store)

    def claim(self, limit: int = 1) -> list[Any]:
        return [
            claim.id
            for claim in self.store.claim_ready_task(limit, worker_id=self.id, cursor=self.cursor, **self.options)
        ]

    def with_floor(self, **fields: Any) -> Worker:
        task = self.database.add(self.store, **fields)
        assert self.claim() == [task.id]
        assert self.cursor.floors._since
        return self

    def finds(self, task, watch: Watch) -> bool:
        """Return whether it claims the task within the bound."""
        began = watch.now
        while self.claim() != [task.id]:
            watch.now += TICK
            if watch.now - began > PERIOD + TICK:
                return False
        return True


def late(database, seconds: float = 5, **fields: Any):
    """Enqueue a task whose transaction commits long after the task's due time, and so behind a floor."""
    return database.add(database.store, available_at=database.store.now() - timedelta(seconds=seconds), **fields)


def wait_long_for_looks(monkeypatch) -> None:
    """Let no look from the front become due during the measurement, however slow the machine is."""
    monkeypatch.setattr(module, "_LEAST", 600.0)
    monkeypatch.setattr(module, "_LONGEST", 600.0)


@pytest.mark.parametrize(
    "queues",
    [None, pytest.param(["default"], marks=pytest.mark.full), ["default", "mail"]],  # the next test reads one queue
    ids=["all", "one", "two"],
)
def test_dead_entries_are_not_read(new_url, monkeypatch, queues):
    wait_long_for_looks(monkeypatch)
    compare(*(scale.under_snapshot(new_url(), number, queues) for number in (0, 4000)))


@pytest.mark.parametrize("queues", [None, ["default"]], ids=["all", "one"])
def test_dead_entries_of_a_limited_queue_are_not_read(new_url, monkeypatch, queues):
    wait_long_for_looks(monkeypatch)
    compare(*(scale.under_snapshot(new_url(), number, queues, limited=True) for number in (0, 4000)))


def compare(clean: dict[str, tuple[float, float]], dead: dict[str, tuple[float, float]]) -> None:
    for name in ("claim", "empty claim", "announce", "look"):
        # In a clean table, the index has one page, so probes are free.
        assert dead[name][0] <= 1.5 * clean[name][0] + 25, (name, clean, dead)
        assert dead[name][1] <= clean[name][1]
    assert dead["front look"][0] > 2 * dead["look"][0], "otherwise, there are no dead entries"


def test_a_late_task_is_claimed_within_the_bound(crowded, watch):
    worker = Worker(crowded).with_floor()
    task = late(crowded)
    assert worker.claim() == []
    assert worker.finds(task, watch)


def test_a_late_task_is_claimed_within_the_bound_while_claims_are_full(crowded, watch):
    worker = Worker(crowded).with_floor()
    new = [NewTask(id=uuid7(), task_name="tests.work", args="{}") for _ in range(500)]
    crowded.store.enqueue_many(new)
    assert len(worker.claim(2)) == 2
    task = late(crowded)
    assert worker.claim() != [task.id]
    assert worker.finds(task, watch)


def test_a_late_task_is_claimed_within_the_bound_while_each_claim_finds_tasks(crowded, watch):
    """This happens in a worker with so many tasks that it polls and never checks."""
    worker = Worker(crowded).with_floor()
    task, began = late(crowded), watch.now
    found: list[Any] = []
    while task.id not in found:
        crowded.add(crowded.store)
        found = worker.claim(5)
        assert found
        assert watch.now - began <= PERIOD + TICK
        watch.now += TICK


def test_a_clock_that_is_set_back_delays_tasks_at_most_by_the_bound(crowded, watch):
    step = timedelta(0)
    store = Store(crowded.engine, clock=lambda: datetime.now(UTC) + step)
    worker = Worker(crowded, store=store).with_floor()
    step = timedelta(hours=-1)
    assert worker.finds(crowded.add(store), watch)
    task = crowded.add(store)
    assert worker.claim() == [task.id], "the floor is in the past again"
    step = timedelta(hours=1)
    task = crowded.add(store)
    assert worker.claim() == [task.id]


@pytest.mark.parametrize("priority", [100, 1, -1, -100])
def test_a_task_with_another_priority_is_claimed_immediately(crowded, priority):
    worker = Worker(crowded).with_floor()
    worker.with_floor(priority=50).with_floor(priority=-50)
    task = crowded.add(crowded.store, priority=priority)
    assert worker.claim() == [task.id]


def test_a_higher_priority_is_claimed_first(crowded):
    worker = Worker(crowded).with_floor()
    crowded.add(crowded.store)
    task = crowded.add(crowded.store, priority=7)
    assert worker.claim() == [task.id]


@pytest.mark.parametrize("is_limited", [False, True], ids=["plain", "limited"])
def test_a_claim_that_cancels_expired_tasks_leaves_no_task_behind_its_floor(crowded, watch, is_limited):
    if is_limited:
        crowded.store.queues.limit("default", concurrency=100, create=True)
    late(crowded, 6, expires_at=crowded.store.now() - timedelta(seconds=1))
    tasks = [late(crowded, 5), late(crowded, 4)]
    worker = Worker(crowded)
    assert worker.claim(2) == [tasks[0].id]
    assert worker.claim(2) == [tasks[1].id]


@pytest.mark.parametrize("queue", ["a", "defaulu", "é", "zz"])
def test_a_task_of_another_queue_is_claimed_immediately(crowded, queue):
    worker = Worker(crowded).with_floor().with_floor(queue="mail")
    task = crowded.add(crowded.store, queue=queue)
    assert worker.claim() == [task.id]
    assert set(worker.cursor.floors._since) == {("default", 0), ("mail", 0), (queue, 0)}


def test_a_task_of_a_resumed_queue_is_claimed_within_the_bound(crowded, watch):
    worker = Worker(crowded).with_floor()
    crowded.store.queues.pause("default")
    task = late(crowded, 0)
    assert worker.claim() == []
    crowded.store.queues.resume("default")
    assert worker.finds(task, watch)


def test_a_task_of_a_rolled_back_claim_is_claimed_again_within_the_bound(crowded, watch):
    worker = Worker(crowded).with_floor()
    with helpers.transaction(crowded) as connection:
        task = late(crowded, 0)
        [claim] = crowded.store.claim_ready_task(1, worker_id=uuid4(), using=connection)
        assert claim.id == task.id
        assert worker.claim() == []
        connection.rollback()
    assert worker.finds(task, watch)


@pytest.fixture
def limited(crowded) -> Any:
    """The database, whose queue `default` may run 100 tasks at once."""
    crowded.store.queues.limit("default", concurrency=100, create=True)
    return crowded


def test_a_late_task_of_a_limited_queue_is_claimed_within_the_bound(limited, watch):
    worker = Worker(limited).with_floor()
    task = late(limited)
    assert worker.claim() == []
    assert worker.finds(task, watch)


def test_a_late_task_of_a_limited_queue_is_claimed_within_the_bound_while_claims_are_full(limited, watch):
    worker = Worker(limited).with_floor()
    limited.store.enqueue_many([NewTask(id=uuid7(), task_name="tests.work", args="{}") for _ in range(50)])
    task = late(limited)
    assert worker.claim() != [task.id]
    assert worker.finds(task, watch)


def test_a_floor_does_not_skip_tasks_that_wait_for_a_slot(limited, watch):
    """Claims from other queues take all tasks that are due there, and none from the limited queue."""
    limited.store.queues.limit("default", concurrency=2)
    tasks = [late(limited, seconds) for seconds in (5, 4, 3)]
    worker = Worker(limited)
    assert [worker.claim(), worker.claim()] == [[tasks[0].id], [tasks[1].id]]
    other = limited.add(limited.store, queue="mail")
    assert worker.claim(5) == [other.id]
    limited.store.queues.limit("default", concurrency=3)
    worker.cursor.floors._limited["default"].turns._due_at = math.inf  # no claim from the front is due
    assert worker.claim() == [tasks[2].id]


def test_a_queue_with_a_new_limit_is_read_from_the_front(crowded, watch):
    worker = Worker(crowded).with_floor()
    crowded.store.queues.limit("default", concurrency=2, create=True)
    tasks = [late(crowded, seconds) for seconds in (5, 4, 3)]
    assert worker.claim() == [tasks[0].id]
    crowded.store.queues.limit("default", concurrency=100)
    assert [worker.claim(), worker.claim()] == [[tasks[1].id], [tasks[2].id]]


def test_an_empty_queue_with_a_new_limit_is_read_from_the_front_once(crowded, watch):
    worker = Worker(crowded).with_floor()
    crowded.store.queues.limit("default", concurrency=2, create=True)
    assert worker.claim() == []
    task = late(crowded)
    assert worker.claim() == []
    assert worker.finds(task, watch)


@pytest.mark.parametrize("queues", [None, ["default"]], ids=["all", "one"])
def test_a_new_task_of_a_limited_queue_is_claimed_immediately(limited, queues):
    """No claim from the front is due."""
    worker = Worker(limited, queues=queues).with_floor(priority=5).with_floor(priority=-5)
    worker.cursor.floors._limited["default"].turns._due_at = math.inf
    for priority in (5, -5, 0, 50, -50):
        task = limited.add(limited.store, priority=priority)
        assert worker.claim() == [task.id]


def test_a_queue_whose_limit_is_removed_keeps_its_floor(limited, watch):
    limited.store.queues.limit("default", concurrency=1)
    worker = Worker(limited).with_floor()
    tasks = [limited.add(limited.store) for _ in range(2)]
    watch.now += 5
    assert worker.claim() == []
    limited.store.queues.limit("default", concurrency=None)
    watch.now -= 5
    assert worker.claim(1) == [tasks[0].id]
    assert not worker.cursor.floors._limited
    assert worker.claim(1) == [tasks[1].id]


def test_the_claim_after_a_check_from_the_front_reads_a_limited_queue_from_the_front(limited, watch):
    worker = Worker(limited).with_floor()
    sleeping, floors = limited.store.sleeping_workers, worker.cursor.floors
    assert not sleeping.look(sleeping.horizon(), None, None, floors).due
    task = late(limited)
    look = sleeping.look(sleeping.horizon(), None, None, floors)
    assert (look.settled, look.due) == (True, False)
    watch.now += look.seconds
    assert sleeping.look(sleeping.horizon(), None, None, floors).due
    floors._limited["default"].turns._due_at = math.inf
    assert worker.claim() == [task.id]


def test_only_a_bounded_number_of_limited_queues_has_floors():
    floors = Floors()
    for number in range(module._MOST + 10):
        floors.claimed([row(f"{number}", NOW)], f"{number}", at_front=True, is_full=True, seconds=0)
    assert len(floors._limited) == len(floors._since) == module._MOST
    assert {queue for queue, _ in floors._since} == set(floors._limited)


def test_a_claim_ignores_the_floors_of_queues_it_does_not_read(crowded):
    worker = Worker(crowded).with_floor().with_floor(queue="mail")
    task = crowded.add(crowded.store, queue="mail")
    worker.options["queues"] = ["mail"]
    crowded.add(crowded.store)
    assert worker.claim(5) == [task.id]


@pytest.mark.parametrize("narrowed", ["queues", "topics"])
def test_a_claim_without_a_cursor_moves_no_floor_of_other_queues_or_topics(crowded, narrowed):
    """Such a claim takes all tasks that are due, but only in its own queues or with its own topics."""
    store = crowded.store

    def claim(limit: int, name: str) -> list[Any]:
        claims = store.claim_ready_task(limit, worker_id=uuid4(), **{narrowed: [name]})
        return [claim.id for claim in claims]

    def add(name: str, seconds: float) -> Any:
        fields: dict[str, Any] = {"queue": name} if narrowed == "queues" else {"topic": name}
        return late(crowded, seconds, **fields)

    first = add("mail", 60)
    assert claim(1, "mail") == [first.id]
    waiting, other = add("mail", 5), add("news", 5)
    assert claim(5, "news") == [other.id]
    assert claim(5, "mail") == [waiting.id]


def test_a_test_harness_that_drained_one_queue_moves_no_floor_of_another(crowded):
    first = late(crowded, 60, queue="mail")
    claimer = Claims(store=crowded.store, clock=Clock())
    found = claimer.claim(["mail"])
    waiting, other = late(crowded, 5, queue="mail"), late(crowded, 5, queue="news")
    drained = [claimer.claim(["news"]), claimer.claim(["news"])]
    last = claimer.claim(["mail"])
    assert [one and one.id for one in (found, *drained, last)] == [first.id, other.id, None, waiting.id]


def test_a_check_that_began_at_the_floors_is_valid_no_longer_than_the_bound(crowded, watch):
    worker = Worker(crowded).with_floor()
    sleeping, floors = crowded.store.sleeping_workers, worker.cursor.floors
    assert not sleeping.look(sleeping.horizon(), None, None, floors).due
    task = late(crowded)
    look = sleeping.look(sleeping.horizon(), None, None, floors)
    assert (look.settled, look.due) == (True, False)
    assert 0 <= look.seconds <= PERIOD
    watch.now += look.seconds
    look = sleeping.look(sleeping.horizon(), None, None, floors)
    assert look.due
    floors._claims.turns._due_at = math.inf  # the claim follows the check, not its own schedule
    assert worker.claim() == [task.id], "the next claim finds a task that a check from the front has found"


def test_a_worker_that_has_claimed_no_task_reads_dead_entries_only_once(postgresql_url):
    claimer = scale.Claimer(url=postgresql_url)
    sleeping, floors = claimer.store.sleeping_workers, Floors([("default", 0)])
    with closing(claimer), claimer.engine.connect().execution_options(isolation_level="REPEATABLE READ") as old:
        old.exec_driver_sql("SELECT 1")
        scale.bury(claimer, 4000, ["default"])
        horizon = sleeping.horizon()
        for _ in range(2):
            claimer.count("front", lambda: sleeping.look(horizon, None))  # PostgreSQL plans it now
        assert claimer.count("front", lambda: sleeping.look(horizon, None, None, floors)).complete
        assert not claimer.count("look", lambda: sleeping.look(horizon, None, None, floors)).complete
    counts = claimer.middle()
    assert counts["look"][0] < counts["front"][0] / 2, counts


def test_a_check_skips_no_task_that_waits_for_a_slot(limited):
    limited.store.queues.limit("default", concurrency=1)
    other, task = late(limited, 6), late(limited)
    assert Worker(limited).claim() == [other.id]
    worker = Worker(limited)
    worker.cursor = ClaimCursor([("default", 0)])
    sleeping = limited.store.sleeping_workers
    assert not sleeping.look(sleeping.horizon(), None, None, worker.cursor.floors).due
    limited.store.queues.limit("default", concurrency=2)
    assert sleeping.look(sleeping.horizon(), None, None, worker.cursor.floors).due
    assert worker.claim() == [task.id]


def test_a_check_finds_no_task_that_waits_for_a_slot(limited):
    limited.store.queues.limit("default", concurrency=1)
    worker = Worker(limited).with_floor()
    limited.add(limited.store)
    sleeping, floors = limited.store.sleeping_workers, worker.cursor.floors
    for queues in (None, ["default"]):
        assert not sleeping.look(sleeping.horizon(), queues, None, floors).due
    limited.store.queues.limit("default", concurrency=2)
    assert sleeping.look(sleeping.horizon(), None, None, floors).due


def test_a_late_task_is_claimed_within_the_bound_by_a_worker_that_has_claimed_nothing(crowded, watch):
    worker = Worker(crowded)
    worker.cursor = ClaimCursor([("default", 0)])
    sleeping = crowded.store.sleeping_workers
    assert not sleeping.look(sleeping.horizon(), None, None, worker.cursor.floors).due
    assert worker.cursor.floors._since
    task = late(crowded)
    assert worker.claim() == []
    assert worker.finds(task, watch)


def test_a_task_committed_soon_is_claimed_immediately_by_a_worker_that_has_claimed_nothing(crowded, watch):
    worker = Worker(crowded)
    worker.cursor = ClaimCursor([("default", 0)])
    sleeping = crowded.store.sleeping_workers
    with helpers.transaction(crowded) as producer:
        task = NewTask(id=uuid7(), task_name="tests.work", args="{}")
        crowded.store.enqueue(task, using=producer)
        assert not sleeping.look(sleeping.horizon(), None, None, worker.cursor.floors).due
        producer.commit()
    assert worker.cursor.floors._since
    assert worker.claim() == [task.id]


def test_a_check_from_the_front_proves_that_no_task_is_due(crowded):
    worker = Worker(crowded).with_floor()
    sleeping = crowded.store.sleeping_workers
    look = sleeping.look(sleeping.horizon(), None, None, worker.cursor.floors)
    assert (look.settled, look.due, look.seconds) == (True, False, None)


def test_a_sleeping_worker_claims_a_late_task_within_the_bound(crowded):
    """Its producer began before the worker's floor, and commits while the worker sleeps."""
    cursor = ClaimCursor()
    distributor = create_work_distributor(crowded.store, poll=MINUTE, floors=cursor.floors)
    distributor.start()
    until(lambda: distributor.health.listening)
    with Claimer(crowded.store, distributor, cursor=cursor) as claimer:
        for _ in range(2):
            claimer.lag(crowded.add(crowded.store).id, 0)
            with helpers.transaction(crowded) as producer:
                task = NewTask(id=uuid7(), task_name="tests.work", args="{}")
                crowded.store.enqueue(task, using=producer)
                time.sleep(1.2)
                claimer.lag(crowded.add(crowded.store).id, 0)
                producer.commit()
            committed = time.monotonic()
            # The bound for the claim, plus the bound for the check that follows it.
            assert claimer.lag(task.id, committed) < 2 * PERIOD + PROMPTLY


def test_a_burst_ends_only_after_a_claim_from_the_front(crowded, monkeypatch):
    monkeypatch.setattr(module, "_LEAST", 600.0)
    monkeypatch.setattr(module, "_LONGEST", 600.0)
    outbox, handles = Outbox(crowded.engine), []

    @outbox.task(name="tests.first")
    def first() -> None:
        handles.append(late(crowded))

    outbox.task(name="tests.work")(lambda: None)
    first.using(outbox).enqueue()
    outbox.worker(notifications=False, concurrency=1).run(burst=True)
    [handle] = handles
    assert crowded.store.get(handle.id).status is TaskStatus.COMPLETED


def test_there_are_no_floors_while_few_entries_are_dead(untouched):
    worker = Worker(untouched)
    worker.cursor = ClaimCursor([("default", 0)])
    sleeping = untouched.store.sleeping_workers
    assert sleeping.look(sleeping.horizon(), None, None, worker.cursor.floors).complete
    assert not worker.cursor.floors._since
    task = untouched.add(untouched.store)
    assert worker.claim() == [task.id]
    assert not worker.cursor.floors._since
    task = late(untouched)
    assert worker.claim() == [task.id]
    assert untouched.store.get(task.id).status is TaskStatus.RUNNING


def row(queue: str, due: datetime, *, crowded: bool = True) -> dict[str, Any]:
    return {"queue": queue, "priority": 0, "available_at": due, "lease_token": 1, "crowded": crowded, "started_at": NOW}


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_floor_is_at_least_as_old_as_usual_transactions():
    floors = Floors()
    floors.claimed([row("a", NOW - timedelta(hours=1)), row("b", NOW)], at_front=True, is_full=True, seconds=0)
    assert floors._since["a", 0] == NOW - timedelta(hours=1)
    assert NOW - timedelta(seconds=1) <= floors._since["b", 0] < NOW - timedelta(seconds=0.9)


@pytest.mark.parametrize("hours", [1, -1], ids=["up", "down if the clock was set back"])
def test_a_check_from_the_front_that_finds_no_task_moves_the_floors(hours):
    floors, later = Floors(), NOW + timedelta(hours=hours)
    floors.claimed([row("a", NOW - timedelta(hours=2))], at_front=True, is_full=True, seconds=0)
    before = dict(floors._since)
    floors.looked(found=True, at_front=True, seconds=0, crowded_at=later.timestamp())
    floors.looked(found=False, at_front=False, seconds=0, crowded_at=later.timestamp())
    assert floors._since == before
    floors.looked(found=False, at_front=True, seconds=0, crowded_at=later.timestamp())
    assert floors._since == {("a", 0): later - timedelta(seconds=1)}


def test_the_most_recently_used_floors_are_kept():
    floors = Floors()
    for number in range(module._MOST + 10):
        floors.claimed([row(f"{number % 70}", NOW)], at_front=False, is_full=True, seconds=0)
        floors.claimed([row("often", NOW)], at_front=False, is_full=True, seconds=0)
    assert len(floors._since) == module._MOST
    assert ("often", 0) in floors._since


def test_the_rate_of_claims_from_the_front_follows_their_duration(watch):
    floors = Floors()
    for seconds, pause in ((0.001, 1), (0.1, 2), (5, 10)):
        floors._claims.turns.took(seconds)
        assert floors._claims.turns.left == pytest.approx(pause)
