"""Partition keys on PostgreSQL: sessions that see different data compete for keys and heads. The proof is in
`outboxq/store/claims/partition_keys.py`.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event

from outboxq.model import EventType, NewTask, OnDeadLetter, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.distributor import create_work_distributor
from tests.conftest import Database
from tests.contract import helpers
from tests.sleeper import Sleeper, ear
from tests.waiting import until

MINUTE = timedelta(minutes=1)
HOLD = {"on_dead_letter": OnDeadLetter.HOLD}


@contextmanager
def session(postgresql):
    """A second session in an open transaction, which fails instead of waiting."""
    with helpers.transaction(postgresql) as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '10s'")
        yield connection


@pytest.fixture
def impatient(postgresql):
    with session(postgresql) as connection:
        yield connection


def put(postgresql, key="k", **fields):
    return postgresql.add(partition_key=key, **fields).id


def put_open(postgresql, connection, key="k", **fields):
    """Enqueue a task in an open transaction. Its position is assigned now, but the task exists only if the transaction commits."""
    new = NewTask(id=uuid7(), task_name="tests.work", args="{}", partition_key=key, **fields)
    return postgresql.frozen.enqueue(new, using=connection).id


def ids(claims):
    return [claim.id for claim in claims]


def taken(postgresql, using=None):
    """Return the ids of the tasks that another worker claims without waiting."""
    if using is not None:
        return ids(postgresql.claim(10, worker_id=uuid4(), using=using))
    with session(postgresql) as connection:
        found = taken(postgresql, connection)
        connection.commit()
    return found


def end(postgresql, claim, event_type=EventType.COMPLETED, **fields):
    assert not postgresql.frozen.finish([Outcome(claim=claim, event_type=event_type, **fields)])


def holders(postgresql):
    rows = postgresql.rows("SELECT partition_key, task_execution_id FROM partition_claims ORDER BY 1")
    return {str(key): UUID(str(task)) for key, task in rows}


def drained(postgresql):
    """Return the ids of all due tasks, in the order in which their keys run them."""
    order = []
    while claims := postgresql.claim(10):
        order += ids(claims)
        for claim in claims:
            end(postgresql, claim)
    assert holders(postgresql) == {}
    return order


# A task that was enqueued first but committed last


@pytest.mark.parametrize("committed_first", ["producer", "claimer"])
def test_a_task_that_commits_late_never_runs_beside_the_task_that_overtook_it(postgresql, committed_first):
    """A session that sees the early task cannot get its key, and the session that has the key does not see that task. A claim in a single
    statement would run both.
    """
    with helpers.transaction(postgresql) as producer, helpers.transaction(postgresql) as claimer:
        early = put_open(postgresql, producer)
        late = put(postgresql)
        (claim,) = postgresql.claim(10, using=claimer)
        assert claim.id == late
        assert taken(postgresql) == [], "the claim that took the key is not committed yet"
        for transaction in (producer, claimer) if committed_first == "producer" else (claimer, producer):
            transaction.commit()
            assert taken(postgresql) == [], "a task with this key is running or about to run"
    end(postgresql, claim)
    assert taken(postgresql) == [early]


def test_a_task_that_commits_late_runs_first_if_the_overtaking_claim_is_rolled_back(postgresql):
    with helpers.transaction(postgresql) as producer, helpers.transaction(postgresql) as claimer:
        early, late = put_open(postgresql, producer), put(postgresql)
        assert ids(postgresql.claim(10, using=claimer)) == [late]
        producer.commit()
        assert taken(postgresql) == []
        claimer.rollback()
    assert drained(postgresql) == [early, late]


def test_a_rolled_back_task_does_not_block_its_key(postgresql):
    with helpers.transaction(postgresql) as producer:
        put_open(postgresql, producer)
        late = [put(postgresql), put(postgresql)]
        (claim,) = postgresql.claim(10)
        assert claim.id == late[0]
        producer.rollback()
    end(postgresql, claim)
    assert drained(postgresql) == late[1:]


# A claim whose snapshot is older than the key that it wins


def running(*_):
    pass


def completed(postgresql, claim):
    end(postgresql, claim)


def retried(postgresql, claim):
    end(postgresql, claim, EventType.RETRY_SCHEDULED, delay=MINUTE, error="no")


def snoozed(postgresql, claim):
    end(postgresql, claim, EventType.SNOOZED, delay=MINUTE)


def released(postgresql, claim):
    end(postgresql, claim, EventType.RELEASED)


def failed(postgresql, claim):
    end(postgresql, claim, EventType.FAILED, error="no")


def recovered(postgresql, claim):
    postgresql.run("UPDATE task_leases SET lease_expires_at = '2020-01-01T00:00:00Z'")
    assert ids(postgresql.frozen.recover()) == [claim.id]


def cancelled(postgresql, claim):
    postgresql.frozen.cancel(claim.id, force=True)


def postponed(postgresql, claim):
    postgresql.frozen.schedule_retry(claim.id, postgresql.clock.now + MINUTE, 2)


@pytest.fixture
def late_to_lock(postgresql):
    """A session that takes its snapshot and then stops before it requests a key's lock, until another session releases its own lock.

    It calls its own version of the lock function, which comes first in its search path.
    """
    postgresql.run("CREATE SCHEMA slow")
    postgresql.run(
        "CREATE FUNCTION slow.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM pg_advisory_xact_lock_shared(7); RETURN pg_catalog.pg_try_advisory_xact_lock($1); END $$"
    )
    with helpers.transaction(postgresql) as connection:
        connection.exec_driver_sql("SET LOCAL search_path = slow, pg_catalog, public")
        yield connection
    postgresql.run("DROP SCHEMA slow CASCADE")


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        (None, "early"),
        (running, None),
        (completed, "late"),
        (retried, None),
        (snoozed, None),
        (released, "early"),
        (failed, None),
        (recovered, "early"),
        (cancelled, "late"),
        (postponed, None),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_head_is_read_after_its_key_is_won_and_not_when_the_claim_begins(postgresql, late_to_lock, fate, expected):
    """Between these times, another session's task is committed and claimed, and may end in any way. So the claim's first snapshot is
    outdated.
    """
    with helpers.transaction(postgresql) as producer, helpers.transaction(postgresql) as door:
        tasks = {"early": put_open(postgresql, producer, **HOLD), "late": put(postgresql), None: None}
        door.exec_driver_sql("SELECT pg_advisory_xact_lock(7)")
        with helpers.stuck(postgresql, lambda: postgresql.claim(10, using=late_to_lock)) as claiming:
            producer.commit()
            if fate is not None:
                (claim,) = postgresql.claim(10, worker_id=uuid4())
                assert claim.id == tasks["early"]
                fate(postgresql, claim)
            door.rollback()
            found = claiming.result(60)
        late_to_lock.commit()
    assert ids(found) == [task for task in (tasks[expected],) if task]
    if found:
        assert holders(postgresql) == {"k": tasks[expected]}


@pytest.fixture
def between(postgresql, impatient):
    """Return a function `between(act)`: another session claims, and `act` is called after that session has won its keys."""

    def claim(act):
        done = []

        def see(_connection, _cursor, statement, *_):
            if "heads AS" in statement and not done:
                done.append(act())

        event.listen(impatient, "before_cursor_execute", see)
        found = taken(postgresql, impatient)
        impatient.commit()
        assert done
        return found

    return claim


def test_a_task_committed_after_its_key_was_won_still_runs_first(postgresql, between):
    with helpers.transaction(postgresql) as producer:
        early, late = put_open(postgresql, producer), put(postgresql)
        assert between(lambda: producer.commit() or True) == [early]
    assert holders(postgresql) == {"k": early}
    assert taken(postgresql) == []
    postgresql.frozen.cancel(early, force=True)
    assert drained(postgresql) == [late]


def test_a_head_cancelled_after_its_key_was_won_is_replaced_by_the_next_task(postgresql, between):
    first, second = put(postgresql), put(postgresql)
    assert between(lambda: postgresql.frozen.cancel(first)) == [second]
    assert holders(postgresql) == {"k": second}


def test_a_key_is_freed_if_its_last_task_is_cancelled_after_it_was_won(postgresql, between):
    first = put(postgresql)
    assert between(lambda: postgresql.frozen.cancel(first)) == []
    assert holders(postgresql) == {}


# No session waits


def test_an_uncommitted_claim_does_not_block_other_claims(postgresql, impatient):
    for key in "abcd":
        put(postgresql, key), put(postgresql, key)
    with helpers.transaction(postgresql) as first:
        mine = postgresql.claim(2, using=first)
        others = postgresql.claim(10, worker_id=uuid4(), using=impatient)
        assert [claim.partition_key for claim in (*mine, *others)] == ["a", "b", "c", "d"]
        first.rollback()
    impatient.commit()
    assert [claim.partition_key for claim in postgresql.claim(10)] == ["a", "b"]


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_a_small_claim_is_full_although_another_claim_holds_the_first_keys(postgresql, impatient, limit):
    """The claim also locks no more keys than it wins."""
    for key in "abcdef":
        put(postgresql, key)
    with helpers.transaction(postgresql) as first:
        postgresql.claim(2, using=first)
        store = Store(postgresql.engine, clock=postgresql.clock)
        claims = store.claim_ready_task(limit, worker_id=uuid4(), using=impatient)
        assert [claim.partition_key for claim in claims] == list("cdef"[:limit])
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert impatient.exec_driver_sql(locks).scalar() == len(claims)


HANDS = {
    "cancel": lambda store, task, using: store.cancel(task, using=using),
    "schedule_retry": lambda store, task, using: store.schedule_retry(task, store.clock() + MINUTE, 2, using=using),
    "set_priority": lambda store, task, using: store.set_priority(task, -5, using=using),
}


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("hand", HANDS)
def test_a_head_changed_by_an_open_transaction_is_skipped_with_its_key(postgresql, hand, ends):
    """The task behind the head must not be claimed, because the other session may roll back."""
    head, second = put(postgresql), put(postgresql)
    other = put(postgresql, "other")
    with helpers.transaction(postgresql) as hands:
        HANDS[hand](postgresql.frozen, head, hands)
        assert taken(postgresql) == [other]
        assert holders(postgresql) == {"other": other}
        getattr(hands, ends)()
    expected = {"cancel": [second], "schedule_retry": [], "set_priority": [second]}[hand]
    assert taken(postgresql) == ([head] if ends == "rollback" else expected)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("how", [completed, retried, failed, cancelled, recovered])
def test_an_uncommitted_end_keeps_its_key_until_the_commit(postgresql, monkeypatch, how, ends):
    put(postgresql)
    second, other = put(postgresql), put(postgresql, "other")
    claims = {claim.partition_key: claim for claim in postgresql.claim(10)}
    end(postgresql, claims["other"])
    other = put(postgresql, "other")
    with helpers.transaction(postgresql) as open_end:
        real = postgresql.frozen.run
        monkeypatch.setattr(
            postgresql.frozen, "run", lambda work, **options: real(work, **options | {"using": open_end})
        )
        how(postgresql, claims["k"])
        monkeypatch.undo()
        assert taken(postgresql) == [other]
        getattr(open_end, ends)()
    if ends == "rollback":
        assert taken(postgresql) == []
    else:
        expected = {completed: second, failed: second, cancelled: second, recovered: claims["k"].id}
        assert taken(postgresql) == [expected[how]] if how in expected else taken(postgresql) == []


# Sleepers are woken by each change that makes a task claimable without an insert


@pytest.fixture
def sleeping(postgresql):
    return Store(postgresql.engine).sleeping_workers


@pytest.fixture
def heard(postgresql_url):
    with ear(postgresql_url) as heard:
        yield heard


def started(postgresql, key=None, **fields):
    """Start a task, with another one waiting for it. Both use the database's clock, which the sleepers use too."""
    first = put(postgresql, key, store=postgresql.store, **fields)
    (claim,) = postgresql.claim(1, store=postgresql.store)
    put(postgresql, key, store=postgresql.store)
    assert claim.id == first
    return claim


