"""Every log record of a worker about a task has the task's fields and never its arguments."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from outboxq import Cancel, Hook, Outbox, RetryPolicy, Snooze
from outboxq.worker.executor import context_of
from outboxq.worker.leases import Leases

pytestmark = pytest.mark.in_turn

ALWAYS = ("task_id", "task", "queue", "attempt", "worker", "pipeline_id")
SECRET = "DE02120300000000202051"


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@pytest.fixture
def heard(caplog):
    """Return the records of outboxq's loggers about one task: `heard(task_id)`."""
    caplog.set_level(logging.DEBUG, "outboxq")

    def about(task_id):
        return [one for one in caplog.records if str(task_id) in one.getMessage()]

    return about


def fields(record):
    return {name: getattr(record, name, None) for name in (*ALWAYS, "outcome")}


def of_row(database, task_id):
    task = database.store.get(task_id)
    return {
        "task_id": str(task_id),
        "task": task.task_name,
        "queue": task.queue,
        "pipeline_id": str(task.pipeline_execution_id),
    }


def ending(how):
    if how == "snoozed":
        raise Snooze(3600)
    if how == "cancelled":
        raise Cancel("gone")
    if how in {"retried", "failed"}:
        raise ValueError("declined")


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("how", ["completed", "snoozed", "cancelled", "retried", "failed"])
def test_the_end_of_an_attempt_has_all_fields(database, outbox, heard, how, transactional):
    policy = RetryPolicy.never() if how == "failed" else RetryPolicy(max_attempts=3, wait=3600)

    @outbox.task(name="pay", queue="mail", retry=policy, transactional=transactional)
    def pay(iban: str) -> None:
        ending(how)

    first, second = (pay.using(outbox).enqueue(SECRET) for _ in range(2))
    worker = outbox.worker(poll=0.05)
    assert worker.run(burst=True) == 0
    for handle in (first, second):
        [record] = heard(handle.id)
        wanted = {**of_row(database, handle.id), "attempt": 1, "worker": str(worker.id), "outcome": how}
        assert fields(record) == wanted
        assert record.duration_ms >= 0
        assert hasattr(record, "exception") is (how in {"retried", "failed"})
        assert SECRET not in str(vars(record))


def test_a_hook_that_fails_after_a_handler_is_logged_with_the_fields_of_its_task(database, outbox, heard, monkeypatch):
    @outbox.task(name="pay")
    def pay(iban: str) -> None: ...

    handle = pay.using(outbox).enqueue(SECRET)
    monkeypatch.setattr(outbox.integration, "after_handler", lambda _context, _outcome: 1 / 0)
    worker = outbox.worker(poll=0.05)
    worker.run(burst=True)
    hook, end = heard(handle.id)
    assert fields(hook) == {**of_row(database, handle.id), "attempt": 1, "worker": str(worker.id), "outcome": None}
    assert hook.exception == {"type": "builtins.ZeroDivisionError", "message": "division by zero"}
    assert end.outcome == "completed"


@pytest.mark.parametrize("method", ["handling", "ended"])
def test_an_exception_in_a_hook_is_logged_with_the_fields_of_the_task(database, caplog, method):
    class Broken(Hook):
        """A hook that fails in one of its methods."""

    setattr(Broken, method, lambda *_about: 1 / 0)
    outbox = Outbox(database.engine, hooks=[Broken()])

    @outbox.task(name="pay", queue="mail")
    def pay(iban: str) -> None: ...

    handle = pay.using(outbox).enqueue(SECRET)
    worker = outbox.worker(poll=0.05)
    worker.run(burst=True)
    [record] = [one for one in caplog.records if one.name == "outboxq.hooks"]
    assert fields(record) == {**of_row(database, handle.id), "attempt": 1, "worker": str(worker.id), "outcome": None}
    assert record.exception["type"] == "builtins.ZeroDivisionError"


def test_a_lost_lease_is_logged_with_the_fields_of_its_task(database, heard):
    database.add(task_name="pay", args=f'{{"iban": "{SECRET}"}}')
    [claim] = database.claim()
    leases = Leases(database.frozen, None, lambda _: None)
    task = Outbox().task(name="pay")(lambda: None)
    leases.hold([context_of(claim, task, threading.Event())], sent=time.monotonic())
    database.frozen.release(claim)
    leases.run_once()
    [record] = heard(claim.id)
    worker = str(claim.worker_id)
    assert fields(record) == {**of_row(database, claim.id), "attempt": 1, "worker": worker, "outcome": "lost"}
    assert SECRET not in str(vars(record))


def test_a_recovery_returns_the_fields_to_log_for_its_task(database):
    database.add(task_name="pay", queue="mail")
    [claim] = database.claim()
    database.clock.advance(3600)
    [found] = database.frozen.recover()
    assert (found.task_name, found.queue, found.attempt) == ("pay", "mail", claim.attempt)
    assert found.pipeline_execution_id == claim.pipeline_execution_id
