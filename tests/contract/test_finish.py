"""Ends of claims: complete, fail, release and batches of outcomes, fenced by lease token and worker."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from outboxq.errors import InvalidArgument, LeaseLost
from outboxq.model import ENDS_CLAIM, EventType, Outcome, TaskStatus
from tests.contract import helpers

HOUR = timedelta(hours=1)


def end(store, claim, event_type, **fields):
    if store.finish([Outcome(claim=claim, event_type=event_type, **fields)]):
        raise LeaseLost


def beat(store, claim):
    if claim.id not in store.heartbeat([claim]):
        raise LeaseLost


ENDS = {
    "complete": lambda store, claim: store.complete(claim, '"done"'),
    "fail": lambda store, claim: store.fail(claim, "broken"),
    "release": lambda store, claim: store.release(claim),
    "retry": lambda store, claim: end(store, claim, EventType.RETRY_SCHEDULED, delay=HOUR),
    "snooze": lambda store, claim: end(store, claim, EventType.SNOOZED, delay=HOUR),
    "cancel": lambda store, claim: end(store, claim, EventType.CANCELLED),
}
FENCED = {**ENDS, "heartbeat": beat}


@pytest.fixture(params=ENDS)
def finish(request):
    return ENDS[request.param]


@pytest.fixture(params=FENCED)
def act(request):
    return FENCED[request.param]


def test_complete_keeps_the_result_and_ends_the_lease(database):
    claim = helpers.claimed(database)
    database.clock.advance(3)
    database.frozen.complete(claim, '{"total": 7}')
    task = database.frozen.get(claim.id)
    assert (task.status, task.result, task.attempt) == (TaskStatus.COMPLETED, '{"total": 7}', 1)
    assert task.completed_at == task.updated_at == database.clock.now
    assert (task.worker_id, task.lease_expires_at, task.retry_at) == (None, None, None)
    assert task.started_at == claim.started_at
    event = database.frozen.history(claim.id)[-1]
    assert (event.event_type, event.lease_token, event.worker_id) == ("task_completed", 1, database.worker)
    assert database.rows("SELECT count(*) FROM task_leases") == [(0,)]


def test_fail_makes_a_dead_letter_with_its_error(database):
    claim = helpers.claimed(database)
    database.frozen.fail(claim, "ValueError: no such order")
    task = database.frozen.get(claim.id)
    assert (task.status, task.last_error, task.completed_at) == (
        TaskStatus.FAILED,
        "ValueError: no such order",
        database.clock.now,
    )
    assert database.frozen.history(claim.id)[-1].event_data == {"attempt": 1, "error": "ValueError: no such order"}
    assert database.claim() == []


def test_release_returns_the_task_without_using_an_attempt(database):
    claim = helpers.claimed(database)
    database.frozen.release(claim, delay=timedelta(seconds=30), reason="shutting down")
    task = database.frozen.get(claim.id)
    assert (task.status, task.attempt, task.recovery_attempts, task.started_at) == (TaskStatus.READY, 1, 0, None)
    assert task.first_started_at == claim.first_started_at
    event = database.frozen.history(claim.id)[-1]
    assert (event.event_type, event.event_data["reason"], event.event_data["attempt"]) == (
        "task_released",
        "shutting down",
        1,
    )
    assert datetime.fromisoformat(event.event_data["available_at"]) == database.clock.now + timedelta(seconds=30)
    database.clock.advance(timedelta(seconds=30, microseconds=-1))
    assert database.claim() == []
    database.clock.advance(timedelta(microseconds=1))
    (again,) = database.claim()
    assert (again.id, again.attempt, again.lease_token) == (claim.id, 1, 2)


def test_a_task_can_be_released_many_times_without_failing(database):
    database.add(max_attempts=1)
    for token in range(1, 21):
        (claim,) = database.claim()
        assert (claim.lease_token, claim.attempt, claim.recovery_attempts) == (token, 1, 0)
        database.frozen.release(claim)


def test_only_a_retry_increases_the_attempt_number(database):
    claim = helpers.claimed(database)
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.SNOOZED)])
    (claim,) = database.claim()
    assert claim.attempt == 1
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, delay=HOUR)])
    task = database.frozen.get(claim.id)
    assert (task.attempt, task.status, task.retry_at) == (2, TaskStatus.READY, database.clock.now + HOUR)
    assert (task.started_at, task.completed_at) == (None, None)
    database.clock.advance(HOUR)
    assert database.claim()[0].attempt == 2
    assert database.frozen.get(claim.id).retry_at is None


def test_an_absolute_time_overrides_the_delay_of_an_outcome(database):
    claim = helpers.claimed(database)
    at = database.clock.now + timedelta(minutes=7, microseconds=1)
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.SNOOZED, available_at=at, delay=HOUR)])
    assert database.frozen.next_available_at() == at


def test_the_error_of_every_attempt_can_be_read_from_the_events(database):
    claim = helpers.claimed(database, max_attempts=3)
    for attempt in (1, 2):
        error = f"error {attempt}"
        data = {"error": error, "traceback": f"at line {attempt}"}
        database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error=error, data=data)])
        assert database.frozen.get(claim.id).last_error == error
        (claim,) = database.claim()
    data = {"error": "error 3", "traceback": "at line 3"}
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="error 3", data=data)])
    task, events = database.frozen.get(claim.id), database.frozen.history(claim.id)
    assert (task.status, task.attempt, task.last_error) == (TaskStatus.FAILED, 3, "error 3")
    told = [
        (event.event_data["error"], event.event_data["traceback"]) for event in events if "error" in event.event_data
    ]
    assert told == [(f"error {attempt}", f"at line {attempt}") for attempt in (1, 2, 3)]


@pytest.mark.parametrize(
    "text",
    ["", "two\nlines", "nul \0 inside", "lone \ud800 surrogate", "%s :name {x} '\"; --", "\x1b]0;x\a", "ü" * 5000],
)
def test_any_error_text_of_a_failed_task_can_be_stored(database, text):
    claim = helpers.claimed(database)
    data = {"error": text, "traceback": text}
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error=text, data=data)])
    assert database.frozen.get(claim.id).status is TaskStatus.FAILED
    assert set(database.frozen.history(claim.id)[-1].event_data) == {"error", "traceback", "attempt"}


def test_nested_error_data_with_invalid_characters_can_be_stored(database):
    claim = helpers.claimed(database)
    data = {"causes": ["nul \0", {"lone \ud800": "nul \0"}]}
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="no", data=data)])
    assert database.frozen.get(claim.id).status is TaskStatus.FAILED


@pytest.mark.parametrize("reason", ["nul \0 inside", "lone \ud800 surrogate"])
def test_a_reason_for_a_release_with_invalid_characters_can_be_stored(database, reason):
    claim = helpers.claimed(database)
    database.frozen.release(claim, reason=reason)
    assert database.frozen.get(claim.id).status is TaskStatus.READY


def test_the_last_error_stays_after_a_later_success(database):
    claim = helpers.claimed(database)
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="first")])
    (claim,) = database.claim()
    database.frozen.complete(claim)
    assert database.frozen.get(claim.id).last_error == "first"


def test_a_batch_can_end_each_claim_with_a_different_outcome(database):
    handles = [database.add() for _ in range(7)]
    claims = database.claim(7)
    kinds = [
        EventType.COMPLETED,
        EventType.FAILED,
        EventType.RETRY_SCHEDULED,
        EventType.RELEASED,
        EventType.SNOOZED,
        EventType.CANCELLED,
    ]
    outcomes = [
        Outcome(claim=claim, event_type=kind, result=str(n), error=f"e{n}", delay=timedelta(seconds=n), data={"n": n})
        for n, (claim, kind) in enumerate(zip(claims, kinds, strict=False))
    ]
    assert database.frozen.finish(outcomes[::-1]) == frozenset()
    tasks = [database.frozen.get(handle.id) for handle in handles]
    assert [task.status.value for task in tasks] == [
        "Completed", "Failed", "Ready", "Ready", "Ready", "Cancelled", "Running",
    ]  # fmt: skip
    assert [task.last_error for task in tasks] == ["e0", "e1", "e2", "e3", "e4", "e5", None]
    assert [task.attempt for task in tasks] == [1, 1, 2, 1, 1, 1, 1]
    last = [database.frozen.history(handle.id)[-1] for handle in handles]
    assert [event.event_type for event in last] == [*kinds, EventType.CLAIMED]
    assert [event.event_data.get("n") for event in last] == [0, 1, 2, 3, 4, 5, None]
    database.clock.advance(4)
    assert sorted(claim.id for claim in database.claim(9)) == sorted(handle.id for handle in handles[2:5])


@pytest.mark.parametrize("kind", sorted(ENDS_CLAIM - {EventType.RESET, EventType.ABANDONED}))
def test_a_batch_of_similar_ends_writes_the_same_rows_as_separate_ends(database, kind):
    """Values that such rows have in common are sent once."""
    for key in ("a", "b", "c", None, None, None):
        database.add(partition_key=key, max_attempts=5)
    outcomes = [
        Outcome(
            claim=claim,
            event_type=kind,
            result=json.dumps(claim.partition_key),
            error="same",
            delay=timedelta(seconds=3),
            data={"reason": "same"},
        )
        for claim in database.claim(6)
    ]
    keyed = sorted((one for one in outcomes if one.claim.partition_key), key=lambda one: one.claim.id)
    plain = [one for one in outcomes if not one.claim.partition_key]
    database.frozen.finish(keyed[:2])
    database.frozen.finish(keyed[2:])
    database.frozen.finish(plain[:2])
    database.frozen.finish(plain[2:])

    def left(outcome: Outcome) -> tuple[object, ...]:
        task, event = database.frozen.get(outcome.claim.id), database.frozen.history(outcome.claim.id)[-1]
        own = {"id", "pipeline_execution_id", "partition_key", "position", "result"}
        return (
            json.loads(task.result) == outcome.claim.partition_key if task.result else None,
            {name: getattr(task, name) for name in task.__slots__ if name not in own},
            event.event_type,
            event.event_data,
        )

    for first, second, alone in (keyed, plain):
        assert left(first) == left(second) == left(alone)
    assert left(keyed[0])[0] is not False


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, {}),
        ({"error": "late"}, {"error": "late"}),
        ({"data": {"n": 1}}, {"n": 1}),
        (None, {"recovery_attempts": 0}),
    ],
    ids=["only results", "error", "data", "recovered"],
)
def test_completions_are_written_correctly_even_if_one_differs_in_more_than_its_result(database, fields, told):
    if fields is None:
        database.add(lease=timedelta(seconds=10))
        database.claim()
        database.clock.advance(11)
        database.frozen.recover()
    keys = ["a", None, None, None]
    for key in keys[: 4 if fields is not None else 3]:
        database.add(partition_key=key)
    claims = sorted(database.claim(4), key=lambda claim: claim.recovery_attempts)
    outcomes = [
        Outcome(claim=claim, event_type=EventType.COMPLETED, result=json.dumps(n)) for n, claim in enumerate(claims)
    ]
    outcomes[-1] = replace(outcomes[-1], **(fields or {}))
    assert database.frozen.finish(outcomes) == frozenset()
    assert [database.frozen.get(claim.id).result for claim in claims] == ["0", "1", "2", "3"]
    last = [database.frozen.history(claim.id)[-1] for claim in claims]
    assert [event.event_type for event in last] == [EventType.COMPLETED] * 4
    assert [dict(event.event_data) for event in last] == [{}, {}, {}, told]
    assert database.rows("SELECT count(*) FROM partition_claims") == [(0,)]


def test_a_batch_returns_the_lost_tasks_and_ends_the_rest(database):
    handles = [database.add(lease=timedelta(seconds=10 if n < 2 else 100)) for n in range(4)]
    claims = database.claim(4)
    database.clock.advance(11)
    database.frozen.recover()
    outcomes = [Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims]
    assert database.frozen.finish(outcomes) == {handles[0].id, handles[1].id}
    assert [database.frozen.get(handle.id).status.value for handle in handles] == [
        "Ready", "Ready", "Completed", "Completed",
    ]  # fmt: skip


def test_five_hundred_claims_can_be_ended_in_one_batch(database):
    from outboxq.model import NewTask
    from outboxq.model.uuid7 import uuid7

    database.frozen.enqueue_many([NewTask(id=uuid7(), task_name="x", args="{}") for _ in range(500)])
    claims = database.claim(500)
    assert len(claims) == 500
    outcomes = [Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims]
    assert database.frozen.finish(outcomes) == frozenset()
    assert database.counts() == (500, 1500, 0)


def test_finishing_without_outcomes_does_nothing(database):
    assert database.frozen.finish([]) == frozenset()


def test_outcomes_of_two_workers_or_two_for_one_task_are_refused(database):
    claim = helpers.claimed(database)
    other = replace(claim, id=uuid4(), worker_id=uuid4())
    before = helpers.everything(database)
    for pair in ([claim, other], [claim, claim]):
        with pytest.raises(InvalidArgument):
            database.frozen.finish([Outcome(claim=each, event_type=EventType.COMPLETED) for each in pair])
    assert helpers.everything(database) == before


@pytest.mark.parametrize("event_type", [EventType.CREATED, EventType.CLAIMED, EventType.EXPIRED, EventType.REQUEUED])
def test_an_outcome_that_does_not_end_a_claim_is_refused(database, event_type):
    """Otherwise, the log would contain a false end, which `verify` would report."""
    claim = helpers.claimed(database)
    before = helpers.everything(database)
    database.corrupted = True  # in case it is not refused
    with pytest.raises(InvalidArgument):
        database.frozen.finish([Outcome(claim=claim, event_type=event_type)])
    assert helpers.everything(database) == before


@pytest.mark.in_turn
@pytest.mark.parametrize("next_holder", ["another worker", "the same worker"])
def test_a_worker_that_lost_its_lease_changes_nothing_and_does_not_disturb_the_next_holder(database, act, next_holder):
    """A claims the task, the lease expires, the task is recovered, B claims it, A acts, B acts."""
    old = helpers.claimed(database)
    helpers.recovered(database, old)
    worker = uuid4() if next_holder == "another worker" else database.worker
    (new,) = database.claim(worker_id=worker)
    before = helpers.everything(database)
    with pytest.raises(LeaseLost):
        act(database.frozen, old)
    assert helpers.everything(database) == before
    database.clock.advance(1)
    act(database.frozen, new)
    assert helpers.everything(database) != before


def test_a_worker_that_lost_its_lease_cannot_change_the_waiting_task(database, act):
    old = helpers.claimed(database)
    helpers.recovered(database, old)
    before = helpers.everything(database)
    with pytest.raises(LeaseLost):
        act(database.frozen, old)
    assert helpers.everything(database) == before


def test_a_recovery_after_a_new_claim_does_not_affect_the_next_holder(database):
    old = helpers.claimed(database)
    helpers.recovered(database, old)
    (new,) = database.claim(worker_id=uuid4())
    before = helpers.everything(database)
    assert database.frozen.recover() == []
    assert helpers.everything(database) == before
    database.frozen.complete(new)


def test_the_same_token_of_another_worker_is_refused(database, act):
    """This happens if a server crash loses the commit of a claim. The token alone proves nothing."""
    claim = helpers.claimed(database)
    before = helpers.everything(database)
    with pytest.raises(LeaseLost):
        act(database.frozen, replace(claim, worker_id=uuid4()))
    assert helpers.everything(database) == before
    act(database.frozen, claim)


@pytest.mark.parametrize("token", [0, 2])
def test_another_token_of_the_same_worker_is_refused(database, act, token):
    claim = helpers.claimed(database)
    before = helpers.everything(database)
    with pytest.raises(LeaseLost):
        act(database.frozen, replace(claim, lease_token=token))
    assert helpers.everything(database) == before


@pytest.mark.parametrize("column", ["lease_token", "worker_id"])
def test_the_task_itself_is_fenced_too_and_not_only_its_lease(database, finish, column):
    """Two proofs must agree: after a manual repair of the lease row, an old worker still cannot change the task."""
    claim = helpers.claimed(database)
    value = "7" if column == "lease_token" else f"'{uuid4().hex}'"
    database.run(f"UPDATE task_executions SET {column} = {value}")
    database.corrupted = True
    before = database.rows("SELECT * FROM task_executions"), database.rows("SELECT * FROM execution_events")
    with pytest.raises(LeaseLost):
        finish(database.frozen, claim)
    assert (database.rows("SELECT * FROM task_executions"), database.rows("SELECT * FROM execution_events")) == before


def test_a_claim_can_be_ended_only_once(database, finish):
    claim = helpers.claimed(database)
    finish(database.frozen, claim)
    before = helpers.everything(database)
    with pytest.raises(LeaseLost):
        database.frozen.complete(claim)
    assert helpers.everything(database) == before


def test_one_of_two_simultaneous_ends_wins(database):
    for _ in range(5):
        claim = helpers.claimed(database)
        results = helpers.at_once(
            lambda claim=claim: database.frozen.complete(claim), lambda claim=claim: database.frozen.fail(claim, "x")
        )
        assert sorted(type(result).__name__ for result in results) == ["LeaseLost", "NoneType"]


def test_an_expired_lease_belongs_to_its_worker_until_the_task_is_recovered(database, act):
    claim = helpers.claimed(database)
    database.clock.advance(3600)
    act(database.frozen, claim)


@pytest.mark.parametrize("operation", ["complete", "fail", "release", "retry", "snooze", "cancel"])
def test_an_end_is_rolled_back_if_its_event_is_refused(database, operation):
    claim = helpers.claimed(database)
    before = helpers.everything(database)
    kind = {"retry": "task_retry_scheduled", "snooze": "task_snoozed", "cancel": "task_cancelled"}
    helpers.refuse_event(database, kind.get(operation, f"task_{operation.rstrip('e')}ed"))
    with pytest.raises(IntegrityError):
        ENDS[operation](database.frozen, claim)
    assert helpers.everything(database) == before


def test_an_end_on_a_connection_of_the_caller_is_part_of_its_transaction(database):
    claim = helpers.claimed(database)
    before = helpers.everything(database)
    with helpers.transaction(database) as connection:
        database.frozen.complete(claim, using=connection)
        connection.rollback()
        assert helpers.everything(database) == before
        connection.begin()
        database.frozen.complete(claim, using=connection)
        connection.commit()
    assert database.frozen.get(claim.id).status is TaskStatus.COMPLETED


def test_an_error_on_a_connection_of_the_caller_leaves_no_partial_end(database):
    claim = helpers.claimed(database)
    before = helpers.everything(database)
    helpers.refuse_event(database, "task_completed")
    with helpers.transaction(database) as connection:
        with pytest.raises(DBAPIError):
            database.frozen.complete(claim, using=connection)
        connection.commit()
    assert helpers.everything(database) == before


def test_a_committed_end_whose_response_was_lost_is_not_reported_as_lost(database, finish, monkeypatch):
    claim = helpers.claimed(database)
    finish(helpers.lossy(database, monkeypatch), claim)
    assert len(helpers.types(database, claim.id)) == 3


def test_an_end_whose_response_was_lost_counts_even_if_another_worker_claimed_the_task(database, monkeypatch):
    claim, other = helpers.claimed(database), uuid4()
    store = helpers.lossy(database, monkeypatch, between=lambda: database.claim(worker_id=other))
    store.release(claim)
    assert helpers.types(database, claim.id) == ["task_created", "task_claimed", "task_released", "task_claimed"]


def test_an_outcome_is_lost_if_the_task_was_recovered_and_the_response_was_lost(database, monkeypatch):
    """The first try ends nothing, because the task has been recovered, and its response is lost. The second must report the loss."""
    claim = helpers.claimed(database)
    helpers.recovered(database, claim)
    with pytest.raises(LeaseLost):
        helpers.lossy(database, monkeypatch).complete(claim)


def test_a_batch_whose_response_was_lost_returns_only_tasks_that_were_really_lost(database, monkeypatch):
    handles = [database.add(lease=timedelta(seconds=10 if n == 0 else 100)) for n in range(3)]
    claims = database.claim(3)
    database.clock.advance(11)
    database.frozen.recover()
    outcomes = [Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims]
    assert helpers.lossy(database, monkeypatch).finish(outcomes) == {handles[0].id}
