"""Batches and chains in the store: every end is counted, and the `then` tasks are enqueued exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.errors import BatchClosed, BatchNotFound, InvalidArgument, InvalidTransition
from outboxq.model import EventType, NewTask, OnConflict, Outcome, TaskStatus
from outboxq.model.batches import (
    Batch,
    BatchKind,
    BatchLink,
    BatchStatus,
    NewBatch,
    OnFailed,
    first_id,
    is_batch,
    new_batch_id,
)
from outboxq.model.uuid7 import uuid7
from outboxq.store.producing import batches
from outboxq.store.producing.batches import Batches
from tests.conftest import Database
from tests.contract.helpers import batch_with, recovered, transaction, types


def new_task(name: str = "tests.work", **fields: object) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": name, "args": "{}", **fields})  # type: ignore[arg-type]


def following(batch_id: UUID, name: str = "tests.then", number: int = 1) -> NewTask:
    """Return a `then` task with the id of its place in a batch."""
    return new_task(name, id=BatchLink(batch_id=batch_id, number=number).task_id)


def made(
    database: Database,
    members: int = 1,
    *,
    on_failed: OnFailed = OnFailed.CONTINUE,
    then: tuple[NewTask, ...] | None = None,
    kind: BatchKind = BatchKind.BATCH,
    **fields: object,
) -> Batch:
    """Create and close a batch with this number of members. By default, one task follows it."""
    follow = (new_task("tests.then"),) if then is None else then
    batch = batch_with(*follow, on_failed=on_failed, kind=kind)
    database.frozen.batches.create(batch)
    for _ in range(members):
        database.add(pipeline_execution_id=batch.id, **fields)
    database.frozen.batches.close(batch.id)
    return database.store.batches.get(batch.id)


def state(database: Database, batch: Batch) -> tuple[int, int, int, int, bool]:
    """Return the batch's size, its counts, and whether it has completed."""
    now = database.store.batches.get(batch.id)
    return now.size, now.completed, now.failed, now.cancelled, now.completed_at is not None


def follows(database: Database, batch: Batch) -> bool:
    """Return whether the `then` task exists, exactly once and Ready."""
    found = database.rows("SELECT id FROM task_executions WHERE task_name = 'tests.then'")
    assert len(found) <= 1
    if found:
        [then_id] = batch.then_ids
        assert database.store.get(then_id).pipeline_execution_id == batch.id
        assert types(database, then_id)[0] == EventType.CREATED
    return bool(found)


def complete(database: Database) -> None:
    (claim,) = database.claim()
    database.frozen.complete(claim)


def test_the_last_end_enqueues_the_then_task(database: Database) -> None:
    batch = made(database, 3)
    for done in range(3):
        assert state(database, batch) == (3, done, 0, 0, False)
        assert not follows(database, batch)
        complete(database)
    assert state(database, batch) == (3, 3, 0, 0, True)
    assert follows(database, batch)
    assert database.store.batches.get(batch.id).status is BatchStatus.COMPLETED
    (claim,) = database.claim()
    assert (claim.task_name, claim.pipeline_execution_id) == ("tests.then", batch.id)
    database.frozen.complete(claim)
    assert state(database, batch) == (3, 3, 0, 0, True)  # the `then` task is not counted


def test_a_then_task_is_enqueued_with_its_options_and_an_event(database: Database) -> None:
    then = new_task("tests.then", queue="reports", priority=7, max_attempts=4, partition_key="k", args='{"n": "ä\\n"}')
    batch = made(database, then=(then,))
    complete(database)
    [then_id] = batch.then_ids
    task = database.store.get(then_id)
    assert (task.queue, task.priority, task.max_attempts, task.partition_key) == ("reports", 7, 4, "k")
    assert (task.args, task.attempt, task.status) == ('{"n": "ä\\n"}', 1, TaskStatus.READY)
    (created,) = database.store.history(then_id)
    assert created.event_type is EventType.CREATED
    assert created.event_data["position"] == task.position
    assert follows(database, batch)


def test_a_then_task_keeps_its_concurrency_key(database: Database) -> None:
    then = new_task("tests.then", concurrency_key="k")
    [then_id] = made(database, then=(then,)).then_ids
    complete(database)
    assert database.store.get(then_id).concurrency_key == "k"


