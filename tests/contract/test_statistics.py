"""How the queues fare, against counts by hand, to the microsecond."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.errors import InvalidArgument
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Percentiles, Statistics
from tests.contract import helpers

HOUR = timedelta(hours=1)
TICK = timedelta(microseconds=1)


def end(database, event_type=EventType.COMPLETED, *, waits=0.0, takes=0.0, **fields):
    """A task that is started after `waits` seconds and ended after `takes` more."""
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


def test_statistics_of_nothing_are_nothing(database):
    assert database.frozen.stats() == []
    assert database.frozen.stats(by="task") == []
    assert database.frozen.stats(queues=["mail"]) == [Statistics(queue="mail")]


def test_what_is_now_equals_what_was_counted_by_hand(database):
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
    none = Percentiles(p50=timedelta(0), p95=timedelta(0), p99=timedelta(0))
    assert database.frozen.stats() == [
        Statistics(
            queue="a",
            ready=3,
            delayed=1,
            oldest_ready_at=helpers.stale_by(database, 10),
            oldest_ready_age=timedelta(seconds=10),
        ),
        Statistics(queue="b", delayed=1),
        Statistics(
            queue="c",
            running=2,
            failed=1,
            completed=2,
            failures=1,
            cancelled=1,
            throughput=3 / 3600,
            failure_rate=1 / 3,
            emit_to_start=none,
            emit_to_complete=none,
        ),
    ]


def test_a_line_for_each_task_of_each_queue(database):
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
        seen = (line.ready, line.delayed, line.running, line.failed, line.completed, line.failures)
        assert seen == ((0, 1, 0, 1, 0, 1) if line.task_name == "print" else (1, 0, 1, 0, 1, 0))
    assert lines[1].emit_to_complete.p50 == timedelta(seconds=1)
    assert [line.queue for line in database.frozen.stats(by="task", queues=["b", "none"])] == ["b", "b"]
    assert [line.queue for line in database.frozen.stats(queues=["none", "a"])] == ["a", "none"]


def test_the_window_begins_to_the_microsecond(database):
    end(database, takes=0.5)
    ended = database.clock.now
    for window in (HOUR, timedelta(seconds=0.000_001), timedelta(days=400)):
        database.clock.now = ended + window
        assert (one(database, window=window, queues=["default"]).completed) == 1
        database.clock.now += TICK
        assert (one(database, window=window, queues=["default"]).completed) == 0


def test_only_what_happened_in_the_window_counts_and_every_kind_of_it(database):
    for _ in range(2):  # before the window, and in it
        end(database, EventType.FAILED, queue="q")
        end(database, EventType.RETRY_SCHEDULED, queue="q")
        end(database, EventType.CANCELLED, queue="q")
        end(database, EventType.SNOOZED, queue="q", takes=1)
        database.frozen.cancel(database.add(queue="q").id)
        end(database, queue="q")
        left = helpers.claimed(database, queue="q", lease=timedelta(seconds=1))
        database.clock.advance(5)
        database.frozen.recover(max_recoveries=0)
        assert database.frozen.get(left.id).status == "Failed"
        last, found = database.clock.now, one(database)
        database.clock.advance(2 * HOUR)
        for claim in database.claim(10):  # the retried and the snoozed ones
            database.frozen.cancel(claim.id, force=True)
        database.clock.advance(2 * HOUR)
    assert last + 4 * HOUR == database.clock.now
    assert (found.completed, found.failures, found.retries, found.cancelled) == (1, 2, 1, 2)
    assert (found.failed, found.delayed, found.retrying) == (4, 1, 1)
    assert (found.failure_rate, found.throughput) == (2 / 3, 3 / 3600)
    assert one(database, window=5 * HOUR).completed == 1
    assert one(database, window=50 * HOUR).completed == 2


def test_percentiles_are_by_nearest_rank_and_exact(database):
    chance, starts, ends = random.Random(5), [], []
    for number in range(23):
        waits, takes = (timedelta(microseconds=chance.randrange(1, 10**11)) for _ in range(2))
        kind = EventType.FAILED if number % 5 == 0 else EventType.COMPLETED
        end(database, kind, waits=waits, takes=takes)
        end(database, EventType.CANCELLED, takes=90)  # takes no part
        starts.append(waits)
        ends.append(waits + takes)
    found = one(database, window=timedelta(days=365))
    for seen, taken in ((found.emit_to_start, starts), (found.emit_to_complete, ends)):
        ranked = [sorted(taken)[math.ceil(len(taken) * percent / 100) - 1] for percent in (50, 95, 99)]
        assert [seen.p50, seen.p95, seen.p99] == ranked


def test_where_a_percentile_falls_on_a_task_that_task_has_it(database):
    """Half of 20 tasks are the first ten, and 95 in a hundred the first 19."""
    for seconds in range(1, 21):
        end(database, waits=seconds)
    found = one(database, window=HOUR).emit_to_start
    assert (found.p50, found.p95, found.p99) == tuple(timedelta(seconds=seconds) for seconds in (10, 19, 20))


def test_a_delay_is_part_of_the_time_and_a_retry_does_not_start_it_again(database):
    handle = database.add(delay=timedelta(seconds=10))
    database.clock.advance(12.25)
    (claim,) = database.claim()
    database.clock.advance(3)
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, delay=timedelta(seconds=5))])
    database.clock.advance(5.5)
    (claim,) = database.claim()
    database.frozen.complete(claim)
    assert claim.id == handle.id
    found = one(database)
    assert found.retries == found.completed == 1
    assert found.emit_to_start.p99 == timedelta(seconds=12.25)
    assert found.emit_to_complete.p50 == timedelta(seconds=20.75)


def test_a_dead_letter_redriven_is_counted_by_what_happens_to_it(database):
    task_id = end(database, EventType.FAILED)
    database.frozen.redrive(task_id)
    assert (one(database).failed, one(database).ready, one(database).failures) == (0, 1, 1)
    (claim,) = database.claim()
    database.frozen.complete(claim)
    found = one(database)
    assert (found.failed, found.completed, found.failures, found.failure_rate) == (0, 1, 1, 0.5)


@pytest.mark.parametrize("missing", ["first", "last", "middle", "most"])
def test_the_first_event_of_the_window_is_found_in_a_log_with_gaps(database, missing):
    """The log is searched by halves; what retention took away must not mislead it."""
    tasks = []
    for _ in range(40):
        tasks.append((end(database), database.clock.now))
        database.clock.advance(60)
    chosen = {"first": tasks[:9], "last": tasks[31:], "middle": tasks[10:30], "most": tasks[:20] + tasks[21:39]}
    gone = {str(task_id) for task_id, _ in chosen[missing]}
    listed = ", ".join(f"'{name.replace('-', '') if database.name == 'sqlite' else name}'" for name in gone)
    database.run(f"DELETE FROM execution_events WHERE task_execution_id IN ({listed})")
    database.run(f"DELETE FROM task_executions WHERE id IN ({listed})")
    kept = [ended for task_id, ended in tasks if str(task_id) not in gone]
    for minutes in range(0, 44, 3):
        since = database.clock.now - timedelta(minutes=minutes) - TICK
        found = database.frozen.stats(window=timedelta(minutes=minutes) + TICK, queues=["default"])
        assert found[0].completed == sum(ended >= since for ended in kept)


def test_events_numbered_out_of_their_order_in_time_are_not_missed(database):
    """A long statement takes its time first and its numbers last; later ones overtake it."""
    end(database)
    database.clock.advance(119)
    end(database)
    database.clock.advance(-118)
    for _ in range(9):
        end(database)
    database.clock.advance(118)
    assert one(database, window=timedelta(seconds=1)).completed == 1


def test_live_workers_are_those_that_work_on_it(database):
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


def test_a_paused_queue_is_told_even_where_nothing_waits(database):
    database.frozen.queues.pause("mail", create=True)
    database.add(queue="sms")
    assert [(line.queue, line.paused) for line in database.frozen.stats()] == [("mail", True), ("sms", False)]
    assert [line.queue for line in database.frozen.stats(queues=["sms"])] == ["sms"]
    database.add(queue="mail", task_name="send")
    assert [line.paused for line in database.frozen.stats(by="task")] == [True, False]


def test_what_waits_for_another_attempt_is_told_apart_from_what_is_delayed(database):
    for delay in (HOUR, timedelta(0)):
        database.add(queue="mail", task_name="send")
        (claim,) = database.claim(queues=["mail"])
        retry = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="x", delay=delay)
        database.frozen.finish([retry])
    database.add(queue="mail", delay=HOUR)
    database.add(queue="sms", delay=HOUR)
    by_queue = {line.queue: (line.ready, line.delayed, line.retrying) for line in database.frozen.stats()}
    assert by_queue == {"mail": (1, 1, 1), "sms": (0, 1, 0)}
    by_task = {line.task_name: line.retrying for line in database.frozen.stats(queues=["mail"], by="task")}
    assert by_task == {"send": 1, "tests.work": 0}


def test_the_limits_of_a_queue_are_told(database):
    database.frozen.queues.limit("mail", concurrency=1, rate=(5, timedelta(minutes=1)), create=True)
    database.add(queue="mail")
    database.add(queue="sms")
    assert [(line.concurrency, line.rate) for line in database.frozen.stats()] == [
        (1, (5, timedelta(minutes=1))),
        (None, None),
    ]


def test_the_callers_transaction_sees_its_own_tasks(database):
    with helpers.transaction(database) as connection:
        task = NewTask(id=uuid7(), task_name="tests.work", args="{}")
        database.frozen.enqueue(task, using=connection)
        assert [line.ready for line in database.frozen.stats(using=connection)] == [1]


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
def test_what_makes_no_sense_is_refused(database, wrong):
    with pytest.raises(InvalidArgument):
        database.frozen.stats(**wrong)
