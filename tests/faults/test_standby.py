"""A server that only follows another takes no writes: a worker on it would never get anything done."""

from __future__ import annotations

import pytest

from outboxq import ConfigurationError, Outbox
from outboxq.model import NewTask
from outboxq.uuid7 import uuid7
from tests import postgres


@pytest.fixture
def there():
    return uuid7()


@pytest.fixture
def standby(there):
    server = postgres.start(prefer="own")
    try:
        outbox = Outbox(server.create_database())
        outbox.upgrade()
        outbox.store.enqueue(NewTask(id=there, task_name="tests.nothing", args="{}"))
        outbox.store.engine.dispose()
        (server.data_directory / "standby.signal").touch()
        server.restart()
        yield outbox
        outbox.store.engine.dispose()
    finally:
        server.stop()


def test_a_worker_on_a_standby_is_refused(standby):
    with pytest.raises(ConfigurationError, match="primary"):
        standby.worker().start()


def test_what_only_looks_may_look_there(standby, there):
    store = standby.store
    assert store.get(there).id == there
    assert [event.event_type for event in store.history(there)] == ["task_created"]
    assert [queue.ready for queue in store.stats()] == [1]
    assert store.explain(there).reason
    assert [task.id for task in store.tasks()] == [there]
    assert (store.dead_letters(), store.workers(), store.verify()) == ([], [], [])
    events, _ = store.tail()
    assert [event.task_execution_id for event in events] == [there]
    store.tail_from_now()
