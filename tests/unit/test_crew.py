"""Handler threads and the jobs that lie before them; no database."""

from __future__ import annotations

import threading
import time

import pytest

from outboxq.worker.thread_pool import Crew
from tests.waiting import until


@pytest.fixture
def crew():
    """Make a crew; all are dismissed after the test."""
    made = []

    def make(handle=lambda _: None, *, size=2, prefetch=None, died=lambda _: None, start=True):
        made.append(Crew(size, handle, prefetch=prefetch, died=died))
        if start:
            made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.dismiss(time.monotonic() + 10)


def test_jobs_are_handled_each_once_by_so_many_threads(crew):
    together, done = threading.Barrier(3), []

    def handle(job):
        together.wait(60)
        done.append(job)

    workers = crew(handle, size=3)
    for job in range(9):
        workers.give(job)
    assert workers.wait_until_at_most(0, 10)
    assert sorted(done) == list(range(9))
    assert (workers.handled, workers.lying, workers.in_flight) == (9, 0, 0)


def test_what_runs_and_what_lies_ahead_is_in_flight(crew):
    gate = threading.Event()
    workers = crew(lambda _: gate.wait(60), size=2)
    for job in range(5):
        workers.give(job)
    until(lambda: workers.lying == 3)
    assert workers.in_flight == 5
    assert workers.take_back() == [2, 3, 4]
    assert workers.in_flight == 2
    gate.set()
    assert workers.wait_until_at_most(0, 10)
    assert workers.handled == 2


def test_what_is_taken_back_is_not_run(crew):
    ran = []
    workers = crew(ran.append, start=False)
    workers.give(1)
    workers.give(2)
    assert workers.take_back() == [1, 2]
    assert workers.take_back() == []
    workers.start()
    workers.give(3)
    assert workers.wait_until_at_most(0, 10)
    assert ran == [3]


def test_a_job_that_fails_is_logged_and_its_thread_goes_on(crew, caplog):
    def handle(job):
        if job == 1:
            raise ValueError("no")

    workers = crew(handle, size=1)
    workers.give(1)
    workers.give(2)
    assert workers.wait_until_at_most(0, 10)
    assert workers.handled == 2
    assert "a claim could not be handled; its lease runs out" in caplog.text


def test_a_thread_that_dies_says_so(crew, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    told = []

    def handle(_job):
        raise SystemExit(3)

    workers = crew(handle, size=1, died=told.append)
    workers.give(1)
    until(lambda: told)
    assert isinstance(told[0], SystemExit)


def test_waiting_ends_when_few_enough_are_left(crew):
    gates = [threading.Event() for _ in range(3)]
    workers = crew(lambda job: gates[job].wait(60), size=3)
    for job in range(3):
        workers.give(job)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(workers.wait_until_at_most(1, 10)))
    waiting.start()
    gates[0].set()
    until(lambda: workers.in_flight == 2)
    assert answers == []
    gates[1].set()
    waiting.join(60)
    assert answers == [True]
    gates[2].set()


def test_waiting_ends_with_its_time_and_says_that_there_are_too_many(crew):
    gate = threading.Event()
    workers = crew(lambda _: gate.wait(60), size=1)
    workers.give(1)
    assert workers.wait_until_at_most(0, 0.01) is False
    assert workers.wait_until_at_most(1, 0.01) is True
    gate.set()


def test_a_wake_ends_the_waiting(crew):
    gate = threading.Event()
    workers = crew(lambda _: gate.wait(60), size=1)
    workers.give(1)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(workers.wait_until_at_most(0)))
    waiting.start()
    until(lambda: workers.wake() or answers)
    waiting.join(60)
    assert answers == [False]
    gate.set()


def test_the_dismissed_finish_what_they_have_begun(crew):
    gate, done = threading.Event(), []

    def handle(job):
        gate.wait(60)
        done.append(job)

    workers = crew(handle, size=1)
    workers.give(1)
    until(lambda: workers.lying == 0)
    began = time.monotonic()
    workers.dismiss(began + 0.05)  # it is not waited for longer than that
    assert time.monotonic() - began < 30
    assert done == []
    gate.set()
    workers.dismiss(time.monotonic() + 10)
    assert done == [1]


def test_a_crew_that_never_started_is_dismissed(crew):
    crew(start=False).dismiss(time.monotonic() + 10)


# How many lie ahead.


def test_nothing_lies_ahead_while_nothing_is_known(crew):
    assert crew(size=8, start=False).ahead == 0


@pytest.mark.parametrize(
    ("size", "seconds", "ahead"),
    [(1, 0.06, 0), (1, 0.02, 2), (8, 0.5, 0), (8, 0.05, 8), (8, 0.001, 400), (8, 0.000001, 1000), (1, 0.0, 1000)],
)
def test_so_many_lie_ahead_as_are_done_in_50_ms(crew, size, seconds, ahead):
    workers = crew(size=size, start=False)
    for _ in range(50):
        workers._account(0, seconds)
    assert workers.ahead == pytest.approx(ahead, abs=1)


def test_what_was_asked_for_holds_whatever_the_pace(crew):
    workers = crew(size=8, prefetch=3, start=False)
    assert workers.ahead == 3
    workers._account(0, 0.000001)
    assert workers.ahead == 3
    assert crew(size=8, prefetch=0, start=False).ahead == 0


def test_the_pace_is_the_recent_one(crew):
    workers = crew(size=8, start=False)
    for _ in range(5000):
        workers._account(0, 0.0001)
    assert workers.ahead == 1000
    for _ in range(40):
        workers._account(0, 1.0)
    assert workers.ahead == 0
    for _ in range(1000):
        workers._account(0, 0.0001)
    assert workers.ahead > 100


def test_jobs_that_were_held_up_for_a_moment_are_not_the_pace(crew):
    """Or the claims would shrink at each pause of the machine, just when there is much to do."""
    workers = crew(size=8, start=False)
    for _ in range(5000):
        workers._account(0, 0.0001)
    for _ in range(8):
        workers._account(0, 0.05)
    assert workers.ahead == 1000


def test_a_pace_that_is_found_out_before_any_job_ends_counts(crew):
    workers = crew(size=8, start=False)
    for _ in range(100):
        workers._account(0, 0.0001)
    workers.slow_down(1.0)
    assert workers.ahead == 0
    workers.slow_down(0.001)  # at least that long
    assert workers.ahead == 0


def test_nothing_lies_ahead_of_very_many_slow_threads_either(crew):
    """Or what was given back would be fetched again, and given back again."""
    workers = crew(size=64, start=False)
    workers.slow_down(1.0)
    assert workers.ahead == 0


def test_the_first_few_count_alike(crew):
    workers = crew(size=1, start=False)
    workers._account(0, 0.0)
    workers._account(0, 0.04)
    assert workers.ahead == 2  # 20 ms on average


def test_the_pace_is_that_of_the_handlers(crew):
    workers = crew(lambda _: threading.Event().wait(0.1), size=1)
    workers.give(1)
    assert workers.wait_until_at_most(0, 10)
    assert workers.ahead == 0
