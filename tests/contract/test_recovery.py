"""After a crash, an outage or a clock change, dead workers lose their tasks, and live workers keep theirs."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest

from outboxq import EventType, Outbox, RetryPolicy, TaskStatus
from outboxq.database.engine import make_engine
from outboxq.model import MAX_RECOVERIES, SUSPECT, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store, transactions
from tests.contract import helpers
from tests.proxy import Proxy
from tests.waiting import until

LONG_AGO = "2020-01-01T00:00:00.000000+00:00"


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@pytest.fixture
def work(outbox):
    with helpers.workers(outbox, poll=0.05, recover_every=0.2, drain_timeout=20) as start:
        yield start


@pytest.fixture
def die(database, outbox):
    """Let a worker claim this many tasks and die, this many times. The leases have expired afterwards."""

    def claim(tasks, *, times=1):
        for number in range(times):
            assert len(outbox.store.claim_ready_task(tasks, worker_id=uuid7())) == tasks
            database.run(f"UPDATE task_leases SET lease_expires_at = '{LONG_AGO}'")
            if number < times - 1:
                assert len(outbox.store.recover(tasks)) == tasks

    return claim


def kinds(outbox, handle):
    return [event.event_type for event in outbox.store.history(handle.id)]


def completed(database):
    return database.rows("SELECT count(*) FROM task_executions WHERE status = 'Completed'")[0][0]


# Recovered tasks


def test_recovered_tasks_and_new_ones_run_while_a_handler_takes_hours(database, outbox, work, die):
    """One of eight threads stays busy. The others run the dead worker's tasks, and new tasks do not wait for these."""
    over = threading.Event()

    @outbox.task(name="long")
    def long() -> None:
        over.wait(240)

    @outbox.task(name="quick")
    def quick(n: int) -> None: ...

    for number in range(200):
        quick.using(outbox).enqueue(number)
    die(200)
    long.using(outbox).enqueue()
    work(concurrency=8)
    until(lambda: completed(database) == 200)
    for number in range(20):
        quick.using(outbox).enqueue(number)
    until(lambda: completed(database) == 220)
    over.set()
    until(lambda: completed(database) == 221)


def test_tasks_recovered_once_run_simultaneously(outbox, work, die):
    together = threading.Barrier(4)

    @outbox.task(name="meet", retry=RetryPolicy.never())
    def meet() -> None:
        together.wait(60)

    handles = [meet.using(outbox).enqueue() for _ in range(4)]
    die(4)
    work(concurrency=4)
    until(lambda: all(outbox.store.get(one.id).status is TaskStatus.COMPLETED for one in handles))


def test_suspects_run_one_at_a_time_while_other_tasks_run(database, outbox, work, die):
    """A process runs only one suspect (a task whose last two workers died) at a time, with other tasks beside it."""
    lock, running, most, beside = threading.Lock(), Counter(), Counter(), threading.Event()

    def run(kind, event=None):
        with lock:
            running[kind] += 1
            most[kind] = max(most[kind], running[kind])
            if all(running[one] for one in ("suspect", "other")):
                beside.set()
        if event is not None:
            event.wait(5)
        with lock:
            running[kind] -= 1

    @outbox.task(name="suspect")
    def suspect() -> None:
        run("suspect", beside)

    @outbox.task(name="other")
    def other() -> None:
        run("other", beside)

    suspects = [suspect.using(outbox).enqueue() for _ in range(5)]
    die(5, times=SUSPECT)
    work(concurrency=4)
    until(lambda: running["suspect"])
    others = [other.using(outbox).enqueue() for _ in range(40)]
    until(lambda: all(outbox.store.get(one.id).status is TaskStatus.COMPLETED for one in suspects + others))
    assert most["suspect"] == 1
    assert beside.is_set(), "nothing ran beside a suspect, so the test proved nothing"
    for one in suspects:
        assert kinds(outbox, one).count(EventType.RESET) == SUSPECT, "waiting for its turn is not a recovery"


@pytest.mark.parametrize("begins", [False, True])
def test_a_recovery_of_a_suspect_that_had_not_begun_is_not_counted(database, begins):
    """A task that was only prefetched or about to be released cannot have caused its worker's death."""
    helpers.claimed(database)
    for number in range(1, SUSPECT + 1):
        database.clock.advance(100)
        assert [one.recovery_attempts for one in database.frozen.recover()] == [number]
        (claim,) = database.claim(says_begin=True)
    for _ in range(2 * MAX_RECOVERIES):
        if begins:
            assert database.frozen.begin(claim)
        database.clock.advance(100)
        [task] = database.frozen.recover()
        if task.status is TaskStatus.FAILED:
            break
        (claim,) = database.claim(says_begin=True)
    assert (task.status, task.recovery_attempts) == (
        (TaskStatus.FAILED, MAX_RECOVERIES) if begins else (TaskStatus.READY, SUSPECT)
    )
    assert database.frozen.verify() == []


