"""Changes by people and programs (cancel, redrive, run now, set a priority), and pairs of concurrent operations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from outboxq.errors import InvalidArgument, InvalidTransition, LeaseLost, OutboxqError, TaskNotFound
from outboxq.model import EventType, Outcome, TaskStatus
from outboxq.model.history import replay
from tests.contract import helpers

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ALL = tuple(status for status in TaskStatus if status not in (TaskStatus.READY, TaskStatus.RUNNING))


# --- Cancel


def test_a_waiting_task_is_cancelled_immediately(database):
    handle = database.add(delay=HOUR)
    database.clock.advance(1)
    assert database.frozen.cancel(handle.id, reason="not wanted") is TaskStatus.CANCELLED
    task, event = database.frozen.get(handle.id), database.frozen.history(handle.id)[-1]
    assert (task.status, task.completed_at, task.retry_at) == (TaskStatus.CANCELLED, database.clock.now, None)
    assert (event.event_type, event.lease_token, event.worker_id) == ("task_cancelled", None, None)
    assert event.event_data["reason"] == "not wanted"
    assert database.counts()[2] == 0


def test_a_running_task_is_asked_to_stop_and_stays_with_its_worker(database):
    claim = helpers.claimed(database)
    database.clock.advance(1)
    assert database.frozen.cancel(claim.id, reason="stop") is TaskStatus.RUNNING
    task, event = database.frozen.get(claim.id), database.frozen.history(claim.id)[-1]
    assert (task.status, task.cancel_requested_at) == (TaskStatus.RUNNING, database.clock.now)
    assert (event.event_type, event.lease_token) == ("task_cancel_requested", None)
    assert event.event_data["reason"] == "stop"
    database.frozen.complete(claim)
    assert database.frozen.get(claim.id).status is TaskStatus.COMPLETED


def test_a_second_cancel_request_changes_nothing(database):
    claim = helpers.claimed(database)
    database.frozen.cancel(claim.id)
    before = helpers.everything(database)
    database.clock.advance(1)
    assert database.frozen.cancel(claim.id) is TaskStatus.RUNNING
    assert helpers.everything(database) == before


def test_force_cancels_a_running_task_and_fences_its_worker(database):
    claim = helpers.claimed(database)
    assert database.frozen.cancel(claim.id, force=True) is TaskStatus.CANCELLED
    event = database.frozen.history(claim.id)[-1]
    assert (event.event_type, event.lease_token, event.worker_id) == ("task_cancelled", 1, claim.worker_id)
    before = helpers.everything(database)
    with pytest.raises(LeaseLost):
        database.frozen.complete(claim)
    assert database.frozen.heartbeat([claim]) == {}
    assert helpers.everything(database) == before


def test_force_cancels_a_waiting_task_too(database):
    assert database.frozen.cancel(database.add().id, force=True) is TaskStatus.CANCELLED


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_a_task_that_has_ended_cannot_be_cancelled(database, end, force):
    claim = helpers.claimed(database)
    if end == "cancel":
        database.frozen.cancel(claim.id, force=True)
    else:
        getattr(database.frozen, end)(claim, "1")
    before = helpers.everything(database)
    with pytest.raises(InvalidTransition):
        database.frozen.cancel(claim.id, force=force)
    assert helpers.everything(database) == before


@pytest.mark.parametrize("state", ["Ready", "Running"])
def test_any_reason_can_be_stored(database, state):
    for reason in ("nul \0 inside", "lone \ud800 surrogate", "%s :x '\""):
        handle = database.add()
        if state == "Running":
            database.claim()
        database.frozen.cancel(handle.id, reason=reason)
        assert "reason" in database.frozen.history(handle.id)[-1].event_data


# --- Redrive


def test_a_dead_letter_runs_again_from_its_first_attempt(database):
    claim = helpers.dead(database)
    before = database.frozen.get(claim.id)
    assert (before.attempt, before.recovery_attempts) == (2, 0)
    database.clock.advance(1)
    database.frozen.redrive(claim.id)
    task, event = database.frozen.get(claim.id), database.frozen.history(claim.id)[-1]
    assert (task.status, task.attempt, task.recovery_attempts) == (TaskStatus.READY, 1, 0)
    assert (task.completed_at, task.started_at, task.retry_at, task.last_error) == (None, None, None, "second")
    assert (event.event_type, event.lease_token) == ("task_requeued", None)
    assert (event.event_data["attempt"], event.event_data["recovery_attempts"]) == (1, 0)
    assert datetime.fromisoformat(event.event_data["available_at"]) == database.clock.now
    (again,) = database.claim()
    assert (again.id, again.attempt, again.recovery_attempts, again.lease_token) == (claim.id, 1, 0, 4)


def test_a_dead_letter_can_be_redriven_only_once(database):
    claim = helpers.dead(database)
    database.frozen.redrive(claim.id)
    before = helpers.everything(database)
    with pytest.raises(InvalidTransition):
        database.frozen.redrive(claim.id)
    assert helpers.everything(database) == before


def test_one_of_several_simultaneous_redrives_succeeds(database):
    for _ in range(3):
        claim = helpers.dead(database)
        results = helpers.at_once(*[lambda claim=claim: database.frozen.redrive(claim.id)] * 4)
        assert sorted(type(result).__name__ for result in results) == ["InvalidTransition"] * 3 + ["NoneType"]
        assert helpers.types(database, claim.id).count("task_requeued") == 1
        (again,) = database.claim()
        database.frozen.complete(again)


@pytest.mark.parametrize("state", ["Ready", "Running", "Completed", "Cancelled"])
def test_only_dead_letters_can_be_redriven(database, state):
    handle = database.add()
    if state == "Cancelled":
        database.frozen.cancel(handle.id)
    elif state != "Ready":
        (claim,) = database.claim()
        if state == "Completed":
            database.frozen.complete(claim)
    before = helpers.everything(database)
    with pytest.raises(InvalidTransition):
        database.frozen.redrive(handle.id)
    assert helpers.everything(database) == before


@pytest.mark.parametrize("operation", ["redrive", "cancel"])
def test_a_rollback_by_the_caller_undoes_the_change(database, operation):
    task_id = helpers.dead(database).id if operation == "redrive" else database.add().id
    call = getattr(database.frozen, operation)
    before = helpers.everything(database)
    with helpers.transaction(database) as connection:
        call(task_id, using=connection)
        connection.rollback()
        assert helpers.everything(database) == before
        connection.begin()
        call(task_id, using=connection)
        connection.commit()
    assert helpers.everything(database) != before


@pytest.mark.parametrize(
    ("operation", "event_type"),
    [("redrive", "task_requeued"), ("cancel", "task_cancelled"), ("ask", "task_cancel_requested")],
)
def test_a_refused_event_undoes_the_change(database, operation, event_type):
    task_id = helpers.dead(database).id if operation == "redrive" else database.add().id
    if operation == "ask":
        database.claim()
    call = database.frozen.redrive if operation == "redrive" else database.frozen.cancel
    before = helpers.everything(database)
    helpers.refuse_event(database, event_type)
    with pytest.raises(IntegrityError):
        call(task_id)
    with helpers.transaction(database) as connection:
        with pytest.raises(DBAPIError):
            call(task_id, using=connection)
        connection.commit()
    assert helpers.everything(database) == before


# --- Run now, set the priority


def rescheduled(database, task_id):
    """Return the status on which the last event, the entry, the row and the replay agree."""
    (entry,) = database.rows(
        f"SELECT priority, position FROM task_outbox WHERE task_execution_id = '{as_stored(database, task_id)}'"
    )
    task, events = database.frozen.get(task_id), database.frozen.history(task_id)
    assert (task.priority, task.position) == entry
    assert (events[-1].event_type, events[-1].lease_token, events[-1].worker_id) == ("task_rescheduled", None, None)
    state = replay(events)
    assert (state.status, state.attempt) == (task.status, task.attempt)
    return task, events[-1].event_data, state.available_at


def as_stored(database, task_id):
    return task_id.hex if database.name == "sqlite" else task_id


@pytest.mark.parametrize("kind", ["delayed", "retry"])
def test_run_now_makes_a_waiting_task_due(database, kind):
    if kind == "delayed":
        task_id = database.add(delay=HOUR, priority=7).id
    else:
        claim = helpers.claimed(database, priority=7)
        outcome = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, delay=HOUR, error="x")
        database.frozen.finish([outcome])
        task_id = claim.id
    before = database.frozen.get(task_id)
    database.clock.advance(1)
    assert database.frozen.run_now(task_id)
    task, data, due = rescheduled(database, task_id)
    assert (task.priority, task.position, task.attempt) == (7, before.position, before.attempt)
    assert (task.retry_at, task.updated_at, due) == (None, database.clock.now, database.clock.now)
    assert data.keys() == {"available_at", "request"}
    (claim,) = database.claim()
    assert claim.id == task_id


def test_run_now_does_not_change_a_due_task(database):
    handle = database.add()
    before = helpers.everything(database)
    database.clock.advance(1)
    assert not database.frozen.run_now(handle.id)
    assert helpers.everything(database) == before


@pytest.mark.parametrize("kind", ["due", "delayed", "retry"])
def test_a_new_priority_keeps_the_due_time(database, kind):
    if kind == "retry":
        claim = helpers.claimed(database)
        database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, delay=HOUR, error="x")])
        task_id, due = claim.id, database.clock.now + HOUR
    else:
        due = database.clock.now + (HOUR if kind == "delayed" else timedelta(0))
        task_id = database.add(available_at=due).id
    before = database.frozen.get(task_id)
    database.clock.advance(1)
    assert database.frozen.set_priority(task_id, -100)
    task, data, known = rescheduled(database, task_id)
    assert (task.priority, task.retry_at, task.position) == (-100, before.retry_at, before.position)
    assert (known, data["priority"]) == (due, -100)
    everything = helpers.everything(database)
    assert not database.frozen.set_priority(task_id, -100)
    assert helpers.everything(database) == everything
    assert database.frozen.set_priority(task_id, 0)
    assert rescheduled(database, task_id)[1]["priority"] == 0


def test_a_new_priority_can_change_the_first_task_of_a_key(database, monkeypatch):
    first, second = database.add(partition_key="k"), database.add(partition_key="k")
    told = helpers.woken(database.frozen, monkeypatch)
    assert database.frozen.set_priority(first.id, -1)
    assert told == ["default"]
    assert [claim.id for claim in database.claim(2)] == [second.id]


@pytest.mark.parametrize("state", ["Running", "Completed", "Failed", "Cancelled"])
def test_only_waiting_tasks_can_be_rescheduled(database, state):
    claim = helpers.claimed(database)
    if state == "Cancelled":
        database.frozen.cancel(claim.id, force=True)
    elif state != "Running":
        (database.frozen.complete if state == "Completed" else lambda c: database.frozen.fail(c, "x"))(claim)
    before = helpers.everything(database)
    for call in (database.frozen.run_now, lambda task_id: database.frozen.set_priority(task_id, 5)):
        with pytest.raises(InvalidTransition, match=f"is {state} and cannot be rescheduled"):
            call(claim.id)
        with pytest.raises(TaskNotFound):
            call(uuid4())
    assert helpers.everything(database) == before


@pytest.mark.parametrize("operation", ["run_now", "set_priority"])
def test_a_reschedule_whose_commit_response_is_lost_happens_once(database, monkeypatch, operation):
    task_id = database.add(delay=HOUR).id
    arguments = [9] if operation == "set_priority" else []
    store = helpers.lossy(database, monkeypatch)
    assert getattr(store, operation)(task_id, *arguments) is True
    assert helpers.types(database, task_id) == ["task_created", "task_rescheduled"]


def test_a_cancel_that_frees_a_key_or_a_place_wakes_the_queue(database, monkeypatch):
    told = helpers.woken(database.frozen, monkeypatch)
    for fields, force, expected in [({}, False, []), ({}, True, ["q"]), ({"partition_key": "k"}, False, ["q"])]:
        handle = database.add(queue="q", **fields)
        if force:
            database.claim()
        database.frozen.cancel(handle.id, force=force)
        assert told == expected
        told.clear()


# --- Two at once

OPERATIONS = {
    "claim": lambda store, task_id, claim, **using: store.claim_ready_task(9, worker_id=uuid4(), **using),
    "complete": lambda store, task_id, claim, **using: store.complete(claim, **using),
    "release": lambda store, task_id, claim, **using: store.release(claim, **using),
    "heartbeat": lambda store, task_id, claim, **using: store.heartbeat([claim], **using),
    "recover": lambda store, task_id, claim, **using: store.recover(**using),
    "cancel": lambda store, task_id, claim, **using: store.cancel(task_id, **using),
    "force": lambda store, task_id, claim, **using: store.cancel(task_id, force=True, **using),
    "retry": lambda store, task_id, claim, **using: store.schedule_retry(
        task_id, datetime(2040, 1, 1, tzinfo=UTC), 2, **using
    ),
    "redrive": lambda store, task_id, claim, **using: store.redrive(task_id, **using),
    "redrive_all": lambda store, task_id, claim, **using: store.dead_letters.redrive_all(**using),
    "discard": lambda store, task_id, claim, **using: store.discard(task_id, **using),
    "run_now": lambda store, task_id, claim, **using: store.run_now(task_id, **using),
    "priority": lambda store, task_id, claim, **using: store.set_priority(task_id, 9, **using),
}
STATES = {
    "Ready": ["claim", "cancel", "retry", "priority"],
    "Delayed": ["cancel", "retry", "run_now", "priority"],
    "Running": ["complete", "release", "heartbeat", "recover", "cancel", "force", "retry"],
    "Failed": ["retry", "redrive", "redrive_all", "discard"],
}


@pytest.mark.in_turn
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize(("state", "first"), [(state, name) for state, names in STATES.items() for name in names])
def test_an_operation_during_an_open_transaction_raises_no_database_error(database, state, first, end):
    """The second operation waits or skips the task. It never raises an error of the database."""
    for second in STATES[state]:
        handle, claim = database.add(delay=HOUR if state == "Delayed" else timedelta(0)), None
        if state not in ("Ready", "Delayed"):
            (claim,) = database.claim()
            database.clock.advance(3600)  # the lease expires, so a recovery finds the task
        if state == "Failed":
            database.frozen.fail(claim, "broken")
        with helpers.transaction(database) as connection:
            OPERATIONS[first](database.frozen, handle.id, claim, using=connection)
            with helpers.stuck(database, lambda: OPERATIONS[second](database.frozen, handle.id, claim)) as later:  # noqa: B023
                getattr(connection, end)()
                error = later.exception(60)
        assert error is None or isinstance(error, OutboxqError), f"{first} then {second}: {error!r}"
        assert error is None or end == "commit", f"{first} rolled back, then {second}: {error!r}"
        if database.frozen.get(handle.id).status in (TaskStatus.READY, TaskStatus.RUNNING):
            database.frozen.cancel(handle.id, force=True)


def test_a_cancel_that_waits_for_the_end_of_its_task_is_refused(database):
    claim = helpers.claimed(database)
    with helpers.transaction(database) as connection:
        database.frozen.complete(claim, using=connection)
        with helpers.stuck(database, lambda: database.frozen.cancel(claim.id)) as asking:
            connection.commit()
            assert isinstance(asking.exception(60), InvalidTransition)
    assert helpers.types(database, claim.id)[-1] == "task_completed"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("operation", "arguments", "options"),
    [
        ("prune", [-HOUR], {}),
        ("prune", [HOUR], {"batch": 0}),
        ("prune", [HOUR], {"batch": True}),
        ("get", ["no-uuid"], {}),
        ("history", [None], {}),
        ("cancel", ["no-uuid"], {}),
        ("redrive", [7], {}),
        ("discard", ["no-uuid"], {}),
        ("run_now", ["no-uuid"], {}),
        ("set_priority", ["no-uuid", 1], {}),
        ("set_priority", [uuid4(), 101], {}),
        ("set_priority", [uuid4(), True], {}),
        ("get_ready_for_retry", [0], {}),
        ("get_ready_for_retry", [True], {}),
        ("recover", [0], {}),
        ("next_available_at", ["mail"], {}),  # four queues of one letter
    ],
)
def test_invalid_arguments_are_refused(database, operation, arguments, options):
    with pytest.raises(InvalidArgument):
        getattr(database.frozen, operation)(*arguments, **options)


# --- Reasons


@pytest.mark.parametrize("operation", ["redrive", "run_now", "set_priority"])
def test_the_history_records_the_reason_for_a_change(database, operation):
    task_id = helpers.dead(database).id if operation == "redrive" else database.add(delay=HOUR).id
    given = (task_id, 7) if operation == "set_priority" else (task_id,)
    getattr(database.frozen, operation)(*given, reason="by ann\ud800")
    assert database.frozen.history(task_id)[-1].event_data["reason"].startswith("by ann")
