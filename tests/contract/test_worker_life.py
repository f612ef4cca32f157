"""A worker's start and stop, its resources, the errors that it survives, and the state that it leaves behind."""

from __future__ import annotations

import contextlib
import json
import queue
import sqlite3
import sys
import textwrap
import threading
import time
from datetime import date, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import InternalError

from outboxq import (
    ConfigurationError,
    EventType,
    Outbox,
    RetryPolicy,
    Snooze,
    TaskContext,
    TaskStatus,
    configure_sqlite,
)
from outboxq.errors import NotPermitted
from outboxq.model import SUSPECT
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.failpoints import Failpoint
from outboxq.worker.upkeep import ServiceThread
from tests import forked
from tests.contract.helpers import at_once, transaction
from tests.reuse import OTHERS
from tests.waiting import until

ROOT = Path(__file__).parents[2]
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@pytest.fixture
def work(outbox):
    """Start a worker. It is stopped after the test."""
    started = []

    def start(outbox=outbox, **options):
        worker = outbox.worker(**{"poll": 0.05, "notifications": False, "recover_every": 60, **options})
        started.append(worker)
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def exits(monkeypatch):
    """The exit statuses with which `run()` would have ended the process."""
    asked = []
    monkeypatch.setattr("outboxq.worker.worker.os._exit", asked.append)
    return asked


@pytest.fixture
def run(outbox, exits):
    """Call `run()` in this thread, in a burst by default."""

    def to_the_end(*, burst=True, **options):
        worker = outbox.worker(**{"notifications": False, "recover_every": 60, **options})
        return worker.run(burst=burst), worker

    return to_the_end


def ended(outbox, handle):
    return until(lambda: (task := outbox.store.get(handle.id)).completed_at and task)


def types(outbox, handle):
    return [event.event_type for event in outbox.store.history(handle.id)]


def statuses(outbox, handles):
    return [outbox.store.get(handle.id).status for handle in handles]


LEFT: set[threading.Thread] = set()
"""Threads of earlier tests in this process, such as a thread whose handler never ends."""


@pytest.fixture(autouse=True)
def left():
    LEFT.clear()
    LEFT.update(threads())


def threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("outboxq")} - LEFT


# Start and stop


def test_a_worker_that_never_started_stops_immediately(outbox):
    worker = outbox.worker()
    assert worker.stop() is True
    assert worker.stop() is True


def test_a_worker_stopped_before_it_starts_runs_nothing_and_can_be_stopped_again(outbox, work):
    ran = []
    handle = outbox.task(name="t")(lambda: ran.append(1)).using(outbox).enqueue()
    worker = outbox.worker(notifications=False)
    worker.stop()
    with contextlib.suppress(ConfigurationError):
        worker.start()
    assert worker.stop() is True
    until(lambda: not threads())
    assert outbox.store.get(handle.id).status is TaskStatus.READY
    assert ran == []


def test_run_after_stop_returns(outbox, exits):
    worker = outbox.worker(notifications=False)
    worker.stop()
    assert worker.run() == 0


def test_a_worker_that_stops_is_no_longer_listed(outbox, work):
    worker = work(label="host:7")
    assert [one.label for one in outbox.store.workers.list()] == ["host:7"]
    assert worker.stop() is True
    assert outbox.store.workers.list() == []


def test_a_worker_after_stop_at_once_is_no_longer_listed(outbox, work, exits, monkeypatch):
    monkeypatch.setattr("outboxq.worker.worker._GIVE_BACK_TIMEOUT", 30.0)  # the machine may be slow
    work().stop_at_once()
    assert exits == [1]
    assert outbox.store.workers.list() == []


def test_stop_at_once_before_the_start_ends_the_worker_without_a_claim(outbox, exits):
    handle = outbox.task(name="t")(lambda: None).using(outbox).enqueue()
    worker = outbox.worker(notifications=False)
    worker.stop_at_once()
    assert exits == [1]
    worker.start()
    assert worker.stop() is True
    assert outbox.store.get(handle.id).lease_token == 0


def test_a_worker_after_stop_at_once_during_its_start_is_no_longer_listed(outbox, exits, monkeypatch):
    listed, going_on = threading.Event(), threading.Event()
    run_early = ServiceThread.run_early

    def slowly(service: ServiceThread) -> None:
        run_early(service)
        listed.set()
        going_on.wait(60)

    monkeypatch.setattr(ServiceThread, "run_early", slowly)
    monkeypatch.setattr("outboxq.worker.worker._GIVE_BACK_TIMEOUT", 30.0)  # the machine may be slow
    worker = outbox.worker(notifications=False)
    starting = threading.Thread(target=worker.start)
    starting.start()
    listed.wait(60)
    assert len(outbox.store.workers.list()) == 1
    stopping = threading.Thread(target=worker.stop_at_once)
    stopping.start()
    until(worker._stopping.is_set)
    going_on.set()
    starting.join()
    stopping.join()
    assert exits == [1]
    assert outbox.store.workers.list() == []
    worker.stop()


