"""Transactional tasks: the handler's writes, the tasks that it enqueues and its completion are one transaction."""

from __future__ import annotations

import random
import sqlite3
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import ForeignKey, Text, create_engine, event, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outboxq import Cancel, EventType, InvalidTarget, Outbox, Retry, RetryPolicy, Snooze, TaskContext, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store.transactions import Transactions
from outboxq.worker import task_runner
from outboxq.worker.failpoints import Failpoint
from tests.contract import helpers
from tests.waiting import until

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

LATER = RetryPolicy(max_attempts=3, wait=3600)
ONCE = RetryPolicy.never()


class Base(DeclarativeBase):
    """The application's tables."""


class Effect(Base):
    __tablename__ = "effects"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(Text)  # as in the other tests: a reused connection may have prepared a query


class Parent(Base):
    __tablename__ = "parents"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Child(Base):
    __tablename__ = "children"
    id: Mapped[int] = mapped_column(primary_key=True)
    parent: Mapped[int] = mapped_column(ForeignKey("parents.id", deferrable=True, initially="DEFERRED"))


@pytest.fixture
def engine(database):
    """The application's engine, which the outbox also uses. SQLite enforces foreign keys on it."""
    engine = database.host_engine()
    if database.name == "sqlite":
        event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys = ON"))
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)


@pytest.fixture
def outbox(engine):
    return Outbox(engine)


@pytest.fixture
def work(outbox):
    """Start a worker. It is stopped after the test."""
    started = []

    def start(**options):
        worker = outbox.worker(**{"poll": 0.05, "notifications": False, "recover_every": 60, **options})
        started.append(worker)
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def run(outbox):
    """Run a worker in this process until nothing is claimable."""

    def burst(**options):
        worker = outbox.worker(**{"notifications": False, "recover_every": 60, **options})
        worker.start(burst=True)
        until(lambda: not worker._parts.claim_loop.is_alive())
        assert worker.stop()
        assert worker.is_healthy

    return burst


def notes(database):
    return sorted(note for (note,) in database.rows("SELECT note FROM effects"))


def types(outbox, handle):
    return [event.event_type for event in outbox.store.history(handle.id)]


def tasks_called(database, name):
    return database.rows(f"SELECT id FROM task_executions WHERE task_name = '{name}'")


def write(ctx, note):
    ctx.connection.execute(insert(Effect).values(note=note))


@pytest.fixture
def follow(outbox):
    """A plain task that handlers enqueue."""

    @outbox.task(name="follow", queue="never worked on")
    def follow(n: int) -> None: ...

    return follow


# Commits


def test_writes_and_enqueued_tasks_are_committed_with_the_completion(outbox, run, follow, database):
    @outbox.task(name="book", transactional=True)
    def book(ctx: TaskContext, n: int) -> int:
        assert ctx.is_transactional
        write(ctx, "booked")
        follow.using(ctx).enqueue(n)
        return n

    handle = book.using(outbox).enqueue(7)
    run(queues=["default"])
    task = outbox.store.get(handle.id)
    assert (task.status, task.result, task.attempt) == (TaskStatus.COMPLETED, "7", 1)
    assert types(outbox, handle) == [EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED]
    assert notes(database) == ["booked"]
    assert len(tasks_called(database, "follow")) == 1


@on_postgresql
def test_writes_enqueues_and_completion_share_one_transaction(outbox, run, follow, database):
    @outbox.task(name="book", transactional=True)
    def book(ctx: TaskContext) -> None:
        write(ctx, "booked")
        follow.using(ctx).enqueue(1)

    book.using(outbox).enqueue()
    run(queues=["default"])
    written = (
        "SELECT DISTINCT x FROM (SELECT xmin::text AS x FROM effects "
        "UNION ALL SELECT xmin::text FROM execution_events WHERE event_type = 'task_completed' "
        "UNION ALL SELECT xmin::text FROM task_outbox "
        "UNION ALL SELECT xmin::text FROM task_executions) AS written"
    )
    assert len(database.rows(written)) == 1


def test_writes_and_enqueued_tasks_are_invisible_before_completion(outbox, work, follow, database):
    written, gate = threading.Event(), threading.Event()

    @outbox.task(name="book", transactional=True)
    def book(ctx: TaskContext) -> None:
        write(ctx, "booked")
        follow.using(ctx).enqueue(1)
        written.set()
        gate.wait(60)

    handle = book.using(outbox).enqueue()
    work(queues=["default"])
    assert written.wait(60)
    assert notes(database) == []
    assert tasks_called(database, "follow") == []
    assert outbox.store.get(handle.id).status is TaskStatus.RUNNING
    gate.set()
    until(lambda: outbox.store.get(handle.id).status is TaskStatus.COMPLETED)
    assert notes(database) == ["booked"]


