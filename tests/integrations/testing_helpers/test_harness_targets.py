"""A harness within each kind of test transaction, and without one."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import unittest
from datetime import timedelta
from typing import Any

import django.conf
import django.utils.functional
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxq import ConfigurationError, EventType, InvalidTarget, Outbox, TaskContext
from outboxq.testing import Harness, OutboxTests
from tests.integrations.testing_helpers.shop import Base, Order


@pytest.fixture
def raw(database):
    """A connection of the driver itself, in a transaction."""
    if database.name == "sqlite":
        connection: Any = sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
    else:
        url = make_url(database.url).set(drivername="postgresql")
        connection = psycopg.connect(url.render_as_string(hide_password=False))
    yield connection
    connection.rollback()
    connection.close()
    assert database.counts() == (0, 0, 0)


@pytest.mark.parametrize("in_session", [False, True], ids=["connection", "session"])
def test_a_sqlite_engine_without_real_savepoints_is_refused_immediately(sqlite, in_session):
    engine = create_engine(sqlite.url)
    with engine.connect() as connection, Session(connection) as session:
        harness = Harness(Outbox(), using=session if in_session else connection)
        with pytest.raises(InvalidTarget, match=r"call outboxq\.configure_sqlite\(engine\) once"):
            harness.__enter__()
        with pytest.raises(ConfigurationError, match="works only inside a with block"):
            _ = harness.store
    engine.dispose()


def test_a_locked_file_is_reported_as_such_in_a_harness(sqlite):
    impatient = create_engine(sqlite.url, connect_args={"timeout": 0})
    with sqlite.host_engine().begin() as connection, Harness(Outbox(), using=connection) as harness:
        with impatient.connect() as other, pytest.raises(OperationalError, match="database is locked") as raised:
            harness.app.store.run(lambda _: other.exec_driver_sql("BEGIN IMMEDIATE"))
        assert "has kept the database locked" in raised.value.__notes__[0]
    impatient.dispose()


def test_a_connection_of_the_driver_works(raw):
    outbox = Outbox()
    with Harness(outbox, using=raw) as harness:

        @outbox.task(name="break_it", transactional=False)
        def break_it() -> str:
            raw.execute("CREATE TABLE rows_of_mine (id integer)")
            raw.execute("SELECT * FROM there_is_no_such_table")
            return "never"

        @outbox.task(name="fine")
        def fine() -> int:
            return raw.execute("SELECT 1").fetchone()[0]

        @outbox.task(name="joined", transactional=True)
        def joined(ctx: TaskContext) -> None: ...

        break_it.using(raw).enqueue()
        fine.using(raw).enqueue()
        with pytest.raises((psycopg.errors.UndefinedTable, sqlite3.OperationalError), match="there_is_no_such_table"):
            harness.drain()
        assert [task.status for task in harness.enqueued()] == ["Ready", "Completed"]
        joined.using(raw).enqueue()
        with pytest.raises(InvalidTarget, match="writes through SQLAlchemy"):
            harness.drain()


class TestOutsideTheTransaction:
    """Tests for PostgreSQL only: on SQLite, another connection would wait for the test's transaction."""

    @pytest.fixture
    def harness(self, postgresql):
        outbox = Outbox()
        outbox.task(name="shop.work")(lambda: None)
        engine = postgresql.host_engine()
        with engine.connect() as connection, connection.begin() as begun, Harness(outbox, using=connection) as harness:
            yield harness
            begun.rollback()

    @staticmethod
    def work(harness):
        return harness.app.tasks.get("shop.work")

    def test_a_session_on_another_connection_causes_one_warning(self, postgresql, harness):
        with Session(postgresql.host_engine()) as other:
            with pytest.warns(
                UserWarning, match="through a connection other than the harness's.* let the test commit"
            ) as found:
                self.work(harness).using(other).enqueue()
            assert [one.filename for one in found] == [__file__]
            self.work(harness).using(other).enqueue()
            harness.app.emit("order.placed", using=other)

    def test_an_async_session_causes_the_warning(self, postgresql, harness):
        async def enqueue() -> None:
            engine = create_async_engine(postgresql.url)
            async with AsyncSession(engine) as session:
                await session.run_sync(lambda s: self.work(harness).using(s).enqueue())
            await engine.dispose()

        with pytest.warns(UserWarning, match="an AsyncSession on an AsyncEngine always needs a test that commits"):
            asyncio.run(enqueue())

    def test_reading_through_another_connection_causes_no_warning(self, postgresql, harness):
        with Session(postgresql.host_engine()) as other:
            assert harness.app.store.tasks(using=other) == []

    def test_the_driver_connection_of_the_harness_causes_no_warning(self, harness):
        raw = harness._using.connection.driver_connection
        self.work(harness).using(raw).enqueue()
        assert len(harness.drain()) == 1


@pytest.mark.parametrize(
    ("bound", "options"),
    [(True, {}), (False, {}), (False, {"twophase": True})],
    ids=["to the transaction", "to an engine", "in two phases"],
)
def test_a_harness_accepts_a_scoped_session(database, connection, bound, options):
    """Each handler has its own session in the test's transaction. The test gets its own session back."""
    bind = connection if bound else database.host_engine()
    factory = sessionmaker(bind, join_transaction_mode="create_savepoint", **options)
    scoped = scoped_session(factory)
    outbox = Outbox(session=scoped)

    @outbox.task(name="ship", transactional=False)
    def ship(order_id: int) -> None:
        seen.append(scoped())
        scoped.get(Order, order_id).state = "shipped"
        scoped.commit()
        book.enqueue(order_id)
        scoped.commit()

    @outbox.task(name="book", transactional=True)
    def book(order_id: int) -> None:
        seen.append(scoped())
        scoped.get(Order, order_id).state += " and booked"

    seen: list[Session] = []
    mine = Session(connection, join_transaction_mode="create_savepoint")
    scoped.registry.set(mine)
    with Harness(outbox, using=scoped) as harness:
        order = Order(id=7)
        scoped.add(order)
        ship.enqueue(7)
        assert [one.task_name for one in harness.drain()] == ["ship", "book"]
        assert order.state == "shipped and booked"
    assert scoped() is mine
    assert mine not in seen
    assert len(seen) == 2
    scoped.remove()


