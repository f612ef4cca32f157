"""Durable steps: a stored result is returned without calling the step's function again."""

from __future__ import annotations

import functools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from tenacity import stop_after_delay

from outboxq import (
    Cancel,
    EventType,
    InvalidArgument,
    InvalidTransition,
    LeaseLost,
    Outbox,
    RetryPolicy,
    Snooze,
    StepRefused,
    TaskContext,
    TaskNotFound,
    TaskStatus,
)
from outboxq.context import current
from outboxq.model import Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import NewStep, Store
from outboxq.store.tasks.steps import Steps
from outboxq.worker.failpoints import Failpoint
from tests.contract.helpers import claimed, lossy, lost_connection, stuck, transaction
from tests.waiting import until

ONCE = RetryPolicy.never()
AT_ONCE = RetryPolicy(max_attempts=5, wait=0)


@pytest.fixture
def outbox(database):
    """The application's outbox, with a table of the application."""
    database.run("CREATE TABLE notes (note TEXT NOT NULL)")
    yield Outbox(database.host_engine())
    database.run("DROP TABLE notes")


@pytest.fixture
def run(outbox):
    """Run a worker in this process until nothing is claimable."""

    def burst(**options):
        worker = outbox.worker(**{"notifications": False, "recover_every": 60, "concurrency": 1, **options})
        worker.start(burst=True)
        until(lambda: not worker._parts.claim_loop.is_alive())
        assert worker.stop()
        assert worker.is_healthy

    return burst


@pytest.fixture
def calls():
    return []


def types(outbox, handle):
    return [event.event_type for event in outbox.store.history(handle.id)]


def notes(database):
    return sorted(note for (note,) in database.rows("SELECT note FROM notes"))


def write(ctx: TaskContext, note: str) -> str:
    ctx.connection.execute(text("INSERT INTO notes (note) VALUES (:note)"), {"note": note})
    return note


def status(outbox, handle):
    return outbox.store.get(handle.id).status


def error(outbox, handle):
    return outbox.store.get(handle.id).last_error


def test_a_completed_step_is_not_called_again_by_a_retry(outbox, run, calls):
    def charge(order: int) -> dict[str, int]:
        calls.append("charge")
        return {"order": order, "cents": 700}

    @outbox.task(name="fulfil", retry=AT_ONCE)
    def fulfil(ctx: TaskContext, order: int) -> int:
        charged = ctx.step("charge", charge, order)
        calls.append("between")
        if ctx.attempt < 3:
            raise OSError("the carrier does not answer")
        return ctx.step("ship", lambda: calls.append("ship") or charged["cents"])

    handle = fulfil.using(outbox).enqueue(7)
    run()
    assert outbox.result(handle.id, timeout=0) == 700
    assert calls == ["charge", "between", "between", "between", "ship"]
    steps = outbox.store.steps.list(handle.id)
    assert [(step.name, step.number, step.lease_token, step.result, step.due_at) for step in steps] == [
        ("charge", 1, 1, '{"order":7,"cents":700}', None),
        ("ship", 2, 3, "700", None),
    ]
    [completed, _] = [one for one in outbox.store.history(handle.id) if one.event_type is EventType.STEP_COMPLETED]
    assert completed.lease_token is None
    assert completed.event_data["step"] == "charge"
    assert completed.event_data["number"] == 1
    assert completed.event_data["ms"] >= 0


@dataclass(frozen=True)
class Charge:
    id: UUID
    at: datetime


@pytest.mark.in_turn
def test_a_result_has_the_annotated_type_in_the_first_and_in_later_runs(outbox, run):
    made, seen = Charge(id=uuid7(), at=datetime(2030, 1, 1, tzinfo=UTC)), []

    def charge() -> Charge:
        return made

    @outbox.task(name="fulfil", retry=AT_ONCE)
    def fulfil(ctx: TaskContext) -> None:
        seen.append(ctx.step("charge", charge))
        seen.append(ctx.step("plain", lambda: (1, 2)))
        seen.append(ctx.step("partial", functools.partial(charge)))
        seen.append(ctx.step("nothing", print))
        if ctx.attempt == 1:
            raise OSError

    fulfil.using(outbox).enqueue()
    run()
    assert seen == [made, [1, 2], made, None] * 2


