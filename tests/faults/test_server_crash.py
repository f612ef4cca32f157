"""A crash of the server may undo only claims and ends that are not flushed. All other commits survive."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from outboxq import LeaseLost, migrations
from outboxq.database.engine import make_engine
from outboxq.model import Claim, EventType, NewTask, Outcome, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests import postgres
from tests.conftest import Clock

_NO_FLUSHES = {"wal_writer_delay": "10s", "autovacuum": "off", "bgwriter_lru_maxpages": "0", "checkpoint_timeout": "1h"}


@pytest.fixture
def crashing():
    """A server that flushes only on request, and a store in it."""
    server = postgres.start(prefer="own", durable=True, settings=_NO_FLUSHES)
    try:
        engine = make_engine(server.create_database())
        migrations.upgrade(engine)
        yield server, Store(engine)
        engine.dispose()
    finally:
        server.stop()


def test_a_claim_undone_by_a_crash_is_fenced_although_the_next_one_has_its_token(crashing):
    server, store = crashing
    task = store.enqueue(NewTask(id=uuid7(), task_name="tests.work", args="{}"))
    [lost] = store.claim_ready_task(1, worker_id=uuid4())
    server.restart("immediate")
    assert store.get(task.id).status is TaskStatus.READY, "the claim survived the crash, so the test proved nothing"
    [claim] = store.claim_ready_task(1, worker_id=uuid4())
    assert claim.lease_token == lost.lease_token
    with pytest.raises(LeaseLost):
        store.complete(lost)
    store.complete(claim)
    server.restart("immediate")
    assert store.get(task.id).status is TaskStatus.COMPLETED, "a completion is flushed, together with the claim"
    assert store.verify() == []


def test_acknowledged_commits_survive_a_crash_and_only_asynchronous_ends_may_repeat(crashing):
    server, store = crashing
    clock = Clock()
    store = Store(store.engine, clock=clock)
    relaxed, transactional = (enqueued(store, key) for key in ("relaxed", "transactional"))
    claims = {claim.id: claim for claim in store.claim_ready_task(2, worker_id=uuid4())}
    crash = Crash(server, store)

    # A unit's commit is flushed, together with the tasks that it enqueued and the claims before it in the log.
    with store.unit() as unit:
        unit.connection.exec_driver_sql("CREATE TABLE ledger AS SELECT 1 AS paid")
        follow_up = store.enqueue(new("follow-up"), using=unit.connection).id
        assert store.finish([completed(claims[transactional])], using=unit.connection) == frozenset()
    assert store.finish([completed(claims[relaxed])], durable=False) == frozenset()
    assert statuses(store, relaxed, transactional) == [TaskStatus.COMPLETED, TaskStatus.COMPLETED]
    crash()
    assert statuses(store, transactional, follow_up) == [TaskStatus.COMPLETED, TaskStatus.READY]
    with store.bound_engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT paid FROM ledger").scalars().all() == [1]
    assert store.get(relaxed).status is TaskStatus.RUNNING, "the end survived the crash, so the test proved nothing"
    assert [event.event_type for event in store.history(relaxed)] == [EventType.CREATED, EventType.CLAIMED]

    # Its lease expires like a dead worker's, and it runs again.
    clock.advance(timedelta(minutes=2))
    assert [task.id for task in store.recover()] == [relaxed]
    again = {claim.id: claim for claim in store.claim_ready_task(2, worker_id=uuid4())}
    assert set(again) == {relaxed, follow_up}
    with pytest.raises(LeaseLost):
        store.complete(claims[relaxed])
    assert store.finish([completed(claim) for claim in again.values()]) == frozenset()
    crash()
    assert statuses(store, relaxed, transactional, follow_up) == [TaskStatus.COMPLETED] * 3


def test_a_non_durable_end_undone_by_a_crash_keeps_later_tasks_of_its_key_waiting(crashing):
    server, store = crashing
    clock = Clock()
    store = Store(store.engine, clock=clock)
    for _ in range(10):  # the server also flushes at the end of each page of its log
        first, second = (store.enqueue(new("step", partition_key="order")).id for _ in range(2))
        [claim] = store.claim_ready_task(2, worker_id=uuid4())
        enqueued(store, "any")  # flushes the claim
        assert store.finish([completed(claim)], durable=False) == frozenset()
        [lost] = [one for one in store.claim_ready_task(2, worker_id=uuid4()) if one.partition_key]
        assert lost.id == second
        Crash(server, store)()
        if statuses(store, first, second) == [TaskStatus.RUNNING, TaskStatus.READY]:
            break
        clock.advance(timedelta(minutes=2))
        store.recover()
        while claims := store.claim_ready_task(2, worker_id=uuid4()):
            store.finish([completed(one) for one in claims])
    else:
        pytest.fail("no crash undid anything, so the test proved nothing")
    assert [one.partition_key for one in store.claim_ready_task(2, worker_id=uuid4())] == [None]
    clock.advance(timedelta(minutes=2))
    assert first in {task.id for task in store.recover()}
    order = []
    while claims := store.claim_ready_task(2, worker_id=uuid4()):
        order += [one.id for one in claims if one.partition_key]
        store.finish([completed(one) for one in claims])
    assert order == [first, second]
    assert store.verify() == []


class Crash:
    """A crash of the server, followed by a restart. The tables must be consistent."""

    def __init__(self, server: postgres.Cluster, store: Store) -> None:
        self._server, self._store = server, store

    def __call__(self) -> None:
        self._server.restart("immediate")
        assert self._store.verify() == []


def new(name: str, **fields: object) -> NewTask:
    return NewTask(id=uuid7(), task_name=f"tests.{name}", args="{}", **fields)  # type: ignore[arg-type]


def enqueued(store: Store, name: str) -> UUID:
    return store.enqueue(new(name)).id


def completed(claim: Claim) -> Outcome:
    return Outcome(claim=claim, event_type=EventType.COMPLETED)


def statuses(store: Store, *ids: UUID) -> list[TaskStatus]:
    return [store.get(one).status for one in ids]