def finish(postgresql, claim, event_type):
    postgresql.store.finish([Outcome(claim=claim, event_type=event_type, error="no")])


def held(postgresql, key):
    claim = started(postgresql, key, **HOLD)
    finish(postgresql, claim, EventType.FAILED)
    return claim


def abandoned(postgresql, key):
    started(postgresql, key, lease=timedelta(microseconds=1))
    return lambda: postgresql.store.recover(max_recoveries=0)


def waiting_head(postgresql, key):
    head = put(postgresql, key, store=postgresql.store, delay=MINUTE * 5)
    put(postgresql, key, store=postgresql.store)
    return head


def by_its_worker(event_type):
    def prepare(postgresql, key):
        claim = started(postgresql, key)
        return lambda: finish(postgresql, claim, event_type)

    return prepare


def by_hand(prepare, name, *arguments, **options):
    def make(postgresql, key):
        task = prepare(postgresql, key)
        return lambda: getattr(postgresql.store, name)(getattr(task, "id", task), *arguments, **options)

    return make


FREES = {
    "completed": by_its_worker(EventType.COMPLETED),
    "failed": by_its_worker(EventType.FAILED),
    "cancelled by its worker": by_its_worker(EventType.CANCELLED),
    "abandoned": abandoned,
    "cancelled with force": by_hand(started, "cancel", force=True),
    "cancelled while it waits": by_hand(waiting_head, "cancel"),
    "less important than the next": by_hand(waiting_head, "set_priority", -1),
    "redriven": by_hand(held, "redrive"),
    "discarded": by_hand(held, "discard"),
}