def test_a_worker_that_has_lost_the_lease_cannot_begin(database):
    claim = helpers.claimed(database)
    database.clock.advance(100)
    database.frozen.recover()
    assert not database.frozen.begin(claim)
    database.claim(worker_id=uuid7())
    assert not database.frozen.begin(claim)


def test_a_burst_runs_all_suspects_before_it_ends(outbox, die):
    @outbox.task(name="suspect")
    def suspect() -> None: ...

    handles = [suspect.using(outbox).enqueue() for _ in range(4)]
    die(4, times=SUSPECT)
    assert len(outbox.store.recover()) == 4
    worker = outbox.worker(recover_every=60, poll=0.05)
    assert worker.run(burst=True) == 0
    assert {outbox.store.get(one.id).status for one in handles} == {TaskStatus.COMPLETED}


# Resetting the count of recoveries

ENDS = {
    EventType.COMPLETED: {},
    EventType.RETRY_SCHEDULED: {"error": "no"},
    EventType.SNOOZED: {},
    EventType.FAILED: {"error": "no"},
    EventType.CANCELLED: {},
}


def recovered(database, times):
    claim = helpers.claimed(database)
    for _ in range(times):
        database.clock.advance(100)
        assert len(database.frozen.recover()) == 1
        (claim,) = database.claim()
    assert claim.recovery_attempts == times
    return claim


@pytest.mark.parametrize("kind", ENDS)
def test_any_end_by_a_live_worker_resets_the_count_of_recoveries(database, kind):
    claim = recovered(database, 3)
    assert database.frozen.finish([Outcome(claim=claim, event_type=kind, **ENDS[kind])]) == frozenset()
    assert database.frozen.get(claim.id).recovery_attempts == 0
    assert database.frozen.history(claim.id)[-1].event_data["recovery_attempts"] == 0
    assert database.frozen.log.state_at(claim.id, database.clock.now).recovery_attempts == 0


def test_a_release_keeps_the_count_of_recoveries(database):
    """The task never began or was stopped halfway, so it may still be the cause of the deaths."""
    claim = recovered(database, 2)
    database.frozen.release(claim)
    assert database.frozen.get(claim.id).recovery_attempts == 2
    assert "recovery_attempts" not in database.frozen.history(claim.id)[-1].event_data


def test_the_events_of_a_task_never_recovered_do_not_mention_recoveries(database):
    claim = helpers.claimed(database)
    database.frozen.complete(claim)
    assert database.frozen.history(claim.id)[-1].event_data == {}


def test_a_task_does_not_fail_because_of_many_separate_recoveries(database):
    claim = helpers.claimed(database)
    for _ in range(3 * MAX_RECOVERIES):
        database.clock.advance(100)
        assert [one.status for one in database.frozen.recover()] == [TaskStatus.READY]
        (claim,) = database.claim()
        database.frozen.finish([Outcome(claim=claim, event_type=EventType.SNOOZED)])
        (claim,) = database.claim()
    assert claim.recovery_attempts == 0


# Outages


@contextmanager
def holding_the_lock(database):
    """Hold SQLite's only write lock."""
    engine = database.own(make_engine(database.url))
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
        connection.exec_driver_sql("ROLLBACK")


@contextmanager
def away(proxy):
    proxy.refuse()
    proxy.drop()
    yield
    proxy.accept()


@pytest.fixture
def outage(database):
    """A URL of the database, and a context manager that cuts off its connections (PostgreSQL) or blocks writes (SQLite)."""
    if database.name == "sqlite":
        yield database.url, lambda: holding_the_lock(database)
    else:
        with Proxy(database.url) as proxy:
            yield proxy.url, lambda: away(proxy)


