"""Ticks of schedules in a test: the clock of the harness makes them, and nothing else does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outboxq import InvalidArgument, Outbox, TaskContext
from outboxq.testing import Harness

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def harness(shop, connection):
    outbox = Outbox()
    with Harness(outbox, using=connection) as harness:
        harness.clock.set(NOON)
        harness.ran = []

        @outbox.task(name="report")
        def report(ctx: TaskContext) -> None:
            harness.ran.append(ctx.tick)

        harness.report = report
        yield harness


def test_advance_runs_each_tick_at_its_time(harness):
    harness.app.periodic("0 2 * * *", tz="Europe/Berlin")(harness.report)
    assert harness.drain() == []
    before = harness.clock()
    ran = harness.advance(3 * DAY)
    assert [one.task_name for one in ran] == ["report"] * 3
    assert [tick.isoformat() for tick in harness.ran] == [f"2030-01-0{day}T02:00:00+01:00" for day in (2, 3, 4)]
    assert harness.clock() == before + 3 * DAY
    started = [task.first_started_at for task in harness.store.tasks()]
    assert sorted(started) == harness.ran


def test_a_schedule_of_the_code_ticks_before_the_moment_at_which_it_was_stored(harness):
    """A test may set a date that has passed, or will have passed when somebody runs it."""
    harness.app.periodic(every=HOUR, name="own", starts_at=NOON)(harness.report)
    harness.app.periodic("0 2 * * *")(harness.report)
    harness.drain()
    harness.clock.set(datetime(2005, 5, 11, 12, tzinfo=UTC))
    assert len(harness.advance(2 * DAY)) == 2
    assert harness.ran == [datetime(2005, 5, day, 2, tzinfo=UTC) for day in (12, 13)]
    harness.clock.set(harness.clock() - DAY)
    assert harness.advance(DAY) == [], "no tick twice"


def test_advance_runs_delayed_tasks_and_ticks_in_their_order(harness, connection):
    harness.app.periodic(every=HOUR)(harness.report)
    harness.drain()

    @harness.app.task(name="later")
    def later() -> None:
        harness.ran.append("later")

    later.using(connection, delay=90 * 60).enqueue()
    harness.advance(2 * HOUR)
    assert harness.ran == [NOON + HOUR, "later", NOON + 2 * HOUR]


def test_a_clock_that_jumps_misses_ticks(harness):
    harness.app.periodic(every=HOUR)(harness.report)
    harness.drain()
    harness.clock.advance(5.5 * HOUR)
    assert len(harness.drain()) == 1
    assert harness.ran == [NOON + 5 * HOUR]


def test_no_tick_comes_by_itself(harness, monkeypatch):
    harness.app.periodic("* * * * *")(harness.report)
    harness.drain()
    assert harness.enqueued() == []  # none is planted ahead
    # The real clock goes on meanwhile, by a minute and more.
    monkeypatch.setattr(harness.clock, "_moved", harness.clock._moved - HOUR)
    assert harness.drain() == []
    assert harness.clock() < NOON + MINUTE
    assert len(harness.advance(MINUTE)) == 1


def test_advance_goes_forward_only(harness):
    with pytest.raises(InvalidArgument, match="only move the clock forward"):
        harness.advance(-1)


def test_a_schedule_of_the_run_time_ticks_too(harness):
    harness.app.schedules.put("one", harness.report, every=10, using=harness.app)
    harness.advance(60)
    assert len(harness.ran) == 6
    harness.app.schedules.pause("one", using=harness.app)
    assert harness.advance(60) == []


def test_old_tasks_are_deleted_by_a_schedule(shop, connection):
    outbox = Outbox(retention=DAY)
    with Harness(outbox, using=connection) as harness:
        harness.clock.set(NOON)

        @outbox.task(name="once")
        def once() -> None: ...

        handle = once.using(connection).enqueue()
        harness.advance(DAY)
        assert harness.store.get(handle.id).status == "Completed"
        ran = harness.advance(2 * HOUR)
        assert {one.task_name for one in ran} == {"outboxq.prune"}
        assert handle.id not in {one.id for one in harness.store.tasks()}
        assert sum(one.result for one in ran) >= 1
