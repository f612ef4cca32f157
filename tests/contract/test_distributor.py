"""Waiting for work: a distributor wakes when work is committed or due, on both databases, and loses no wake-up."""

from __future__ import annotations

import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, event

from outboxq.errors import InvalidArgument, UnsupportedDatabase
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.distributor import (
    Health,
    PostgresDistributor,
    SqliteDistributor,
    WorkDistributor,
    create_work_distributor,
)
from tests import forked
from tests.contract import helpers
from tests.sleeper import Claimer, Sleeper
from tests.waiting import PROMPTLY, until

MINUTE = 60.0


@pytest.fixture
def start(database):
    """Return a function that creates and starts distributors. They are closed after the test."""
    made = []

    def start_one(store=None, **options):
        distributor = create_work_distributor(store or database.store, **{"poll": MINUTE, **options})
        made.append(distributor)
        distributor.start()
        if options.get("notifications", True):
            until(lambda: distributor.health.listening)
        return distributor

    yield start_one
    for distributor in made:
        distributor.close()


@pytest.fixture
def distributor(start):
    return start()


@pytest.fixture
def sleeper(distributor):
    return Sleeper(distributor)


def new(**fields):
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})


def add(database, **fields):
    """Commit one task. Return its id and the time of the commit."""
    handle = database.store.enqueue(new(**fields))
    return handle.id, time.monotonic()


def seconds(distributor, timeout=None):
    began = time.monotonic()
    distributor.wait_for_work(timeout)
    return time.monotonic() - began


def quiet(distributor):
    """Wait until waits no longer return immediately. (The first wait may be long because statements are compiled.)"""
    until(lambda: seconds(distributor, 0.03) >= 0.03 and seconds(distributor, 0.03) >= 0.03)


# The interface


def test_a_distributor_has_everything_that_the_interface_names(database, start):
    distributor: WorkDistributor = start()
    names = {name for name in vars(WorkDistributor) if not name.startswith("_")}
    assert names == {"health", "means", "start", "wait_for_work", "at_work", "wake", "close"}
    assert isinstance(distributor.health, Health)
    assert all(callable(getattr(distributor, name)) for name in names - {"health", "means"})


def test_the_database_determines_the_kind_of_distributor(database):
    kinds = {"postgresql": PostgresDistributor, "sqlite": SqliteDistributor}
    assert type(create_work_distributor(database.store)) is kinds[database.name]
    assert type(create_work_distributor(database.engine)) is kinds[database.name]
    assert type(create_work_distributor(database.host_engine())) is kinds[database.name]


def test_an_unsupported_database_is_refused():
    driver = SimpleNamespace(paramstyle="format", __name__="mysql", version_info=(2, 0, 0))
    engine = create_engine("mysql://host/database", module=driver)
    with pytest.raises(UnsupportedDatabase, match="mysql"):
        create_work_distributor(engine)


@pytest.mark.parametrize("notifications", [True, False])
def test_it_sleeps_for_thirty_seconds_if_it_is_notified_and_otherwise_polls_twice_a_second(
    database, start, notifications
):
    distributor = start(poll=None, notifications=notifications)
    sleeper = Sleeper(distributor)
    if database.name == "postgresql" and notifications:
        with sleeper.asleep():
            assert 15 < sleeper.slept <= 30  # the rest of the sleep, which has already begun
    else:
        quiet(distributor)
        distributor.wait_for_work()  # the rest of the sleep that began above
        assert 0.49 <= seconds(distributor) < 0.5 + PROMPTLY


@pytest.mark.in_turn
@pytest.mark.parametrize("notifications", [True, False])
@pytest.mark.parametrize("poll", [0.2, timedelta(milliseconds=200)])
def test_the_poll_interval_can_be_configured(start, poll, notifications):
    distributor = start(poll=poll, notifications=notifications)
    quiet(distributor)
    distributor.wait_for_work()  # the rest of the sleep that began above
    assert 0.19 <= seconds(distributor) < 0.2 + PROMPTLY