def test_the_orm_session_is_flushed_and_committed_with_the_completion(outbox, run, database):
    @outbox.task(name="orm", transactional=True)
    def orm(ctx: TaskContext) -> None:
        ctx.session.add(Effect(note="pending"))  # the handler never flushes it
        assert ctx.session is ctx.session

    orm.using(outbox).enqueue()
    run()
    assert notes(database) == ["pending"]


def test_session_and_connection_share_the_transaction(outbox, run):
    @outbox.task(name="both", transactional=True)
    def both(ctx: TaskContext) -> list[str]:
        write(ctx, "a")
        ctx.session.add(Effect(note="b"))
        ctx.session.flush()
        by_connection = ctx.connection.execute(select(Effect.note)).scalars().all()
        return sorted([*by_connection, *ctx.session.scalars(select(Effect.note))])

    handle = both.using(outbox).enqueue()
    run()
    assert outbox.store.get(handle.id).result == '["a","a","b","b"]'


def test_a_bare_enqueue_inside_joins_the_transaction(outbox, run, follow, database):
    @outbox.task(name="bare", transactional=True, retry=ONCE)
    def bare(fails: bool) -> None:
        follow.enqueue(1)
        if fails:
            raise ValueError("no")

    good = bare.using(outbox).enqueue(fails=False)
    bad = bare.using(outbox).enqueue(fails=True)
    run(queues=["default"])
    assert outbox.store.get(good.id).status is TaskStatus.COMPLETED
    assert outbox.store.get(bad.id).last_error == "ValueError: no"
    assert len(tasks_called(database, "follow")) == 1


def test_a_task_may_be_enqueued_on_the_session_of_the_context(outbox, run, follow, database):
    @outbox.task(name="on.session", transactional=True)
    def on_session(ctx: TaskContext) -> None:
        ctx.session.add(Effect(note="row"))
        follow.using(ctx.session).enqueue(1)
        follow.using(ctx.connection).enqueue(2)

    on_session.using(outbox).enqueue()
    run(queues=["default"])
    assert len(tasks_called(database, "follow")) == 2
    assert notes(database) == ["row"]


def test_a_task_enqueued_by_the_handler_is_run_after_it(outbox, run):
    @outbox.task(name="second", transactional=True)
    def second(n: int) -> int:
        return n

    @outbox.task(name="first", transactional=True)
    def first() -> str:
        return str(second.enqueue(3).id)

    handle = first.using(outbox).enqueue()
    run()
    child = outbox.store.get(UUID(outbox.store.get(handle.id).result.strip('"')))
    assert (child.status, child.result) == (TaskStatus.COMPLETED, "3")


def error_of(outbox, run, function, **options):
    """Run a task that must fail. Return its error."""
    task = outbox.task(name="refused", retry=ONCE, **options)(function)
    handle = task.using(outbox).enqueue()
    run(queues=["default"])
    execution = outbox.store.get(handle.id)
    assert execution.status is TaskStatus.FAILED
    return execution.last_error


def test_a_bare_enqueue_of_another_outbox_is_refused(outbox, engine, run, database):
    theirs = Outbox(engine).task(name="theirs")(lambda: None)

    def strays() -> None:
        theirs.enqueue()

    assert "theirs: the current transaction is not known" in error_of(outbox, run, strays, transactional=True)
    assert tasks_called(database, "theirs") == []


def test_a_bare_enqueue_inside_a_plain_task_is_refused(outbox, run, follow, database):
    assert "follow: the current transaction is not known" in error_of(outbox, run, lambda: follow.enqueue(1))
    assert tasks_called(database, "follow") == []


def test_a_bare_enqueue_outside_is_refused_even_after_a_transactional_task_ran(outbox, run, follow):
    ran = outbox.task(name="ran", transactional=True)(lambda: None).using(outbox).enqueue()
    run(queues=["default"])
    assert outbox.store.get(ran.id).status is TaskStatus.COMPLETED
    with pytest.raises(InvalidTarget, match=r"using\(session\)"):
        follow.enqueue(1)


