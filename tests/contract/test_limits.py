"""Paused queues, limits on running tasks and on starts per period, and expiry."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.model import TaskStatus
from outboxq.store import Reason
from tests.contract import helpers


def settle(database, **settings):
    """Store settings for the queue `default`, as an operator would."""
    columns = {"queue": "default", "fair": True, "updated_at": "2030-01-01T12:00:00.000000+00:00", **settings}
    names, values = ", ".join(columns), ", ".join(_literal(database, value) for value in columns.values())
    database.run(f"INSERT INTO queue_settings ({names}) VALUES ({values})")


def _literal(database, value):
    if isinstance(value, bool):
        return str(int(value)) if database.name == "sqlite" else str(value)
    return f"'{value}'" if isinstance(value, str) else str(value)


PAUSED = {"paused_at": "2030-01-01T12:00:00.000000+00:00"}


@pytest.mark.parametrize("key", [None, "a"])
def test_tasks_of_a_paused_queue_are_not_claimed(database, key):
    settle(database, **PAUSED)
    database.add(partition_key=key)
    other = database.add(queue="other", partition_key=key)
    assert [claim.id for claim in database.claim(5)] == [other.id]
    assert database.claim(5, queues=["default"]) == []
    assert database.frozen.look_ahead(["default"]).due is False


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("queues", [None, ["default"]])
def test_running_tasks_do_not_exceed_the_limit_of_the_queue_for_any_worker(database, keyed, queues):
    settle(database, concurrency_limit=3)
    for number in range(10):
        database.add(partition_key=f"k{number}" if keyed else None)
    first = database.claim(2, queues=queues)
    second = database.claim(5, queues=queues, worker_id=uuid4())
    assert (len(first), len(second)) == (2, 1)
    assert database.claim(5, queues=queues) == []
    assert database.frozen.look_ahead(queues).due is False
    database.frozen.complete(first[0])
    assert database.frozen.look_ahead(queues).due is True
    assert len(database.claim(5, queues=queues)) == 1


def test_simultaneous_claims_do_not_exceed_the_limit(database):
    settle(database, concurrency_limit=3)
    for _ in range(20):
        database.add()
    batches = helpers.at_once(*(lambda: database.claim(2, worker_id=uuid4()) for _ in range(6)))
    assert sum(len(batch) for batch in batches) <= 3
    assert database.rows("SELECT count(*) FROM task_leases")[0][0] <= 3


def test_a_limit_of_one_queue_leaves_the_others_alone(database):
    settle(database, concurrency_limit=1)
    for queue in ("default", "other"):
        for _ in range(3):
            database.add(queue=queue)
    assert sorted(claim.queue for claim in database.claim(10)) == ["default", "other", "other", "other"]


def test_tasks_with_and_without_a_key_share_a_limited_queue(database):
    settle(database, concurrency_limit=4)
    for number in range(6):
        database.add(), database.add(partition_key=f"k{number}")
    assert sorted(claim.partition_key is None for claim in database.claim(10)) == [False, False, True, True]


def test_starts_do_not_exceed_the_rate_of_the_queue(database):
    settle(database, rate_limit=4, rate_seconds=60.0)
    for _ in range(20):
        database.add()
    claims = database.claim(10)
    assert len(claims) == 4
    for claim in claims:
        database.frozen.complete(claim)
    assert database.claim(10) == []
    ahead = database.frozen.look_ahead()
    assert (ahead.due, ahead.seconds) == (False, 15.0)
    database.clock.advance(14.9)
    assert database.claim(10) == []
    database.clock.advance(0.1)
    assert len(database.claim(10)) == 1
    database.clock.advance(600)
    assert len(database.claim(10)) == 4


@pytest.mark.parametrize(("seconds", "startable"), [(90, 0), (119, 0), (172_800, 1)])
def test_a_rate_that_was_used_in_the_far_future_blocks_no_task(database, seconds, startable):
    """The database's clock has been set back in the meantime."""
    task = database.add()
    settle(database, rate_limit=1, rate_seconds=60.0)
    full_at = (database.clock.now + timedelta(seconds=seconds)).isoformat(timespec="microseconds")
    database.run(f"UPDATE queue_settings SET rate_full_at = '{full_at}'")
    assert database.frozen.look_ahead().due is bool(startable)
    assert (database.frozen.explain(task.id).reason is Reason.RATE_LIMIT) is not bool(startable)
    assert len(database.claim(5)) == startable
    if startable:
        database.add()
        assert database.claim(5) == []
        ahead = database.frozen.look_ahead()
        assert (ahead.due, ahead.seconds) == (False, 60.0)


