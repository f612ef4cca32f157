"""The worker's log line at the end of an attempt: what it says, and what it must not reveal."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from outboxq import Cancel, Outbox, Retry, RetryPolicy, Snooze
from outboxq.cli.serving.logs import JsonFormatter, TextFormatter
from outboxq.context import Leave
from outboxq.integration import FrontEnd
from outboxq.model import Claim
from outboxq.worker.executor import context_of, execute
from outboxq.worker.log_lines import EndLog

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
CLAIM = Claim(
    id=UUID(int=7),
    pipeline_execution_id=UUID(int=7),
    task_name="shop.work",
    queue="mail",
    priority=0,
    args="{}",
    headers=None,
    attempt=1,
    max_attempts=None,
    recovery_attempts=0,
    lease_token=1,
    worker_id=UUID(int=1),
    lease_seconds=60.0,
    lease_expires_at=NOW,
    timeout_seconds=None,
    created_at=NOW,
    first_started_at=NOW,
    started_at=NOW,
)
SECRET = "iban DE02120300000000202051"


class Declined(Exception):
    """An error whose text contains more than should be logged."""


def declined():
    try:
        raise LookupError(SECRET)
    except LookupError as cause:
        raise Declined(f"order 7 was declined\x1b[2J\n{SECRET}") from cause


@pytest.fixture
def told(caplog):
    """Run a function as a task, log its end, and return the record, if any: `told(function, max_attempts=2)`."""

    def tell(function, *, level="INFO", tracebacks=None, front_end=None, attempt=1, **policy):
        task = Outbox().task(name="shop.work", retry=RetryPolicy(**{"wait": 9.6, **policy}))(function)
        claim = replace(CLAIM, attempt=attempt)
        context = context_of(claim, task, threading.Event())
        outcome = execute(task, context)
        caplog.clear()
        with caplog.at_level(level, "outboxq.worker"):
            EndLog(tracebacks=tracebacks, front_end=front_end or FrontEnd()).write(outcome, context, 0.2014)
        return caplog.records[0] if caplog.records else None

    return tell


def test_a_completed_attempt_is_logged_without_further_details(told):
    record = told(lambda: None)
    assert record.getMessage() == f"task {CLAIM.id} (shop.work): task_completed in 0.201 s"
    assert (record.levelname, record.event, record.attempt, record.queue) == ("INFO", "task_completed", 1, "mail")


def test_the_line_contains_the_time_of_the_next_run(told):
    def snooze():
        raise Snooze(30)

    def cancel():
        raise Cancel("gone")

    def later():
        raise Retry(at=datetime(2030, 1, 1, 13, tzinfo=UTC))

    def leave():
        raise Leave("its lease could not be extended in time")

    assert told(snooze).getMessage().endswith(": task_snoozed in 0.201 s, runs again in 30.0 s")
    assert told(leave).getMessage().endswith(": task_snoozed in 0.201 s: its lease could not be extended in time")
    assert told(cancel).getMessage().endswith(": task_cancelled in 0.201 s")
    assert ", attempt 1 of 10, next attempt at 2030-01-01 13:00:00 UTC: Retry: again at" in told(later).getMessage()


def test_the_line_of_a_retry_contains_the_error_and_the_next_attempt(told):
    record = told(declined, max_attempts=2)
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"task {CLAIM.id} (shop.work): task_retry_scheduled in 0.201 s, attempt 1 of 2, next attempt in 9.6 s: "
        r"Declined: order 7 was declined\x1b[2J"
    )
    assert record.exception == {"type": f"{__name__}.Declined", "message": r"order 7 was declined\x1b[2J"}


def test_the_line_of_the_last_failure_names_the_traceback_command(told):
    record = told(declined, attempt=2, max_attempts=2)
    line = record.getMessage()
    assert record.levelname == "ERROR"
    assert ": task_failed in 0.201 s, attempt 2 of 2: Declined: order 7 was declined" in line
    assert line.endswith(f"; see: outboxq task show {CLAIM.id} --traceback")


@pytest.mark.parametrize(
    ("front_end", "typed"),
    [
        (FrontEnd(app="shop:outbox"), f"outboxq task show {CLAIM.id} --traceback -A shop:outbox"),
        (FrontEnd(program="manage.py outboxq"), f"manage.py outboxq task show {CLAIM.id} --traceback"),
    ],
)
def test_the_command_is_written_for_the_current_program(told, front_end, typed):
    assert told(declined, max_attempts=1, front_end=front_end).getMessage().endswith(f"; see: {typed}")


def test_the_worker_command_is_written_for_the_current_program():
    worker = ("worker", "-q", "my mail")
    assert FrontEnd().typed(worker) == "outboxq worker APP -q 'my mail'"
    assert FrontEnd(app="shop:outbox").typed(worker) == "outboxq worker shop:outbox -q 'my mail'"
    assert FrontEnd(program="manage.py outboxq", finds_app=True).typed(("worker",)) == "manage.py outboxq worker"


def test_a_long_message_is_truncated_and_a_missing_one_is_empty(told):
    def talk():
        raise ValueError("x" * 5000)

    def silent():
        raise ValueError

    assert len(told(talk, max_attempts=1).getMessage()) < 600
    assert told(silent, max_attempts=1).exception == {"type": "builtins.ValueError", "message": ""}


@pytest.mark.parametrize(
    ("tracebacks", "level", "retry", "last"),
    [
        (None, "INFO", False, True),
        (None, "DEBUG", True, True),
        (True, "INFO", True, True),
        (False, "INFO", False, False),
        (False, "DEBUG", False, False),
    ],
)
def test_the_tracebacks_option_determines_which_records_have_the_exception(told, tracebacks, level, retry, last):
    for bound, wanted in ((2, retry), (1, last)):
        info = told(declined, max_attempts=bound, tracebacks=tracebacks, level=level).exc_info
        assert (info is not None and info[0] is Declined) is wanted


def test_the_error_of_a_failing_retry_policy_is_logged(told):
    def broken(_state):
        raise OSError("no clock")

    line = told(declined, wait=broken).getMessage()
    assert "Declined: order 7" in line
    assert "; its retry policy failed: " in line
    assert "no clock" in line


@pytest.mark.parametrize("kind", [TextFormatter, JsonFormatter])
def test_the_log_of_commands_has_tracebacks_only_if_enabled(told, kind):
    record = told(declined, max_attempts=1)
    logging.Formatter().format(record)  # another handler's formatter, which leaves its text on the record
    assert "Traceback" in record.exc_text
    plain, whole = kind().format(record), kind(tracebacks=True).format(record)
    assert SECRET not in plain
    assert "Traceback" not in plain
    assert "order 7 was declined" in plain
    assert SECRET in whole
    assert "Traceback" in whole
    assert "\x1b" not in whole
    assert record.exc_info is not None, "the record stays unchanged for other handlers"


def test_a_json_record_has_the_exception_as_an_object(told):
    record = told(declined, max_attempts=1)
    said = json.loads(JsonFormatter().format(record))
    assert said["exception"] == {"type": f"{__name__}.Declined", "message": r"order 7 was declined\x1b[2J"}
    assert (said["event"], said["attempt"], said["task"]) == ("task_failed", 1, "shop.work")
    whole = json.loads(JsonFormatter(tracebacks=True).format(record))["exception"]
    assert whole["traceback"].startswith("Traceback")
    assert set(whole) == {"type", "message", "traceback"}


def test_tracebacks_from_other_loggers_are_always_printed(caplog):
    try:
        declined()
    except Declined:
        logging.getLogger("tests.shop").exception("mine", extra={"exception": {"type": "x"}})
    assert SECRET in TextFormatter().format(caplog.records[0])


def test_nothing_is_written_below_the_level(told):
    assert told(lambda: None, level="WARNING") is None
    assert told(declined, level="CRITICAL", max_attempts=1) is None


def test_a_delay_of_zero_is_logged_for_retries_only(told):
    def at_once():
        raise Retry(timedelta(0))

    assert "next attempt in 0.0 s" in told(at_once).getMessage()
