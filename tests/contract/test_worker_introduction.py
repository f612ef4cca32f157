"""A worker's first log line: its database, its tasks, and how it is notified of work."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from outboxq import Outbox
from outboxq.cli.serving.supervisor import Environment, Supervisor
from tests import forked
from tests.contract.helpers import called
from tests.memory_broker import Broker

APPLICATION = """
from outboxq import Outbox

outbox = Outbox()


@outbox.task(name="shop.charge")
def charge() -> None: ...


@outbox.task(name="shop.bill")
def bill() -> None: ...
"""

UNSERVED = "; no live worker serves the queue default, whose task outboxq.prune deletes old tasks (outboxq worker APP -q default)"


def introduced(database, caplog, *, tasks=(), retention=90, **options):
    """Return the first log record of a worker that has started, and its message."""
    outbox = Outbox(database.url, retention=None if retention is None else timedelta(days=retention))
    for name in tasks:
        outbox.task(name=name)(lambda: None)
    caplog.clear()
    with caplog.at_level(logging.INFO, "outboxq.worker"):
        worker = outbox.worker(**options)
        assert worker.run(burst=True) == 0
    outbox.store.bound_engine.dispose()
    (record,) = [record for record in caplog.records if ") started" in record.getMessage()]
    assert record.levelno == logging.INFO
    return record, record.getMessage().partition(f"worker {worker.label} ({worker.id}) started ")[2]


USUAL = {
    "sqlite": "watches the file for new tasks, and polls every 0.5 s",
    "postgresql": "listens for new tasks, and polls every 30 s",
}


def test_the_first_line_names_database_queues_notification_and_tasks(database, caplog):
    record, said = introduced(database, caplog, tasks=["shop.charge", "shop.bill"])
    usual = USUAL[database.name]
    assert said == f"on {called(database.url)}: all queues, 8 at once; {usual}; knows 2 tasks shop.bill, shop.charge"
    told = {name: getattr(record, name) for name in ("queues", "topics", "concurrency", "hears", "tasks", "task_names")}
    assert told == {
        "queues": None,
        "topics": None,
        "concurrency": 8,
        "hears": usual,
        "tasks": 2,
        "task_names": ["shop.bill", "shop.charge"],
    }
    assert record.database in called(database.url)


@pytest.mark.parametrize(
    ("queue", "warned"),
    [
        ("mail", []),
        ("default", []),
        ("mial", ["uses the queue 'mial', which this worker serves; did you mean 'mail'?"]),
        (
            "mail,crm",
            [
                "uses the queue 'mail,crm', which this worker serves; to serve several queues, repeat the option: -q mail -q crm"
            ],
        ),
    ],
)
def test_a_worker_warns_of_a_queue_that_nothing_uses(database, caplog, queue, warned):
    outbox = Outbox(database.url)
    outbox.task(name="shop.mail", queue="mail")(lambda: None)
    for _ in range(2):  # the second time, the first worker was recently live
        caplog.clear()
        with caplog.at_level(logging.WARNING, "outboxq.worker"):
            assert outbox.worker(queues=[queue]).run(burst=True) == 0
        assert [text.removeprefix("no task, setting or declaration ") for text in caplog.messages] == warned
    outbox.store.bound_engine.dispose()


def test_the_first_line_names_the_limits_of_the_worker(database, caplog):
    options = {"queues": ["mail"], "topics": ["order.*", "user.new"], "concurrency": 1, "poll": 2.5}
    _, said = introduced(database, caplog, tasks=["shop.charge"], notifications=False, **options)
    assert said.partition(": ")[2] == (
        "the queue mail, only tasks with the topics order.*, user.new, 1 at once; polls every 2.5 s; knows task shop.charge"
        + UNSERVED
    )


def test_only_the_first_of_many_names_are_listed(sqlite, caplog):
    names = [f"shop.task{number:02}" for number in range(12)]
    record, said = introduced(sqlite, caplog, tasks=names, queues=[f"q{number}" for number in range(3)])
    assert ": the 3 queues q0, q1, q2, " in said
    assert said.endswith(f"knows 12 tasks {', '.join(names[:10])} and 2 more{UNSERVED}")
    assert (record.tasks, record.task_names) == (12, names[:10])


def test_a_worker_that_knows_no_tasks_is_warned_about(sqlite, caplog):
    assert introduced(sqlite, caplog)[1].endswith("; knows no tasks")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == "this worker knows no tasks; where the worker starts, import the modules that declare them"
    introduced(sqlite, caplog, tasks=["shop.charge"])
    assert [record for record in caplog.records if record.levelno == logging.WARNING] == []


def test_a_worker_that_only_publishes_events_is_not_warned_about(sqlite, caplog):
    outbox = Outbox(sqlite.url, retention=timedelta(days=90), source="shop")
    outbox.relay("order.*", to=Broker(), name="orders")
    with caplog.at_level(logging.WARNING, "outboxq.worker"):
        assert outbox.worker().run(burst=True) == 0
    assert caplog.messages == []
    outbox.store.bound_engine.dispose()


def test_the_first_line_reports_that_nothing_deletes_old_tasks(sqlite, caplog):
    record, said = introduced(sqlite, caplog, retention=None)
    assert said.endswith("; nothing deletes old tasks (outboxq schedule add-retention 90d)")
    assert not record.deletes_old_tasks
    assert introduced(sqlite, caplog)[0].deletes_old_tasks


def test_the_first_line_reports_that_no_worker_serves_the_retention_task(database, caplog):
    outbox = Outbox(database.url, retention=timedelta(days=90))
    outbox.worker().run(burst=True)  # stores the schedule, whose task is in the queue default
    assert introduced(database, caplog, queues=["mail"])[1].endswith(UNSERVED)
    assert introduced(database, caplog, topics=["order.*"])[1].endswith(UNSERVED)
    assert "outboxq.prune" not in introduced(database, caplog, queues=["mail", "default"])[1]
    other = outbox.store.workers
    other.register(database.worker, label="web-1:7", queues=["default"], concurrency=1, task_names=["outboxq.prune"])
    assert "outboxq.prune" not in introduced(database, caplog, queues=["mail"])[1]
    outbox.store.bound_engine.dispose()


def test_no_password_is_logged(postgresql, caplog, monkeypatch):
    from sqlalchemy.engine import make_url

    url = make_url(postgresql.url).set(password="s3cr3t-canary")  # the server does not require it
    monkeypatch.setattr(postgresql, "url", url.render_as_string(hide_password=False))
    record, said = introduced(postgresql, caplog)
    assert "s3cr3t" not in said + str(record.database)
    assert ":***@" in said


def test_several_processes_log_the_first_line_once(sqlite, tmp_path):
    (tmp_path / "app.py").write_text(APPLICATION)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXQ")}
    done = forked.run(
        [sys.executable, "-m", "outboxq", "worker", "app", "--processes", "2", "--burst", "--log-format", "json"],
        cwd=tmp_path,
        env={**environment, "OUTBOXQ_DATABASE_URL": sqlite.url},
        capture_output=True,
        text=True,
        check=True,
        starts_others=True,
    )
    records = [json.loads(line) for line in done.stderr.splitlines()]
    started = [one for one in records if one["logger"] == "outboxq.worker" and ") started" in one["message"]]
    assert len(started) == 2
    (told,) = [one for one in started if "database" in one]
    assert told["database"] == str(Path(sqlite.url.removeprefix("sqlite:///")))
    assert (told["tasks"], told["task_names"], told["concurrency"]) == (2, ["shop.bill", "shop.charge"], 8)


@pytest.mark.parametrize(("reloads", "again"), [(False, False), (True, True)])
def test_one_process_per_database_logs_the_first_line_and_again_only_after_a_reload(reloads, again):
    each = [Environment(name="one"), Environment(name="two")]
    supervisor = Supervisor(lambda _: [], processes=2, environments=each, reloads=reloads)
    speaking = []
    for child in supervisor._children:
        child.starts = 1
        speaking.append(supervisor._introduction(child) == {})
    assert speaking == [True, False, True, False]
    first = supervisor._children[0]
    first.starts = 2
    assert (supervisor._introduction(first) == {}) is again
