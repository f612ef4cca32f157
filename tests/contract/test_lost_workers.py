"""A person can recover a dead worker's task before its long lease expires, but cannot recover a live worker's task."""

from __future__ import annotations

import re
from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.errors import InvalidTransition, LeaseLost, TaskNotFound, WorkerNotFound
from outboxq.model import MAX_RECOVERIES, EventType, TaskStatus
from outboxq.model.actions import Interface, Operator
from outboxq.model.wording import unseen
from outboxq.operating.verbs import RECOVER
from outboxq.operating.worker_verbs import RECOVER_WORKER
from outboxq.store import Reason
from tests.contract import helpers
from tests.contract.test_cli_operators import outboxq

HOUR = timedelta(hours=1)
ANN = Operator(interface=Interface.DASHBOARD, name="ann")


@pytest.fixture
def running(database):
    """A task of a registered worker, with a lease of an hour."""
    database.frozen.workers.register(database.worker, label="host:7", concurrency=1, task_names=["tests.work"])
    return helpers.claimed(database, lease=HOUR)


def test_a_recovered_task_of_a_lost_worker_can_be_claimed(database, running):
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


def test_a_frozen_worker_cannot_write_the_end_of_a_recovered_task(database, running):
    """The worker sends nothing for two minutes and then continues."""
    database.clock.advance(120)
    with helpers.transaction(database) as colleague:
        database.frozen.recover_lost(running.id, using=colleague)
        colleague.commit()
    with pytest.raises(LeaseLost):
        database.frozen.complete(running)
    assert database.frozen.heartbeat([running]) == {}
    assert database.frozen.get(running.id).status is TaskStatus.READY


def test_a_worker_that_died_before_the_clock_was_set_back_is_lost(database, running):
    database.clock.advance(-HOUR)
    worker = database.frozen.workers.get(database.worker)
    assert not worker.is_live(database.clock())
    said = database.frozen.explain(running.id)
    assert said.reason is Reason.WORKER_SILENT
    assert "its worker host:7 has not been seen since the clock was set back: it was killed" in said.sentence
    silence = database.frozen.workers.silence(database.worker)
    assert unseen(silence) == "has not been seen since the clock was set back"
    assert database.frozen.recover_lost(running.id).status is TaskStatus.READY


@pytest.mark.parametrize("sign", ["report", "heartbeat"])
def test_a_live_worker_keeps_its_task_when_the_clock_is_set_back(database, running, sign):
    """The time of the claim stays in the future."""
    database.clock.advance(-HOUR)
    if sign == "report":
        database.frozen.workers.seen(database.worker)
        assert database.frozen.workers.get(database.worker).is_live(database.clock())
    else:
        database.frozen.heartbeat([running])
    with pytest.raises(InvalidTransition, match="stays with worker host:7"):
        database.frozen.recover_lost(running.id)
    with pytest.raises(InvalidTransition, match="keeps its tasks"):
        database.frozen.recover_all_lost(database.worker)


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
        InvalidTransition, match=r"stays with worker host:7, which was last seen 1 min 29 s ago.*after 1 min 30 s"
    ):
        database.frozen.recover_lost(running.id)
    assert helpers.everything(database) == before


def test_an_unregistered_worker_counts_as_last_seen_at_its_claim(database):
    claim = helpers.claimed(database, lease=HOUR)
    database.clock.advance(89)
    with pytest.raises(InvalidTransition, match=str(database.worker)):
        database.frozen.recover_lost(claim.id)
    database.clock.advance(2)
    assert database.frozen.recover_lost(claim.id).status is TaskStatus.READY


def test_recovering_a_task_without_a_worker_is_refused(database):
    with pytest.raises(TaskNotFound):
        database.frozen.recover_lost(uuid4())
    with pytest.raises(InvalidTransition, match="is Ready, so there is no worker"):
        database.frozen.recover_lost(database.add().id)


def test_a_recovery_ends_the_task_at_the_limit_or_after_a_cancel_request(database, running):
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


def test_a_lease_that_another_session_has_locked_is_not_recovered(postgresql):
    claim = helpers.claimed(postgresql, lease=HOUR)
    postgresql.clock.advance(91)
    with helpers.transaction(postgresql) as worker:
        postgresql.frozen.heartbeat([claim], using=worker)
        with pytest.raises(InvalidTransition, match="has just reported"):
            postgresql.frozen.recover_lost(claim.id)
        worker.commit()
    assert postgresql.frozen.get(claim.id).status is TaskStatus.RUNNING


# -- All tasks of a worker


@pytest.fixture
def held(database):
    """A registered worker's tasks: one that will run again, one that was asked to stop, and one recovered too often."""
    often = helpers.claimed(database, lease=HOUR).id
    for _ in range(MAX_RECOVERIES):
        database.clock.advance(2 * HOUR)
        database.frozen.recover()
        database.claim()
    database.frozen.workers.register(database.worker, label="host:7", concurrency=3, task_names=["tests.work"])
    again, asked = (helpers.claimed(database, lease=HOUR).id for _ in range(2))
    database.frozen.cancel(asked)
    return again, asked, often


