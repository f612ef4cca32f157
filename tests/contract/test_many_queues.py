"""Claims when more queues have keys or limits than one claim reads."""

from __future__ import annotations

from collections import Counter

import pytest

from outboxq.model import NewTask, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store import ClaimCursor

MANY = 49


def fill(database, each: int, kinds: str) -> list[str]:
    """Enqueue tasks in many queues, which have these kinds in turn. Return the queues."""
    names = [f"queue-{place:03}" for place in range(MANY)]
    for place, queue in enumerate(names):
        kind = kinds.split()[place % len(kinds.split())]
        if kind == "limited":
            database.store.queues.limit(queue, concurrency=each, create=True)
        if kind == "oldest":
            database.store.queues.order(queue, fair=False, create=True)
        key = "k{}" if kind in {"keyed", "oldest"} else None
        new = [
            NewTask(
                id=uuid7(), task_name="tests.work", args="{}", queue=queue, partition_key=key and key.format(number)
            )
            for number in range(each)
        ]
        database.store.enqueue_many(new)
    return names


@pytest.mark.parametrize("kinds", ["limited", "keyed", "keyed limited plain oldest"])
def test_queues_take_turns_in_claims_of_one_task(database, kinds):
    names = fill(database, 2, kinds)
    served = [claim.queue for _ in range(2 * MANY) for claim in database.claim(store=database.store)]
    assert Counter(served) == dict.fromkeys(names, 2)
    if kinds != "keyed limited plain oldest":
        assert set(served[:MANY]) == set(names), "a queue was served twice before each had been served once"


@pytest.mark.parametrize("kinds", ["limited", "keyed", "keyed limited plain oldest"])
def test_a_large_claim_takes_tasks_from_all_queues(database, kinds):
    names = fill(database, 2, kinds)
    assert Counter(claim.queue for claim in database.claim(1000, database.store)) == dict.fromkeys(names, 2)
    assert database.claim(1000, database.store) == []


@pytest.mark.parametrize("kinds", ["limited", "keyed"])
def test_queues_that_cannot_start_a_task_do_not_hide_other_queues(database, kinds):
    names = fill(database, 1, kinds)
    assert len(database.claim(1000, database.store)) == MANY
    for queue in names:  # each queue is at its limit, or its key is taken
        database.add(database.store, queue=queue, partition_key="k0" if kinds == "keyed" else None)
    assert database.claim(store=database.store) == []
    last = database.add(database.store, queue="z", partition_key="free")
    assert [claim.id for claim in database.claim(store=database.store)] == [last.id]
    first = database.add(database.store, queue="a", partition_key="free")
    assert [claim.id for claim in database.claim(store=database.store)] == [first.id]
    assert database.claim(store=database.store) == []


def test_the_few_queues_with_keys_are_read_together_again_when_others_are_empty(database):
    names, cursor = fill(database, 1, "keyed"), ClaimCursor()
    for queue in names[:16]:
        database.add(database.store, queue=queue, partition_key="other")
    database.claim(store=database.store, cursor=cursor)
    assert cursor.others_are_many
    while len(database.store.tasks(status=TaskStatus.READY, limit=100)) > 16:
        database.claim(store=database.store, cursor=cursor)
    for _ in range(16):
        assert database.claim(store=database.store, cursor=cursor)
    assert not cursor.others_are_many


def test_sixteen_queues_do_not_count_as_many(database):
    cursor = ClaimCursor()
    for queue in range(16):
        database.add(database.store, queue=f"q{queue}", partition_key="k")
    assert len(database.claim(store=database.store, cursor=cursor)) == 1
    assert not cursor.others_are_many