@pytest.mark.in_turn
@pytest.mark.parametrize("workers", [1, 2])
def test_no_task_is_run_again_after_an_outage_longer_than_the_leases(database, outage, work, workers):
    """Some handlers end during the outage, and their outcomes wait. Others end later. Each outcome is written once."""
    url, begin = outage
    outbox, ended = Outbox(database.own(make_engine(url))), threading.Event()
    later, runs = threading.Event(), Counter()

    @outbox.task(name="during", lease=2)
    def during(n: int) -> None:
        runs[n] += 1
        ended.wait(60)

    @outbox.task(name="beyond", lease=2)
    def beyond(n: int) -> None:
        runs[n] += 1
        later.wait(60)

    near = Outbox(database.engine)
    handles = [near.store.enqueue(_new(name, n)) for n, name in enumerate(["during", "beyond"] * 3)]
    for _ in range(workers):
        work(outbox, concurrency=6, heartbeat=0.2)  # short, so that a busy machine may stall for a moment
    until(lambda: len(runs) == 6)
    over = threading.Event()
    with begin():
        ended.set()
        over.wait(3.5)  # the outage must be longer than the leases
    later.set()
    until(lambda: all(near.store.get(one.id).status is TaskStatus.COMPLETED for one in handles))
    assert set(runs.values()) == {1}
    assert {kinds(near, one).count(EventType.RESET) for one in handles} == {0}


def _new(name, n):
    return NewTask(id=uuid7(), task_name=name, args=f'{{"n": {n}}}', lease=timedelta(seconds=2))