@pytest.mark.parametrize("how", FREES)
def test_a_freed_key_notifies_only_sleeping_workers_of_its_queue(postgresql, sleeping, heard, how):
    FREES[how](postgresql, "a")()
    assert heard() == []
    while claims := postgresql.claim(10, store=postgresql.store):
        for claim in claims:
            finish(postgresql, claim, EventType.COMPLETED)
    free = FREES[how](postgresql, "b")
    sleeping.announce(uuid4(), ["elsewhere"], MINUTE)
    assert heard() == []
    sleeping.announce(uuid4(), ["default"], MINUTE)
    free()
    assert heard() == ["default"]
    assert len(postgresql.claim(10, store=postgresql.store)) == 1


def test_an_end_notifies_no_worker_if_no_task_waits_for_it(postgresql, sleeping, heard):
    claim = started(postgresql)
    sleeping.announce(uuid4(), None, MINUTE)
    finish(postgresql, claim, EventType.COMPLETED)
    assert heard() == []


def limited(postgresql):
    postgresql.store.queues.limit("default", concurrency=1, create=True)
    claim = started(postgresql)
    assert claim.makes_way
    return claim


def slot_freed(postgresql):
    claim = limited(postgresql)
    return lambda: finish(postgresql, claim, EventType.COMPLETED)