@pytest.mark.parametrize("poll", ["1", True, float("nan"), 0, -1, timedelta(0)])
def test_a_poll_interval_that_is_not_a_time_span_is_refused(database, poll):
    with pytest.raises(InvalidArgument):
        create_work_distributor(database.store, poll=poll)


@pytest.mark.parametrize("queues", ["default", [], [1]])
def test_queues_that_are_not_a_list_of_names_are_refused_when_the_distributor_is_created(database, queues):
    with pytest.raises(InvalidArgument):
        create_work_distributor(database.store, queues=queues)


@pytest.mark.parametrize("notifications", [True, False])
def test_a_shorter_timeout_given_by_the_caller_ends_the_wait(start, notifications):
    distributor = start(notifications=notifications)
    quiet(distributor)
    assert 0.09 <= seconds(distributor, 0.1) < 0.1 + PROMPTLY
    assert seconds(distributor, 0) < PROMPTLY


# Commits and rollbacks


def test_a_commit_wakes_the_waiting_thread_promptly(database, sleeper):
    lags = []
    for _ in range(40):
        with sleeper.asleep() as woken:
            _, committed = add(database)
            lags.append(woken.result(30) - committed)
            if not sleeper.notified:
                assert sleeper.last <= 0.1, "it checks the file too rarely"
        database.claim(store=database.store)
    assert max(lags) < PROMPTLY, lags


def test_a_rollback_causes_no_wake_up(database, sleeper):
    with sleeper.asleep() as woken:
        with helpers.transaction(database) as connection:
            database.store.enqueue(new(), using=connection)
            connection.rollback()
        assert sleeper.sleeps_on(woken)
        add(database)
        assert woken.result(30)


def test_a_rollback_to_a_savepoint_causes_no_wake_up(database, sleeper):
    with helpers.transaction(database) as connection:
        with sleeper.asleep() as woken:
            savepoint = connection.begin_nested()
            database.store.enqueue(new(), using=connection)
            savepoint.rollback()
            assert sleeper.sleeps_on(woken)
        connection.rollback()


def test_a_released_savepoint_causes_a_wake_up_at_the_commit(database, sleeper):
    with helpers.transaction(database) as connection, sleeper.asleep() as woken:
        with connection.begin_nested():
            database.store.enqueue(new(), using=connection)
        assert sleeper.sleeps_on(woken)
        connection.commit()
        committed = time.monotonic()
        assert woken.result(30) - committed < PROMPTLY


