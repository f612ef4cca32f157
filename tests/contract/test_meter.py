"""A worker's counts agree with the database."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from outboxq import Cancel, Outbox, RetryPolicy, Snooze, TaskContext
from outboxq.store import Store
from outboxq.worker.meter import ClaimResult
from tests.waiting import until

ENDS = ("completed", "retried", "failed", "cancelled", "snoozed", "released", "lost", "timed_out")


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@pytest.fixture
def work(outbox):
    """Run a worker until nothing is left to do. Return its meter."""

    def run(**options):
        worker = outbox.worker(**{"poll": 0.05, "recover_every": 0.05, "drain_timeout": 10, **options})
        worker.start(burst=True)
        until(lambda: not worker._parts.claim_loop.is_alive())
        worker.stop()
        return worker.meter

    return run


def ends(meter):
    found: Counter[str] = Counter()
    for counts in meter.read().values():
        found.update({name: getattr(counts, name) for name in ENDS})
    return {name: number for name, number in found.items() if number}


def claims_made(database):
    return database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'task_claimed'")[0][0]


def earlier(database, hours):
    """A store whose clock is this many hours behind."""
    return Store(database.engine, clock=lambda: datetime.now(UTC) - timedelta(hours=hours))


def steal(database):
    """Recover the running tasks, as a worker would if all leases had expired.

    The store's clock is an hour ahead, so the task then waits for an hour. But if the worker under test is still starting, it
    detects that the clock was ahead and makes the task due.
    """
    return earlier(database, -1).recover()


def test_each_attempt_is_counted_once_by_its_outcome(database, outbox, work, monkeypatch):
    monkeypatch.setattr("outboxq.worker.executor.SHORTEST_SNOOZE", timedelta(0))
    soon, snoozes = RetryPolicy(max_attempts=3, wait=0), []

    @outbox.task(name="fine")
    def fine() -> None: ...

    @outbox.task(name="written", transactional=True)
    def written() -> None: ...

    @outbox.task(name="bad", retry=soon)
    def bad() -> None:
        raise ValueError

    @outbox.task(name="worse", retry=RetryPolicy.never(), transactional=True)
    def worse() -> None:
        raise ValueError

    @outbox.task(name="moody")
    def moody() -> None:
        snoozes.append(1)
        raise Snooze(0) if len(snoozes) < 3 else Cancel("enough")

    @outbox.task(name="slow", timeout=0.02, retry=RetryPolicy(max_attempts=2, wait=0))
    def slow(ctx: TaskContext) -> None:
        while True:
            time.sleep(0.001)
            ctx.checkpoint()

    fine.using(outbox).enqueue_many([()] * 7)
    for task in (written, bad, worse, moody, slow):
        task.using(outbox, queue="other").enqueue()
    meter = work()
    assert ends(meter) == {
        "completed": 8,
        "retried": 2,
        "failed": 2,
        "snoozed": 2,
        "cancelled": 1,
        "timed_out": 2,
    }
    assert sum(ends(meter).values()) == claims_made(database)
    counts = meter.read()
    assert {queue for queue, _ in counts} == {"default", "other"}
    assert (counts["default", "fine"].completed, counts["other", "bad"].retried) == (7, 2)
    for one in counts.values():
        attempts = sum(getattr(one, name) for name in ENDS)
        assert (sum(one.wait), sum(one.run)) == (attempts, attempts)
    assert counts["other", "slow"].run_seconds >= 0.04
    claims = meter.read_claims()
    assert claims[ClaimResult.SOME].tasks == claims_made(database)
    assert claims[ClaimResult.NONE].claims


def test_the_wait_is_from_the_due_time_to_the_start(database, outbox, work):
    @outbox.task(name="late")
    def late() -> None: ...

    waits = {"waited": 3600, "delayed": 0, "due in the past": 0}
    database.add(earlier(database, 1), task_name="late", queue="waited")
    database.add(earlier(database, 1), task_name="late", queue="delayed", delay=timedelta(hours=1))
    past = datetime.now(UTC) - timedelta(hours=5)
    database.add(database.store, task_name="late", queue="due in the past", available_at=past)
    found = {queue: one.wait_seconds for (queue, _), one in work().read().items()}
    assert found == {queue: pytest.approx(wait, abs=60) for queue, wait in waits.items()}


def test_an_attempt_whose_lease_was_lost_counts_as_lost(database, outbox, work):
    taken = []

    @outbox.task(name="robbed")
    def robbed() -> None:
        if not taken:
            taken.extend(steal(database))

    handle = robbed.using(outbox).enqueue()
    meter = work()
    assert [one.id for one in taken] == [handle.id]
    assert ends(meter)["lost"] == 1
    assert meter.read_leases_lost() == {"default": 1}
    assert sum(ends(meter).values()) == claims_made(database)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_transactional_task_whose_lease_was_lost_counts_as_lost(database, outbox, work):
    taken = []

    @outbox.task(name="robbed", transactional=True)
    def robbed() -> None:
        if not taken:
            taken.extend(steal(database))

    robbed.using(outbox).enqueue()
    meter = work()
    assert ends(meter)["lost"] == 1
    assert meter.read_leases_lost() == {"default": 1}


def test_tasks_that_are_returned_at_a_stop_count_as_released(database, outbox):
    started, may_end = [], []

    @outbox.task(name="endless")
    def endless(ctx: TaskContext) -> None:
        started.append(1)
        until(lambda: may_end)

    endless.using(outbox).enqueue_many([()] * 2)
    worker = outbox.worker(poll=0.05, concurrency=1, prefetch=1)
    worker.start()
    until(lambda: started and claims_made(database) == 2)
    assert not worker.stop(0)
    until(lambda: ends(worker.meter) == {"released": 2})  # on a busy machine, `stop` returns before they are committed
    may_end.append(1)


def test_recovered_tasks_count_by_their_queue(database, outbox):
    @outbox.task(name="again", lease=0.5)
    def again() -> None: ...

    database.add(database.store, task_name="again", queue="mail")
    database.claim(1, database.store, lease=0.001)
    worker = outbox.worker(poll=0.05, recover_every=0.05)
    worker.start()
    until(lambda: sum(one.completed for one in worker.meter.read().values()) == 1)
    worker.stop()
    assert worker.meter.read_recovered() == {"mail": 1}
