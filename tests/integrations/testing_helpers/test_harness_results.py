"""Results in a test: only the test itself runs tasks, so nothing waits and no thread is started."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy.orm import Session

from outboxq import Outbox, TaskContext, TaskFailed, WaitRefused
from outboxq.testing import Harness


@pytest.fixture(autouse=True)
def threads():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def harness(shop, connection):
    with Harness(shop.outbox, using=connection) as harness:
        yield harness


def test_a_drained_task_has_its_result(shop, harness, session):
    handle = shop.receipt.using(session).enqueue(7)
    harness.drain()
    assert handle.result(timeout=5) == handle.result() == harness.app.result(handle.id, timeout=0) == "receipt 7"


def test_waiting_within_inline_returns_the_result(shop, harness, session):
    with harness.inline():
        assert shop.receipt.using(session).enqueue(7).result(timeout=5) == "receipt 7"


@pytest.mark.parametrize("timeout", [60, None, 0])
def test_waiting_for_an_undrained_task_times_out_immediately(shop, harness, session, timeout):
    handle = shop.receipt.using(session).enqueue(7)
    with pytest.raises(TimeoutError, match=r"it is Ready; in a test, only drain\(\) and inline\(\) run it"):
        handle.result(timeout=timeout)


def test_a_failed_task_raises_its_error(harness, session):
    @harness.app.task(name="broken")
    def broken() -> None:
        raise ValueError("no")

    handle = broken.using(session, max_attempts=1).enqueue()
    harness.drain(raises=False)
    with pytest.raises(TaskFailed, match="failed in attempt 1: ValueError: no"):
        handle.result(timeout=5)


def test_a_handler_that_waits_is_refused_as_in_production(shop, harness, session):
    @harness.app.task(name="outer")
    def outer(ctx: TaskContext) -> str:
        return shop.receipt.using(session).enqueue(1).result(timeout=5)

    outer.using(session, max_attempts=1).enqueue()
    with pytest.raises(WaitRefused, match="outer cannot wait for the result of"):
        harness.drain()


def test_a_test_that_commits_can_read_results(database):
    outbox = Outbox(database.engine)

    @outbox.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    with Harness(outbox) as harness:
        with Session(database.host) as session, session.begin():
            handle = double.using(session).enqueue(7)
        with pytest.raises(TimeoutError, match="in a test, only drain"):
            handle.result(timeout=5)
        harness.drain()
        assert handle.result(timeout=5) == 14