@pytest.mark.parametrize("part", ["distributor", "pool", "completer", "registration", "claim_loop"])
def test_a_worker_can_be_stopped_if_one_of_its_parts_cannot_start(outbox, monkeypatch, part):
    def fails() -> None:
        raise OSError("no threads")

    worker, earlier = outbox.worker(), threads()  # threads of another test may still be ending
    monkeypatch.setattr(getattr(worker._parts, part), "start", fails)
    with pytest.raises(OSError, match="no threads"):
        worker.start()
    assert worker.stop() is True
    assert threads() <= earlier


def test_a_worker_whose_start_fails_can_be_stopped(outbox, monkeypatch):
    def fails(service: ServiceThread) -> None:
        raise OSError("no room")

    monkeypatch.setattr(ServiceThread, "run_early", fails)
    worker, earlier = outbox.worker(notifications=False), threads()
    own = worker._parts.connections
    engines = [store.bound_engine for store in (own.outcomes, own.claims, own.urgent)]
    opened = []
    for engine in engines:
        event.listen(engine, "connect", lambda raw, _: opened.append(raw))
        event.listen(engine, "close", lambda raw, _: opened.remove(raw))
    with pytest.raises(OSError, match="no room"):
        worker.start()
    assert opened == []
    assert worker.stop() is True
    assert threads() <= earlier


def test_a_worker_whose_start_failed_keeps_its_connections_for_the_next_start(outbox, monkeypatch):
    def fails(service: ServiceThread) -> None:
        raise OSError("no room")

    worker, opened, broke = outbox.worker(notifications=False), [], []
    own = worker._parts.connections
    stores = [own.outcomes, own.claims, own.urgent]
    with monkeypatch.context() as patch:
        patch.setattr(ServiceThread, "run_early", fails)
        with pytest.raises(OSError, match="no room"):
            worker.start()
    for store in stores:
        event.listen(store.bound_engine, "connect", lambda raw, _: opened.append(raw))
        event.listen(store.bound_engine.pool, "invalidate", lambda *_: broke.append(1))
        for _ in range(3):
            store.now()
    assert (len(opened), broke) == (len(stores), [])
    worker.start()
    assert worker.stop() is True


def test_stop_may_be_called_repeatedly_and_from_several_threads(outbox, work):
    gate = threading.Event()

    @outbox.task(name="slow")
    def slow() -> None:
        gate.wait(60)

    handle = slow.using(outbox).enqueue()
    worker = work()
    until(lambda: worker.running == 1)
    answers = queue.SimpleQueue()
    stoppers = [threading.Thread(target=lambda: answers.put(worker.stop())) for _ in range(4)]
    for stopper in stoppers:
        stopper.start()
    gate.set()
    for stopper in stoppers:
        stopper.join(60)
    assert [answers.get(timeout=10) for _ in stoppers] == [True] * 4
    assert worker.stop() is True
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED


@pytest.mark.in_turn
def test_stop_immediately_after_start_ends_the_worker(outbox):
    outbox.task(name="t")(lambda: None).using(outbox).enqueue_many([()] * 40)
    took = []
    for turn in range(30):
        worker = outbox.worker(poll=30, recover_every=60, notifications=turn % 2 == 0)
        began = time.monotonic()
        worker.start()
        assert worker.stop() is True
        took.append(time.monotonic() - began)
        assert not worker._parts.claim_loop.is_alive()
    assert max(took) < 20  # polling would take 30 s
    until(lambda: not threads())
    assert outbox.store.verify() == []


def test_stop_while_another_thread_starts_the_worker_ends_it(outbox, monkeypatch):
    worker = outbox.worker(notifications=False)
    starting, go, errors = threading.Event(), threading.Event(), []

    def slow_start():
        starting.set()
        go.wait(60)

    def attempt(call):
        try:
            call()
        except Exception as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    monkeypatch.setattr(worker._parts.distributor, "start", slow_start)
    starter = threading.Thread(target=attempt, args=[worker.start])
    starter.start()
    assert starting.wait(60)
    stopper = threading.Thread(target=attempt, args=[worker.stop])
    stopper.start()
    until(worker._stopping.is_set)
    go.set()
    starter.join(60)
    stopper.join(60)
    worker.stop()
    assert errors == []
    until(lambda: not threads())


_SLOW_RELEASE = """
    CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END';
    CREATE TRIGGER take_time BEFORE INSERT ON execution_events
        FOR EACH ROW WHEN (NEW.event_type = 'task_released') EXECUTE FUNCTION take_time();
"""


@on_postgresql
def test_a_repeated_stop_at_once_ends_the_process_only_after_the_release(outbox, work, database, monkeypatch):
    """Repeated signals must not end the process between the first release and its COMMIT."""
    gate, found = threading.Event(), []
    handle = outbox.task(name="slow")(lambda: gate.wait(60) and None).using(outbox).enqueue()
    monkeypatch.setattr("outboxq.worker.worker.end_process_after", lambda _: None)
    monkeypatch.setattr("outboxq.worker.worker._GIVE_BACK_TIMEOUT", 30.0)  # the machine may be slow
    monkeypatch.setattr("outboxq.worker.worker.os._exit", lambda _: found.append(outbox.store.get(handle.id).status))
    worker = work()
    until(lambda: worker.running == 1)
    database.run(_SLOW_RELEASE)
    at_once(worker.stop_at_once, worker.stop_at_once)
    gate.set()
    assert found == [TaskStatus.READY] * 2