@pytest.mark.parametrize("how", ["snoozed", "released", "recovered", "redriven"])
def test_steps_are_kept_whatever_ends_the_claim(database, outbox, run, calls, how):
    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> str:
        ctx.step("first", lambda: calls.append("first"))
        calls.append(how)
        if len(calls) == 2 and how == "snoozed":
            raise Snooze(3600)
        if len(calls) == 2 and how == "redriven":
            raise OSError
        return "done"

    handle = work.using(outbox).enqueue()
    if how in {"released", "recovered"}:
        (claim,) = outbox.store.claim_ready_task(1, worker_id=database.worker)
        outbox.store.steps.complete(claim, NewStep(name="first", number=1))
        if how == "released":
            outbox.store.release(claim)
        else:
            database.run("UPDATE task_leases SET lease_expires_at = '2020-01-01T00:00:00.000000+00:00'")
            assert outbox.store.recover()
        calls += ["first", how]
    else:
        run()
    if how == "snoozed":
        outbox.store.run_now(handle.id)
    elif how == "redriven":
        outbox.store.redrive(handle.id)
    run()
    assert status(outbox, handle) is TaskStatus.COMPLETED
    assert calls == ["first", how, how]


@pytest.mark.in_turn
def test_a_function_that_raises_is_called_again_and_stores_nothing(outbox, run, calls):
    def charge() -> int:
        calls.append("charge")
        if len(calls) < 3:
            raise OSError("no answer")
        return 1

    @outbox.task(name="work", retry=AT_ONCE)
    def work(ctx: TaskContext) -> int:
        return ctx.step("charge", charge)

    handle = work.using(outbox).enqueue()
    run()
    assert status(outbox, handle) is TaskStatus.COMPLETED
    assert len(calls) == 3
    assert len(outbox.store.steps.list(handle.id)) == 1


@pytest.mark.in_turn
def test_a_handler_may_call_a_failed_step_again(outbox, run, calls):
    def charge() -> int:
        calls.append("charge")
        return 1 // (len(calls) - 1)

    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> int:
        try:
            return ctx.step("charge", charge)
        except ZeroDivisionError:
            return ctx.step("charge", charge)

    handle = work.using(outbox).enqueue()
    run()
    assert outbox.result(handle.id, timeout=0) == 1


@pytest.mark.in_turn
@pytest.mark.parametrize("request_", [Cancel("no"), Snooze(60)], ids=["cancel", "snooze"])
def test_a_request_returned_by_a_step_is_not_stored_as_a_result(outbox, run, request_):
    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> None:
        ctx.step("ask", lambda: request_)

    handle = work.using(outbox).enqueue()
    run()
    assert outbox.store.steps.list(handle.id) == []
    assert types(outbox, handle)[-1] in {EventType.CANCELLED, EventType.SNOOZED}


def test_a_transactional_step_commits_its_writes_with_its_result(database, outbox, run, calls):
    @outbox.task(name="work", retry=AT_ONCE)
    def work(ctx: TaskContext) -> str:
        assert not ctx.is_transactional
        written = ctx.step("book", write, "booked", transactional=True)
        assert not ctx.is_transactional
        calls.append(written)
        if ctx.attempt == 1:
            raise OSError
        return ctx.step("session", with_session, ctx, transactional=True)

    def with_session(ctx: TaskContext, again: TaskContext) -> str:
        assert ctx is again
        ctx.session.execute(text("INSERT INTO notes (note) VALUES ('session')"))
        other.enqueue()
        return "session"

    @outbox.task(name="other", queue="never worked on")
    def other() -> None: ...

    handle = work.using(outbox).enqueue()
    run(queues=["default"])
    assert outbox.result(handle.id, timeout=0) == "session"
    assert calls == ["booked"] * 2
    assert notes(database) == ["booked", "session"]
    assert database.rows("SELECT count(*) FROM task_executions WHERE task_name = 'other'") == [(1,)]


def test_a_transactional_step_that_fails_is_rolled_back(database, outbox, run):
    def book(ctx: TaskContext) -> None:
        write(ctx, "never")
        raise OSError

    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> None:
        try:
            ctx.step("book", book, transactional=True)
        finally:
            assert not ctx.is_transactional

    handle = work.using(outbox).enqueue()
    run()
    assert status(outbox, handle) is TaskStatus.FAILED
    assert notes(database) == []
    assert outbox.store.steps.list(handle.id) == []


def refused(outbox, run, handler, **options):
    """Return the error with which a task of this handler fails permanently in its first attempt."""
    task = outbox.task(name="work", retry=AT_ONCE, **options)(handler)
    handle = task.using(outbox).enqueue()
    run()
    assert status(outbox, handle) is TaskStatus.FAILED
    assert types(outbox, handle).count(EventType.CLAIMED) == 1
    return error(outbox, handle)


@pytest.mark.in_turn
def test_a_step_in_a_transactional_task_is_refused(outbox, run):
    def handler(ctx: TaskContext) -> None:
        ctx.step("one", print)

    assert "work is declared transactional=True" in refused(outbox, run, handler, transactional=True)


@pytest.mark.in_turn
def test_a_sleep_in_a_transactional_task_is_refused(outbox, run):
    def handler(ctx: TaskContext) -> None:
        ctx.sleep("one", 5)

    assert "work is declared transactional=True" in refused(outbox, run, handler, transactional=True)


