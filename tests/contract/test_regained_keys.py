"""A dead letter whose idempotency key became free runs again with its key, or the error names the task that has it."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import OperationalError

from outboxq.cli import main
from outboxq.errors import DuplicateTask
from outboxq.model import Handle, NewTask, OnConflict, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.contract import helpers

DAY = timedelta(days=1)
MODES = [OnConflict.RETURN, OnConflict.REPLACE]


def add(database, key="k", **fields) -> Handle:
    return database.add(idempotency_key=key, **{"unique_until_finished": True, **fields})


def fail(database, count=1) -> list[UUID]:
    """Fail the next tasks permanently. Return their ids."""
    claims = database.claim(count, queues=["default"])
    assert len(claims) == count
    for claim in claims:
        database.frozen.fail(claim, "no")
        database.clock.advance(1)
    return [claim.id for claim in claims]


def complete(database) -> UUID:
    [claim] = database.claim()
    database.frozen.complete(claim)
    return claim.id


def letter(database, **fields) -> UUID:
    handle = add(database, **fields)
    assert fail(database) == [handle.id]
    return handle.id


def statuses(database, *ids) -> list[TaskStatus]:
    return [database.frozen.get(one).status for one in ids]


def redrive(database, task_id, **options):
    database.frozen.redrive(task_id, **options)


def retry(database, task_id, **options):
    database.frozen.schedule_retry(task_id, database.clock(), 2, **options)


both_ways = pytest.mark.parametrize("again", [redrive, retry])


# --- Another task has the key


@both_ways
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("state", ["waits", "runs"])
def test_a_redrive_is_refused_if_another_task_has_the_key_and_names_that_task(database, again, joined, state):
    old, new = letter(database), add(database).id
    if state == "runs":
        database.claim()
    before = helpers.everything(database)
    with helpers.transaction(database) if joined else nullcontext() as connection:
        with pytest.raises(
            DuplicateTask, match=f"task {old} cannot run again.*'k'.* now belongs to task {new}"
        ) as error:
            again(database, old, using=connection)
        assert error.value.task_id == new
        if connection is not None:
            connection.commit()
    assert helpers.everything(database) == before


@both_ways
def test_take_key_back_returns_the_key_and_the_other_task_continues(database, again):
    old, new = letter(database), add(database).id
    again(database, old, take_key_back=True)
    assert statuses(database, old, new) == [TaskStatus.READY] * 2
    assert add(database) == Handle(id=old, created=False)
    assert len(database.claim(2)) == 2


def test_a_key_kept_forever_is_refused_even_if_its_other_task_has_completed(database):
    old, new = letter(database), add(database, unique_until_finished=False).id
    assert complete(database) == new
    with pytest.raises(DuplicateTask, match=str(new)):
        database.frozen.redrive(old)
    database.frozen.redrive(old, take_key_back=True)


# --- No other task has the key


@both_ways
@pytest.mark.parametrize("other", ["none", "completed", "pruned", "failed"])
def test_a_dead_letter_runs_again_with_its_key_if_the_key_is_free(database, again, other):
    old = letter(database)
    if other != "none":
        new = add(database).id
        assert [new] == (fail(database) if other == "failed" else [complete(database)])
    if other == "pruned":
        database.clock.advance(2 * DAY)
        assert database.frozen.prune(DAY) == 1
    again(database, old)
    assert add(database) == Handle(id=old, created=False)
    assert complete(database) == old
    assert add(database).created
    if other == "failed":  # the other task has now lost the key
        with pytest.raises(DuplicateTask):
            again(database, new)


def test_the_error_names_the_current_one_of_three_tasks_with_the_key(database):
    first, second, third = letter(database), letter(database), add(database).id
    for one in (first, second):
        with pytest.raises(DuplicateTask) as error:
            database.frozen.redrive(one)
        assert error.value.task_id == third
    assert complete(database) == third
    database.frozen.redrive(second)
    with pytest.raises(DuplicateTask) as error:
        database.frozen.redrive(first)
    assert error.value.task_id == second


def test_a_dead_letter_whose_key_has_expired_can_be_redriven(database):
    old = letter(database, unique_for=DAY, unique_until_finished=False)
    database.clock.advance(2 * DAY)
    new = add(database, unique_for=DAY, unique_until_finished=False)
    assert new.created
    database.frozen.redrive(old)
    assert len(database.claim(2)) == 2


def test_a_discard_does_not_need_the_key(database):
    old, new = letter(database), add(database).id
    database.frozen.discard(old)
    assert add(database) == Handle(id=new, created=False)


# --- Redriving many


def test_redrive_all_skips_dead_letters_whose_keys_other_tasks_have(database, caplog, monkeypatch):
    monkeypatch.setattr("outboxq.store.tasks.cancelling.BATCH", 3)
    lost = [letter(database, key=f"lost {n}") for n in range(4)]
    owners = [add(database, key=f"lost {n}", queue="owners").id for n in range(4)]
    plain, own = (
        [letter(database, key=None, unique_until_finished=False) for _ in range(3)],
        letter(database, key="own"),
    )
    with caplog.at_level("WARNING", "outboxq.store"):
        assert database.frozen.dead_letters.redrive_all() == 4
    assert statuses(database, *lost) == [TaskStatus.FAILED] * 4
    assert statuses(database, *plain, own, *owners) == [TaskStatus.READY] * 8
    [said] = [record.message for record in caplog.records if "skipped" in record.message]
    assert said.startswith("skipped 4 of the dead letters, because other tasks now have their idempotency keys")
    assert str(min(lost)) in said


@pytest.mark.parametrize("other", ["failed", "pruned"])
def test_redrive_all_runs_one_of_two_dead_letters_with_one_key(database, other):
    first, second = letter(database), letter(database)
    if other == "pruned":  # the pruned task had the key after both of them
        third = add(database).id
        assert complete(database) == third
        database.clock.advance(2 * DAY)
        assert database.frozen.prune(DAY) == 1
    assert database.frozen.dead_letters.redrive_all() == 1
    runs = second if other == "failed" else first  # the one that has the key, otherwise the older one
    assert add(database) == Handle(id=runs, created=False)
    assert sorted(statuses(database, first, second)) == [TaskStatus.FAILED, TaskStatus.READY]
    assert database.frozen.dead_letters.redrive_all() == 0


def test_the_commands_report_taken_keys(database, capsys, caplog):
    def said(*command, code=0):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, command), "--url", database.url])
        assert (ended.value.code or 0) == code
        return "".join(capsys.readouterr())

    lost, other = letter(database), letter(database, key="other")
    owner = add(database).id
    database.run(
        "UPDATE dead_letters SET failed_at = '2020-01-01T00:00:00.000000+00:00'"
    )  # in the past also by the real clock, which the command uses
    assert f"now belongs to task {owner}" in said("task", "redrive", lost, code=1)
    assert f"now belongs to task {owner}" in said("failed", "redrive", lost, code=1)
    assert "1 of 2 redriven" in said("failed", "redrive", "--all", "--yes")
    assert "skipped 1 of the dead letters" in caplog.text  # the record goes to stderr if logging is not configured
    assert statuses(database, other, lost) == [TaskStatus.READY, TaskStatus.FAILED]
    assert "--take-key-back works only with task ids" in said(
        "failed", "redrive", "--all", "--yes", "--take-key-back", code=2
    )
    said("task", "redrive", lost, "--take-key-back")
    assert statuses(database, lost) == [TaskStatus.READY]


# --- Concurrently


@both_ways
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_a_redrive_waits_for_a_transaction_that_takes_the_key_and_is_refused(database, again, commits):
    old = letter(database)
    with helpers.transaction(database) as it:
        new = database.frozen.enqueue(keyed(), using=it)
        assert new.created
        with helpers.stuck(database, lambda: again(database, old)) as waiting:
            assert not waiting.done()
            it.commit() if commits else it.rollback()
            error = waiting.exception(60)
    if commits:
        assert isinstance(error, DuplicateTask)
        assert error.task_id == new.id
    assert statuses(database, old) == [TaskStatus.FAILED if commits else TaskStatus.READY]


@both_ways
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_an_enqueue_waits_for_a_redrive_with_its_key_and_finds_the_key_taken(database, again, mode, commits):
    old, new = letter(database), keyed(mode)
    with helpers.transaction(database) as it:
        again(database, old, using=it)
        with helpers.stuck(database, lambda: database.frozen.enqueue(new)) as waiting:
            assert not waiting.done()
            it.commit() if commits else it.rollback()
            answer = waiting.result(60)
    kept = Handle(id=old, created=False, replaced=mode is OnConflict.REPLACE)
    assert answer == (kept if commits else Handle(id=new.id))
    assert len(database.claim(2)) == 1


@both_ways
@pytest.mark.parametrize("mode", MODES)
def test_an_enqueue_that_saw_a_free_key_before_a_redrive_checks_again(postgresql, again, mode):
    old, engine, moved = letter(postgresql), postgresql.own(create_engine(postgresql.url)), []

    def run_again(_connection, _cursor, sql, *_):
        if "locked" in sql and not moved:
            moved.append(again(postgresql, old))

    event.listen(engine, "before_cursor_execute", run_again)
    handle = Store(engine, clock=postgresql.clock).enqueue(keyed(mode))
    assert len(moved) == 1
    assert handle == Handle(id=old, created=False, replaced=mode is OnConflict.REPLACE)
    assert len(postgresql.claim(2)) == 1


def keyed(mode=OnConflict.RETURN) -> NewTask:
    fields = {"idempotency_key": "k", "unique_until_finished": True, "on_conflict": mode}
    return NewTask(id=uuid7(), task_name="tests.work", args="{}", **fields)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_above_read_committed_an_older_snapshot_cannot_take_a_redriven_key(postgresql, level):
    old = letter(postgresql)
    engine = postgresql.own(postgresql.host_engine().execution_options(isolation_level=level))
    with engine.connect() as it, it.begin():
        assert it.exec_driver_sql("SELECT status FROM task_executions").all() == [("Failed",)]
        postgresql.frozen.redrive(old)
        with pytest.raises(OperationalError, match="could not serialize access"):
            postgresql.frozen.enqueue(keyed(), using=it)
    assert len(postgresql.claim(2)) == 1


def test_only_one_of_two_simultaneous_redrives_with_one_key_succeeds(database):
    first, second = letter(database), letter(database)
    found = helpers.at_once(lambda: redrive(database, first), lambda: redrive(database, second))
    assert sorted(type(one).__name__ for one in found) == ["DuplicateTask", "NoneType"]
    assert sorted(statuses(database, first, second)) == [TaskStatus.FAILED, TaskStatus.READY]


def test_simultaneous_redrives_and_enqueues_leave_one_task_for_each_key(database):
    keys = [f"k{n}" for n in range(6)]
    for key in keys:
        letter(database, key=key)
    batches = [
        [
            NewTask(id=uuid7(), task_name="tests.work", args="{}", idempotency_key=key, unique_until_finished=True)
            for key in order
        ]
        for order in (keys, keys[::-1])
    ]
    found = helpers.at_once(
        database.frozen.dead_letters.redrive_all,
        *(lambda tasks=tasks: database.frozen.enqueue_many(tasks) for tasks in batches),
        database.frozen.dead_letters.redrive_all,
    )
    assert not [one for one in found if isinstance(one, Exception)]
    assert len(database.claim(100)) == len(keys)