@on_postgresql
def test_stop_at_once_retries_the_release_while_a_heartbeat_locks_the_task(outbox, work, database, exits, monkeypatch):
    monkeypatch.setattr("outboxq.worker.worker._GIVE_BACK_TIMEOUT", 30.0)  # the machine may be slow
    gate = threading.Event()
    handle = outbox.task(name="slow")(lambda: gate.wait(60) and None).using(outbox).enqueue()
    with transaction(database) as heartbeat:

        def let_go_soon(point):
            if point is Failpoint.BEFORE_RELEASE:
                threading.Timer(0.1, heartbeat.commit).start()

        worker = work(on_failpoint=let_go_soon)
        until(lambda: worker.running == 1)
        heartbeat.execute(text("SELECT 1 FROM task_leases FOR UPDATE"))
        worker.stop_at_once()
    gate.set()
    assert exits == [1]
    assert outbox.store.get(handle.id).status is TaskStatus.READY


def test_run_does_not_return_0_after_stop_at_once_even_if_handlers_end_first(outbox, exits):
    """The process still runs for a moment after its tasks are released, and a handler may return in that time."""
    workers = []

    @outbox.task(name="attentive")
    def attentive(ctx: TaskContext) -> None:
        workers[0].request_stop()
        stopping = threading.Thread(target=workers[0].stop_at_once)
        stopping.start()
        until(lambda: ctx.lost)
        stopping.join()

    attentive.using(outbox).enqueue()
    worker = outbox.worker(notifications=False, recover_every=60)
    workers.append(worker)
    assert worker.run() == 1


def test_a_handler_may_stop_its_worker(outbox, work):
    """`stop` does not wait for the handler that calls it."""
    answers = []

    @outbox.task(name="last", retry=RetryPolicy.never())
    def last() -> None:
        answers.append(worker.stop(timeout=0.2))

    worker = work()
    handle = last.using(outbox).enqueue()
    until(lambda: worker.handled == 1)
    assert len(answers) == 1
    worker.stop()
    until(lambda: not threads())
    assert outbox.store.get(handle.id).status in {TaskStatus.READY, TaskStatus.COMPLETED}


def test_a_worker_can_start_only_once(outbox, work):
    worker = work()
    with pytest.raises(ConfigurationError, match="started only once"):
        worker.start()
    worker.stop()
    with pytest.raises(ConfigurationError, match="started only once"):
        worker.start()


def test_a_worker_leaves_no_threads_in_its_host_process(outbox):
    hosts_own = threading.Event()
    host = threading.Thread(target=hosts_own.wait, args=[60], name="host", daemon=True)
    host.start()
    before = set(threading.enumerate())
    workers = [outbox.worker(poll=0.05, recover_every=60) for _ in range(2)]
    task = outbox.task(name="t")(lambda: threading.current_thread().name)
    for worker in workers:
        worker.start()
    handles = task.using(outbox).enqueue_many([()] * 20)
    ran_in = {json.loads(ended(outbox, handle).result) for handle in handles}
    assert all(name.startswith("outboxq-handler") for name in ran_in)
    for worker in workers:
        assert worker.stop() is True
    assert host.is_alive()
    hosts_own.set()
    host.join(60)
    until(lambda: set(threading.enumerate()) <= before)


def test_handled_running_and_health_describe_the_worker(outbox, work, database):
    gate = threading.Event()

    @outbox.task(name="wait")
    def wait() -> None:
        gate.wait(60)

    worker = outbox.worker(concurrency=2, poll=0.05)
    assert (worker.handled, worker.running, worker.is_healthy) == (0, 0, True)
    assert worker.health.listening is False
    wait.using(outbox).enqueue_many([()] * 5)
    worker.start()
    until(lambda: worker.health.listening)
    until(lambda: worker.running == 2)
    assert worker.handled == 0
    gate.set()
    until(lambda: worker.handled == 5)
    until(lambda: worker.running == 0)
    assert worker.stop() is True
    assert worker.is_healthy


# Bursts and limits


def test_a_burst_runs_all_due_tasks_and_returns_0(outbox, run):
    gone = []

    @outbox.task(name="spawn")
    def spawn(left: int) -> None:
        gone.append(left)
        if left:
            spawn.using(outbox).enqueue_many([(left - 1,)] * 2)

    spawn.using(outbox).enqueue(5)
    code, worker = run()
    assert (code, worker.handled, len(gone)) == (0, 63, 63)
    assert sum(row.due + row.running for row in outbox.store.stats()) == 0