def slot_recovered(postgresql):
    postgresql.store.queues.limit("default", concurrency=1, create=True)
    started(postgresql, lease=timedelta(microseconds=1))
    return lambda: postgresql.store.recover(max_recoveries=0)


def slot_cancelled(postgresql):
    claim = limited(postgresql)
    return lambda: postgresql.store.cancel(claim.id, force=True)


def resumed(postgresql):
    postgresql.store.queues.pause("default", create=True)
    postgresql.add(postgresql.store)
    return lambda: postgresql.store.queues.resume("default")


def raised(postgresql):
    limited(postgresql)
    return lambda: postgresql.store.queues.limit("default", concurrency=2, create=True)


def lifted(postgresql):
    limited(postgresql)
    return lambda: postgresql.store.queues.limit("default", concurrency=None, create=True)


@pytest.mark.parametrize("how", [slot_freed, slot_recovered, slot_cancelled, resumed, raised, lifted])
def test_room_in_a_queue_notifies_sleeping_workers(postgresql, sleeping, heard, how):
    act = how(postgresql)
    assert postgresql.claim(10, store=postgresql.store) == []
    sleeping.announce(uuid4(), ["default"], MINUTE)
    act()
    assert heard() == ["default"]
    assert len(postgresql.claim(10, store=postgresql.store)) == 1


def test_room_in_a_queue_does_not_notify_workers_that_are_awake(postgresql, heard):
    for how in (resumed, slot_freed):
        how(postgresql)()
        for claim in postgresql.claim(10, store=postgresql.store):
            finish(postgresql, claim, EventType.COMPLETED)
    assert heard() == []


def test_a_sleeping_worker_wakes_when_a_key_is_freed(postgresql):
    claim = started(postgresql, "k")
    distributor = create_work_distributor(postgresql.store, poll=MINUTE)
    distributor.start()
    until(lambda: distributor.health.listening)
    try:
        with Sleeper(distributor).asleep() as woken:
            finish(postgresql, claim, EventType.COMPLETED)
            assert woken.result(30)
    finally:
        distributor.close()


# The database defines the order of names


def test_queues_are_served_in_turn_however_the_database_orders_names(cluster, migrated_postgresql):
    """Python sorts B before a, but this database sorts a before B. A server that was built without ICU has only Python's order."""
    url = cluster.create_database(template=migrated_postgresql)
    database = Database("postgresql", url)
    try:
        has_icu = database.rows("SELECT 1 FROM pg_collation WHERE collname = 'en-x-icu'")
        for column in ("queue", "partition_key"):
            collation = "en-x-icu" if has_icu else "C"
            database.run(f'ALTER TABLE task_outbox ALTER COLUMN {column} TYPE text COLLATE "{collation}"')
        for number in range(4):
            for queue in ("a", "B", "c"):
                database.add(queue=queue, partition_key=f"{queue}{number}")
        served = [claim.partition_key for _ in range(12) for claim in database.claim()]
    finally:
        database.close()
        cluster.drop_database(url)
    assert [key for key in served if key[0] == "B"] == ["B0", "B1", "B2", "B3"]
    assert all({key[0] for key in served[n : n + 3]} == {"a", "B", "c"} for n in range(0, 12, 3)), served