AFTERWARDS = (TaskStatus.READY, TaskStatus.CANCELLED, TaskStatus.FAILED)


def test_all_tasks_of_a_lost_worker_get_their_forecast_status(database, held):
    """The tasks of another worker stay with that worker."""
    other = uuid4()
    database.add(lease=HOUR)
    [kept] = database.claim(worker_id=other)
    database.clock.advance(91)
    forecast = {one.id: one.then for one in database.frozen.lost_tasks(database.worker)}
    assert forecast == dict(zip(held, AFTERWARDS, strict=True))
    outcome = RECOVER_WORKER.do(database.frozen, database.worker, operator=ANN, reason="the machine is gone")
    assert outcome.sentence == (f"the worker {database.worker} has lost 3 tasks (1 Ready, 1 Failed, 1 Cancelled)")
    assert {one: database.frozen.get(one).status for one in held} == forecast
    assert database.frozen.history(held[0])[-1].event_data["reason"] == "the machine is gone (by ann in the dashboard)"
    assert database.frozen.get(kept.id).status is TaskStatus.RUNNING
    [action] = database.frozen.actions.list()
    assert (action.action, action.changed, action.reason) == ("workers recover", 3, "the machine is gone")
    assert RECOVER_WORKER.do(database.frozen, database.worker, operator=ANN).changes == 0
    assert len(database.frozen.actions.list()) == 1


@pytest.mark.parametrize("sign", ["report", "heartbeat", "claim"])
def test_a_worker_that_was_seen_recently_keeps_all_its_tasks(database, held, sign):
    database.clock.advance(HOUR / 4)
    if sign == "report":
        database.frozen.workers.seen(database.worker)
    elif sign == "heartbeat":
        claim = helpers.claimed(database, lease=HOUR)
        database.clock.advance(91)
        database.frozen.heartbeat([claim])
    else:
        helpers.claimed(database, lease=HOUR)
    database.clock.advance(89)
    assert len(database.frozen.lost_tasks(database.worker)) < 4
    with pytest.raises(
        InvalidTransition, match=r"worker host:7 keeps its tasks, because it was last seen 1 min 29 s ago"
    ):
        database.frozen.recover_all_lost(database.worker)
    with pytest.raises(InvalidTransition, match=r"that is, in 1\.0 s unless it reports again"):
        database.frozen.ensure_lost(database.worker)
    assert database.frozen.get(held[0]).status is TaskStatus.RUNNING


def test_more_tasks_than_one_transaction_takes_are_all_recovered(database, monkeypatch):
    monkeypatch.setattr("outboxq.store.claims.lost_workers._AT_ONCE", 2)
    ids = [helpers.claimed(database, lease=HOUR).id for _ in range(5)]
    database.clock.advance(91)
    changes = []
    recovered = database.frozen.recover_all_lost(database.worker, on_change=lambda _, number: changes.append(number))
    assert (recovered, changes) == ({TaskStatus.READY: 5}, [2, 2, 1])
    assert sorted(one.id for one in database.claim(10)) == ids


def test_an_unknown_worker_is_refused(database):
    with pytest.raises(WorkerNotFound, match="a worker is forgotten a week after it was last seen"):
        database.frozen.recover_all_lost(uuid4())


def test_a_dry_run_explains_why_nothing_can_be_recovered_yet(database):
    store = database.store
    store.workers.register(database.worker, label="host:7", concurrency=1, task_names=["tests.work"])
    database.add(store, lease=HOUR)
    database.claim(1, store)
    said = outboxq(database, "workers", "recover", "host:7", "--dry-run", exit_code=1).stderr
    assert re.search(
        r"^outboxq: worker host:7 keeps its tasks, because it was last seen .* ago; .*, that is, in 1 min", said
    )
    nobody = outboxq(database, "workers", "recover", uuid4(), "--dry-run", exit_code=3).stderr
    assert "there is no worker" in nobody


def test_the_command_shows_its_changes_and_requires_confirmation(database, monkeypatch):
    monkeypatch.setattr("outboxq.store.claims.workers.LIVE_WITHIN", timedelta(0))
    store = database.store
    store.workers.register(database.worker, label="host:7", concurrency=2, task_names=["tests.work"])
    again, asked = (database.add(store, lease=HOUR).id for _ in range(2))
    database.claim(2, store)
    store.cancel(asked)
    shown = outboxq(database, "workers", "recover", "host:7", "--dry-run").stdout
    expected = f"running tasks of the worker host:7: 2 would be recovered\n  {again}  tests.work  Ready\n"
    assert shown == f"{expected}  {asked}  tests.work  Cancelled\n"
    assert "nothing was changed" in outboxq(database, "workers", "recover", "host:7", exit_code=2).stderr
    assert store.get(again).status is TaskStatus.RUNNING
    said = outboxq(database, "workers", "recover", "host:7", "--yes").stdout
    assert said == f"the worker {database.worker} has lost 2 tasks (1 Ready, 1 Cancelled)\n"
