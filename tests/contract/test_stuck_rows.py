"""A locked row, a broken row or a database that refuses writes does not affect other tasks."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from outboxq import EventType, Outbox, RetryPolicy, TaskContext, TaskStatus
from outboxq.store import Store
from tests.contract import helpers
from tests.waiting import until

LEASE = 1.5
"""In seconds. The machine may stall for nearly as long, because heartbeats are ten times as frequent."""
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@pytest.fixture
def work(outbox):
    with helpers.workers(outbox, poll=0.25, recover_every=1, heartbeat=LEASE / 10, drain_timeout=20) as start:
        yield start


def kinds(outbox, handle):
    return [event.event_type for event in outbox.store.history(handle.id)]


def statuses(outbox, handles):
    return [outbox.store.get(one.id).status for one in handles]


CALLS = {
    "cancel": lambda store, one, using: store.cancel(one, using=using),
    "force": lambda store, one, using: store.cancel(one, force=True, using=using),
    "retry": lambda store, one, using: store.schedule_retry(one, datetime.now(UTC), 2, using=using),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("call", "ends"),
    [
        ("cancel", "during"),
        ("cancel", "after"),
        ("force", "during"),
        ("retry", "during"),
        *(pytest.param(call, "after", marks=pytest.mark.full) for call in ("force", "retry")),
    ],
)
def test_an_open_transaction_on_one_task_does_not_affect_other_tasks(database, outbox, work, call, ends):
    """It stays open for two lease lengths. Meanwhile, the other tasks' leases are extended and their ends written."""
    go, runs = threading.Event(), Counter()

    @outbox.task(name="run", lease=LEASE)
    def run(n: int) -> None:
        runs[n] += 1
        go.wait(60)

    handles = [run.using(outbox).enqueue(n) for n in range(4)]
    for _ in range(2):
        work(concurrency=4)
    until(lambda: len(runs) == 4)
    host, over = database.host_engine(), threading.Event()
    with host.connect() as connection:
        transaction = connection.begin()
        CALLS[call](outbox.store, handles[0].id, connection)
        if ends == "during":
            go.set()
        if ends == "during" and database.name == "postgresql":
            until(lambda: statuses(outbox, handles[1:]) == [TaskStatus.COMPLETED] * 3)
        over.wait(2 * LEASE)
        transaction.rollback()
    go.set()
    until(lambda: statuses(outbox, handles) == [TaskStatus.COMPLETED] * 4)
    assert [runs[n] for n in (1, 2, 3)] == [1, 1, 1]
    assert runs[0] <= 2  # its own lease has expired, so its end or a recovery comes first
    expected = {EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED}
    assert {kind for one in handles[1:] for kind in kinds(outbox, one)} == expected
    assert expected <= set(kinds(outbox, handles[0])) <= expected | {EventType.RESET}


@on_postgresql
def test_a_slow_commit_of_a_transactional_task_does_not_affect_other_tasks(database, outbox, work):
    database.run("CREATE TABLE slow (id int)")
    database.run(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3); RETURN NULL; END'"
    )
    database.run(
        "CREATE CONSTRAINT TRIGGER slow_check AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION slowly()"
    )
    go, runs = threading.Event(), Counter()

    @outbox.task(name="run", lease=LEASE)
    def run(n: int) -> None:
        runs[n] += 1
        go.wait(60)

    @outbox.task(name="commit", lease=LEASE, transactional=True)
    def commit(ctx: TaskContext) -> None:
        ctx.connection.execute(text("INSERT INTO slow VALUES (1)"))

    handles = [run.using(outbox).enqueue(n) for n in range(3)] + [commit.using(outbox).enqueue()]
    for _ in range(2):
        work(concurrency=4)
    try:
        until(lambda: outbox.store.get(handles[3].id).status is TaskStatus.COMPLETED)
        assert set(runs.values()) == {1}
        go.set()
        until(lambda: statuses(outbox, handles) == [TaskStatus.COMPLETED] * 4)
        assert {kinds(outbox, one).count(EventType.RESET) for one in handles} == {0}
    finally:
        database.run("DROP TABLE slow")
        database.run("DROP FUNCTION slowly")