@pytest.mark.in_turn
@pytest.mark.parametrize("transactional", [False, True])
def test_a_step_inside_a_step_is_refused(outbox, run, transactional):
    def inner(ctx: TaskContext) -> None:
        ctx.step("inner", print)

    def handler(ctx: TaskContext) -> None:
        ctx.step("outer", inner, transactional=transactional)

    assert "step 'inner' was called inside step 'outer'" in refused(outbox, run, handler)


@pytest.mark.in_turn
def test_using_a_step_name_twice_in_one_run_is_refused(outbox, run, calls):
    def handler(ctx: TaskContext) -> None:
        for number in range(2):
            ctx.step("same", calls.append, number)

    assert "the step name 'same' is used twice in one run" in refused(outbox, run, handler)
    assert calls == [0]


@pytest.mark.in_turn
def test_using_a_stored_step_twice_in_one_run_is_refused_too(outbox, run, calls):
    def handler(ctx: TaskContext) -> None:
        ctx.step("same", calls.append, 0)
        if ctx.attempt == 1:
            raise OSError
        ctx.step("same", calls.append, 1)

    task = outbox.task(name="work", retry=AT_ONCE)(handler)
    handle = task.using(outbox).enqueue()
    run()
    assert "the step name 'same' is used twice in one run" in error(outbox, handle)
    assert calls == [0]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "object is not JSON"),
        (float("nan"), "NaN is not JSON"),
        ("x" * 262_144, "too large"),
        ("nul\x00", "NUL"),
    ],
    ids=["object", "nan", "large", "nul"],
)
def test_a_result_that_cannot_be_stored_fails_the_task_immediately(outbox, run, value, what):
    def handler(ctx: TaskContext) -> None:
        ctx.step("bad", lambda: value)

    said = refused(outbox, run, handler)
    assert "work: step 'bad'" in said
    assert what in said


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "name", ["", "x" * 201, "nul\x00", "\ud800", 7], ids=["empty", "long", "nul", "surrogate", "int"]
)
def test_a_bad_name_is_refused_before_the_function_is_called(outbox, run, calls, name):
    def handler(ctx: TaskContext) -> None:
        ctx.step(name, calls.append, 1)

    assert "name" in refused(outbox, run, handler)
    assert calls == []


@pytest.mark.in_turn
def test_async_functions_and_generators_are_refused(outbox, run):
    async def later() -> None: ...

    def generated():
        yield 1

    def named(order_id: int) -> int:
        return order_id + 1

    def call(function):
        return function()

    def handler(ctx: TaskContext) -> None:
        for function, what in (
            (later, "async"),
            (generated, "generator"),
            (functools.partial(call, later), "coroutine"),
            (3, "function"),
            (
                named,
                r"named\(order_id: 'int'\).* cannot be called with these arguments: missing a required argument: 'order_id'",
            ),
        ):
            with pytest.raises(StepRefused, match=what):
                ctx.step("it", function)
        with pytest.raises(TypeError, match="^unsupported operand"):
            ctx.step("it", named, None)  # type: ignore[arg-type]  # the function's own error is its own
        ctx.step("it", lambda: 1)

    handle = outbox.task(name="work", retry=ONCE)(handler).using(outbox).enqueue()
    run()
    assert status(outbox, handle) is TaskStatus.COMPLETED, error(outbox, handle)


@pytest.mark.in_turn
def test_a_step_in_another_thread_is_refused(outbox, run):
    def handler(ctx: TaskContext) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ctx.step, "there", print).result()

    assert "was called in a thread other than the handler's" in refused(outbox, run, handler)


@pytest.mark.in_turn
def test_a_step_after_the_handler_has_ended_is_refused(outbox, run):
    kept = []
    outbox.task(name="work")(lambda: None)

    @outbox.task(name="keeps")
    def keeps(ctx: TaskContext) -> None:
        kept.append(ctx)

    keeps.using(outbox).enqueue()
    run()
    with pytest.raises(StepRefused, match="after the handler of keeps had ended"):
        kept[0].step("late", print)


@pytest.mark.in_turn
def test_a_step_beyond_the_maximum_is_refused(outbox, run, calls, monkeypatch):
    monkeypatch.setattr("outboxq.worker.steps.MAX_STEPS", 3)

    def handler(ctx: TaskContext) -> None:
        for number in range(4):
            ctx.step(f"step {number}", calls.append, number)

    assert "has completed 3 steps, which is the limit" in refused(outbox, run, handler)
    assert calls == [0, 1, 2]


@pytest.mark.in_turn
def test_an_annotation_that_cannot_be_resolved_is_refused_before_the_call(outbox, run, calls):
    def charge() -> Unknown:  # noqa: F821
        calls.append(1)

    def handler(ctx: TaskContext) -> None:
        ctx.step("charge", charge)

    assert "the annotation cannot be resolved" in refused(outbox, run, handler)
    assert calls == []


