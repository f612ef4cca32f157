"""The statistics of queues, compared with counts by hand. test_metrics.py tests the counts of workers."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.errors import InvalidArgument
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Reason, Statistics
from tests.contract import helpers

HOUR = timedelta(hours=1)
TICK = timedelta(microseconds=1)


def end(database, event_type=EventType.COMPLETED, *, waits=0.0, takes=0.0, **fields):
    """Run a task that starts after `waits` seconds and ends `takes` seconds later."""
    handle = database.add(**fields)
    database.clock.advance(waits)
    (claim,) = database.claim(queues=[fields.get("queue", "default")])
    assert claim.id == handle.id
    database.clock.advance(takes)
    ready = event_type in {EventType.RETRY_SCHEDULED, EventType.SNOOZED}
    outcome = Outcome(claim=claim, event_type=event_type, delay=HOUR if ready else timedelta(0))
    assert database.frozen.finish([outcome]) == frozenset()
    return handle.id


def one(database, **options):
    (found,) = database.frozen.stats(**options)
    return found


def test_statistics_without_tasks_are_empty(database):
    assert database.frozen.stats() == []
    assert database.frozen.stats(by="task") == []
    assert database.frozen.stats(queues=["mail"]) == [Statistics(queue="mail")]


def test_current_counts_equal_the_counts_by_hand(database):
    for number in range(3):
        database.add(queue="a", available_at=helpers.stale_by(database, 10 - number))
    database.add(queue="a", delay=HOUR)
    database.add(queue="b", delay=TICK)
    for kind in (EventType.COMPLETED, EventType.COMPLETED, EventType.FAILED):
        end(database, kind, queue="c")
    for number in range(3):
        database.add(queue="c")
        (claim,) = database.claim(queues=["c"])
        if number == 2:
            database.frozen.cancel(claim.id, force=True)
    assert database.frozen.stats() == [
        Statistics(
            queue="a",
            due=3,
            delayed=1,
            oldest_due_at=helpers.stale_by(database, 10),
            oldest_due_age=timedelta(seconds=10),
        ),
        Statistics(queue="b", delayed=1),
        Statistics(
            queue="c",
            running=2,
            failed=1,
        ),
    ]


def test_statistics_by_task_have_a_line_per_task_and_queue(database):
    for queue in ("a", "b"):
        end(database, queue=queue, task_name="send", takes=1)
        end(database, EventType.FAILED, queue=queue, task_name="print")
        database.add(queue=queue, task_name="send")
        database.claim(queues=[queue])
        database.add(queue=queue, task_name="send")
        database.add(queue=queue, task_name="print", delay=HOUR)
    lines = database.frozen.stats(by="task")
    assert [(line.queue, line.task_name) for line in lines] == [
        ("a", "print"),
        ("a", "send"),
        ("b", "print"),
        ("b", "send"),
    ]
    for line in lines:
        seen = (line.due, line.delayed, line.running, line.failed)
        assert seen == ((0, 1, 0, 1) if line.task_name == "print" else (1, 0, 1, 0))
    assert [line.queue for line in database.frozen.stats(by="task", queues=["b", "none"])] == ["b", "b"]
    assert [line.queue for line in database.frozen.stats(queues=["none", "a"])] == ["a", "none"]


def test_a_redriven_dead_letter_is_counted_as_due(database):
    task_id = end(database, EventType.FAILED)
    database.frozen.redrive(task_id)
    assert (one(database).failed, one(database).due) == (0, 1)


def test_a_worker_that_died_while_the_clock_was_fast_is_not_live(database):
    task = database.add()
    gone, alive = uuid4(), uuid4()
    for one in (gone, alive):
        database.frozen.workers.register(one, label="host:7", concurrency=1, task_names=["tests.work"])
    database.clock.advance(timedelta(days=30))
    for one in (gone, alive):
        database.frozen.workers.seen(one)
    database.clock.advance(-timedelta(days=30))
    database.frozen.workers.seen(alive)
    assert [one.id for one in database.frozen.workers.list()] == [alive]
    database.frozen.workers.unregister(alive)
    assert [queue.live_workers for queue in database.frozen.stats()] == [0]
    assert database.frozen.explain(task.id).reason is Reason.NO_WORKER


def test_live_workers_are_those_that_serve_queue_and_task(database):
    database.add(queue="mail", task_name="send")
    database.add(queue="mail", task_name="print")
    said = {"label": "x", "concurrency": 1, "task_names": ["send"]}
    database.frozen.workers.register(uuid4(), queues=["mail"], **said)
    database.clock.advance(91)
    database.frozen.workers.register(uuid4(), queues=["mail"], **said)
    database.frozen.workers.register(uuid4(), queues=["other"], **said)
    database.frozen.workers.register(uuid4(), **said)
    assert one(database).live_workers == 2
    assert [(line.task_name, line.live_workers) for line in database.frozen.stats(by="task")] == [
        ("print", 0),
        ("send", 2),
    ]


def test_a_paused_queue_is_listed_even_without_tasks(database):
    database.frozen.queues.pause("mail", create=True)
    database.add(queue="sms")
    assert [(line.queue, line.paused) for line in database.frozen.stats()] == [("mail", True), ("sms", False)]
    assert [line.queue for line in database.frozen.stats(queues=["sms"])] == ["sms"]
    database.add(queue="mail", task_name="send")
    assert [line.paused for line in database.frozen.stats(by="task")] == [True, False]


def test_retrying_tasks_are_distinguished_from_delayed_ones(database):
    for delay in (HOUR, timedelta(0)):
        database.add(queue="mail", task_name="send")
        (claim,) = database.claim(queues=["mail"])
        retry = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="x", delay=delay)
        database.frozen.finish([retry])
    database.add(queue="mail", delay=HOUR)
    database.add(queue="sms", delay=HOUR)
    by_queue = {line.queue: (line.due, line.delayed, line.retrying) for line in database.frozen.stats()}
    assert by_queue == {"mail": (1, 1, 1), "sms": (0, 1, 0)}
    by_task = {line.task_name: line.retrying for line in database.frozen.stats(queues=["mail"], by="task")}
    assert by_task == {"send": 1, "tests.work": 0}


def test_statistics_include_the_limits_of_a_queue(database):
    database.frozen.queues.limit("mail", concurrency=1, rate=(5, timedelta(minutes=1)), create=True)
    database.add(queue="mail")
    database.add(queue="sms")
    assert [(line.concurrency, line.rate) for line in database.frozen.stats()] == [
        (1, (5, timedelta(minutes=1))),
        (None, None),
    ]


def test_statistics_include_uncommitted_tasks_of_the_caller(database):
    with helpers.transaction(database) as connection:
        task = NewTask(id=uuid7(), task_name="tests.work", args="{}")
        database.frozen.enqueue(task, using=connection)
        assert [line.due for line in database.frozen.stats(using=connection)] == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"window": -1},
        {"window": "1h"},
        {"window": timedelta.max},
        {"by": "worker"},
        {"queues": "mail"},
        {"queues": []},
    ],
)
def test_invalid_arguments_are_refused(database, wrong):
    with pytest.raises(InvalidArgument):
        database.frozen.stats(**wrong)