@on_sqlite
def test_on_sqlite_a_long_transactional_handler_costs_no_task_its_lease(database, outbox, work):
    """It holds the only lock for three lease lengths. Its own lease cannot be lost during that time."""
    go, runs, lost, over = threading.Event(), Counter(), [], threading.Event()

    @outbox.task(name="run", lease=LEASE)
    def run(n: int) -> None:
        runs[n] += 1
        go.wait(60)

    @outbox.task(name="long", lease=LEASE, transactional=True)
    def long(ctx: TaskContext) -> None:
        over.wait(3 * LEASE)
        lost.append(ctx.lost)

    handles = [run.using(outbox).enqueue(n) for n in range(3)]
    work(concurrency=3)
    until(lambda: len(runs) == 3)
    handles.append(long.using(outbox).enqueue())
    for _ in range(3):
        work()
    until(lambda: outbox.store.get(handles[3].id).status is TaskStatus.COMPLETED)
    go.set()
    until(lambda: statuses(outbox, handles) == [TaskStatus.COMPLETED] * 4)
    assert lost == [False]
    assert set(runs.values()) == {1}
    assert {kinds(outbox, one).count(EventType.RESET) for one in handles} == {0}


@on_postgresql
def test_a_heartbeat_distinguishes_three_results(database):
    """A lease is extended, is gone, or is locked by another transaction."""
    database.add()
    database.add()
    database.add()
    kept, gone, locked = database.claim(3)
    database.frozen.cancel(gone.id, force=True)
    database.clock.advance(5)
    with database.host_engine().connect() as connection:
        transaction = connection.begin()
        connection.exec_driver_sql(f"SELECT 1 FROM task_leases WHERE task_execution_id = '{locked.id}' FOR UPDATE")
        beats = database.frozen.heartbeat([kept, gone, locked])
        assert beats.keys() == {kept.id, locked.id}
        assert beats[kept.id].lease_expires_at == kept.lease_expires_at + timedelta(seconds=5)
        assert beats[locked.id].lease_expires_at is None
        transaction.rollback()
    assert database.frozen.heartbeat([locked])[locked.id].lease_expires_at is not None


@on_postgresql
@pytest.mark.parametrize("table", ["task_leases", "task_executions"])
def test_a_locked_row_does_not_stop_the_recovery_of_other_tasks(database, table):
    ids = [helpers.claimed(database).id for _ in range(3)]
    database.clock.advance(100)
    column = "id" if table == "task_executions" else "task_execution_id"
    with database.host_engine().connect() as connection:
        transaction = connection.begin()
        connection.exec_driver_sql(f"SELECT 1 FROM {table} WHERE {column} = '{ids[1]}' FOR UPDATE")
        # In a caller's transaction, because recovery in its own would wait for the lock and then try each task alone.
        with database.host_engine().begin() as own:
            own.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
            assert {one.id for one in database.frozen.recover(using=own)} == {ids[0], ids[2]}
        transaction.rollback()
    assert [one.id for one in database.frozen.recover()] == [ids[1]]


def test_a_broken_row_does_not_stop_the_recovery_of_other_tasks(database, outbox, work):
    """A stale outbox entry is repaired. An end that is already in the log is left for `verify`."""
    database.corrupted = True

    @outbox.task(name="run")
    def run() -> None: ...

    handles = [run.using(outbox).enqueue() for _ in range(4)]
    claims = {claim.id: claim for claim in outbox.store.claim_ready_task(4, worker_id=uuid4())}
    stale, broken = (claims[one.id] for one in handles[:2])
    uuid = (lambda value: value.hex) if database.name == "sqlite" else str
    past = "2020-01-01T00:00:00.000000+00:00"
    database.run(
        "INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at) VALUES "
        f"('{uuid(stale.id)}', 'paused', 0, 1, '{past}', '{past}')"
    )
    database.run(
        "INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, lease_token, created_at) "
        f"VALUES ('{uuid(broken.id)}', '{uuid(broken.id)}', 'task_completed', 1, '{past}')"
    )
    outbox.store.queues.pause("paused", create=True)
    database.run(f"UPDATE task_leases SET lease_expires_at = '{past}'")
    work()
    until(lambda: statuses(outbox, handles[2:]) == [TaskStatus.COMPLETED] * 2)
    until(lambda: outbox.store.get(handles[0].id).status is TaskStatus.READY)
    assert outbox.store.get(handles[1].id).status is TaskStatus.RUNNING


