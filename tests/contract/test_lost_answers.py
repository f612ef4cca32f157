"""If the connection is lost during COMMIT, a change is neither repeated nor reported as refused."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import pytest

from outboxq.errors import QueueNotFound, RelayNotFound
from outboxq.model import EventType, NewTask, TaskStatus
from outboxq.model.batches import BatchLink, NewBatch, OnFailed, new_batch_id
from outboxq.model.relays import NewRelay
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.store.messages.inbox import Arrival
from outboxq.store.tasks import operations
from tests.contract import helpers


def types(database, handle):
    return [event.event_type for event in database.frozen.history(handle.id)]


def failed(database):
    handle = database.add()
    database.frozen.fail(database.claim()[0], "E")
    return handle


def test_a_task_is_enqueued_once(database, monkeypatch):
    handle = database.add(helpers.lossy(database, monkeypatch))
    assert handle.created
    assert database.counts() == (1, 1, 1)


def test_a_task_with_a_key_is_not_refused_because_of_itself(database, monkeypatch):
    handle = database.add(helpers.lossy(database, monkeypatch), idempotency_key="k")
    assert handle.created
    assert database.add(idempotency_key="k").id == handle.id
    assert database.counts() == (1, 1, 1)


def test_a_batch_reports_which_of_its_keys_were_taken(database, monkeypatch):
    first = database.add(idempotency_key="taken")
    tasks = [
        NewTask(id=uuid7(), task_name="tests.work", args="{}", idempotency_key=key) for key in ("taken", "free", None)
    ]
    handles = helpers.lossy(database, monkeypatch).enqueue_many(tasks)
    assert [handle.created for handle in handles] == [False, True, True]
    assert handles[0].id == first.id
    assert database.counts()[0] == 3


def test_a_task_whose_key_was_taken_is_reported_as_not_created(database, monkeypatch):
    first = database.add(idempotency_key="taken")
    again = database.add(helpers.lossy(database, monkeypatch), idempotency_key="taken")
    assert (again.id, again.created) == (first.id, False)


def test_a_retry_is_scheduled_once(database, monkeypatch):
    handle = database.add()
    at = database.clock.now + timedelta(hours=1)
    helpers.lossy(database, monkeypatch).schedule_retry(handle.id, at, 4)
    assert types(database, handle) == [EventType.CREATED, EventType.RETRY_SCHEDULED]
    assert database.frozen.get(handle.id).attempt == 4


def test_an_older_retry_for_another_time_is_not_mistaken_for_the_new_one(database, monkeypatch):
    handle = database.add()
    at = database.clock.now + timedelta(hours=1)
    database.frozen.schedule_retry(handle.id, at, 2)
    store = helpers.lossy(database, monkeypatch)
    written = store.dialect.compiled[operations.manual_change]
    monkeypatch.setattr(written, "run", _failing_once(database, written))
    store.schedule_retry(handle.id, at + timedelta(hours=1), 2)
    assert database.frozen.get(handle.id).retry_at == at + timedelta(hours=1)


def test_a_cancel_is_not_refused_because_of_itself(database, monkeypatch):
    handle = database.add()
    assert helpers.lossy(database, monkeypatch).cancel(handle.id) is TaskStatus.CANCELLED
    assert types(database, handle) == [EventType.CREATED, EventType.CANCELLED]


def test_tasks_are_made_due_once_and_each_is_counted(database, monkeypatch):
    """After the lost answer, the store looks up each task of the batch, whatever has happened to it since."""
    later = [database.add(delay=timedelta(hours=hours)) for hours in (1, 2, 3)]
    told = []
    store = helpers.lossy(database, monkeypatch)
    assert store.run_all_now(reason="sale", on_progress=told.append) == 3
    assert told == [3]
    for handle in later:
        assert types(database, handle) == [EventType.CREATED, EventType.RESCHEDULED]
        assert database.frozen.get(handle.id).status is TaskStatus.READY
    assert database.frozen.run_all_now() == 0


def test_many_tasks_are_cancelled_once_and_each_is_counted(database, monkeypatch):
    handles = [database.add() for _ in range(3)]
    assert helpers.lossy(database, monkeypatch).cancel_all() == 3
    assert [types(database, handle) for handle in handles] == [[EventType.CREATED, EventType.CANCELLED]] * 3


def test_a_running_task_that_was_asked_to_stop_is_reported_as_running(database, monkeypatch):
    database.add()
    (claim,) = database.claim()
    assert helpers.lossy(database, monkeypatch).cancel(claim.id) is TaskStatus.RUNNING
    assert database.frozen.get(claim.id).cancel_requested_at is not None


def test_a_redrive_is_not_refused_because_of_itself(database, monkeypatch):
    handle = failed(database)
    helpers.lossy(database, monkeypatch).redrive(handle.id)
    assert types(database, handle).count(EventType.REQUEUED) == 1


def _failing_once(database, plan):
    """Make a statement fail the first time, before anything is committed."""
    real, failures = plan.run, []

    def run(*args, **kwargs):
        if not failures:
            failures.append(1)
            raise helpers.lost_connection(database)
        return real(*args, **kwargs)

    return run


@pytest.mark.parametrize("ends", ["retry", "snooze", "release", "fail", "complete"])
def test_a_task_that_was_asked_to_stop_does_not_run_again(database, ends):
    from outboxq.model import Outcome

    kind = {
        "retry": EventType.RETRY_SCHEDULED,
        "snooze": EventType.SNOOZED,
        "release": EventType.RELEASED,
        "fail": EventType.FAILED,
        "complete": EventType.COMPLETED,
    }[ends]
    handle = database.add()
    claim = database.claim()[0]
    database.frozen.cancel(handle.id)
    database.frozen.finish([Outcome(claim=claim, event_type=kind)])
    task = database.frozen.get(handle.id)
    expected = {"fail": TaskStatus.FAILED, "complete": TaskStatus.COMPLETED}.get(ends, TaskStatus.CANCELLED)
    assert (task.status, task.attempt, task.retry_at) == (expected, 1, None)
    assert types(database, handle)[-1] is (kind if ends in ("fail", "complete") else EventType.CANCELLED)


def test_stale_entries_do_not_hide_due_tasks(database):
    done = database.add(priority=50)
    database.frozen.complete(database.claim()[0])
    due = database.add()
    database.run(
        "INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at) "
        "SELECT id, queue, 50, position, created_at, created_at FROM task_executions WHERE task_name = 'tests.work' "
        "AND status = 'Completed'"
    )
    assert [claim.id for claim in database.claim(1)] == [due.id]
    assert done.id != due.id


def test_a_manual_change_is_recognized_even_if_a_worker_has_claimed_the_task_since(database, monkeypatch):
    handle, others = failed(database), [failed(database) for _ in range(3)]
    helpers.lossy(database, monkeypatch, database.claim).redrive(handle.id)
    assert types(database, handle)[-2:] == [EventType.REQUEUED, EventType.CLAIMED]
    assert helpers.lossy(database, monkeypatch, lambda: database.claim(5)).dead_letters.redrive_all() == len(others)
    later = database.add(delay=timedelta(hours=1))
    assert helpers.lossy(database, monkeypatch, database.claim).run_now(later.id)
    assert types(database, later) == [EventType.CREATED, EventType.RESCHEDULED, EventType.CLAIMED]


def test_an_earlier_change_is_not_mistaken_for_the_failed_one(database, monkeypatch):
    handle = database.add(delay=timedelta(hours=1))
    database.frozen.set_priority(handle.id, 5)
    real, failures = database.frozen.transaction, [1]

    def failing(begin):
        if begin == "write" and failures:
            failures.pop()
            raise helpers.lost_connection(database)
        return real(begin)

    monkeypatch.setattr(database.frozen, "transaction", failing)
    assert database.frozen.run_now(handle.id)
    assert len(database.claim()) == 1


def test_a_cancel_of_a_batch_is_not_refused_because_of_itself(database, monkeypatch):
    batch = NewBatch(id=new_batch_id())
    database.frozen.batches.create(batch)
    assert helpers.lossy(database, monkeypatch).batches.cancel(batch.id) == 0  # it has no tasks, so it ends immediately
    assert database.frozen.batches.get(batch.id).status == "Cancelled"


def test_a_cancel_by_a_dead_letter_is_not_mistaken_for_a_cancel_by_a_person(database, monkeypatch):
    """The first one lets the `then` task run, the other one does not."""
    batch_id = new_batch_id()
    link = BatchLink(batch_id=batch_id, number=1)
    then = NewTask(id=link.task_id, task_name="tests.then", args="{}")
    batches = database.frozen.batches
    batches.create(NewBatch(id=batch_id, on_failed=OnFailed.CANCEL, then=(then,)))
    database.add(pipeline_execution_id=batch_id)
    batches.close(batch_id)
    (claim,) = database.claim()
    database.add(pipeline_execution_id=batch_id)
    database.frozen.fail(claim, "E")
    assert batches.get(batch_id).cancel_requested_at is not None
    store = Store(database.engine, clock=database.clock)
    real, lost = store.transaction, []

    @contextmanager
    def rolled_back_once(begin):
        with real(begin) as target:
            yield target
            if begin == "write" and not lost:
                lost.append(begin)
                raise helpers.lost_connection(database)

    monkeypatch.setattr(store, "transaction", rolled_back_once)
    assert store.batches.cancel(batch_id) == 1
    assert lost
    found = batches.get(batch_id)
    assert (found.status, found.stage, found.runs_then) == ("Cancelled", 0, False)


def test_a_batch_that_ends_when_it_is_closed_is_not_reported_as_missing(database, monkeypatch):
    batch = NewBatch(id=new_batch_id())
    database.frozen.batches.create(batch)
    helpers.lossy(database, monkeypatch).batches.close(batch.id)
    assert database.frozen.batches.get(batch.id).status == "Completed"


def test_settings_that_were_deleted_are_not_reported_as_missing(database, monkeypatch):
    paused = database.frozen.queues.pause("mail", create=True)
    assert helpers.lossy(database, monkeypatch).queues.forget("mail") == paused
    with pytest.raises(QueueNotFound):
        database.frozen.queues.forget("mail")


def test_a_relay_that_was_removed_is_not_reported_as_missing(database, monkeypatch):
    database.frozen.relays.declare([NewRelay(name="orders", topics=("order.*",))])
    assert helpers.lossy(database, monkeypatch).relays.remove("orders") == 0
    with pytest.raises(RelayNotFound):
        database.frozen.relays.remove("orders")


def test_received_messages_are_counted_once(database, monkeypatch):
    def arrival(message_id):
        task = NewTask(id=uuid7(), task_name="tests.work", args="{}")
        return Arrival(consumer="orders", source="", message_id=message_id, keep=timedelta(days=1), task=task)

    def received(*ids):
        return helpers.lossy(database, monkeypatch).inbox.receive([arrival(one) for one in ids])

    database.frozen.inbox.receive([arrival("known")])
    assert received("known", "new", "new", "newer") == 2
    assert received("known", "new") == 0
    assert database.counts()[0] == 3


@pytest.fixture
def abandoned(database):
    """Three tasks of a worker that was never registered and has been silent for 91 seconds."""
    ids = [helpers.claimed(database, lease=timedelta(hours=1)).id for _ in range(3)]
    database.clock.advance(91)
    return ids


def test_a_recovery_from_a_lost_worker_is_not_refused_because_of_itself(database, monkeypatch, abandoned):
    recovered = helpers.lossy(database, monkeypatch).recover_lost(abandoned[0])
    assert (recovered.id, recovered.status) == (abandoned[0], TaskStatus.READY)
    assert database.frozen.history(abandoned[0])[-1].event_type is EventType.RESET


@pytest.mark.parametrize("at_once", [2, 500])
def test_all_tasks_of_a_lost_worker_are_recovered_once_and_each_is_counted(database, monkeypatch, abandoned, at_once):
    monkeypatch.setattr("outboxq.store.claims.lost_workers._AT_ONCE", at_once)
    changes = []
    recovered = helpers.lossy(database, monkeypatch).recover_all_lost(
        database.worker, on_change=lambda _, number: changes.append(number)
    )
    assert recovered == {TaskStatus.READY: 3}
    assert sum(changes) == 3
    assert [database.frozen.get(one).recovery_attempts for one in abandoned] == [1, 1, 1]


def test_a_worker_learns_which_tasks_it_has_recovered(database, monkeypatch):
    ids = {helpers.claimed(database, lease=timedelta(seconds=60)).id for _ in range(3)}
    database.clock.advance(61)
    leases = database.frozen.expired_leases().leases
    recovered = helpers.lossy(database, monkeypatch).recover(3, leases=leases)
    assert {one.id for one in recovered} == ids
    assert [database.frozen.get(one).recovery_attempts for one in ids] == [1, 1, 1]


def test_a_failed_start_of_a_recovery_transaction_does_not_count_earlier_tasks_again(database, monkeypatch, abandoned):
    monkeypatch.setattr("outboxq.store.claims.lost_workers._AT_ONCE", 2)
    store = Store(database.engine, clock=database.clock)
    real, begun = store.transaction, []

    @contextmanager
    def refusing(begin):
        begun.append(begin)
        if len(begun) == 2:
            raise helpers.lost_connection(database)
        with real(begin) as target:
            yield target

    monkeypatch.setattr(store, "transaction", refusing)
    assert store.recover_all_lost(database.worker) == {TaskStatus.READY: 3}


@pytest.mark.parametrize("batch", [2, 50])
def test_a_prune_counts_each_task_that_it_deletes(database, monkeypatch, batch):
    for _ in range(3):
        database.add()
    for claim in database.claim(3):
        database.frozen.complete(claim)
    database.clock.advance(timedelta(hours=1))
    deleted, recorded = [], []
    assert (
        helpers.lossy(database, monkeypatch).prune(
            0, batch=batch, on_progress=deleted.append, on_change=lambda _, number: recorded.append(number)
        )
        == 3
    )
    assert (deleted[-1], sum(recorded)) == (3, 3)
    assert database.counts() == (0, 0, 0)
