"""A lease lasts as long as it is extended. After it expires, the task can be recovered."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from uuid import uuid4

import pytest
from sqlalchemy.exc import IntegrityError

from outboxq import Outbox
from outboxq.errors import InvalidArgument, LeaseLost
from outboxq.model import MAX_RECOVERIES, EventType, Outcome, TaskStatus
from tests.contract import helpers

MICROSECOND = timedelta(microseconds=1)
LEASE = timedelta(seconds=60)


def test_a_task_is_not_recovered_before_its_lease_has_expired(database):
    claim = helpers.claimed(database, lease=LEASE)
    database.clock.now = claim.lease_expires_at
    before = helpers.everything(database)
    assert database.frozen.recover() == []
    assert database.claim() == []
    assert helpers.everything(database) == before
    database.clock.advance(MICROSECOND)
    (task,) = database.frozen.recover()
    assert (task.id, task.status, task.recovery_attempts) == (claim.id, TaskStatus.READY, 1)
    (again,) = database.claim(worker_id=uuid4())
    assert (again.id, again.attempt, again.recovery_attempts, again.lease_token) == (claim.id, 1, 1, 2)


def test_a_task_keeps_the_lease_with_which_it_was_enqueued(database):
    """The lease is one of the options that are stored with each task."""
    store, leases = database.store, []
    for lease in (60, 5):
        outbox = Outbox(store.bound_engine, schema=store.schema)
        task = outbox.task(name="shop.ship", lease=lease)(lambda: None)
        if lease == 60:
            task.using(outbox).enqueue()
    task.using(outbox).enqueue()
    for claim in database.claim(2):
        leases.append(claim.lease_expires_at - claim.started_at)
    assert leases == [timedelta(seconds=60), timedelta(seconds=5)]


def test_a_recovered_task_is_ready_and_due_now_with_an_event_that_records_why(database):
    claim = helpers.claimed(database, lease=LEASE, queue="mail", priority=3)
    database.clock.advance(100)
    database.frozen.recover()
    task, event = database.frozen.get(claim.id), database.frozen.history(claim.id)[-1]
    assert (task.status, task.started_at, task.completed_at, task.worker_id) == (TaskStatus.READY, None, None, None)
    assert (task.attempt, task.recovery_attempts, task.first_started_at) == (1, 1, claim.first_started_at)
    assert (event.event_type, event.worker_id, event.lease_token) == ("task_reset", claim.worker_id, 1)
    assert set(event.event_data) == {"recovery_attempts", "lease_expires_at", "available_at"}
    assert event.event_data["recovery_attempts"] == 1
    assert datetime.fromisoformat(event.event_data["lease_expires_at"]) == claim.lease_expires_at
    assert datetime.fromisoformat(event.event_data["available_at"]) == database.clock.now
    assert database.rows("SELECT queue, priority FROM task_outbox") == [("mail", 3)]
    assert database.rows("SELECT count(*) FROM task_leases") == [(0,)]


def test_a_task_is_abandoned_after_three_recoveries(database):
    helpers.claimed(database, lease=LEASE)
    for number in range(1, MAX_RECOVERIES + 1):
        database.clock.advance(61)
        (task,) = database.frozen.recover()
        assert (task.status, task.recovery_attempts) == (TaskStatus.READY, number)
        (claim,) = database.claim()
    database.clock.advance(61)
    (task,) = database.frozen.recover()
    assert (task.status, task.recovery_attempts) == (TaskStatus.FAILED, 3)
    row, event = database.frozen.get(task.id), database.frozen.history(task.id)[-1]
    assert row.last_error.startswith("ABANDONED:")
    assert (row.attempt, row.completed_at, row.started_at) == (1, database.clock.now, claim.started_at)
    assert (event.event_type, event.lease_token, event.event_data["error"]) == ("task_abandoned", 4, row.last_error)
    assert helpers.types(database, task.id).count("task_reset") == 3
    assert database.claim() == []


@pytest.mark.parametrize("most", [0, 1])
def test_the_caller_can_set_the_limit_of_recoveries(database, most):
    helpers.claimed(database, lease=LEASE)
    for _ in range(most):
        database.clock.advance(61)
        assert database.frozen.recover(max_recoveries=most)[0].status is TaskStatus.READY
        database.claim()
    database.clock.advance(61)
    assert database.frozen.recover(max_recoveries=most)[0].status is TaskStatus.FAILED


def test_only_crashes_count_as_recoveries(database):
    claim = helpers.claimed(database, lease=LEASE)
    for kind in (EventType.RELEASED, EventType.SNOOZED, EventType.RETRY_SCHEDULED):
        database.frozen.finish([Outcome(claim=claim, event_type=kind)])
        (claim,) = database.claim()
    assert (claim.attempt, claim.recovery_attempts) == (2, 0)


def test_a_limited_recovery_starts_with_the_leases_that_expired_first(database):
    seconds = [30, 10, 50, 20, 40]
    handles = {second: database.add(lease=timedelta(seconds=second)) for second in seconds}
    database.claim(5)
    database.clock.advance(100)
    assert {task.id for task in database.frozen.recover(2)} == {handles[10].id, handles[20].id}
    assert {task.id for task in database.frozen.recover(2)} == {handles[30].id, handles[40].id}
    assert {task.id for task in database.frozen.recover(2)} == {handles[50].id}
    assert database.frozen.recover(2) == []


def test_leases_without_tasks_do_not_block_the_recovery_of_other_tasks(database):
    """A full batch of leases without tasks must not be read again in the next batch."""
    claim = helpers.claimed(database, lease=timedelta(seconds=90))
    for number in range(3):
        database.run(
            "INSERT INTO task_leases (task_execution_id, queue, lease_token, worker_id, lease_expires_at) VALUES "
            f"('{uuid4().hex}', 'default', 1, '{uuid4().hex}', '2030-01-01T00:00:0{number}.000000+00:00')"
        )
    database.clock.advance(100)
    assert database.frozen.recover(3) == []
    assert [task.id for task in database.frozen.recover(3)] == [claim.id]


def test_tasks_with_valid_leases_are_not_recovered(database):
    dead = helpers.claimed(database, lease=timedelta(seconds=10))
    alive = helpers.claimed(database, lease=timedelta(seconds=100))
    database.clock.advance(50)
    assert [task.id for task in database.frozen.recover()] == [dead.id]
    database.frozen.complete(alive)


def test_a_heartbeat_extends_each_lease_to_its_full_length_from_now(database):
    handles = [database.add(lease=timedelta(seconds=second)) for second in (10, 60, 0.25)]
    claims = database.claim(3)
    database.clock.advance(5)
    events = database.counts()[1]
    beats = database.frozen.heartbeat(claims)
    assert {task_id: beat.lease_expires_at - database.clock.now for task_id, beat in beats.items()} == {
        handles[0].id: timedelta(seconds=10),
        handles[1].id: timedelta(seconds=60),
        handles[2].id: timedelta(seconds=0.25),
    }
    for handle in handles:
        assert database.frozen.get(handle.id).lease_expires_at == beats[handle.id].lease_expires_at
    assert database.counts()[1] == events  # a heartbeat is not a transition


def test_a_task_much_longer_than_its_lease_runs_once(database):
    claim = helpers.claimed(database, lease=LEASE)
    for _ in range(12):
        database.clock.advance(30)
        assert set(database.frozen.heartbeat([claim])) == {claim.id}
        assert database.frozen.recover() == []
    database.frozen.complete(claim)
    assert helpers.types(database, claim.id) == ["task_created", "task_claimed", "task_completed"]


def test_a_heartbeat_keeps_the_lease_that_the_worker_chose(database):
    database.add(lease=timedelta(seconds=10))
    (claim,) = database.claim(lease=timedelta(seconds=600))
    beats = database.frozen.heartbeat([claim])
    assert beats[claim.id].lease_expires_at == claim.lease_expires_at


def test_a_heartbeat_returns_only_claims_that_are_still_held(database):
    kept, lost, over = (helpers.claimed(database, lease=timedelta(seconds=s)) for s in (100, 10, 100))
    database.frozen.complete(over)
    database.clock.advance(11)
    database.frozen.recover()
    assert set(database.frozen.heartbeat([lost, over, kept])) == {kept.id}
    assert database.frozen.get(lost.id).status is TaskStatus.READY


def test_a_heartbeat_without_claims_does_nothing(database):
    assert database.frozen.heartbeat([]) == {}


def test_a_heartbeat_for_claims_of_two_workers_is_refused(database):
    """Otherwise, one worker would be told that it lost a lease that it still has."""
    database.add()
    database.add()
    claims = database.claim(1) + database.claim(1, worker_id=uuid4())
    with pytest.raises(InvalidArgument):
        database.frozen.heartbeat(claims)


def test_a_heartbeat_returns_cancel_requests(database):
    asked, not_asked = helpers.claimed(database), helpers.claimed(database)
    database.frozen.cancel(asked.id)
    beats = database.frozen.heartbeat([asked, not_asked])
    assert {task_id: beat.cancel_requested for task_id, beat in beats.items()} == {asked.id: True, not_asked.id: False}


def test_a_task_that_was_asked_to_stop_is_cancelled_if_its_worker_died(database):
    claim = helpers.claimed(database)
    database.frozen.cancel(claim.id)
    database.clock.advance(61)
    (task,) = database.frozen.recover()
    assert (task.status, task.recovery_attempts) == (TaskStatus.CANCELLED, 0)
    row, event = database.frozen.get(claim.id), database.frozen.history(claim.id)[-1]
    assert (row.status, row.completed_at, row.last_error) == (TaskStatus.CANCELLED, database.clock.now, None)
    assert (event.event_type, event.lease_token, event.worker_id) == ("task_cancelled", 1, claim.worker_id)
    assert database.rows("SELECT count(*) FROM task_outbox") == [(0,)]


def test_recovery_depends_only_on_the_lease_and_not_on_registered_workers(database):
    claim = helpers.claimed(database)
    database.run("DELETE FROM workers")
    helpers.recovered(database, claim)


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_a_finished_task_with_a_leftover_lease_is_never_run_again(database, end):
    claim = helpers.claimed(database)
    lease = database.rows("SELECT lease_token FROM task_leases")
    assert lease == [(1,)]
    if end == "cancel":
        database.frozen.cancel(claim.id, force=True)
    else:
        getattr(database.frozen, end)(claim, "1")
    before = helpers.everything(database)
    database.run(
        "INSERT INTO task_leases (task_execution_id, queue, lease_token, worker_id, lease_expires_at) VALUES "
        f"('{claim.id.hex}', 'default', 1, '{claim.worker_id.hex}', '2029-01-01T00:00:00.000000+00:00')"
    )
    assert database.frozen.recover() == []
    assert helpers.everything(database) == before  # the stale lease is deleted, and nothing else changes


@pytest.mark.parametrize("forged", ["token", "worker"])
def test_an_expired_lease_with_another_token_or_worker_recovers_nothing(database, forged):
    claim = helpers.claimed(database)
    change = "lease_token = 9" if forged == "token" else f"worker_id = '{uuid4().hex}'"
    database.run(f"UPDATE task_leases SET {change}")
    database.clock.advance(61)
    assert database.frozen.recover() == []
    assert database.frozen.get(claim.id).status is TaskStatus.RUNNING
    database.corrupted = True


def test_recovery_skips_a_task_whose_end_is_being_committed(database):
    claim = helpers.claimed(database)
    database.clock.advance(61)
    with helpers.transaction(database) as connection:
        database.frozen.complete(claim, using=connection)
        with helpers.stuck(database, database.frozen.recover) as recovery:
            connection.commit()
            assert recovery.result(60) == []
    assert database.frozen.get(claim.id).status is TaskStatus.COMPLETED


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_end_waits_for_a_recovery_and_fails_only_if_the_recovery_commits(database, end):
    claim = helpers.claimed(database)
    database.clock.advance(61)
    with helpers.transaction(database) as connection:
        assert len(database.frozen.recover(using=connection)) == 1
        with helpers.stuck(database, lambda: database.frozen.complete(claim)) as completion:
            getattr(connection, end)()
            error = completion.exception(60)
    assert isinstance(error, LeaseLost) if end == "commit" else error is None
    assert database.frozen.get(claim.id).status == ("Ready" if end == "commit" else "Completed")


def test_a_recovery_that_waited_for_a_heartbeat_does_not_recover_the_task(database):
    claim = helpers.claimed(database)
    database.clock.advance(61)
    with helpers.transaction(database) as connection:
        database.frozen.heartbeat([claim], using=connection)
        with helpers.stuck(database, database.frozen.recover) as recovery:
            connection.commit()
            assert recovery.result(60) == []
    database.frozen.complete(claim)


def test_simultaneous_recoveries_recover_each_task_once(database):
    handles = [database.add(lease=LEASE) for _ in range(60)]
    database.claim(60)
    database.clock.advance(61)

    def recover():
        got = []
        while batch := database.frozen.recover(7):
            got += [task.id for task in batch]
        return got

    shares = helpers.at_once(*[recover] * 4)
    assert sorted(chain.from_iterable(shares)) == sorted(handle.id for handle in handles)
    assert database.rows("SELECT DISTINCT recovery_attempts FROM task_executions") == [(1,)]


def test_recoveries_during_ends_leave_each_claim_with_one_end(database):
    for _ in range(5):
        for _ in range(10):
            database.add(lease=LEASE)
        claims = database.claim(10)
        database.clock.advance(61)

        def complete(claims=claims):
            return database.frozen.finish([Outcome(claim=c, event_type=EventType.COMPLETED) for c in claims])

        lost, *taken = helpers.at_once(complete, lambda: database.frozen.recover(4), lambda: database.frozen.recover(4))
        assert lost == {task.id for share in taken for task in share}
        for claim in database.claim(10):
            database.frozen.complete(claim)


def test_a_refused_event_undoes_the_whole_recovery(database):
    helpers.claimed(database)
    database.clock.advance(61)
    before = helpers.everything(database)
    helpers.refuse_event(database, "task_reset")
    with pytest.raises(IntegrityError):
        database.frozen.recover()
    assert helpers.everything(database) == before


@pytest.mark.parametrize("point", ["before the claim", "after the claim", "after the heartbeat", "after the end"])
def test_a_task_completes_even_if_its_worker_dies_at_any_point(database, point):
    handle = database.add()
    if point != "before the claim":
        (claim,) = database.claim()
        if point == "after the heartbeat":
            database.frozen.heartbeat([claim])
        if point == "after the end":
            database.frozen.complete(claim)
    database.clock.advance(3600)
    database.frozen.recover()
    for claim in database.claim(worker_id=uuid4()):
        database.frozen.complete(claim)
    assert database.frozen.get(handle.id).status is TaskStatus.COMPLETED


@pytest.mark.parametrize("limit", [0, -1, True, 2.0])
def test_an_invalid_limit_is_refused(database, limit):
    with pytest.raises(InvalidArgument):
        database.frozen.recover(limit)


def test_a_negative_number_of_recoveries_is_refused(database):
    with pytest.raises(InvalidArgument):
        database.frozen.recover(max_recoveries=-1)


def test_a_recovery_without_expired_leases_writes_nothing(database):
    helpers.claimed(database)
    before = helpers.everything(database)
    assert database.frozen.recover() == []
    assert helpers.everything(database) == before


def test_a_forged_claim_extends_nothing(database):
    claim = helpers.claimed(database)
    before = helpers.everything(database)
    database.clock.advance(1)
    for forged in (replace(claim, lease_token=2), replace(claim, worker_id=uuid4())):
        assert database.frozen.heartbeat([forged]) == {}
    assert helpers.everything(database) == before