def test_a_commit_by_another_process_ends_the_wait(database, sleeper):
    script = (
        "import sys, time\n"
        "from outboxq.database.engine import make_engine\n"
        "from outboxq.model import NewTask\n"
        "from outboxq.store import Store\n"
        "from outboxq.model.uuid7 import uuid7\n"
        "store = Store(make_engine(sys.argv[1]))\n"
        "store.ensure_current()\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "store.enqueue(NewTask(id=uuid7(), task_name='x', args='{}'))\n"
        "print(time.monotonic(), flush=True)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with forked.Popen([sys.executable, "-c", script, database.url], **pipes) as other:
        assert other.stdout.readline() == "ready\n"
        with sleeper.asleep() as woken:
            other.stdin.write("\n")
            other.stdin.flush()
            assert woken.result(30) - float(other.stdout.readline()) < PROMPTLY


def test_a_commit_by_an_engine_of_this_process_is_noticed_immediately_on_sqlite(sqlite, monkeypatch):
    """The file is checked too rarely here to explain the wake-up."""
    monkeypatch.setattr("outboxq.worker.distributor.sqlite._WATCH", ((float("inf"), MINUTE),))
    host, other = sqlite.host_engine(), sqlite.host_engine()
    distributor = create_work_distributor(sqlite.store, poll=MINUTE, commits_of=host)
    distributor.start()
    sleeper = Sleeper(distributor)
    try:
        with sleeper.asleep() as woken:
            with other.begin() as connection:
                sqlite.store.enqueue(new(), using=connection)
            assert distributor._hinted_at == float("-inf"), "another engine's commits do not concern it"
            with host.connect() as connection:
                sqlite.store.enqueue(new(), using=connection)
                connection.rollback()
            assert distributor._hinted_at == float("-inf"), "nor do rollbacks"
            with host.begin() as connection:
                sqlite.store.enqueue(new(), using=connection)
            committed = time.monotonic()
            assert woken.result(30) - committed < PROMPTLY
    finally:
        distributor.close()


def test_starting_or_closing_a_distributor_during_a_commit_breaks_nothing(sqlite):
    """Distributors start and close during a commit, which may be in another thread of the application."""
    host = sqlite.host_engine()
    first, second = (create_work_distributor(sqlite.store, poll=MINUTE, commits_of=host) for _ in range(2))
    first.start()

    @event.listens_for(host, "commit")
    def come_and_go(_connection):
        second.start()
        first.close()
        second.close()

    with host.begin() as connection:
        task = sqlite.store.enqueue(new(), using=connection)
    assert sqlite.store.get(task.id)


def test_a_task_committed_between_the_claim_and_the_wait_is_not_missed(database, distributor):
    """The wait begins after the commit, so nothing can wake it."""
    for _ in range(5):
        quiet(distributor)
        assert database.claim(store=database.store) == []
        add(database)
        assert seconds(distributor) < PROMPTLY
        assert len(database.claim(store=database.store)) == 1


def test_a_task_committed_after_the_wait_has_checked_for_work_is_not_missed(database, distributor, monkeypatch):
    """The wait has seen that nothing is due, but does not watch the file or listen to the server yet."""
    quiet(distributor)
    part = distributor.store if database.name == "sqlite" else distributor._sleeping
    name = "look_ahead" if database.name == "sqlite" else "look"
    look, committed = getattr(part, name), []

    def look_and_commit(*arguments, **options):
        seen = look(*arguments, **options)
        if not committed:
            committed.append(add(database))
        return seen

    monkeypatch.setattr(part, name, look_and_commit)
    assert seconds(distributor) < PROMPTLY
    assert len(committed) == len(database.claim(store=database.store)) == 1


def test_a_thousand_wakes_before_a_wait_end_exactly_one_wait(distributor):
    quiet(distributor)
    for _ in range(1000):
        distributor.wake()
    assert seconds(distributor) < PROMPTLY
    assert seconds(distributor, 0.2) >= 0.2


def test_a_wake_from_another_thread_ends_the_wait(distributor, sleeper):
    woken = sleeper.falls_asleep()
    began = time.monotonic()
    distributor.wake()
    assert woken.result(30) - began < PROMPTLY


def test_before_the_start_it_waits_and_polls(database):
    distributor = create_work_distributor(database.store, poll=0.1)
    assert 0.1 <= seconds(distributor) < 0.1 + PROMPTLY
    assert not distributor.health.listening
    add(database)
    assert seconds(distributor) < PROMPTLY
    distributor.close()


def test_without_notifications_everything_is_found_by_polling(database, start):
    distributor = start(notifications=False, poll=0.2)
    assert not distributor.health.listening
    assert distributor.health.connections == 0
    assert listeners() == []
    sleeper = Sleeper(distributor)
    with sleeper.asleep() as woken:
        task, committed = add(database)
        assert woken.result(30) - committed < 0.2 + PROMPTLY
    assert [claim.id for claim in database.claim(store=database.store)] == [task]


# Work that is due later


@pytest.mark.parametrize("notifications", [True, False])
def test_it_wakes_when_a_delayed_task_becomes_due(database, start, notifications):
    distributor = start(notifications=notifications)
    before = time.monotonic()
    task, enqueued = add(database, delay=timedelta(seconds=0.4))
    with Claimer(database.store, distributor) as claimer:
        assert claimer.lag(task, enqueued) < 0.4 + PROMPTLY
    assert claimer.claimed[task] - before >= 0.4
    assert claimer.claims < 10


@pytest.mark.parametrize("way", ["schedule_retry", "finish"])
def test_it_wakes_when_a_retry_becomes_due(database, distributor, way):
    store, at = database.store, timedelta(seconds=0.4)
    task, _ = add(database)
    (claim,) = database.claim(store=store)
    before = time.monotonic()
    if way == "finish":
        store.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, delay=at)])
    else:
        store.schedule_retry(task, datetime.now(UTC) + at, 2)
    scheduled = time.monotonic()
    with Claimer(store, distributor) as claimer:
        assert claimer.lag(task, scheduled) < 0.4 + PROMPTLY
    assert claimer.claimed[task] - before >= 0.4
    assert claimer.claims < 10