def test_an_empty_batch_enqueues_its_then_task_immediately(database: Database) -> None:
    batch = made(database, 0)
    assert state(database, batch) == (0, 0, 0, 0, True)
    assert follows(database, batch)


def test_a_batch_can_complete_without_a_then_task(database: Database) -> None:
    batch = made(database, then=())
    complete(database)
    assert state(database, batch) == (1, 1, 0, 0, True)
    assert database.store.batches.get(batch.id).status is BatchStatus.COMPLETED


def failing(database: Database) -> UUID:
    (claim,) = database.claim()
    database.frozen.fail(claim, "it broke")
    return claim.id


def test_a_dead_letter_counts_as_ended_with_the_policy_continue(database: Database) -> None:
    batch = made(database, 2)
    failing(database)
    assert state(database, batch) == (2, 0, 1, 0, False)
    complete(database)
    assert state(database, batch) == (2, 1, 1, 0, True)
    assert follows(database, batch)


@pytest.mark.parametrize("cure", ["redrive", "discard"])
def test_a_batch_waits_for_its_dead_letter(database: Database, cure: str) -> None:
    batch = made(database, 1, on_failed=OnFailed.WAIT)
    task_id = failing(database)
    assert state(database, batch) == (1, 0, 1, 0, False)
    assert database.store.batches.get(batch.id).pending == 1
    getattr(database.frozen, cure)(task_id)
    if cure == "redrive":
        assert state(database, batch) == (1, 0, 0, 0, False)
        complete(database)
    assert state(database, batch)[2:] == (0, int(cure == "discard"), True)
    assert follows(database, batch)


@pytest.mark.parametrize("kind", [BatchKind.BATCH, BatchKind.CHAIN])
def test_a_batch_no_longer_waits_for_a_pruned_dead_letter(database: Database, kind: BatchKind) -> None:
    batch = made(database, 1, on_failed=OnFailed.WAIT, kind=kind)
    failing(database)
    database.clock.advance(timedelta(days=40))
    assert database.frozen.prune(timedelta(days=30)) == 0
    assert state(database, batch) == (1, 0, 1, 0, False)
    assert database.frozen.prune(timedelta(days=30), statuses=[TaskStatus.FAILED]) == 1
    assert state(database, batch) == (1, 0, 0, 1, True)
    assert follows(database, batch) is (kind is BatchKind.BATCH)


def test_tasks_are_kept_until_their_batch_is_old_enough_to_prune(database: Database) -> None:
    batch, month = made(database, 2), timedelta(days=30)
    complete(database)
    database.clock.advance(timedelta(days=40))
    assert database.frozen.prune(month, dry_run=True) == database.frozen.prune(month) == 0
    complete(database)
    complete(database)  # the `then` task
    database.clock.advance(timedelta(days=29))
    assert database.frozen.prune(month, dry_run=True) == database.frozen.prune(month) == 0
    assert state(database, batch) == (2, 2, 0, 0, True)
    database.clock.advance(timedelta(days=2))
    assert database.frozen.prune(month, dry_run=True) == database.frozen.prune(month) == 3


@pytest.mark.parametrize("state_of_it", [TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED])
def test_tasks_are_kept_while_their_then_task_may_still_run(database: Database, state_of_it: TaskStatus) -> None:
    made(database, 2)
    complete(database)
    complete(database)
    if state_of_it is TaskStatus.FAILED:
        failing(database)
    database.clock.advance(timedelta(days=40))
    if state_of_it is TaskStatus.RUNNING:
        (claim,) = database.claim()
    month = timedelta(days=30)
    assert database.frozen.prune(month, dry_run=True) == database.frozen.prune(month) == 0
    if state_of_it is TaskStatus.FAILED:
        (letter,) = database.frozen.dead_letters.list()
        database.frozen.redrive(letter.id)
    if state_of_it is not TaskStatus.RUNNING:
        (claim,) = database.claim()
    database.frozen.complete(claim)
    assert database.frozen.prune(month, dry_run=True) == database.frozen.prune(month) == 2
    assert [task.id for task in database.frozen.tasks()] == [claim.id]


@pytest.mark.parametrize("cure", ["discard", "prune"])
def test_tasks_are_pruned_if_their_then_task_was_discarded_or_pruned(database: Database, cure: str) -> None:
    made(database, 2)
    complete(database)
    complete(database)
    task_id, month = failing(database), timedelta(days=30)
    database.clock.advance(timedelta(days=40))
    if cure == "discard":
        database.frozen.discard(task_id)
    else:
        assert database.frozen.prune(month, statuses=[TaskStatus.FAILED]) == 1
    assert database.frozen.prune(month, dry_run=True) == database.frozen.prune(month) == 2


