"""Handler threads and the jobs that wait for them. These tests use no database."""

from __future__ import annotations

import threading
import time

import pytest

from outboxq.worker.thread_pool import HandlerPool
from tests.waiting import PATIENCE, until


@pytest.fixture
def pool():
    """Return a function that creates thread pools. All are shut down after the test."""
    made = []

    def make(handle=lambda _: None, *, size=2, prefetch=None, on_thread_failure=lambda _: None, start=True):
        made.append(HandlerPool(size, handle, prefetch=prefetch, on_thread_failure=on_thread_failure))
        if start:
            made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.shutdown(time.monotonic() + 10)


def test_each_job_is_handled_once_and_all_threads_work_simultaneously(pool):
    together, done = threading.Barrier(3), []

    def handle(job):
        together.wait(60)
        done.append(job)

    workers = pool(handle, size=3)
    for job in range(9):
        workers.submit(job)
    assert workers.wait_until_at_most(0, PATIENCE)
    assert sorted(done) == list(range(9))
    assert (workers.handled, workers.queued, workers.in_flight) == (9, 0, 0)


def test_jobs_in_flight_include_running_and_waiting_jobs(pool):
    gate = threading.Event()
    workers = pool(lambda _: gate.wait(60), size=2)
    for job in range(5):
        workers.submit(job)
    until(lambda: workers.queued == 3)
    assert workers.in_flight == 5
    assert workers.cancel_queued() == [2, 3, 4]
    assert workers.in_flight == 2
    gate.set()
    assert workers.wait_until_at_most(0, PATIENCE)
    assert workers.handled == 2


def test_cancelled_jobs_do_not_run(pool):
    ran = []
    workers = pool(ran.append, start=False)
    workers.submit(1)
    workers.submit(2)
    assert workers.cancel_queued() == [1, 2]
    assert workers.cancel_queued() == []
    workers.start()
    workers.submit(3)
    assert workers.wait_until_at_most(0, PATIENCE)
    assert ran == [3]


def test_a_job_that_fails_is_logged_and_its_thread_continues(pool, caplog):
    def handle(job):
        if job == 1:
            raise ValueError("no")

    workers = pool(handle, size=1)
    workers.submit(1)
    workers.submit(2)
    assert workers.wait_until_at_most(0, PATIENCE)
    assert workers.handled == 2
    assert "a claim could not be handled; its task is recovered" in caplog.text


def test_a_thread_that_dies_is_reported(pool, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    told = []

    def handle(_job):
        raise SystemExit(3)

    workers = pool(handle, size=1, on_thread_failure=told.append)
    workers.submit(1)
    until(lambda: told)
    assert isinstance(told[0], SystemExit)


def test_waiting_ends_when_few_enough_jobs_are_in_flight(pool):
    gates = [threading.Event() for _ in range(3)]
    workers = pool(lambda job: gates[job].wait(60), size=3)
    for job in range(3):
        workers.submit(job)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(workers.wait_until_at_most(1, PATIENCE)))
    waiting.start()
    gates[0].set()
    until(lambda: workers.in_flight == 2)
    assert answers == []
    gates[1].set()
    waiting.join(60)
    assert answers == [True]
    gates[2].set()


def test_waiting_ends_after_its_timeout_and_returns_false(pool):
    gate = threading.Event()
    workers = pool(lambda _: gate.wait(60), size=1)
    workers.submit(1)
    assert workers.wait_until_at_most(0, 0.01) is False
    assert workers.wait_until_at_most(1, 0.01) is True
    gate.set()


def test_wake_ends_the_waiting(pool):
    gate = threading.Event()
    workers = pool(lambda _: gate.wait(60), size=1)
    workers.submit(1)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(workers.wait_until_at_most(0)))
    waiting.start()
    until(lambda: workers.wake() or answers)
    waiting.join(60)
    assert answers == [False]
    gate.set()


def test_threads_finish_started_jobs_after_a_shutdown(pool):
    gate, done = threading.Event(), []

    def handle(job):
        gate.wait(60)
        done.append(job)

    workers = pool(handle, size=1)
    workers.submit(1)
    until(lambda: workers.queued == 0)
    began = time.monotonic()
    workers.shutdown(began + 0.05)  # the job is not waited for any longer
    assert time.monotonic() - began < 30
    assert done == []
    gate.set()
    workers.shutdown(time.monotonic() + 10)
    assert done == [1]


def test_a_pool_that_never_started_can_be_shut_down(pool):
    pool(start=False).shutdown(time.monotonic() + 10)


# The number of prefetched jobs


def test_nothing_is_prefetched_while_the_pace_is_unknown(pool):
    assert pool(size=8, start=False).prefetch_limit == 0


@pytest.mark.parametrize(
    ("size", "seconds", "ahead"),
    [(1, 0.06, 0), (1, 0.02, 2), (8, 0.5, 0), (8, 0.05, 8), (8, 0.001, 400), (8, 0.000001, 1000), (1, 0.0, 1000)],
)
def test_the_prefetch_limit_is_the_number_of_jobs_handled_in_50_ms(pool, size, seconds, ahead):
    workers = pool(size=size, start=False)
    for _ in range(50):
        workers._account(0, seconds)
    assert workers.prefetch_limit == pytest.approx(ahead, abs=1)


def test_a_given_prefetch_limit_applies_at_any_pace(pool):
    workers = pool(size=8, prefetch=3, start=False)
    assert workers.prefetch_limit == 3
    workers._account(0, 0.000001)
    assert workers.prefetch_limit == 3
    assert pool(size=8, prefetch=0, start=False).prefetch_limit == 0


def test_the_pace_follows_recent_jobs(pool):
    workers = pool(size=8, start=False)
    for _ in range(5000):
        workers._account(0, 0.0001)
    assert workers.prefetch_limit == 1000
    for _ in range(40):
        workers._account(0, 1.0)
    assert workers.prefetch_limit == 0
    for _ in range(1000):
        workers._account(0, 0.0001)
    assert workers.prefetch_limit > 100


def test_a_single_slow_job_does_not_change_the_pace(pool):
    """Otherwise, claims would shrink at each pause of the machine, just when there is much to do."""
    workers = pool(size=8, start=False)
    for _ in range(5000):
        workers._account(0, 0.0001)
    for _ in range(8):
        workers._account(0, 0.05)
    assert workers.prefetch_limit == 1000


def test_a_reset_pace_applies_before_any_job_has_ended(pool):
    workers = pool(size=8, start=False)
    for _ in range(100):
        workers._account(0, 0.0001)
    workers.reset_pace(1.0)
    assert workers.prefetch_limit == 0
    workers.reset_pace(0.001)  # the pace is at least this long
    assert workers.prefetch_limit == 0


def test_nothing_is_prefetched_for_many_slow_threads(pool):
    """Otherwise, released jobs would be fetched and released again."""
    workers = pool(size=64, start=False)
    workers.reset_pace(1.0)
    assert workers.prefetch_limit == 0


def test_the_first_few_jobs_have_the_same_weight(pool):
    workers = pool(size=1, start=False)
    workers._account(0, 0.0)
    workers._account(0, 0.04)
    assert workers.prefetch_limit == 2  # 20 ms on average


def test_the_pace_is_measured_in_the_handler_threads(pool):
    workers = pool(lambda _: threading.Event().wait(0.1), size=1)
    workers.submit(1)
    assert workers.wait_until_at_most(0, PATIENCE)
    assert workers.prefetch_limit == 0
