"""Workers' counts are written once, and summing up spans does not change the totals."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from outboxq import Outbox, RetryPolicy
from outboxq.errors import InvalidArgument
from outboxq.model import EventType, Outcome
from outboxq.model.histograms import BOUNDS, BUCKETS, COUNTS, SECONDS, AttemptCounts
from outboxq.model.uuid7 import uuid7
from outboxq.store import Percentiles, Rule, Store, TaskMetric
from outboxq.store.numbers.metrics import RUN, SUM_UP, WAIT, percentile
from outboxq.worker.meter import Meter
from outboxq.worker.upkeep import MetricsWriter
from tests.contract import helpers
from tests.examples import STEADY
from tests.waiting import until

NUMBERS = (*COUNTS, *SECONDS, *WAIT, *RUN)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def metric(queue="mail", task_name="send", *, wait=(), run=(), **numbers):
    """A metric. Each element of `wait` and `run` is the bucket of one attempt."""
    histograms = {
        name: [buckets.count(one) for one in range(BUCKETS)] for name, buckets in (("wait", wait), ("run", run))
    }
    return TaskMetric(id=uuid7(), queue=queue, task_name=task_name, counts=AttemptCounts(**histograms, **numbers))


def sums(database):
    """All counts, by queue and task."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for queue, task, *numbers in database.rows(f"SELECT queue, task_name, {', '.join(NUMBERS)} FROM task_metrics"):
        found.setdefault((queue, task), Counter()).update(dict(zip(NUMBERS, numbers, strict=True)))
    return {key: {name: pytest.approx(number) for name, number in one.items() if number} for key, one in found.items()}


def spans(database):
    return Counter(seconds for (seconds,) in database.rows("SELECT seconds FROM task_metrics"))


def ended(meter, *, queue="mail", times=1, kind=EventType.COMPLETED, database):
    """Count ends of a task that is not in the database."""
    claim = helpers.claimed(database, queue=queue, task_name="send")
    outcomes = [Outcome(claim=claim, event_type=kind)] * times
    meter.ended(outcomes, [(0.5, 0.25)] * len(outcomes))


@pytest.fixture
def meter():
    return Meter()


@pytest.fixture
def writer(database, meter):
    return MetricsWriter(database.frozen, meter, uuid4())


# Writing


def test_a_worker_writes_its_counts_when_it_stops(database):
    outbox = Outbox(database.engine)

    @outbox.task(name="fine")
    def fine() -> None: ...

    @outbox.task(name="bad", queue="other", retry=RetryPolicy(max_attempts=2, wait=0))
    def bad() -> None:
        raise ValueError

    fine.using(outbox).enqueue_many([()] * 5)
    bad.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05)
    worker.start(burst=True)
    until(lambda: not worker._parts.claim_loop.is_alive())
    assert database.rows("SELECT id FROM task_metrics") == []
    worker.stop()
    written = until(lambda: sums(database))
    assert written["default", "fine"]["completed"] == 5
    assert {name: written["other", "bad"][name] for name in ("retried", "failed")} == {"retried": 1, "failed": 1}
    default, other = outbox.store.stats()
    assert default.by_workers
    assert (default.completed, default.failures) == (5, 0)
    assert 5 / 60 < default.throughput <= 5 / 10, "the worker has been counting for some seconds, not for an hour"
    assert (other.completed, other.failures, other.retries, other.failure_rate, other.failed) == (0, 1, 1, 1.0, 1)
    assert default.wait.p50 <= default.wait.p95 < MINUTE
    assert timedelta(0) < default.run.p99 < MINUTE
    named = {(one.queue, one.task_name): one.completed for one in outbox.store.stats(by="task")}
    assert named == {("default", "fine"): 5, ("other", "bad"): 0}


@contextmanager
def writes_blocked(database):
    """Keep other connections from writing counts until the block ends."""
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if database.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("BEGIN")
            connection.exec_driver_sql("LOCK TABLE task_metrics IN ACCESS EXCLUSIVE MODE")
        try:
            yield
        finally:
            connection.exec_driver_sql("ROLLBACK")


def test_a_worker_that_stops_waits_until_its_last_counts_are_written(database):
    """The write is blocked for longer than the other services have for stopping."""
    outbox = Outbox(database.engine)

    @outbox.task(name="send")
    def send() -> None: ...

    send.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05, drain_timeout=60)
    worker.start()
    until(lambda: sum(one.completed for one in worker.meter.read().values()) == 1)
    stopping = threading.Thread(target=worker.stop)
    with writes_blocked(database):
        stopping.start()
        until(worker._stopped.is_set)
        stopping.join(1.0)
        assert stopping.is_alive()
    stopping.join(60)
    assert sums(database)["default", "send"]["completed"] == 1


