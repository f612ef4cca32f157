"""A claim is not flushed: a server that crashes may take it back, and nothing comes of that but another claim."""

from __future__ import annotations

from uuid import uuid4

import pytest

from outboxq import LeaseLost, migrations
from outboxq.engine import make_engine
from outboxq.model import NewTask, TaskStatus
from outboxq.store import Store
from outboxq.uuid7 import uuid7
from tests import postgres


@pytest.fixture
def crashing():
    """A server that flushes only what it is told to, and a store in it."""
    server = postgres.start(prefer="own", durable=True, settings={"wal_writer_delay": "10s"})
    try:
        engine = make_engine(server.create_database())
        migrations.upgrade(engine)
        yield server, Store(engine)
        engine.dispose()
    finally:
        server.stop()


def test_a_claim_that_a_crash_took_back_is_fenced_although_the_next_has_its_token(crashing):
    server, store = crashing
    task = store.enqueue(NewTask(id=uuid7(), task_name="tests.work", args="{}"))
    [lost] = store.claim_ready_task(1, worker_id=uuid4())
    server.restart("immediate")
    assert store.get(task.id).status is TaskStatus.READY, "the claim survived the crash: the test proved nothing"
    [claim] = store.claim_ready_task(1, worker_id=uuid4())
    assert claim.lease_token == lost.lease_token
    with pytest.raises(LeaseLost):
        store.complete(lost)
    store.complete(claim)
    server.restart("immediate")
    assert store.get(task.id).status is TaskStatus.COMPLETED, "a completion is flushed, and the claim with it"
    assert store.verify() == []
