"""Counts up to a bound, and samples of counts above it."""

from __future__ import annotations

import threading
from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.model import EventType, Outcome
from outboxq.model.histograms import AttemptCounts
from outboxq.model.uuid7 import uuid7
from outboxq.store import QueueSample, Store, TaskMetric
from outboxq.worker.upkeep import StatisticsUpkeep
from tests.contract import helpers

HOUR = timedelta(hours=1)


@pytest.fixture
def bounds(monkeypatch):
    """Count up to 5 entries, or 2 by task, and look up 3 delayed ones."""
    for name, number in {"BOUND": 5, "BOUND_BY_TASK": 2, "LOOKED_UP": 3}.items():
        monkeypatch.setattr(f"outboxq.store.numbers.live.{name}", number)


def counted(database):
    """Record counts of a worker, so that the numbers of the window come from workers."""
    one = TaskMetric(id=uuid7(), queue="mail", task_name="send", counts=AttemptCounts(completed=1))
    database.frozen.metrics.record([one], worker_id=uuid4())


def claim_of(database, **fields):
    handle = database.add(**fields)
    [claim] = database.claim(queues=[fields["queue"]])
    assert claim.id == handle.id
    return claim


def wait_again(database, times, **fields):
    """Add tasks that wait for another attempt."""
    for _ in range(times):
        claim = claim_of(database, **fields)
        outcome = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="x", delay=2 * HOUR)
        database.frozen.finish([outcome])


def fail(database, times, **fields):
    for _ in range(times):
        database.frozen.fail(claim_of(database, **fields), "x")


def now(one):
    return one.due, one.due_at_least, one.delayed, one.delayed_at_least, one.retrying, one.retrying_at_least


@pytest.mark.parametrize("key", [None, "k"])
def test_counts_are_exact_up_to_the_bound_and_marked_as_lower_bounds_above(database, bounds, key):
    def add(times, **fields):
        for number in range(times):
            database.add(queue="mail", partition_key=key and f"{key}{number}", **fields)

    add(5)
    add(3, delay=HOUR)
    [exact] = database.frozen.stats()
    assert now(exact) == (5, False, 3, False, 0, False)
    assert exact.sample is None
    add(1)
    add(2, delay=HOUR)
    [more] = database.frozen.stats()
    assert now(more) == (5, True, 5, False, 0, True)
    [whole] = database.frozen.samples.count()
    assert (whole.due, whole.delayed, whole.exact) == (6, 5, True)
    add(1, delay=HOUR)
    assert now(database.frozen.stats(queues=["mail", "none"])[0]) == (5, True, 5, True, 0, True)


def test_counts_of_a_queue_include_all_priorities_and_keys(database, bounds):
    for priority in (-1, 0, 7):
        database.add(queue="mail", priority=priority, available_at=helpers.stale_by(database, 10 + priority))
    database.add(queue="mail", partition_key="k")
    database.add(queue="sms", partition_key="k", available_at=helpers.stale_by(database, 3))
    mail, sms = database.frozen.stats()
    assert (mail.due, mail.oldest_due_age, sms.due) == (4, timedelta(seconds=17), 1)
    assert sms.oldest_due_at == helpers.stale_by(database, 3)


def test_retries_are_counted_only_among_the_tasks_due_next(database, bounds):
    wait_again(database, 2, queue="mail")
    [found] = database.frozen.stats()
    assert now(found) == (0, False, 0, False, 2, False)
    for _ in range(2):
        database.add(queue="mail", delay=HOUR)
    [found] = database.frozen.stats()
    assert now(found) == (0, False, 3, False, 1, True)


def test_counts_by_task_look_up_a_bounded_number_of_tasks(database, bounds):
    for name in ("send", "print"):
        database.add(queue="mail", task_name=name)
    wait_again(database, 1, queue="sms", task_name="text")
    found = {(one.queue, one.task_name): now(one)[:3] for one in database.frozen.stats(by="task")}
    assert found == {("mail", "print"): (1, False, 0), ("mail", "send"): (1, False, 0), ("sms", "text"): (0, False, 0)}
    assert database.frozen.stats(by="task", queues=["sms"])[0].retrying == 1
    database.add(queue="mail", task_name="send")
    assert all(one.due_at_least for one in database.frozen.stats(by="task", queues=["mail"]))


def test_retries_by_task_beyond_the_bound_are_marked(database, bounds):
    wait_again(database, 3, queue="mail", task_name="send")
    [found] = database.frozen.stats(by="task")
    assert (found.retrying, found.retrying_at_least, found.delayed_at_least) == (2, True, True)


