"""A wall of blocked keys hides no task of another key, and costs nothing while nothing happens."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import event

from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.distributor import create_work_distributor
from tests.contract.test_fairness import fill
from tests.sleeper import Sleeper

MANY = 5_000
"""More keys than one claim examines."""
KEY = "'k' || (10000 + n)"
PAST, FUTURE = "2020-01-01T00:00:00.000000+00:00", "2999-01-01T00:00:00.000000+00:00"
MINUTE = 60.0


def build(database, how: str, many: int = MANY, due: int = MANY) -> None:
    """Create keys, each blocked in this way, whose tasks have been due for years. Only the first `due` of these tasks are kept."""
    database.corrupted = True  # entries are moved, and keys are held without a task that explains it
    fill(database, KEY, many, 1)
    database.run(f"UPDATE task_outbox SET available_at = '{PAST}'")
    if how == "its head waits for a retry":
        fill(database, KEY, many, 2)
        database.run(f"UPDATE task_outbox SET available_at = '{FUTURE}', priority = 1 WHERE available_at > '{PAST}'")
    else:
        database.run(
            "INSERT INTO partition_claims (queue, partition_key, task_execution_id, held) "
            "SELECT queue, partition_key, task_execution_id, true FROM task_outbox"
        )
    database.run(f"DELETE FROM task_outbox WHERE available_at = '{PAST}' AND position > {due}")


HOW = ["its head waits for a retry", "another has it"]
FRESH = "k14500-fresh"


@pytest.fixture
def take(database):
    """Return a function that claims one task, as a worker in the middle of its rotation."""
    store = Store(database.engine, clock=database.clock)

    def take():
        return [claim.id for claim in store.claim_ready_task(1, worker_id=database.worker)]

    return take


@pytest.mark.parametrize("how", HOW)
def test_the_next_claim_takes_a_task_with_an_unblocked_key(database, take, how):
    build(database, how)
    assert take() == []
    task = database.add(partition_key=FRESH)
    assert take() == [task.id]
    assert take() == []


@pytest.mark.parametrize("how", HOW)
def test_an_idle_worker_reads_new_tasks_before_it_reads_the_blocked_keys_again(database, take, how):
    """If the worker looked at the wall first, such a task would wait 100 ms for its start on PostgreSQL."""
    build(database, how)
    take()
    task, told = database.add(partition_key=FRESH), []

    def note(connection, cursor, text, *rest):
        told.append(text)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        assert take() == [task.id]
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    goes_from_key_to_key = [text for text in told if "SELECT keys.place" in " ".join(text.split())]
    assert len(goes_from_key_to_key) == (database.name == "sqlite")  # SQLite first checks whether to claim at all


@pytest.mark.parametrize("how", HOW)
def test_the_next_claim_takes_a_task_that_became_due(database, take, how):
    build(database, how)
    delayed = database.add(partition_key=FRESH, delay=timedelta(seconds=30))
    for _ in range(70):
        database.add()  # moves the delayed task's event away from the end of the log
    assert len(database.claim(100)) == 70
    assert take() == []
    database.clock.advance(30)
    assert take() == [delayed.id]


@pytest.mark.parametrize("how", HOW)
def test_the_next_claim_takes_the_next_task_of_a_freed_key(database, take, how):
    """It is found although it has been due for longer than many others."""
    build(database, how)
    first, second = (database.add(partition_key=FRESH).id for _ in range(2))
    (claim,) = database.claim()
    assert claim.id == first
    database.clock.advance(1)
    for number in range(10_001, 10_071):
        database.add(partition_key=f"k{number}")
    assert take() == []
    database.frozen.complete(claim)
    assert take() == [second]


@pytest.mark.parametrize("how", HOW)
def test_look_ahead_ignores_blocked_tasks_if_few_tasks_are_due(database, how):
    """A worker that considered blocked tasks claimable would ask again and again."""
    build(database, how, due=20)
    assert not database.frozen.look_ahead().due
    database.add(partition_key=FRESH)
    assert database.frozen.look_ahead().due


@pytest.mark.parametrize("how", HOW)
def test_look_ahead_for_recent_tasks_ignores_blocked_ones(database, how):
    build(database, how)
    assert database.frozen.look_ahead().due, "no one has looked behind the wall yet"
    assert not database.frozen.look_ahead(recent=True).due
    assert not database.frozen.look_ahead(["default"], recent=True).due
    database.add(partition_key=FRESH)
    assert database.frozen.look_ahead(recent=True).due
    assert database.frozen.look_ahead(["default"], recent=True).due
    assert not database.frozen.look_ahead(["other"], recent=True).due


# SQLite has no notifications, so a worker that sees the file change has to look for tasks


@pytest.fixture
def resting(sqlite, monkeypatch):
    """A distributor that found nothing behind a wall and would rest for a minute."""
    monkeypatch.setattr("outboxq.worker.distributor.sqlite._REST_FACTOR", 1e9, raising=False)
    monkeypatch.setattr("outboxq.worker.distributor.sqlite._LONGEST_REST", MINUTE, raising=False)
    build(sqlite, "its head waits for a retry")
    distributor = create_work_distributor(sqlite.store, poll=MINUTE)
    distributor.start()
    distributor.wait_for_work()  # as after a successful claim: due tasks may be claimable
    yield Sleeper(distributor)
    distributor.close()


@pytest.fixture
def new():
    return lambda **fields: NewTask(id=uuid7(), task_name="tests.work", args="{}", **fields)


def test_a_worker_sleeps_between_polls_if_all_tasks_are_blocked(resting):
    with resting.asleep() as result:
        assert resting.sleeps_on(result)


def test_an_unrelated_commit_does_not_wake_the_worker(sqlite, resting):
    with resting.asleep() as result:
        sqlite.run("UPDATE workers SET label = label")
        sqlite.run("CREATE TABLE of_the_application (number integer)")
        assert resting.sleeps_on(result)


@pytest.mark.parametrize("key", [FRESH, None])
def test_a_claimable_task_wakes_the_worker(sqlite, resting, new, key):
    with resting.asleep() as result:
        sqlite.store.enqueue(new(partition_key=key))
        result.result(10)


def test_a_task_that_becomes_due_wakes_the_worker(sqlite, resting, new):
    sqlite.store.enqueue(new(partition_key=FRESH, delay=timedelta(seconds=0.5)))
    with resting.asleep() as result:
        result.result(10)


def test_a_worker_does_not_sleep_after_a_claim_that_found_tasks(resting):
    """It may have left claimable tasks."""
    with resting.asleep():
        pass
    resting.distributor.at_work()
    resting.distributor.wait_for_work()
