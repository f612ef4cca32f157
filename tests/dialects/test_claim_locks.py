"""Locks that a claim takes: row locks on PostgreSQL, and a lock on the whole file from the first statement on SQLite."""

from __future__ import annotations

import logging
import sqlite3
import sys
from datetime import UTC, datetime, timedelta
from itertools import chain
from uuid import uuid4

import pytest
from sqlalchemy import event

from outboxq.database.dialects import Begin
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.contract import helpers
from tests.dialects.conftest import report_statistics

QUEUES = [None, ["default"], ["default", "other"]]


def ids(rows):
    return [row.id for row in rows]


# --- PostgreSQL


@pytest.fixture
def impatient(postgresql):
    """A connection in a second session that fails instead of waiting."""
    with helpers.transaction(postgresql) as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
        yield connection


@pytest.mark.parametrize("queues", QUEUES)
def test_a_second_claimer_does_not_wait_and_claims_other_rows(postgresql, impatient, queues):
    handles = [postgresql.add() for _ in range(6)]
    with helpers.transaction(postgresql) as first:
        assert ids(postgresql.claim(3, queues=queues, using=first)) == ids(handles[:3])
        assert ids(postgresql.claim(3, queues=queues, using=impatient)) == ids(handles[3:])
        assert postgresql.claim(3, queues=queues) == []
        first.commit()
    impatient.commit()
    assert postgresql.counts() == (6, 12, 0)


@pytest.mark.parametrize("queues", QUEUES)
def test_a_task_of_a_rolled_back_claim_can_be_claimed_again(postgresql, queues):
    handle = postgresql.add()
    with helpers.transaction(postgresql) as first:
        assert ids(postgresql.claim(3, queues=queues, using=first)) == [handle.id]
        first.rollback()
    (claim,) = postgresql.claim(queues=queues)
    assert claim.lease_token == 1


@pytest.mark.parametrize("queues", QUEUES)
def test_a_claim_is_full_although_another_holds_all_tasks_of_the_best_priority(postgresql, impatient, queues):
    best = [postgresql.add(priority=9) for _ in range(3)]
    rest = [postgresql.add(priority=-9) for _ in range(4)]
    with helpers.transaction(postgresql) as first:
        assert ids(postgresql.claim(3, queues=queues, using=first)) == ids(best)
        assert ids(postgresql.claim(3, queues=queues, using=impatient)) == ids(rest[:3])


@pytest.mark.parametrize("queues", QUEUES)
def test_a_claim_is_full_although_another_holds_some_tasks_of_the_best_priority(postgresql, impatient, queues):
    best = [postgresql.add(priority=9) for _ in range(4)]
    rest = [postgresql.add(priority=-9) for _ in range(4)]
    with helpers.transaction(postgresql) as first:
        postgresql.claim(2, queues=queues, using=first)
        assert ids(postgresql.claim(4, queues=queues, using=impatient)) == ids(best[2:] + rest[:2])


def test_a_claim_is_full_although_another_claim_holds_all_tasks_of_one_queue(postgresql, impatient):
    for _ in range(5):
        postgresql.add(queue="default")
    rest = [postgresql.add(queue="other") for _ in range(5)]
    with helpers.transaction(postgresql) as first:
        postgresql.claim(5, queues=["default"], using=first)
        assert ids(postgresql.claim(5, queues=["default", "other"], using=impatient)) == ids(rest)


@pytest.mark.parametrize("queues", QUEUES)
def test_a_claim_locks_only_the_tasks_it_claims(postgresql, impatient, queues):
    handles = [postgresql.add(priority=number % 2) for number in range(20)]
    with helpers.transaction(postgresql) as first:
        taken = ids(postgresql.claim(4, queues=queues, using=first))
        others = ids(postgresql.claim(20, queues=queues, using=impatient))
    assert len(taken) == 4
    assert sorted(taken + others) == sorted(ids(handles))


PLANS = {
    "nested loops over everything": (
        "enable_hashjoin=off enable_mergejoin=off enable_material=off enable_memoize=off enable_hashagg=off "
        "enable_sort=off enable_indexscan=off enable_indexonlyscan=off enable_bitmapscan=off enable_tidscan=off"
    ),
    "nested loops by index": (
        "enable_hashjoin=off enable_mergejoin=off enable_material=off enable_seqscan=off enable_hashagg=off "
        "enable_sort=off enable_bitmapscan=off"
    ),
    "nested loops over a heap": (
        "enable_hashjoin=off enable_mergejoin=off enable_material=off enable_hashagg=off enable_sort=off "
        "enable_tidscan=off enable_bitmapscan=off"
    ),
    "hash joins": "enable_nestloop=off enable_mergejoin=off enable_indexscan=off enable_bitmapscan=off",
    "merge joins": "enable_nestloop=off enable_hashjoin=off",
    "generic plans": "plan_cache_mode=force_generic_plan",
    "one worker more": "parallel_setup_cost=0 parallel_tuple_cost=0 min_parallel_table_scan_size=0",
}