@pytest.mark.parametrize("queues", [None, ["default", "other"]])
def test_a_delayed_task_enqueued_while_it_sleeps_is_run_when_it_is_due(database, start, queues):
    """The worker may be waiting for nothing else, or for a task that is due earlier or later."""
    distributor = start(queues=queues)
    sleeper = Sleeper(distributor)
    tasks = {}
    with Claimer(database.store, distributor, queues=queues) as claimer:
        for delay in (0.6, 0.3, 0.9, 0.45):
            until(lambda: sleeper.slept is not None)
            sleeper.slept = None
            before = time.monotonic()
            task, _ = add(database, delay=timedelta(seconds=delay))
            tasks[task] = before + delay
        for task, due in tasks.items():
            assert 0 <= claimer.lag(task, due) < PROMPTLY
    assert claimer.claims < 30


def test_a_task_that_becomes_due_between_the_claim_and_the_wait_is_not_overlooked(database, distributor):
    quiet(distributor)
    add(database, delay=timedelta(seconds=0.5))
    distributor.wait_for_work(0.01)
    assert database.claim(store=database.store) == []
    until(lambda: database.store.look_ahead().due, every=0.001)
    assert seconds(distributor) < PROMPTLY


def test_a_task_that_becomes_due_during_the_check_is_not_overlooked(database):
    """The next due time is read before the check for due tasks, so one of the two notices the task."""
    due = database.clock.now + timedelta(seconds=10)
    database.add(available_at=due)
    for steps in ([5, 15], [5, 5, 15], [9, 10]):
        moments = iter([database.clock.now + timedelta(seconds=step) for step in steps])
        last = []

        def clock(moments=moments, last=last):
            last[:] = [next(moments, *last)] if last else [next(moments)]
            return last[0]

        ahead = Store(database.engine, clock=clock).look_ahead()
        assert ahead.due or ahead.seconds <= 5, steps


def test_a_task_of_another_queue_that_is_due_later_does_not_shorten_the_sleep(database, start):
    distributor = start(queues=["mine"], poll=0.5)
    add(database, queue="theirs", delay=timedelta(seconds=0.05))
    quiet(distributor)
    distributor.wait_for_work()  # the rest of the sleep that began above
    assert seconds(distributor) > 0.3


# Lost wake-ups and many workers


def rounds(database, distributor, count, *, longest=0.015, disturb=lambda: None):
    """Commit tasks one at a time, at random moments while a worker falls asleep. Returns how late each task was."""
    chance = random.Random(os.environ.get("OUTBOXQ_SEED", "7"))
    lags = []
    with Claimer(database.store, distributor, tells=False) as claimer:
        for number in range(count):
            time.sleep(chance.uniform(0, longest))  # a random moment while it falls asleep
            disturb()
            task, committed = add(database)
            lags.append(claimer.lag(task, committed))
            assert lags[-1] < PROMPTLY, f"round {number}: {lags[-1]:.3f} s"
    print(
        f"\n{database.name}: {count} rounds, worst {max(lags) * 1000:.0f} ms, p50 {statistics.median(lags) * 1000:.1f}"
    )
    return lags


