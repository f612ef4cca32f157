"""A handler in a child process reports progress and log lines to the worker, and stores steps for its next attempt."""

from __future__ import annotations

import logging
import os
import signal
import time

import pytest
from sqlalchemy import text

from outboxq import RetryPolicy, TaskContext, TaskStatus
from outboxq.model.running import Progress
from tests.contract.test_isolation import ended, outbox, working  # noqa: F401 - a fixture
from tests.waiting import until


def test_progress_is_shown_while_the_handler_runs_in_its_child(outbox, tmp_path):  # noqa: F811
    @outbox.task(name="long")
    def long(ctx: TaskContext, number: int) -> None:
        ctx.progress(number / 10, f"{number} of 10")
        until((tmp_path / f"go-{number}").exists)

    first, second = long.using(outbox).enqueue(1), long.using(outbox).enqueue(2)
    with working(outbox, concurrency=1, heartbeat=0.1, tasks_per_child=10):  # one child runs both
        until(lambda: outbox.store.progress([first.id]).get(first.id) == Progress(fraction=0.1, note="1 of 10"))
        (tmp_path / "go-1").touch()
        until(lambda: outbox.store.progress([second.id]).get(second.id) == Progress(fraction=0.2, note="2 of 10"))
        (tmp_path / "go-2").touch()
        ended(outbox, second)
    assert [outbox.store.attempts(one.id)[0].progress for one in (first, second)] == [
        Progress(fraction=0.1, note="1 of 10"),
        Progress(fraction=0.2, note="2 of 10"),
    ]


def test_the_progress_of_a_child_that_dies_stays_with_its_attempt(outbox, database):  # noqa: F811
    @outbox.task(name="dies", retry=RetryPolicy.never())
    def dies(ctx: TaskContext) -> None:
        ctx.progress(0.5, "half")
        until(lambda: outbox.store.progress([ctx.task_id]))
        os.kill(os.getpid(), signal.SIGKILL)

    handle = dies.using(outbox).enqueue()
    with working(outbox, heartbeat=0.1):
        assert ended(outbox, handle).status is TaskStatus.FAILED
    [attempt] = outbox.store.attempts(handle.id)
    assert attempt.progress == Progress(fraction=0.5, note="half")


def test_log_lines_of_a_handler_in_a_child_are_kept_unless_turned_off(outbox):  # noqa: F811
    @outbox.task(name="talks")
    def talks(number: int) -> None:
        logging.getLogger("shop").warning("number %d", number)

    handles = []
    for number, kept in ((1, True), (2, False)):
        handles.append(talks.using(outbox).enqueue(number))
        with working(outbox, handler_log=kept):
            ended(outbox, handles[-1])
    lines = [[line.text for line in outbox.store.attempts(one.id)[0].log] for one in handles]
    assert lines == [["number 1"], []]


def test_a_completed_step_is_not_called_again_if_its_child_was_killed(outbox, database, tmp_path):  # noqa: F811
    database.run("CREATE TABLE ledger (number INTEGER)")

    def charge() -> int:
        (tmp_path / f"charged-{os.getpid()}").touch()
        return 7

    def book(ctx: TaskContext, number: int) -> None:
        ctx.connection.execute(text("INSERT INTO ledger VALUES (:number)"), {"number": number})

    @outbox.task(name="fulfil", retry=RetryPolicy(max_attempts=2, wait=0))
    def fulfil(ctx: TaskContext) -> int:
        number = ctx.step("charge", charge)
        ctx.step("book", book, number, transactional=True)
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    handle = fulfil.using(outbox).enqueue()
    with working(outbox):
        assert ended(outbox, handle).attempt == 2
    assert outbox.result(handle.id) == 7
    assert len(list(tmp_path.glob("charged-*"))) == 1
    assert database.rows("SELECT number FROM ledger") == [(7,)]
    database.run("DROP TABLE ledger")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_step_that_holds_the_write_lock_for_longer_than_the_lease_is_not_reported_as_lost(
    outbox,  # noqa: F811
    database,
    caplog,
    monkeypatch,
    isolation,
):
    """No heartbeat can be written meanwhile, and no other worker can take the task: `ctx.lost` would be wrong."""
    monkeypatch.setattr("outboxq.store.transactions._PATIENCE", 0.5)  # a heartbeat waits this long for the lock
    database.run("CREATE TABLE ledger (number INTEGER)")

    def book(ctx: TaskContext) -> bool:
        ctx.connection.execute(text("INSERT INTO ledger VALUES (1)"))
        deadline = time.monotonic() + 2  # the lock is held for twice the lease
        while time.monotonic() < deadline and not ctx.lost:
            time.sleep(0.01)
        return ctx.lost

    @outbox.task(name="fulfil", lease=1, retry=RetryPolicy.never())
    def fulfil(ctx: TaskContext) -> list[bool]:
        return [ctx.step("book", book, transactional=True), ctx.lost]

    handle = fulfil.using(outbox).enqueue()
    with working(outbox, isolation=isolation):
        assert ended(outbox, handle).status is TaskStatus.COMPLETED
    assert outbox.result(handle.id) == [False, False]
    assert "heartbeat for 1 task failed" in caplog.text
    assert "expired before the database could be reached" not in caplog.text
    database.run("DROP TABLE ledger")
