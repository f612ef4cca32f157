"""Read a task, its history, and the time at which the next task is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from outboxq.errors import TaskNotFound
from outboxq.model import EventType, TaskStatus
from tests.contract import helpers

HOUR = timedelta(hours=1)


def test_get_returns_the_row_and_history_its_events(database):
    handle = database.add(task_name="mail.send", args='{"a": [1]}', headers='{"t": 1}', queue="mail", priority=-3)
    task = database.frozen.get(handle.id)
    assert (task.id, task.pipeline_execution_id, task.task_name) == (handle.id, handle.id, "mail.send")
    assert (task.args, task.headers, task.queue, task.priority) == ('{"a": [1]}', '{"t": 1}', "mail", -3)
    assert (task.status, task.attempt, task.max_attempts, task.lease_token) == (TaskStatus.READY, 1, None, 0)
    assert task.created_at == task.updated_at == database.clock.now
    (event,) = database.frozen.history(handle.id)
    assert (event.task_execution_id, event.event_type, event.created_at) == (
        handle.id,
        EventType.CREATED,
        database.clock.now,
    )


def test_an_unknown_id_is_not_found_and_has_no_history(database):
    for call in (database.frozen.get, database.frozen.cancel, database.frozen.redrive):
        with pytest.raises(TaskNotFound):
            call(uuid4())
    assert database.frozen.history(uuid4()) == []


def test_uncommitted_changes_are_visible_only_on_the_connection_of_the_caller(database):
    handle = database.add()
    with helpers.transaction(database) as connection:
        database.frozen.cancel(handle.id, using=connection)
        assert database.frozen.get(handle.id, using=connection).status is TaskStatus.CANCELLED
        assert len(database.frozen.history(handle.id, using=connection)) == 2
        assert database.frozen.get(handle.id).status is TaskStatus.READY


def test_next_available_at_is_strictly_in_the_future(database):
    assert database.frozen.next_available_at() is None
    database.add()
    database.add(available_at=helpers.stale_by(database, 1))
    assert database.frozen.next_available_at() is None
    soon = database.clock.now + timedelta(microseconds=1)
    database.add(available_at=soon + HOUR)
    database.add(available_at=soon, priority=-50, queue="mail")
    assert database.frozen.next_available_at() == soon
    assert database.frozen.next_available_at(["default"]) == soon + HOUR
    assert database.frozen.next_available_at(["mail", "default"]) == soon
    assert database.frozen.next_available_at(["none"]) is None
    database.clock.now = soon
    assert database.frozen.next_available_at() == soon + HOUR
    assert database.frozen.next_available_at(["mail"]) is None


def test_now_is_the_time_of_the_injected_clock_or_the_database(database):
    assert database.frozen.now() == database.clock.now
    assert abs(database.store.now() - datetime.now(UTC)) < timedelta(seconds=30)
