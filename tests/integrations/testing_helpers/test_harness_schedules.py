"""Ticks of schedules in a test: only the harness's clock makes them due."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import create_engine, event

from outboxq import EventType, InvalidArgument, Outbox, RetryPolicy, TaskContext, TaskStatus, configure_sqlite
from outboxq.testing import EndlessDrain, Harness

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


def test_a_declared_schedule_also_ticks_at_times_before_it_was_stored(harness):
    """A test may set a date that is in the past, or will be when the test runs."""
    harness.app.periodic(every=HOUR, name="own", starts_at=NOON)(harness.report)
    harness.app.periodic("0 2 * * *")(harness.report)
    harness.drain()
    harness.clock.set(datetime(2005, 5, 11, 12, tzinfo=UTC))
    assert len(harness.advance(2 * DAY)) == 2
    assert harness.ran == [datetime(2005, 5, day, 2, tzinfo=UTC) for day in (12, 13)]
    harness.clock.set(harness.clock() - DAY)
    assert harness.advance(DAY) == [], "each tick runs only once"


def test_advance_runs_delayed_tasks_and_ticks_in_order(harness, connection):
    harness.app.periodic(every=HOUR)(harness.report)
    harness.drain()

    @harness.app.task(name="later")
    def later() -> None:
        harness.ran.append("later")

    later.using(connection, delay=90 * 60).enqueue()
    harness.advance(2 * HOUR)
    assert harness.ran == [NOON + HOUR, "later", NOON + 2 * HOUR]


def test_a_delayed_task_does_not_move_the_clock_past_a_tick(harness, connection):
    """Ticks are planted an hour ahead, and the task becomes due much later."""
    harness.app.periodic(every=3 * HOUR)(harness.report)
    harness.drain()
    started = harness.clock()

    @harness.app.task(name="later")
    def later() -> None:
        harness.ran.append("later")

    later.using(connection, delay=5 * HOUR).enqueue()
    harness.advance(7 * HOUR)
    assert harness.ran == [NOON + 3 * HOUR, "later", NOON + 6 * HOUR]
    assert harness.clock() == started + 7 * HOUR


def test_a_clock_that_jumps_misses_ticks(harness):
    harness.app.periodic(every=HOUR)(harness.report)
    harness.drain()
    harness.clock.advance(5.5 * HOUR)
    assert len(harness.drain()) == 1
    assert harness.ran == [NOON + 5 * HOUR]


def test_the_real_clock_makes_no_tick_due(harness, monkeypatch):
    harness.app.periodic("* * * * *")(harness.report)
    harness.drain()
    assert harness.enqueued() == []  # no tick is planted ahead
    # Meanwhile, the real clock advances by more than a minute.
    monkeypatch.setattr(harness.clock, "_moved", harness.clock._moved - HOUR)
    assert harness.drain() == []
    assert harness.clock() < NOON + MINUTE
    assert len(harness.advance(MINUTE)) == 1


def test_ticks_do_not_count_toward_the_limit_of_an_endless_drain(harness, connection):
    harness.app.periodic(every=10)(harness.report)
    harness.max_runs = 3
    assert len(harness.advance(200)) == len(harness.ran) == 20

    @harness.app.task(name="again")
    def again() -> None:
        again.using(harness.app).enqueue()

    again.using(connection).enqueue()
    with pytest.raises(EndlessDrain, match=r"again is still due. It ran: again \(3 times\)"):
        harness.advance(200)

    @harness.app.task(name="once a second")
    def slowly() -> None:
        slowly.using(harness.app, delay=1).enqueue()

    harness.store.cancel_all(queue="default")
    harness.app.schedules.put("other", harness.report, every=HOUR, using=harness.app)
    slowly.using(connection).enqueue()
    with pytest.raises(EndlessDrain, match="ran 3 tasks, and once a second"):
        harness.drain(until=4)


def test_a_tick_executes_few_statements(tmp_path):
    """SQLite, where statements can be counted, runs 14 for each tick. Ticks are planted an hour at a time."""
    outbox = ticking(f"sqlite:///{tmp_path}/shop.db")
    engine, statements = configure_sqlite(create_engine(outbox.store.bound_engine.url)), []
    with engine.connect() as connection, connection.begin(), Harness(outbox, using=connection) as harness:
        harness.advance(100)
        connection.connection.driver_connection.set_trace_callback(statements.append)
        assert len(harness.advance(500)) == 50
        connection.connection.driver_connection.set_trace_callback(None)
    for one in (engine, outbox.store.bound_engine):
        one.dispose()
    assert 10 < len(statements) / 50 < 15


def test_a_tick_takes_one_transaction(tmp_path):
    """The transaction ends the last task, reads the next due task and the next tick, and claims the tick's task."""
    outbox, commits = ticking(f"sqlite:///{tmp_path}/shop.db"), []
    with Harness(outbox) as harness:
        harness.advance(100)
        event.listen(outbox.store.bound_engine, "commit", commits.append)
        assert len(harness.advance(500)) == 50
    outbox.store.bound_engine.dispose()
    assert 50 <= len(commits) < 65


