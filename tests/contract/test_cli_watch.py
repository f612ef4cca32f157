"""`outboxq status --watch` on a terminal: problems first, then curves and workers, never wider than the terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.cli.status import View, _rate, _with_top, cut, sparkline
from outboxq.model.histograms import AttemptCounts
from outboxq.model.uuid7 import uuid7
from outboxq.store import TaskMetric
from tests import forked
from tests.terminal import shown

HOUR = timedelta(hours=1)


def test_a_curve_is_scaled_from_zero_to_its_largest_value():
    assert sparkline([0, 1, 50, 100]) == "▁▂▅█"
    assert sparkline([None, 0, None]) == " ▁ "
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([1, 10**9]) == "▂█", "a small value is visible"


def test_a_curve_is_followed_by_its_largest_value():
    known = {None: "", 0: " 0", 999: " 999", 1200: " 1.2k", 34_000: " 34k", 5_600_000: " 5.6M", 10**12: " 1000G"}
    known |= {9_999: " 10k", 999_600: " 1.0M"}
    assert {most: _with_top([most])[1:] for most in known} == known


def test_a_rate_is_written_without_an_exponent():
    known = {0.0: "0", 1e-06: "< 0.0001", 0.00125: "0.00125", 12.34: "12.3", 999.6: "1,000", 1234.5: "1,234"}
    assert {rate: _rate(rate) for rate in known} == known


def test_a_line_is_cut_and_cannot_control_the_terminal():
    assert cut("a" * 9, 5) == "aaaa…"
    assert cut("abc", 3) == "abc"
    assert "\x1b" not in cut("\x1b[31m", 80)


def test_queues_with_problems_are_listed_first(database):
    store = database.store
    for queue, count in (("calm", 1), ("long", 3), ("lonely", 1)):
        for _ in range(count):
            database.add(store, queue=queue)
    store.workers.register(uuid4(), label="host:1", queues=["calm", "long"], concurrency=8, task_names=["tests.work"])
    view, overview = View(store, HOUR), store.overview()
    assert [one.queue for one in view.sorted(store.stats(), overview)] == ["lonely", "long", "calm"]
    first, trouble = view.head(overview, 80)
    assert "5 due  0 delayed  0 retrying  0 running  0 failed  1 worker" in first
    assert trouble.startswith("! no live worker serves the queue 'lonely'")
    assert all(len(line) <= 30 for line in view.head(overview, 30))
    curves, workers = view.tables(store.stats(), overview)
    assert [row[0] for row in curves[1]] == ["all queues", "calm", "lonely", "long"]
    assert {len(row[1]) for row in curves[1]} == {24}
    assert {row[2][24:] for row in curves[1]} == {" 0"}
    assert workers[1][0][:4] == ("host:1", None, None, "?/8")


def test_the_curve_of_a_steady_load_is_level(database):
    """One task ends every ten seconds, and counts that are older than two minutes are stored by the minute."""
    at, store = database.clock.now, database.frozen
    for ago in range(80 * 60, 0, -10):
        database.clock.now = at - timedelta(seconds=ago - 10)
        one = TaskMetric(id=uuid7(), queue="mail", task_name="send", counts=AttemptCounts(completed=1))
        store.metrics.record([one], worker_id=uuid4())
    store.metrics.sum_up()
    [(_, _, done)] = View(store, HOUR).tables([], store.overview())[0].rows
    assert re.fullmatch("█{23}[▅▆▇█] 18", done), done
    steps = [View(store, timedelta(hours=hours))._step / timedelta(minutes=1) for hours in (0.01, 1, 2, 3, 6, 24, 168)]
    assert steps == [1, 3, 5, 10, 15, 60, 420]


@pytest.mark.in_turn
@pytest.mark.slow
def test_the_view_stays_within_eighty_columns(database):
    store = database.store
    for place in range(3):
        database.add(store, queue=f"queue-{place}" * 8)
    store.workers.register(uuid4(), label="host:1" * 20, queues=None, concurrency=8, task_names=["tests.work"])
    command = [sys.executable, "-m", "outboxq", "status", "--url", database.url, "--watch", "0.1"]
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    code, printed = shown(
        command, env=environment, columns=80, answers=[("seen ago", ""), ("seen ago", lambda one: one.send_signal(15))]
    )
    assert code == 0, printed
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed).replace("\r", "\n").split("\n")
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert "Traceback" not in printed


@pytest.mark.in_turn
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_watching_with_json_prints_a_line_per_refresh_until_a_signal(database, number):
    database.add(database.store, queue="mail")
    words = [sys.executable, "-m", "outboxq", "status", "--watch", "0.1", "--json", "--url", database.url]
    with forked.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        try:
            looks = [json.loads(watching.stdout.readline()) for _ in range(2)]
            watching.send_signal(number)
            _, said = watching.communicate(timeout=60)
        finally:
            watching.kill()
    assert (watching.returncode, said) == (0, "")
    assert [look["queues"][0]["due"] for look in looks] == [1, 1]