def test_tasks_of_a_chain_are_kept_while_its_last_task_is_a_dead_letter(database: Database) -> None:
    chain = chained(database, "tests.second", "tests.third")
    complete(database)
    complete(database)
    last, month = failing(database), timedelta(days=30)
    assert last == chain.then_ids[-1]
    assert database.frozen.batches.get(chain.id).status is BatchStatus.COMPLETED
    database.clock.advance(timedelta(days=40))
    assert database.frozen.prune(month, dry_run=True) == database.frozen.prune(month) == 0
    database.frozen.redrive(last)
    complete(database)
    assert database.frozen.prune(month) == 2


def test_tasks_of_a_chain_that_was_cancelled_by_a_dead_letter_are_kept_for_its_redrive(database: Database) -> None:
    chain = chained(database, "tests.second", "tests.third", on_failed=OnFailed.CANCEL)
    complete(database)
    second, month = failing(database), timedelta(days=30)
    assert second == chain.then_ids[0]
    assert database.frozen.batches.get(chain.id).status is BatchStatus.CANCELLED
    database.clock.advance(timedelta(days=40))
    assert database.frozen.prune(month) == 0
    database.frozen.discard(second)
    assert database.frozen.prune(month) == 1


@pytest.mark.parametrize("many", [False, True])
def test_a_dead_letter_whose_previous_task_was_deleted_is_not_redriven(
    database: Database, many: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chain = chained(database, "tests.second", "tests.third")
    complete(database)
    complete(database)
    last, before = failing(database), chain.then_ids[0]
    other = database.add().id
    assert failing(database) == other
    forget(database, before)
    if many:
        assert database.frozen.dead_letters.redrive_all() == 1
        assert f"because the tasks before them in their chains were deleted: {last}" in caplog.text
        assert database.store.get(other).status is TaskStatus.READY
    for change in (
        lambda: database.frozen.redrive(last),
        lambda: database.frozen.reschedule(last, database.clock()),
        lambda: database.frozen.schedule_retry(last, database.clock(), 2),
    ):
        with pytest.raises(
            InvalidTransition, match=f"cannot be redriven: the task before it in its chain, {before}, was"
        ):
            change()
    assert database.store.get(last).status is TaskStatus.FAILED
    why = database.store.explain(last)
    assert "it cannot be redriven: the task before it" in why.sentence
    assert [cure.command for cure in why.cures] == [("failed", "discard", str(last))]
    said = CliRunner().invoke(main, ["failed", "redrive", str(last), "--url", database.url])
    assert (said.exit_code, "discard this task" in said.stderr) == (1, True)
    database.frozen.discard(last)


def forget(database: Database, task_id: UUID) -> None:
    """Delete a task's rows, as a person might."""
    stored = task_id.hex if database.name == "sqlite" else task_id
    database.run(f"DELETE FROM execution_events WHERE task_execution_id = '{stored}'")
    database.run(f"DELETE FROM task_executions WHERE id = '{stored}'")


def chained(database: Database, *names: str, on_failed: OnFailed = OnFailed.WAIT) -> Batch:
    """Create a chain of a first task and tasks with these names."""
    chain_id = new_batch_id()
    links = tuple(following(chain_id, name, number) for number, name in enumerate(names, start=1))
    chain = NewBatch(id=chain_id, kind=BatchKind.CHAIN, then=links, on_failed=on_failed)
    database.frozen.batches.create(chain)
    database.add(id=first_id(chain_id), pipeline_execution_id=chain_id)
    database.frozen.batches.close(chain_id)
    return database.store.batches.get(chain_id)


def test_a_redriven_dead_letter_counts_again_before_the_batch_completes(database: Database) -> None:
    batch = made(database, 2)
    task_id = failing(database)
    database.frozen.redrive(task_id)
    complete(database)
    assert state(database, batch) == (2, 1, 0, 0, False)
    complete(database)
    assert state(database, batch) == (2, 2, 0, 0, True)
    assert follows(database, batch)


def test_a_redrive_after_the_completion_does_not_reopen_the_batch(database: Database) -> None:
    batch = made(database, 1)
    task_id = failing(database)
    before = state(database, batch)
    database.frozen.redrive(task_id)
    assert state(database, batch) == before == (1, 0, 1, 0, True)
    while claims := database.claim():
        database.frozen.complete(claims[0])
    assert state(database, batch) == before
    assert follows(database, batch)


@pytest.mark.parametrize("way", ["cancel", "force", "all", "expired", "abandoned", "own"])
def test_every_other_way_to_end_is_counted(database: Database, way: str) -> None:
    batch = made(database, expires_in=timedelta(seconds=5) if way == "expired" else None)
    ends = (1, 0, 0, 1, True)
    [task_id] = [task.id for task in database.store.tasks()]
    if way == "cancel":
        database.frozen.cancel(task_id)
    elif way == "force":
        database.claim()
        database.frozen.cancel(task_id, force=True)
    elif way == "all":
        assert database.frozen.cancel_all(task="tests.work") == 1
    elif way == "expired":
        database.clock.advance(10)
        database.claim()
    elif way == "abandoned":
        for _ in range(4):
            (claim,) = database.claim()
            recovered(database, claim)
        ends = (1, 0, 1, 0, True)
    else:
        (claim,) = database.claim()
        database.frozen.finish([Outcome(claim=claim, event_type=EventType.CANCELLED)])
    assert state(database, batch) == ends
    assert follows(database, batch)


def test_retries_releases_and_recoveries_do_not_count_as_ends(database: Database) -> None:
    batch = made(database)
    (claim,) = database.claim()
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="again")])
    (claim,) = database.claim()
    database.frozen.release(claim)
    (claim,) = database.claim()
    recovered(database, claim)
    assert state(database, batch) == (1, 0, 0, 0, False)
    complete(database)
    assert state(database, batch) == (1, 1, 0, 0, True)