def test_a_bare_enqueue_in_a_thread_started_by_the_handler_is_refused(outbox, run, follow, database):
    """Only the handler's own thread can use its transaction."""

    def spawns():
        errors = []

        def enqueue():
            try:
                follow.enqueue(1)
            except InvalidTarget as error:
                errors.append(error)

        thread = threading.Thread(target=enqueue)
        thread.start()
        thread.join(60)
        raise errors[0]

    assert "the current transaction is not known" in error_of(outbox, run, spawns, transactional=True)
    assert tasks_called(database, "follow") == []


def test_the_error_for_a_connection_in_a_plain_task_explains_the_option(outbox, run):
    def reaches(ctx: TaskContext) -> None:
        assert not ctx.is_transactional
        _ = ctx.connection

    assert "declare it with transactional=True" in error_of(outbox, run, reaches)


def test_a_plain_task_has_no_session_and_is_not_a_target(outbox, run, follow, database):
    def reaches(ctx: TaskContext) -> None:
        with pytest.raises(InvalidTarget, match="transactional=True"):
            _ = ctx.session
        follow.using(ctx).enqueue(1)

    assert "declare it with transactional=True" in error_of(outbox, run, reaches)
    assert tasks_called(database, "follow") == []


# Rollbacks

AT = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("how", ["raised", "returned"])
@pytest.mark.parametrize(
    ("asked", "status", "event_type", "attempt"),
    [
        (Snooze(3600), TaskStatus.READY, EventType.SNOOZED, 1),
        (Cancel("gone"), TaskStatus.CANCELLED, EventType.CANCELLED, 1),
        (Retry(at=AT), TaskStatus.READY, EventType.RETRY_SCHEDULED, 2),
    ],
    ids=["snooze", "cancel", "retry"],
)
def test_writes_are_rolled_back_if_the_handler_requests_another_outcome(
    outbox, run, follow, database, how, asked, status, event_type, attempt
):
    @outbox.task(name="asks", transactional=True)
    def asks(ctx: TaskContext) -> object:
        write(ctx, "never")
        ctx.session.add(Effect(note="nor this"))
        ctx.session.commit()
        follow.using(ctx).enqueue(1)
        follow.enqueue(2)
        if how == "raised":
            raise asked
        return asked

    handle = asks.using(outbox).enqueue()
    run(queues=["default"])
    task = outbox.store.get(handle.id)
    assert (task.status, task.attempt) == (status, attempt)
    assert types(outbox, handle) == [EventType.CREATED, EventType.CLAIMED, event_type]
    assert notes(database) == []
    assert tasks_called(database, "follow") == []
    if event_type is EventType.RETRY_SCHEDULED:
        assert task.retry_at == AT