def test_each_write_contains_the_counts_since_the_last_write(database, writer, meter):
    ended(meter, times=3, database=database)
    writer.run_once()
    writer.run_once()
    assert spans(database) == {10: 1}
    ended(meter, times=2, database=database)
    ended(meter, queue="web", database=database, kind=EventType.FAILED)
    writer.run_once()
    assert spans(database) == {10: 3}
    bucket = {f"wait_{bisect_left(BOUNDS, 0.5)}", f"run_{bisect_left(BOUNDS, 0.25)}"}
    assert sums(database) == {
        ("mail", "send"): {"completed": 5, "wait_seconds": 2.5, "run_seconds": 1.25, **dict.fromkeys(bucket, 5)},
        ("web", "send"): {"failed": 1, "wait_seconds": 0.5, "run_seconds": 0.25, **dict.fromkeys(bucket, 1)},
    }


@pytest.mark.in_turn
@pytest.mark.parametrize("written", [True, False], ids=["the answer was lost", "nothing was written"])
def test_the_counts_of_a_failed_write_are_written_once(database, writer, meter, monkeypatch, written):
    """After an error, it is uncertain whether the rows were written."""
    record, calls = database.frozen.metrics.record, []

    def unsure(metrics, **options):
        calls.extend([metrics] if metrics else [])
        if written or len(calls) > 2:
            record(metrics, **options)
        if metrics and len(calls) <= 2:
            raise OperationalError("INSERT", {}, Exception("the connection was lost"))

    monkeypatch.setattr(database.frozen.metrics, "record", unsure)
    for _ in range(2):
        ended(meter, times=2, database=database)
        with pytest.raises(OperationalError):
            writer.run_once()
    ended(meter, database=database)
    for _ in range(2):
        writer.run_once()
    assert sums(database)["mail", "send"]["completed"] == meter.read()["mail", "send"].completed == 5


def test_a_row_that_is_sent_twice_is_written_once(database):
    one, worker = metric(completed=1), uuid4()
    for batch in ([one], [one, metric(completed=2)], [one]):
        database.frozen.metrics.record(batch, worker_id=worker)
    assert sums(database)["mail", "send"] == {"completed": 3}


# Summing up


def put(database, seconds_ago, **numbers):
    """Write a metric from this many seconds ago."""
    then = Store(database.engine, clock=lambda: database.clock.now - timedelta(seconds=seconds_ago - 10))
    then.metrics.record([metric(**numbers)], worker_id=uuid4())


def test_older_counts_are_summed_up_over_longer_spans(database):
    quarters = (9 * 3600 - 60 * 5, 9 * 3600 - 60 * 9, 9 * 3600 - 60 * 12)  # minutes of one quarter-hour
    fives = (3 * 3600 - 60, 3 * 3600 - 200)
    for ago in (10, 110, 661, 665, *fives, *quarters, 2 * 86400 + 3700, 2 * 86400 + 3705):
        put(database, ago, completed=1, wait_seconds=0.5, wait=[3], run=[0, 1])
    before = sums(database)
    database.frozen.metrics.sum_up()
    assert spans(database) == {10: 2, 60: 1, 300: 1, 900: 1, 3600: 1}
    assert sums(database) == before
    assert database.frozen.metrics.sum_up() == 0
    moments = [
        datetime.fromisoformat(str(at)).astimezone(UTC) for (at,) in database.rows("SELECT at FROM task_metrics")
    ]
    assert sum(at.second == 0 and at.microsecond == 0 for at in moments) >= 2
    workers = [worker for (worker,) in database.rows("SELECT worker_id FROM task_metrics WHERE seconds > 10")]
    assert workers == [None] * 4
    database.clock.advance(timedelta(days=89))
    database.frozen.metrics.sum_up()
    assert spans(database) == {3600: 3}
    assert sums(database)["mail", "send"]["completed"] == 9, "counts older than 90 days are deleted"
    database.clock.advance(timedelta(days=2))
    database.frozen.metrics.sum_up()
    assert spans(database) == {}


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["send", "print"]),
        st.integers(0, 3 * 86400),
        st.integers(0, 5),
        st.integers(0, BUCKETS - 1),
    ),
    max_size=20,
)


@settings(STEADY, max_examples=25)
@given(rows=ROWS, steps=st.lists(st.integers(1, 2 * 86400), max_size=3))
def test_summing_up_keeps_the_totals(database, rows, steps):
    database.run("DELETE FROM task_metrics")
    database.run("DELETE FROM maintenance_jobs")
    for queue, task, ago, number, bucket in rows:
        put(database, ago, queue=queue, task_name=task, completed=number, lost=1, run_seconds=0.25, run=[bucket])
    before, most = sums(database), len(rows)
    for step in [0, *steps]:
        database.clock.advance(step)
        database.frozen.metrics.sum_up()
        assert sums(database) == before
        assert sum(spans(database).values()) <= most
        most = sum(spans(database).values())