def test_a_task_may_add_tasks_to_its_batch(database: Database) -> None:
    batch = made(database)
    (claim,) = database.claim()
    database.add(pipeline_execution_id=batch.id)
    database.frozen.complete(claim)
    assert state(database, batch) == (2, 1, 0, 0, False)
    complete(database)
    assert state(database, batch) == (2, 2, 0, 0, True)


def test_a_completed_batch_accepts_no_more_tasks(database: Database) -> None:
    batch = made(database)
    complete(database)
    before = database.counts()
    with pytest.raises(BatchClosed, match="does not accept more tasks"):
        database.add(pipeline_execution_id=batch.id)
    with pytest.raises(BatchClosed):
        database.add(pipeline_execution_id=new_batch_id())
    assert database.counts() == before
    assert state(database, batch) == (1, 1, 0, 0, True)


def test_a_taken_idempotency_key_adds_no_task_to_a_batch(database: Database) -> None:
    database.add(idempotency_key="one")
    batch = batch_with(new_task("tests.then"))
    store = database.frozen
    store.batches.create(batch)
    fields = {"pipeline_execution_id": batch.id}
    tasks = [new_task(idempotency_key=key, **fields) for key in ("one", "two", "two")]
    assert [handle.created for handle in store.enqueue_many(tasks)] == [False, True, False]
    store.batches.close(batch.id)
    assert store.batches.get(batch.id).size == 1
    with pytest.raises(InvalidArgument, match="replace"):
        store.enqueue(new_task(idempotency_key="one", on_conflict=OnConflict.REPLACE, **fields))


@pytest.mark.parametrize("number", [1, 2])
def test_then_tasks_must_have_the_ids_for_their_places_in_the_batch(database: Database, number: int) -> None:
    """Retention finds a `then` task by this id, and keeps the results that the task still has to read."""
    batch = batch_with(new_task("tests.then"), new_task("tests.then"), kind=BatchKind.CHAIN)
    follow = [*batch.then]
    follow[number - 1] = new_task("tests.then")
    with pytest.raises(InvalidArgument, match=str(batch.then[number - 1].id)):
        database.store.batches.create(replace(batch, then=follow))
    with pytest.raises(BatchNotFound):
        database.store.batches.get(batch.id)


def test_a_rollback_leaves_nothing_of_a_batch(database: Database) -> None:
    batch = batch_with(new_task("tests.then"))
    with database.host.connect() as connection:
        connection.begin()
        database.store.batches.create(batch, using=connection)
        database.store.enqueue(new_task(pipeline_execution_id=batch.id), using=connection)
        database.store.batches.close(batch.id, using=connection)
        connection.rollback()
    with pytest.raises(BatchNotFound):
        database.store.batches.get(batch.id)
    assert database.counts() == (0, 0, 0)