def stress(database, distributor, *, producers, each):
    """Run producers whose transactions stay open for random times after the insert. One in ten rolls back."""
    late = []

    def produce(seed):
        chance = random.Random(seed)
        engine = database.host_engine()
        for _ in range(each):
            with engine.connect() as connection:
                connection.begin()
                task = database.store.enqueue(new(), using=connection).id
                time.sleep(chance.uniform(0, 0.02) if database.name == "postgresql" else chance.uniform(0, 0.002))
                if chance.random() < 0.1:
                    connection.rollback()
                    continue
                connection.commit()
            committed = time.monotonic()
            lag = claimer.lag(task, committed)
            if lag > PROMPTLY:
                late.append(lag)
            time.sleep(chance.uniform(0, 0.02))  # so that the worker sometimes sleeps
        return True

    with Claimer(database.store, distributor) as claimer:
        done = helpers.at_once(*[lambda seed=seed: produce(seed) for seed in range(producers)])
    assert done == [True] * producers
    assert late == []


def test_no_wake_up_is_lost_in_60_rounds(database, distributor):
    rounds(database, distributor, 60)


def test_no_wake_up_is_lost_among_producers_that_stay_open(database, distributor):
    stress(database, distributor, producers=4, each=20)


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_no_wake_up_is_lost_in_1000_rounds(database, distributor):
    rounds(database, distributor, 1000, longest=0.03)


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_no_wake_up_is_lost_among_many_producers_that_stay_open(database, distributor):
    stress(database, distributor, producers=6, each=400)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_no_wake_up_is_lost_in_1000_rounds_while_the_listener_is_killed(postgresql, monkeypatch):
    # The listener reconnects immediately, as after a long connection. Otherwise, most rounds would find it polling.
    monkeypatch.setattr("outboxq.worker.distributor.listener._STEADY_AFTER", 0.0, raising=False)
    distributor = create_work_distributor(postgresql.store, poll=MINUTE)
    distributor.start()
    until(lambda: distributor.health.listening)
    chance = random.Random(11)
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND query ~* '^(un)?listen|^select 1$' AND pid <> pg_backend_pid()"
    )
    stop = threading.Event()

    def killing():
        while not stop.wait(chance.uniform(0, 0.4)):
            postgresql.rows(kill)

    killer = threading.Thread(target=killing)
    killer.start()
    try:
        rounds(postgresql, distributor, 1000, longest=0.05)
    finally:
        stop.set()
        killer.join()
    assert distributor.health.connections > 20


def test_eight_workers_of_one_queue_claim_each_task_once_and_promptly(database, start):
    """Each task wakes every worker, and all but one find nothing. They may look a few times, but must not block that one."""
    claimers = [Claimer(database.store, start(queues=["default"]), queues=["default"]) for _ in range(8)]
    lags = []
    with ExitStack() as stack:
        for claimer in claimers:
            stack.enter_context(claimer)
        until(lambda: all(claimer.claims for claimer in claimers))
        before = sum(claimer.claims for claimer in claimers)
        for _ in range(20):
            task, committed = add(database)
            claimer = until(lambda task=task: next((one for one in claimers if task in one.claimed), None), every=0.001)
            lags.append(claimer.claimed[task] - committed)
            until(lambda task=task: database.store.get(task).completed_at)
        asked = sum(claimer.claims for claimer in claimers) - before
    assert max(lags) < PROMPTLY, lags
    # On SQLite, workers notice every commit, including those of claims and completions.
    assert asked / 20 <= {"postgresql": 12, "sqlite": 24}[database.name]


# Closing


@pytest.fixture(autouse=True)
def _earlier():
    """Remember the threads of earlier tests, whose listeners may be about to end."""
    EARLIER[:] = threading.enumerate()


EARLIER: list[threading.Thread] = []


def listeners():
    found = (thread for thread in threading.enumerate() if thread.name == "outboxq-listener")
    return [thread for thread in found if thread not in EARLIER]


