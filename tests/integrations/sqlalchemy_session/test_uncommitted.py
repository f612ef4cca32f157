"""Tasks that a Session loses: one warning if it is closed without a commit, and none after any intended end."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxq import Outbox, TaskContext
from outboxq.testing import Harness


@pytest.fixture
def engine(database):
    return database.host_engine()


@pytest.fixture
def outbox(engine, database):
    return Outbox(engine, schema=database.store.schema)


@pytest.fixture
def receipt(outbox):
    @outbox.task(name="shop.receipt", subscribe="order.paid")
    def receipt(order: int) -> None: ...

    return receipt


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "outboxq.store")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "outboxq.store"]


class Failed(Exception):
    pass


def test_a_task_enqueued_after_the_last_commit_causes_a_warning(engine, database, receipt, warnings):
    with Session(engine) as session:
        receipt.using(session).enqueue(1)
        session.commit()
        receipt.using(session).enqueue(2)
    assert database.counts()[0] == 1
    [warning] = warnings()
    assert warning == (
        "1 task was written after the last commit of a Session, and is lost, because the Session was closed: shop.receipt; "
        "commit after the enqueue, or call rollback() if the loss is intended"
    )
    with Session(engine) as session:
        session.connection()
    assert len(warnings()) == 1, "there is only one warning"


def test_the_warning_counts_lost_tasks_and_events(engine, outbox, receipt, warnings):
    outbox.sync_subscriptions()
    with Session(engine) as session:
        receipt.using(session).enqueue_many([(1,), (2,)])
        outbox.chain(receipt.call(3)).using(session).enqueue()
        outbox.emit("order.paid", 4, using=session)
        outbox.emit("order.lost", 4, using=session)
        with outbox.batch(using=session) as batch:
            receipt.using(batch).enqueue(5)
    [warning] = warnings()
    assert warning.startswith(
        "4 tasks and 1 event were written after the last commit of a Session, and are lost, because the Session was closed: "
        "shop.receipt (4), order.paid; commit"
    )


def test_a_lost_task_in_a_released_savepoint_causes_a_warning(engine, receipt, warnings):
    with Session(engine) as session, session.begin_nested():
        receipt.using(session).enqueue(1)
    assert len(warnings()) == 1


def test_a_rolled_back_savepoint_does_not_hide_the_loss_of_an_earlier_task(engine, receipt, warnings):
    with Session(engine) as session:
        receipt.using(session).enqueue(1)
        with suppress(Failed), session.begin_nested():
            receipt.using(session).enqueue_many([(2,), (3,)])
            raise Failed
        with session.begin_nested():
            receipt.using(session).enqueue(4)
    [warning] = warnings()
    assert warning.startswith("2 tasks were written after the last commit of a Session, and are lost")


def test_a_lost_task_in_an_open_savepoint_causes_a_warning(engine, receipt, warnings):
    with Session(engine) as session:
        session.begin_nested()
        receipt.using(session).enqueue(1)
        session.begin_nested()
        receipt.using(session).enqueue(2)
    assert len(warnings()) == 1
    assert warnings()[0].startswith("2 tasks were written")


def committed(session, enqueue):
    enqueue()
    session.commit()


def in_a_block(session, enqueue):
    with session.begin():
        enqueue()


def in_a_savepoint(session, enqueue):
    with session.begin_nested():
        enqueue()
    session.commit()


def rolled_back(session, enqueue):
    enqueue()
    session.rollback()


def rolled_back_to_a_savepoint(session, enqueue):
    savepoint = session.begin_nested()
    enqueue()
    savepoint.rollback()


def rolled_back_around_a_savepoint(session, enqueue):
    savepoint = session.begin_nested()
    with session.begin_nested():
        enqueue()
    session.begin_nested()
    enqueue()
    savepoint.rollback()


def ended_by_an_exception(session, enqueue):
    enqueue()
    raise Failed


def ended_by_an_exception_in_a_block(session, enqueue):
    with session.begin():
        enqueue()
        raise Failed


def found_by_its_key(session, enqueue):
    enqueue(idempotency_key="1")
    session.commit()
    enqueue(idempotency_key="1")


@pytest.mark.parametrize(
    "use",
    [
        committed,
        in_a_block,
        in_a_savepoint,
        rolled_back,
        rolled_back_to_a_savepoint,
        rolled_back_around_a_savepoint,
        ended_by_an_exception,
        ended_by_an_exception_in_a_block,
        found_by_its_key,
    ],
)
def test_no_warning_after_a_commit_a_rollback_or_an_exception(engine, receipt, warnings, use):
    with suppress(Failed), Session(engine) as session:
        use(session, lambda **options: receipt.using(session, **options).enqueue(1))
    assert warnings() == []


def test_no_warning_about_a_session_in_another_transaction(engine, receipt, warnings):
    with engine.connect() as connection:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            receipt.using(session).enqueue(1)
        receipt.using(connection).enqueue(2)
    assert warnings() == []


def test_no_warning_about_a_session_in_a_harness(engine, outbox, receipt, warnings):
    with Session(engine) as session, Harness(outbox, using=session) as harness:
        receipt.using(session).enqueue(1)
        assert len(harness.drain()) == 1
    assert warnings() == []


def test_a_handler_causes_the_warning_unless_it_is_transactional(engine, database, warnings):
    sessions = scoped_session(sessionmaker(engine))
    outbox = Outbox(engine, schema=database.store.schema, session=sessions)

    @outbox.task(name="shop.ship", queue="other")
    def ship() -> None: ...

    @outbox.task(name="shop.plain")
    def plain(fails: bool = False) -> None:
        ship.enqueue()
        if fails:
            raise Failed

    @outbox.task(name="shop.joined", transactional=True)
    def joined(ctx: TaskContext) -> None:
        ship.enqueue()
        ship.using(sessions()).enqueue()
        ship.using(ctx.session).enqueue()

    for task, args in ((plain, (False,)), (plain, (True,)), (joined, ())):
        task.using(outbox).enqueue(*args)
    outbox.worker(notifications=False, recover_every=60, queues=["default"]).run(burst=True)
    [warning] = warnings()
    assert "is lost, because the Session was closed: shop.ship; commit" in warning
    assert len(outbox.store.tasks(task="shop.ship")) == 3


def test_no_warning_about_asynchronous_sessions_whose_exception_is_not_visible(postgresql, warnings):
    engine = create_async_engine(postgresql.url)
    outbox = Outbox(create_engine(postgresql.url), schema=postgresql.store.schema)
    receipt = outbox.task(name="shop.receipt")(lambda: None)

    async def run() -> None:
        with suppress(Failed):
            async with AsyncSession(engine) as session:
                await session.run_sync(lambda s: receipt.using(s).enqueue())
                raise Failed
        await engine.dispose()

    asyncio.run(run())
    assert warnings() == []