def test_dead_letters_are_counted_up_to_the_bound(database, bounds):
    fail(database, 5, queue="mail")
    assert [(one.failed, one.failed_at_least) for one in database.frozen.stats()] == [(5, False)]
    fail(database, 1, queue="sms")
    assert all(one.failed_at_least for one in database.frozen.stats())
    assert sum(one.failed for one in database.frozen.stats()) == 6


def test_a_queue_whose_dead_letters_were_not_all_counted_is_marked(database, bounds):
    counted(database)
    fail(database, 6, queue="mail")
    fail(database, 1, queue="sms")
    database.add(queue="web")
    found = {one.queue: one for one in database.frozen.stats()}
    assert all(found[queue].failed_at_least for queue in ("mail", "web"))
    [none] = database.frozen.stats(queues=["none"])
    assert (none.failed, none.failed_at_least) == (0, True)
    database.frozen.samples.record(database.frozen.samples.count())
    found = {one.queue: one for one in database.frozen.stats()}
    assert (found["sms"].failed_at_least, found["sms"].sample.failed) == (True, 1), "the number comes from the sample"
    [sms] = database.frozen.stats(queues=["sms"])
    assert (sms.failed_at_least, sms.sample.failed) == (True, 1)


def test_counts_above_the_bound_include_the_last_sample_and_its_age(database, bounds):
    counted(database)
    for _ in range(8):
        database.add(queue="mail")
    [none] = database.frozen.stats()
    assert (none.sample, none.sample_age) == (None, None)
    database.frozen.samples.record(database.frozen.samples.count())
    database.clock.advance(40)
    [found] = database.frozen.stats()
    assert (found.due, found.due_at_least, found.sample.due) == (5, True, 8)
    assert found.sample_age == timedelta(seconds=40)
    while claims := database.claim(10):
        database.frozen.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])
    assert database.frozen.stats()[0].sample is None, "the count is exact again"


# Samples


def test_a_sample_counts_every_state_of_each_queue(database):
    oldest = helpers.stale_by(database, 5)
    database.add(queue="mail", available_at=oldest)
    database.add(queue="mail", delay=HOUR)
    wait_again(database, 1, queue="mail", priority=50)
    fail(database, 2, queue="sms")
    claim_of(database, queue="web")
    for look in (database.frozen.samples.look, database.frozen.samples.count):
        database.frozen.samples.record(look())
        assert database.frozen.samples.latest() == {
            "mail": QueueSample(
                queue="mail",
                due=1,
                delayed=2,
                oldest_due_at=oldest,
                at=database.clock.now,
            ),
            "sms": QueueSample(queue="sms", failed=2, at=database.clock.now),
            "web": QueueSample(queue="web", running=1, at=database.clock.now),
        }
        database.clock.advance(1)


def test_a_queue_that_became_empty_gets_one_more_row(database):
    database.add(queue="mail")
    samples = database.frozen.samples
    samples.record(samples.look())
    database.frozen.complete(database.claim(1)[0])
    for expected in ({"mail": 0}, {"mail": 0}):
        database.clock.advance(15)
        samples.record(samples.look())
        assert {queue: one.due for queue, one in samples.latest().items()} == expected
    assert len(database.rows("SELECT at FROM queue_samples")) == 2


def test_a_sample_is_marked_if_it_reached_the_bound(database, bounds):
    for number in range(6):
        assert all(one.exact for one in database.frozen.samples.look())
        database.add(
            queue="mail", partition_key=f"k{number % 2}" if number % 2 else None, delay=timedelta(seconds=number)
        )
    database.clock.advance(HOUR)
    assert [(one.queue, one.exact) for one in database.frozen.samples.look()] == [("mail", False)]
    assert [(one.due, one.exact) for one in database.frozen.samples.count()] == [(6, True)]


def test_one_sample_an_hour_is_kept_after_two_days_and_none_after_90(database):
    database.add(queue="mail")
    for _ in range(12):
        database.frozen.samples.record(database.frozen.samples.look())
        database.clock.advance(600)
    database.frozen.samples.thin_out()
    assert len(database.rows("SELECT at FROM queue_samples")) == 12
    for _ in range(2):
        database.clock.advance(timedelta(hours=24))
        database.frozen.samples.thin_out()
    hours = sorted(str(at)[:13] for (at,) in database.rows("SELECT at FROM queue_samples"))
    assert len(hours) == len(set(hours)) == 2
    database.clock.advance(timedelta(days=91))
    database.frozen.samples.thin_out()
    assert database.rows("SELECT at FROM queue_samples") == []


def test_samples_from_before_a_long_outage_are_also_thinned_out(database):
    database.add(queue="mail")
    mine = Store(database.engine, clock=database.clock).samples
    for _ in range(2):
        for _ in range(3):
            mine.record(mine.look())
            database.clock.advance(60)
        mine.thin_out()
        database.clock.advance(timedelta(days=5))
    assert len(database.rows("SELECT at FROM queue_samples")) == 4
    Store(database.engine, clock=database.clock).samples.thin_out()  # as another process would
    assert len(database.rows("SELECT at FROM queue_samples")) == 2


