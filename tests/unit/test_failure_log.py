"""Logs of repeated failures: one line immediately, one line a minute, and one line at the end."""

from __future__ import annotations

import logging
import re

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from outboxq.errors import NotPermitted
from outboxq.store.failure_log import FailureLog, say, sentence

log = logging.getLogger("outboxq.tests")
STATEMENT = "WITH picked AS MATERIALIZED (\n" + "SELECT 1,\n" * 150 + ")"


@pytest.fixture
def clock():
    """The time in seconds that the log reads, in a list with one element."""
    return [1000.0]


@pytest.fixture
def failing(clock, caplog):
    caplog.set_level(logging.INFO)
    return FailureLog(log, clock=lambda: clock[0])


def lost():
    return OperationalError(
        STATEMENT, {}, psycopg.OperationalError("server closed the connection\nThis probably means")
    )


def full():
    return OperationalError(STATEMENT, {}, psycopg.errors.DiskFull("could not extend file: No space left on device"))


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def test_the_first_failure_is_logged_immediately_in_one_line(failing, caplog):
    failing.failed("claiming failed", lost())
    assert lines(caplog) == ["claiming failed: OperationalError: server closed the connection"]
    assert caplog.text.count("\n") == 1


def test_the_traceback_and_the_sql_are_logged_at_debug_level(failing, caplog):
    caplog.set_level(logging.DEBUG)
    failing.failed("claiming failed", lost())
    assert [record.levelname for record in caplog.records] == ["ERROR", "DEBUG"]
    assert "MATERIALIZED" in caplog.text


def test_a_programming_error_is_logged_with_its_traceback(failing, caplog):
    try:
        raise KeyError("task_id")
    except KeyError as error:
        failing.failed("claiming failed", error)
    assert "Traceback" in caplog.text


def test_a_missing_privilege_is_logged_in_one_complete_sentence(failing, caplog):
    what = (
        "the database role 'shop' lacks "
        + "SELECT on task_outbox, " * 20
        + "which this grants: outboxq grants --role worker shop"
    )
    for _ in range(3):
        failing.failed("claiming failed", NotPermitted(what))
    (said,) = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert said.getMessage() == f"claiming failed: NotPermitted: {what}"
    assert said.exc_info is None


def test_ten_minutes_of_failures_are_ten_lines_that_count_every_failure(failing, clock, caplog):
    for _ in range(1200):
        failing.failed("claiming failed", lost())
        clock[0] += 0.5
    said = lines(caplog)
    assert len(said) == 10
    assert said[1] == (
        "claiming failed (119 more since this was last logged): OperationalError: server closed the connection"
    )
    left_out = sum(int(found[1]) for line in said if (found := re.search(r"\((\d+) more", line)))
    assert left_out == 9 * 119


def test_another_kind_of_error_is_logged_immediately(failing, caplog):
    for error in (lost(), full(), lost(), full()):
        failing.failed("claiming failed", error)
    assert lines(caplog)[1:] == [
        "claiming failed: DiskFull (53100): could not extend file: No space left on device",
    ]


def test_the_end_of_a_failure_is_logged_once_with_its_duration(failing, clock, caplog):
    for _ in range(3):
        failing.failed("claiming failed", lost())
        clock[0] += 2
    failing.worked("claiming works again")
    failing.worked("claiming works again")
    assert lines(caplog)[1:] == ["claiming works again after 3 failures in 6.0 s"]


def test_an_intermittent_failure_is_two_lines_a_minute(failing, clock, caplog):
    for _ in range(600):
        failing.failed("claiming failed", lost())
        failing.worked("claiming works again")
        clock[0] += 0.5
    assert len(lines(caplog)) == 10


def test_failures_are_not_counted_twice(failing, clock, caplog):
    """The line about the end has counted these failures, so the next line leaves them out."""
    for _ in range(6):
        failing.failed("claiming failed", lost())
    failing.worked("claiming works again")
    clock[0] += 61
    failing.failed("claiming failed", lost())
    assert lines(caplog)[1:] == [
        "claiming works again after 6 failures in 0.0 s",
        "claiming failed: OperationalError: server closed the connection",
    ]


def test_an_unlogged_failure_is_counted_in_the_next_line(failing, clock, caplog):
    for error in (lost(), full()):
        failing.failed("claiming failed", error)
        failing.worked("claiming works again")
    failing.failed("claiming failed", full())
    failing.worked("claiming works again")
    clock[0] += 30
    failing.failed("claiming failed", lost())
    failing.worked("claiming works again")
    clock[0] += 31
    failing.failed("claiming failed", lost())
    failing.worked("claiming works again")
    failing.failed("claiming failed", full())
    assert [line[:62] for line in lines(caplog)[4:]] == [
        "claiming failed (1 more since this was last logged): Operation",
        "claiming works again after 1 failure in 0.0 s",
        "claiming failed (1 more since this was last logged): DiskFull ",
    ]


def test_success_without_a_failure_is_not_logged(failing, caplog):
    failing.worked("claiming works again")
    assert lines(caplog) == []


def test_a_message_of_any_length_is_logged_in_one_short_line(caplog):
    say(
        log,
        logging.ERROR,
        "it failed",
        OperationalError("SELECT", {}, psycopg.OperationalError("x" * 5000 + "\n" + "y" * 5000)),
    )
    assert caplog.text.count("\n") == 1
    assert len(caplog.text) < 500


def test_an_error_that_cannot_be_printed_is_logged_by_name(caplog):
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no")

    assert sentence(Silent()) == "Silent"
