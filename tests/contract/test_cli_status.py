"""`outboxq status`: a table for people, columns for programs, once or until Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outboxq.cli import main
from outboxq.model import EventType, Outcome
from tests.terminal import shown
from tests.waiting import until

HEAD = [
    *(
        "queue",
        "ready",
        "delayed",
        "retrying",
        "running",
        "failed",
        "oldest ready",
        "completed",
        "failures",
        "retries",
        "cancelled",
    ),
    *("throughput", "failure rate", "start p50", "start p95", "start p99", "end p50", "end p95", "end p99"),
    *("workers", "paused", "concurrency", "rate", "unknown"),
]


def status(database, *arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["status", "--url", database.url, *arguments], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def lines(database, *arguments: str) -> list[dict[str, str]]:
    head, *rows = [line.split("\t") for line in status(database, *arguments).stdout.splitlines()]
    assert [name for name in head if name != "task"] == HEAD
    return [dict(zip(head, row, strict=True)) for row in rows]


def fill(database):
    """A queue where everything happened, and one with a task of either kind."""
    for event_type in (EventType.COMPLETED, EventType.FAILED):
        database.add(database.store, queue="ledger")
        (claim,) = database.claim(store=database.store)
        database.store.finish([Outcome(claim=claim, event_type=event_type)])
    database.add(database.store, queue="mail", task_name="send")
    database.add(database.store, queue="mail", delay=timedelta(hours=1))
    database.store.queues.pause("mail")
    database.store.queues.limit("mail", concurrency=1, rate=(5, timedelta(seconds=90)))


def test_in_a_pipe_each_queue_is_a_line_of_tab_separated_numbers(database):
    fill(database)
    ledger, mail = lines(database)
    assert [ledger[name] for name in HEAD[:11]] == ["ledger", "0", "0", "0", "0", "1", "", "1", "1", "0", "0"]
    assert (float(ledger["throughput"]), ledger["failure rate"], ledger["paused"]) == (2 / 3600, "0.5", "")
    assert 0 <= float(ledger["start p50"]) <= float(ledger["start p99"]) <= float(ledger["end p99"]) < 60
    assert [mail[name] for name in HEAD[:6]] == ["mail", "1", "1", "0", "0", "0"]
    assert datetime.fromisoformat(mail["oldest ready"]).utcoffset() == timedelta(0)
    assert [mail[name] for name in HEAD[11:]] == ["0.0", *[""] * 7, "0", "paused", "1", "5/90s", ""]


def test_a_line_for_each_task_and_another_window(database):
    fill(database)
    assert [(line["queue"], line["task"]) for line in lines(database, "--by", "task")] == [
        ("ledger", "tests.work"),
        ("mail", "send"),
        ("mail", "tests.work"),
    ]
    assert float(lines(database, "--window", "1d")[0]["throughput"]) == 2 / 86400
    assert "window" in status(database, "--window", "0s", exit_code=1).stderr
    status(database, "--window", "x", exit_code=2)
    status(database, "--watch", "0", exit_code=2)


@pytest.mark.in_turn
def test_a_terminal_gets_a_table_in_words(database):
    fill(database)
    command = [sys.executable, "-m", "outboxq", "status", "--url", database.url]
    code, printed = shown(command, env={**os.environ, "TERM": "dumb"}, columns=200)
    assert code == 0, printed
    seen = [line.split() for line in printed.splitlines()]
    assert seen[0] == ["queue", "ready", "delayed", "retrying", "running", "failed", "oldest", "workers"]
    assert seen[1] == ["ledger", "0", "0", "0", "0", "1", "0"]
    assert seen[2][:6] == ["mail", "1", "1", "0", "0", "0"]
    assert re.fullmatch(r"\d+ms|\d+\.\ds", seen[2][6])
    assert " ".join(seen[2][7:]) == "0 paused, limit 1 at a time, limit 5 in 90.0s"
    assert seen[3] == ["queue", "completed", "failed", "retried", "cancelled", "per", "s", "failing"]
    assert seen[4] == ["ledger", "1", "1", "0", "0", "0.000556", "50.0%"]
    assert seen[6] == [
        "queue",
        *(word for until in ("start", "end") for p in (50, 95, 99) for word in (until, f"p{p}")),
    ]
    assert (seen[7][0], len(seen[7]), len(seen)) == ("ledger", 7, 8)  # nothing of mail has ended


WATCHED = """
import sys, time
from outboxq.cli import main

looks = []

def sleep(seconds):
    looks.append(seconds)
    if len(looks) == 3:
        raise KeyboardInterrupt

time.sleep = sleep
main(["status", "--url", sys.argv[1], "--watch"], standalone_mode=False)
assert looks == [2.0] * 3, looks
"""


@pytest.mark.in_turn
def test_watching_draws_the_table_anew_on_a_terminal(database):
    database.add(database.store, queue="mail")
    command = [sys.executable, "-c", WATCHED, database.url]
    code, printed = shown(command, env={**os.environ, "TERM": "xterm-256color"}, columns=200)
    assert code == 0, printed
    assert printed.count("mail") >= 3
    assert printed.count(" UTC") >= 3
    assert "\x1b[?25h" in printed, "the cursor is not given back"


@pytest.mark.in_turn
def test_watching_goes_on_in_a_pipe_until_it_is_interrupted(database, tmp_path):
    database.add(database.store, queue="mail")
    log = tmp_path / "log"
    command = [sys.executable, "-W", "error", "-m", "outboxq", "status", "--url", database.url, "--watch", "0.1"]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as running:
        try:
            until(lambda: Path(log).read_text().count("mail\t1\t") >= 2)
            database.add(database.store, queue="mail")
            until(lambda: "mail\t2\t" in Path(log).read_text())
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 0
        finally:
            running.kill()
    assert "Traceback" not in log.read_text()
