"""The effects of an enforced timeout on the task, its transaction and other tasks."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress

import pytest
from sqlalchemy import text

from outboxq import (
    EventType,
    Hook,
    InvalidArgument,
    Outbox,
    RetryPolicy,
    TaskContext,
    TaskStatus,
    TaskTimeout,
    TimeoutAction,
)
from outboxq.worker.failpoints import Failpoint
from tests.waiting import until

NEVER = RetryPolicy.never()


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@pytest.fixture
def work(outbox):
    """Start a worker that polls often. It is stopped after the test."""
    started = []

    def start(**options):
        worker = outbox.worker(
            **{"poll": 0.05, "recover_every": 0.05, "drain_timeout": 10, "concurrency": 2, **options}
        )
        started.append(worker)
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.stop()


def ended(outbox, handle):
    return until(lambda: (task := outbox.store.get(handle.id)).completed_at and task)


def busy() -> None:
    while True:
        time.sleep(0.005)


@pytest.mark.parametrize("action", ["raise", TimeoutAction.KILL])
def test_a_late_handler_is_interrupted_and_its_attempt_fails(outbox, work, action):
    cleaned = []

    @outbox.task(name="late", timeout=0.5, timeout_action=action, retry=RetryPolicy(max_attempts=2, wait=0))
    def late(ctx: TaskContext) -> None:
        try:
            busy()
        finally:
            cleaned.append(ctx.attempt)

    handle = late.using(outbox).enqueue()
    worker = work()
    task = ended(outbox, handle)
    assert (task.status, task.attempt) == (TaskStatus.FAILED, 2)
    assert task.last_error == "TaskTimeout: the handler ran for longer than its timeout of 0.5 s"
    assert cleaned == [1, 2]
    event = outbox.store.history(handle.id)[-1]
    assert "in busy" in event.event_data["traceback"]
    assert worker.is_healthy
    until(lambda: [one.timed_out_last for one in worker.meter.read().values()] == [1])


def test_a_timeout_is_retried_according_to_the_policy(outbox, work):
    policy = RetryPolicy(max_attempts=3, wait=0, retry=TimeoutError)

    @outbox.task(name="late", timeout=0.02, timeout_action="raise", retry=policy)
    def late() -> None:
        busy()

    handle = late.using(outbox).enqueue()
    work()
    assert ended(outbox, handle).attempt == 3


def test_a_task_with_an_enforced_timeout_may_have_parameters_of_any_name(outbox, work):
    @outbox.task(name="named", timeout=60, timeout_action="raise", retry=NEVER)
    def named(self: str, function: str) -> str:
        return self + function

    handle = named.using(outbox).enqueue("a", function="b")
    work()
    assert outbox.result(handle.id) == "ab"


def test_a_timeout_rolls_back_the_transaction(outbox, database, work):
    database.run("CREATE TABLE ledger (number INTEGER)")

    @outbox.task(name="late", timeout=0.1, timeout_action="raise", transactional=True, retry=NEVER)
    def late(ctx: TaskContext) -> None:
        ctx.connection.execute(text("INSERT INTO ledger VALUES (1)"))
        other.enqueue()
        busy()

    @outbox.task(name="other")
    def other() -> None: ...

    handle = late.using(outbox).enqueue()
    work()
    assert ended(outbox, handle).status is TaskStatus.FAILED
    assert database.rows("SELECT number FROM ledger") == []
    assert [task.task_name for task in outbox.store.tasks()] == ["late"]
    database.run("DROP TABLE ledger")


def test_a_result_returned_after_the_interruption_counts(outbox, work):
    @outbox.task(name="partial", timeout=0.5, timeout_action="raise")
    def partial() -> int:
        done = 0
        try:
            while True:
                time.sleep(0.005)
                done += 1
        except TaskTimeout:
            return min(done, 1)

    handle = partial.using(outbox).enqueue()
    work()
    assert ended(outbox, handle).result == "1"


def test_a_task_with_the_action_ask_is_not_interrupted(outbox, work, caplog):
    gate = threading.Event()

    @outbox.task(name="slow", timeout=0.01)
    def slow(ctx: TaskContext) -> str:
        until(lambda: ctx.timed_out)
        gate.wait(0.2)
        return "at its own pace"

    handle, others = slow.using(outbox).enqueue(), set(threading.enumerate())
    work()
    assert ended(outbox, handle).status is TaskStatus.COMPLETED
    started = {thread.name for thread in threading.enumerate() if thread not in others}
    assert "outboxq-timeouts" not in started
    assert "outboxq-completer" in started
    assert until(lambda: "its handler should check ctx.timed_out" in caplog.text)


@pytest.mark.parametrize("transactional", [False, True], ids=["own", "transactional"])
def test_a_task_ends_even_if_its_handler_ignores_the_kill(outbox, database, work, caplog, transactional):
    """The worker is no longer healthy and stops claiming. The host's process continues."""
    database.run("CREATE TABLE ledger (number INTEGER)")
    gate, ends, late = threading.Event(), [], []

    class Watching(Hook):
        def ended(self, context, outcome, seconds):
            ends.append((outcome.event_type, type(context.error)))

    outbox = Outbox(database.engine, hooks=[Watching()])

    timeout = 1 if transactional else 0.5  # an exception during a statement would break the connection

    @outbox.task(name="deaf", timeout=timeout, timeout_action="kill", transactional=transactional, retry=NEVER)
    def deaf(ctx: TaskContext) -> str:
        if ctx.is_transactional:
            ctx.connection.execute(text("INSERT INTO ledger VALUES (1)"))
        try:
            gate.wait(60)  # waits in C, so an exception is raised only when it returns
        except TaskTimeout:
            if ctx.is_transactional:
                late.append("written")
                ctx.connection.execute(text("INSERT INTO ledger VALUES (2)"))
        return "too late"

    @outbox.task(name="neighbour")
    def neighbour() -> str:
        gate.wait(60)
        return "undisturbed"

    lost = deaf.using(outbox).enqueue()
    beside = neighbour.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05, drain_timeout=20, concurrency=2, timeout_grace=0.1)
    worker.start()
    try:
        task = ended(outbox, lost)
        assert (task.status, task.attempt) == (TaskStatus.FAILED, 1)
        assert "did not stop within the grace period of 0.1 s" in task.last_error
        data = outbox.store.history(lost.id)[-1].event_data
        assert (data["exception"], "in deaf" in data["traceback"]) == ("outboxq.model.records.TaskTimeout", True)
        until(lambda: not worker.is_healthy)
        assert "did not stop within the grace period" in worker.health.error
        later = neighbour.using(outbox).enqueue()
        gate.set()
        assert worker.stop()
    finally:
        gate.set()
        worker.stop()
    assert outbox.store.get(beside.id).status is TaskStatus.COMPLETED
    assert outbox.store.get(later.id).status is TaskStatus.READY
    assert outbox.store.get(lost.id).status is TaskStatus.FAILED
    assert [event.event_type for event in outbox.store.history(lost.id)][2:] == [EventType.FAILED]
    assert ends == [(EventType.FAILED, TaskTimeout), (EventType.COMPLETED, type(None))]
    assert late == ["written"] * transactional
    assert database.rows("SELECT number FROM ledger") == []
    with ExitStack() as stack:  # no connection left in the pool refuses writes
        for connection in [
            stack.enter_context(database.engine.connect()) for _ in range(database.engine.pool.checkedin())
        ]:
            connection.execute(text("INSERT INTO ledger VALUES (3)"))
            connection.rollback()
    database.run("DROP TABLE ledger")


