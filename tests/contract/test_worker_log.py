"""A worker's log about a failing task is sufficient to find the error and contains nothing else."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from datetime import timedelta

import pytest

from outboxq import Outbox, RetryPolicy
from outboxq.integration import FrontEnd
from tests.waiting import until


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


class Declined(Exception):
    pass


def run(outbox, caplog, **options):
    """Run a worker. Return its log records of the ends of tasks."""
    with caplog.at_level(logging.INFO, "outboxq.worker"):
        assert outbox.worker(poll=0.05, **options).run(burst=True) == 0
    return [record for record in caplog.records if hasattr(record, "event")]


def declining(outbox, **options):
    @outbox.task(name="charge", retry=RetryPolicy(max_attempts=2, wait=0), **options)
    def charge() -> None:
        raise Declined("order 7")

    return str(charge.using(outbox).enqueue().id)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_retry_is_logged_with_its_delay_and_the_last_failure_with_its_exception(outbox, caplog, transactional):
    task_id = declining(outbox, transactional=transactional)
    outbox.integration.front_end = FrontEnd(app="shop:outbox")
    retry, last = run(outbox, caplog)
    assert (retry.event, retry.levelname, retry.exc_info) == ("task_retry_scheduled", "WARNING", None)
    assert "attempt 1 of 2, next attempt in 0.0 s: Declined: order 7" in retry.getMessage()
    assert (last.event, last.levelname, last.task_id) == ("task_failed", "ERROR", task_id)
    assert last.getMessage().endswith(f"; see: outboxq task show {task_id} --traceback -A shop:outbox")
    assert (last.exc_info[0], str(last.exc_info[1])) == (Declined, "order 7")
    assert last.exc_info[2].tb_next is not None, "the traceback includes the handler's frame"


def test_a_failure_without_a_retry_is_logged_as_the_last_attempt(outbox, caplog):
    @outbox.task(name="charge", retry=RetryPolicy(max_attempts=10, retry=OSError))
    def charge() -> None:
        raise Declined("order 7")

    charge.using(outbox).enqueue()
    (failed,) = run(outbox, caplog)
    assert "attempt 1 of 10, which was the last one: Declined: order 7; see: " in failed.getMessage()


def test_tracebacks_can_be_switched_off(outbox, caplog):
    declining(outbox)
    assert [record.exc_info for record in run(outbox, caplog, log_tracebacks=False)] == [None, None]


def test_code_that_fails_around_a_handler_is_logged_with_its_exception(outbox, caplog, monkeypatch):
    declining(outbox)
    monkeypatch.setattr(outbox.integration, "around_handler", lambda _context: 1 / 0)
    retry, last = run(outbox, caplog)
    assert retry.exception == {"type": "builtins.ZeroDivisionError", "message": "division by zero"}
    assert last.exc_info[0] is ZeroDivisionError


def test_local_variables_of_a_failed_handler_are_freed(outbox, monkeypatch):
    class Big:
        pass

    kept = []

    @outbox.task(name="hold", retry=RetryPolicy.never())
    def hold() -> None:
        big = Big()
        kept.append(weakref.ref(big))
        raise Declined("x")

    hold.using(outbox).enqueue()
    monkeypatch.setattr(logging.getLogger("outboxq.worker"), "propagate", False)  # pytest would keep the records
    assert outbox.worker(poll=0.05).run(burst=True) == 0
    gc.collect()
    assert [one() for one in kept] == [None]


@pytest.mark.parametrize("introduces_itself", [False, True])
def test_start_and_stop_are_logged_with_the_id_and_label_of_the_worker(outbox, caplog, introduces_itself):
    caplog.set_level(logging.INFO, "outboxq.worker")
    worker = outbox.worker(poll=0.05, label="mail-7")
    worker.introduces_itself = introduces_itself
    worker.run(burst=True)
    first, last = caplog.records[0], caplog.records[-1]
    assert " started" in first.getMessage()
    assert last.getMessage() == "worker mail-7 stopped"
    assert [(one.worker, one.label) for one in (first, last)] == [(str(worker.id), "mail-7")] * 2


@pytest.mark.parametrize("runs", [False, True])
def test_a_stop_logs_that_it_waits_for_a_running_task(outbox, caplog, runs):
    caplog.set_level(logging.INFO, "outboxq.worker")
    begun, may_end = threading.Event(), threading.Event()

    @outbox.task(name="slow")
    def slow() -> None:
        begun.set()
        may_end.wait(60)

    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if "is stopping" in one.getMessage()]

    def watch() -> None:
        begun.wait(60)
        worker.request_stop()
        until(lines)
        may_end.set()

    slow.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05, label="mail-7", drain_timeout=60)
    watcher = threading.Thread(target=watch)
    watcher.start()
    if runs:
        assert worker.run() == 0
    else:
        worker.start()
        assert begun.wait(60)
        assert worker.stop()
    watcher.join()
    hint = "; a second signal releases it" if runs else ""
    assert lines() == [f"worker mail-7 is stopping: waiting up to 60 s for 1 running task{hint}"]


def test_the_first_line_reports_that_nothing_deletes_old_tasks(outbox, database, caplog):
    caplog.set_level(logging.INFO, "outboxq.worker")

    def first() -> logging.LogRecord:
        caplog.clear()
        outbox.worker(poll=0.05).run(burst=True)
        return caplog.records[0]

    assert first().getMessage().endswith("; nothing deletes old tasks (outboxq schedule add-retention 90d)")
    assert first().deletes_old_tasks is False
    database.store.prune(timedelta(days=90))  # as in a cron job
    assert "deletes old tasks" not in first().getMessage()
    assert first().deletes_old_tasks is True


def test_a_retention_in_the_code_counts_from_the_first_start(database, caplog):
    caplog.set_level(logging.INFO, "outboxq.worker")
    Outbox(database.engine, retention=timedelta(days=90)).worker(poll=0.05).run(burst=True)
    assert "deletes old tasks" not in caplog.records[0].getMessage()
