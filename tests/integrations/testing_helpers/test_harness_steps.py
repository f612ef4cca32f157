"""Durable steps in a test: real ones in drain(), in-memory ones in run(), and results that the test provides."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest
from sqlalchemy import text

from outboxq import EventType, RetryPolicy, StepRefused, TaskContext
from outboxq.testing import Harness


@dataclass
class Charge:
    cents: int


@pytest.fixture
def harness(shop, connection):
    connection.execute(text("CREATE TABLE notes (note TEXT)"))
    with Harness(shop.outbox, using=connection) as harness:
        yield harness


@pytest.fixture
def calls():
    return []


@pytest.fixture
def fulfil(harness, calls):
    def charge(order: int) -> Charge:
        calls.append("charge")
        return Charge(cents=order * 100)

    def book(ctx: TaskContext, cents: int) -> None:
        calls.append("book")
        ctx.session.execute(text("INSERT INTO notes VALUES ('booked')"))

    @harness.app.task(name="tests.fulfil", retry=RetryPolicy(max_attempts=3, wait=60))
    def fulfil(ctx: TaskContext, order: int) -> int:
        charged = ctx.step("charge", charge, order)
        ctx.step("book", book, charged.cents, transactional=True)
        if calls == ["charge", "book"] and ctx.attempt == 1:
            raise OSError("no answer")
        ctx.sleep("a fortnight", timedelta(days=14))
        return charged.cents

    return fulfil


def notes(connection):
    return [note for (note,) in connection.execute(text("SELECT note FROM notes"))]


def test_drain_runs_steps_as_a_worker_does(harness, connection, fulfil, calls):
    handle = fulfil.using(connection).enqueue(7)
    [first] = harness.drain(raises=False)
    assert first.outcome is EventType.RETRY_SCHEDULED
    assert first.steps == {"charge": Charge(cents=700), "book": None}
    second, third = harness.drain(until=timedelta(days=15))
    assert (second.outcome, third.outcome) == (EventType.SNOOZED, EventType.COMPLETED)
    assert second.steps["charge"] == Charge(cents=700)
    assert calls == ["charge", "book"]
    assert notes(connection) == ["booked"]
    assert handle.result(timeout=0) == 700
    assert [step.name for step in harness.store.steps.list(handle.id)] == ["charge", "book", "a fortnight"]


def test_run_keeps_steps_in_memory(harness, connection, fulfil, calls):
    calls.append("before")
    ran = harness.run(fulfil, 7)
    assert ran.outcome is EventType.SNOOZED
    assert ran.steps == {"charge": Charge(cents=700), "book": None}
    assert notes(connection) == ["booked"]
    assert connection.execute(text("SELECT count(*) FROM task_steps")).scalar_one() == 0


def test_given_results_replace_steps_and_end_sleeps(harness, connection, fulfil, calls):
    with harness.steps({"charge": Charge(cents=5), "a fortnight": None}):
        assert harness.run(fulfil, 7).result == 5
        handle = fulfil.using(connection).enqueue(7)
        harness.drain()
        assert handle.result(timeout=0) == 5
    assert calls == ["book", "book"]
    assert harness.run(fulfil, 7).outcome is EventType.SNOOZED


def test_a_mistyped_name_of_a_given_result_fails_the_test(harness, connection, fulfil, calls):
    given = {"chrage": Charge(cents=5), "a fortnight": None}
    with pytest.raises(AssertionError) as raised, harness.steps({"book": None}), harness.steps(given):
        calls.append("before")
        harness.run(fulfil, 7)
    assert str(raised.value) == (
        "steps() was given a result for 'chrage', but no step had this name; did you mean 'charge'? "
        "The steps were: 'a fortnight', 'book', 'charge'"
    )


def test_all_given_names_without_a_step_are_listed(harness, fulfil):
    fixed = {"charge": Charge(cents=5), "book": None, "a fortnight": None}
    told = r"given results for 'x' and 'y', but no step had these names\. The steps were:"
    with pytest.raises(AssertionError, match=told), harness.steps({"y": 1, "x": 2}), harness.steps(fixed):
        harness.run(fulfil, 7)


def test_an_unused_name_is_allowed_if_no_task_with_steps_completes(harness, connection, fulfil):
    @harness.app.task(name="tests.plain")
    def plain() -> None: ...

    with harness.steps({"a fortnight": None, "chrage": None}):
        harness.run(plain)
        fulfil.using(connection).enqueue(7)
        assert harness.drain(raises=False)[0].outcome is EventType.RETRY_SCHEDULED
    with pytest.raises(ZeroDivisionError), harness.steps({"chrage": None}):
        harness.run(fulfil, 7)
        raise ZeroDivisionError


def test_a_name_can_be_used_by_any_attempt(harness, connection, fulfil):
    with harness.steps({"charge": Charge(cents=5), "book": None, "a fortnight": None}):
        fulfil.using(connection).enqueue(7)
        assert [one.outcome for one in harness.drain()] == [EventType.COMPLETED]


def test_a_refused_step_fails_the_test(harness):
    @harness.app.task(name="tests.refused")
    def refused(ctx: TaskContext) -> None:
        ctx.step("one", print)
        ctx.step("one", print)

    with pytest.raises(StepRefused, match="used twice in one run"):
        harness.run(refused)