def test_an_exception_rolls_back_all_writes_and_is_retried_by_the_policy(outbox, run, follow, database):
    @outbox.task(name="fails", transactional=True, retry=RetryPolicy(max_attempts=3, wait=0))
    def fails(ctx: TaskContext) -> None:
        write(ctx, f"attempt {ctx.attempt}")
        follow.enqueue(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")

    handle = fails.using(outbox).enqueue()
    run(queues=["default"])
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED
    assert notes(database) == ["attempt 3"]
    assert len(tasks_called(database, "follow")) == 1
    assert types(outbox, handle).count(EventType.RETRY_SCHEDULED) == 2


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_an_exception_that_would_end_the_process_rolls_back_too(outbox, run, database, error):
    def quits(ctx: TaskContext) -> None:
        write(ctx, "never")
        raise error

    assert type(error).__name__ in error_of(outbox, run, quits, transactional=True)
    assert notes(database) == []


def test_a_result_that_cannot_be_stored_fails_the_task_and_rolls_back(outbox, run, database):
    runs = []

    @outbox.task(name="unstorable", transactional=True)
    def unstorable(ctx: TaskContext) -> object:
        runs.append(1)
        write(ctx, "never")
        return object()

    handle = unstorable.using(outbox).enqueue()
    run()
    task = outbox.store.get(handle.id)
    assert task.status is TaskStatus.FAILED
    assert "PayloadError" in task.last_error
    assert (len(runs), notes(database)) == (1, [])


# Lost leases


def lose_by_force(outbox, handle):
    outbox.store.cancel(handle.id, force=True)


def lose_to_another(outbox, handle):
    """Let the lease expire, and let another worker claim the task."""
    with outbox.store.bound_engine.begin() as connection:
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        moment = long_ago if connection.dialect.name == "postgresql" else "2020-01-01T00:00:00.000000+00:00"
        connection.execute(text("UPDATE task_leases SET lease_expires_at = :moment"), {"moment": moment})
    assert [one.id for one in outbox.store.recover()] == [handle.id]
    assert [claim.id for claim in outbox.store.claim_ready_task(1, worker_id=uuid7())] == [handle.id]


@pytest.mark.parametrize("lose", [lose_by_force, lose_to_another])
def test_a_handler_that_lost_its_lease_before_its_transaction_changes_nothing(
    outbox, work, follow, database, caplog, lose
):
    """On SQLite, no other connection can write once the transaction has begun."""
    taken, gate = threading.Event(), threading.Event()

    def on_failpoint(point):
        if point is Failpoint.BEFORE_START:
            taken.set()
            gate.wait(60)

    @outbox.task(name="late", transactional=True)
    def late(ctx: TaskContext) -> None:
        write(ctx, "too late")
        follow.enqueue(1)

    handle = late.using(outbox).enqueue()
    worker = work(queues=["default"], concurrency=1, on_failpoint=on_failpoint)
    assert taken.wait(60)
    lose(outbox, handle)
    before = helpers.everything(database)
    gate.set()
    until(lambda: worker.handled == 1)
    assert worker.stop()
    assert helpers.everything(database) == before
    assert notes(database) == []
    assert f"task {handle.id} (late): its lease was lost, so its writes are rolled back" in caplog.text


@on_postgresql
@pytest.mark.parametrize("lose", [lose_by_force, lose_to_another])
def test_a_handler_that_loses_its_lease_while_it_runs_changes_nothing(database, work, outbox, follow, caplog, lose):
    written, gate = threading.Event(), threading.Event()

    @outbox.task(name="late", transactional=True)
    def late(ctx: TaskContext) -> None:
        write(ctx, "too late")
        follow.enqueue(1)
        written.set()
        gate.wait(60)

    handle = late.using(outbox).enqueue()
    worker = work(queues=["default"], concurrency=1)
    assert written.wait(60)
    lose(outbox, handle)
    before = helpers.everything(database)
    gate.set()
    until(lambda: worker.handled == 1)
    assert worker.stop()
    assert helpers.everything(database) == before
    assert notes(database) == []
    assert "its writes are rolled back" in caplog.text


@on_postgresql
def test_a_stop_that_exceeds_its_timeout_fences_the_transaction(database, work, outbox):
    written, gate = threading.Event(), threading.Event()

    @outbox.task(name="stubborn", transactional=True)
    def stubborn(ctx: TaskContext) -> None:
        write(ctx, "too late")
        written.set()
        gate.wait(60)

    handle = stubborn.using(outbox).enqueue()
    worker = work()
    assert written.wait(60)
    assert worker.stop(timeout=0.05) is False
    # On a busy machine, `stop` returns before the release is committed.
    until(lambda: outbox.store.get(handle.id).status is TaskStatus.READY)
    gate.set()
    until(lambda: worker.handled == 1)
    assert notes(database) == []
    assert outbox.store.get(handle.id).status is TaskStatus.READY


# Handlers that commit or roll back


def test_committing_the_connection_is_refused_and_fails_the_task(outbox, run, database):
    def commits(ctx: TaskContext) -> None:
        write(ctx, "never")
        ctx.connection.commit()

    assert "committed when the task completes; return from the handler instead" in error_of(
        outbox, run, commits, transactional=True
    )
    assert notes(database) == []


@pytest.mark.parametrize("times", [1, 2])
def test_commits_are_refused_on_an_engine_with_options_too(engine, database, times):
    """A commit is refused, and a rolled-back savepoint is noticed."""
    for _ in range(times):
        engine = engine.execution_options(mark="theirs")
    outbox = Outbox(engine)

    @outbox.task(name="commits", transactional=True, retry=ONCE)
    def commits(ctx: TaskContext) -> None:
        write(ctx, "never")
        with suppress(ValueError), ctx.connection.begin_nested():
            raise ValueError
        ctx.connection.commit()

    @outbox.task(name="writes", transactional=True)
    def writes(ctx: TaskContext) -> None:
        write(ctx, "once")

    refused, done = commits.using(outbox).enqueue(), writes.using(outbox).enqueue()
    outbox.worker(notifications=False).run(burst=True)
    assert (
        "committed when the task completes; return from the handler instead" in outbox.store.get(refused.id).last_error
    )
    assert outbox.store.get(done.id).status is TaskStatus.COMPLETED
    assert notes(database) == ["once"]


def test_ignoring_a_refused_commit_commits_nothing(outbox, run, database):
    def swallows(ctx: TaskContext) -> None:
        write(ctx, "before")
        try:
            ctx.connection.commit()
        except InvalidTarget:
            write(ctx, "after")

    error_of(outbox, run, swallows, transactional=True)
    assert notes(database) == []


def test_writes_after_a_rollback_of_the_connection_are_not_committed(outbox, run, database):
    def starts_over(ctx: TaskContext) -> None:
        write(ctx, "before")
        ctx.connection.rollback()
        write(ctx, "after")
        raise ValueError("no")

    error_of(outbox, run, starts_over, transactional=True)
    assert notes(database) == []


def test_rolling_the_connection_back_fails_the_task(outbox, run, database):
    def starts_over(ctx: TaskContext) -> None:
        write(ctx, "before")
        ctx.connection.rollback()

    error_of(outbox, run, starts_over, transactional=True)
    assert notes(database) == []


def test_commit_and_rollback_of_the_session_end_only_a_savepoint(outbox, run, database):
    @outbox.task(name="orm", transactional=True)
    def orm(ctx: TaskContext) -> None:
        ctx.session.add(Effect(note="kept"))
        ctx.session.commit()
        ctx.session.add(Effect(note="taken back"))
        ctx.session.flush()
        ctx.session.rollback()
        ctx.session.add(Effect(note="kept as well"))

    handle = orm.using(outbox).enqueue()
    run()
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED
    assert notes(database) == ["kept", "kept as well"]


def test_writes_committed_by_the_session_are_rolled_back_with_the_task(outbox, run, database):
    def fails(ctx: TaskContext) -> None:
        ctx.session.add(Effect(note="never"))
        ctx.session.commit()
        raise ValueError("no")

    assert error_of(outbox, run, fails, transactional=True) == "ValueError: no"
    assert notes(database) == []


def test_a_violation_in_a_nested_savepoint_rolls_back_only_that_savepoint(outbox, run, follow, database):
    @outbox.task(name="nests", transactional=True)
    def nests(ctx: TaskContext) -> None:
        write(ctx, "outer")
        with ctx.connection.begin_nested():
            write(ctx, "inner")
            try:
                with ctx.connection.begin_nested():
                    follow.using(ctx).enqueue(1)
                    ctx.connection.execute(insert(Parent), [{"name": "one"}, {"name": "one"}])
            except IntegrityError:
                write(ctx, "told")
        with ctx.session.begin_nested():
            ctx.session.add(Effect(note="by the ORM"))

    handle = nests.using(outbox).enqueue()
    run(queues=["default"])
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED
    assert notes(database) == ["by the ORM", "inner", "outer", "told"]
    assert tasks_called(database, "follow") == []


@pytest.mark.parametrize("option", [{}, {"isolation_level": "SERIALIZABLE"}], ids=["default", "serializable"])
def test_transactional_tasks_need_no_configured_engine(database, engine, option):
    """The application's engine is not configured, so on SQLite the driver begins transactions."""
    bare = database.own(create_engine(database.url, **option))
    outbox = Outbox(bare)

    @outbox.task(name="child", queue="never worked on")
    def child() -> None: ...

    @outbox.task(name="bare", transactional=True, retry=ONCE)
    def task(ctx: TaskContext, fails: bool) -> None:
        write(ctx, "a")
        ctx.session.add(Effect(note="b"))
        ctx.session.commit()
        ctx.session.add(Effect(note="c"))
        ctx.session.flush()
        child.enqueue()
        if fails:
            raise ValueError("no")

    good, bad = task.using(outbox).enqueue(fails=False), task.using(outbox).enqueue(fails=True)
    worker = outbox.worker(notifications=False, queues=["default"])
    worker.start(burst=True)
    until(lambda: not worker._parts.claim_loop.is_alive())
    worker.stop()
    assert outbox.store.get(bad.id).last_error == "ValueError: no"
    assert outbox.store.get(good.id).last_error is None
    assert notes(database) == ["a", "b", "c"]
    assert len(tasks_called(database, "child")) == 1


# Constraints


def test_a_violation_in_the_final_flush_is_retried_by_the_policy(outbox, run, database):
    @outbox.task(name="twice", transactional=True, retry=LATER)
    def twice(ctx: TaskContext) -> None:
        write(ctx, "never")
        ctx.session.add_all([Parent(name="same"), Parent(name="same")])  # flushed after the handler has returned

    handle = twice.using(outbox).enqueue()
    run()
    task = outbox.store.get(handle.id)
    assert (task.status, task.attempt) == (TaskStatus.READY, 2)
    assert "IntegrityError" in task.last_error
    assert types(outbox, handle)[-1] is EventType.RETRY_SCHEDULED
    assert notes(database) == []


def test_a_violation_at_commit_is_retried_by_the_policy(outbox, run, database):
    @outbox.task(name="orphan", transactional=True, retry=RetryPolicy(max_attempts=2, wait=0))
    def orphan(ctx: TaskContext) -> None:
        write(ctx, "never")
        ctx.connection.execute(insert(Child).values(parent=404))  # checked at commit

    handle = orphan.using(outbox).enqueue()
    run()
    task = outbox.store.get(handle.id)
    assert (task.status, task.attempt, task.result) == (TaskStatus.FAILED, 2, None)
    assert "IntegrityError" in task.last_error
    expected = [EventType.CREATED, EventType.CLAIMED, EventType.RETRY_SCHEDULED, EventType.CLAIMED, EventType.FAILED]
    assert types(outbox, handle) == expected
    assert notes(database) == []


def test_a_deferred_constraint_is_checked_only_at_the_commit(outbox, run, database):
    @outbox.task(name="family", transactional=True)
    def family(ctx: TaskContext) -> None:
        ctx.connection.execute(insert(Child).values(parent=1))
        ctx.connection.execute(insert(Parent).values(id=1, name="late"))

    handle = family.using(outbox).enqueue()
    run()
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED


def test_a_database_error_that_the_handler_ignores_never_causes_a_partial_commit(outbox, run, database):
    """PostgreSQL has aborted the whole transaction by then. SQLite has rolled back only the statement."""

    @outbox.task(name="swallows", transactional=True, retry=ONCE)
    def swallows(ctx: TaskContext) -> None:
        write(ctx, "before")
        try:
            ctx.connection.execute(insert(Parent), [{"name": "x"}, {"name": "x"}])
        except IntegrityError:
            return

    handle = swallows.using(outbox).enqueue()
    run()
    completed = outbox.store.get(handle.id).status is TaskStatus.COMPLETED
    assert completed is (database.name == "sqlite")
    assert notes(database) == (["before"] if completed else [])


# Properties of the handler's transaction

SETTINGS = (
    "SELECT name, setting FROM pg_settings WHERE name IN ('transaction_isolation', 'enable_seqscan', 'enable_bitmapscan',"
    " 'enable_nestloop', 'jit', 'statement_timeout', 'lock_timeout', 'synchronous_commit', 'transaction_read_only')"
)


def settings(connection):
    return dict(connection.exec_driver_sql(SETTINGS).all())


@on_postgresql
def test_the_handler_has_the_settings_of_the_engine_and_read_committed(database):
    """This does not depend on the engine's default, and the pooled connection has its old settings afterwards."""
    options = (
        "-c statement_timeout=77s -c default_transaction_read_only=on -c default_transaction_isolation=serializable"
    )
    url = {"isolation_level": "SERIALIZABLE", "pool_size": 1, "max_overflow": 0, "connect_args": {"options": options}}
    engine = database.own(create_engine(database.url, **url))
    outbox, inside = Outbox(engine), {}

    @outbox.task(name="child", queue="never worked on")
    def child() -> None: ...

    @outbox.task(name="look", transactional=True)
    def look(ctx: TaskContext) -> None:
        inside["first"] = settings(ctx.connection)
        child.enqueue()
        inside["after an enqueue"] = settings(ctx.connection)

    with engine.connect() as connection:
        outside = settings(connection)
    handle = look.using(outbox).enqueue()
    worker = outbox.worker(notifications=False, queues=["default"])
    worker.start(burst=True)
    until(lambda: not worker._parts.claim_loop.is_alive())
    worker.stop()
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED
    assert outside["transaction_isolation"] == "serializable"
    assert outside["statement_timeout"] == "77000"
    expected = {**outside, "transaction_isolation": "read committed", "transaction_read_only": "off"}
    assert inside == {"first": expected, "after an enqueue": expected}
    with engine.connect() as connection:
        assert settings(connection) == outside


@on_postgresql
def test_heartbeats_continue_while_the_transaction_is_open(database, outbox, work):
    gate = threading.Event()

    @outbox.task(name="long", transactional=True, lease=2)
    def long(ctx: TaskContext) -> bool:
        write(ctx, "long")
        gate.wait(60)
        return ctx.lost

    handle = long.using(outbox).enqueue()
    work(recover_every=0.05, heartbeat=0.2)
    first = until(lambda: outbox.store.get(handle.id).lease_expires_at)
    until(lambda: outbox.store.get(handle.id).lease_expires_at > first + timedelta(seconds=2.2))
    gate.set()
    task = until(lambda: (t := outbox.store.get(handle.id)).completed_at and t)
    assert (task.status, task.result, task.recovery_attempts) == (TaskStatus.COMPLETED, "false", 0)
    assert notes(database) == ["long"]


@on_postgresql
def test_several_transactional_tasks_run_simultaneously(database, outbox, run):
    together = threading.Barrier(4)

    @outbox.task(name="meet", transactional=True, retry=ONCE)
    def meet(ctx: TaskContext, n: int) -> None:
        write(ctx, str(n))
        together.wait(60)

    meet.using(outbox).enqueue_many([(n,) for n in range(4)])
    run(concurrency=4)
    assert notes(database) == ["0", "1", "2", "3"]


@on_sqlite
def test_on_sqlite_transactional_tasks_run_one_by_one(database, outbox, work):
    inside, most, gate = [], [], threading.Event()

    @outbox.task(name="turn", transactional=True)
    def turn(ctx: TaskContext, n: int) -> None:
        inside.append(n)
        most.append(len(inside))
        write(ctx, str(n))
        gate.wait(60)
        inside.remove(n)

    begun = []
    handles = turn.using(outbox).enqueue_many([(n,) for n in range(4)])
    work(concurrency=4, on_failpoint=lambda point: point is Failpoint.BEFORE_START and begun.append(1))
    until(lambda: len(begun) == 4 and inside)
    gate.set()
    until(lambda: all(outbox.store.get(handle.id).completed_at for handle in handles))
    assert set(most) == {1}
    assert notes(database) == ["0", "1", "2", "3"]


# Exactly once


def test_a_commit_that_is_not_confirmed_completes_the_task_once(outbox, work, database, monkeypatch, caplog):
    """The transaction is committed, but its worker is told that the connection broke."""
    real, lost = Transactions.transaction, []

    @contextmanager
    def losing(store, begin):
        with real(store, begin) as target:
            yield target
        if begin == "handler" and not lost:
            lost.append(begin)
            raise helpers.lost_connection(database)

    monkeypatch.setattr(Transactions, "transaction", losing)

    @outbox.task(name="once", transactional=True, retry=RetryPolicy(max_attempts=5, wait=0))
    def once(ctx: TaskContext) -> None:
        write(ctx, "once")

    handle = once.using(outbox).enqueue()
    worker = work()
    until(lambda: "is discarded" in caplog.text)
    worker.stop()
    assert lost
    assert types(outbox, handle) == [EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED]
    assert notes(database) == ["once"]


def test_a_connection_lost_before_the_commit_runs_the_task_again(outbox, run, database, monkeypatch):
    real, lost = Transactions.transaction, []

    @contextmanager
    def losing(store, begin):
        with real(store, begin) as target:
            yield target
            if begin == "handler" and not lost:
                lost.append(begin)
                raise helpers.lost_connection(database)

    monkeypatch.setattr(Transactions, "transaction", losing)

    @outbox.task(name="again", transactional=True, retry=RetryPolicy(max_attempts=5, wait=0))
    def again(ctx: TaskContext) -> None:
        write(ctx, f"attempt {ctx.attempt}")

    monkeypatch.setattr(task_runner, "FIRST_INTERRUPTION_DELAY", timedelta(0))
    handle = again.using(outbox).enqueue()
    run()
    task = outbox.store.get(handle.id)
    assert (task.status, task.attempt) == (TaskStatus.COMPLETED, 1)
    assert types(outbox, handle).count(EventType.RELEASED) == 1
    assert notes(database) == ["attempt 1"]


def test_the_handler_runs_once_even_if_beginning_its_transaction_is_retried(outbox, run, database, monkeypatch):
    real, failures, runs = Transactions.transaction, [], []

    @contextmanager
    def failing(store, begin):
        if begin == "handler" and len(failures) < 2:
            failures.append(begin)
            raise helpers.lost_connection(database)
        with real(store, begin) as target:
            yield target

    monkeypatch.setattr(Transactions, "transaction", failing)

    @outbox.task(name="begun", transactional=True)
    def begun(ctx: TaskContext) -> None:
        runs.append(ctx.attempt)
        write(ctx, "begun")

    handle = begun.using(outbox).enqueue()
    run()
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED
    assert (len(failures), runs, notes(database)) == (2, [1], ["begun"])


@pytest.mark.in_turn
def test_effects_happen_exactly_once_despite_random_failures(outbox, run, database, monkeypatch):
    monkeypatch.setattr("outboxq.worker.executor.SHORTEST_SNOOZE", timedelta(0))
    chance = random.Random(20)
    moods = [chance.choice(["good", "raise", "cancel", "snooze", "flush", "commit", "result"]) for _ in range(100)]

    @outbox.task(name="effect", transactional=True, retry=RetryPolicy(max_attempts=2, wait=0))
    def effect(ctx: TaskContext, n: int) -> object:
        ctx.session.add(Effect(note=str(ctx.task_id)))
        mood = moods[n]
        if ctx.attempt == 2 and n % 2:  # every second task succeeds in its second attempt
            mood = "good"
        if mood == "raise":
            raise ValueError(n)
        if mood == "cancel":
            return Cancel("no")
        if mood == "snooze":
            moods[n] = "good"
            return Snooze(0)
        if mood == "flush":
            ctx.session.add_all([Parent(name="same"), Parent(name="same")])
        if mood == "commit":
            ctx.connection.execute(insert(Child).values(parent=404))
        return object() if mood == "result" else None

    handles = effect.using(outbox).enqueue_many([(n,) for n in range(100)])
    run(concurrency=4)
    statuses = {handle.id: outbox.store.get(handle.id).status for handle in handles}
    assert set(statuses.values()) == {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED}
    completed = sorted(str(task_id) for task_id, status in statuses.items() if status is TaskStatus.COMPLETED)
    assert notes(database) == completed
    assert 20 < len(completed) < 80


def test_a_plain_and_a_transactional_task_share_a_worker(outbox, run, database):
    @outbox.task(name="plain")
    def plain() -> None: ...

    @outbox.task(name="written", transactional=True)
    def written(ctx: TaskContext) -> None:
        write(ctx, "x")

    handles = []
    for _ in range(5):
        handles += [plain.using(outbox).enqueue(), written.using(outbox).enqueue()]
    run()
    assert {outbox.store.get(handle.id).status for handle in handles} == {TaskStatus.COMPLETED}
    assert notes(database) == ["x"] * 5


def test_no_connection_stays_checked_out_or_in_a_transaction(outbox, engine, run, database):
    @outbox.task(name="mixed", transactional=True, retry=ONCE)
    def mixed(ctx: TaskContext, n: int) -> None:
        write(ctx, "x")
        if n % 2:
            raise ValueError(n)

    mixed.using(outbox).enqueue_many([(n,) for n in range(4)])
    run()
    assert engine.pool.checkedout() == 0
    with engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        in_transaction = raw.in_transaction if isinstance(raw, sqlite3.Connection) else raw.info.transaction_status != 0
        assert not in_transaction


@on_sqlite
def test_on_sqlite_a_late_heartbeat_response_does_not_end_the_lease_of_a_handler(outbox):
    """The heartbeat commits, and the handler gets SQLite's only lock before the worker reads the answer."""
    beaten, holds, beats_again = threading.Event(), threading.Event(), threading.Event()

    @outbox.task(name="long", transactional=True, retry=ONCE)
    def long(ctx: TaskContext) -> bool:
        first = ctx.deadline
        holds.set()
        assert beats_again.wait(60)
        return ctx.deadline == first

    def at(point: Failpoint) -> None:
        if point is Failpoint.BEFORE_START:
            assert beaten.wait(60)
        elif point is Failpoint.BEFORE_BEAT and holds.is_set():
            beats_again.set()
        elif point is Failpoint.AFTER_BEAT:
            beaten.set()
            assert holds.wait(60)

    handle = long.using(outbox).enqueue()
    outbox.worker(notifications=False, heartbeat=0.05, concurrency=1, on_failpoint=at).run(burst=True)
    assert outbox.result(handle.id, timeout=0) is True