def test_close_ends_the_wait_immediately_and_stops_the_thread(distributor, sleeper):
    woken = sleeper.falls_asleep()
    began = time.monotonic()
    distributor.close()
    assert woken.result(30) - began < PROMPTLY
    assert listeners() == []
    assert time.monotonic() - began < PROMPTLY


@pytest.mark.parametrize("begun", [True, False])
def test_after_close_every_wait_returns_immediately(database, begun):
    distributor = create_work_distributor(database.store, poll=MINUTE)
    if begun:
        distributor.start()
    distributor.close()
    distributor.close()
    distributor.start()
    for _ in range(20):
        assert seconds(distributor) < PROMPTLY
    assert listeners() == []
    assert not distributor.health.listening


@pytest.mark.parametrize("why", ["close", "wake"])
def test_a_wait_that_is_over_before_it_begins_runs_no_statement(database, distributor, why):
    """The database may be gone by then."""
    quiet(distributor)
    getattr(distributor, why)()
    asked = []
    for engine in database.engines:
        event.listen(engine, "before_cursor_execute", lambda c, k, statement, *_: asked.append(statement))
    assert seconds(distributor) < PROMPTLY
    assert asked == []


def test_eight_threads_may_close_simultaneously(distributor, sleeper):
    woken = sleeper.falls_asleep()
    assert helpers.at_once(*[distributor.close] * 8) == [None] * 8
    assert woken.result(30)
    until(lambda: listeners() == [])


def test_a_signal_handler_may_close_at_any_moment_while_the_main_thread_waits(database):
    """The signal arrives at any time from before the first statement until the sleep.

    It is sent again after a second. Python runs a handler between two of its instructions, so a signal that arrives
    between the last of them and the sleep does not end the sleep.
    """
    assert threading.current_thread() is threading.main_thread()
    main, chance = threading.main_thread().ident, random.Random(3)

    def send(over):
        signal.pthread_kill(main, signal.SIGUSR1)
        while not over.wait(1):
            signal.pthread_kill(main, signal.SIGUSR1)

    for _ in range(12):
        distributor = create_work_distributor(database.store, poll=MINUTE)
        distributor.start()
        closed, over = [], threading.Event()

        def close(*_, distributor=distributor, closed=closed):
            distributor.close()
            closed.append(time.monotonic())

        before = signal.signal(signal.SIGUSR1, close)
        try:
            timer = threading.Timer(chance.uniform(0, 0.08), send, (over,))
            timer.start()
            while not closed:
                distributor.wait_for_work()
            returned = time.monotonic()
            over.set()
            timer.join()
            assert returned - closed[0] < PROMPTLY
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert listeners() == []


def test_a_signal_handler_may_close_while_the_file_is_checked(sqlite):
    """The handler interrupts the main thread, which holds the connection's lock."""
    distributor = create_work_distributor(sqlite.store, poll=MINUTE)
    distributor.start()
    real = distributor._connection

    class Interrupted:
        def execute(self, statement):
            signal.raise_signal(signal.SIGUSR1)
            return real.execute(statement)

        def close(self):
            real.close()

    distributor._connection = Interrupted()
    before = signal.signal(signal.SIGUSR1, lambda *_: distributor.close())
    try:
        assert seconds(distributor) < PROMPTLY
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not distributor.health.listening
    with pytest.raises(Exception, match="closed"):
        real.execute("SELECT 1")


def test_repeated_starts_and_closes_do_not_disturb_simultaneous_commits(database, caplog):
    """A worker may run in an application's process."""
    caplog.set_level(logging.WARNING)
    stop = threading.Event()

    def commit():
        count = 0
        while not stop.is_set():
            add(database)
            count += 1
        return count

    def come_and_go():
        try:
            for _ in range(10):
                distributor = create_work_distributor(database.store, poll=MINUTE)
                distributor.start()
                distributor.wait_for_work(0.01)
                distributor.close()
        finally:
            stop.set()

    count, none = helpers.at_once(commit, come_and_go)
    assert none is None
    assert count > 0
    assert caplog.messages == []