def test_a_queue_that_filled_later_in_the_hour_does_not_hide_the_others(database):
    """A sample has a row for each queue, so it is kept or deleted as a whole."""
    since = database.clock.now
    samples = database.frozen.samples
    for _ in range(5):
        database.add(queue="mail")
    samples.record(samples.look())
    database.clock.advance(1800)
    database.add(queue="sms")
    samples.record(samples.look())
    database.clock.advance(timedelta(hours=49))
    samples.thin_out()
    [all_queues] = samples.series(since=since, until=since + HOUR, step=HOUR)
    [mail] = samples.series(since=since, until=since + HOUR, step=HOUR, queue="mail")
    assert (all_queues.due, mail.due) == (5, 5)


# Only one worker takes samples


def upkeep(store, clock=None):
    made = StatisticsUpkeep(store, threading.Event())
    made.clock = clock or made.clock
    return made


def test_only_one_worker_takes_a_sample_and_is_replaced_when_it_dies(database):
    database.add(queue="mail")
    mine, other = (database.own_store() for _ in range(2))
    for store in (mine, other):
        store.clock = database.clock
    for store in (mine, other, mine):
        upkeep(store, clock=lambda: 0.0).run_once()  # a slow sample would delay the next one
    assert len(database.rows("SELECT at FROM queue_samples")) == 1
    database.clock.advance(16)
    assert other.maintenance_jobs.take("sample", for_at_most=timedelta(minutes=5)).is_mine
    upkeep(mine).run_once()  # the other worker has the job and dies
    assert len(database.rows("SELECT at FROM queue_samples")) == 1
    database.clock.advance(301)
    upkeep(mine).run_once()
    assert len(database.rows("SELECT at FROM queue_samples")) == 2


def test_only_one_of_several_simultaneous_stores_gets_a_job(database):
    stores = [database.own_store() for _ in range(4)]
    for store in stores:
        store.clock = database.clock
    for _ in range(3):
        turns = helpers.at_once(*(lambda s=s: s.maintenance_jobs.take("sample", for_at_most=HOUR) for s in stores))
        assert [turn.is_mine for turn in turns].count(True) == 1, turns
        database.clock.advance(HOUR)


def test_a_worker_that_stops_during_a_sample_writes_neither_it_nor_sums(database, monkeypatch):
    """Its connections are closed, and its thread may be the last one in the process."""
    database.add(queue="mail")
    counted(database)
    database.clock.advance(HOUR)
    gone = threading.Event()
    store = Store(database.engine, clock=database.clock, gone=gone)
    monkeypatch.setattr(store.samples, "look", lambda: gone.set() or database.frozen.samples.look())
    upkeep(store).run_once()
    assert gone.is_set()
    assert database.rows("SELECT at FROM queue_samples") == []
    assert store.metrics.sum_up() == 0
    assert database.rows("SELECT seconds FROM task_metrics") == [(10,)]


def test_samples_take_at_most_one_percent_of_the_time(database, bounds, monkeypatch):
    for _ in range(6):
        database.add(queue="mail")
    store = database.own_store()
    store.clock = database.clock
    seconds = iter([0.0, *(float(n) for n in range(0, 1000, 3))])
    taken = upkeep(store, clock=lambda: next(seconds))
    taken.run_once()
    [(due,)] = database.rows("SELECT due_at FROM maintenance_jobs WHERE name = 'sample'")
    moment = due if not isinstance(due, str) else type(database.clock.now).fromisoformat(due)
    assert moment - database.clock.now == timedelta(seconds=300), (
        "the count took 3 s, so the next one comes after 300 s"
    )
    assert [one.exact for one in store.samples.latest().values()] == [True], "all tasks were counted"


def test_a_clock_that_was_set_back_does_not_stop_a_job(database):
    jobs = database.frozen.maintenance_jobs
    assert jobs.take("sample", for_at_most=HOUR).is_mine
    jobs.done("sample", again_in=timedelta(seconds=15))
    assert not jobs.take("sample", for_at_most=HOUR).is_mine
    database.clock.advance(timedelta(hours=-5))
    assert jobs.take("sample", for_at_most=HOUR).is_mine


def test_a_sample_from_the_future_is_not_the_latest_one(database):
    samples = database.frozen.samples
    database.add(queue="mail")
    samples.record(samples.look())
    database.clock.advance(timedelta(hours=-1))
    assert samples.latest() == {}
    database.add(queue="mail")
    samples.record(samples.look())
    assert samples.latest()["mail"].at == database.clock.now