def test_a_burst_waits_for_immediate_retries_but_not_for_later_tasks(outbox, run, monkeypatch):
    monkeypatch.setattr("outboxq.worker.executor.SHORTEST_SNOOZE", timedelta(0))

    @outbox.task(name="third.time", retry=RetryPolicy(max_attempts=3, wait=0))
    def third_time(ctx: TaskContext) -> int:
        if ctx.attempt < 3:
            raise ValueError(ctx.attempt)
        return ctx.attempt

    rested = []

    @outbox.task(name="rests")
    def rests() -> None:
        rested.append(1)
        if len(rested) < 4:
            raise Snooze(0)

    @outbox.task(name="hourly", retry=RetryPolicy(max_attempts=3, wait=3600))
    def hourly() -> None:
        raise ValueError("later")

    third, rest, hour = (task.using(outbox).enqueue() for task in (third_time, rests, hourly))
    tomorrow = third_time.using(outbox, delay=86400).enqueue()
    code, _ = run()
    assert code == 0
    assert statuses(outbox, [third, rest]) == [TaskStatus.COMPLETED] * 2
    assert (outbox.store.get(third.id).attempt, len(rested)) == (3, 4)
    assert statuses(outbox, [hour, tomorrow]) == [TaskStatus.READY] * 2
    assert outbox.store.get(hour.id).attempt == 2


def test_a_burst_without_tasks_returns(run):
    code, worker = run()
    assert (code, worker.handled) == (0, 0)


def test_a_burst_does_not_end_while_a_handler_may_still_enqueue(outbox, run):
    """A claim finds nothing while the handler is running, but the burst must not end."""
    claims, children = [], []

    @outbox.task(name="child")
    def child() -> None:
        children.append(1)

    @outbox.task(name="slow.parent")
    def slow_parent() -> None:
        until(lambda: len(claims) >= 2)
        child.using(outbox).enqueue()

    slow_parent.using(outbox).enqueue()
    outbox.task(name="quick")(lambda: None).using(outbox).enqueue()
    code, worker = run(
        concurrency=2, prefetch=0, on_failpoint=lambda point: point is Failpoint.AFTER_CLAIM and claims.append(1)
    )
    assert (code, worker.handled, children) == (0, 3, [1])


def test_run_stops_the_timer_that_would_end_the_process(run, exits):
    """The timer that ends a process with hanging threads is stopped."""
    before = set(threading.enumerate())
    assert run(drain_timeout=0)[0] == 0
    until(lambda: not [thread for thread in set(threading.enumerate()) - before if isinstance(thread, threading.Timer)])


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "options",
    [{"concurrency": 1}, {"concurrency": 8}, {"concurrency": 8, "prefetch": 12}, {"concurrency": 1, "prefetch": 20}],
    ids=str,
)
def test_no_more_than_max_tasks_are_handled(outbox, run, options):
    ran, gate = [], threading.Event()

    @outbox.task(name="t")
    def task() -> None:
        gate.wait(60)  # so that the last task is claimed long before it can begin
        ran.append(1)

    handles = task.using(outbox).enqueue_many([()] * 30)
    threading.Timer(0.1, gate.set).start()
    code, worker = run(burst=False, max_tasks=17, **options)
    assert (code, worker.handled, len(ran)) == (0, 17, 17)
    found = statuses(outbox, handles)
    assert (found.count(TaskStatus.COMPLETED), found.count(TaskStatus.READY)) == (17, 13)
    assert EventType.RELEASED not in {kind for handle in handles for kind in types(outbox, handle)}


def test_the_last_of_max_tasks_are_released_behind_a_slow_handler(outbox, work):
    """As at any other time, another worker may run the tasks that wait behind it. This one claims others later."""
    gate = threading.Event()

    @outbox.task(name="fast")
    def fast() -> None:
        pass

    @outbox.task(name="slow")
    def slow() -> None:
        gate.wait(60)

    before = fast.using(outbox).enqueue_many([()] * 60)  # they are fast, so tasks are prefetched
    slow.using(outbox).enqueue()
    behind = fast.using(outbox).enqueue_many([()] * 5)
    worker = work(concurrency=1, max_tasks=66)
    try:
        until(lambda: worker.handled == 60 and worker.running == 1)
        until(lambda: statuses(outbox, behind) == [TaskStatus.READY] * 5, seconds=20)
    finally:
        gate.set()
    worker._ending.wait()
    assert worker.stop()
    assert worker.handled == 66
    assert statuses(outbox, [*before, *behind]) == [TaskStatus.COMPLETED] * 65


def test_max_tasks_also_ends_a_burst_after_slow_handlers_finish(outbox, run):
    gate = threading.Event()

    @outbox.task(name="slow")
    def slow() -> str:
        gate.wait(60)
        return "done"

    handles = slow.using(outbox).enqueue_many([()] * 3)
    threading.Timer(0.1, gate.set).start()
    code, worker = run(max_tasks=2, concurrency=8)
    assert (code, worker.handled) == (0, 2)
    assert sorted(statuses(outbox, handles)) == [TaskStatus.COMPLETED, TaskStatus.COMPLETED, TaskStatus.READY]


# Connections


@pytest.fixture
def small(database):
    """An application's engine with at most two connections."""
    engine = database.own(create_engine(database.url, pool_size=2, max_overflow=0, pool_timeout=60))
    if database.name == "sqlite":
        configure_sqlite(engine)
    return engine


