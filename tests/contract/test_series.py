"""Series for charts have one point per step, with its counts and samples."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.errors import InvalidArgument
from outboxq.model import EventType, OnDeadLetter, Outcome
from outboxq.model.histograms import BUCKETS, AttemptCounts
from outboxq.model.uuid7 import uuid7
from outboxq.store import DepthPoint, MetricPoint, QueueSample, TaskMetric

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def counted(database, queue="mail", task_name="send", bucket=5, **numbers):
    """Record a worker's counts of the last ten seconds."""
    histogram = [sum(numbers.values()) if place == bucket else 0 for place in range(BUCKETS)]
    one = TaskMetric(
        id=uuid7(), queue=queue, task_name=task_name, counts=AttemptCounts(wait=histogram, run=histogram, **numbers)
    )
    database.frozen.metrics.record([one], worker_id=uuid4())


def test_each_step_has_the_counts_of_its_time(database):
    since = database.clock.now
    counted(database, completed=1)  # its ten seconds began before `since`
    for seconds, numbers in ((10, {"completed": 2}), (9.9, {"failed": 1}), (50, {"timed_out": 3, "timed_out_last": 1})):
        database.clock.advance(seconds)
        counted(database, **numbers)
    counted(database, queue="other", task_name="check", completed=7, cancelled=1)
    until = since + 3 * MINUTE
    points = database.frozen.metrics.series(since=since, until=until, step=MINUTE)
    assert [point.at for point in points] == [since, since + MINUTE, since + 2 * MINUTE]
    first, second, third = points
    assert (first.completed, first.failed, first.retried, first.cancelled) == (9, 2, 2, 1)
    assert first.run is not None
    assert first.wait.p50 <= first.wait.p99
    assert second == third.__class__(at=since + MINUTE, step=MINUTE)
    series = database.frozen.metrics.series
    assert [one.completed for one in series(since=since, until=until, step=MINUTE, queue="mail")] == [2, 0, 0]
    assert [one.completed for one in series(since=since, until=until, step=10, task="check")][4:8] == [0, 7, 0, 0]
    assert series(since=since, until=until, step=MINUTE, queue="none")[0] == MetricPoint(at=since, step=MINUTE)
    database.clock.advance(MINUTE)
    assert len(series(since=since, step=MINUTE)) == 3, "the series ends now"


def test_counts_summed_up_by_minute_stay_in_their_steps(database):
    since = database.clock.now
    for _ in range(6):
        database.clock.advance(30)
        counted(database, completed=1)
    until = since + 4 * MINUTE
    before = database.frozen.metrics.series(since=since, until=until, step=MINUTE)
    database.clock.advance(10 * MINUTE)
    database.frozen.metrics.sum_up()
    assert database.frozen.metrics.series(since=since, until=until, step=MINUTE) == before
    assert sum(one.completed for one in before) == 6


def test_each_step_has_its_last_sample(database):
    since = database.clock.now
    for seconds, samples in (
        (1, [QueueSample(queue="a", due=1, delayed=5), QueueSample(queue="b", due=10, failed=2)]),
        (30, [QueueSample(queue="a", due=2, running=3)]),
        (100, [QueueSample(queue="b", due=20)]),
    ):
        database.clock.advance(seconds)
        database.frozen.samples.record(samples)
    until = since + 3 * MINUTE
    series = database.frozen.samples.series
    # A queue that has become empty gets one row of zeros.
    assert series(since=since, until=until, step=MINUTE) == [
        DepthPoint(at=since, due=2, delayed=0, running=3, failed=0),
        DepthPoint(at=since + MINUTE),
        DepthPoint(at=since + 2 * MINUTE, due=20, delayed=0, running=0, failed=0),
    ]
    points = series(since=since, until=until, step=10, queue="b")
    assert [point.due for point in points[:4]] == [10, None, None, 0]
    assert len(points) == 18
    assert {point.due for point in series(since=since, until=until, step=HOUR, queue="none")} == {0}