def test_a_scoped_session_that_chooses_its_engine_joins_the_transaction_of_the_harness(database, connection):
    """Otherwise a handler would not see the test's rows, and what it commits would outlive the test."""
    engine = database.host_engine()

    class Routing(Session):
        def get_bind(self, *_, **__):
            return engine

    scoped = scoped_session(sessionmaker(class_=Routing))
    outbox = Outbox(session=scoped)

    @outbox.task(name="ship", transactional=False)
    def ship(order_id: int) -> None:
        scoped.get(Order, order_id).state = "shipped"
        scoped.commit()

    mine = Session(connection, join_transaction_mode="create_savepoint")
    with Harness(outbox, using=mine) as harness:
        order = Order(id=7)
        mine.add(order)
        ship.using(mine).enqueue(7)
        assert len(harness.drain()) == 1
        assert order.state == "shipped"
    scoped.remove()


class TestThatCommits:
    """A harness without `using=`, in separate transactions of the outbox."""

    @pytest.fixture
    def outbox(self, database):
        return Outbox(database.host_engine())

    def test_tasks_run_as_in_production(self, database, outbox):
        engine = database.host_engine()
        Base.metadata.create_all(engine)

        @outbox.task(name="ship")
        def ship(order_id: int) -> int:
            with Session(engine) as own, own.begin():
                own.add(Order(id=order_id))
            if order_id == 13:
                raise ValueError(order_id)
            return order_id

        @outbox.task(name="book", transactional=True)
        def book(ctx: TaskContext) -> None:
            ctx.session.add(Order(id=99))
            ship.using(delay=60).enqueue(2)

        @outbox.task(name="hear", subscribe="order.*")
        def hear(payload: int) -> None: ...

        before = database.add(database.store, task_name="older", queue="other").id
        try:
            with Harness(outbox) as harness, Session(engine) as session:
                ship.using(session).enqueue(1)
                harness.refute_enqueued()
                session.commit()
                book.using(outbox).enqueue()
                harness.emit("order.paid", 1)
                assert [one.task_name for one in harness.drain(queues=["default"])] == ["ship", "book", "hear"]
                assert harness.run(ship, 3).result == 3
                assert [one.result for one in harness.drain(queues=["default"], until=timedelta(minutes=1))] == [2]
                ship.using(outbox).enqueue(13)
                with pytest.raises(ValueError, match="13"):
                    harness.drain(queues=["default"])
                assert [order.id for order in session.query(Order).order_by(Order.id)] == [1, 2, 3, 13, 99]
                with pytest.raises(ConfigurationError, match="this Harness has none; pass using= to it"):
                    harness.inline().__enter__()
                assert before not in [task.id for task in harness.enqueued()]
            assert outbox.store.clock is None
            assert [event.event_type for event in database.store.history(before)] == [EventType.CREATED]
            assert database.counts()[0] == 6
        finally:
            Base.metadata.drop_all(engine)

    def test_the_original_clock_is_restored(self, outbox):
        with pytest.raises(ZeroDivisionError), Harness(outbox) as harness:
            assert outbox.store.clock is harness.clock
            raise ZeroDivisionError
        assert outbox.store.clock is None


def test_unittest_mixin_works(shop, connection, session):
    class Case(OutboxTests, unittest.TestCase):
        outboxq_app = shop.outbox

        def outboxq_using(self):
            return connection

        def test_one(self):
            shop.receipt.using(session).enqueue(7)
            self.harness.assert_enqueued(shop.receipt, 7)
            self.harness.drain()

        def test_two(self):
            self.harness.refute_enqueued(shop.receipt)
            self.harness.assert_enqueued(shop.receipt)

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert (result.testsRun, result.errors, len(result.failures)) == (2, [], 1)
    [(case, told)] = result.failures
    assert case._testMethodName == "test_two"
    assert "shop.receipt was not enqueued" in told
    assert "outboxq/testing" not in told
    assert type(shop.outbox) is Outbox


def test_unittest_refuses_the_wrong_order_of_bases():
    with pytest.raises(ConfigurationError, match=re.escape("write class Case(OutboxTests, TestCase)")):

        class Case(unittest.TestCase, OutboxTests): ...

    class Common(OutboxTests): ...

    class Right(Common, unittest.TestCase): ...

    with pytest.raises(ConfigurationError, match=re.escape("write class Wrong(Common, TestCase)")):

        class Wrong(unittest.TestCase, Common): ...


def test_unittest_cases_must_name_their_outbox(monkeypatch):
    # Replaces the settings, because other tests may have configured them, and reading them by name would load them.
    monkeypatch.setitem(django.conf.settings.__dict__, "_wrapped", django.utils.functional.empty)

    class Case(OutboxTests, unittest.TestCase):
        def test_one(self): ...

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert "outboxq_app = outbox" in result.errors[0][1]