def test_simultaneous_sum_ups_count_nothing_twice(database):
    for number in range(40):
        put(database, 700 + 7 * number, completed=1)
    before = sums(database)
    stores = [database.own_store() for _ in range(2)]
    for store in stores:
        store.clock = database.clock
    helpers.at_once(*(store.metrics.sum_up for store in stores), *(store.metrics.sum_up for store in stores))
    database.frozen.metrics.sum_up()
    assert sums(database) == before
    assert set(spans(database)) == {60}


def test_counts_of_an_interrupted_sum_up_are_summed_up_again(database):
    for number in range(4):
        put(database, 700 + number, completed=1)
    before, metrics = sums(database), database.frozen.metrics
    database.frozen.maintenance_jobs.make(SUM_UP)
    begin = (database.clock.now - timedelta(seconds=703)).replace(second=0, microsecond=0)
    with helpers.transaction(database) as connection:
        assert metrics._sum_up_one(begin, MINUTE, using=connection)
        if database.name == "postgresql":  # SQLite allows only one writer
            assert metrics.sum_up() == 0, "another session has the job"
        connection.invalidate()
    assert sums(database) == before
    assert set(spans(database)) == {10}
    until(metrics.sum_up)  # the server takes a moment to notice the lost connection
    assert sums(database) == before
    assert set(spans(database)) == {60}


# Reading


def test_only_counts_in_the_window_are_shown(database):
    for ago in (5, 59, 3600, 3615, 7000):
        put(database, ago, completed=1)
    seen = {minutes: database.frozen.stats(window=timedelta(minutes=minutes))[0].completed for minutes in (1, 60, 120)}
    assert seen == {1: 2, 60: 3, 120: 5}


@pytest.mark.parametrize("minutes", [3, 5, 60])
def test_a_window_that_begins_in_a_rolled_up_span_is_not_shortened(database, minutes):
    """One attempt ends every ten seconds. Each start of the window within a minute must give about the same count."""
    window, found = timedelta(minutes=minutes), []
    for ago in range(10, 60 * (minutes + 4), 10):
        put(database, ago, completed=1)
    database.frozen.metrics.sum_up()
    for _ in range(6):
        found.append(database.frozen.stats(window=window)[0].completed)
        found.append(database.frozen.metrics.by_task("mail", window=window)[0].completed)
        database.clock.advance(10)
        put(database, 10, completed=1)
    expected = 6 * minutes
    assert sum(found) / len(found) == pytest.approx(expected, abs=1)
    assert max(found) - expected <= 4
    assert expected - min(found) <= 4


def test_counts_from_before_the_clock_was_set_back_are_not_in_the_window(database):
    worker = uuid4()
    for ago in (20, -1800):
        then = Store(database.engine, clock=lambda ago=ago: database.clock.now - timedelta(seconds=ago))
        then.metrics.record([metric(completed=50, retried=60)], worker_id=worker)
    [found] = database.frozen.stats(window=60)
    [of_task], [of_worker] = database.frozen.metrics.by_task("mail"), database.frozen.metrics.of_worker(worker)
    assert (found.completed, of_task.completed, of_worker.completed) == (50, 50, 50)
    [storm] = [one for one in database.frozen.health() if one.rule is Rule.RETRY_STORM]
    assert storm.tasks == 60


def test_stats_report_since_when_workers_have_counted(database):
    put(database, 600, completed=1)
    [hour] = database.frozen.stats()
    assert hour.counted_since == database.clock.now - timedelta(minutes=10)
    assert hour.throughput == database.frozen.metrics.by_task("mail")[0].throughput == 1 / 600
    [hour] = database.frozen.stats(window=600, queues=["mail"])
    assert (hour.counted_since, hour.completed, hour.by_workers) == (None, 1, True)


def test_stats_are_0_and_marked_as_uncounted_if_no_worker_has_counted_in_the_window(database):
    put(database, 2 * 3600, completed=7)
    database.frozen.complete(helpers.claimed(database, queue="mail"))
    helpers.claimed(database, queue="mail")
    for [found] in (database.frozen.stats(), database.frozen.stats(by="task")):
        assert (found.by_workers, found.running, found.completed, found.counted_since) == (False, 1, 0, None)
        assert (found.wait, found.failure_rate, found.throughput) == (None, None, 0.0)