def test_a_result_that_new_code_cannot_read_fails_only_the_attempt(outbox, run, calls):
    """The previous release may still be able to read the result."""

    def old() -> str:
        return "old"

    def new() -> Charge:
        raise AssertionError

    @outbox.task(name="work", retry=RetryPolicy(max_attempts=3, wait=3600))
    def work(ctx: TaskContext) -> None:
        ctx.step("charge", old if not calls else new)
        calls.append(1)
        raise OSError

    handle = work.using(outbox).enqueue()
    run()
    outbox.store.run_now(handle.id)
    run()
    assert status(outbox, handle) is TaskStatus.READY
    assert "step 'charge': the result" in error(outbox, handle)


def test_a_completed_sleep_is_not_repeated(outbox, run, calls):
    @outbox.task(name="work", retry=AT_ONCE)
    def work(ctx: TaskContext) -> str:
        calls.append(ctx.attempt)
        ctx.sleep("nap", timedelta(seconds=1))
        if len(calls) == 2:
            raise OSError
        return "done"

    handle = work.using(outbox).enqueue()
    until(lambda: run() or status(outbox, handle) is TaskStatus.COMPLETED)
    assert calls == [1, 1, 2]
    [nap] = outbox.store.steps.list(handle.id)
    snoozed = next(one for one in outbox.store.history(handle.id) if one.event_type is EventType.SNOOZED)
    assert datetime.fromisoformat(snoozed.event_data["available_at"]) == nap.due_at
    assert snoozed.event_data["step"] == "nap"


def test_a_task_run_early_continues_its_sleep_to_the_same_time(outbox, run, calls):
    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> None:
        calls.append(1)
        ctx.sleep("nap", timedelta(days=14))

    handle = work.using(outbox).enqueue()
    run()
    [nap] = outbox.store.steps.list(handle.id)
    outbox.store.run_now(handle.id)
    run()
    assert len(calls) == 2
    assert outbox.store.next_available_at() == nap.due_at
    assert outbox.store.steps.list(handle.id) == [nap]
    assert outbox.store.get(handle.id).attempt == 1


def days_ago(database, days):
    moment = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="microseconds")
    return f"'{moment}'" + ("" if database.name == "sqlite" else "::timestamptz")


@pytest.mark.parametrize("fails", ["before", "after"])
@pytest.mark.parametrize(
    ("begun", "status"), [(8, TaskStatus.READY), (4, TaskStatus.FAILED)], ids=["asleep", "awake for too long"]
)
def test_time_spent_in_sleeps_does_not_count_for_stop_after_delay(outbox, run, database, begun, status, fails, calls):
    """The task began eight days ago, and its retries stop after two. It was due a day ago, but no worker ran it."""
    lasting = RetryPolicy(max_attempts=5, wait=3600, stop=stop_after_delay(timedelta(days=2)))

    @outbox.task(name="work", retry=lasting)
    def work(ctx: TaskContext) -> None:
        if calls and fails == "before":
            raise OSError("the bank is away")
        calls.append(1)
        ctx.sleep("nap", 3600)
        raise OSError("the bank is away")

    handle = work.using(outbox).enqueue()
    run()
    database.run(f"UPDATE task_executions SET first_started_at = {days_ago(database, 8)}")
    database.run(f"UPDATE task_steps SET created_at = {days_ago(database, begun)}, due_at = {days_ago(database, 1)}")
    outbox.store.run_now(handle.id)
    run()
    task = outbox.store.get(handle.id)
    assert (task.status, task.attempt, task.last_error) == (
        status,
        1 + (status is TaskStatus.READY),
        "OSError: the bank is away",
    )


@pytest.mark.parametrize("done", ["redriven", "rescheduled", "rewound", "replaced", "nothing"])
def test_stop_after_delay_starts_again_after_a_restart(outbox, run, database, done, calls):
    """The task began eight days ago, and its retries stop after two."""
    lasting = RetryPolicy(
        max_attempts=1 if done in {"redriven", "rescheduled"} else 5, wait=3600, stop=stop_after_delay(2 * 86_400)
    )

    @outbox.task(name="work", retry=lasting)
    def work(ctx: TaskContext) -> None:
        ctx.step("charge", calls.append, 1)
        raise OSError("the bank is away")

    enqueue = work.using(outbox, idempotency_key="k", on_conflict="replace").enqueue
    handle = enqueue()
    run()
    database.run(f"UPDATE task_executions SET first_started_at = {days_ago(database, 8)}, max_attempts = 5")
    match done:
        case "redriven":
            outbox.store.redrive(handle.id)
        case "rescheduled":
            outbox.store.schedule_retry(handle.id, database.store.now(), 1)
        case "rewound":
            outbox.store.steps.rewind(handle.id, "charge")
        case "replaced":
            assert enqueue().replaced
        case _:
            outbox.store.run_now(handle.id)
    run()
    assert outbox.store.get(handle.id).status is (TaskStatus.FAILED if done == "nothing" else TaskStatus.READY)
    # Each attempt counts from the restart, not from itself.
    restarted_at = outbox.store.restarted_at(handle.id)
    assert (restarted_at is None) is (done == "nothing")
    if done != "nothing":
        outbox.store.run_now(handle.id)
        run()
        assert outbox.store.restarted_at(handle.id) == restarted_at
        assert restarted_at == outbox.store.attempts(handle.id)[1].started_at


