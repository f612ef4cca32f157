"""Batches and chains in a test, in a transaction that is rolled back and in one that is committed."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from sqlalchemy.orm import Session

from outboxq import Outbox, RetryPolicy, TaskContext, TaskFailed
from outboxq.testing import Harness


@pytest.fixture
def seen():
    return []


@pytest.fixture
def outbox(database):
    return Outbox(database.host)


@pytest.fixture
def work(outbox, seen):
    """Enqueue a batch and a chain in a session; record their results."""

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

    @outbox.task(name="half")
    def half(ctx: TaskContext) -> int:
        return ctx.previous // 2  # type: ignore[no-any-return]

    @outbox.task(name="keep")
    def keep(ctx: TaskContext) -> None:
        seen.append(ctx.previous)

    def enqueue(session):
        with outbox.batch(using=session, then=report.call()) as batch:
            add.using(batch).enqueue_many([(n,) for n in (1, 2, 3)])
        outbox.chain(add.call(4), double.call(), keep.call()).using(session).enqueue()

    return enqueue


def test_then_tasks_run_in_a_transaction_that_is_rolled_back(database, outbox, work, seen):
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


def test_then_tasks_run_if_the_test_commits(outbox, work, seen):
    with Harness(outbox) as harness:
        with Session(outbox.store.bound_engine) as session, session.begin():
            work(session)
        harness.drain(raises=False)
    assert sorted(map(str, seen)) == ["(3, 1)", "8"]


@pytest.fixture
def within(database, outbox):
    """A harness in a transaction that is rolled back, and its connection."""
    with database.host.connect() as connection, Harness(outbox, using=connection) as harness:
        yield harness, connection
    assert database.counts() == (0, 0, 0)


def test_inline_runs_then_tasks(outbox, work, seen, within):
    """A batch's tasks run when its block ends, so after an error of one task, the `then` task still follows."""
    harness, connection = within
    with harness.inline(), pytest.raises(ValueError, match="three"):
        work(connection)
    assert seen == [(3, 1)]
    add, double, keep = map(outbox.tasks.get, ("add", "double", "keep"))
    with harness.inline():
        chain = outbox.chain(add.call(4), double.call(), keep.call()).using(outbox).enqueue()
        assert seen[1:] == [8]
        assert outbox.result(chain.task_ids[1], timeout=60) == 8
        with outbox.batch(using=connection, then=outbox.tasks.get("report").call()) as batch:
            add.using(batch).enqueue(1)
            with pytest.raises(TimeoutError, match="has not ended: 1 of 1 task of"):
                batch.result(timeout=0)
        with pytest.raises(ZeroDivisionError), outbox.batch(using=outbox) as gone:
            add.using(gone).enqueue(1)
            _ = 1 // 0
        assert add.using(connection).enqueue(7).result() == 7
    before = len(harness.enqueued())
    add.using(connection).enqueue(8)
    assert harness.enqueued(add, 8, status="Ready"), "tasks no longer run inline"
    assert len(harness.enqueued()) == before + 1


@pytest.mark.parametrize("is_inline", [False, True], ids=["drain", "inline"])
def test_chains_and_batches_have_results_inline_and_after_a_drain(outbox, work, within, is_inline):
    harness, connection = within
    add, half = outbox.tasks.get("add"), outbox.tasks.get("half")
    report = outbox.task(name="count")(_count)
    with harness.inline() if is_inline else nullcontext():
        chain = outbox.chain(add.call(4), half.call()).using(connection).enqueue()
        with outbox.batch(using=connection, then=report.call()) as batch:
            add.using(batch).enqueue_many([(1,), (2,)])
        with outbox.batch(using=connection) as alone:
            add.using(alone).enqueue(1)
    if not is_inline:
        with pytest.raises(
            TimeoutError, match=r"is waiting for task .* \(add\), which is Ready; in a test, only drain"
        ):
            chain.result(timeout=60)
        with pytest.raises(TimeoutError, match=r"2 of 2 tasks .*; in a test, only drain\(\) and inline"):
            batch.result()
        harness.drain()
    assert (chain.result(timeout=60), batch.result(), alone.result().completed) == (2, 2, 1)


def test_the_policy_cancel_cancels_other_tasks_after_a_failure(outbox, work, within):
    harness, connection = within
    add, report = outbox.tasks.get("add"), outbox.task(name="count")(_count)
    with outbox.batch(using=connection, then=report.call(), on_failed="cancel") as batch:
        add.using(batch).enqueue_many([(1,), (3,), (2,)])
    harness.drain(raises=False)
    assert [one.status for one in harness.enqueued(add)] == ["Completed", "Failed", "Cancelled"]
    assert batch.result() == 3


def test_waiting_for_a_stopped_chain_fails(outbox, work, within):
    harness, connection = within
    add, half = outbox.tasks.get("add"), outbox.tasks.get("half")
    chain = outbox.chain(add.call(3), half.call()).using(connection).enqueue()
    harness.drain(raises=False)
    with pytest.raises(TaskFailed, match="is waiting for a dead letter: task .* three"):
        chain.result()


def _count(ctx: TaskContext) -> int:
    return ctx.batch.size
