"""The registry of workers: workers write it, people read it, and no decision about tasks depends on it."""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq import Outbox
from outboxq.errors import InvalidArgument
from outboxq.model.workers import Orders
from outboxq.store.claims.unknown_runs import with_unknown_tasks
from tests.contract import helpers
from tests.waiting import until

DAY = timedelta(days=1)
WEEK = timedelta(days=7)


def register(database, worker_id=None, **said):
    worker_id = worker_id or uuid4()
    said = {"label": "host:1", "concurrency": 4, "task_names": ["mail.send"], **said}
    database.frozen.workers.register(worker_id, **said)
    return worker_id


def ids(database, *within):
    return [worker.id for worker in database.frozen.workers.list(*within)]


def test_a_worker_is_listed_as_it_was_registered(database):
    began = database.clock.now
    worker_id = register(database, queues=["mail", "sms"], topics=["order.*"], task_names=["b", "a", 'the "ü"'])
    (found,) = database.frozen.workers.list()
    assert (found.id, found.label, found.concurrency) == (worker_id, "host:1", 4)
    assert (found.queues, found.topics) == ({"mail", "sms"}, ("order.*",))
    assert found.task_names == {"a", "b", 'the "ü"'}
    assert (found.started_at, found.last_seen_at) == (began, began)
    assert found.works_on("sms")
    assert not found.works_on("default")
    assert found.takes("order.paid")
    assert not found.takes("orders")
    assert not found.takes(None)


def test_a_worker_without_filters_accepts_all_queues_and_topics(database):
    register(database)
    (found,) = database.frozen.workers.list()
    assert (found.queues, found.topics) == (None, None)
    assert found.works_on("any")
    assert found.takes("any")
    assert found.takes(None)


def test_an_unregistered_worker_is_not_listed_but_its_unknown_tasks_are_kept(database):
    stranger = ("mail", "mail.unheard")
    one, other = register(database), register(database)
    database.frozen.workers.seen(one, unknown_tasks=[stranger])
    database.frozen.workers.unregister(one, met_unknown=True)
    assert ids(database) == [other]
    assert database.rows("SELECT unknown_tasks FROM workers WHERE unknown_tasks IS NOT NULL") == [
        ('[["mail", "mail.unheard"]]',)
    ]
    assert len(database.frozen.run_one(with_unknown_tasks)) == 1
    database.clock.advance(DAY + timedelta(microseconds=1))
    assert database.frozen.run_one(with_unknown_tasks) == []
    database.clock.advance(WEEK - DAY)
    database.frozen.workers.unregister(other)
    assert database.frozen.workers.get(one) is None


def test_a_worker_is_live_while_it_is_seen(database):
    first, second = register(database), register(database)
    database.clock.advance(90)
    assert set(ids(database)) == {first, second}
    database.clock.advance(timedelta(microseconds=1))
    assert database.frozen.workers.seen(second) == Orders()
    assert ids(database) == [second]
    assert set(ids(database, 120)) == {first, second}
    assert database.frozen.workers.list()[0].last_seen_at == database.clock.now


def test_a_worker_whose_row_was_deleted_notices_and_can_register_again(database):
    worker_id = register(database)
    database.run("DELETE FROM workers")
    assert database.frozen.workers.seen(worker_id) is None
    assert ids(database) == []
    register(database, worker_id)
    assert database.frozen.workers.seen(worker_id) == Orders()


def test_registering_again_replaces_the_description_and_keeps_the_start_time(database):
    worker_id, began = register(database, queues=["mail"]), database.clock.now
    now = database.clock.advance(10)
    register(database, worker_id, queues=None, label="host:2", concurrency=8)
    (found,) = database.frozen.workers.list()
    assert (found.label, found.queues, found.concurrency) == ("host:2", None, 8)
    assert (found.started_at, found.last_seen_at) == (began, now)


def test_a_worker_that_has_ended_is_remembered_for_a_week(database):
    store = database.frozen.workers
    long_gone = register(database)
    database.clock.advance(timedelta(microseconds=1))
    killed, ending = register(database), register(database)
    store.unregister(ending)
    ended_at = database.clock.now
    database.clock.advance(WEEK)
    store.unregister(uuid4())
    assert ids(database, 2 * WEEK) == [killed]
    assert store.get(long_gone) is None
    listed = {one.id: one.ended_at for one in store.presence(2 * WEEK, with_ended=True).workers}
    assert listed == {killed: None, ending: ended_at}
    assert store.get(ending) is not None
    database.clock.advance(timedelta(microseconds=1))
    database.frozen.prune(timedelta(days=365))
    assert (store.get(killed), store.get(ending)) == (None, None)


def test_a_worker_that_has_ended_is_not_seen_but_may_register_again(database):
    worker_id = register(database)
    database.frozen.workers.unregister(worker_id)
    assert database.frozen.workers.seen(worker_id) is None
    assert ids(database) == []
    register(database, worker_id)
    assert ids(database) == [worker_id]
    found = database.frozen.workers.get(worker_id)
    assert found is not None
    assert found.ended_at is None


def test_register_and_seen_join_the_transaction_of_the_caller(database):
    worker_id = uuid4()
    with helpers.transaction(database) as connection:
        said = {"label": "x", "concurrency": 1, "task_names": []}
        database.frozen.workers.register(worker_id, **said, using=connection)
        assert database.frozen.workers.seen(worker_id, using=connection) == Orders()
        assert [worker.id for worker in database.frozen.workers.list(using=connection)] == [worker_id]
    assert ids(database) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"queues": "mail"},
        {"topics": "order.*"},
        {"task_names": "mail"},
        {"task_names": [1]},
        {"concurrency": 0},
        {"worker_id": "x"},
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_written(database, wrong):
    with pytest.raises(InvalidArgument):
        register(database, **wrong)
    assert ids(database) == []


# The process of a worker

PROCESS = {"host": "ant", "pid": 7, "version": "1.2", "release": "9.9", "busy": 3, "isolation": "process"}
NOTHING = dict.fromkeys(PROCESS)


def process_of(worker):
    return {name: getattr(worker, name) for name in PROCESS}


def test_the_description_of_a_process_is_stored_with_its_worker(database):
    mine, older = register(database), register(database)
    assert database.frozen.workers.describe(mine, **PROCESS)
    found = {worker.id: process_of(worker) for worker in database.frozen.workers.list()}
    assert found == {mine: PROCESS, older: NOTHING}
    register(database, mine)  # as a worker of an older release does after a pause
    database.frozen.workers.describe(mine, **{**PROCESS, "busy": 0})
    assert {worker.busy for worker in database.frozen.workers.list()} == {0, None}
    assert not database.frozen.workers.describe(uuid4(), **PROCESS)


def test_a_worker_describes_its_process(database):
    outbox = Outbox(database.engine, version="2.1")
    running, going_on = threading.Event(), threading.Event()

    @outbox.task(name="long")
    def long() -> None:
        running.set()
        going_on.wait(60)

    database.add(database.store, task_name="long")
    worker = outbox.worker(concurrency=2)
    worker.start()
    try:
        until(running.is_set)
        (found,) = outbox.store.workers.list()
        assert (found.host, found.pid, found.version) == (socket.gethostname(), os.getpid(), "2.1")
        assert found.release is not None
        assert found.isolation == "thread"
        worker._parts.registration.run_early()
        (found,) = outbox.store.workers.list()
        assert found.busy == 1
    finally:
        going_on.set()
        worker.stop()