@pytest.mark.parametrize(("max_attempts", "reads"), [(2, 0), (5, 1)], ids=["no attempts left", "too late"])
def test_the_history_is_read_only_if_it_can_change_the_decision(
    outbox, run, database, monkeypatch, max_attempts, reads
):
    read = []
    restarted_at = Store.restarted_at
    monkeypatch.setattr(Store, "restarted_at", lambda store, task: read.append(task) or restarted_at(store, task))

    @outbox.task(name="work", retry=RetryPolicy(max_attempts=max_attempts, wait=3600, stop=stop_after_delay(7200)))
    def work(ctx: TaskContext) -> None:
        raise OSError("the bank is away")

    handle = work.using(outbox).enqueue()
    run()
    database.run(f"UPDATE task_executions SET first_started_at = {days_ago(database, 8)}")
    outbox.store.run_now(handle.id)
    run()
    assert outbox.store.get(handle.id).status is TaskStatus.FAILED
    assert read == [handle.id] * reads


def test_sleeps_that_cannot_be_read_do_not_hide_the_error_of_the_attempt(outbox, run, database, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("no")

    @outbox.task(name="work", retry=RetryPolicy(stop=stop_after_delay(timedelta(days=2))))
    def work(ctx: TaskContext) -> None:
        raise OSError("the bank is away")

    handle = work.using(outbox).enqueue()
    outbox.store.finish(
        [
            Outcome(claim=one, event_type=EventType.RELEASED)
            for one in outbox.store.claim_ready_task(1, worker_id=database.worker)
        ]
    )
    database.run(f"UPDATE task_executions SET first_started_at = {days_ago(database, 8)}")
    monkeypatch.setattr(Steps, "of_claim", broken)
    run()
    assert outbox.store.get(handle.id).last_error == "OSError: the bank is away"
    assert "its history could not be read, so its retry policy may count too much time: RuntimeError: no" in caplog.text


@pytest.mark.in_turn
def test_a_sleep_of_0_continues_immediately(outbox, run):
    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> str:
        ctx.sleep("nap", 0)
        return "done"

    handle = work.using(outbox).enqueue()
    run()
    assert outbox.result(handle.id, timeout=0) == "done"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("seconds", "what"),
    [
        (-1, "must not be negative"),
        (3651 * 86_400, "'nap' is 3,651 days long; a task can sleep for at most 3,650 days"),
        ("soon", "ctx.sleep"),
    ],
)
def test_an_invalid_sleep_duration_is_refused(outbox, run, seconds, what):
    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> None:
        ctx.sleep("nap", seconds)

    handle = work.using(outbox).enqueue()
    run()
    assert what in error(outbox, handle)


@pytest.mark.in_turn
def test_a_step_and_a_sleep_cannot_share_a_name(outbox, run, calls):
    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> None:
        if not calls:
            calls.append(1)
            ctx.step("one", print)
            ctx.sleep("two", 60)
        with pytest.raises(StepRefused, match="'one' is the name of a step"):
            ctx.sleep("one", 60)
        with pytest.raises(StepRefused, match="'two' is the name of a sleep"):
            ctx.step("two", print)

    handle = work.using(outbox).enqueue()
    run()
    outbox.store.run_now(handle.id)
    run()
    assert status(outbox, handle) is TaskStatus.COMPLETED, error(outbox, handle)


# Fencing