@pytest.mark.in_turn
def test_handlers_that_take_all_connections_do_not_stop_heartbeats(small, work, database):
    """The handlers run for longer than the lease, but no lease is lost and no task is recovered."""
    outbox, taken, gate = Outbox(small), [], threading.Event()

    @outbox.task(name="hog", lease=2)
    def hog(ctx: TaskContext) -> bool:
        connection = small.connect().execution_options(sqlite_begin="DEFERRED")  # two handlers hold one, and six wait
        with connection:
            connection.execute(text("SELECT 1"))
            taken.append(connection)
            gate.wait(60)
            return ctx.lost

    hogs = hog.using(outbox).enqueue_many([()] * 8)
    work(outbox, concurrency=8, recover_every=0.05, heartbeat=0.2)
    until(lambda: len(taken) == 2)
    other = Store(database.engine)  # the small pool has no free connection
    first = min(lease for (lease,) in leases(other, hogs))
    until(lambda: min(lease for (lease,) in leases(other, hogs)) > first + timedelta(seconds=2.2))
    assert small.pool.checkedout() == 2
    gate.set()
    for handle in hogs:
        task = until(lambda handle=handle: (t := other.get(handle.id)).completed_at and t)
        assert (task.status, task.result, task.recovery_attempts) == (TaskStatus.COMPLETED, "false", 0)


def leases(store, handles):
    return [(store.get(handle.id).lease_expires_at,) for handle in handles]


@on_postgresql
def test_transactional_handlers_that_take_all_connections_do_not_stop_heartbeats(small, work, database):
    outbox, begun, gate = Outbox(small), [], threading.Event()

    @outbox.task(name="hog", lease=2, transactional=True)
    def hog(ctx: TaskContext) -> bool:
        begun.append(1)
        gate.wait(60)
        return ctx.lost

    @outbox.task(name="plain", lease=2)
    def plain(ctx: TaskContext) -> bool:
        gate.wait(60)
        with small.connect() as connection:
            connection.execute(text("SELECT 1"))
        return ctx.lost

    handles = hog.using(outbox).enqueue_many([()] * 5) + plain.using(outbox).enqueue_many([()] * 3)
    work(outbox, concurrency=8, recover_every=0.05, heartbeat=0.2)
    until(lambda: len(begun) == 2)
    other = Store(database.engine)
    until(lambda: all(lease for (lease,) in leases(other, handles)))
    first = min(lease for (lease,) in leases(other, handles))
    until(lambda: min(lease for (lease,) in leases(other, handles)) > first + timedelta(seconds=2.2))
    gate.set()
    for handle in handles:
        task = until(lambda handle=handle: (t := other.get(handle.id)).completed_at and t)
        assert (task.status, task.result, task.recovery_attempts) == (TaskStatus.COMPLETED, "false", 0)


@on_postgresql
def test_no_transaction_is_open_while_a_plain_handler_runs(database, work, outbox):
    gate = threading.Event()

    @outbox.task(name="wait")
    def wait() -> None:
        gate.wait(60)

    handles = wait.using(outbox).enqueue_many([()] * 3)
    worker = work(concurrency=3, poll=30)
    until(lambda: worker.running == 3)
    idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
    until(lambda: database.rows(idle) == [(0,)])
    assert outbox.store.engine.pool.checkedout() == 0
    gate.set()
    for handle in handles:
        ended(outbox, handle)


def backends(database):
    """The connections to this database, except the one that runs this query."""
    return {pid for (pid,) in database.rows(f"SELECT pid FROM pg_stat_activity WHERE {OTHERS}")}


@on_postgresql
def test_all_connections_of_a_worker_are_closed_when_it_has_stopped(database, outbox):
    task = outbox.task(name="t")(lambda: None)
    handle = task.using(outbox).enqueue()
    host = database.host_engine()
    own = Outbox(host)
    own.task(name="t")(lambda: None)
    with host.connect() as connection:
        kept = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    database.engine.dispose()
    worker = own.worker(recover_every=0.05)
    worker.start()
    until(lambda: worker.health.listening)
    until(lambda: database.store.get(handle.id).completed_at)
    assert len(backends(database) - {kept}) >= 3
    assert worker.stop() is True
    database.engine.dispose()
    until(lambda: backends(database) == {kept})


@on_sqlite
def test_a_worker_on_sqlite_leaves_no_connection_open(database):
    """All connections that it opened are closed when it has stopped."""
    made = []

    class Counting(sqlite3.Connection):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    engine = database.own(create_engine(database.url, connect_args={"factory": Counting}))
    outbox = Outbox(engine)
    handle = outbox.task(name="t")(lambda: None).using(outbox).enqueue()
    worker = outbox.worker(recover_every=0.05)
    worker.start()
    until(lambda: database.store.get(handle.id).completed_at)
    assert worker.stop() is True
    engine.dispose()

    def is_open(connection):
        with contextlib.suppress(sqlite3.ProgrammingError):
            return connection.total_changes >= 0
        return False

    assert len(made) >= 3
    assert [connection for connection in made if is_open(connection)] == []


def test_the_engine_of_the_host_is_usable_during_and_after_the_worker(database):
    host = database.host_engine()
    outbox = Outbox(host)
    task = outbox.task(name="t")(lambda: None)
    worker = outbox.worker(poll=0.05)
    worker.start()
    for _ in range(3):
        with host.begin() as connection:
            handle = task.using(connection).enqueue()
        ended(outbox, handle)
    with host.connect() as connection:
        kept = connection.connection.dbapi_connection
    assert worker.stop() is True
    with host.begin() as connection:  # the same connection, still open
        assert connection.connection.dbapi_connection is kept
        after = task.using(connection).enqueue()
    assert outbox.store.get(after.id).status is TaskStatus.READY


