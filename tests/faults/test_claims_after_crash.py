"""After a crash of the server has undone a worker's claims, the worker runs none of these tasks twice."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from uuid import uuid4

import pytest

from outboxq import Outbox, TaskStatus, migrations
from outboxq.database.engine import make_engine
from outboxq.model import EventType
from outboxq.store import Store
from tests import postgres
from tests.waiting import until

pytestmark = pytest.mark.slow

_NO_FLUSHES = {"wal_writer_delay": "10s", "autovacuum": "off", "bgwriter_lru_maxpages": "0", "checkpoint_timeout": "1h"}


@pytest.fixture
def crashing():
    """A server that flushes only on request, and an outbox in it."""
    server = postgres.start(prefer="own", durable=True, settings=_NO_FLUSHES)
    try:
        engine = make_engine(server.create_database())
        migrations.upgrade(engine)
        yield server, Outbox(engine)
        engine.dispose()
    finally:
        server.stop()


class Runs:
    """A task whose first run waits at a gate, and the numbers with which it was called."""

    def __init__(self, outbox):
        self.gate, self.numbers = threading.Event(), []
        self.task = outbox.task(name="tests.work")(self._run)

    def _run(self, number: int) -> int:
        self.numbers.append(number)
        if number == 0 and self.numbers.count(0) == 1:
            self.gate.wait(60)
        return number


def statuses(outbox, handles):
    return [outbox.store.get(handle.id).status for handle in handles]


def crash(server, outbox, handles):
    server.restart("immediate")
    assert set(statuses(outbox, handles)) == {TaskStatus.READY}, "a claim survived the crash: the test proved nothing"


def test_a_prefetched_task_does_not_start_if_another_worker_has_claimed_it(crashing, caplog):
    server, outbox = crashing
    caplog.set_level(logging.INFO)
    runs = Runs(outbox)
    worker = outbox.worker(concurrency=1, prefetch=2, drain_timeout=20)
    worker.start()
    try:
        until(lambda: worker.health.listening)
        handles = runs.task.using(outbox).enqueue_many([(0,), (1,), (2,)])
        until(lambda: runs.numbers == [0] and len(worker._parts.leases.held()) == 3)
        crash(server, outbox, handles)
        other = {one.id for one in outbox.store.claim_ready_task(10, worker_id=uuid4())}
        assert other == {one.id for one in handles}
        until(lambda: worker._parts.leases.broke_at > 0)
        runs.gate.set()
        until(lambda: worker._parts.leases.held() == [])
    finally:
        runs.gate.set()
        worker.stop()
    assert runs.numbers == [0]
    assert caplog.text.count("its lease was lost before the task started") == 2
    assert set(statuses(outbox, handles)) == {TaskStatus.RUNNING}


def test_a_worker_that_reclaims_a_task_it_still_runs_continues_it(crashing, caplog):
    server, outbox = crashing
    caplog.set_level(logging.INFO)
    runs = Runs(outbox)
    worker = outbox.worker(concurrency=4, drain_timeout=20)
    worker.start()
    try:
        until(lambda: worker.health.listening)
        [handle] = runs.task.using(outbox).enqueue_many([(0,)])
        until(lambda: runs.numbers == [0])
        server.restart("immediate")
        until(lambda: "has claimed it again" in caplog.text)
        runs.gate.set()
        until(lambda: outbox.store.get(handle.id).completed_at)
    finally:
        runs.gate.set()
        worker.stop()
    assert Counter(runs.numbers) == {0: 1}
    events = [event.event_type for event in outbox.store.history(handle.id)]
    assert events == [EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED]
    assert Store(outbox.store.engine).verify() == []