@pytest.mark.parametrize("analyzed", [None, 1, 40])
@pytest.mark.parametrize("plan", PLANS)
def test_the_limit_holds_under_every_plan(postgresql, plan, analyzed):
    """The limit also holds with outdated statistics that say that the table has only `analyzed` rows."""
    tasks = [NewTask(id=uuid7(), task_name="tests.work", args="{}", priority=number % 2) for number in range(40)]
    counted = analyzed or 0
    postgresql.frozen.enqueue_many(tasks[:counted])
    if analyzed:
        postgresql.run("ANALYZE")
    postgresql.frozen.enqueue_many(tasks[counted:])
    with helpers.transaction(postgresql) as connection:
        for setting in ["jit=off", *PLANS[plan].split()]:
            connection.exec_driver_sql("SET LOCAL {} = '{}'".format(*setting.split("=")))
        for number, queues in enumerate(QUEUES, start=1):
            assert len(postgresql.claim(3, queues=queues, using=connection)) == 3
            left = connection.exec_driver_sql("SELECT count(*) FROM task_outbox").scalar()
            assert left == 40 - 3 * number
        connection.commit()


@pytest.mark.parametrize("begin", [begin for begin in Begin if begin not in {Begin.HANDLER, Begin.INSERT}])
def test_jit_is_off_in_all_outboxq_transactions(postgresql, begin):
    """A plan that cannot avoid a disabled sequential scan has a cost of 1e10. JIT then takes 600 ms for a statement that takes 1 ms."""
    with postgresql.store.transaction(begin) as target:
        assert target.execute("SHOW jit", {}) == [("off",)]


@pytest.fixture
def crowded(postgresql):
    """The database, with dead rows at the front of the queue, which an old snapshot keeps."""
    fill = (
        "INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at) "
        "SELECT gen_random_uuid(), 'default', 0, n, now() - interval '1 day', now() FROM generate_series(1, 5000) AS n"
    )
    with postgresql.engine.connect().execution_options(isolation_level="REPEATABLE READ") as old:
        old.exec_driver_sql("SELECT 1")
        postgresql.run(fill)
        postgresql.run("DELETE FROM task_outbox")
        report_statistics(postgresql)  # so that a claim knows of the dead rows
        yield postgresql
        old.rollback()


def buffers_of_a_claim(database):
    """Return the counts of this transaction. The counts of all sessions change at any time."""
    count = (
        "SELECT sum(pg_stat_get_xact_blocks_hit(oid)) FROM (SELECT 'task_outbox'::regclass::oid AS oid "
        "UNION SELECT indexrelid FROM pg_index WHERE indrelid = 'task_outbox'::regclass) AS relations"
    )
    with helpers.transaction(database) as connection:
        before = connection.exec_driver_sql(count).scalar_one()
        claims = database.claim(queues=["default"], using=connection)
        hit = connection.exec_driver_sql(count).scalar_one() - before
        connection.commit()
    return claims, hit


def test_a_claim_skips_dead_rows_that_cannot_be_vacuumed(crowded):
    handles = [crowded.add() for _ in range(3)]
    found = [buffers_of_a_claim(crowded) for _ in handles]
    assert [ids(claims) for claims, _ in found] == [[handle.id] for handle in handles]
    (_, first), *others = found
    assert max(blocks for _, blocks in others) < first - 80, found


