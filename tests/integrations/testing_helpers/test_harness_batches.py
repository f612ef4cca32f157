"""Batches and chains in a test: in a transaction that is rolled back, and in one that is committed."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from outboxq import Outbox, RetryPolicy, TaskContext
from outboxq.testing import Harness


@pytest.fixture
def seen():
    return []


@pytest.fixture
def outbox(database):
    return Outbox(database.host)


@pytest.fixture
def work(outbox, seen):
    """Enqueue a batch and a chain in a session, drain, and look."""

    @outbox.task(name="add", retry=RetryPolicy.never())
    def add(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    @outbox.task(name="report", transactional=True)
    def report(ctx: TaskContext) -> None:
        seen.append((sum(one.value for one in ctx.batch.results()), ctx.batch.failed))

    @outbox.task(name="double")
    def double(ctx: TaskContext) -> int:
        add.using(ctx.batch).enqueue(5)
        return 2 * ctx.previous

    @outbox.task(name="keep")
    def keep(ctx: TaskContext) -> None:
        seen.append(ctx.previous)

    def enqueue(session):
        with outbox.batch(using=session, then=report.call()) as batch:
            add.using(batch).enqueue_many([(n,) for n in (1, 2, 3)])
        outbox.chain(add.call(4), double.call(), keep.call()).using(session).enqueue()

    return enqueue


def test_what_follows_runs_in_a_transaction_that_is_rolled_back(database, outbox, work, seen):
    with database.host.connect() as connection:
        transaction = connection.begin()
        with (
            Session(connection, join_transaction_mode="create_savepoint") as session,
            Harness(outbox, using=connection) as harness,
        ):
            work(session)
            session.commit()
            harness.drain(raises=False)
        assert sorted(map(str, seen)) == ["(3, 1)", "8"]
        transaction.rollback()
    assert database.counts() == (0, 0, 0)
    assert outbox.store.batches.list() == []


def test_what_follows_runs_where_the_test_commits(outbox, work, seen):
    with Harness(outbox) as harness:
        with Session(outbox.store.bound_engine) as session, session.begin():
            work(session)
        harness.drain(raises=False)
    assert sorted(map(str, seen)) == ["(3, 1)", "8"]


def test_what_follows_an_inline_batch_is_run_by_drain(database, outbox, work, seen):
    with database.host.connect() as connection:
        transaction = connection.begin()
        with Harness(outbox, using=connection) as harness:
            with harness.inline(), pytest.raises(ValueError, match="three"):
                work(connection)
            with harness.inline():
                outbox.chain(outbox.tasks.get("add").call(4), outbox.tasks.get("keep").call()).using(
                    connection
                ).enqueue()
            assert seen == []
            harness.drain(raises=False)
        assert 4 in seen
        transaction.rollback()