def test_a_task_is_not_started_once_it_has_expired(database):
    late = database.add(expires_in=timedelta(seconds=10))
    (just,) = (database.add(expires_at=database.clock.now + timedelta(seconds=10, microseconds=1)),)
    database.clock.advance(10)
    assert [claim.id for claim in database.claim(5)] == [just.id]
    row = database.store.get(late.id)
    assert (row.status, row.completed_at) == (TaskStatus.CANCELLED, database.clock.now)
    (_, expired) = database.store.history(late.id)
    assert expired.event_type == "task_expired"
    assert expired.lease_token is None
    assert database.counts()[2] == 0


def test_many_expired_tasks_do_not_hide_a_claimable_task(database):
    for _ in range(25):
        database.add(expires_in=timedelta(seconds=1))
    alive = database.add()
    database.clock.advance(5)
    assert [claim.id for claim in database.claim(3)] == [alive.id]


def test_a_retry_that_is_due_after_the_expiry_expires(database):
    claim = helpers.claimed(database, expires_in=timedelta(seconds=30))
    database.frozen.schedule_retry(claim.id, database.clock.now + timedelta(seconds=40), 2)
    database.clock.advance(40)
    assert database.claim(5) == []
    assert helpers.types(database, claim.id)[-1] == "task_expired"


@pytest.mark.in_turn
@pytest.mark.parametrize("key", [None, "a"])
@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (["order.paid"], ["order.paid"]),
        (["order.*"], ["order.paid", "order.sent"]),
        (["*"], ["order.paid", "order.sent", "user.new"]),
        (["user.new", "order.sent"], ["order.sent", "user.new"]),
        (["nothing.*"], []),
    ],
)
@pytest.mark.parametrize("queues", [None, ["default"], ["default", "other"]])
def test_a_worker_claims_only_tasks_with_its_topics(database, key, queues, topics, expected):
    for number, kind in enumerate(("order.paid", "order.sent", "user.new", None)):
        database.add(topic=kind, partition_key=key and f"{key}{number}")
    claims = database.claim(10, topics=topics, queues=queues)
    assert sorted(claim.topic for claim in claims) == expected
    assert database.frozen.look_ahead(queues, topics=topics).due is False
    assert database.frozen.look_ahead(queues).due is True


def test_a_head_with_another_topic_blocks_its_key_only_for_this_worker(database):
    database.add(topic="a", partition_key="k"), database.add(topic="b", partition_key="k")
    assert database.claim(5, topics=["b"]) == []
    assert len(database.claim(5, topics=["a"])) == 1


@pytest.mark.parametrize(("rate", "seconds"), [(10**9, 60.0), (2**31 - 1, 0.001), (7, 60.0)])
def test_very_high_rates_are_supported(database, rate, seconds):
    settle(database, rate_limit=rate, rate_seconds=seconds)
    for _ in range(8):
        database.add()
    assert len(database.claim(10)) == min(8, rate)


def test_the_rate_of_another_queue_wakes_no_worker(database):
    settle(database, rate_limit=1, rate_seconds=60.0)
    database.add(), database.add()
    assert len(database.claim(5)) == 1
    assert database.frozen.next_available_at(["other"]) is None
    assert database.frozen.next_available_at(["default"]) == database.clock.now + timedelta(seconds=60)


def test_a_limited_queue_keeps_its_order_of_keys(database):
    settle(database, concurrency_limit=1, fair=False)
    database.add(partition_key="a", available_at=database.clock.now - timedelta(minutes=1))
    oldest = database.add(partition_key="z", available_at=database.clock.now - timedelta(hours=5))
    assert [claim.id for claim in database.claim(1)] == [oldest.id]


def test_the_end_of_a_task_claimed_before_the_limit_was_set_wakes_the_queue(database, monkeypatch):
    claims = [helpers.claimed(database), helpers.claimed(database)]
    settle(database, concurrency_limit=2)
    told = helpers.woken(database.frozen, monkeypatch)
    database.frozen.complete(claims[0])
    assert told == ["default"]
