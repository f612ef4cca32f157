"""Cancelling all matching tasks: each is counted once, and tasks that came later are left alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outboxq.errors import InvalidArgument
from outboxq.model import EventType, Outcome, TaskStatus
from outboxq.store import Count, Store
from outboxq.store.tasks import cancelling, task_pages
from tests.contract import helpers

READY, RUNNING, CANCELLED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.CANCELLED


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Lower every bound, so that a few tasks exceed it."""
    monkeypatch.setattr(cancelling, "BATCH", 2)
    monkeypatch.setattr(cancelling, "SCAN", 3)
    monkeypatch.setattr(task_pages, "SCAN", 3)


def statuses(database):
    return [status for (status,) in database.rows("SELECT status FROM task_executions ORDER BY id")]


def test_each_filter_cancels_exactly_the_tasks_it_counts(database):
    for number in range(24):
        key = f"k{number % 2}" if number % 3 == 0 else None
        database.add(
            queue=("mail", "rare")[number % 5 == 0],
            task_name=f"t{number % 2}",
            partition_key=key,
            topic="order.paid" if number % 4 == 0 else None,
        )
    database.claim(6)
    store = database.frozen
    filters = [
        {"queue": "rare", "task": "t0"},
        {"status": RUNNING, "queue": "mail", "task": "t1"},
        {"status": READY, "key": "k0"},
        {"topic": "order.paid"},
        {"until": database.clock.now - timedelta(days=9000)},
        {},
    ]
    for wanted in filters:
        matching = {
            task.id
            for status in ((READY, RUNNING) if "status" not in wanted else (wanted["status"],))
            for task in store.tasks(**{**wanted, "status": status}, limit=100)
        }
        before = {task.id for task in store.tasks(status=CANCELLED)}
        assert store.count_tasks(**wanted) == Count(number=len(matching)), wanted
        assert store.cancel_all(**wanted, force=True, reason="no more of it") == len(matching), wanted
        assert {task.id for task in store.tasks(status=CANCELLED)} - before == matching, wanted
        assert store.count_tasks(**wanted) == Count(number=0)
        assert store.cancel_all(**wanted, force=True) == 0
    assert set(statuses(database)) == {CANCELLED}
    reasons = {store.history(task.id)[-1].event_data["reason"] for task in store.tasks()}
    assert reasons == {"no more of it"}


def test_a_running_task_is_asked_to_stop_and_counted_once(database):
    claim = helpers.claimed(database)
    database.add()
    assert database.frozen.cancel_all() == 2
    assert statuses(database) == [RUNNING, CANCELLED]
    assert database.frozen.cancel_all() == 0
    assert helpers.types(database, claim.id)[-1] == "task_cancel_requested"
    assert database.frozen.cancel_all(status=READY, force=True) == 0
    assert database.frozen.cancel_all(status=RUNNING, force=True) == 1
    assert statuses(database) == [CANCELLED, CANCELLED]


def test_a_status_filter_cancels_only_ready_or_only_running_tasks(database):
    helpers.claimed(database)
    database.add()
    assert database.frozen.cancel_all(status=RUNNING) == 1
    assert statuses(database) == [RUNNING, READY]
    assert database.frozen.cancel_all(status=READY, force=True) == 1
    assert statuses(database) == [RUNNING, CANCELLED]
    for status in (TaskStatus.FAILED, "Failed", TaskStatus.COMPLETED):
        for call in (database.frozen.cancel_all, database.frozen.count_tasks):
            with pytest.raises(InvalidArgument, match="only Ready and Running"):
                call(status=status)


def test_tasks_enqueued_after_the_cancel_began_are_kept(database):
    old = [database.add().id for _ in range(10)]
    database.clock.advance(1)
    later = []

    def enqueue_more(_: int) -> None:
        later.extend(database.add().id for _ in range(5))

    store = Store(database.engine, clock=lambda began=database.clock.now - timedelta(seconds=1): began)
    assert store.cancel_all(on_progress=enqueue_more) == len(old)
    found = {task.id: task.status for task in database.frozen.tasks()}
    assert found == {**dict.fromkeys(old, CANCELLED), **dict.fromkeys(later, READY)}


def test_a_task_that_becomes_ready_again_meanwhile_is_cancelled(database):
    claim = helpers.claimed(database)
    database.add()

    def retry(_: int) -> None:
        if claim:
            database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="again")])

    assert database.frozen.cancel_all(force=True, on_progress=retry) == 2
    assert statuses(database) == [CANCELLED, CANCELLED]


def test_the_cancel_ends_at_the_limit_and_when_it_is_stopped(database):
    for _ in range(11):
        database.add()
    told = []
    assert database.frozen.cancel_all(limit=5, on_progress=told.append) == 5
    assert told == [2, 4, 5]
    assert database.frozen.cancel_all(stop=lambda: True) == 0
    assert database.frozen.cancel_all(on_progress=told.append, stop=lambda: len(told) > 4) == 4
    assert statuses(database).count(READY) == 2


def test_a_wrong_limit_is_refused_before_a_transaction_begins(database, monkeypatch):
    store = database.store
    monkeypatch.setattr(Store, "run", lambda *_, **__: pytest.fail("a transaction began"))
    for call in (store.cancel_all, store.run_all_now, store.dead_letters.redrive_all, store.dead_letters.discard_all):
        with pytest.raises(InvalidArgument, match="limit must be a whole number of at least 1, not 0"):
            call(limit=0)


def test_a_count_that_was_cut_off_is_a_lower_bound(database, monkeypatch):
    for number in range(9):
        database.add(queue=("mail", "rare")[number % 3 == 0])
    assert database.frozen.count_tasks(most=4) == Count(number=4, at_least=True)
    assert database.frozen.count_tasks(most=9) == Count(number=9)
    assert database.frozen.count_tasks(queue="mail", most=5) == Count(number=5, at_least=True)
    monkeypatch.setattr(cancelling, "LOOKED_AT", 5)
    assert database.frozen.count_tasks(queue="mail") == Count(number=5, at_least=True)
    assert database.frozen.count_tasks(queue="rare") == Count(number=3)
    assert database.frozen.count_tasks(task="none") == Count(number=0, at_least=True)


def test_two_simultaneous_cancels_count_each_task_once(database):
    ids = [database.add(partition_key=f"k{number % 2}").id for number in range(40)]
    stores = [Store(database.engine, clock=database.clock) for _ in range(2)]
    counts = helpers.at_once(*(lambda one=one: one.cancel_all(reason="both") for one in stores))
    assert sum(counts) == len(ids), counts
    for task_id in ids:
        assert helpers.types(database, task_id) == ["task_created", "task_cancelled"]


def test_tasks_are_counted_if_the_commit_response_is_lost(database, monkeypatch):
    for _ in range(6):
        database.add()
    assert helpers.lossy(database, monkeypatch).cancel_all() == 6


def test_a_rollback_by_the_caller_undoes_all_cancels(database):
    for _ in range(6):
        database.add()
    with helpers.transaction(database) as connection:
        assert database.frozen.count_tasks(using=connection) == Count(number=6)
        assert database.frozen.cancel_all(using=connection) == 6
        connection.rollback()
    assert set(statuses(database)) == {READY}
