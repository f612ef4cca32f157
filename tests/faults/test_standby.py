"""A standby server refuses writes, so a worker must not start on it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import DBAPIError

from outboxq import ConfigurationError, Outbox
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests import postgres
from tests.standby import WROTE, promote
from tests.waiting import until


@pytest.fixture
def there():
    return uuid7()


@pytest.fixture
def server():
    server = postgres.start(prefer="own")
    yield server
    server.stop()


@pytest.fixture
def standby(server, there):
    outbox = Outbox(server.create_database())
    outbox.upgrade()
    outbox.store.enqueue(NewTask(id=there, task_name="tests.nothing", args="{}"))
    outbox.store.engine.dispose()
    (server.data_directory / "standby.signal").touch()
    server.restart()
    yield outbox
    outbox.store.engine.dispose()


def test_a_worker_on_a_standby_is_refused(standby):
    with pytest.raises(ConfigurationError, match="primary"):
        standby.worker().start()


def test_read_only_calls_work_on_a_standby(standby, there):
    store = standby.store
    assert store.get(there).id == there
    assert [event.event_type for event in store.history(there)] == ["task_created"]
    assert [queue.due for queue in store.stats()] == [1]
    assert store.explain(there).reason
    assert [task.id for task in store.tasks()] == [there]
    assert (store.dead_letters.list(), store.workers.list(), store.verify()) == ([], [], [])
    events, _ = store.log.tail()
    assert [event.task_execution_id for event in events] == [there]
    store.log.tail_from_now()


def test_an_enqueue_waits_until_the_standby_is_promoted(server, standby):
    before = server.log.count(WROTE)
    with ThreadPoolExecutor(1) as pool:
        added = pool.submit(standby.store.enqueue, NewTask(id=uuid7(), task_name="tests.late", args="{}"))
        until(lambda: server.log.count(WROTE) >= before + 3)
        assert not added.done()
        promote(server)
        handle = added.result(30)
    assert standby.store.get(handle.id).task_name == "tests.late"


def backend(store):
    with store.engine.connect() as connection:
        return connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()


@pytest.mark.parametrize(("call", "answer"), [("enqueue", "read-only transaction"), ("cancel", "during recovery")])
def test_a_connection_to_a_standby_is_not_reused_for_the_next_transaction(standby, there, call, answer):
    """By then, another of the hosts in the URL may be the primary."""
    over = threading.Event()
    over.set()
    store = Store(standby.store.engine, gone=over)
    before = backend(store)
    assert backend(store) == before
    with pytest.raises(DBAPIError, match=answer):
        if call == "enqueue":
            store.enqueue(NewTask(id=uuid7(), task_name="tests.late", args="{}"))
        else:
            store.cancel(there)
    assert backend(store) != before


def test_an_enqueue_in_a_transaction_of_the_caller_fails_on_a_standby(standby):
    with standby.store.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("BEGIN")
        with pytest.raises(DBAPIError, match="read-only transaction"):
            standby.store.enqueue(NewTask(id=uuid7(), task_name="tests.late", args="{}"), using=connection)
        connection.exec_driver_sql("ROLLBACK")
