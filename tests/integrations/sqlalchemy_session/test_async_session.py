"""`AsyncSession.run_sync`: the only way for a coroutine to enqueue in its own transaction."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outboxq import InvalidTarget, Outbox


@pytest.mark.parametrize("commits", [True, False])
def test_a_task_is_enqueued_in_the_transaction_of_an_async_session(postgresql, commits):
    outbox = Outbox(postgresql.engine)
    follow = outbox.task(name="follow")(lambda n: None)

    async def request():
        engine = create_async_engine(postgresql.url)
        async with AsyncSession(engine) as session:
            with pytest.raises(InvalidTarget, match="await (session|connection).run_sync"):
                follow.using(session).enqueue(1)
            await session.run_sync(lambda s: follow.using(s, idempotency_key="k").enqueue(2))
            async with session.begin_nested() as savepoint:
                await session.run_sync(lambda s: follow.using(s).enqueue(3))
                await savepoint.rollback()
            if commits:
                await session.commit()
        await engine.dispose()

    asyncio.run(request())
    assert [task.args for task in outbox.store.tasks()] == ['{"n":2}'] * commits


def test_other_calls_accept_the_session_as_the_error_advises(postgresql):
    outbox = Outbox(postgresql.engine)
    follow = outbox.task(name="follow", subscribe=["order.paid"])(lambda n: None)
    outbox.worker().run(burst=True)  # stores the subscription

    def write(session):
        outbox.emit("order.paid", {"n": 1}, using=session)
        with outbox.batch(using=session) as batch:
            follow.using(batch).enqueue(2)
        outbox.chain(follow.call(3)).using(session).enqueue()
        return outbox.inbox.accept("shop", "m-1", using=session)

    async def request():
        engine = create_async_engine(postgresql.url)
        async with AsyncSession(engine) as session:
            with pytest.raises(
                InvalidTarget, match=r"using=s to emit, batch and inbox\.accept.*chain\(…\)\.using\(s\)"
            ):
                outbox.emit("order.paid", {"n": 1}, using=session)
            assert await session.run_sync(write)
            await session.commit()
        await engine.dispose()

    asyncio.run(request())
    assert sorted(task.args for task in outbox.store.tasks()) == ['{"n":2}', '{"n":3}', '{"n":{"n":1}}']