def test_a_thread_whose_handler_ends_just_after_its_kill_takes_no_other_task(database):
    """A hook is still being told of the kill when the handler ends. The thread is given up only after that."""
    killed, begun = threading.Event(), threading.Event()

    class Slow(Hook):
        def ended(self, context, outcome, seconds):
            if context.was_killed:
                killed.set()
                begun.wait(0.8)

    outbox = Outbox(database.engine, hooks=[Slow()])

    @outbox.task(name="deaf", timeout=0.2, timeout_action="kill", retry=NEVER)
    def deaf() -> None:
        while not killed.is_set():
            with suppress(TaskTimeout):
                killed.wait(60)

    @outbox.task(name="waiting")
    def waiting() -> None:
        begun.set()

    deaf.using(outbox).enqueue()
    handle = waiting.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05, concurrency=1, prefetch=1, timeout_grace=0.1)
    worker.start()
    try:
        worker._ending.wait()
        assert "did not stop within the grace period" in worker.health.error
    finally:
        worker.stop()
    assert worker.running == 0
    assert worker._parts.pool.in_flight == 0
    assert not begun.is_set()
    assert outbox.store.get(handle.id).status is TaskStatus.READY


def test_an_action_without_a_timeout_is_refused(outbox):
    with pytest.raises(InvalidArgument, match="timeout_action='kill' of task 'late' needs a timeout="):
        outbox.task(name="late", timeout_action="kill")(busy)
    with pytest.raises(InvalidArgument, match="timeout_action must be one of 'ask', 'raise', 'kill', not 'stop'"):
        outbox.task(name="late", timeout=1, timeout_action="stop")(busy)


