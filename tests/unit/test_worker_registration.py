"""A worker that has reported that it is gone is not added to the list again."""

from __future__ import annotations

import threading
from uuid import uuid4

import pytest

from outboxq.errors import FileUnusable
from outboxq.model.workers import Orders, WorkerState
from outboxq.worker.upkeep import Obedience, WorkerRegistration
from tests.waiting import until


class Listed:
    """A list of workers that has not seen this one before. A registration waits for `going_on`."""

    def __init__(self):
        self.workers, self.ids, self.registering, self.going_on = self, set(), threading.Event(), threading.Event()

    def seen(self, worker_id, *, unknown_tasks):
        return None

    def register(self, worker_id, *, unknown_tasks):
        self.registering.set()
        self.going_on.wait(60)
        self.ids.add(worker_id)

    def describe(self, worker_id, *, state):
        return False

    def unregister(self, worker_id, *, met_unknown=False):
        self.ids.discard(worker_id)


def presence(store):
    return WorkerRegistration(store, uuid4(), lambda: (), {})


def test_an_ended_worker_is_not_registered_again():
    store = Listed()
    store.going_on.set()
    one = presence(store)
    one.run_once()
    assert len(store.ids) == 1
    one.end()
    one.run_once()
    assert store.ids == set()


def test_a_worker_that_ends_while_being_registered_is_removed():
    store = Listed()
    one = presence(store)
    registering = threading.Thread(target=one.run_once)
    registering.start()
    until(store.registering.is_set)
    ending = threading.Thread(target=one.end)
    ending.start()
    store.going_on.set()
    registering.join(60)
    ending.join(60)
    assert store.ids == set()


def test_a_worker_stays_registered_if_its_process_cannot_be_recorded(caplog):
    store = Listed()
    store.going_on.set()
    store.describe = lambda worker_id, **process: 1 / 0
    one = presence(store)
    for _ in range(3):
        one.run_once()
    assert len(store.ids) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert one.meter.last_answer is not None


def test_an_unusable_file_is_not_ignored_by_the_registration():
    store = Listed()
    store.going_on.set()

    def describe(worker_id, *, state):
        raise FileUnusable("replaced")

    store.describe = describe
    with pytest.raises(FileUnusable):
        presence(store).run_once()


def test_a_new_state_that_cannot_be_written_is_retried_after_a_pause():
    store, state = Listed(), [None]
    store.going_on.set()
    one = WorkerRegistration(store, uuid4(), lambda: (), {}, orders=Obedience(state=lambda: state[0]))
    one.run_once()
    state[0] = WorkerState.QUIET
    assert one.pause() == 0.0
    store.seen = lambda worker_id, *, unknown_tasks: 1 / 0
    with pytest.raises(ZeroDivisionError):
        one.run_once()
    assert one.pause() > 1.0


def test_an_unchanged_process_is_not_written_again():
    store, written = Listed(), []
    store.going_on.set()
    store.seen = lambda worker_id, *, unknown_tasks: Orders() if store.ids else None
    store.describe = lambda worker_id, **description: written.append(description)
    busy = {"busy": 1}
    one = WorkerRegistration(store, uuid4(), lambda: (), {}, process=lambda: dict(busy))
    one.run_once()
    one.run_once()
    busy["busy"] = 2
    one.run_once()
    store.ids.clear()  # the row is gone
    one.run_once()
    assert [one["busy"] for one in written] == [1, 2, 2]