@pytest.fixture
def no_room(database, monkeypatch):
    """Refuse ends with the database's error for a full disk until the event is cleared."""
    full = threading.Event()

    def refusing(real):
        def finish(store, outcomes, **options):
            if full.is_set():
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise OperationalError("end", {}, error)
            return real(store, outcomes, **options)

        return finish

    if database.name == "sqlite":
        for name in ("finish", "finish_unlocked"):
            monkeypatch.setattr(Store, name, refusing(getattr(Store, name)))
        yield full
        return
    database.run("CREATE TABLE full_disk AS SELECT '53100'::text AS state WHERE false")
    database.run(
        "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF EXISTS (SELECT FROM full_disk) AND NEW.event_type = 'task_completed' THEN "
        "RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END IF; RETURN NEW; END $$"
    )
    database.run("CREATE TRIGGER no_room BEFORE INSERT ON execution_events FOR EACH ROW EXECUTE FUNCTION no_room()")

    class Switch:
        set = staticmethod(lambda: database.run("INSERT INTO full_disk VALUES ('53100')"))
        clear = staticmethod(lambda: database.run("DELETE FROM full_disk"))

    yield Switch
    database.run("DROP TRIGGER no_room ON execution_events")
    database.run("DROP FUNCTION no_room")
    database.run("DROP TABLE full_disk")


def test_outcomes_wait_while_the_disk_is_full_and_no_handler_runs_again(outbox, work, no_room):
    runs, go = Counter(), threading.Event()

    @outbox.task(name="run", lease=LEASE)
    def run(n: int) -> None:
        runs[n] += 1
        go.wait(60)

    handles = [run.using(outbox).enqueue(n) for n in range(4)]
    worker = work(concurrency=4)
    until(lambda: len(runs) == 4)
    no_room.set()
    go.set()
    until(lambda: worker.handled == 4)
    until(lambda: not worker._parts.completer.can_write.is_set())
    more = [run.using(outbox).enqueue(n) for n in range(4, 8)]
    over = threading.Event()
    over.wait(2 * LEASE)
    assert set(statuses(outbox, handles)) == {TaskStatus.RUNNING}
    assert set(statuses(outbox, more)) == {TaskStatus.READY}, "no task is claimed while ends cannot be written"
    no_room.clear()
    until(lambda: statuses(outbox, handles + more) == [TaskStatus.COMPLETED] * 8)
    assert set(runs.values()) == {1}
    assert worker.is_healthy


def test_a_worker_claims_nothing_after_an_outage_that_began_while_all_handlers_were_busy(outbox, work, no_room):
    go, saturated = threading.Event(), threading.Event()
    outbox.task(name="run", lease=LEASE)(lambda: go.wait(60))
    run = outbox.tasks.get("run")
    run.using(outbox).enqueue()
    worker = work(concurrency=1)
    loop = worker._parts.claim_loop
    at_work = loop.distributor.at_work
    loop.distributor.at_work = lambda **said: (saturated.set() if said.get("saturated") else None, at_work(**said))
    assert saturated.wait(60), "the loop waits for the handler"
    no_room.set()
    worker._parts.completer.can_write.clear()  # as if another outcome could not be written
    waiting = run.using(outbox).enqueue()
    go.set()
    until(lambda: worker.handled == 1)
    threading.Event().wait(LEASE)
    assert statuses(outbox, [waiting]) == [TaskStatus.READY]
    no_room.clear()
    until(lambda: statuses(outbox, [waiting]) == [TaskStatus.COMPLETED])


def test_a_worker_whose_ends_are_always_refused_stops_and_logs_the_reason(database, outbox, caplog):
    """The worker starts with ten tasks, and each of them runs at most once."""
    database.corrupted = True
    runs = Counter()

    @outbox.task(name="run", lease=60, retry=RetryPolicy.never())
    def run(n: int) -> None:
        runs[n] += 1

    for n in range(10):
        run.using(outbox).enqueue(n)
    if database.name == "sqlite":
        database.run(
            "CREATE TRIGGER refuse BEFORE INSERT ON execution_events WHEN NEW.event_type IN ('task_completed', 'task_failed') "
            "BEGIN SELECT RAISE(ABORT, 'permission denied'); END"
        )
    else:
        database.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF NEW.event_type IN ('task_completed', 'task_failed') THEN "
            "RAISE EXCEPTION 'permission denied' USING ERRCODE = '42501'; END IF; RETURN NEW; END $$"
        )
        database.run("CREATE TRIGGER refuse BEFORE INSERT ON execution_events FOR EACH ROW EXECUTE FUNCTION refuse()")
    worker = outbox.worker(poll=0.05, recover_every=0.3, drain_timeout=1)
    try:
        assert worker.run() == 1
        assert not worker.is_healthy
        assert "permission denied" in (worker.health.error or "")
        assert [
            one.getMessage()
            for one in caplog.records
            if one.levelname == "CRITICAL" and "permission denied" in one.getMessage()
        ]
        assert runs
        assert set(runs.values()) == {1}
    finally:
        if database.name == "postgresql":
            database.run("DROP TRIGGER refuse ON execution_events")
            database.run("DROP FUNCTION refuse")
