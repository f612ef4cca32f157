"""The throughput of a worker: it prefetches, writes outcomes together, and does not wait for a timer."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from sqlalchemy import Engine, event

from outboxq import EventType, Outbox, Snooze, TaskStatus
from outboxq.store import Store
from outboxq.worker.distributor import Health
from outboxq.worker.failpoints import Failpoint
from tests.contract import helpers
from tests.waiting import until


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@pytest.fixture
def work(outbox):
    """Start a worker. It is stopped after the test."""
    started = []

    def start(*, burst=False, **options):
        worker = outbox.worker(**{"poll": 0.05, "notifications": False, "recover_every": 60, **options})
        started.append(worker)
        worker.start(burst=burst)
        return worker

    yield start
    for worker in started:
        worker.stop()


class Batches(list):
    @staticmethod
    def hold_the_first_until(handled):
        """Return an `on_failpoint` that delays the first batch until this many handlers have ended."""
        count, held = itertools.count(1), threading.Event()
        enough = threading.Event()

        def on_failpoint(point):
            if point is Failpoint.AFTER_HANDLER and next(count) == handled:
                enough.set()
            if point is Failpoint.BEFORE_FINISH and not held.is_set():
                held.set()
                assert enough.wait(60)

        return on_failpoint


@pytest.fixture
def finished(monkeypatch):
    """The event types of each batch that was written."""
    real, batches = Store.finish, Batches()

    def finish(store, outcomes, **options):
        batches.append([outcome.event_type for outcome in outcomes])
        return real(store, outcomes, **options)

    monkeypatch.setattr(Store, "finish", finish)
    return batches


def over(worker):
    until(lambda: not worker._parts.claim_loop.is_alive())
    assert worker.stop() is True


@pytest.fixture
def gate(work):
    """An event that handlers wait for. It is set before the workers are stopped."""
    event = threading.Event()
    yield event
    event.set()


def all_of(tasks, finished, worker):
    until(lambda: sum(map(len, finished)) == tasks)
    assert worker.stop() is True


def ended(outbox, handle):
    return until(lambda: (task := outbox.store.get(handle.id)).completed_at and task)


def counted(outbox):
    """The numbers of due and running tasks."""
    rows = outbox.store.stats()
    return sum(row.due for row in rows), sum(row.running for row in rows)


# Outcomes that are written together


def test_500_tasks_take_far_fewer_than_500_transactions(outbox, work, finished):
    statements = []

    def see(_connection, _cursor, statement, *_):
        statements.append(statement)

    ran = []
    outbox.task(name="nothing")(lambda: ran.append(1)).using(outbox).enqueue_many([()] * 500)
    event.listen(Engine, "before_cursor_execute", see)
    try:
        over(work(burst=True))
    finally:
        event.remove(Engine, "before_cursor_execute", see)
    assert len(ran) == sum(len(batch) for batch in finished) == 500
    assert len(finished) < 125
    begun = sum(statement.startswith("BEGIN") for statement in statements)
    assert begun < 250  # transactions, including those of claims and checks


def test_ends_during_the_write_of_a_batch_form_the_next_batch(outbox, work, finished):
    task = outbox.task(name="nothing")(lambda: None)
    task.using(outbox).enqueue_many([()] * 300)
    all_of(300, finished, work(concurrency=4, on_failpoint=finished.hold_the_first_until(300)))
    first, *others = map(len, finished)
    assert [sum(others)] == [300 - first] == others


def test_a_batch_of_outcomes_is_bounded(outbox, work, finished):
    task = outbox.task(name="nothing")(lambda: None)
    task.using(outbox).enqueue_many([()] * 1200)
    all_of(1200, finished, work(on_failpoint=finished.hold_the_first_until(1200)))
    sizes = list(map(len, finished))
    assert sum(sizes) == 1200
    assert max(sizes) <= 1000
    assert len(sizes) <= 4


def test_all_kinds_of_ends_share_a_batch(outbox, work, finished):
    task = outbox.task(name="nothing")(lambda: None)
    rest = outbox.task(name="rests")(lambda: Snooze(3600))
    task.using(outbox).enqueue_many([()] * 10)
    rest.using(outbox).enqueue_many([()] * 10)
    all_of(20, finished, work(on_failpoint=finished.hold_the_first_until(20)))
    assert {EventType.COMPLETED, EventType.SNOOZED} in [set(batch) for batch in finished]
    assert {row.queue: row.running for row in outbox.store.stats()} == {"default": 0}
    assert outbox.store.stats()[0].delayed == 10


def test_an_outcome_that_cannot_be_written_does_not_block_the_others(outbox, work, finished, database, caplog):
    helpers.refuse_event(database, "task_snoozed")
    task = outbox.task(name="nothing")(lambda: None)
    bad = outbox.task(name="rests")(lambda: Snooze(3600))
    handles = task.using(outbox).enqueue_many([()] * 10)
    refused = bad.using(outbox).enqueue()
    handles += task.using(outbox).enqueue_many([()] * 10)
    worker = work(on_failpoint=finished.hold_the_first_until(21))
    assert {ended(outbox, handle).status for handle in handles} == {TaskStatus.COMPLETED}
    assert max(map(len, finished)) > 10
    until(lambda: f"task {refused.id}: its outcome task_snoozed could not be written" in caplog.text)
    assert worker.stop() is True
    assert caplog.text.count("could not be written") == 1
    task = outbox.store.get(refused.id)
    assert (task.status, task.last_error.startswith("the database refused its outcome task_snoozed: ")) == (
        TaskStatus.FAILED,
        True,
    )


def test_outcomes_of_two_claims_of_one_task_are_written_separately(
    outbox, work, finished, database, caplog, monkeypatch, gate
):
    """Its first handler is still running when the same worker claims the recovered task again."""
    runs, points = [], []
    enough = threading.Event()

    def on_failpoint(point):
        if point is Failpoint.AFTER_HANDLER:
            points.append(point)
            if len(points) == 3:
                enough.set()
        if point is Failpoint.BEFORE_FINISH:
            holding.set()
            assert enough.wait(60)

    @outbox.task(name="twice")
    def twice() -> int:
        runs.append(1)
        mine = len(runs)
        if mine == 1:
            gate.wait(60)
        return mine

    holding = threading.Event()
    handle = twice.using(outbox).enqueue()
    work(concurrency=4, on_failpoint=on_failpoint)
    until(lambda: runs)
    outbox.task(name="other")(lambda: None).using(outbox).enqueue()
    until(holding.is_set)  # the other outcome is being written; later ones form the next batch
    moment = "'2020-01-01T00:00:00.000000+00:00'" + ("" if database.name == "sqlite" else "::timestamptz")
    database.run(
        f"UPDATE task_leases SET lease_expires_at = {moment} "
        "WHERE task_execution_id IN (SELECT id FROM task_executions WHERE task_name = 'twice')"
    )
    assert [one.id for one in outbox.store.recover()] == [handle.id]  # as another worker would do
    until(lambda: len(runs) == 2)
    gate.set()
    task = ended(outbox, handle)
    assert (task.status, task.result, task.lease_token) == (TaskStatus.COMPLETED, "2", 2)
    assert set(map(len, finished)) == {1}, "two outcomes of one task are not written in one batch"
    until(lambda: "its lease was lost, so its outcome task_completed is discarded" in caplog.text)


# Outages of the database


def away(database, methods, monkeypatch):
    """Make these methods fail as if the server were unreachable. Return the event that ends the outage."""
    back = threading.Event()
    for name in methods:
        real = getattr(Store, name)

        def call(*args, _real=real, **options):
            if not back.is_set():
                raise helpers.lost_connection(database)
            return _real(*args, **options)

        monkeypatch.setattr(Store, name, call)
    monkeypatch.setattr("outboxq.worker.completer._RETRY_AFTER", 0.01)
    return back


def test_an_outcome_is_written_once_the_database_is_available_again(outbox, work, database, monkeypatch, caplog):
    runs = []
    handle = outbox.task(name="patient")(lambda: runs.append(1)).using(outbox).enqueue()
    back = away(database, ["finish"], monkeypatch)
    work()
    until(lambda: "1 outcome is waiting for the database" in caplog.text)
    back.set()
    assert ended(outbox, handle).status is TaskStatus.COMPLETED
    kinds = [event.event_type for event in outbox.store.history(handle.id)]
    assert kinds == [EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED]
    assert runs == [1]


def test_an_outcome_is_written_even_if_its_lease_expired_during_an_outage(outbox, work, database, monkeypatch):
    runs = []
    handle = outbox.task(name="late", lease=0.5)(lambda: runs.append(1)).using(outbox).enqueue()
    back = away(database, ["finish", "finish_unlocked", "heartbeat"], monkeypatch)
    work(recover_every=0.05)
    until(lambda: runs and outbox.store.expired_leases().leases)
    back.set()
    assert ended(outbox, handle).status is TaskStatus.COMPLETED
    kinds = [event.event_type for event in outbox.store.history(handle.id)]
    assert kinds == [EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED]
    assert runs == [1]


# Prefetch


@pytest.mark.parametrize("options", [{}, {"prefetch": 1000}], ids=str)
def test_tasks_with_large_arguments_are_not_all_prefetched(outbox, work, options):
    in_flight, named = [], threading.Event()

    @outbox.task(name="large")
    def large(text: str) -> None:
        named.wait(60)
        in_flight.append(worker._parts.pool.in_flight)

    large.using(outbox).enqueue_many([("x" * 250_000,)] * 90)
    worker = work(burst=True, concurrency=2, **options)
    named.set()
    until(lambda: len(in_flight) == 90)
    assert 2 < max(in_flight) <= 2 + 16 * 2**20 // 250_000


@pytest.mark.parametrize(("concurrency", "prefetch"), [(1, 0), (3, 0), (1, 5), (3, 4)])
def test_a_worker_claims_exactly_its_concurrency_plus_its_prefetch(outbox, work, concurrency, prefetch, gate):
    most = []

    @outbox.task(name="wait")
    def wait() -> None:
        most.append(worker._parts.pool.in_flight)
        gate.wait(60)

    handles = wait.using(outbox).enqueue_many([()] * 20)
    worker = outbox.worker(poll=0.05, notifications=False, concurrency=concurrency, prefetch=prefetch)
    worker.start()
    until(lambda: counted(outbox)[1] == concurrency + prefetch)
    until(lambda: worker.running == concurrency)
    assert worker._parts.pool.in_flight == concurrency + prefetch
    gate.set()
    for handle in handles:
        ended(outbox, handle)
    assert worker.stop() is True
    assert max(most) <= concurrency + prefetch


def test_nothing_is_prefetched_for_slow_handlers(outbox, work):
    pause, seen = threading.Event(), []

    @outbox.task(name="slow")
    def slow() -> None:
        seen.append(worker._parts.pool.in_flight)
        pause.wait(0.06)

    handles = slow.using(outbox).enqueue_many([()] * 8)
    worker = outbox.worker(poll=0.05, notifications=False, concurrency=1)
    worker.start()
    for handle in handles:
        ended(outbox, handle)
    worker.stop()
    assert set(seen) == {1}


def test_many_tasks_are_prefetched_for_fast_handlers(outbox, work):
    limits = []
    outbox.task(name="fast")(lambda: limits.append(worker._parts.pool.prefetch_limit)).using(outbox).enqueue_many(
        [()] * 1000
    )
    worker = outbox.worker(poll=0.05, notifications=False, concurrency=4)
    worker.start(burst=True)
    over(worker)
    assert limits[0] == 0
    assert max(limits) > 50


@pytest.mark.in_turn
def test_prefetched_tasks_are_released_when_the_worker_stops(outbox, work, gate):
    """The worker releases prefetched tasks immediately, without waiting for running handlers."""

    @outbox.task(name="wait")
    def wait() -> None:
        gate.wait(60)

    wait.using(outbox).enqueue_many([()] * 10)
    worker = work(concurrency=1, prefetch=9)
    until(lambda: counted(outbox) == (0, 10))
    until(lambda: worker.running == 1)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: counted(outbox) == (9, 1))
    assert stopping.is_alive()
    gate.set()
    stopping.join(60)
    assert counted(outbox) == (9, 0)


def releases(database):
    return database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'task_released'")[0][0]


def test_prefetched_tasks_are_released_when_handlers_become_slow(outbox, work, database, monkeypatch, gate):
    monkeypatch.setattr("outboxq.worker.claim_loop._STUCK_AFTER", 0.1)
    ran, slow_began = [], threading.Event()

    @outbox.task(name="moody")
    def moody(slow: bool) -> None:
        if slow:
            slow_began.set()
            gate.wait(60)
        ran.append(slow)

    moody.using(outbox, priority=1).enqueue_many([(False,)] * 400)
    moody.using(outbox).enqueue_many([(True,)] * 100)
    worker = work(concurrency=1)
    # If the machine stalls, fast tasks are also released, and may run after the first slow one.
    assert slow_began.wait(60)
    until(lambda: counted(outbox) == (499 - len(ran), 1))  # other workers can claim them
    assert releases(database) > 0
    gate.set()
    until(lambda: len(ran) == 500)
    assert worker.stop() is True
    assert worker.handled == 500


@pytest.mark.in_turn
@pytest.mark.parametrize("options", [{"concurrency": 1, "prefetch": 5}, {"concurrency": 40}], ids=str)
def test_released_tasks_are_not_prefetched_again_immediately(outbox, work, database, monkeypatch, options, gate):
    """Otherwise, each round would write two events per task until the slow handlers end."""
    monkeypatch.setattr("outboxq.worker.claim_loop._STUCK_AFTER", 0.05)
    turns = []
    outbox.task(name="fast")(lambda: None).using(outbox, priority=1).enqueue_many([()] * 200)

    @outbox.task(name="slow")
    def slow() -> None:
        gate.wait(60)

    slow.using(outbox).enqueue_many([()] * 100)
    worker = work(on_failpoint=lambda point: point is Failpoint.AFTER_CLAIM and turns.append(1), **options)
    until(lambda: worker.running == options["concurrency"] and worker.handled == 200)
    already = releases(database)
    real, waits = worker._parts.pool.wait_until_at_most, []

    def waiting(jobs, timeout=None):
        waits.append(timeout)
        return real(jobs, timeout)

    monkeypatch.setattr(worker._parts.pool, "wait_until_at_most", waiting)
    until(lambda: waits.count(0.05) >= 8)
    assert releases(database) - already <= 2 * 60
    before = len(turns)
    until(lambda: waits.count(0.05) >= 16)
    assert len(turns) - before <= 1
    gate.set()


class Quiet:
    """A distributor that only records its calls and never reports work."""

    health = Health(listening=False)
    means = "hears of nothing"

    def __init__(self, happened):
        self._happened = happened
        self._closed = threading.Event()

    def start(self):
        self._happened.append("start")

    def wait_for_work(self, timeout=None):
        self._happened.append("wait")
        self._closed.wait(0.01)

    def at_work(self, *, full=False, saturated=False):
        pass

    def wake(self):
        pass

    def close(self):
        self._closed.set()


@pytest.mark.in_turn
def test_a_worker_waits_only_after_a_claim_returned_fewer_tasks_than_its_limit(outbox, monkeypatch):
    happened, real, ran = [], Store.claim_ready_task, []

    def claim(store, limit, **options):
        claims = real(store, limit, **options)
        happened.append((limit, len(claims)))
        return claims

    monkeypatch.setattr(Store, "claim_ready_task", claim)
    monkeypatch.setattr("outboxq.worker.assembly.create_work_distributor", lambda *_, **__: Quiet(happened))
    outbox.task(name="nothing")(lambda: ran.append(1)).using(outbox).enqueue_many([()] * 41)
    worker = outbox.worker(concurrency=4, prefetch=0)
    worker.start()
    until(lambda: len(ran) == 41 and "wait" in happened)
    worker.stop()
    assert happened[0] == "start"
    assert happened[1] == (4, 4)
    steps = list(itertools.pairwise(happened[1:]))
    assert all(after != "wait" for (now, after) in steps if now != "wait" and now[1] == now[0])
    assert all(after == "wait" for (now, after) in steps if now != "wait" and now[1] < now[0])


def test_the_limit_of_a_claim_is_the_number_of_idle_threads(outbox, monkeypatch, gate):
    asked, real = [], Store.claim_ready_task

    def claim(store, limit, **options):
        asked.append(limit)
        return real(store, limit, **options)

    monkeypatch.setattr(Store, "claim_ready_task", claim)

    @outbox.task(name="wait")
    def wait(blocks: bool) -> None:
        if blocks:
            gate.wait(60)

    wait.using(outbox, priority=1).enqueue(blocks=True)
    worker = outbox.worker(concurrency=3, prefetch=0, poll=0.05, notifications=False)
    worker.start()
    until(lambda: worker.running == 1 and len(asked) > 3)
    assert asked[0] == 3
    until(lambda: asked[-1] == 2)
    gate.set()
    worker.stop()


def test_a_single_outcome_is_written_immediately(outbox, work):
    """Each task is enqueued only after the previous one has ended, so no outcome has to wait for others."""
    moments, ended_at = [], threading.Event()

    def on_failpoint(point):
        if point is Failpoint.AFTER_HANDLER:
            moments.append(time.monotonic())
        if point is Failpoint.BEFORE_FINISH:
            moments.append(time.monotonic())
            ended_at.set()

    task = outbox.task(name="lone")(lambda: None)
    work(concurrency=1, on_failpoint=on_failpoint)

    def seconds() -> float:
        moments.clear()
        ended_at.clear()
        ended(outbox, task.using(outbox).enqueue())
        assert ended_at.wait(60)
        before, after = moments
        return after - before

    until(lambda: seconds() < 0.01)  # one success suffices; other delays come from the machine