def test_only_the_current_claim_can_write_a_step(database):
    claim = claimed(database)
    steps = database.frozen.steps
    assert steps.complete(claim, NewStep(name="one", number=1, result="1")) is not None
    database.clock.advance(claim.lease_seconds + 1)
    assert database.frozen.recover()
    assert steps.complete(claim, NewStep(name="two", number=2)) is None
    (later,) = database.claim()
    assert steps.complete(claim, NewStep(name="two", number=2)) is None
    assert steps.complete(later, NewStep(name="one", number=2, result="2")) is None
    assert [(step.name, step.result) for step in steps.of_claim(later)] == [("one", "1")]
    events = [one.event_data["step"] for one in database.frozen.history(claim.id) if one.event_type == "step_completed"]
    assert events == ["one"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_claim_cannot_end_while_one_of_its_steps_is_being_committed(database):
    claim = claimed(database)
    with transaction(database) as connection:
        assert database.frozen.steps.complete(claim, NewStep(name="one", number=1), using=connection)
        with stuck(database, lambda: database.frozen.cancel(claim.id, force=True)) as cancelling:
            assert not cancelling.done()
            connection.commit()
            assert cancelling.result(60) is TaskStatus.CANCELLED
    kinds = [one.event_type for one in database.frozen.history(claim.id)]
    assert kinds == [EventType.CREATED, EventType.CLAIMED, EventType.STEP_COMPLETED, EventType.CANCELLED]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_step_waits_for_the_end_of_its_claim_and_is_then_not_written(database):
    claim = claimed(database)
    with transaction(database) as connection:
        database.frozen.cancel(claim.id, force=True, using=connection)
        with stuck(database, lambda: database.frozen.steps.complete(claim, NewStep(name="one", number=1))) as writing:
            assert not writing.done()
            connection.commit()
            assert writing.result(60) is None
    assert database.frozen.steps.list(claim.id) == []


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_task_that_is_being_rewound_cannot_be_claimed_before_the_commit(database):
    claim = claimed(database)
    database.frozen.steps.complete(claim, NewStep(name="one", number=1))
    database.frozen.release(claim)
    with transaction(database) as connection:
        assert database.frozen.steps.rewind(claim.id, "one", using=connection) == 1
        with stuck(database, database.claim) as claiming:
            connection.commit()
            claims = claiming.result(60) or database.claim()
    assert database.frozen.steps.of_claim(claims[0]) == []


def test_a_handler_whose_lease_is_lost_stores_no_steps(database, outbox, run, calls):
    """Another worker takes the task while the step's function runs."""

    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> None:
        if not calls:
            try:
                ctx.step("one", taken_away, ctx)
            except LeaseLost:
                calls.append("lost")
                with pytest.raises(LeaseLost):
                    ctx.step("two", calls.append, "never")
                raise
        calls.append("again")

    def taken_away(ctx: TaskContext, _: TaskContext) -> None:
        outbox.store.schedule_retry(ctx.task_id, outbox.store.now(), 1)

    handle = work.using(outbox).enqueue()
    run()
    assert calls == ["lost", "again"]
    assert status(outbox, handle) is TaskStatus.COMPLETED
    assert outbox.store.steps.list(handle.id) == []


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_transactional_step_whose_lease_is_lost_is_rolled_back(database, outbox, run, calls):
    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> None:
        if not calls:
            calls.append(1)
            ctx.step("one", taken_away, transactional=True)

    def taken_away(ctx: TaskContext) -> None:
        write(ctx, "never")
        database.store.schedule_retry(ctx.task_id, database.store.now(), 1)

    handle = work.using(outbox).enqueue()
    run()
    assert status(outbox, handle) is TaskStatus.COMPLETED
    assert notes(database) == []
    assert outbox.store.steps.list(handle.id) == []


def test_the_outcome_of_an_unconfirmed_step_commit_is_read_from_its_row(database, monkeypatch):
    claim = claimed(database)
    store = lossy(database, monkeypatch)
    assert store.steps.complete(claim, NewStep(name="one", number=1, result="1")) is not None
    assert [(step.name, step.number) for step in database.store.steps.list(claim.id)] == [("one", 1)]
    assert [one.event_type for one in database.store.history(claim.id)].count(EventType.STEP_COMPLETED) == 1


def test_a_row_written_by_a_late_commit_of_the_same_claim_is_the_result(outbox, run):
    """The answer to the commit was lost, and the handler tried the step again."""

    def late(ctx: TaskContext) -> str:
        outbox.store.steps.complete(ctx.claim, NewStep(name="one", number=1, result='"first"'))
        return "second"

    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> list[str]:
        return [ctx.step("one", late), ctx.step("two", lambda: "third")]

    handle = work.using(outbox).enqueue()
    run()
    assert outbox.result(handle.id, timeout=0) == ["first", "third"]
    assert [step.number for step in outbox.store.steps.list(handle.id)] == [1, 2]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transactional_step_is_written_once_if_its_commit_is_not_confirmed(
    database, outbox, run, monkeypatch, is_committed
):
    real, lost = Store.unit, []

    @contextmanager
    def losing(store, *, using=None):
        with real(store, using=using) as unit:
            yield unit
            if not lost and not is_committed:
                lost.append(1)
                raise lost_connection(database)
        if not lost:
            lost.append(1)
            raise lost_connection(database)

    monkeypatch.setattr(Store, "unit", losing)

    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> str:
        return ctx.step("book", write, "booked", transactional=True)

    handle = work.using(outbox).enqueue()
    run()
    if not is_committed:  # no attempt was used
        assert types(outbox, handle)[-1] is EventType.RELEASED
        outbox.store.run_now(handle.id)
        run()
    assert status(outbox, handle) is TaskStatus.COMPLETED, error(outbox, handle)
    assert outbox.store.get(handle.id).attempt == 1
    assert notes(database) == ["booked"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("passes_on", [True, False])
def test_a_lost_connection_in_a_transactional_step_uses_no_attempt(database, outbox, run, calls, passes_on):
    def book(ctx: TaskContext) -> None:
        write(ctx, "booked")
        calls.append(1)
        if len(calls) == 1:
            ctx.connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> None:
        try:
            ctx.step("book", book, transactional=True)
        except DBAPIError as lost:
            if passes_on:
                raise
            raise ValueError("mine") from lost

    handle = work.using(outbox).enqueue()
    run()
    if not passes_on:
        assert status(outbox, handle) is TaskStatus.FAILED
        return
    assert types(outbox, handle)[-1] is EventType.RELEASED
    outbox.store.run_now(handle.id)
    run()
    assert status(outbox, handle) is TaskStatus.COMPLETED
    assert outbox.store.get(handle.id).attempt == 1
    assert notes(database) == ["booked"]


def test_a_result_is_stored_once_the_database_is_available(database, outbox, run, monkeypatch, calls):
    real, away = Steps.complete, []

    def refusing(steps, claim, step, *, using=None):
        if len(away) < 2:
            away.append(1)
            raise lost_connection(database)
        return real(steps, claim, step, using=using)

    monkeypatch.setattr("outboxq.worker.steps._RETRY_AFTER", 0.001)
    monkeypatch.setattr(Steps, "complete", refusing)

    @outbox.task(name="work", retry=ONCE)
    def work(ctx: TaskContext) -> None:
        ctx.step("one", calls.append, 1)

    handle = work.using(outbox).enqueue()
    run()
    assert status(outbox, handle) is TaskStatus.COMPLETED
    assert (calls, len(away)) == ([1], 2)


# Rewinding


@pytest.fixture
def stepped(outbox, run, calls):
    """Return a function that runs a task with five steps, which ends as requested."""

    def number(n: int) -> int:
        calls.append(n)
        return n

    @outbox.task(name="stepped", retry=RetryPolicy(max_attempts=2, wait=3600))
    def stepped(ctx: TaskContext, ends: str) -> list[int]:
        found = [ctx.step(f"step {n}", number, n) for n in range(1, 6)]
        if ends == "fails" and len(calls) <= 5:
            raise Cancel("never") if ctx.max_attempts == 0 else OSError("no")
        return found

    def start(ends):
        handle = stepped.using(outbox).enqueue(ends)
        run()
        return handle

    return start


def test_a_rewound_task_runs_again_from_the_given_step(outbox, run, calls, stepped):
    handle = stepped("fails")
    assert status(outbox, handle) is TaskStatus.READY
    assert outbox.store.steps.rewind(handle.id, "step 4", reason="wrong price") == 2
    assert [step.name for step in outbox.store.steps.list(handle.id)] == ["step 1", "step 2", "step 3"]
    run()
    assert outbox.result(handle.id, timeout=0) == [1, 2, 3, 4, 5]
    assert calls == [1, 2, 3, 4, 5, 4, 5]
    assert [step.number for step in outbox.store.steps.list(handle.id)] == [1, 2, 3, 4, 5]
    [rewound] = [one for one in outbox.store.history(handle.id) if one.event_type is EventType.REWOUND]
    assert {key: rewound.event_data[key] for key in ("step", "number", "reason")} == {
        "step": "step 4",
        "number": 4,
        "reason": "wrong price",
    }
    assert rewound.lease_token is None


def test_a_rewound_dead_letter_is_redriven_from_the_given_step(outbox, run, calls, stepped):
    handle = stepped("fails")
    calls.clear()
    outbox.store.run_now(handle.id)
    run()
    assert status(outbox, handle) is TaskStatus.FAILED
    assert outbox.store.steps.rewind(handle.id, "step 1") == 5
    calls += range(6)
    run()
    assert status(outbox, handle) is TaskStatus.COMPLETED
    assert outbox.store.get(handle.id).attempt == 1
    assert types(outbox, handle).count(EventType.REQUEUED) == 1


def test_an_impossible_rewind_is_refused_and_changes_nothing(database, outbox, run, stepped):
    handle = stepped("completes")
    before = types(outbox, handle)
    with pytest.raises(InvalidTransition, match="is Completed and will not run again"):
        outbox.store.steps.rewind(handle.id, "step 1")
    with pytest.raises(InvalidArgument, match=r"has no step 'other'; it has 'step 1', 'step 2'"):
        outbox.store.steps.rewind(handle.id, "other")
    with pytest.raises(TaskNotFound):
        outbox.store.steps.rewind(uuid7(), "step 1")
    claim = claimed(database)
    database.frozen.steps.complete(claim, NewStep(name="one", number=1))
    with pytest.raises(InvalidTransition, match="is Running, so its steps cannot be rewound"):
        database.frozen.steps.rewind(claim.id, "one")
    assert len(outbox.store.steps.list(handle.id)) == 5
    assert types(outbox, handle) == before


def test_the_outcome_of_an_unconfirmed_rewind_commit_is_read_from_its_event(database, monkeypatch):
    claim = claimed(database)
    for number in (1, 2):
        database.frozen.steps.complete(claim, NewStep(name=f"step {number}", number=number))
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED)])
    assert lossy(database, monkeypatch).steps.rewind(claim.id, "step 1") == 2
    kinds = [one.event_type for one in database.store.history(claim.id)]
    assert kinds.count(EventType.REWOUND) == kinds.count(EventType.REQUEUED) == 1