def test_a_claim_that_finds_no_task_gets_no_transaction_id(postgresql):
    postgresql.add(delay=timedelta(hours=1))
    with helpers.transaction(postgresql) as connection:
        for queues in QUEUES:
            assert postgresql.claim(3, queues=queues, using=connection) == []
        assert connection.exec_driver_sql("SELECT txid_current_if_assigned()").scalar() is None
        postgresql.clock.advance(3600)
        assert len(postgresql.claim(3, using=connection)) == 1
        assert connection.exec_driver_sql("SELECT txid_current_if_assigned()").scalar() is not None


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wrong_clock_of_the_application_has_no_effect(postgresql, monkeypatch, hours):
    class Anything(type):
        def __instancecheck__(cls, instance):
            return isinstance(instance, datetime)

    class Skewed(datetime, metaclass=Anything):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(hours=hours)

    skewed = [
        module for name, module in sys.modules.items() if name.startswith("outboxq") and hasattr(module, "datetime")
    ]
    for module in skewed:
        monkeypatch.setattr(module, "datetime", Skewed)
    assert len(skewed) > 3
    store, before = postgresql.store, datetime.now(UTC)
    late = postgresql.add(store=store, delay=timedelta(minutes=30))
    handle = postgresql.add(store=store, lease=timedelta(minutes=30))
    (claim,) = postgresql.claim(5, store=store)
    assert claim.id == handle.id
    assert store.recover() == []
    assert abs(claim.started_at - before) < timedelta(minutes=5)
    assert abs(store.next_available_at() - before - timedelta(minutes=30)) < timedelta(minutes=5)
    assert store.get(late.id).status == "Ready"


def test_a_claim_in_a_long_transaction_uses_the_time_of_its_statement(postgresql):
    """A claim uses the time of its statement, not of its transaction."""
    with helpers.transaction(postgresql) as connection:
        began = connection.exec_driver_sql("SELECT now()").scalar()
        connection.exec_driver_sql("SELECT pg_sleep(0.05)")
        postgresql.add(store=postgresql.store)
        (claim,) = postgresql.claim(store=postgresql.store, using=connection)
        assert claim.started_at - began > timedelta(seconds=0.04)
        connection.commit()


def test_simultaneous_recoveries_take_different_tasks(postgresql, impatient):
    for _ in range(6):
        postgresql.add()
    postgresql.claim(6)
    postgresql.clock.advance(61)
    with helpers.transaction(postgresql) as first:
        one = ids(postgresql.frozen.recover(3, using=first))
        two = ids(postgresql.frozen.recover(6, using=impatient))
        first.commit()
        impatient.commit()
    assert (len(one), len(two), len({*one, *two})) == (3, 3, 6)


def test_a_recovery_skips_a_task_whose_end_is_not_committed(postgresql, impatient):
    claim, other = helpers.claimed(postgresql), helpers.claimed(postgresql)
    postgresql.clock.advance(61)
    with helpers.transaction(postgresql) as first:
        postgresql.frozen.complete(claim, using=first)
        assert ids(postgresql.frozen.recover(using=impatient)) == [other.id]
        impatient.commit()
        first.commit()


def test_a_batch_of_ends_locks_its_leases_in_the_order_of_task_ids(postgresql, impatient):
    """The order ensures that no two batches wait for each other. The test observes it while the batch waits for a lease in the middle."""
    for _ in range(20):
        postgresql.add()
    claims = sorted(postgresql.claim(20), key=lambda claim: claim.id)
    mixed = [*claims[1::2], *claims[0::2][::-1]]
    outcomes = [Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in mixed]
    with helpers.transaction(postgresql) as holder:
        lease = f"SELECT 1 FROM task_leases WHERE task_execution_id = '{claims[10].id}' FOR UPDATE"
        holder.exec_driver_sql(lease)
        with helpers.stuck(postgresql, lambda: postgresql.frozen.finish(outcomes)) as batch:
            free = "SELECT task_execution_id FROM task_leases ORDER BY task_execution_id FOR UPDATE SKIP LOCKED"
            rows = impatient.exec_driver_sql(free).all()
            impatient.rollback()
            holder.rollback()
            batch.result(60)
    assert [row[0] for row in rows] == ids(claims[11:])


@pytest.mark.parametrize("count", [1, 5])
def test_an_end_that_waited_for_a_heartbeat_finds_the_lease_still_held(postgresql, count):
    """It reads the current version of the row for which it waited."""
    for _ in range(count):
        postgresql.add()
    claims = postgresql.claim(count)
    outcomes = [Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims]
    with helpers.transaction(postgresql) as holder:
        assert len(postgresql.frozen.heartbeat(claims, using=holder)) == count
        with helpers.stuck(postgresql, lambda: postgresql.frozen.finish(outcomes)) as end:
            holder.commit()
            assert end.result(20) == frozenset()


