"""`schedule_retry` on tasks that are Ready, Running or Failed, in one transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import uuid4

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from outboxq import Outbox, Retry, RetryPolicy
from outboxq.errors import InvalidArgument, InvalidTransition, LeaseLost, TaskNotFound
from outboxq.model import LATEST, NewTask, TaskStatus
from outboxq.model.uuid7 import uuid7
from tests.contract import helpers

MICROSECOND = timedelta(microseconds=1)


def waiting(database):
    return database.add().id


def running(database):
    return helpers.claimed(database).id


def failed(database):
    claim = helpers.claimed(database)
    database.frozen.fail(claim, "broken")
    return claim.id


@pytest.fixture(params=[waiting, running, failed])
def task_id(request, database):
    return request.param(database)


@pytest.fixture
def retry_at(database):
    return database.clock.now + timedelta(minutes=5, microseconds=1)


def test_the_task_is_ready_again_with_the_given_attempt_and_time(database, task_id, retry_at):
    database.clock.advance(1)
    database.frozen.schedule_retry(task_id, retry_at, 4)
    task = database.frozen.get(task_id)
    assert (task.status, task.attempt, task.retry_at) == (TaskStatus.READY, 4, retry_at)
    assert (task.started_at, task.completed_at, task.worker_id, task.lease_expires_at) == (None, None, None, None)
    assert task.updated_at == database.clock.now


def test_one_event_records_the_attempt_and_the_time(database, task_id, retry_at):
    before = len(database.frozen.history(task_id))
    database.frozen.schedule_retry(task_id, retry_at, 4)
    *earlier, event = database.frozen.history(task_id)
    assert (len(earlier), event.event_type) == (before, "task_retry_scheduled")
    assert event.event_data["attempt"] == 4
    assert datetime.fromisoformat(event.event_data["retry_at"]) == retry_at
    assert datetime.fromisoformat(event.event_data["available_at"]) == retry_at


def test_one_outbox_entry_is_due_at_that_time(database, task_id, retry_at):
    database.frozen.schedule_retry(task_id, retry_at, 2)
    database.frozen.schedule_retry(task_id, retry_at, 2)
    assert len(database.rows("SELECT * FROM task_outbox")) == 1
    assert database.frozen.next_available_at() == retry_at


def test_the_task_is_claimable_at_that_time_and_not_a_microsecond_before(database, task_id, retry_at):
    database.frozen.schedule_retry(task_id, retry_at, 2)
    database.clock.now = retry_at - MICROSECOND
    assert database.claim() == []
    database.clock.now = retry_at
    (claim,) = database.claim()
    assert (claim.id, claim.attempt) == (task_id, 2)
    assert database.frozen.get(task_id).retry_at is None


def test_a_time_in_the_past_means_now(database, task_id):
    database.frozen.schedule_retry(task_id, helpers.stale_by(database, 60), 2)
    assert [claim.id for claim in database.claim()] == [task_id]


def test_a_time_may_be_given_in_any_time_zone(database, retry_at):
    task_id = waiting(database)
    database.frozen.schedule_retry(task_id, retry_at.astimezone(timezone(timedelta(hours=5, minutes=30))), 2)
    task = database.frozen.get(task_id)
    assert (task.retry_at, task.retry_at.utcoffset()) == (retry_at, timedelta(0))
    assert database.frozen.next_available_at() == retry_at


def test_a_new_outbox_entry_keeps_the_queue_priority_and_position(database, retry_at):
    task_id = database.add(queue="mail", priority=7).id
    columns = "queue, priority, position, partition_key, topic, expires_at"
    before = database.rows(f"SELECT {columns} FROM task_outbox")
    (old_id,) = database.rows("SELECT id FROM task_outbox")[0]
    database.frozen.schedule_retry(task_id, retry_at, 2)
    assert database.rows(f"SELECT {columns} FROM task_outbox") == before
    assert database.rows("SELECT id FROM task_outbox")[0][0] > old_id


def test_a_retry_fences_the_worker_that_runs_the_task(database, retry_at):
    claim = helpers.claimed(database)
    database.frozen.schedule_retry(claim.id, retry_at, 2)
    before = helpers.everything(database)
    for end in (database.frozen.complete, database.frozen.release):
        with pytest.raises(LeaseLost):
            end(claim)
    assert database.frozen.heartbeat([claim]) == {}
    assert helpers.everything(database) == before
    database.clock.now = retry_at
    (again,) = database.claim(worker_id=database.worker)
    assert again.lease_token > claim.lease_token
    with pytest.raises(LeaseLost):
        database.frozen.complete(claim)
    database.frozen.complete(again)


def test_the_event_of_a_retry_has_the_lease_token_of_the_claim_that_it_ends(database, retry_at):
    claim = helpers.claimed(database)
    database.frozen.schedule_retry(claim.id, retry_at, 2)
    event = database.frozen.history(claim.id)[-1]
    assert (event.lease_token, event.worker_id) == (claim.lease_token, claim.worker_id)


def test_the_event_of_a_retry_of_an_unclaimed_task_has_no_lease_token(database, retry_at):
    for task_id in (failed(database), waiting(database)):
        database.frozen.schedule_retry(task_id, retry_at, 2)
        event = database.frozen.history(task_id)[-1]
        assert (event.lease_token, event.worker_id) == (None, None)


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_a_completed_or_cancelled_task_cannot_be_retried(database, retry_at, end):
    claim = helpers.claimed(database)
    if end == "complete":
        database.frozen.complete(claim)
    else:
        database.frozen.cancel(claim.id, force=True)
    before = helpers.everything(database)
    with pytest.raises(InvalidTransition):
        database.frozen.schedule_retry(claim.id, retry_at, 2)
    assert helpers.everything(database) == before


def test_an_unknown_id_is_not_found_and_nothing_is_written(database, retry_at):
    waiting(database)
    before = helpers.everything(database)
    with pytest.raises(TaskNotFound):
        database.frozen.schedule_retry(uuid4(), retry_at, 2)
    assert helpers.everything(database) == before


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("when", "attempt"),
    [
        (datetime(2031, 1, 1), 2),  # noqa: DTZ001 - naive on purpose
        ("2031-01-01T00:00:00+00:00", 2),
        (None, 2),
        (datetime(2031, 1, 1, tzinfo=UTC), 0),
        (datetime(2031, 1, 1, tzinfo=UTC), -1),
        (datetime(2031, 1, 1, tzinfo=UTC), True),
        (datetime(2031, 1, 1, tzinfo=UTC), 1.0),
        (datetime(2031, 1, 1, tzinfo=UTC), "2"),
        (datetime(2031, 1, 1, tzinfo=UTC), 2**31),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_written(database, task_id, when, attempt):
    before = helpers.everything(database)
    with pytest.raises(InvalidArgument):
        database.frozen.schedule_retry(task_id, when, attempt)
    assert helpers.everything(database) == before


def test_an_id_that_is_not_a_uuid_is_refused(database, retry_at):
    with pytest.raises(InvalidArgument):
        database.frozen.schedule_retry("7", retry_at, 2)


def test_simultaneous_calls_create_one_outbox_entry_and_attempt(database, task_id, retry_at):
    results = helpers.at_once(*[lambda: database.frozen.schedule_retry(task_id, retry_at, 2)] * 4)
    assert results == [None] * 4
    assert len(database.rows("SELECT * FROM task_outbox")) == 1
    assert database.frozen.get(task_id).attempt == 2


def test_a_retry_simultaneous_with_a_claim_leaves_the_task_ready(database):
    for _ in range(10):
        task_id = waiting(database)
        due = database.clock.now + timedelta(hours=1)
        claims, retried = helpers.at_once(
            lambda: database.claim(10), lambda task_id=task_id, due=due: database.frozen.schedule_retry(task_id, due, 2)
        )
        assert retried is None
        assert [claim.id for claim in claims] in ([], [task_id])
        assert database.frozen.get(task_id).status is TaskStatus.READY  # a claim is fenced or finds nothing due
        for claim in claims:
            with pytest.raises(LeaseLost):
                database.frozen.complete(claim)


def test_a_retry_that_waits_for_another_retry_applies_after_it(database, task_id, retry_at):
    with helpers.transaction(database) as connection:
        database.frozen.schedule_retry(task_id, retry_at, 2, using=connection)
        with helpers.stuck(database, lambda: database.frozen.schedule_retry(task_id, retry_at, 3)) as second:
            connection.commit()
            assert second.result(60) is None
    assert database.frozen.get(task_id).attempt == 3
    assert len(database.rows("SELECT * FROM task_outbox")) == 1


def test_a_rollback_or_commit_by_the_caller_decides_about_the_retry(database, task_id, retry_at):
    before = helpers.everything(database)
    with helpers.transaction(database) as connection:
        database.frozen.schedule_retry(task_id, retry_at, 2, using=connection)
        assert database.frozen.get(task_id, using=connection).attempt == 2
        assert helpers.everything(database) == before  # outboxq committed nothing
        connection.rollback()
        assert helpers.everything(database) == before
        connection.begin()
        database.frozen.schedule_retry(task_id, retry_at, 2, using=connection)
        connection.commit()
    assert database.frozen.get(task_id).attempt == 2


def test_a_rollback_of_a_savepoint_undoes_the_retry_inside_it(database, task_id, retry_at):
    with helpers.transaction(database) as connection:
        savepoint = connection.begin_nested()
        database.frozen.schedule_retry(task_id, retry_at, 2, using=connection)
        savepoint.rollback()
        connection.commit()
    assert database.frozen.get(task_id).attempt == 1


def test_a_connection_of_the_caller_stays_usable_after_task_not_found(database, retry_at):
    with helpers.transaction(database) as connection:
        with pytest.raises(TaskNotFound):
            database.frozen.schedule_retry(uuid4(), retry_at, 2, using=connection)
        handle = database.frozen.enqueue(NewTask(id=uuid7(), task_name="later", args="{}"), using=connection)
        connection.commit()
    assert database.frozen.get(handle.id).status is TaskStatus.READY


def test_a_refused_event_rolls_back_the_whole_retry(database, task_id, retry_at):
    before = helpers.everything(database)
    helpers.refuse_event(database, "task_retry_scheduled")
    with pytest.raises(IntegrityError):
        database.frozen.schedule_retry(task_id, retry_at, 2)
    assert helpers.everything(database) == before
    with helpers.transaction(database) as connection:
        with pytest.raises(DBAPIError):
            database.frozen.schedule_retry(task_id, retry_at, 2, using=connection)
        connection.commit()
    assert helpers.everything(database) == before


def test_ready_for_retry_includes_a_task_due_at_this_moment(database, task_id, retry_at):
    database.frozen.schedule_retry(task_id, retry_at, 2)
    database.clock.now = retry_at - MICROSECOND
    assert database.frozen.get_ready_for_retry() == []
    database.clock.now = retry_at
    (task,) = database.frozen.get_ready_for_retry()
    assert (task.id, task.retry_at, task.status) == (task_id, retry_at, TaskStatus.READY)


def test_ready_for_retry_lists_only_due_tasks_oldest_first_including_new_ones(database, retry_at):
    running(database)
    failed(database)
    first, second = waiting(database), waiting(database)
    oldest = database.add(available_at=helpers.stale_by(database, 9)).id
    database.add(delay=timedelta(hours=1))
    database.frozen.schedule_retry(waiting(database), retry_at, 2)
    assert [task.id for task in database.frozen.get_ready_for_retry()] == [oldest, first, second]
    assert [task.id for task in database.frozen.get_ready_for_retry(2)] == [oldest, first]


EAST, WEST = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))
OUTSIDE = [datetime(1970, 1, 1, 0, 30, tzinfo=EAST), datetime(9000, 12, 31, 23, tzinfo=WEST)]
INSIDE = [datetime(1969, 12, 31, 23, tzinfo=WEST), datetime(9001, 1, 1, 0, 30, tzinfo=EAST)]


@pytest.mark.parametrize("moment", OUTSIDE)
def test_a_time_outside_the_years_1970_to_9000_is_refused_before_anything_is_written(database, task_id, moment):
    with pytest.raises(InvalidArgument, match="1970 and 9000"):
        database.frozen.schedule_retry(task_id, moment, 2)
    for field in ("available_at", "expires_at"):
        with pytest.raises(InvalidArgument, match="1970 and 9000"):
            database.add(**{field: moment})


@pytest.mark.parametrize("moment", INSIDE)
def test_a_time_whose_year_in_utc_is_in_range_is_stored(database, task_id, moment):
    database.frozen.schedule_retry(task_id, moment, 2)
    assert database.frozen.get(task_id).retry_at == moment
    database.add(available_at=moment)


@pytest.mark.parametrize(
    "at", [datetime(1969, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=WEST), datetime(9500, 1, 1, tzinfo=UTC)]
)
def test_a_handler_may_request_a_retry_at_any_time(database, at):
    """The tables accept the years 1970 to 9000. Other times become the nearest one in this range."""
    outbox, runs = Outbox(database.engine), []

    @outbox.task(name="work", retry=RetryPolicy(max_attempts=5))
    def work():
        runs.append(at)
        if len(runs) == 1:
            raise Retry(at=at)

    handle = work.using(outbox).enqueue()
    outbox.worker(concurrency=1, notifications=False).run(burst=True)
    found = outbox.store.get(handle.id)
    if at.year < 1970:
        assert (len(runs), found.status) == (2, TaskStatus.COMPLETED)
    else:
        assert (len(runs), found.status, found.retry_at) == (1, TaskStatus.READY, LATEST)