def test_workers_of_two_outboxes_in_one_database_run_their_respective_tasks(database, work, outbox):
    host = database.host_engine()
    other, ran = Outbox(host), []
    ours = outbox.task(name="ours", queue="ours")(lambda: ran.append("ours"))
    theirs = other.task(name="theirs", queue="theirs")(lambda: ran.append("theirs"))
    work(outbox, queues=["ours"])
    work(other, queues=["theirs"])
    handles = ours.using(outbox).enqueue_many([()] * 5) + theirs.using(other).enqueue_many([()] * 5)
    assert {ended(outbox, handle).status for handle in handles} == {TaskStatus.COMPLETED}
    assert sorted(ran) == ["ours"] * 5 + ["theirs"] * 5


def test_one_connection_of_the_application_is_enough_for_eight_threads(database):
    engine = database.own(create_engine(database.url, pool_size=1, max_overflow=0, pool_timeout=60))
    if database.name == "sqlite":
        configure_sqlite(engine)
    outbox = Outbox(engine)

    @outbox.task(name="child")
    def child() -> None: ...

    @outbox.task(name="parent", transactional=True)
    def parent() -> None:
        child.enqueue()

    parent.using(outbox).enqueue_many([()] * 16)
    worker = outbox.worker(concurrency=8, notifications=False)
    worker.start(burst=True)
    until(lambda: not worker._parts.claim_loop.is_alive())
    assert worker.stop() is True
    assert worker.handled == 32


# Forks, in a separate process that has no threads of pytest

FORKED = """
import gc, json, os, signal, sys, threading, time
sys.path.insert(0, {root!r})
from outboxq import ConfigurationError, Outbox
from tests.waiting import until

outbox = Outbox({url!r})
IS_POSTGRESQL = {url!r}.startswith("postgresql")

@outbox.task(name="pid")
def pid() -> int:
    return os.getpid()

@outbox.task(name="elsewhere", queue="nobody's")
def elsewhere() -> None: ...

def backend():
    with outbox.store.engine.connect() as connection:
        return connection.exec_driver_sql("SELECT pg_backend_pid()" if IS_POSTGRESQL else "SELECT 0").scalar()

def in_child(call):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # should it hang
        try:
            answer = call()
        except BaseException as error:
            answer = repr(error)
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    with os.fdopen(reading) as pipe:
        return json.loads(pipe.read())
"""

REFUSES = """
worker = outbox.worker(poll=60, recover_every=60, label="parent")
worker.start()
until(lambda: worker.health.listening)
before = worker.health.connections

def child():
    began = time.monotonic()
    answers = []
    try:
        worker.start()
    except ConfigurationError as error:
        answers.append(str(error))
    answers.append(worker.stop())
    return [*answers, time.monotonic() - began]

refusal, stopped, seconds = in_child(child)
for _ in range(10):  # amid the parent's work, whose connections are not closed there: that could wait for its threads' locks
    pid.using(outbox).enqueue_many([()] * 100)
    in_child(gc.collect)
until(lambda: not any(row.due + row.running for row in outbox.store.stats()))
handle = pid.using(outbox).enqueue()
began = time.monotonic()
task = until(lambda: (t := outbox.store.get(handle.id)).completed_at and t)
print(json.dumps([refusal, stopped, seconds, time.monotonic() - began, int(task.result) == os.getpid(),
                  worker.health.connections == before, worker.health.listening, worker.stop()]))
"""

PIDS = """
mine = backend()
elsewhere.using(outbox).enqueue()

def child():
    handles = [elsewhere.using(outbox).enqueue() for _ in range(5)]
    return [backend(), len({handle.id for handle in handles})]

children = [in_child(child) for _ in range(3)]
print(json.dumps([mine, backend(), children, sum(row.due for row in outbox.store.stats()), outbox.store.verify() == []]))
"""

NEW = """
elsewhere.using(outbox).enqueue()

def child():
    handle = pid.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05)
    worker.start(burst=True)
    until(lambda: outbox.store.get(handle.id).completed_at)
    clean = worker.stop()
    return [clean, int(outbox.store.get(handle.id).result) == os.getpid()]

print(json.dumps(in_child(child)))
"""


def in_a_process(script, database):
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        FORKED.format(root=str(ROOT), url=database.url) + script,
    ]
    done = forked.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.in_turn
def test_a_forked_child_cannot_use_the_worker_of_its_parent(database):
    refusal, stopped, seconds, took, ran_in_parent, same_connection, listening, clean = in_a_process(REFUSES, database)
    assert "created before the process forked" in refusal
    assert stopped is True
    assert seconds < 10
    assert took < 30  # the worker was notified; polling would take a minute
    assert ran_in_parent
    assert same_connection
    assert listening
    assert clean


@pytest.mark.in_turn
def test_a_forked_child_enqueues_on_new_connections(database):
    mine, mine_after, children, due, in_order = in_a_process(PIDS, database)
    assert mine_after == mine
    assert [written for _, written in children] == [5, 5, 5]
    assert due == 16
    assert in_order
    if database.name == "postgresql":
        assert len({mine, *(pid for pid, _ in children)}) == 4