def test_ends_and_heartbeats_in_opposite_order_do_not_deadlock(postgresql):
    retries, results = [], []
    postgresql.frozen.on_retry = lambda: retries.append(None)  # a transaction that meets a deadlock is run again
    for _ in range(5):
        tasks = [NewTask(id=uuid7(), task_name="x", args="{}") for _ in range(50)]
        postgresql.frozen.enqueue_many(tasks)
        claims = postgresql.claim(50)
        outcomes = [Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims]
        results += helpers.at_once(
            lambda claims=claims: postgresql.frozen.heartbeat(claims[::-1]),
            lambda outcomes=outcomes: postgresql.frozen.finish(outcomes),
            lambda claims=claims: postgresql.frozen.heartbeat(claims),
            lambda outcomes=outcomes: postgresql.frozen.finish(outcomes[::-1]),
        )
    assert [one for one in results if isinstance(one, Exception)] == []
    assert retries == []


# --- SQLite


def test_four_threads_never_find_the_database_locked(sqlite, caplog):
    """No transaction is even retried: the writers wait for the lock when their transactions begin."""
    caplog.set_level(logging.INFO, logger="outboxq.store")
    tasks = [NewTask(id=uuid7(), task_name="x", args="{}") for _ in range(400)]
    sqlite.store.enqueue_many(tasks)

    def work():
        worker, got = uuid4(), []
        while claims := sqlite.claim(5, store=sqlite.store, worker_id=worker):
            sqlite.store.heartbeat(claims)
            sqlite.store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])
            sqlite.store.recover()
            got += ids(claims)
        return got

    shares = helpers.at_once(*[work] * 4)
    assert all(isinstance(share, list) for share in shares), shares
    assert sorted(chain.from_iterable(shares)) == sorted(task.id for task in tasks)
    assert caplog.messages == []


@pytest.mark.parametrize(
    "operation", ["enqueue", "claim", "finish", "heartbeat", "recover", "cancel", "retry", "prune"]
)
def test_the_write_lock_is_acquired_at_the_start_of_the_transaction(sqlite, operation):
    """A deferred transaction that begins with a read fails immediately if another transaction has written since, whatever the timeout."""
    claim, waiting = helpers.claimed(sqlite), sqlite.add()
    sqlite.clock.advance(61)
    store, path, refused = sqlite.frozen, sqlite.engine.url.database, []
    calls = {
        "enqueue": sqlite.add,
        "claim": sqlite.claim,
        "finish": lambda: store.complete(claim),
        "heartbeat": lambda: store.heartbeat([claim]),
        "recover": store.recover,
        "cancel": lambda: store.cancel(waiting.id),
        "retry": lambda: store.schedule_retry(waiting.id, sqlite.clock.now, 2),
        "prune": lambda: store.prune(timedelta(0)),
    }

    @event.listens_for(sqlite.engine, "after_cursor_execute")
    def try_to_write(_connection, _cursor, statement, *_):
        if statement.startswith("BEGIN") and statement != "BEGIN DEFERRED":
            rival = sqlite3.connect(path, timeout=0, isolation_level=None)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                rival.execute("BEGIN IMMEDIATE")
            rival.close()
            refused.append(statement)

    calls[operation]()
    # A prune uses one transaction each for tasks, batches without tasks, action records, ended workers, inbox messages and its own time.
    assert refused == ["BEGIN IMMEDIATE"] * (6 if operation == "prune" else 1)


def test_an_idle_worker_requests_no_lock(sqlite):
    sqlite.add(delay=timedelta(hours=1))
    helpers.claimed(sqlite)
    rival = sqlite3.connect(sqlite.engine.url.database, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    for queues in QUEUES:
        assert sqlite.claim(queues=queues) == []
    assert sqlite.frozen.recover() == []
    assert sqlite.frozen.next_available_at() is not None
    rival.execute("ROLLBACK")
    rival.close()


def test_a_claim_waits_for_a_writer_without_being_retried(sqlite, caplog):
    caplog.set_level(logging.INFO, logger="outboxq.store")
    handle = sqlite.add()
    rival = sqlite3.connect(sqlite.engine.url.database, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    with helpers.stuck(sqlite, sqlite.claim) as claiming:
        rival.execute("COMMIT")
        assert ids(claiming.result(60)) == [handle.id]
    rival.close()
    assert caplog.messages == []


def test_a_store_with_a_host_engine_also_uses_begin_immediate(sqlite):
    """The host's engine begins transactions in its own way."""
    engine, seen = sqlite.host_engine(), []
    event.listen(engine, "before_cursor_execute", lambda c, k, statement, *_: seen.append(statement))
    store = Store(engine, clock=sqlite.clock)
    sqlite.add(store=store)
    assert "BEGIN IMMEDIATE" in seen
    assert ids(sqlite.claim(store=store))
