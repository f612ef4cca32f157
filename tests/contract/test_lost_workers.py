"""A task of a dead worker with a long lease: a person takes it back at once, and never from a live worker."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.errors import InvalidTransition, LeaseLost, TaskNotFound
from outboxq.model import MAX_RECOVERIES, EventType, TaskStatus
from outboxq.model.actions import Interface, Operator
from outboxq.operating.verbs import RECOVER
from tests.contract import helpers

HOUR = timedelta(hours=1)
ANN = Operator(interface=Interface.DASHBOARD, name="ann")


@pytest.fixture
def running(database):
    """A task with a lease of an hour, under a registered worker."""
    database.frozen.workers.register(database.worker, label="host:7", concurrency=1, task_names=["tests.work"])
    return helpers.claimed(database, lease=HOUR)


def test_a_lost_worker_s_task_is_claimable_at_once(database, running):
    database.clock.advance(91)
    found = database.frozen.recover_lost(running.id, reason="the machine is gone")
    assert (found.id, found.status, found.recovery_attempts) == (running.id, TaskStatus.READY, 1)
    last = database.frozen.history(running.id)[-1]
    assert (last.event_type, last.worker_id, last.lease_token) == (
        EventType.RESET,
        database.worker,
        running.lease_token,
    )
    assert last.event_data["reason"] == "the machine is gone"
    [again] = database.claim()
    assert (again.id, again.lease_token) == (running.id, running.lease_token + 1)


def test_a_worker_that_was_only_frozen_cannot_write_the_end(database, running):
    """The worker's session has sent nothing for two minutes, and then goes on where it was."""
    database.clock.advance(120)
    with helpers.transaction(database) as colleague:
        database.frozen.recover_lost(running.id, using=colleague)
        colleague.commit()
    with pytest.raises(LeaseLost):
        database.frozen.complete(running)
    assert database.frozen.heartbeat([running]) == {}
    assert database.frozen.get(running.id).status is TaskStatus.READY


@pytest.mark.parametrize("sign", ["report", "heartbeat", "claim"])
def test_a_live_worker_keeps_its_task(database, running, sign):
    if sign != "claim":
        database.clock.advance(HOUR / 4)
    if sign == "report":
        database.frozen.workers.seen(database.worker)
    elif sign == "heartbeat":
        database.frozen.heartbeat([running])
    database.clock.advance(89)
    before = helpers.everything(database)
    with pytest.raises(
        InvalidTransition, match=r"stays with worker host:7, which was seen 1 min 29 s ago.*for 1 min 30 s"
    ):
        database.frozen.recover_lost(running.id)
    assert helpers.everything(database) == before


def test_a_worker_that_was_never_registered_counts_from_its_claim(database):
    claim = helpers.claimed(database, lease=HOUR)
    database.clock.advance(89)
    with pytest.raises(InvalidTransition, match=str(database.worker)):
        database.frozen.recover_lost(claim.id)
    database.clock.advance(2)
    assert database.frozen.recover_lost(claim.id).status is TaskStatus.READY


def test_a_task_without_a_worker_is_refused(database):
    with pytest.raises(TaskNotFound):
        database.frozen.recover_lost(uuid4())
    with pytest.raises(InvalidTransition, match="is Ready, so there is no worker"):
        database.frozen.recover_lost(database.add().id)


def test_the_last_recovery_ends_the_task_and_a_requested_cancellation_too(database, running):
    for _ in range(MAX_RECOVERIES):
        database.clock.advance(91)
        assert database.frozen.recover_lost(running.id).status is TaskStatus.READY
        database.claim()
    database.clock.advance(91)
    outcome = RECOVER.do(database.frozen, running.id, operator=ANN)
    assert outcome.sentence == f"task {running.id} was recovered too often and is now a dead letter"
    other = helpers.claimed(database, lease=HOUR)
    database.frozen.cancel(other.id)
    database.clock.advance(91)
    assert RECOVER.do(database.frozen, other.id, operator=ANN).record["status"] is TaskStatus.CANCELLED


def test_a_lease_that_another_session_has_locked_is_left_alone(postgresql):
    claim = helpers.claimed(postgresql, lease=HOUR)
    postgresql.clock.advance(91)
    with helpers.transaction(postgresql) as worker:
        postgresql.frozen.heartbeat([claim], using=worker)
        with pytest.raises(InvalidTransition, match="has just shown signs of life"):
            postgresql.frozen.recover_lost(claim.id)
        worker.commit()
    assert postgresql.frozen.get(claim.id).status is TaskStatus.RUNNING
