"""A task's state at any moment, derived from its events."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from outboxq.errors import InvalidArgument, TaskNotFound
from outboxq.model import EventType, NewTask, Outcome, TaskStatus
from outboxq.model.history import replay
from outboxq.model.uuid7 import uuid7
from outboxq.store import NewStep
from tests.contract import helpers

SECOND = timedelta(seconds=1)


def lived(database):
    """A task's life in steps. Return its id and, for each step, the time and the rows at that time."""
    store, clock, told = database.frozen, database.clock, []
    handle = database.add(delay=timedelta(seconds=5))

    def step(call=lambda: None, by=SECOND):
        call()
        told.append((clock.now, store.get(handle.id), database.rows("SELECT available_at FROM task_outbox")))
        clock.advance(by)

    def finish(kind, **fields):
        (claim,) = database.claim()
        step()
        store.finish([Outcome(claim=claim, event_type=kind, **fields)])

    step(by=timedelta(seconds=5))
    step(lambda: finish(EventType.RETRY_SCHEDULED, error="e", data={"error": "e"}, delay=SECOND))
    step(lambda: finish(EventType.SNOOZED, delay=SECOND))
    step(database.claim, by=timedelta(seconds=100))
    step(store.recover)
    step(lambda: store.schedule_retry(handle.id, clock.now + SECOND, 7))
    step(lambda: finish(EventType.FAILED, error="f", data={"error": "f"}))
    step(lambda: store.redrive(handle.id))
    step(database.claim)
    step(lambda: store.cancel(handle.id))
    step(lambda: store.cancel(handle.id, force=True))
    return handle.id, told


def test_replaying_events_reproduces_the_row_at_every_moment(database):
    task_id, told = lived(database)
    assert len({row.status for _, row, _ in told}) == 4
    for moment, row, entries in told:
        for when in (moment, moment + SECOND - timedelta(microseconds=1)):
            state = database.frozen.log.state_at(task_id, when)
            for name in ("status", "attempt", "recovery_attempts", "lease_token", "worker_id", "completed_at"):
                assert getattr(state, name) == getattr(row, name), (moment, name)
            assert state.last_error == row.last_error
            assert (state.available_at is not None) == bool(entries)
    assert database.frozen.log.state_at(task_id, moment) == replay(database.frozen.history(task_id))


def test_replaying_events_reproduces_the_steps_at_every_moment(database):
    store, clock, at = database.frozen, database.clock, []

    def note(task_id):
        at.append((clock.now, tuple(step.name for step in store.steps.list(task_id))))
        clock.advance(1)

    claim = helpers.claimed(database)
    for number, name in enumerate(("a", "b", "c"), 1):
        store.steps.complete(claim, NewStep(name=name, number=number))
        note(claim.id)
    store.fail(claim, "no")
    note(claim.id)
    store.steps.rewind(claim.id, "b")
    note(claim.id)
    (claim,) = database.claim()
    store.steps.complete(claim, NewStep(name="d", number=2))
    note(claim.id)
    assert [store.log.state_at(claim.id, moment).steps for moment, _ in at] == [steps for _, steps in at]
    assert at[-1][1] == ("a", "d")


def test_the_state_at_the_time_of_an_event_includes_the_event(database):
    handle = database.add()
    born = database.clock.now
    database.clock.advance(1)
    database.claim()
    tick = timedelta(microseconds=1)
    assert database.frozen.log.state_at(handle.id, born - tick) is None
    assert database.frozen.log.state_at(handle.id, born).status is TaskStatus.READY
    assert database.frozen.log.state_at(handle.id, born + SECOND - tick).status is TaskStatus.READY
    state = database.frozen.log.state_at(handle.id, born + SECOND)
    assert (state.status, state.worker_id, state.available_at) == (TaskStatus.RUNNING, database.worker, None)


def test_an_unknown_task_has_no_state(database):
    with pytest.raises(TaskNotFound, match="there is no task"):
        database.frozen.log.state_at(uuid4(), database.clock.now)
    handle = database.add()
    with pytest.raises(InvalidArgument, match="when: .* is naive"):
        database.frozen.log.state_at(handle.id, datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidArgument):
        database.frozen.log.state_at("7", database.clock.now)
    assert database.frozen.log.state_at(str(handle.id), database.clock.now).status is TaskStatus.READY


def test_the_state_is_read_in_the_transaction_of_the_caller(database):
    with helpers.transaction(database) as connection:
        handle = database.frozen.enqueue(NewTask(id=uuid7(), task_name="tests.work", args="{}"), using=connection)
        state = database.frozen.log.state_at(handle.id, database.clock.now, using=connection)
        assert state.status is TaskStatus.READY
        connection.rollback()
    with pytest.raises(TaskNotFound):
        database.frozen.log.state_at(handle.id, database.clock.now)