def test_a_timeout_counts_as_the_failure_or_retry_after_it(database):
    put(database, 20, completed=1, failed=2, retried=4, timed_out=5, timed_out_last=3, lost=1, released=6, snoozed=7)
    [found] = database.frozen.stats()
    assert (found.failures, found.retries, found.timed_out) == (5, 6, 5)
    assert (found.lost, found.released, found.snoozed) == (1, 6, 7)
    assert found.failure_rate == 5 / 6


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([1.0], [1, 1, 1]),
        ([0.0], [0, 0, 0]),
        ([0.0003, *[0.0007] * 98, 0.001], [0.000695, 0.000965, 0.00099]),  # the mean is 0.000699
        ([1.0] * 100, [1, 1 + 0.024 * 0.89, 1 + 0.024 * 0.97]),
        ([number / 100 for number in range(52, 102)], [0.76, 0.99, 1.01]),  # an even spread
        ([4.0, 40.0], [2.588, 41.412, 41.412]),
        ([3600.0], [3600, 3600, 3600]),
        ([9000.0], [3600, 3600, 3600]),
    ],
)
def test_percentiles_agree_with_the_bucket_of_their_rank_and_with_the_sum(durations, expected):
    histogram = [0] * BUCKETS
    for one in durations:
        histogram[bisect_left(BOUNDS, one)] += 1
    found = [percentile(histogram, percent, sum(durations)).total_seconds() for percent in (50, 95, 99)]
    assert found == pytest.approx(expected, rel=0.01, abs=1e-5)


@pytest.mark.parametrize("seconds", [-1e300, 0.0, 1e300, float("inf"), float("nan")])
def test_percentiles_stay_within_their_bucket_if_the_sum_is_wrong(seconds):
    histogram = [0, 7, *[0] * (BUCKETS - 2)]
    found = [percentile(histogram, percent, seconds).total_seconds() for percent in (1, 50, 99)]
    assert all(0.001 <= one <= 0.002 for one in found)


def test_percentiles_include_all_workers_and_tasks_of_a_queue(database):
    for bucket in (0, 0, 10):
        sums = dict.fromkeys(("wait_seconds", "run_seconds"), 0.0009 if bucket == 0 else 0.75)
        put(database, 20, completed=1, task_name=f"t{bucket}", wait=[bucket], run=[bucket], **sums)
    [found] = database.frozen.stats()
    assert found.wait == found.run
    assert isinstance(found.wait, Percentiles)
    assert found.wait.p50 <= timedelta(milliseconds=1) < timedelta(milliseconds=512) <= found.wait.p95
    assert database.frozen.stats(by="task")[1].run.p99 == timedelta(seconds=0.75)
    until = database.clock.now
    [step] = database.frozen.metrics.series(since=until - MINUTE, until=until, step=MINUTE)
    assert (step.wait, step.run) == (found.wait, found.run)
    assert percentile([0] * BUCKETS, 50, 0.0) is None


# By task


def later_by(database, span):
    return Store(database.engine, clock=lambda: database.clock.now + span)


def test_the_counts_of_a_queue_are_given_by_task(database):
    workers = uuid4(), uuid4()
    for worker in workers:
        counted = [
            metric(completed=30, failed=6, retried=4, run=[10] * 30),
            metric(task_name="sync", completed=90),
            metric(queue="other", task_name="send", completed=500),
        ]
        database.frozen.metrics.record(counted, worker_id=worker)
    put(database, 3605, queue="other", completed=1)
    first, second = database.frozen.metrics.by_task("mail")
    assert (first.task_name, first.completed, first.throughput) == ("sync", 180, 180 / 3600)
    assert (second.completed, second.failures, second.retries, second.window) == (60, 12, 8, HOUR)
    assert second.throughput == 72 / 3600
    assert second.run is not None
    assert (first.run, first.wait) == (None, None)
    assert later_by(database, 2 * HOUR).metrics.by_task("mail") == []


@pytest.mark.parametrize("window", [0, -1, "1h", timedelta.max])
def test_a_window_without_any_time_is_refused(database, window):
    put(database, 5, completed=1)
    with pytest.raises(InvalidArgument):
        database.frozen.metrics.by_task("mail", window=window)


def test_the_counts_of_a_worker_cover_the_last_two_minutes(database):
    mine, other = uuid4(), uuid4()
    for worker, number in ((mine, 5), (other, 7)):
        database.frozen.metrics.record([metric(completed=number)], worker_id=worker)
    [found] = database.frozen.metrics.of_worker(mine)
    assert (found.queue, found.task_name, found.completed, found.window) == ("mail", "send", 5, 2 * MINUTE)
    database.frozen.metrics.sum_up()
    assert database.frozen.metrics.of_worker(mine) == [found], "recent counts of different workers are not added up"
    assert later_by(database, 3 * MINUTE).metrics.of_worker(str(mine)) == []