@pytest.mark.parametrize(
    "wrong",
    [{"step": 0.5}, {"step": 1, "until": HOUR}, {"until": timedelta(0)}, {"until": -HOUR}, {"queue": "\0"}],
    ids=["short", "many", "nothing", "backwards", "unstorable"],
)
def test_an_invalid_series_is_refused(database, wrong):
    since = database.clock.now
    wanted = {"step": MINUTE, **wrong, "until": since + wrong.get("until", MINUTE)}
    for noun in (database.frozen.metrics, database.frozen.samples):
        with pytest.raises(InvalidArgument):
            noun.series(since=since, **wanted)
        with pytest.raises(InvalidArgument):
            noun.series(since=since.replace(tzinfo=None), step=MINUTE)


def test_trends_contain_both_series(database):
    since = database.clock.now
    for seconds in (10, 45, 100):
        database.clock.advance(seconds)
        counted(database, completed=3, failed=1)
        database.frozen.samples.record(
            [QueueSample(queue="mail", due=seconds, failed=2), QueueSample(queue="other", due=5)]
        )
    span = {"since": since, "until": since + 4 * MINUTE, "step": MINUTE}
    for queue in (None, "mail", "none"):
        both = database.frozen.trends(**span, queue=queue)
        assert both.counts == database.frozen.metrics.series(**span, queue=queue)
        assert both.depths == database.frozen.samples.series(**span, queue=queue)
    assert [one.due for one in database.frozen.trends(**span, queue="mail").depths] == [45, None, 100, None]
    with pytest.raises(InvalidArgument, match="at most 2000 points"):
        database.frozen.trends(**span | {"step": 1, "since": since - 10 * HOUR})


def test_trends_include_the_held_keys_of_the_queue_on_request(database):
    for key in ("a", "b"):
        database.add(queue="mail", partition_key=key, on_dead_letter=OnDeadLetter.HOLD)
        database.add(queue="mail", partition_key=key)
        (claim,) = database.claim(queues=["mail"])
        database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError")])
        database.clock.advance(1)
    span = {"since": database.clock.now - HOUR, "until": database.clock.now, "step": MINUTE}
    held = database.frozen.queues.held_keys("mail")
    assert [one.partition_key for one in held] == ["a", "b"]
    assert database.frozen.trends(**span, queue="mail", held_keys=50).held == held
    assert database.frozen.trends(**span, queue="mail", held_keys=1).held == held[:1]
    assert database.frozen.trends(**span, queue="other", held_keys=50).held == []
    assert database.frozen.trends(**span, queue="mail").held == []


def test_sums_too_large_for_an_integer_column_are_shown_correctly(database):
    since = database.clock.now
    database.frozen.samples.record([QueueSample(queue=str(number), failed=2**62) for number in range(3)])
    (point,) = database.frozen.samples.series(since=since, until=since + MINUTE, step=MINUTE)
    assert point.failed == 3 * 2**62


def test_depths_are_returned_by_queue(database):
    since = database.clock.now
    record = database.frozen.samples.record
    record([QueueSample(queue="mail", due=1), QueueSample(queue="other", due=7)])
    database.clock.advance(30)
    record([QueueSample(queue="mail", due=4)])
    database.clock.advance(100)
    record([QueueSample(queue="mail", due=2)])
    span = {"since": since, "until": since + 4 * MINUTE, "step": MINUTE}
    assert database.frozen.samples.by_queue(**span) == {"mail": [4, None, 2, None], "other": [0, None, 0, None]}


@pytest.mark.parametrize(("most", "expected"), [(3, [None, 1]), (5, [None, 1]), (7, [1, 1])])
def test_a_step_that_was_not_completely_read_is_omitted(database, monkeypatch, most, expected):
    monkeypatch.setattr("outboxq.store.numbers.samples._MOST_ROWS", most)
    names = ("a", "b", "c")
    for _ in range(2):
        database.frozen.samples.record(QueueSample(queue=name, due=1) for name in names)
        database.clock.advance(MINUTE)
    span = {"since": database.clock.now - 2 * MINUTE, "until": database.clock.now, "step": MINUTE}
    assert database.frozen.samples.by_queue(**span) == dict.fromkeys(names, expected)
