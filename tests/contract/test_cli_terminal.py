"""Every command that reads, on a real terminal, where its output differs from the output in a pipe."""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.model import EventType, Outcome
from outboxq.model.schedules import NewSchedule
from outboxq.model.subscriptions import NewEvent, Subscription
from outboxq.model.uuid7 import family
from tests import forked
from tests.terminal import shown

HOSTILE = "\x1b[31mred\u202e'; --yes"
HEADINGS = (
    *("due", "delayed", "retrying", "running", "failed", "oldest", "workers"),
    *("completed", "retried", "cancelled", "per s", "failing"),
)
ONE_PROCESS = """
import json, os, sys
from outboxq.cli import main

for columns, commands in json.loads(sys.argv[1]):
    os.environ["COLUMNS"] = str(columns)
    for words in commands:
        print("##", columns, *words[:2], flush=True)
        try:
            code = main(words, standalone_mode=False)
        except SystemExit as ended:
            code = ended.code
        print("## ends with", code or 0, flush=True)
"""


def commands(task: str, queue: str) -> list[list[str]]:
    of_a_task = [["task", one, task] for one in ("show", "explain", "history")]
    lists = [[one, "list"] for one in ("failed", "task", "queue", "workers", "schedule", "subscription")]
    alone = [
        ["status"],
        ["status", "--by", "task"],
        ["failed", "summary"],
        ["log"],
        ["log", "--task", task],
        ["verify"],
    ]
    database = [["db", one] for one in ("current", "history", "sizes")]
    named = [["queue", "show", queue], ["schedule", "show", HOSTILE], ["task", "state-at", task, "2100-01-01T00:00Z"]]
    return [*of_a_task, *lists, *alone, *database, *named, ["check"]]


@pytest.mark.in_turn
def test_each_command_that_reads_works_on_narrow_and_wide_terminals(database):
    store = database.store
    task = str(database.add(store, queue=HOSTILE, task_name=HOSTILE).id)
    (claim,) = database.claim(store=store)
    data = {"error": HOSTILE, "exception": "builtins.ValueError"}
    store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error=HOSTILE, data=data)])
    database.add(store, queue=HOSTILE, delay=timedelta(hours=1))
    store.workers.register(uuid4(), label=HOSTILE, queues=[HOSTILE], concurrency=8, task_names=[HOSTILE])
    store.schedules.put(NewSchedule(name=HOSTILE, task_name=HOSTILE, rule="30 2 * * *", args="{}"))
    store.subscriptions.replace([Subscription(topic="order.*", task_name="tests.work", parameter="payload")])
    store.emit(NewEvent(id=family(), topic="order_gone", payload="{}"))
    given = json.dumps([[columns, commands(task, HOSTILE)] for columns in (40, 80, 200)])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXQ")}
    words = [sys.executable, "-W", "error", "-c", ONE_PROCESS, given]
    code, said = shown(words, env={**environment, "OUTBOXQ_DATABASE_URL": database.url}, columns=40)
    assert code == 0, said
    assert "Traceback" not in said
    ends = re.findall(r"## ends with (\d+)", said)
    assert len(ends) == 3 * len(commands(task, HOSTILE))
    assert ends[len(ends) // 3 - 1 :: len(ends) // 3] == ["1"] * 3, "the last command is `check`, and a task has failed"
    assert ends.count("0") == len(ends) - 3, said
    assert "\x1b[31m" not in said
    assert "\u202e" not in said
    parts = re.split(r"(?=^## \d+ task show)", said, flags=re.MULTILINE)[1:]
    group = store.dead_letters.groups().groups[0].id
    assert len(parts) == 3
    for part in parts:
        assert part.count(task) >= 8, "ids are not cut, so that they can be copied"
        assert part.count(group) >= 1
        status = re.sub(r"\x1b\[\d*m", "", part.split(" status\n", 1)[1].split("## ends")[0])
        heads = [line for line in status.splitlines() if line.startswith("queue ")]
        words = {word for head in heads for word in re.split(r" {2,}", head.strip())[1:]}
        assert {"due", "failed", "completed"} <= words <= {*HEADINGS}, "headings are not cut"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("words", [["queue", "pause", "mail", "--create"], ["status", "--json"]])
def test_a_command_works_with_closed_standard_streams(sqlite, words, closed):
    """It must not fail after it has made its change, and no connection may get the number of a closed stream."""
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-m", "outboxq", *words]
    done = forked.run(
        command, env={**os.environ, "OUTBOXQ_DATABASE_URL": sqlite.url}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