def test_a_rolled_back_end_is_not_counted(database: Database) -> None:
    batch = made(database, 2)
    first, second = database.claim(2)
    with database.host.connect() as connection:
        connection.begin()
        database.frozen.complete(first, using=connection)
        with connection.begin_nested() as savepoint:
            database.frozen.complete(second, using=connection)
            savepoint.rollback()
        connection.commit()
    assert state(database, batch) == (2, 1, 0, 0, False)
    database.frozen.complete(second)
    assert state(database, batch) == (2, 2, 0, 0, True)


def test_a_chain_runs_its_tasks_in_order(database: Database) -> None:
    batch = chained(database, "tests.b", "tests.c", on_failed=OnFailed.WAIT)
    ran = []
    while claims := database.claim():
        ran.append(claims[0].task_name)
        database.frozen.complete(claims[0])
    assert ran == ["tests.work", "tests.b", "tests.c"]
    now = database.store.batches.get(batch.id)
    assert (now.size, now.completed, now.stage, now.status) == (2, 2, 2, BatchStatus.COMPLETED)


@pytest.mark.parametrize("on_failed", [OnFailed.WAIT, OnFailed.CANCEL])
def test_a_failed_task_ends_the_chain_unless_the_policy_is_wait(database: Database, on_failed: OnFailed) -> None:
    batch = chained(database, "tests.b", "tests.then", on_failed=on_failed)
    complete(database)
    task_id = failing(database)
    assert not database.claim()
    database.frozen.redrive(task_id)
    complete(database)
    goes_on = on_failed is OnFailed.WAIT
    assert bool(database.claim()) is goes_on
    status = database.store.batches.get(batch.id).status
    assert status is (BatchStatus.COMPLETED if goes_on else BatchStatus.CANCELLED)


def test_a_cancelled_task_ends_the_chain(database: Database) -> None:
    batch = made(database, kind=BatchKind.CHAIN, on_failed=OnFailed.WAIT)
    assert database.frozen.cancel_all() == 1
    assert not follows(database, batch)
    assert database.store.batches.get(batch.id).status is BatchStatus.CANCELLED


def test_a_failure_cancels_the_other_tasks_with_policy_cancel(database: Database) -> None:
    batch = made(database, 3, on_failed=OnFailed.CANCEL)
    failing(database)
    (running,) = database.claim()
    assert database.store.batches.get(batch.id).status is BatchStatus.CANCELLING
    with pytest.raises(BatchClosed):
        database.add(pipeline_execution_id=batch.id)
    assert database.frozen.batches.continue_cancelling() == 2
    assert state(database, batch) == (3, 0, 1, 1, False)
    database.frozen.finish([Outcome(claim=running, event_type=EventType.CANCELLED)])
    assert state(database, batch) == (3, 0, 1, 2, True)
    assert follows(database, batch)
    assert database.frozen.batches.continue_cancelling() == 0


def test_a_failure_asks_running_tasks_to_stop_only_once(database: Database) -> None:
    """No task is waiting, so only the running tasks are read."""
    batch = made(database, 4, on_failed=OnFailed.CANCEL)
    first, *others = database.claim(4)
    database.frozen.complete(others.pop())
    database.frozen.fail(first, "it broke")
    assert database.frozen.batches.continue_cancelling() == 2
    assert database.frozen.batches.continue_cancelling() == 0
    assert [types(database, one.id)[-1] for one in others] == [EventType.CANCEL_REQUESTED] * 2
    for one in others:
        database.frozen.release(one)
    assert state(database, batch) == (4, 1, 1, 2, True)