@pytest.fixture
def step(database, monkeypatch):
    """Change the clock that leases use. On SQLite, that is the machine's clock as this process sees it."""
    if database.name == "sqlite":
        by = timedelta(0)

        class Clock(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.now(tz) + by

        def set_clock(seconds):
            nonlocal by
            by = timedelta(seconds=seconds)

        monkeypatch.setattr(transactions, "datetime", Clock)
        yield set_clock
        return
    name = database.engine.url.database
    database.run("CREATE SCHEMA set_clock")
    database.run("CREATE TABLE set_clock.step AS SELECT interval '0 seconds' AS by")
    database.run(
        "CREATE FUNCTION set_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
        "'SELECT pg_catalog.clock_timestamp() + by FROM set_clock.step'"
    )
    database.run(f'ALTER DATABASE "{name}" SET search_path = set_clock, public, pg_catalog')
    database.engine.dispose()
    yield lambda seconds: database.run(f"UPDATE set_clock.step SET by = interval '{seconds} seconds'")
    database.run(f'ALTER DATABASE "{name}" RESET search_path')
    database.run("DROP SCHEMA set_clock CASCADE")
    database.engine.dispose()


@pytest.fixture
def looks(monkeypatch):
    """Count the checks for expired leases. A store knows the clock after its first check."""
    seen, look = Counter(), Store.expired_leases

    def counted(store, *args, **kwargs):
        seen[id(store)] += 1
        return look(store, *args, **kwargs)

    monkeypatch.setattr(Store, "expired_leases", counted)
    return seen


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_no_task_is_run_again_when_the_clock_is_changed(database, outbox, work, step, looks, seconds):
    over, runs = threading.Event(), Counter()

    @outbox.task(name="run", lease=30)
    def run(n: int) -> None:
        runs[n] += 1
        over.wait(60)

    handles = [run.using(outbox).enqueue(n) for n in range(3)]
    for _ in range(2):
        work(concurrency=3)
    until(lambda: len(runs) == 3 and looks.total() >= 4)
    before = database.rows("SELECT max(lease_expires_at) FROM task_leases")
    step(seconds)
    # Each worker has noticed the change and has extended its leases.
    until(lambda: database.rows("SELECT count(*) FROM task_leases")[0][0] == 3 and _beaten(database, before, seconds))
    outbox.store.recover()
    over.set()
    until(lambda: all(outbox.store.get(one.id).status is TaskStatus.COMPLETED for one in handles))
    assert set(runs.values()) == {1}


def _beaten(database, before, seconds):
    newest = database.rows("SELECT min(lease_expires_at) FROM task_leases")[0][0]
    return newest > before[0][0] if seconds > 0 else newest < before[0][0]


def test_tasks_that_were_due_before_the_clock_was_set_back_are_run(outbox, work, step, looks):
    @outbox.task(name="due")
    def due(n: int) -> None: ...

    work()
    outbox.store.queues.pause("paused", create=True)
    waiting = [due.using(outbox, queue="paused").enqueue(n) for n in range(3)]
    delayed = due.using(outbox, delay=7200).enqueue(9)
    until(lambda: looks.total() >= 2)
    step(-3600)
    outbox.store.queues.resume("paused")
    until(lambda: all(outbox.store.get(one.id).status is TaskStatus.COMPLETED for one in waiting))
    assert outbox.store.get(delayed.id).status is TaskStatus.READY


def test_a_dead_worker_is_noticed_in_time_even_if_the_clock_was_set_back(outbox, work, step, looks):
    @outbox.task(name="orphan", lease=2)
    def orphan() -> None: ...

    handle = orphan.using(outbox).enqueue()
    work(queues=["another"])
    outbox.store.claim_ready_task(1, worker_id=uuid7())
    until(lambda: looks.total() >= 2)
    step(-3600)
    until(lambda: kinds(outbox, handle)[-1] is EventType.RESET)
    assert outbox.store.verify() == []


MONTH = 30 * 86400
SECOND = timedelta(seconds=1)


@pytest.fixture
def written_ahead(database, outbox, step):
    """Return a function that calls another function while the clock is 30 days ahead, before any worker starts."""

    def write(do):
        step(MONTH)
        done = do()
        step(0)
        return done

    return write


def claimed_by_the_dead(outbox, number=1):
    return outbox.store.claim_ready_task(number, worker_id=uuid7())


@pytest.mark.parametrize("extended", [False, True], ids=["claimed_ahead", "extended_ahead"])
def test_a_lease_written_by_a_fast_clock_ends_on_time_for_workers_started_later(outbox, work, written_ahead, extended):
    @outbox.task(name="orphan", lease=2)
    def orphan() -> None: ...

    handle = orphan.using(outbox).enqueue()
    if extended:
        claims = claimed_by_the_dead(outbox)
        assert written_ahead(lambda: outbox.store.heartbeat(claims))
    else:
        assert written_ahead(lambda: claimed_by_the_dead(outbox))
    work()
    until(lambda: outbox.store.get(handle.id).status is TaskStatus.COMPLETED)
    assert kinds(outbox, handle).count(EventType.RESET) == 1
    assert outbox.store.verify() == []


def test_a_lease_longer_than_that_of_its_task_is_not_mistaken_for_one_of_a_fast_clock(outbox, written_ahead):
    @outbox.task(name="longer", lease=1)
    def longer(n: int) -> None: ...

    for number in range(2):
        longer.using(outbox).enqueue(number)
    [claim] = outbox.store.claim_ready_task(1, worker_id=uuid7(), lease=3600)
    assert outbox.store.heartbeat([claim])
    assert outbox.store.outlasting_leases().leases == {}
    [ahead] = written_ahead(lambda: outbox.store.claim_ready_task(1, worker_id=uuid7(), lease=3600))
    [(lease, lasts)] = outbox.store.outlasting_leases().leases.items()
    assert (lease.id, lasts) == (ahead.id, timedelta(hours=1))


def test_outbox_entries_written_by_a_fast_clock_run_by_the_current_clock(outbox, work, written_ahead):
    """Tasks that a user delayed keep their time. No worker is running when the clock is corrected."""

    @outbox.task(name="waits")
    def waits(n: int) -> None: ...

    handles = [waits.using(outbox).enqueue(number) for number in range(4)]
    retried, snoozed, released, lost = claimed_by_the_dead(outbox, 4)

    def write():
        store = outbox.store
        kinds = {EventType.RETRY_SCHEDULED: retried, EventType.SNOOZED: snoozed}
        store.finish([Outcome(claim=one, event_type=kind, delay=SECOND, error="no") for kind, one in kinds.items()])
        store.release(released)
        assert [one.id for one in store.recover()] == [lost.id]
        return waits.using(outbox).enqueue(4), waits.using(outbox, delay=600).enqueue(5)

    new, dated = written_ahead(write)
    work()
    until(lambda: all(outbox.store.get(one.id).status is TaskStatus.COMPLETED for one in (*handles, new)))
    assert outbox.store.get(dated.id).status is TaskStatus.READY
    assert outbox.store.verify() == []


def test_the_delay_of_a_retry_written_by_a_fast_clock_starts_again(outbox, written_ahead):
    @outbox.task(name="waits")
    def waits() -> None: ...

    handle = waits.using(outbox).enqueue()
    [claim] = claimed_by_the_dead(outbox)
    outcome = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, delay=timedelta(minutes=10), error="no")
    written_ahead(lambda: outbox.store.finish([outcome]))
    now = outbox.store.now()
    assert outbox.store.due_again() == 1
    found = outbox.store.get(handle.id)
    assert timedelta(seconds=599) < found.retry_at - now < timedelta(seconds=660)
    assert found.retry_at == outbox.store.next_available_at()
    assert outbox.store.due_again() == 0
    assert outbox.store.verify() == []
