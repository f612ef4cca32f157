"""Waits on PostgreSQL while a caller's transaction is open, as listed in docs/explanation/locks.md."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from psycopg.errors import LockNotAvailable
from sqlalchemy.exc import OperationalError

from outboxq.model import NewTask, OnConflict, OnDeadLetter, TaskStatus
from outboxq.model.subscriptions import NewEvent, Subscription
from outboxq.model.uuid7 import family, uuid7
from tests.contract import helpers


def enqueue(p, using, **fields):
    return p.store.enqueue(NewTask(id=uuid7(), task_name="tests.work", args="{}", **fields), using=using)


def emit(p, using, **fields):
    return p.store.emit(NewEvent(id=family(), topic="order.paid", **fields), using=using)


def replace(p, using):
    assert enqueue(p, using, idempotency_key="taken", on_conflict=OnConflict.REPLACE).replaced


def claim(p, using):
    """Another task can always be claimed."""
    assert p.other in [claim.id for claim in p.database.claim(10, store=p.store, using=using)]


def claim_of_limited(p, using):
    assert p.database.claim(10, store=p.store, queues=["limited"], using=using) == []


WAITS = {
    "a key enqueued, and enqueued": (
        lambda p, using: enqueue(p, using, idempotency_key="new"),
        lambda p, using: enqueue(p, using, idempotency_key="new"),
    ),
    "a key emitted, and emitted": (
        lambda p, using: emit(p, using, idempotency_key="new"),
        lambda p, using: emit(p, using, idempotency_key="new"),
    ),
    "a task replaced, and replaced": (replace, replace),
    "a running task cancelled, and completed": (
        lambda p, using: p.store.cancel(p.running.id, force=True, using=using),
        lambda p, using: p.store.complete(p.running, using=using),
    ),
    "a dead letter redriven, and discarded": (
        lambda p, using: p.store.redrive(p.dead, using=using),
        lambda p, using: p.store.discard(p.dead, using=using),
    ),
    "a queue paused, and limited": (
        lambda p, using: p.store.queues.pause("limited", using=using, create=True),
        lambda p, using: p.store.queues.limit("limited", concurrency=2, using=using, create=True),
    ),
}
GOES_ON = {
    "a task enqueued, and claims": (enqueue, claim),
    "a task enqueued, and enqueued": (enqueue, enqueue),
    "an event emitted, and emitted": (emit, emit),
    "an event emitted, and subscribed to": (
        emit,
        lambda p, using: p.store.subscriptions.replace([Subscription(**p.subscription, priority=7)], using=using),
    ),
    "a key enqueued, and another": (
        lambda p, using: enqueue(p, using, idempotency_key="new"),
        lambda p, using: enqueue(p, using, idempotency_key="newer"),
    ),
    "a partition key, and the same": (
        lambda p, using: enqueue(p, using, partition_key="mine"),
        lambda p, using: enqueue(p, using, partition_key="mine"),
    ),
    "a partition key, and claims": (lambda p, using: enqueue(p, using, partition_key="mine"), claim),
    "a task replaced, and claims": (replace, claim),
    "a dead letter redriven, and claims": (lambda p, using: p.store.redrive(p.dead, using=using), claim),
    "a waiting task cancelled, and claims": (lambda p, using: p.store.cancel(p.taken, using=using), claim),
    "a limited queue paused, and claims of it": (
        lambda p, using: p.store.queues.pause("limited", using=using, create=True),
        claim_of_limited,
    ),
    "a limited queue paused, and claims": (
        lambda p, using: p.store.queues.pause("limited", using=using, create=True),
        claim,
    ),
    "a limited queue paused, and enqueued to": (
        lambda p, using: p.store.queues.pause("limited", using=using, create=True),
        lambda p, using: enqueue(p, using, queue="limited"),
    ),
}


@pytest.fixture
def place(postgresql):
    """A dead letter that holds its key, a running task, and waiting tasks: one with a key, one in a limited queue, and another one."""
    p = SimpleNamespace(database=postgresql, store=postgresql.store)
    p.subscription = {"topic": "order.paid", "task_name": "tests.book", "parameter": "order"}
    p.store.subscriptions.replace([Subscription(**p.subscription)])
    p.store.queues.limit("limited", concurrency=1, create=True)
    p.dead = postgresql.add(p.store, partition_key="held", on_dead_letter=OnDeadLetter.HOLD).id
    [letter] = postgresql.claim(store=p.store)
    p.store.fail(letter, "it failed")
    postgresql.add(p.store)
    [p.running] = postgresql.claim(store=p.store)
    p.taken = enqueue(p, None, idempotency_key="taken").id
    enqueue(p, None, queue="limited")
    p.other = enqueue(p, None).id
    return p


def ended_with_key(p, key):
    """Create a task that has ended, which has freed its key."""
    fields = {"idempotency_key": key, "unique_until_finished": True} if key else {}
    task_id = enqueue(p, None, queue="ended", **fields).id
    [claim] = p.database.claim(store=p.store, queues=["ended"])
    p.store.complete(claim)
    return task_id


def two(place, first, then):
    """Keep the first call's transaction open while the second call runs. The second call fails instead of waiting."""
    with helpers.transaction(place.database) as one, helpers.transaction(place.database) as other:
        other.exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
        first(place, one)
        try:
            then(place, other)
        finally:
            other.rollback()
            one.rollback()


@pytest.mark.parametrize("case", WAITS)
def test_this_call_waits(place, case):
    with pytest.raises(OperationalError) as error:
        two(place, *WAITS[case])
    assert isinstance(error.value.orig, LockNotAvailable)


@pytest.mark.parametrize("case", GOES_ON)
def test_this_call_does_not_wait(place, case):
    two(place, *GOES_ON[case])


def take_over(p, using, key):
    assert enqueue(p, using, idempotency_key=key, unique_until_finished=True).created


def prune(p):
    with helpers.transaction(p.database) as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
        count = p.store.prune(0, batch=2, using=connection)
        connection.commit()
    return count


def test_prune_skips_a_task_whose_key_is_being_taken_over_and_deletes_the_others(place):
    _, holder, *_ = [ended_with_key(place, key) for key in (None, "free again", "another", None, None)]
    with helpers.transaction(place.database) as caller:
        take_over(place, caller, "free again")
        assert prune(place) == 4
        caller.rollback()
    left = [task.id for task in place.store.tasks(status=TaskStatus.COMPLETED)]
    assert left == [holder]
    assert prune(place) == 1


def test_a_caller_that_takes_over_keys_and_a_prune_in_id_order_do_not_deadlock(place):
    for key in ("z", "a"):  # their ids are in the opposite order
        ended_with_key(place, key)
    with helpers.transaction(place.database) as caller:
        take_over(place, caller, "a")
        assert prune(place) == 1
        take_over(place, caller, "z")
        caller.commit()
    assert prune(place) == 1  # the key of the other task has a new owner
    assert place.database.rows("SELECT count(*) FROM idempotency_keys WHERE key IN ('a', 'z')") == [(2,)]