@pytest.mark.parametrize(("is_tests", "most"), [(True, 8), (False, 6)])
def test_a_tick_takes_few_round_trips(postgresql, monkeypatch, is_tests, most):
    """There are five round trips on PostgreSQL, and two more for the handler's savepoint in a test's transaction."""
    outbox, trips = ticking(postgresql.url), []
    execute, commit = psycopg.Cursor.execute, psycopg.Connection.commit
    with (
        postgresql.host_engine().begin() as connection,
        Harness(outbox, using=connection if is_tests else None) as harness,
    ):
        harness.advance(100)
        monkeypatch.setattr(
            psycopg.Cursor, "execute", lambda *given, **named: trips.append(1) or execute(*given, **named)
        )
        monkeypatch.setattr(psycopg.Connection, "commit", lambda *given: trips.append(1) or commit(*given))
        assert len(harness.advance(500)) == 50
        monkeypatch.undo()
        plans = "SELECT sum(generic_plans) > 9 * sum(custom_plans) FROM pg_prepared_statements"
        assert not is_tests or connection.exec_driver_sql(plans).scalar(), (
            "statements are not planned again for each tick"
        )
    outbox.store.bound_engine.dispose()
    assert most - 3 < len(trips) / 50 < most


def ticking(url):
    """Return an outbox with a tick every ten seconds."""
    outbox = Outbox(url)
    outbox.upgrade()
    outbox.periodic(every=10)(outbox.task(name="report")(lambda: None))
    return outbox


