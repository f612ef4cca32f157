"""A worker's decisions about task names that it does not know. These tests use no database."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from outboxq import Outbox
from outboxq.model import EventType
from outboxq.store import UnknownRun
from outboxq.worker.upkeep import ServiceThread
from outboxq.worker.upkeep.unknown_tasks import KnownTasks, UnknownTasks
from tests.unit.test_executor import claim_of

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


class Looks:
    """A store that returns these runs, and records each call."""

    def __init__(self, **run):
        self.run = run
        self.asked = []

    def unknown_runs(self, claims):
        self.asked.append(list(claims))
        return {claim.id: UnknownRun(**{"since": NOW, **self.run}) for claim in claims}


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def unknown(clock):
    def made(store=None, **spans):
        spans = {"first_delay": 15 * SECOND, "longest_delay": 900 * SECOND, "limit": 24 * HOUR, **spans}
        return UnknownTasks(store or Looks(), clock=lambda: clock[0], **spans)

    return made


def claim(name="theirs", **changes):
    return claim_of(Outbox().task(name=name)(lambda: None), **changes)


def test_only_later_claims_are_looked_up_and_in_one_query(unknown):
    store = Looks(times=3)
    claims = [claim(), claim(lease_token=2), claim(lease_token=7)]
    found = unknown(store).outcomes(claims)
    assert store.asked == [claims[1:]]
    assert [outcome.data["times"] for outcome in found] == [1, 4, 4]
    assert {outcome.event_type for outcome in found} == {EventType.RELEASED}
    unknown(store).outcomes(claims[:1])
    assert len(store.asked) == 1


def test_a_delay_doubles_up_to_a_maximum_and_is_randomised(unknown):
    rules = unknown()
    for times, expected in ((1, 15), (2, 30), (3, 60), (6, 480), (7, 900), (8, 900), (5000, 900)):
        found = [rules.delay(times).total_seconds() for _ in range(200)]
        assert 0.75 * expected <= min(found) < 0.85 * expected
        assert 1.15 * expected < max(found) <= 1.25 * expected
    assert unknown(first_delay=HOUR).delay(9) >= 0.75 * HOUR, "the longest delay is shorter than the first"


def test_two_thousand_unknown_tasks_cause_less_than_five_events_a_second(unknown):
    rules, day = unknown(), timedelta(days=1)
    tried = 0
    for _ in range(2000):
        waited, times = timedelta(0), 0
        while waited < day:
            times += 1
            waited += rules.delay(times)
        tried += times
    assert 4 < 2 * tried / day.total_seconds() < 5


@pytest.mark.parametrize(("hours", "event_type"), [(23, EventType.RELEASED), (25, EventType.FAILED)])
def test_an_unknown_task_is_released_until_its_time_limit(unknown, hours, event_type):
    (found,) = unknown(Looks(since=NOW - hours * HOUR)).outcomes([claim(lease_token=2)])
    assert found.event_type is event_type
    assert event_type is EventType.RELEASED or "UnknownTask" in found.error


def test_each_name_is_logged_once_a_minute_with_a_count(unknown, clock, caplog):
    rules = unknown()

    def lines(*names):
        with caplog.at_level(logging.WARNING, "outboxq.worker"):
            caplog.clear()
            rules.outcomes([claim(name) for name in names])
        return sorted(record.getMessage() for record in caplog.records)

    (first,) = lines("mine", "mine", "mine")
    assert "'mine'" in first
    assert "since the last such warning: 3)" in first
    clock[0] = 59.0
    (other,) = lines("mine", "mine", "theirs")
    assert "'theirs'" in other
    assert lines("mine") == []
    clock[0] = 60.0
    (again,) = lines("mine", "theirs")
    assert "'mine'" in again
    assert "since the last such warning: 4)" in again


def test_unknown_tasks_are_remembered_by_queue_and_new_ones_are_reported(unknown, clock):
    rules = unknown()
    rules.outcomes([claim("a"), claim("a"), claim("a", queue="mail")])
    assert rules.found_new.is_set()
    assert rules.recent() == {("default", "a"), ("mail", "a")}
    rules.found_new.clear()
    rules.outcomes([claim("a")])
    assert not rules.found_new.is_set()
    clock[0] = 1000.0
    rules.outcomes([claim("a")])
    clock[0] = 1800.0
    assert rules.recent() == {("default", "a"), ("mail", "a")}
    clock[0] = 1801.0
    assert rules.recent() == {("default", "a")}


def test_the_number_of_remembered_names_is_limited(unknown, monkeypatch):
    monkeypatch.setattr("outboxq.worker.upkeep.unknown_tasks._MAX_NAMES", 3)
    rules = unknown()
    for number in range(10):
        rules.outcomes([claim(f"n{number}")])
    assert rules.recent() == {("default", f"n{number}") for number in (7, 8, 9)}
    assert len(rules._logged_at) == 3
    assert len(rules._unlogged) == 0


def test_claims_are_released_even_if_their_names_are_being_forgotten(unknown, clock, monkeypatch):
    monkeypatch.setattr("outboxq.worker.upkeep.unknown_tasks._MAX_NAMES", 50)
    rules, old = unknown(), [claim(f"old {number}") for number in range(50)]
    rules.outcomes(old)
    clock[0] = 61.0
    claims = [*(claim(f"new {number}") for number in range(50)), *old]
    assert [outcome.claim for outcome in rules.outcomes(claims)] == claims
    assert len(rules._logged_at) == 50


def test_the_search_of_the_outbox_is_repeated_soon_only_after_a_failure():
    answers, asked = [500, 900, OSError("away"), None, None], []

    class Pages:
        def make_known_due(self, names, *, after, **_):
            asked.append(after)
            if isinstance(answer := answers.pop(0), OSError):
                raise answer
            return answer

    looking = KnownTasks(Pages(), ["a"], queues=None, topics=None)
    thread = ServiceThread("known-tasks", looking, pytest.fail)
    thread.run_early()
    assert looking.pause() == 0
    looking.run_once()
    assert looking.pause() == 0
    thread.run_early()
    assert 1 < looking.pause() < 60
    looking.run_once()
    assert looking.pause() >= 1800
    looking.run_once()
    assert asked == [0, 500, 900, 900, 0]