@pytest.mark.in_turn
def test_a_forked_child_may_create_a_worker(database):
    assert in_a_process(NEW, database) == [True, True]


# Errors that a worker survives


def test_a_worker_is_unhealthy_while_its_role_lacks_a_privilege(outbox, work, monkeypatch):
    real, allowed = Store.claim_ready_task, threading.Event()

    def claim(*args, **kwargs):
        if not allowed.is_set():
            raise NotPermitted("the role 'mailer' lacks UPDATE on task_outbox")
        return real(*args, **kwargs)

    monkeypatch.setattr(Store, "claim_ready_task", claim)
    worker = work()
    until(lambda: not worker.is_healthy)
    assert worker.health.error == "the role 'mailer' lacks UPDATE on task_outbox"
    allowed.set()
    until(lambda: worker.is_healthy)
    assert worker.health.error is None or "lacks" not in worker.health.error


def test_a_claim_that_fails_is_logged_and_starts_no_task(outbox, work, monkeypatch, caplog):
    """This is true for all errors. The next tests cover errors after which a claim is retried."""
    real, failures, ran = Store.claim_ready_task, [], []

    def claim(*args, **kwargs):
        if len(failures) < 2:
            failures.append(len(ran))
            raise InternalError("claim", {}, Exception("cannot execute DELETE in a read-only transaction"))
        return real(*args, **kwargs)

    handle = outbox.task(name="t")(lambda: ran.append(1)).using(outbox).enqueue()
    monkeypatch.setattr(Store, "claim_ready_task", claim)
    worker = work()
    assert ended(outbox, handle).status is TaskStatus.COMPLETED
    assert failures == [0, 0]
    assert worker.is_healthy
    assert caplog.text.count("claiming failed; no task was started") == 1
    until(lambda: "claiming works again after 2 failures" in caplog.text)
    assert "Traceback" not in caplog.text
    assert types(outbox, handle) == [EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED]


@pytest.mark.parametrize(
    ("garbage", "attempts"),
    [
        ('[1, "two"]', 1),
        ("null", 1),
        ("7", 1),
        ('{"n": 1, "on": "someday"}', 2),  # another release may be able to read it
        ('{"m": 1}', 2),
        ('{"n": 1, "more": 2}', 2),
    ],
)
def test_arguments_that_cannot_be_decoded_fail_the_task_but_not_the_worker(outbox, run, database, garbage, attempts):
    @outbox.task(name="counts", retry=RetryPolicy(max_attempts=2, wait=0))
    def counts(n: int, on: date | None = None) -> int:
        return n

    bad, good = counts.using(outbox, priority=5).enqueue(1), counts.using(outbox).enqueue(2)
    database.run(f"UPDATE task_executions SET args = '{garbage}' WHERE priority = 5")
    code, worker = run(concurrency=1)
    assert code == 0
    task = outbox.store.get(bad.id)
    assert (task.status, task.attempt) == (TaskStatus.FAILED, attempts)
    assert "counts" in task.last_error
    assert outbox.store.get(good.id).result == "2"
    assert worker.is_healthy
    database.run("UPDATE task_executions SET args = '{}' WHERE priority = 5")  # so that `verify` finds no error


@on_sqlite
def test_arguments_that_are_not_json_fail_the_task_too(database, exits):
    """PostgreSQL would refuse to store it."""
    outbox = Outbox(database.engine)

    @outbox.task(name="counts", retry=RetryPolicy.never())
    def counts(n: int) -> int:
        return n

    handle = counts.using(outbox).enqueue(1)
    try:
        database.run("UPDATE task_executions SET args = 'gar{bage'")
    except Exception:  # noqa: BLE001 - a CHECK that keeps it out is better still
        return
    database.corrupted = True
    assert outbox.worker(notifications=False).run(burst=True) == 0
    assert outbox.store.get(handle.id).status is TaskStatus.FAILED


def test_unknown_tasks_do_not_block_known_ones(outbox, work):
    stranger = Outbox(outbox.store.engine).task(name="stranger")(lambda: None)
    stranger_handles = [stranger.using(stranger.outbox).enqueue() for _ in range(5)]
    known = outbox.task(name="known")(lambda: None)
    handles = known.using(outbox).enqueue_many([()] * 5)
    worker = work(concurrency=1, unknown_task_delay=60)
    assert {ended(outbox, handle).status for handle in handles} == {TaskStatus.COMPLETED}
    until(lambda: all(EventType.RELEASED in types(outbox, handle) for handle in stranger_handles))
    assert {outbox.store.get(handle.id).attempt for handle in stranger_handles} == {1}
    assert worker.handled == 5


