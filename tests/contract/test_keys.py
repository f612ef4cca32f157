"""Tasks with a partition key: the tasks of a key run one at a time and in order, and the keys take turns."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.model import EventType, OnDeadLetter, Outcome, TaskStatus
from tests.contract import helpers


@pytest.fixture
def put(database):
    """Return a function that enqueues tasks of a key and returns their ids."""

    def put(key: str | None, many: int = 1, **fields: object):
        return [database.add(partition_key=key, **fields).id for _ in range(many)]

    return put


@pytest.fixture
def take(database):
    """Return a function that claims tasks."""

    def take(limit: int = 10, **options: object):
        return database.claim(limit, **options)

    return take


def ids(claims):
    return [claim.id for claim in claims]


def keys(claims):
    return sorted(claim.partition_key or "-" for claim in claims)


def complete(database, *claims):
    for claim in claims:
        database.frozen.complete(claim)


def held_keys(database):
    return database.rows("SELECT queue, partition_key, held FROM partition_claims ORDER BY 1, 2")


def test_one_task_of_a_key_is_claimed_at_a_time_in_the_order_of_enqueueing(database, put, take):
    first, second, third = put("a", 3)
    (claim,) = take()
    assert claim.id == first
    assert claim.partition_key == "a"
    assert take() == []
    complete(database, claim)
    (claim,) = take()
    assert claim.id == second
    complete(database, claim)
    assert ids(take()) == [third]


def test_a_running_task_blocks_its_key_and_no_other(database, put, take):
    put("a", 2), put("b", 2)
    running = take()
    assert keys(running) == ["a", "b"]
    (other,) = put("c")
    assert ids(take()) == [other]


def test_a_delayed_head_blocks_its_key_and_no_other(database, put, take):
    (delayed,) = put("a", delay=timedelta(seconds=60))
    put("a"), put("b")
    assert keys(take()) == ["b"]
    database.clock.advance(60)
    assert ids(take()) == [delayed]


def test_a_task_waiting_for_its_retry_blocks_its_key_and_keeps_its_place(database, put, take):
    first, second = put("a", 2)
    (claim,) = take()
    database.frozen.finish(
        [Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, delay=timedelta(seconds=30), error="no")]
    )
    assert take() == []
    database.clock.advance(30)
    (claim,) = take()
    assert (claim.id, claim.attempt) == (first, 2)
    complete(database, claim)
    assert ids(take()) == [second]


@pytest.mark.parametrize("end", [EventType.SNOOZED, EventType.RELEASED])
def test_a_released_or_snoozed_task_stays_at_the_head_of_its_key(database, put, take, end):
    first, _ = put("a", 2)
    (claim,) = take()
    database.frozen.finish([Outcome(claim=claim, event_type=end)])
    assert ids(take()) == [first]


def test_a_recovered_task_stays_at_the_head_of_its_key(database, put, take):
    first, _ = put("a", 2)
    (claim,) = take()
    helpers.recovered(database, claim)
    assert ids(take()) == [first]


def test_tasks_without_a_key_do_not_block_each_other(database, put, take):
    put(None, 5)
    assert len(take()) == 5


def test_tasks_with_and_without_keys_are_claimed_together(database, put, take):
    put(None, 3), put("a", 3), put("b", 3)
    assert keys(take(10)) == ["-", "-", "-", "a", "b"]


def test_tasks_with_a_key_and_tasks_without_a_key_get_equal_shares(database, put, take):
    put(None, 50)
    for key in range(50):
        put(f"k{key:02}")
    seen = [keys(take(10)) for _ in range(4)]
    assert sum(name == "-" for batch in seen for name in batch) == 20


def test_the_same_key_in_another_queue_is_a_separate_key(database, put, take):
    put("a", 2, queue="one"), put("a", 2, queue="two")
    assert sorted(claim.queue for claim in take()) == ["one", "two"]


@pytest.mark.parametrize("queues", [["one"], ["one", "three"]])
def test_a_claim_for_some_queues_takes_only_keys_of_those_queues(database, put, take, queues):
    put("a", queue="one"), put("a", queue="two"), put("b", queue="three")
    assert sorted(claim.queue for claim in take(queues=queues)) == queues


def test_a_key_with_one_task_is_in_the_first_two_batches_behind_one_with_thousands(database, put, take):
    put("a", 100), put("b")
    assert "b" in keys(take(2))


def test_keys_take_turns(database, put, take):
    for key in "abcde":
        put(key, 3)
    batches = []
    for _ in range(5):
        batch = take(2)
        batches.append(keys(batch))
        complete(database, *batch)
    assert batches == [["a", "b"], ["c", "d"], ["a", "e"], ["b", "c"], ["d", "e"]]


def test_priority_is_respected_within_a_key(database, put, take):
    low, second = put("a", 2)
    (high,) = put("a", priority=5)
    order = []
    for _ in range(3):
        (claim,) = take()
        order.append(claim.id)
        complete(database, claim)
    assert order == [high, low, second]


def test_a_failed_head_lets_the_next_one_run(database, put, take):
    _, second = put("a", 2)
    (claim,) = take()
    database.frozen.fail(claim, "broken")
    assert ids(take()) == [second]


def test_a_failed_head_with_hold_holds_its_key_until_it_is_redriven(database, put, take):
    first, second = put("a", 2, on_dead_letter=OnDeadLetter.HOLD)
    put("b")
    (claim, other) = sorted(take(), key=lambda claim: claim.partition_key)
    database.frozen.fail(claim, "broken")
    complete(database, other)
    assert take() == []
    assert [bool(held) for _, _, held in held_keys(database)] == [True]
    database.frozen.redrive(first)
    assert held_keys(database) == []
    (claim,) = take()
    assert claim.id == first
    complete(database, claim)
    assert ids(take()) == [second]


def test_an_abandoned_head_holds_its_key_too(database, put, take):
    put("a", 2, on_dead_letter=OnDeadLetter.HOLD)
    (claim,) = take()
    database.clock.advance(claim.lease_seconds + 1)
    (recovered,) = database.frozen.recover(max_recoveries=0)
    assert recovered.status is TaskStatus.FAILED
    assert take() == []


def test_a_cancelled_head_frees_its_key(database, put, take):
    first, second, third = put("a", 3, on_dead_letter=OnDeadLetter.HOLD)
    (claim,) = take()
    database.frozen.cancel(first, force=True)
    (claim,) = take()
    assert claim.id == second
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.CANCELLED)])
    assert ids(take()) == [third]


def test_an_expired_head_is_recorded_and_the_next_one_runs(database, put, take):
    (first,) = put("a", expires_in=timedelta(seconds=10))
    (second,) = put("a")
    database.clock.advance(10)
    assert ids(take()) == [second]
    assert helpers.types(database, first) == ["task_created", "task_expired"]
    assert database.store.get(first).status is TaskStatus.CANCELLED


def test_many_delayed_keys_do_not_hide_a_due_task(database, put, take):
    for key in range(150):
        put(f"a{key:03}", delay=timedelta(hours=1))
    (due,) = put("z")
    assert ids(take(1)) == [due]


def test_many_tasks_of_one_running_key_do_not_hide_a_due_task(database, put, take):
    put("a", 150)
    take(1)
    (due,) = put("z")
    assert ids(take(1)) == [due]


def test_two_workers_never_run_tasks_with_the_same_key_at_the_same_time(database, put):
    for key in range(8):
        put(f"k{key}", 5)
    workers = [uuid4() for _ in range(4)]
    batches = helpers.at_once(*(lambda w=w: database.claim(4, worker_id=w) for w in workers))
    claimed = [claim.partition_key for batch in batches for claim in batch]
    assert len(claimed) == len(set(claimed))


def test_a_claim_in_a_transaction_of_the_caller_leaves_no_key_after_a_rollback(database, put):
    put("a", 2)
    with helpers.transaction(database) as connection:
        assert len(database.claim(5, using=connection)) == 1
        connection.rollback()
    assert held_keys(database) == []
    assert len(database.claim(5)) == 1


def test_many_blocked_keys_with_due_tasks_do_not_hide_a_claimable_task(database, put, take):
    """Heads wait for their retry, with due tasks behind them, as after an outage."""
    for number in range(120):
        put(f"a{number:03}", delay=timedelta(hours=1))
        put(f"a{number:03}")
    (free,) = put("zz")
    assert ids(take(1)) == [free]


def test_pruning_a_dead_letter_that_holds_its_key_wakes_the_queue(database, put, take, monkeypatch):
    _, second = put("a", 2, on_dead_letter=OnDeadLetter.HOLD)
    (claim,) = take()
    database.frozen.fail(claim, "broken")
    database.clock.advance(timedelta(days=100))
    told = helpers.woken(database.frozen, monkeypatch)
    assert database.frozen.prune(timedelta(days=1), statuses=[TaskStatus.FAILED]) == 1
    assert told == ["default"]
    assert ids(take()) == [second]
