"""If an outside error ends a transactional task's transaction, the task is released, because its handler did not fail."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outboxq import EventType, Outbox, Retry, RetryPolicy, Snooze, TaskContext, TaskStatus
from outboxq.model import INTERRUPTED, Claim, Outcome
from outboxq.model.running import Progress
from outboxq.store import Store
from outboxq.store.transactions import Transactions
from outboxq.worker import task_runner
from tests.contract import helpers
from tests.waiting import until

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

ONCE = RetryPolicy.never()
CREATED, CLAIMED, RELEASED, COMPLETED, FAILED = (
    EventType.CREATED,
    EventType.CLAIMED,
    EventType.RELEASED,
    EventType.COMPLETED,
    EventType.FAILED,
)
KILL = "SELECT pg_terminate_backend(pg_backend_pid())"
DEADLOCK = "DO $$ BEGIN RAISE 'deadlock detected' USING ERRCODE = '40P01'; END $$"


class Base(DeclarativeBase): ...


class Effect(Base):
    __tablename__ = "effects"
    note: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def engine(database):
    engine = database.host_engine()
    database.run("CREATE TABLE effects (note TEXT)")
    yield engine
    engine.dispose()
    database.run("DROP TABLE effects")


@pytest.fixture
def outbox(engine):
    return Outbox(engine)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(task_runner, "FIRST_INTERRUPTION_DELAY", timedelta(0))


@pytest.fixture
def run(outbox):
    """Return a function that works until no task is claimable."""

    def burst(**options):
        worker = outbox.worker(**{"notifications": False, "recover_every": 60, **options})
        worker.start(burst=True)
        until(lambda: not worker._parts.claim_loop.is_alive())
        assert worker.stop()
        assert outbox.store.verify() == []

    return burst


def write(ctx, note):
    ctx.connection.execute(text("INSERT INTO effects (note) VALUES (:note)"), {"note": note})


def notes(database):
    return [row[0] for row in database.rows("SELECT note FROM effects")]


def types(outbox, handle):
    return [event.event_type for event in outbox.store.history(handle.id)]


def terminated(ctx):
    ctx.connection.exec_driver_sql(KILL)


def idle_for_too_long(ctx):
    pid = ctx.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    ctx.connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 1")
    with ctx.outbox.store.bound_engine.connect() as other:
        other.execution_options(isolation_level="AUTOCOMMIT")  # a transaction would see an old list of sessions
        gone = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        until(lambda: other.execute(gone, {"pid": pid}).scalar_one() == 0)
    write(ctx, "too late")


def deadlocked(ctx):
    ctx.connection.exec_driver_sql(DEADLOCK)


def deadlocked_in_a_savepoint(ctx):
    with ctx.connection.begin_nested():
        ctx.connection.exec_driver_sql(DEADLOCK)


def told_in_other_words(ctx):
    try:
        ctx.connection.exec_driver_sql(KILL)
    except DBAPIError:
        raise ValueError("the ledger is closed") from None


def of_the_driver(ctx):
    ctx.connection.connection.driver_connection.execute(KILL)


def used_after_it_was_lost(ctx):
    with pytest.raises(DBAPIError):
        ctx.connection.exec_driver_sql(KILL)
    write(ctx, "into nothing")


def swallowed(ctx):
    with pytest.raises(DBAPIError):
        ctx.connection.exec_driver_sql(KILL)


def out_of_room(ctx):
    ctx.connection.exec_driver_sql("DO $$ BEGIN RAISE 'could not extend file' USING ERRCODE = '53100'; END $$")


INTERRUPTING = (
    terminated,
    idle_for_too_long,
    deadlocked,
    deadlocked_in_a_savepoint,
    told_in_other_words,
    of_the_driver,
    used_after_it_was_lost,
    swallowed,
    out_of_room,
)


@on_postgresql
@pytest.mark.parametrize("interrupt", INTERRUPTING)
def test_an_outside_error_releases_the_task_without_using_an_attempt(outbox, run, database, interrupt):
    runs = []

    @outbox.task(name="interrupted", transactional=True, retry=ONCE)
    def interrupted(ctx: TaskContext) -> None:
        runs.append(ctx.attempt)
        write(ctx, f"run {len(runs)}")
        if len(runs) == 1:
            interrupt(ctx)

    handle = interrupted.using(outbox).enqueue()
    run()
    task = outbox.store.get(handle.id)
    assert types(outbox, handle) == [CREATED, CLAIMED, RELEASED, CLAIMED, COMPLETED], task.last_error
    assert (task.attempt, runs, notes(database)) == (1, [1, 1], ["run 2"])
    released = outbox.store.history(handle.id)[2]
    assert (released.event_data["reason"], released.event_data["times"]) == (INTERRUPTED, 1)
    assert released.event_data["cause"]
    assert task.last_error is None


@on_sqlite
def test_a_full_disk_releases_the_task_without_using_an_attempt(outbox, engine, run, database):
    runs = []

    @outbox.task(name="filling", transactional=True, retry=ONCE)
    def filling(ctx: TaskContext) -> None:
        runs.append(ctx.attempt)
        if len(runs) == 1:
            pages = ctx.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            ctx.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 1}")
            try:
                write(ctx, "x" * 1_000_000)
            finally:
                ctx.connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
        write(ctx, "small")

    handle = filling.using(outbox).enqueue()
    run()
    assert types(outbox, handle) == [CREATED, CLAIMED, RELEASED, CLAIMED, COMPLETED]
    assert (runs, notes(database)) == ([1, 1], ["small"])


def test_an_error_at_the_commit_releases_the_task_without_using_an_attempt(outbox, run, database, monkeypatch):
    losing_commits(monkeypatch, database, 2)

    @outbox.task(name="committing", transactional=True, retry=ONCE)
    def committing(ctx: TaskContext) -> None:
        ctx.progress(0.5, "half")
        write(ctx, "effect")

    handle = committing.using(outbox).enqueue()
    run()
    assert types(outbox, handle) == [CREATED, *[CLAIMED, RELEASED] * 2, CLAIMED, COMPLETED]
    assert [one.progress for one in outbox.store.attempts(handle.id)] == [Progress(fraction=0.5, note="half")] * 3
    assert notes(database) == ["effect"]


FLUSHING = {
    "before the handler returns": lambda session: session.flush(),
    "after the handler has returned": lambda session: None,
}


@on_postgresql
@pytest.mark.parametrize("state", ["55P03", "57014"])
@pytest.mark.parametrize("flush", FLUSHING.values(), ids=FLUSHING)
def test_a_lock_timeout_in_a_flush_is_a_failure_however_the_flush_starts(outbox, run, flush, state):
    @outbox.task(name="flushing", transactional=True, retry=ONCE)
    def flushing(ctx: TaskContext) -> None:
        error = f"DO $$ BEGIN RAISE 'canceling statement due to timeout' USING ERRCODE = '{state}'; END $$"
        ctx.session.add(Effect(note="late"))
        event.listen(ctx.session, "before_flush", lambda session, *_: session.execute(text(error)))
        flush(ctx.session)

    handle = flushing.using(outbox).enqueue()
    run()
    assert types(outbox, handle) == [CREATED, CLAIMED, FAILED]


def test_the_sixth_interruption_in_a_row_is_an_attempt_that_failed(outbox, run, database, monkeypatch, caplog):
    losing_commits(monkeypatch, database, 1000)

    @outbox.task(name="poison", transactional=True, retry=RetryPolicy(max_attempts=2, wait=0))
    def poison(ctx: TaskContext) -> None:
        write(ctx, "never")

    handle = poison.using(outbox).enqueue()
    run()
    task, history = outbox.store.get(handle.id), outbox.store.history(handle.id)
    assert (task.status, task.attempt) == (TaskStatus.FAILED, 2)
    times = [event.event_data["times"] for event in history if event.event_type is RELEASED]
    assert times == [1, 2, 3, 4, 5] * 2, "the failed attempt restarts the count"
    assert notes(database) == []
    assert caplog.text.count("its transaction was interrupted") == 10
    assert "interruption 5 of at most 5 in a row" in caplog.text


def test_each_interruption_doubles_the_delay(database, monkeypatch):
    monkeypatch.setattr(task_runner, "FIRST_INTERRUPTION_DELAY", timedelta(seconds=1))
    database.add()
    for seconds in (1, 2, 4, 8, 16, None):
        (claim,) = database.claim(1)
        outcome = task_runner.outcome_of_interruption(database.frozen, claim, helpers.lost_connection(database))
        assert (outcome and outcome.delay) == (seconds and timedelta(seconds=seconds))
        if outcome:
            database.frozen.finish([outcome])
            database.clock.advance(seconds)


@pytest.mark.parametrize("between", ["released", "recovered"])
def test_a_release_or_a_recovery_does_not_change_the_count(database, between):
    claim = interrupted_times(database, 3)
    if between == "released":
        database.store.release(claim, reason="the worker stopped")
    else:
        helpers.recovered(database, claim)
    (claim,) = database.claim(1)
    assert database.frozen.interruptions(claim) == 3


@pytest.mark.parametrize("end", ["snoozed", "retried", "retried by hand", "redriven"])
def test_an_end_by_the_handler_or_by_a_person_resets_the_count(database, end):
    claim = interrupted_times(database, 3)
    store = database.frozen
    assert store.interruptions(claim) == 3
    if end == "snoozed":
        store.finish([Outcome(claim=claim, event_type=EventType.SNOOZED)])
    elif end == "retried":
        store.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="no")])
    elif end == "redriven":
        store.fail(claim, "no")
        store.redrive(claim.id)
    else:
        store.schedule_retry(claim.id, database.clock(), 2)
    (claim,) = database.claim(1)
    assert store.interruptions(claim) == 0


@pytest.mark.parametrize(
    "data", ["no JSON", '{"reason": ', "[]", '{"reason": "interrupted transaction", "times": "x"}']
)
def test_a_release_with_invalid_data_is_not_counted(database, data):
    claim = interrupted_times(database, 1)
    database.corrupted = True
    database.run(f"UPDATE execution_events SET event_data = '{data}' WHERE event_type = 'task_released'")
    assert database.frozen.interruptions(claim) == 0


# Failures of the handler.


@on_postgresql
def test_an_error_of_another_connection_is_a_failure_of_the_handler(outbox, engine, run, database):
    @outbox.task(name="elsewhere", transactional=True, retry=ONCE)
    def elsewhere(ctx: TaskContext) -> None:
        other = create_engine(engine.url)
        try:
            with other.connect() as connection:
                connection.exec_driver_sql(KILL)
        finally:
            other.dispose()

    handle = elsewhere.using(outbox).enqueue()
    run()
    assert types(outbox, handle) == [CREATED, CLAIMED, FAILED]


@on_postgresql
@pytest.mark.parametrize("asked", ["retry", "snooze"])
def test_a_retry_or_snooze_after_a_lost_connection_takes_effect(outbox, run, database, asked):
    @outbox.task(name="asking", transactional=True, retry=RetryPolicy(max_attempts=2, wait=0))
    def asking(ctx: TaskContext) -> None:
        if types(outbox, handle).count(CLAIMED) > 1:
            return
        try:
            terminated(ctx)
        except DBAPIError:
            if asked == "snooze":
                raise Snooze(30) from None
            raise Retry(at=database.store.get(handle.id).created_at) from None

    handle = asking.using(outbox).enqueue()
    run()
    again = [EventType.SNOOZED] if asked == "snooze" else [EventType.RETRY_SCHEDULED, CLAIMED, COMPLETED]
    assert types(outbox, handle) == [CREATED, CLAIMED, *again]


@on_postgresql
@pytest.mark.parametrize("state", ["55P03", "57014", "23505", "25P02"])
def test_an_error_caused_by_a_statement_of_the_handler_is_a_failure(outbox, run, state):
    """Examples are a lock that was not available, a cancelled statement and a violated constraint."""

    @outbox.task(name="earned", transactional=True, retry=ONCE)
    def earned(ctx: TaskContext) -> None:
        ctx.connection.exec_driver_sql(f"DO $$ BEGIN RAISE 'no' USING ERRCODE = '{state}'; END $$")

    handle = earned.using(outbox).enqueue()
    run()
    assert types(outbox, handle) == [CREATED, CLAIMED, FAILED]


@on_postgresql
def test_an_error_of_the_handler_is_a_failure_even_if_the_rollback_finds_the_connection_lost(outbox, engine, run):
    @outbox.task(name="own", transactional=True, retry=ONCE)
    def own(ctx: TaskContext) -> None:
        pid = ctx.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        with psycopg.connect(engine.url.set(drivername="postgresql").render_as_string(hide_password=False)) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [pid])
        raise ValueError("mine")

    handle = own.using(outbox).enqueue()
    run()
    assert outbox.store.get(handle.id).last_error == "ValueError: mine"
    assert types(outbox, handle) == [CREATED, CLAIMED, FAILED]


def test_an_interruption_is_a_failed_attempt_if_the_count_cannot_be_read(outbox, run, database, monkeypatch, caplog):
    losing_commits(monkeypatch, database, 1000)

    def refused(self, claim, **options):
        raise PermissionError("not yours")

    monkeypatch.setattr(Store, "interruptions", refused)

    @outbox.task(name="unknown", transactional=True, retry=ONCE)
    def unknown(ctx: TaskContext) -> None: ...

    handle = unknown.using(outbox).enqueue()
    run()
    assert types(outbox, handle) == [CREATED, CLAIMED, FAILED]
    assert "not yours" in caplog.text


def losing_commits(monkeypatch, database, times):
    """Lose the connections of this number of handlers before their commits."""
    real, lost = Transactions.transaction, []

    @contextmanager
    def losing(store, begin):
        with real(store, begin) as target:
            yield target
            if begin == "handler" and len(lost) < times:
                lost.append(begin)
                raise helpers.lost_connection(database)

    monkeypatch.setattr(Transactions, "transaction", losing)


def interrupted_times(database, times) -> Claim:
    """Return a claim of a task that was released this many times in a row because its transaction was interrupted."""
    database.add()
    for _ in range(times):
        (claim,) = database.claim(1)
        database.frozen.finish(
            [task_runner.outcome_of_interruption(database.frozen, claim, helpers.lost_connection(database))]
        )
    (claim,) = database.claim(1)
    return claim
