"""`outboxq status`: a table for people or columns for programs, printed once or until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from outboxq.cli import main
from outboxq.cli.status import _for_people
from outboxq.model import EventType, Outcome
from outboxq.model.histograms import BUCKETS, AttemptCounts
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store, TaskMetric
from tests import forked
from tests.terminal import shown
from tests.waiting import until

HEAD = [
    *(
        "queue",
        "due",
        "delayed",
        "retrying",
        "running",
        "failed",
        "oldest due",
        "completed",
        "failures",
        "retries",
        "cancelled",
    ),
    *("throughput", "failure rate"),
    *("wait p50", "wait p95", "wait p99", "run p50", "run p95", "run p99", "workers", "notes"),
]


NOTES = "paused, limit 1 at a time, limit 5 in 1 min 30 s, limit 2 at once, 7 in 1 min per key"


def status(database, *arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["status", "--url", database.url, *arguments], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def lines(database, *arguments: str) -> list[dict[str, str]]:
    head, *rows = [line.split("\t") for line in status(database, *arguments).stdout.splitlines()]
    assert [name for name in head if name != "task"] == HEAD
    return [dict(zip(head, row, strict=True)) for row in rows]


def counted(database, *, queue="mail", task_name="send", **numbers):
    nothing = [0] * BUCKETS
    histograms = {"wait": [0, 3, *nothing[2:]], "run": [*nothing[:10], 3, *nothing[11:]]}
    one = TaskMetric(id=uuid7(), queue=queue, task_name=task_name, counts=AttemptCounts(**numbers, **histograms))
    database.store.metrics.record([one], worker_id=uuid4())


def fill(database):
    """Create a queue in which everything has happened, and one with a due task and a delayed task."""
    counted(database, queue="ledger", task_name="tests.work", completed=1, failed=1)
    for event_type in (EventType.COMPLETED, EventType.FAILED):
        database.add(database.store, queue="ledger")
        (claim,) = database.claim(store=database.store)
        database.store.finish([Outcome(claim=claim, event_type=event_type)])
    database.add(database.store, queue="mail", task_name="send")
    database.add(database.store, queue="mail", delay=timedelta(hours=1))
    database.store.queues.pause("mail", create=True)
    database.store.queues.limit(
        "mail",
        concurrency=1,
        rate=(5, timedelta(seconds=90)),
        concurrency_per_key=2,
        rate_per_key=(7, timedelta(minutes=1)),
    )


def test_in_a_pipe_each_queue_is_a_line_of_tab_separated_numbers(database):
    fill(database)
    ledger, mail = lines(database)
    assert [ledger[name] for name in HEAD[:11]] == ["ledger", "0", "0", "0", "0", "1", "", "1", "1", "0", "0"]
    assert (ledger["failure rate"], ledger["notes"]) == ("0.5", "")
    assert 2 / 60 < float(ledger["throughput"]) <= 2 / 10, "workers have counted for ten seconds"
    assert 0 < float(ledger["wait p50"]) <= float(ledger["wait p99"]) < float(ledger["run p99"]) < 60
    assert [mail[name] for name in HEAD[:6]] == ["mail", "1", "1", "0", "0", "0"]
    due = datetime.fromisoformat(mail["oldest due"])
    assert due.utcoffset() == timedelta(0)
    assert mail["oldest due"] == str(due), "times are written as in the other tables"
    assert [mail[name] for name in ("throughput", "failure rate", "workers")] == ["0.0", "", "0"]
    assert mail["notes"] == NOTES


def test_every_column_in_a_pipe_has_a_value_for_some_queue(database):
    fill(database)
    found = lines(database)
    assert [name for name in HEAD if not any(one[name] for one in found)] == []


def test_status_can_list_tasks_and_use_another_window(database):
    fill(database)
    assert [(line["queue"], line["task"]) for line in lines(database, "--by", "task")] == [
        ("ledger", "tests.work"),
        ("mail", "send"),
        ("mail", "tests.work"),
    ]
    assert [lines(database, "--window", window)[0]["completed"] for window in ("1m", "1d")] == ["1", "1"]
    assert "window" in status(database, "--window", "0s", exit_code=1).stderr
    status(database, "--window", "x", exit_code=2)
    status(database, "--watch", "0", exit_code=2)


@pytest.mark.in_turn
def test_a_terminal_shows_tables_with_units_and_notes(database):
    fill(database)
    command = [sys.executable, "-m", "outboxq", "status", "--url", database.url]
    code, printed = shown(command, env={**os.environ, "TERM": "dumb"}, columns=200)
    assert code == 0, printed
    seen = [line.split() for line in printed.splitlines()]
    assert seen[0] == ["queue", "due", "delayed", "retrying", "running", "failed", "oldest", "workers"]
    assert seen[1] == ["ledger", "0", "0", "0", "0", "1", "0"]
    assert seen[2][:6] == ["mail", "1", "1", "0", "0", "0"]
    assert re.fullmatch(r"(\d+ ms|\d\.\d s|\d+ (s|min))", " ".join(seen[2][6:8]))
    assert " ".join(seen[2][8:]) == f"0 {NOTES}"
    assert seen[3] == ["queue", "completed", "failed", "retried", "cancelled", "per", "s", "failing"]
    assert (seen[4][:5], seen[4][6:]) == (["ledger", "1", "1", "0", "0"], ["50.0", "%"])
    assert seen[6] == ["queue", *(word for what in ("wait", "run") for p in (50, 95, 99) for word in (what, f"p{p}"))]
    assert (seen[7][0], len(seen[7])) == ("ledger", 13)  # six numbers with their units; no task of mail has ended
    notes = " ".join(word for line in seen[8:] for word in line)
    assert notes.startswith("the rates are up to 10 s old, and cover only the time since")


def test_counts_by_workers_are_shown_and_lower_bounds_are_marked(database, monkeypatch):
    monkeypatch.setattr("outboxq.store.numbers.live.BOUND", 2)
    for _ in range(3):
        database.add(database.store, queue="mail")
    database.store.samples.record(database.store.samples.count())
    counted(database, completed=3, failed=1, timed_out=2, lost=1)
    [mail] = lines(database)
    assert [mail[name] for name in ("due", "completed", "failures", "retries")] == ["2+", "3", "1", "2"]
    assert 0.001 <= float(mail["wait p50"]) <= 0.002 < 0.512 <= float(mail["run p50"]) <= 1.024
    [whole] = json.loads(status(database, "--json").stdout)["queues"]
    assert [whole[name] for name in ("due_at_least", "timed_out", "lost", "by_workers")] == [True, 2, 1, True]
    assert whole["sample"]["due"] == 3
    assert whole["sample_age"] < 60
    assert whole["counted_since"]
    [task] = lines(database, "--by", "task", "--window", "5m")[1:]
    assert (task["task"], task["completed"]) == ("tests.work", "0")


def test_the_table_shows_lower_bounds_and_notes_how_long_workers_have_counted(database, monkeypatch):
    monkeypatch.setattr("outboxq.store.numbers.live.BOUND", 2)
    for _ in range(3):
        database.add(database.store, queue="mail")
    database.store.samples.record(database.store.samples.count())
    counted(database, completed=3)
    now, rates, times, full, note = _for_people(database.store.stats(), by_task=False)
    assert dict(zip(now[0], now[1][0], strict=True))["due"] == "2+"
    assert dict(zip(rates[0], rates[1][0], strict=True))["completed"] == 3
    assert times[0][:4] == ["queue", "wait p50", "wait p95", "wait p99"]
    assert full[1][0][:2] == ("mail", 3)
    assert "the rates are up to 10 s old, and cover only the time since" in note[0][0]
    whole = [replace(one, counted_since=None) for one in database.store.stats()]
    *_, note = _for_people(whole, by_task=False)
    assert note.head == ["the rates are up to 10 s old"]


def test_the_table_notes_that_no_worker_has_counted(database):
    store = Store(database.engine)
    database.add(store, queue="mail")
    *_, note = _for_people(store.stats(), by_task=False)
    assert note.head == ["no worker has written any statistics in this period; workers write them every 10 s"]


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
def test_watching_redraws_the_table_on_a_terminal(database):
    database.add(database.store, queue="mail")
    command = [sys.executable, "-c", WATCHED, database.url]
    code, printed = shown(command, env={**os.environ, "TERM": "xterm-256color"}, columns=200)
    assert code == 0, printed
    assert printed.count("mail") >= 3
    assert printed.count(" UTC") >= 3
    assert "\x1b[?25h" in printed, "the cursor was not restored"


@pytest.mark.in_turn
def test_watching_in_a_pipe_continues_until_it_is_interrupted(database, tmp_path):
    database.add(database.store, queue="mail")
    log = tmp_path / "log"
    command = [sys.executable, "-W", "error", "-m", "outboxq", "status", "--url", database.url, "--watch", "0.1"]
    with log.open("wb") as file, forked.Popen(command, stdout=file, stderr=file) as running:
        try:
            until(lambda: Path(log).read_text().count("mail\t1\t") >= 2)
            database.add(database.store, queue="mail")
            until(lambda: "mail\t2\t" in Path(log).read_text())
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 0
        finally:
            running.kill()
    assert "Traceback" not in log.read_text()