def test_a_worker_leaves_a_batch_to_the_worker_that_is_cancelling_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers have read the remaining tasks. The second tries one part, finds it cancelled, and stops."""
    monkeypatch.setattr("outboxq.store.producing.batches._CANCELLED_AT_ONCE", 2)
    batch = made(database, 11, on_failed=OnFailed.CANCEL)
    failing(database)
    ids, cancel, tried = Batches._ids, batches.change_all, []

    def read_before_the_other(*args: Any, **options: Any) -> Any:
        found = ids(*args, **options)
        monkeypatch.undo()
        assert database.own_store().batches.continue_cancelling() == 10
        monkeypatch.setattr(batches, "change_all", note)
        monkeypatch.setattr("outboxq.store.producing.batches._CANCELLED_AT_ONCE", 2)
        return found

    def note(*args: Any, **options: Any) -> int:
        tried.append(args)
        return cancel(*args, **options)

    monkeypatch.setattr(Batches, "_ids", read_before_the_other)
    assert database.frozen.batches.continue_cancelling() == 0
    assert len(tried) == 1
    assert state(database, batch) == (11, 0, 1, 10, True)


def test_a_batch_cancelled_by_a_person_enqueues_no_then_task(database: Database) -> None:
    batch = made(database, 2)
    (running,) = database.claim()
    assert database.frozen.batches.cancel(batch.id, reason="not wanted") == 2
    assert state(database, batch) == (2, 0, 0, 1, False)
    database.frozen.finish([Outcome(claim=running, event_type=EventType.CANCELLED)])
    assert state(database, batch) == (2, 0, 0, 2, True)
    assert not follows(database, batch)
    assert database.store.batches.get(batch.id).status is BatchStatus.CANCELLED
    with pytest.raises(
        InvalidTransition, match=rf"the batch {batch.id} ended as Cancelled at .* UTC, so nothing was cancelled$"
    ):
        database.frozen.batches.cancel(batch.id)
    with pytest.raises(BatchNotFound):
        database.frozen.batches.cancel(new_batch_id())


@pytest.mark.parametrize("kind", [BatchKind.BATCH, BatchKind.CHAIN])
def test_a_cancel_discards_the_dead_letters_that_the_batch_waits_for(database: Database, kind: BatchKind) -> None:
    batch = made(database, 3, on_failed=OnFailed.WAIT, kind=kind)
    early, late = failing(database), database.claim()[0]
    assert database.frozen.batches.get(batch.id).pending == 3
    assert database.frozen.batches.cancel(batch.id, reason="wrong file") == 3, (
        "one task is cancelled, one discarded and one asked to stop"
    )
    assert types(database, early)[-1] == EventType.DISCARDED
    database.frozen.fail(late, "it broke too")
    assert database.frozen.batches.continue_cancelling() == 1
    assert state(database, batch) == (3, 0, 0, 3, True)
    assert not follows(database, batch)
    refused = "ended as Cancelled at .*, so nothing was cancelled$"
    with pytest.raises(InvalidTransition, match=refused):
        database.frozen.batches.cancel(batch.id)
    assert database.store.verify() == []


def test_the_list_of_tasks_that_are_not_completed_begins_with_failed_tasks(database: Database) -> None:
    batch = made(database, 5)
    tasks = [one.id for one in database.store.batches.members(batch.id)]
    claims = {one.id: one for one in database.claim(4)}
    database.frozen.complete(claims[tasks[0]])
    database.frozen.fail(claims[tasks[3]], "it broke")
    database.frozen.cancel(tasks[2], force=True)
    listed = database.frozen.batches.not_completed
    expected = [tasks[3], tasks[2], tasks[1], tasks[4]]
    assert [one.id for one in listed(batch.id)] == expected
    assert [one.id for one in listed(batch.id, limit=2)] == expected[:2]


def test_workers_cancel_the_tasks_that_a_limited_call_left(database: Database) -> None:
    batch = made(database, 4)
    tasks = [one.id for one in database.store.batches.members(batch.id)]
    with transaction(database) as connection:
        assert database.frozen.batches.cancel(batch.id, limit=3, reason="not wanted", using=connection) == 3
        connection.commit()
    assert state(database, batch) == (4, 0, 0, 3, False)
    assert database.frozen.batches.continue_cancelling() == 1
    reasons = [database.store.history(one)[-1].event_data["reason"] for one in tasks]
    assert reasons == ["not wanted"] * 3 + ["its batch was cancelled"]
    assert not follows(database, batch)


def test_batches_with_nothing_left_to_cancel_do_not_block_the_others(database: Database) -> None:
    stubborn = made(database, then=())
    (claim,) = database.claim()
    database.frozen.batches.cancel(stubborn.id)
    others = [made(database, 2, then=()) for _ in range(2)]
    for batch in others:
        assert database.frozen.batches.cancel(batch.id, limit=1) == 1
    assert [database.frozen.batches.continue_cancelling(limit=1) for _ in range(3)] == [1, 1, 0]
    assert [state(database, batch) for batch in others] == [(2, 0, 0, 2, True)] * 2
    assert database.frozen.get(claim.id).status is TaskStatus.RUNNING  # it keeps running although it was asked to stop


def test_a_rollback_by_the_caller_undoes_the_cancel_of_a_batch(database: Database) -> None:
    batch = made(database, 2)
    with transaction(database) as connection:
        assert database.frozen.batches.cancel(batch.id, using=connection) == 2
    assert state(database, batch) == (2, 0, 0, 0, False)
    assert database.store.batches.get(batch.id).status is BatchStatus.RUNNING


def test_a_batch_that_was_never_closed_can_be_cancelled(database: Database) -> None:
    batch = batch_with(new_task("tests.then"))
    database.frozen.batches.create(batch)
    database.add(pipeline_execution_id=batch.id)
    assert database.frozen.batches.cancel(batch.id) == 1
    assert database.store.batches.get(batch.id).status is BatchStatus.CANCELLED
    assert database.store.tasks(task="tests.then") == []


def test_events_record_the_start_and_end_of_a_batch(database: Database) -> None:
    batch = made(database)
    complete(database)
    rows = database.rows(
        "SELECT event_type FROM execution_events WHERE task_execution_id IS NULL ORDER BY sequence_num"
    )
    assert [row[0] for row in rows] == ["batch_created", "batch_completed"]
    assert batch.pending == 1


def test_ids_of_batches_are_sorted_and_recognized() -> None:
    ids = [new_batch_id() for _ in range(100)]
    assert ids == sorted(ids)
    assert all(map(is_batch, ids))
    assert not any(is_batch(one) for one in (uuid7(), UUID(int=0), UUID(int=2**128 - 1), None))


@pytest.mark.parametrize("left", [0, 1])
def test_verify_finds_wrong_counts_and_repairs_them(database: Database, left: int) -> None:
    batch = made(database, 2)
    complete(database)
    if not left:
        with switched_off(database):
            complete(database)
    else:
        database.run("UPDATE task_batches SET completed = 0")
    assert [one.name for one in database.store.verify()] == ["batch_counts_differ"]
    assert [one.repaired for one in database.store.verify(repair=True)] == [1]
    assert database.store.verify() == []
    assert state(database, batch) == (2, 2 - left, 0, 0, not left)
    assert follows(database, batch) is (not left)


@contextmanager
def switched_off(database: Database) -> Iterator[None]:
    """Disable the trigger that counts."""
    if database.name == "postgresql":
        database.run("ALTER TABLE task_executions DISABLE TRIGGER task_executions_batch")
        assert [one.name for one in database.store.verify()] == ["part_missing"]
        yield
        database.run("ALTER TABLE task_executions ENABLE TRIGGER task_executions_batch")
    else:
        [(made,)] = database.rows("SELECT sql FROM sqlite_master WHERE name = 'task_executions_batch'")
        database.run("DROP TRIGGER task_executions_batch")
        assert [one.name for one in database.store.verify()] == ["part_missing"]
        yield
        database.run(str(made))


@pytest.mark.parametrize("then_tasks", ["forged", "1", "[1, 2]", '[{"id": "1"}]'])
def test_an_unreadable_follow_up_prevents_no_repair_of_another_batch(database: Database, then_tasks: str) -> None:
    database.corrupted = True
    bad, good = (made(database, 1, then=(new_task("tests.later"),)) for _ in range(2))
    for _ in range(2):
        complete(database)
    database.run("UPDATE task_batches SET size = 5, completed = 0, completed_at = NULL")
    database.run("DELETE FROM task_executions WHERE task_name = 'tests.later'")
    database.run("DELETE FROM task_outbox")
    database.run("UPDATE task_batches SET stage = 0")
    row = bad.id if database.name == "postgresql" else bad.id.hex
    database.run(f"UPDATE task_batches SET then_tasks = '{then_tasks}' WHERE id = '{row}'")
    repaired = {one.name: one.repaired for one in database.store.verify(repair=True)}
    assert (repaired["batch_counts_differ"], repaired["batch_unreadable"]) == (1, 0)
    assert state(database, good) == (5, 1, 0, 4, True)
    assert state(database, bad) == (5, 0, 0, 0, False)