def test_a_rollback_by_the_caller_undoes_a_rewind(database, outbox):
    claim = claimed(database)
    database.frozen.steps.complete(claim, NewStep(name="one", number=1))
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED)])
    with database.host.connect() as connection:
        connection.begin()
        assert database.frozen.steps.rewind(claim.id, "one", using=connection) == 1
        connection.rollback()
    assert len(database.store.steps.list(claim.id)) == 1
    assert database.store.get(claim.id).status is TaskStatus.FAILED


@pytest.mark.in_turn
def test_simultaneous_tasks_keep_their_steps_separate(database, outbox, run):
    seen, lock = {}, threading.Lock()

    @outbox.task(name="many", retry=AT_ONCE)
    def many(ctx: TaskContext, number: int) -> int:
        found = [ctx.step(f"s{n}", lambda n=n: number * 10 + n) for n in range(3)]
        if ctx.attempt == 1:
            raise OSError
        with lock:
            seen[number] = found
        return number

    for number in range(8):
        many.using(outbox).enqueue(number)
    run(concurrency=4)
    assert seen == {number: [number * 10 + n for n in range(3)] for number in range(8)}
    assert json.dumps(seen)


def test_on_sqlite_a_step_inside_a_transaction_of_the_handler_ends_with_the_lease(sqlite, caplog, monkeypatch):
    """The handler holds SQLite's only lock, and the step waits for that lock."""
    monkeypatch.setattr("outboxq.store.transactions._PATIENCE", 3.0)
    engine = sqlite.host_engine()
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout = 100"))
    outbox = Outbox(engine)

    @outbox.task(name="reads", lease=1, retry=ONCE)
    def reads(ctx: TaskContext) -> int:
        with Session(engine) as session:
            session.scalar(text("SELECT 1"))
            return ctx.step("one", lambda: 1)

    handle = reads.using(outbox).enqueue()
    worker = outbox.worker(notifications=False, poll=0.05)
    worker.start()
    try:
        task = until(lambda: (found := outbox.store.get(handle.id)).completed_at and found)
    finally:
        worker.stop()
    cure = (
        "a Session that the handler left open holds it even after a read; end the Session's transaction before the step"
    )
    assert cure in task.last_error
    assert cure in caplog.text
    assert outbox.store.verify() == []


