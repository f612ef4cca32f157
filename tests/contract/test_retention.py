"""Prune tasks that ended long ago with their events, and events that belong to no task."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from outboxq.cli import main
from outboxq.errors import InvalidArgument, TaskNotFound
from outboxq.model import TERMINAL, EventType, TaskStatus
from outboxq.model.periods import first_id
from outboxq.model.uuid7 import uuid7
from tests.contract import helpers

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
ALL = tuple(TERMINAL)


def unrouted(database, *ages: timedelta) -> None:
    """Insert events of these ages that belong to no task."""
    for age in ages:
        at = (database.clock.now - age).isoformat(timespec="microseconds")
        database.run(
            "INSERT INTO execution_events (pipeline_execution_id, event_type, created_at) VALUES "
            f"('{UUID(int=7)}', '{EventType.UNROUTED}', '{at}')"
        )


def completed(database, **fields):
    claim = helpers.claimed(database, **fields)
    database.frozen.complete(claim)
    return claim.id


def ended(database, status, **fields):
    claim = helpers.claimed(database, **fields)
    if status is TaskStatus.COMPLETED:
        database.frozen.complete(claim)
    elif status is TaskStatus.FAILED:
        database.frozen.fail(claim, "x")
    else:
        database.frozen.cancel(claim.id, force=True)
    return claim.id


def test_prune_deletes_old_ended_tasks_with_their_events_and_keys(database):
    old = ended(database, TaskStatus.COMPLETED, idempotency_key="old")
    cancelled = ended(database, TaskStatus.CANCELLED)
    database.clock.advance(DAY)
    young = ended(database, TaskStatus.COMPLETED, idempotency_key="young")
    database.clock.advance(timedelta(microseconds=1))
    assert database.frozen.prune(DAY, dry_run=True) == 2
    assert database.frozen.prune(DAY) == 2
    for task_id in (old, cancelled):
        assert database.frozen.history(task_id) == []
        with pytest.raises(TaskNotFound):
            database.frozen.get(task_id)
    assert len(database.frozen.history(young)) == 3
    assert database.rows("SELECT key FROM idempotency_keys") == [("young",)]


def test_a_task_of_exactly_the_given_age_is_not_pruned(database):
    ended(database, TaskStatus.COMPLETED)
    database.clock.advance(DAY)
    assert database.frozen.prune(DAY) == 0
    database.clock.advance(timedelta(microseconds=1))
    assert database.frozen.prune(DAY) == 1


def test_dead_letters_are_not_pruned_by_default(database):
    task_id = ended(database, TaskStatus.FAILED)
    database.clock.advance(1000 * DAY)
    assert database.frozen.prune(HOUR) == 0
    assert database.frozen.get(task_id)


def test_unfinished_tasks_are_not_pruned_whatever_their_age(database):
    waiting, running = database.add(delay=3000 * DAY), helpers.claimed(database, lease=3000 * DAY)
    redriven = helpers.dead(database).id
    database.frozen.redrive(redriven)
    database.clock.advance(1000 * DAY)
    before = helpers.everything(database)
    assert database.frozen.prune(HOUR, statuses=ALL) == 0
    assert helpers.everything(database) == before
    assert database.frozen.history(waiting.id)
    assert database.frozen.history(running.id)


@pytest.mark.parametrize("status", [TaskStatus.READY, TaskStatus.RUNNING])
def test_pruning_an_unfinished_status_is_refused(database, status):
    with pytest.raises(InvalidArgument):
        database.frozen.prune(HOUR, statuses=[status, TaskStatus.COMPLETED])


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_every_batch_size_prunes_all_old_tasks(database, batch):
    for _ in range(7):
        ended(database, TaskStatus.COMPLETED)
    kept = database.add()
    database.clock.advance(DAY)
    assert database.frozen.prune(HOUR, batch=batch) == 7
    assert database.counts() == (1, 1, 1)
    assert database.frozen.get(kept.id)


def test_a_prune_that_is_stopped_has_deleted_whole_batches(database):
    for _ in range(6):
        ended(database, TaskStatus.COMPLETED)
    database.clock.advance(DAY)
    answers = iter([False, False, True])
    assert database.frozen.prune(HOUR, batch=2, stop=lambda: next(answers, True)) == 4
    assert database.counts() == (2, 6, 0)
    assert database.frozen.prune(HOUR, batch=2, stop=lambda: True) == 0
    recorded = "SELECT count(*) FROM maintenance_jobs WHERE name = 'outboxq.prune'"
    assert database.rows(recorded) == [(0,)], "a stopped prune counts as done"
    assert database.frozen.prune(HOUR) == 2
    assert database.rows(recorded) == [(1,)]


def test_a_prune_that_is_killed_leaves_whole_tasks(database):
    for _ in range(6):
        ended(database, TaskStatus.COMPLETED)
    database.clock.advance(DAY)
    asked = []

    def killed():
        asked.append(1)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        database.frozen.prune(HOUR, batch=2, stop=killed)
    assert database.counts() == (2, 6, 0)


def test_an_error_during_a_batch_rolls_back_the_batch(database):
    for number in range(4):
        ended(database, TaskStatus.COMPLETED, idempotency_key=f"{number}")
    database.clock.advance(DAY)
    if database.name == "sqlite":
        database.run(
            "CREATE TRIGGER keep BEFORE DELETE ON idempotency_keys WHEN OLD.key = '3' "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    else:
        database.run(
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused' USING ERRCODE = "
            "'23514'; END $$; CREATE TRIGGER keep BEFORE DELETE ON idempotency_keys FOR EACH ROW "
            "WHEN (OLD.key = '3') EXECUTE FUNCTION keep()"
        )
    with pytest.raises(IntegrityError):
        database.frozen.prune(HOUR, batch=2)
    assert database.counts() == (2, 6, 0)
    assert database.rows("SELECT count(*) FROM idempotency_keys") == [(2,)]


def test_simultaneous_prunes_delete_each_task_once(database):
    for _ in range(30):
        ended(database, TaskStatus.COMPLETED)
    database.clock.advance(DAY)
    deleted = helpers.at_once(*[lambda: database.frozen.prune(HOUR, batch=4)] * 3)
    assert sum(deleted) + database.frozen.prune(HOUR) == 30
    assert database.counts() == (0, 0, 0)


def test_a_task_that_is_being_redriven_is_not_pruned(database):
    claim = helpers.dead(database)
    database.clock.advance(DAY)
    with helpers.transaction(database) as connection:
        database.frozen.redrive(claim.id, using=connection)
        with helpers.stuck(database, lambda: database.frozen.prune(HOUR, statuses=ALL)) as pruning:
            connection.commit()
            assert pruning.result(60) == 0
    assert database.frozen.get(claim.id).status is TaskStatus.READY


def test_any_age_is_accepted(database):
    """Any number of days is accepted, even if no task can be that old."""
    ended(database, TaskStatus.COMPLETED)
    assert database.frozen.prune(timedelta(days=365 * 5000)) == 0


@pytest.mark.parametrize("before", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)], ids=str)
def test_any_time_is_accepted_as_before(database, before):
    ended(database, TaskStatus.COMPLETED)
    assert database.frozen.prune(before) == (1 if before.year > 2030 else 0)


def test_the_age_of_a_task_is_counted_from_its_end(database):
    """Otherwise, a task with a long delay would be pruned as soon as it ends."""
    early, late = completed(database), database.add()
    database.clock.advance(2 * DAY)
    [claim] = database.claim()
    assert claim.id == late.id
    database.frozen.complete(claim)
    assert database.frozen.prune(DAY, dry_run=True) == 1
    assert database.frozen.prune(DAY) == 1
    assert database.rows("SELECT count(*) FROM task_executions") == [(1,)]
    assert database.frozen.get(late.id).id == late.id
    assert database.frozen.history(early) == []


@pytest.mark.parametrize("batch", [1, 2, 3, 1000])
def test_old_events_without_a_task_are_pruned(database, batch):
    kept = completed(database)
    unrouted(database, DAY, DAY + timedelta(microseconds=1), 2 * DAY, 3 * DAY, HOUR)
    assert database.frozen.prune(DAY, dry_run=True) == 0
    assert database.counts() == (1, 8, 0)
    assert database.frozen.prune(DAY, batch=batch) == 0  # it counts only tasks
    assert database.counts() == (1, 5, 0)
    assert len(database.frozen.history(kept)) == 3


def test_events_without_a_task_are_pruned_for_any_statuses_unless_stopped(database):
    unrouted(database, 2 * DAY, 2 * DAY, 2 * DAY)
    assert database.frozen.prune(DAY, stop=lambda: True) == 0
    assert database.counts()[1] == 3
    answers = iter([False, True])
    database.frozen.prune(DAY, batch=2, statuses=[], stop=lambda: next(answers, True))
    assert database.counts()[1] == 1


def test_a_rollback_by_the_caller_undoes_a_prune(database):
    completed(database)
    unrouted(database, 2 * DAY)
    database.clock.advance(2 * DAY)
    before = helpers.everything(database)
    with helpers.transaction(database) as connection:
        assert database.frozen.prune(DAY, using=connection) == 1
        assert database.frozen.prune(DAY, using=connection) == 0
        connection.rollback()
    assert helpers.everything(database) == before


def test_prune_finds_the_events_of_a_task_by_index(database):
    """The events of other tasks are not read. The table of events is by far the largest."""
    completed(database)
    database.clock.advance(DAY)
    plans: list[str] = []

    def explain(connection, _cursor, sql, parameters, *_):
        if "DELETE FROM execution_events" in sql:
            raw = connection.connection.dbapi_connection
            word = "EXPLAIN" if database.name == "postgresql" else "EXPLAIN QUERY PLAN"
            plans.extend(str(row[-1]) for row in raw.execute(f"{word} {sql}", parameters).fetchall())

    event.listen(database.engine, "before_cursor_execute", explain)
    assert database.frozen.prune(HOUR) == 1
    event.remove(database.engine, "before_cursor_execute", explain)
    read = [plan for plan in plans if re.search(r"(Scan|SCAN|SEARCH).* execution_events", plan)]
    for index in ("uq_execution_events_claim", "uq_execution_events_end", "ix_execution_events_other"):
        assert [plan for plan in read if index in plan], plans
    assert not [plan for plan in read if re.search(r"Seq Scan|SCAN", plan)], plans


def test_whole_partitions_has_no_effect_without_partitions(database):
    completed(database)
    database.clock.advance(2 * DAY)
    assert database.frozen.time_partitions.make() == 0
    assert database.frozen.prune(DAY, whole_partitions=True, dry_run=True) == 1
    assert database.frozen.prune(DAY, whole_partitions=True) == 1


def test_a_dry_run_counts_exactly_the_tasks_that_are_then_deleted(database):
    for age in (100, 91, 90, 8, 7, 1):
        database.clock.advance(-age * DAY)
        completed(database)
        database.frozen.fail(helpers.claimed(database), "x")
        database.frozen.cancel(database.add().id)
        database.clock.advance(age * DAY)
    database.add(delay=DAY)
    for older_than, statuses, expected in (
        (timedelta(days=90), (), 0),
        (timedelta(days=90), [TaskStatus.CANCELLED], 2),
        (timedelta(days=90), TERMINAL - {TaskStatus.FAILED}, 2),
        (timedelta(days=7, hours=12), TERMINAL, 8),
    ):
        before = helpers.everything(database)
        assert database.frozen.prune(older_than, statuses=statuses, dry_run=True) == expected
        assert helpers.everything(database) == before
        assert database.frozen.prune(older_than, statuses=statuses, batch=3) == expected
        assert database.frozen.prune(older_than, statuses=statuses, dry_run=True) == 0
    assert database.counts()[0] == 19 - 12


@pytest.mark.parametrize(("span", "deleted"), [("90d", 1), ("7d12h", 2)])
def test_a_dry_run_of_the_command_counts_what_is_then_deleted(database, capsys, span, deleted):
    database.clock.now = database.store.now()
    for age in (timedelta(days=91), timedelta(days=7, hours=13), timedelta(days=7, hours=11)):
        database.clock.advance(-age)
        completed(database, id=UUID(int=first_id(database.clock.now).int + (uuid7().int & (1 << 80) - 1)))
        database.clock.advance(age)
    for option, words in (
        ("--dry-run", "with their events: {} would be deleted\n"),
        ("--yes", "1 task was deleted" if deleted == 1 else "{} tasks were deleted with their events\n"),
        ("--dry-run", "with their events: {} would be deleted\n"),
    ):
        main(["prune", "--older-than", span, "--url", database.url, option], standalone_mode=False)
        assert words.format(deleted) in capsys.readouterr().out
        deleted = deleted if option == "--dry-run" else 0
