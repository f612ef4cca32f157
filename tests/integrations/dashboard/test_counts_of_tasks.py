"""The throughput and the times of each task, on the pages of a queue and of a worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from outboxq import Outbox
from outboxq.store import Store
from outboxq.web import application
from outboxq.web.pages import watching
from tests.contract.test_metrics import metric
from tests.integrations.dashboard.test_watch_pages import Reader, worker


@pytest.fixture
def reader(database):
    return Reader(application(Outbox(database.engine)))


def counted_for_long(database):
    """Write counts of two hours ago, so that the rates are those of the whole window."""
    then = Store(database.engine, clock=lambda: datetime.now(UTC) - timedelta(hours=2))
    then.metrics.record([metric(queue="other", completed=1)], worker_id=uuid4())


def test_the_page_of_a_queue_has_the_counts_of_each_task(database, reader, monkeypatch):
    assert "No attempt has ended in this queue in the last hour." in reader.words("/queue", name="default")
    counted_for_long(database)
    first, second = worker(database, label="web-1:7"), worker(database, label="web-1:8")
    for one in (first, second):
        counted = [
            metric(completed=3_300, wait=[3], run=[11] * 40),
            metric(task_name="sync", completed=7, failed=2, retried=1),
            metric(queue="other", task_name="elsewhere", completed=9),
        ]
        database.store.metrics.record(counted, worker_id=one)
    words = reader.words("/queue", name="mail").partition("Tasks in the last hour")[2]
    assert "Waited Ran send 110 6,600 0 0 4 ms 4 ms 1.0 s 1.0 s sync 0.3 14 4 2 – – Waited and Ran show" in words
    assert "elsewhere" not in words
    assert 'href="/tasks?task=sync&amp;queue=mail"' in reader.page.text
    found = reader.get("/api/queue.json?name=mail").json["tasks"]
    assert [(one["task_name"], one["completed"]) for one in found] == [("send", 6_600), ("sync", 14)]
    monkeypatch.setattr(watching, "_TASKS", 1)
    words = reader.words("/queue", name="mail")
    assert "1 more task with fewer attempts is not shown." in words
    assert "sync" not in words


def test_the_page_of_a_worker_has_the_counts_of_that_worker_for_two_minutes(database, reader):
    counted_for_long(database)
    mine, other = worker(database, label="web-1:7"), worker(database, label="web-1:8")
    assert "No attempt has ended in this worker in the last two minutes." in reader.words(f"/workers/{mine}")
    database.store.metrics.record([metric(completed=5), metric(queue="sms", completed=2)], worker_id=mine)
    database.store.metrics.record([metric(completed=700)], worker_id=other)
    words = reader.words(f"/workers/{mine}").partition("Tasks in the last two minutes")[2]
    assert "Ran send mail 2.5 5 0 0 – – send sms 1 2 0 0 – – Waited and Ran show" in words
    assert len(reader.get(f"/api/workers/{mine}.json").json["tasks"]) == 2
