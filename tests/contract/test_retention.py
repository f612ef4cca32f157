"""What `prune` deletes besides whole tasks, how it finds it, and what the commands say. (The rest: test_operations.)"""

from __future__ import annotations

import re
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import event

from outboxq.cli.main import main
from outboxq.model import TERMINAL, EventType, TaskStatus
from outboxq.model.periods import first_id
from outboxq.model.uuid7 import uuid7
from tests.contract import helpers

DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def unrouted(database, *ages: timedelta) -> None:
    """Events of no task, this old."""
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


def test_a_tasks_age_begins_with_its_end(database):
    """Not with its enqueueing, or one that was delayed for long would be gone with its history the moment it ends."""
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
def test_events_of_no_task_go_when_they_are_as_old(database, batch):
    kept = completed(database)
    unrouted(database, DAY, DAY + timedelta(microseconds=1), 2 * DAY, 3 * DAY, HOUR)
    assert database.frozen.prune(DAY, dry_run=True) == 0
    assert database.counts() == (1, 8, 0)
    assert database.frozen.prune(DAY, batch=batch) == 0  # it counts tasks
    assert database.counts() == (1, 5, 0)
    assert len(database.frozen.history(kept)) == 3


def test_events_of_no_task_go_whatever_the_statuses_and_not_when_stopped(database):
    unrouted(database, 2 * DAY, 2 * DAY, 2 * DAY)
    assert database.frozen.prune(DAY, stop=lambda: True) == 0
    assert database.counts()[1] == 3
    answers = iter([False, True])
    database.frozen.prune(DAY, batch=2, statuses=[], stop=lambda: next(answers))
    assert database.counts()[1] == 1


def test_a_callers_rollback_takes_a_prune_back(database):
    completed(database)
    unrouted(database, 2 * DAY)
    database.clock.advance(2 * DAY)
    before = helpers.everything(database)
    with helpers.transaction(database) as connection:
        assert database.frozen.prune(DAY, using=connection) == 1
        assert database.frozen.prune(DAY, using=connection) == 0
        connection.rollback()
    assert helpers.everything(database) == before


def test_a_tasks_events_are_found_by_index(database):
    """Those of other tasks are not read: their table is by far the largest."""
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


def test_where_nothing_is_partitioned_whole_partitions_say_nothing(database):
    completed(database)
    database.clock.advance(2 * DAY)
    assert database.frozen.make_partitions() == 0
    assert database.frozen.prune(DAY, whole_partitions=True, dry_run=True) == 1
    assert database.frozen.prune(DAY, whole_partitions=True) == 1


def test_a_dry_run_counts_what_is_then_deleted_in_every_status(database):
    for age in (100, 91, 90, 8, 7, 1):
        database.clock.advance(-age * DAY)
        completed(database)
        database.frozen.fail(helpers.claimed(database), "x")
        database.frozen.cancel(database.add().id)
        database.clock.advance(age * DAY)
    database.add(delay=DAY)
    for older_than, statuses, expected in (
        (timedelta(days=90), (), 0),
        (timedelta(days=90), TERMINAL - {TaskStatus.FAILED}, 4),
        (timedelta(days=7, hours=12), TERMINAL, 8),
    ):
        before = helpers.everything(database)
        assert database.frozen.prune(older_than, statuses=statuses, dry_run=True) == expected
        assert helpers.everything(database) == before
        assert database.frozen.prune(older_than, statuses=statuses) == expected
        assert database.frozen.prune(older_than, statuses=statuses, dry_run=True) == 0
    assert database.counts()[0] == 19 - 12


@pytest.mark.parametrize("command", ["cleanup-events", "prune"])
@pytest.mark.parametrize(("span", "deleted"), [("90d", 1), ("7d12h", 2)])
def test_the_commands_dry_run_counts_what_is_then_deleted(database, capsys, command, span, deleted):
    database.clock.now = database.store.now()
    for age in (timedelta(days=91), timedelta(days=7, hours=13), timedelta(days=7, hours=11)):
        database.clock.advance(-age)
        completed(database, id=UUID(int=first_id(database.clock.now).int + (uuid7().int & (1 << 80) - 1)))
        database.clock.advance(age)
    for options, words in ((["--dry-run"], "would be"), ([], "were"), (["--dry-run"], "would be")):
        main([command, "--older-than", span, "--url", database.url, *options], standalone_mode=False)
        assert capsys.readouterr().out == f"{deleted} tasks {words} deleted with their events\n"
        deleted = deleted if options else 0