def test_on_sqlite_a_failed_step_keeps_a_lease_that_was_extended_while_it_waited(sqlite, monkeypatch):
    outbox, unit, extended = Outbox(sqlite.host_engine()), Store.unit, []

    @contextmanager
    def after_a_heartbeat(store, **options):
        context = current.get()
        context.deadline += 7
        extended.append(context.deadline)
        with unit(store, **options) as one:
            yield one

    def fail() -> None:
        raise OSError

    @outbox.task(name="goes on", retry=ONCE)
    def goes_on(ctx: TaskContext) -> float:
        with suppress(OSError):
            ctx.step("one", fail, transactional=True)
        return ctx.deadline

    monkeypatch.setattr(Store, "unit", after_a_heartbeat)
    handle = goes_on.using(outbox).enqueue()
    outbox.worker(notifications=False, concurrency=1).run(burst=True)
    assert [outbox.result(handle.id, timeout=0)] == extended


def test_a_step_that_is_rolled_back_does_not_extend_the_lease_on_sqlite(sqlite):
    outbox = Outbox(sqlite.host_engine())

    def fail(point):
        if point is Failpoint.BEFORE_COMMIT:
            raise OSError

    @outbox.task(name="goes on", retry=ONCE)
    def goes_on(ctx: TaskContext) -> list[float]:
        before = ctx.deadline
        with suppress(OSError):
            ctx.step("one", int, transactional=True)
        return [before, ctx.deadline]

    handle = goes_on.using(outbox).enqueue()
    outbox.worker(notifications=False, concurrency=1, on_failpoint=fail).run(burst=True)
    before, after = outbox.result(handle.id, timeout=0)
    assert after == before
