"""No task waits behind another key's backlog: keys take turns, and so do tasks with and without a key."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.store import Store

EARLIER = "2030-01-01T11:00:00.000000+00:00"
ID = {
    "sqlite": "printf('0190000000007000{:04x}%012x', n)",
    "postgresql": "('0190000000007000{:04x}' || lpad(to_hex(n), 12, '0'))::uuid",
}
INSTANT = {"sqlite": f"'{EARLIER}'", "postgresql": f"'{EARLIER}'::timestamptz"}


def fill(database, key, many, family):
    """Insert `many` tasks of a key that became due an hour ago. Enqueueing them would take too long."""
    identity, at = ID[database.name].format(0x8000 + family), INSTANT[database.name]
    numbers = f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {many}) "
    named = f"{identity}, 'default', {key}"
    into = {
        "task_executions (id, queue, partition_key, pipeline_execution_id, task_name, position, priority, args, status, "
        "attempt, recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at)": (
            f"{named}, {identity}, 'tests.work', n, 0, '{{}}', 'Ready', 1, 0, 60, 0, 'release', {at}, {at}"
        ),
        "task_outbox (task_execution_id, queue, partition_key, priority, position, available_at, created_at)": (
            f"{named}, 0, n, {at}, {at}"
        ),
        "execution_events (pipeline_execution_id, task_execution_id, event_type, event_data, created_at)": (
            f"""{identity}, {identity}, 'task_created', '{{"available_at": "{EARLIER}"}}', {at}"""
        ),
    }
    for table, columns in into.items():
        select = f"{numbers} SELECT {columns} FROM numbers"
        database.run(f"INSERT INTO {table} {select}")
    if database.name == "postgresql":  # the positions were not taken from the sequence
        database.run(f"SELECT setval('task_position', greatest({many}, nextval('task_position')))")


@pytest.fixture
def workers(database):
    """`workers(3)` returns three workers with separate rotations. Each claims tasks up to its limit and completes them."""

    def make(many):
        def one():
            store, worker = Store(database.engine, clock=database.clock), uuid4()

            def work(limit, *, ends=True):
                claims = store.claim_ready_task(limit, worker_id=worker)
                for claim in claims if ends else ():
                    store.complete(claim)
                return [claim.partition_key for claim in claims]

            return work

        return [one() for _ in range(many)]

    return make


@pytest.mark.parametrize("many", [5_000, pytest.param(100_000, marks=pytest.mark.campaign)])
def test_a_key_with_one_task_behind_a_key_with_thousands_is_in_the_first_batch(database, workers, many):
    """This is true for batches of two or more, wherever the key is in the rotation of the claiming worker."""
    fill(database, "'mm'", many, 1)
    crowd = workers(3)
    for limit in (2, 8, 100):
        for key in ("a", "z"):
            for work in crowd:
                database.add(partition_key=key)
                assert key in work(limit)


@pytest.mark.parametrize("many", [5_000, pytest.param(100_000, marks=pytest.mark.campaign)])
def test_a_task_with_a_key_waits_for_at_most_one_batch_without_keys(database, workers, many):
    """Each worker turns to tasks with a key when tasks without a key have filled one batch."""
    fill(database, "NULL", many, 1)
    for limit in (2, 8, 100):
        for key, work in zip("az", workers(2), strict=True):
            database.add(partition_key=key)
            assert key in work(limit) + work(limit)


def test_a_small_key_gets_its_turn_among_ten_big_keys(database, workers):
    """With eleven keys and batches of two, every key has had its turn by a worker's sixth batch."""
    for tenant in range(10):
        fill(database, f"'big-{tenant}'", 100, tenant)
    for work in workers(3):
        work(2)
        database.add(partition_key="big-5-small")
        assert "big-5-small" in [key for _ in range(6) for key in work(2)]


def test_claims_of_one_task_are_shared_by_tasks_with_keys_without_keys_and_in_a_limited_queue(database, workers):
    database.frozen.queues.limit("limited", concurrency=2, create=True)
    for number in range(60):
        database.add(priority=100)
        database.add(partition_key=f"k{number % 3}", priority=-100)
        database.add(queue="limited", partition_key="limited" if number % 2 else "limited too")
    (work,) = workers(1)
    seen = Counter(key for _ in range(60) for key in work(1))
    assert seen[None] == 30, seen
    assert all(seen[key] >= 4 for key in ("k0", "k1", "k2", "limited", "limited too")), seen


def test_two_workers_that_claim_one_task_at_a_time_starve_no_key(database, workers):
    for number in range(40):
        database.add(priority=100)
        database.add(partition_key=f"k{number % 4}")
    pair = workers(2)
    seen = Counter(key for number in range(40) for key in pair[number % 2](1))
    assert seen[None] == 20, seen
    assert all(seen[f"k{number}"] >= 4 for number in range(4)), seen