@pytest.mark.in_turn
def test_a_suspect_is_run_even_if_the_release_of_another_fails(outbox, work, monkeypatch):
    """Two tasks were recovered twice. The first runs, and the release of the second fails, but both complete."""
    task = outbox.task(name="orphan", lease=1)(lambda: None)
    handles = task.using(outbox).enqueue_many([()] * 2)
    for _ in range(SUSPECT):
        assert len(outbox.store.claim_ready_task(2, worker_id=uuid7(), lease=timedelta(seconds=0.3))) == 2
        until(lambda: outbox.store.recover() or all(t is TaskStatus.READY for t in statuses(outbox, handles)))
    real, failures = Store.finish, []

    def finish(store, outcomes, **options):
        if not failures and any(outcome.event_type is EventType.RELEASED for outcome in outcomes):
            failures.append(1)
            raise InternalError("release", {}, Exception("refused"))
        return real(store, outcomes, **options)

    monkeypatch.setattr(Store, "finish", finish)
    work(recover_every=0.05)
    assert [ended(outbox, handle).status for handle in handles] == [TaskStatus.COMPLETED] * 2
    assert failures


@pytest.mark.parametrize("thread", ["claim_ready_task", "expired_leases"])
def test_run_returns_1_if_a_thread_dies(outbox, exits, monkeypatch, thread):
    def broken(*_args, **_kwargs):
        raise SystemExit(1)

    monkeypatch.setattr(Store, thread, broken)
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    worker = outbox.worker(notifications=False, recover_every=0.01, drain_timeout=1)
    assert worker.run() == 1
    assert not worker.is_healthy


def test_an_error_in_recovery_is_logged_and_recovery_continues(outbox, work, monkeypatch, caplog):
    real, failures = Store.expired_leases, []

    def look(*args, **kwargs):
        if len(failures) < 2:
            failures.append(1)
            raise InternalError("leases", {}, Exception("no"))
        return real(*args, **kwargs)

    monkeypatch.setattr(Store, "expired_leases", look)
    handle = outbox.task(name="orphan")(lambda: None).using(outbox).enqueue()
    outbox.store.claim_ready_task(1, worker_id=uuid7(), lease=timedelta(seconds=0.1))
    work(recover_every=0.02)
    assert ended(outbox, handle).status is TaskStatus.COMPLETED
    assert caplog.text.count("outboxq-recovery failed; continuing") == 1
    assert "outboxq-recovery works again after 2 failures" in caplog.text


def test_expired_leases_are_recovered_in_batches_with_claims_in_between(outbox, work, database, monkeypatch):
    monkeypatch.setattr("outboxq.worker.upkeep.recovery.RECOVERY_BATCH", 100)
    ran, chunks = [], []
    left = outbox.task(name="left", queue="dead worker's", lease=0.05)(lambda: None)
    left.using(outbox).enqueue_many([()] * 350)
    assert len(outbox.store.claim_ready_task(350, worker_id=uuid7())) == 350
    probe = outbox.task(name="probe", queue="live")(lambda: ran.append(1))

    def on_failpoint(point):
        if point is Failpoint.AFTER_RECOVERY:
            (now,) = [row.running for row in outbox.store.stats() if row.queue == "dead worker's"]
            chunks.append(now)
            if len(chunks) <= 4:  # recovery waits here while a task is claimed and run
                ended(outbox, probe.using(outbox).enqueue())

    until(lambda: database.rows("SELECT count(*) FROM task_leases WHERE lease_expires_at > " + now(database)) == [(0,)])
    work(queues=["live"], recover_every=0.05, on_failpoint=on_failpoint)
    until(lambda: len(ran) >= 4)
    assert chunks[:4] == [250, 150, 50, 0]


def now(database):
    return "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')" if database.name == "sqlite" else "clock_timestamp()"


# Configuration


@pytest.mark.parametrize(("lease", "heartbeat"), [(20, 10), (19.9, 10), (1, 5)])
def test_a_lease_that_is_not_longer_than_two_heartbeats_is_refused(outbox, lease, heartbeat):
    outbox.task(name="short", lease=lease)(lambda: None)
    with pytest.raises(ConfigurationError, match="task short .* must be longer than two heartbeats"):
        outbox.worker(heartbeat=heartbeat)


def test_heartbeats_have_the_configured_interval(outbox, work):
    gate, beats = threading.Event(), []

    @outbox.task(name="long", lease=60)
    def long() -> None:
        gate.wait(60)

    handle = long.using(outbox).enqueue()
    work(heartbeat=0.05, on_failpoint=lambda point: point is Failpoint.AFTER_BEAT and beats.append(time.monotonic()))
    until(lambda: len(beats) >= 4)
    gate.set()
    ended(outbox, handle)
    assert beats[3] - beats[0] < 15  # a third of the lease would be 20 s


@pytest.mark.in_turn
def test_a_child_forked_by_a_handler_dies_of_a_signal_and_releases_no_task(database, tmp_path):
    """The child does not inherit the worker's signal handlers, and must not release its copy of the worker's claims."""
    script = """
        import itertools, os, signal, sys
        from outboxq import Outbox

        outbox = Outbox(sys.argv[1])

        @outbox.task(name="forking")
        def forking() -> int:
            ready, begun = os.pipe()
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                # Without end, in C
                sum(itertools.chain(map(os.write, [begun], [b"1"]), itertools.repeat(0)))
            os.read(ready, 1)  # what comes before Python has settled in the child is forgotten
            os.kill(child, signal.SIGTERM)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        forking.using(outbox).enqueue()
        sys.exit(outbox.worker().run(burst=True))
    """
    done = forked.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script), database.url],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert database.rows("SELECT status, result, lease_token FROM task_executions") == [("Completed", "-15", 1)]