def test_tasks_made_due_by_another_task_run_before_the_clock_moves(harness, connection):
    """A tick's task may make tasks due without enqueueing them: here the next task of a key, and a paused queue's task."""

    @harness.app.task(name="keyed")
    def keyed() -> None:
        harness.ran.append((harness.clock() - NOON) // timedelta(seconds=1))

    @harness.app.task(name="held", queue="held")
    def held() -> None:
        harness.ran.append((harness.clock() - NOON) // timedelta(seconds=1))

    @harness.app.periodic(every=HOUR)
    @harness.app.task(name="resume")
    def resume() -> None:
        harness.store.queues.resume("held")

    held.using(connection).enqueue()
    harness.store.queues.pause("held")
    harness.drain()
    for _ in range(2):
        keyed.using(connection, delay=10, partition_key="one").enqueue()
    harness.advance(1.5 * HOUR)
    assert harness.ran == [10, 10, 3600]


@pytest.mark.parametrize("commits", [False, True])
def test_the_then_task_of_a_batch_runs_before_the_next_tick(database, commits):
    """PostgreSQL counts a batch's tasks when a transaction is committed."""
    outbox, ran = Outbox(database.host), []
    with ExitStack() as stack:
        connection = None if commits else stack.enter_context(database.host_engine().connect())
        if connection is not None:
            stack.callback(connection.begin().rollback)
        harness = stack.enter_context(Harness(outbox, using=connection))

        @outbox.task(name="member")
        def member() -> None:
            ran.append("member")

        @outbox.task(name="after")
        def after() -> None:
            ran.append("after")

        @outbox.periodic(every=10 * MINUTE)
        @outbox.task(name="tick")
        def tick() -> None:
            ran.append("tick")

        with outbox.batch(using=outbox, then=after.call()) as batch:
            member.using(batch, delay=15 * MINUTE).enqueue()
        harness.advance(25 * MINUTE)
    assert ran == ["tick", "member", "after", "tick"]


def test_an_error_of_the_next_claim_does_not_lose_the_last_outcome(harness, monkeypatch):
    """The task is ended again, and the next task is claimed in a separate transaction."""
    harness.app.periodic(every=10 * MINUTE)(harness.report)
    harness.drain()
    real, failed = harness.store.claim_ready_task, []

    def failing(*given, using=None, **named):
        found = real(*given, using=using, **named)
        if using is not None and len(failed) < 2:
            failed.append(found)
            raise RuntimeError("this claim fails")
        return found

    monkeypatch.setattr(harness.store, "claim_ready_task", failing)
    ran = harness.advance(45 * MINUTE)
    assert [len(one) for one in failed] == [1, 1]
    assert harness.ran == [NOON + minutes * MINUTE for minutes in (10, 20, 30, 40)]
    assert [one.outcome for one in ran] == [EventType.COMPLETED] * 4
    assert {(one.status, one.attempt) for one in harness.store.tasks()} == {(TaskStatus.COMPLETED, 1)}


def test_a_handler_sees_the_time_of_its_tick_and_retries_run_between_ticks(harness, connection):
    times = []

    @harness.app.task(name="flaky", retry=RetryPolicy(wait=20 * MINUTE))
    def flaky(ctx: TaskContext) -> None:
        times.append(("flaky", harness.clock() - NOON))
        if ctx.attempt < 3:
            raise ValueError

    @harness.app.periodic(every=30 * MINUTE)
    @harness.app.task(name="tick")
    def tick(ctx: TaskContext) -> None:
        times.append(("tick", harness.clock() - NOON))
        assert harness.clock() == ctx.tick
        if len(times) == 1:
            flaky.using(harness.app, delay=5 * MINUTE).enqueue()

    harness.advance(95 * MINUTE, raises=False)
    expected = [("tick", 30), ("flaky", 35), ("flaky", 55), ("tick", 60), ("flaky", 75), ("tick", 90)]
    assert times == [(name, minutes * MINUTE) for name, minutes in expected]


def test_a_schedule_declared_by_a_handler_ticks_from_the_next_run_on(harness):
    @harness.app.task(name="frequent")
    def frequent(ctx: TaskContext) -> None:
        harness.ran.append(ctx.tick)

    @harness.app.periodic(every=HOUR)
    @harness.app.task(name="declares")
    def declares(ctx: TaskContext) -> None:
        harness.ran.append(ctx.tick)
        if len(harness.ran) == 1:
            harness.app.periodic(every=20 * MINUTE)(frequent)

    harness.advance(2.5 * HOUR)
    assert [(one - NOON) // MINUTE for one in harness.ran] == [60, 120, 140]


def test_ticks_are_planted_in_groups(shop, connection):
    """Ticks are planted at most an hour ahead, and again if a handler changes the schedule. A limit plants none ahead."""
    outbox = Outbox()
    with Harness(outbox, using=connection) as harness:
        harness.clock.set(NOON)
        planted, seen = [], []

        @outbox.task(name="tick")
        def tick(ctx: TaskContext) -> None:
            seen.append(ctx.tick - NOON)
            if ctx.tick == NOON + 80 * MINUTE:
                outbox.schedules.put("ticking", tick, every=20 * MINUTE, using=outbox)
            if ctx.tick == NOON + 140 * MINUTE:
                outbox.schedules.pause("ticking", using=outbox)

        outbox.schedules.put("ticking", tick, every=10 * MINUTE, using=outbox)
        real = harness.store.schedules.plant
        harness.store.schedules.plant = lambda **options: planted.append(real(**options))
        assert len(harness.drain(until=20 * MINUTE, limit=2)) == 2
        assert [one for one in planted if one] == [1, 1]
        assert harness.advance(2 * MINUTE) == []
        planted.clear()
        harness.advance(4 * HOUR)
        assert [one // MINUTE for one in seen] == [10, 20, 30, 40, 50, 60, 70, 80, 100, 120, 140]
        assert max(planted) == 6
        assert len(harness.store.tasks(status=TaskStatus.READY)) == 0


def test_advance_only_moves_forward(harness):
    with pytest.raises(InvalidArgument, match="only move the clock forward"):
        harness.advance(-1)


def test_a_schedule_created_at_run_time_also_ticks(harness):
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