@pytest.fixture
def queues_served(database, workers):
    """`queues_served(limit, claims)` returns the queues of one worker's claims. Each key begins with its queue's name."""
    (work,) = workers(1)

    def serve(limit, claims):
        return [[key.split("-")[0] for key in work(limit)] for _ in range(claims)]

    return serve


def put(database, queue, many, **fields):
    for number in range(many):
        database.add(queue=queue, partition_key=f"{queue}-{number:03}", **fields)


def test_claims_of_one_task_alternate_between_queues_with_many_and_few_keys(database, queues_served):
    put(database, "a", 40)
    put(database, "z", 5)
    seen = [queue for (queue,) in queues_served(1, 45)]
    assert sorted(seen[:10]) == ["a"] * 5 + ["z"] * 5
    assert all(one != other for one, other in itertools.pairwise(seen[:10]))
    assert seen[10:] == ["a"] * 35


def test_a_queue_with_one_key_gets_every_second_claim_of_one_task(database, queues_served):
    """The queue's round ends with each task and begins again."""
    put(database, "a", 40)
    for _ in range(5):
        database.add(queue="z", partition_key="z-only")
    seen = [queue for (queue,) in queues_served(1, 10)]
    assert seen.count("z") == 5, seen


@pytest.mark.in_turn
@pytest.mark.parametrize("limit", [1, 4, *(pytest.param(limit, marks=pytest.mark.full) for limit in (2, 5))])
def test_three_queues_get_the_same_share_whatever_their_names_and_sizes(database, queues_served, limit):
    sizes = {"apple": 60, "Mango": 20, "zebra": 20}
    for queue, many in sizes.items():
        put(database, queue, many)
    served = Counter[str]()
    for batch in queues_served(limit, 60 // limit):
        served.update(batch)
        assert max(served.values()) - min(served[queue] for queue in sizes) <= 1, served


@pytest.mark.parametrize("limit", [1, 4])
def test_keys_that_cannot_be_claimed_do_not_cost_their_queue_its_turn(database, workers, limit):
    """Only a queue's claimable keys are counted, not the blocked keys before them. No claimable key is passed over."""
    put(database, "a", 40)
    put(database, "z", 40, delay=timedelta(hours=1))  # and four more before each claimable key
    for number in range(5):
        database.add(queue="z", partition_key=f"z-{number}05-late")
        for blocked in range(4):
            database.add(queue="z", partition_key=f"z-{number}0{blocked}", delay=timedelta(hours=1))
    (work,) = workers(1)
    seen = [key for _ in range(12 // limit) for key in work(limit)]
    assert [key for key in seen if key[0] == "z"] == [f"z-{number}05-late" for number in range(5)], seen


def test_queues_whose_keys_do_not_take_turns_are_claimed_in_order_of_due_time(database, queues_served):
    for queue in ("a", "z"):
        database.frozen.queues.order(queue, fair=False, create=True)
    order = ["z", "a", "a", "z", "a", "z", "z", "a"]
    for number, queue in enumerate(order):
        database.add(queue=queue, partition_key=f"{queue}-{number}")
        database.clock.advance(1)
    assert [queue for (queue,) in queues_served(1, len(order))] == order


def test_queues_with_and_without_turns_share_claims_of_one_task(database, queues_served):
    database.frozen.queues.order("m", fair=False, create=True)
    for queue in "amz":
        put(database, queue, 20)
    seen = Counter(queue for (queue,) in queues_served(1, 20))
    assert seen["m"] == 10, seen
    assert seen["a"] == seen["z"] == 5, seen


@pytest.mark.parametrize("many", [1, 3])
def test_keys_that_appear_and_disappear_starve_no_other_key(database, workers, many):
    """Keys appear before and after the cursor, and disappear while it is on them. Each remaining key is served in every round."""
    chance, crowd = random.Random(many), workers(many)
    stays = [f"{letter}-stays" for letter in "bfkt"]
    passing: dict[str, object] = {}
    for key in stays:
        for _ in range(3):
            database.add(partition_key=key)
    waited = dict.fromkeys(stays, 0)
    for batch in range(40):
        for key in [key for key in passing if chance.random() < 0.5]:
            handle = passing.pop(key)
            if database.store.get(handle.id).status == "Ready":
                database.frozen.cancel(handle.id)
        for _ in range(chance.randrange(3)):
            key = f"{chance.choice('acehmuz')}-{batch}-{len(passing)}"
            passing[key] = database.add(partition_key=key)
        served = crowd[batch % many](2)
        assert len(served) == 2
        for key in stays:
            waited[key] = 0 if key in served else waited[key] + 1
            if key in served:
                database.add(partition_key=key)
        assert max(waited.values()) <= 6 * many, (batch, waited)