def test_late_writes_of_a_killed_handler_in_a_step_are_rolled_back(outbox, database):
    """On SQLite, its transaction has ended by then, and a write would start a separate transaction."""
    database.run("CREATE TABLE ledger (number INTEGER)")
    gate, seen = threading.Event(), []

    def write(ctx: TaskContext) -> None:
        ctx.connection.execute(text("INSERT INTO ledger VALUES (1)"))
        try:
            gate.wait(60)
        except TaskTimeout:
            seen.append("late")
        ctx.connection.execute(text("INSERT INTO ledger VALUES (2)"))

    @outbox.task(name="deaf", timeout=1, timeout_action="kill", retry=NEVER)
    def deaf(ctx: TaskContext) -> None:
        ctx.step("write", write, transactional=True)

    handle = deaf.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05, drain_timeout=20, timeout_grace=0.1)
    worker.start()
    try:
        assert ended(outbox, handle).status is TaskStatus.FAILED
    finally:
        gate.set()
        worker.stop()
    until(lambda: seen and worker._parts.pool.busy == 0)
    assert database.rows("SELECT number FROM ledger") == []
    assert outbox.store.steps.list(handle.id) == []
    database.run("DROP TABLE ledger")


def test_an_interruption_waits_until_the_result_of_a_step_is_stored(outbox, work):
    """The function has returned and is not called again. None of the worker's connections is broken."""
    calls = []

    def while_it_is_stored(point):
        if point is Failpoint.AFTER_STEP:
            end = time.monotonic() + 20
            [active] = worker._parts.leases.held()
            while not active.context.limit._is_owed and time.monotonic() < end:
                time.sleep(0.005)

    @outbox.task(name="late", timeout=2, timeout_action="raise", retry=NEVER)
    def late(ctx: TaskContext) -> None:
        ctx.step("call", lambda: 7)
        calls.append("next")

    worker = work(concurrency=1, on_failpoint=while_it_is_stored)
    handle = late.using(outbox).enqueue()
    assert ended(outbox, handle).last_error == "TaskTimeout: the handler ran for longer than its timeout of 2 s"
    assert [(step.name, step.result) for step in outbox.store.steps.list(handle.id)] == [("call", "7")]
    assert calls == []  # the exception was raised at the end of the step


def test_an_interruption_due_before_a_step_prevents_the_call_of_its_function(outbox, work):
    calls = []

    def before_it(point):
        if point is Failpoint.BEFORE_STEP:
            end = time.monotonic() + 20
            [active] = worker._parts.leases.held()
            while not active.context.limit._is_owed and time.monotonic() < end:
                time.sleep(0.005)

    @outbox.task(name="late", timeout=0.05, timeout_action="raise", retry=NEVER)
    def late(ctx: TaskContext) -> None:
        ctx.step("call", calls.append, 1)

    worker = work(concurrency=1, on_failpoint=before_it)
    handle = late.using(outbox).enqueue()
    assert ended(outbox, handle).last_error == "TaskTimeout: the handler ran for longer than its timeout of 0.05 s"
    assert calls == []
