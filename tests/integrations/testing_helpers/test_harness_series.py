"""Many ticks in one advance: each handler has its own savepoint, inside one of SQLAlchemy's savepoints."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.orm import Session

from outboxq import Outbox, RetryPolicy, TaskContext
from outboxq.testing import Harness, TransactionEnded
from tests.integrations.testing_helpers.shop import Order

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def harness(connection):
    with Harness(Outbox(), using=connection) as harness:
        harness.clock.set(NOON)
        yield harness


def every_minute(harness, function) -> None:
    task = harness.app.task(name="tick", retry=RetryPolicy.never())(function)
    harness.app.periodic(every=MINUTE)(task)
    harness.drain()


def number_of(ctx: TaskContext) -> int:
    return round((ctx.tick - NOON) / MINUTE)


def orders(connection) -> list[int]:
    return list(connection.scalars(select(Order.id).order_by(Order.id)))


def test_a_database_error_undoes_only_the_handler_that_caused_it(harness, connection, sessions):
    def tick(ctx: TaskContext) -> None:
        with sessions() as session:
            session.add(Order(id=number_of(ctx)))
            session.commit()
        if number_of(ctx) == 3:
            connection.execute(text("SELECT * FROM there_is_no_such_table"))

    every_minute(harness, tick)
    ran = harness.advance(5 * MINUTE, raises=False)
    assert [one.outcome for one in ran] == ["task_completed"] * 2 + ["task_failed"] + ["task_completed"] * 2
    kept = {1, 2, 3, 4, 5} - ({3} if connection.dialect.name == "postgresql" else set())
    assert set(orders(connection)) == kept


def test_an_exception_keeps_what_its_handler_has_committed(harness, connection, sessions):
    def tick(ctx: TaskContext) -> None:
        with sessions() as session:
            session.add(Order(id=number_of(ctx)))
            session.commit()
        if number_of(ctx) == 2:
            raise ValueError

    every_minute(harness, tick)
    harness.advance(3 * MINUTE, raises=False)
    assert orders(connection) == [1, 2, 3]


def test_a_savepoint_that_a_handler_leaves_open_is_rolled_back(harness, connection, sessions):
    left = []

    def tick(ctx: TaskContext) -> None:
        left.append(session := sessions())
        session.add(Order(id=number_of(ctx)))
        session.flush()

    every_minute(harness, tick)
    assert len(harness.advance(3 * MINUTE)) == 3
    assert orders(connection) == []
    assert not connection.in_nested_transaction()


def test_a_plain_session_of_a_handler_on_the_connection_uses_a_savepoint(harness, connection):
    """As in `drain()`, the session's rollback must not end the test's transaction."""

    def tick(ctx: TaskContext) -> None:
        with Session(bind=connection) as session:
            session.add(Order(id=number_of(ctx)))
            if number_of(ctx) == 2:
                session.flush()
                session.rollback()
            session.commit()

    every_minute(harness, tick)
    assert len(harness.advance(3 * MINUTE)) == 3
    assert orders(connection) == [1, 3]


@pytest.mark.parametrize("end", [lambda made: made.rollback(), lambda made: made.commit()], ids=["rollback", "commit"])
def test_a_handler_that_ends_the_transaction_of_the_test_causes_an_error(database, end):
    outbox = Outbox()
    with database.host_engine().connect() as connection, Harness(outbox, using=connection) as harness:
        harness.clock.set(NOON)

        def tick(ctx: TaskContext) -> None:
            if number_of(ctx) == 2:
                end(connection.get_nested_transaction())

        every_minute(harness, tick)
        with pytest.raises(TransactionEnded, match='join_transaction_mode="create_savepoint"'):
            harness.advance(3 * MINUTE)
        connection.rollback()


def test_a_series_of_ticks_shares_one_sqlalchemy_savepoint(harness, connection):
    """Ticks in a series share one savepoint of SQLAlchemy's, which compiles the statements of each savepoint again."""
    named = []
    event.listen(connection, "savepoint", lambda _, name: named.append(name))
    every_minute(harness, lambda: None)
    named.clear()
    assert len(harness.advance(10 * MINUTE)) == 10
    assert len(named) == 1
    assert connection.scalar(select(func.count()).select_from(Order)) == 0
