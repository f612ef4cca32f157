"""Event types of later releases are read as text and change no state."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

import pytest
from click.testing import CliRunner
from sqlalchemy import select
from sqlalchemy.orm import Session

from outboxq import orm
from outboxq.cli import main
from outboxq.model import EventType, NewTask
from outboxq.model.history import replay
from outboxq.model.uuid7 import uuid7

LATER = "task_exploded"


def note(database, task_id, kind=LATER):
    """Write an event of a later release about the task."""
    identity = task_id.hex if database.name == "sqlite" else task_id
    moment = f"{database.clock.now:%Y-%m-%dT%H:%M:%S.%fZ}"
    database.run(
        "INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, event_data, created_at) "
        f"VALUES ('{identity}', '{identity}', '{kind}', '{{\"debris\": 3}}', '{moment}')"
    )
    database.clock.advance(1)


@pytest.fixture
def noted(database) -> UUID:
    """A task that was retried and completed, with an event of a later release after each of its events."""
    task_id = database.add().id
    note(database, task_id)
    (claim,) = database.claim()
    note(database, task_id)
    database.frozen.schedule_retry(task_id, database.clock.now, 2)
    note(database, task_id)
    (claim,) = database.claim()
    database.frozen.complete(claim)
    note(database, task_id)
    return task_id


def test_the_history_has_later_events_as_text(database, noted):
    events = database.frozen.history(noted)
    assert [str(event.event_type) for event in events if not isinstance(event.event_type, EventType)] == [LATER] * 4
    assert [dict(event.event_data) for event in events if event.event_type == LATER] == [{"debris": 3}] * 4
    assert [event.event_type for event in events if isinstance(event.event_type, EventType)] == [
        EventType.CREATED,
        EventType.CLAIMED,
        EventType.RETRY_SCHEDULED,
        EventType.CLAIMED,
        EventType.COMPLETED,
    ]


def test_a_reader_of_the_log_gets_later_events_and_continues(database, noted):
    read, cursor = database.frozen.log.tail(limit=2)
    assert read[-1].event_type == LATER
    more = read
    while more:
        more, cursor = database.frozen.log.tail(cursor, limit=2)
        read = [*read, *more]
    assert read == database.frozen.history(noted)


def test_later_events_change_no_state(database, noted):
    state = replay(database.frozen.history(noted))
    assert (state.status, state.attempt, state.lease_token) == ("Completed", 2, 2)
    assert database.frozen.log.state_at(noted, database.clock.now) == state
    assert [attempt.outcome for attempt in database.frozen.attempts(noted)] == [
        "task_retry_scheduled",
        "task_completed",
    ]
    assert database.frozen.verify() == []


def test_a_task_that_has_only_later_events_did_not_exist_yet(database):
    """A later release may write an event about a task before the task is created."""
    new = NewTask(id=uuid7(), task_name="tests.work", args="{}")
    before = database.clock.now
    note(database, new.id)
    database.frozen.enqueue(new)
    assert database.frozen.log.state_at(new.id, before) is None
    assert database.frozen.log.state_at(new.id, database.clock.now).status == "Ready"


def test_the_reason_for_an_end_is_found_despite_later_events(database):
    task_id = database.add().id
    (claim,) = database.claim()
    database.frozen.fail(claim, "boom")
    database.frozen.discard(task_id, reason="of no use")
    note(database, task_id)
    assert "discarded as a dead letter" in (said := database.frozen.explain(task_id).sentence)
    assert said.endswith("of no use")


def test_a_repair_is_not_misled_by_later_events(database, noted, caplog):
    waiting = database.add(delay=timedelta(hours=1)).id
    note(database, waiting)
    database.run("DELETE FROM task_outbox")
    with caplog.at_level(logging.WARNING):
        (violation,) = database.frozen.verify(repair=True)
    assert violation.repaired == 1
    assert database.frozen.verify() == []
    assert database.counts()[2] == 1


def test_the_commands_print_later_events(database, noted):
    for command in (("task", "show", str(noted)), ("task", "explain", str(noted)), ("status",), ("verify",)):
        done = CliRunner().invoke(main, [*command, "--url", database.url], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        if "show" in command:
            assert done.output.count(LATER) == 4


def test_the_orm_has_later_events_as_text(database, noted):
    with Session(database.host_engine()) as session:
        kinds = session.scalars(
            select(orm.ExecutionEvent.event_type).where(orm.ExecutionEvent.task_execution_id == noted)
        )
        assert sorted(kinds).count(LATER) == 4
