"""A worker in this process: it claims, runs, ends and releases tasks, and survives errors."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outboxq import Cancel, EventType, Outbox, RetryPolicy, SchemaOutOfDate, Snooze, TaskContext, TaskStatus
from outboxq.database.engine import make_engine
from outboxq.integration import Integration
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.failpoints import Failpoint
from tests.waiting import until

SOON = RetryPolicy(max_attempts=3, wait=0)


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@pytest.fixture
def work(outbox):
    """Start a worker that polls often. It is stopped after the test."""
    started = []

    def start(**options):
        worker = outbox.worker(**{"poll": 0.05, "recover_every": 0.05, "drain_timeout": 10, **options})
        started.append(worker)
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.stop()


def ended(outbox, handle):
    return until(lambda: (task := outbox.store.get(handle.id)).completed_at and task)


def types(outbox, handle):
    return [event.event_type for event in outbox.store.history(handle.id)]


def test_a_task_is_run_and_its_result_kept(outbox, work):
    @outbox.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    handle = double.using(outbox).enqueue(21)
    work()
    task = ended(outbox, handle)
    assert (task.status, task.result, task.attempt) == (TaskStatus.COMPLETED, "42", 1)
    assert types(outbox, handle) == [EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED]


def test_a_failing_task_is_retried_and_becomes_a_dead_letter_with_every_error(outbox, work):
    attempts = []

    @outbox.task(name="fail", retry=SOON)
    def fail(ctx: TaskContext) -> None:
        attempts.append(ctx.attempt)
        raise ValueError(f"attempt {ctx.attempt}")

    handle = fail.using(outbox).enqueue()
    work()
    task = ended(outbox, handle)
    assert (task.status, task.attempt, task.last_error) == (TaskStatus.FAILED, 3, "ValueError: attempt 3")
    assert attempts == [1, 2, 3]
    errors = [event.event_data["error"] for event in outbox.store.history(handle.id) if "error" in event.event_data]
    assert errors == ["ValueError: attempt 1", "ValueError: attempt 2", "ValueError: attempt 3"]
    assert all(
        "Traceback" in e.event_data["traceback"] for e in outbox.store.history(handle.id) if "error" in e.event_data
    )


def test_snooze_uses_no_attempt_and_cancel_ends_the_task(outbox, work, monkeypatch):
    monkeypatch.setattr("outboxq.worker.executor.SHORTEST_SNOOZE", timedelta(0))
    runs = []

    @outbox.task(name="moody")
    def moody(ctx: TaskContext) -> None:
        runs.append(ctx.attempt)
        raise Snooze(0) if len(runs) < 3 else Cancel("enough")

    handle = moody.using(outbox).enqueue()
    work()
    assert ended(outbox, handle).status is TaskStatus.CANCELLED
    assert runs == [1, 1, 1]
    assert outbox.store.history(handle.id)[-1].event_data["reason"] == "enough"


def test_tasks_run_simultaneously_up_to_the_concurrency_and_end_separately(outbox, work):
    together = threading.Barrier(4)

    @outbox.task(name="meet", retry=RetryPolicy.never())
    def meet(n: int) -> None:
        together.wait(60)
        if n == 2:
            raise ValueError("one of four")

    handles = meet.using(outbox).enqueue_many([(n,) for n in range(4)])
    work(concurrency=4)
    statuses = [ended(outbox, handle).status for handle in handles]
    assert statuses == [TaskStatus.COMPLETED, TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.COMPLETED]


def test_no_more_tasks_are_claimed_than_there_are_idle_threads(outbox, work):
    gate = threading.Event()

    @outbox.task(name="wait")
    def wait() -> None:
        gate.wait(60)

    handles = wait.using(outbox).enqueue_many([()] * 5)
    work(concurrency=2)
    running = until(lambda: [q.running for q in outbox.store.stats() if q.running == 2])
    assert running == [2]
    gate.set()
    assert {ended(outbox, handle).status for handle in handles} == {TaskStatus.COMPLETED}


def test_a_worker_that_serves_one_queue_does_not_claim_from_others(outbox, work):
    @outbox.task(name="a", queue="a")
    def a() -> None: ...
    @outbox.task(name="b", queue="b")
    def b() -> None: ...

    others, ours = b.using(outbox).enqueue(), a.using(outbox).enqueue()
    work(queues=["a"])
    ended(outbox, ours)
    assert outbox.store.get(others.id).status is TaskStatus.READY


@pytest.mark.in_turn
def test_a_lease_shorter_than_its_handler_is_extended(outbox, work):
    gate = threading.Event()

    @outbox.task(name="long", lease=2)
    def long() -> None:
        gate.wait(60)

    handle = long.using(outbox).enqueue()
    work(heartbeat=0.2)
    first = until(lambda: outbox.store.get(handle.id).lease_expires_at)
    until(lambda: outbox.store.get(handle.id).lease_expires_at > first + timedelta(seconds=2.2))
    gate.set()
    ended(outbox, handle)
    assert types(outbox, handle) == [EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED]


def test_a_handler_that_lost_the_lease_notices_and_its_result_is_discarded(outbox, work, caplog):
    began, told = threading.Event(), threading.Event()

    @outbox.task(name="slow")
    def slow(ctx: TaskContext) -> str:
        began.set()
        until(lambda: ctx.lost)
        assert ctx.should_stop
        told.set()
        return "too late"

    handle = slow.using(outbox).enqueue()
    worker = work(heartbeat=0.1)
    assert began.wait(60)
    outbox.store.cancel(handle.id, force=True)
    assert told.wait(60)
    worker.stop()
    task = outbox.store.get(handle.id)
    assert (task.status, task.result) == (TaskStatus.CANCELLED, None)
    assert "is discarded" in caplog.text


def test_a_running_handler_is_notified_of_a_cancel_request(outbox, work):
    @outbox.task(name="polite")
    def polite(ctx: TaskContext) -> None:
        until(lambda: ctx.cancel_requested)
        raise Cancel("as asked")

    handle = polite.using(outbox).enqueue()
    work(heartbeat=0.1)
    until(lambda: outbox.store.get(handle.id).status is TaskStatus.RUNNING)
    assert outbox.store.cancel(handle.id) is TaskStatus.RUNNING
    assert ended(outbox, handle).status is TaskStatus.CANCELLED


def test_a_task_of_a_dead_worker_is_recovered_and_run(outbox, work):
    @outbox.task(name="orphan")
    def orphan() -> None: ...

    handle = orphan.using(outbox).enqueue()
    # This worker dies after its claim.
    outbox.store.claim_ready_task(1, worker_id=uuid7(), lease=timedelta(seconds=0.2))
    work()
    task = ended(outbox, handle)
    assert (task.status, task.recovery_attempts, task.lease_token) == (TaskStatus.COMPLETED, 0, 2)
    assert EventType.RESET in types(outbox, handle)


def test_an_unknown_task_is_released_without_using_an_attempt_and_fails_after_its_limit(outbox, work):
    other = Outbox(outbox.store.engine)
    handle = other.task(name="from.the.future")(lambda: None).using(other).enqueue()
    patient = work(unknown_task_delay=0.05, unknown_task_limit=3600)
    until(lambda: types(outbox, handle).count(EventType.RELEASED) >= 2)
    patient.stop()
    work(unknown_task_delay=0.05, unknown_task_limit=0.4)
    task = ended(outbox, handle)
    assert (task.status, task.attempt) == (TaskStatus.FAILED, 1)
    assert "UnknownTask" in task.last_error
    assert types(outbox, handle)[-1] is EventType.FAILED


def test_an_old_retrying_task_does_not_fail_when_it_is_briefly_unknown(outbox, work, database):
    handle = database.add(database.store, task_name="old.hand")
    database.run("UPDATE task_executions SET first_started_at = " + _long_ago(database))
    work(unknown_task_delay=60, unknown_task_limit=3600)
    until(lambda: EventType.RELEASED in types(outbox, handle))
    assert outbox.store.get(handle.id).status is TaskStatus.READY


def _long_ago(database):
    return "'2020-01-01T00:00:00.000000+00:00'" + ("" if database.name == "sqlite" else "::timestamptz")


def test_stop_lets_running_tasks_finish(outbox, work):
    began, gate = threading.Event(), threading.Event()

    @outbox.task(name="finishing")
    def finishing() -> str:
        began.set()
        gate.wait(60)
        return "done"

    handle = finishing.using(outbox).enqueue()
    later = finishing.using(outbox, delay=3600).enqueue()
    worker = work()
    assert began.wait(60)  # a claim that has not begun would be released
    threading.Timer(0.2, gate.set).start()
    assert worker.stop() is True
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED
    assert outbox.store.get(later.id).status is TaskStatus.READY


def test_a_task_that_does_not_finish_in_time_is_released_and_fenced(outbox, work):
    began, gate = threading.Event(), threading.Event()

    @outbox.task(name="stubborn")
    def stubborn() -> str:
        began.set()
        gate.wait(60)
        return "late"

    handle = stubborn.using(outbox).enqueue()
    worker = work()
    assert began.wait(60)  # otherwise, `stop` would release the claim and return True
    assert worker.stop(timeout=0.05) is False
    until(
        lambda: types(outbox, handle)[-1] is EventType.RELEASED
    )  # on a busy machine, `stop` returns before the release is committed
    task = outbox.store.get(handle.id)
    assert (task.status, task.attempt) == (TaskStatus.READY, 1)
    gate.set()
    until(lambda: not any(t.name.startswith("outboxq-handler") for t in threading.enumerate()))
    assert outbox.store.get(handle.id).status is TaskStatus.READY


def test_a_claim_whose_response_arrives_after_the_stop_is_released(outbox, work, monkeypatch):
    @outbox.task(name="late")
    def late() -> None: ...

    real, asked, answer = Store.claim_ready_task, threading.Event(), threading.Event()

    def slow(*args, **kwargs):
        asked.set()
        answer.wait(60)
        return real(*args, **kwargs)

    monkeypatch.setattr(Store, "claim_ready_task", slow)
    handle = late.using(outbox).enqueue()
    worker = work()
    assert asked.wait(60)
    assert worker.stop(timeout=0.05) is False
    answer.set()
    until(lambda: EventType.RELEASED in types(outbox, handle))
    assert outbox.store.get(handle.id).status is TaskStatus.READY


@pytest.mark.in_turn
def test_a_handler_is_notified_of_a_lease_that_ended_while_the_database_was_silent(outbox, work, monkeypatch):
    heard = threading.Event()

    @outbox.task(name="cut.off", lease=1.5)
    def cut_off(ctx: TaskContext) -> None:
        until(lambda: ctx.lost)
        heard.set()

    silence = threading.Event()
    monkeypatch.setattr(Store, "heartbeat", lambda *_: silence.wait(60) and {})
    cut_off.using(outbox).enqueue()
    work(recover_every=60)
    assert heard.wait(60)
    silence.set()


def test_a_worker_stops_even_if_its_failure_cannot_be_logged(outbox, work, monkeypatch):
    """Logging fails, for example, after a handler has closed stderr."""

    def closed(*_, **__):
        raise ValueError("I/O operation on closed file")

    worker = work()
    monkeypatch.setattr("outboxq.worker.worker.log.critical", closed)
    with pytest.raises(ValueError, match="closed file"):
        worker._on_thread_failure(RuntimeError("a thread died"))
    assert not worker.is_healthy
    until(lambda: not worker._parts.claim_loop.is_alive())


def test_a_dead_heartbeat_thread_stops_claiming(outbox, work, monkeypatch):
    def broken(*_):
        raise SystemExit(1)

    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    monkeypatch.setattr(Store, "heartbeat", broken)
    gate = threading.Event()

    @outbox.task(name="beating", lease=0.3)
    def beating() -> None:
        gate.wait(60)

    beating.using(outbox).enqueue()
    worker = work(recover_every=60)
    until(lambda: not worker.is_healthy)
    after = beating.using(outbox).enqueue()
    gate.set()
    until(lambda: not worker._parts.claim_loop.is_alive())
    assert outbox.store.get(after.id).status is TaskStatus.READY


def test_a_worker_survives_an_outage_of_the_database(outbox, work, monkeypatch, caplog):
    @outbox.task(name="survivor")
    def survivor() -> None: ...

    real, failures = Store.claim_ready_task, []

    def claim(*args, **kwargs):
        if len(failures) < 2:
            failures.append(1)
            raise OperationalError("claim", {}, Exception("server closed the connection"))
        return real(*args, **kwargs)

    monkeypatch.setattr(Store, "claim_ready_task", claim)
    handle = survivor.using(outbox).enqueue()
    work()
    assert ended(outbox, handle).status is TaskStatus.COMPLETED
    assert "no task was started" in caplog.text


def test_a_dead_thread_stops_the_worker_with_an_error(outbox, work, monkeypatch, caplog):
    def broken(*_args, **_kwargs):
        raise SystemExit(1)

    monkeypatch.setattr(Store, "claim_ready_task", broken)
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    worker = work()
    until(lambda: not worker.is_healthy)
    until(lambda: "outboxq-claim-loop" not in {one.name for one in threading.enumerate()})  # it still calls excepthook
    assert "a worker thread died" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_handler_that_raises_an_exit_ends_only_its_attempt(outbox, work, error):
    @outbox.task(name="quit", retry=RetryPolicy.never())
    def quitter() -> None:
        raise error

    @outbox.task(name="next")
    def following() -> None: ...

    failed, good = quitter.using(outbox).enqueue(), following.using(outbox).enqueue()
    work(concurrency=1)
    assert ended(outbox, failed).status is TaskStatus.FAILED
    assert ended(outbox, good).status is TaskStatus.COMPLETED


def test_no_connection_is_held_while_a_handler_runs(outbox, work):
    seen = []

    @outbox.task(name="look")
    def look() -> None:
        seen.append(threading.get_ident())
        gate.wait(60)

    gate = threading.Event()
    handles = look.using(outbox).enqueue_many([()] * 3)
    work(concurrency=3, poll=30, recover_every=60)
    until(lambda: len(seen) == 3)
    until(lambda: outbox.store.engine.pool.checkedout() == 0)
    gate.set()
    for handle in handles:
        ended(outbox, handle)


def test_a_worker_refuses_a_database_without_the_schema(tmp_path):
    outbox = Outbox(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(SchemaOutOfDate, match="outboxq upgrade"):
        outbox.worker().start()
    outbox.store.engine.dispose()


def test_two_outboxes_in_one_process_are_independent(database, tmp_path, work, outbox):
    other = Outbox(make_engine(f"sqlite:///{tmp_path / 'other.db'}"))
    other.upgrade()
    ran = []
    outbox.task(name="same")(lambda: ran.append("ours"))
    theirs = other.task(name="same")(lambda: ran.append("theirs"))
    handle = theirs.using(other).enqueue()
    work()
    assert other.store.get(handle.id).status is TaskStatus.READY
    worker = other.worker(poll=0.05)
    worker.start()
    ended(other, handle)
    worker.stop()
    assert ran == ["theirs"]
    other.store.engine.dispose()


def test_log_lines_name_the_task_and_never_its_arguments(outbox, work, caplog):
    caplog.set_level(logging.DEBUG)

    @outbox.task(name="secretive", retry=RetryPolicy.never())
    def secretive(card: str) -> None:
        raise ValueError("declined")

    handle = secretive.using(outbox).enqueue("4111-canary")
    work()
    ended(outbox, handle)
    assert str(handle.id) in caplog.text
    assert "canary" not in caplog.text
    assert "canary" not in repr(outbox.store.get(handle.id))


# Timeouts


def test_a_timeout_is_stored_with_the_task(outbox):
    bounded = outbox.task(name="bounded", timeout=timedelta(minutes=2))(lambda: None)
    unbounded = outbox.task(name="unbounded")(lambda: None)
    handles = [bounded.using(outbox).enqueue(), unbounded.using(outbox).enqueue()]
    assert [outbox.store.get(handle.id).timeout_seconds for handle in handles] == [120, None]


def test_a_handler_is_notified_of_its_timeout(outbox, work):
    @outbox.task(name="looks", timeout=0.05)
    def looks(ctx: TaskContext) -> list[bool]:
        before = ctx.timed_out
        until(lambda: ctx.timed_out)
        return [before, ctx.timed_out, ctx.should_stop, ctx.lost, ctx.cancel_requested]

    handle = looks.using(outbox).enqueue()
    work()
    assert ended(outbox, handle).result == "[false,true,true,false,false]"


@pytest.mark.in_turn
def test_the_time_that_a_task_waits_for_a_thread_does_not_count(outbox, work):
    gate = threading.Event()

    @outbox.task(name="first")
    def first() -> None:
        gate.wait(60)

    @outbox.task(name="second", timeout=2)
    def second(ctx: TaskContext) -> bool:
        return ctx.timed_out

    first.using(outbox).enqueue()
    handle = second.using(outbox).enqueue()
    work(concurrency=1, prefetch=1)
    claimed = until(lambda: outbox.store.get(handle.id).started_at)
    until(lambda: datetime.now(UTC) > claimed + timedelta(seconds=2.1))
    gate.set()
    assert ended(outbox, handle).result == "false"


def test_a_checkpoint_past_the_timeout_fails_the_attempt_by_the_policy(outbox, work):
    @outbox.task(name="loops", timeout=0.05, retry=RetryPolicy(max_attempts=2, wait=0))
    def loops(ctx: TaskContext) -> None:
        until(ctx.checkpoint)

    handle = loops.using(outbox).enqueue()
    work()
    task = ended(outbox, handle)
    assert (task.status, task.attempt) == (TaskStatus.FAILED, 2)
    assert task.last_error == "TimeoutError: the handler ran for longer than its timeout of 0.05 s"


def test_a_checkpoint_cancels_the_task_on_request(outbox, work):
    @outbox.task(name="loops")
    def loops(ctx: TaskContext) -> None:
        until(ctx.checkpoint)

    handle = loops.using(outbox).enqueue()
    work(heartbeat=0.1)
    until(lambda: outbox.store.get(handle.id).status is TaskStatus.RUNNING)
    outbox.store.cancel(handle.id)
    assert ended(outbox, handle).status is TaskStatus.CANCELLED
    assert outbox.store.history(handle.id)[-1].event_data["reason"] == "as asked"


def test_a_checkpoint_in_a_stopping_worker_snoozes_the_task(outbox, work):
    @outbox.task(name="loops")
    def loops(ctx: TaskContext) -> None:
        until(ctx.checkpoint)

    handle = loops.using(outbox).enqueue()
    worker = work()
    until(lambda: worker.running == 1)
    assert worker.stop() is True
    task = outbox.store.get(handle.id)
    assert (task.status, task.attempt) == (TaskStatus.READY, 1)
    assert types(outbox, handle)[-1] is EventType.SNOOZED


def test_a_checkpoint_reports_that_the_lease_could_not_be_extended(outbox, work, caplog):
    caplog.set_level("INFO", "outboxq.worker")
    runs: list[int] = []

    @outbox.task(name="loops", lease=1)
    def loops(ctx: TaskContext) -> None:
        runs.append(ctx.attempt)
        if len(runs) == 1:
            until(ctx.checkpoint)

    def cut_off(point: Failpoint) -> None:
        if point is Failpoint.BEFORE_BEAT and len(runs) == 1:
            raise OSError("the database is down")

    handle = loops.using(outbox).enqueue()
    work(on_failpoint=cut_off)
    assert ended(outbox, handle).status is TaskStatus.COMPLETED
    assert runs == [1, 1]
    [snoozed] = [one for one in outbox.store.history(handle.id) if one.event_type is EventType.SNOOZED]
    assert snoozed.event_data["reason"] == "its lease could not be extended in time"
    [line] = [line for line in caplog.messages if ": task_snoozed in " in line]
    assert line.endswith(" s: its lease could not be extended in time")


def test_a_handler_that_ignores_its_timeout_completes_and_one_warning_is_logged(outbox, work, caplog):
    gate = threading.Event()

    @outbox.task(name="deaf", timeout=0.1)
    def deaf() -> str:
        gate.wait(60)
        return "done"

    handle = deaf.using(outbox).enqueue()
    beats = []
    work(heartbeat=0.1, on_failpoint=lambda point: point is Failpoint.AFTER_BEAT and beats.append(1))
    until(lambda: "has run past its timeout" in caplog.text)
    seen = len(beats)
    until(lambda: len(beats) >= seen + 3)
    gate.set()
    task = ended(outbox, handle)
    assert (task.status, task.result, task.attempt) == (TaskStatus.COMPLETED, '"done"', 1)
    warning = f"task {handle.id} (deaf) has run past its timeout of 0.1 s; its handler should check ctx.timed_out"
    assert caplog.text.count(warning) == 1


@pytest.mark.in_turn
def test_the_timeout_warning_does_not_wait_for_a_heartbeat(outbox, work, caplog):
    """A heartbeat comes only after a third of the lease, long after the handler has ended."""

    @outbox.task(name="deaf", timeout=0.05, lease=60)
    def deaf(ctx: TaskContext) -> None:
        until(lambda: ctx.timed_out)

    handle = deaf.using(outbox).enqueue()
    work()
    assert ended(outbox, handle).status is TaskStatus.COMPLETED
    assert "past its timeout of 0.05 s" in caplog.text


# Further cases


class Failing(Integration):
    """An integration that fails after each handler."""

    @contextmanager
    def around_handler(self, context):
        yield
        raise OSError("no context to leave")

    def after_handler(self, context, outcome):
        raise OSError("no connection to close")


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("line", ["task_completed", "hook that runs after", "code that runs after", "past its timeout"])
def test_a_log_handler_that_raises_does_not_lose_the_outcome_or_lease(database, caplog, line, transactional):
    class Broken(logging.Filter):
        def filter(self, record):
            if line in record.getMessage():
                raised.append(line)
                raise RuntimeError("the host's log handler is broken")
            return True

    outbox = Outbox(database.engine, integration=Failing())

    @outbox.task(name="logged", lease=30, timeout=0.001, transactional=transactional)
    def logged(ctx: TaskContext) -> None:
        until(lambda: ctx.timed_out)

    broken, raised, log = Broken(), [], logging.getLogger("outboxq.worker")
    caplog.set_level(logging.INFO, log.name)
    log.addFilter(broken)
    try:
        handle = logged.using(outbox).enqueue()
        worker = outbox.worker(poll=0.05)
        worker.start()
        until(lambda: raised)
        until(lambda: worker._parts.leases.held() == [])
        worker.stop()
    finally:
        log.removeFilter(broken)
    task = outbox.store.get(handle.id)
    assert (task.status, task.lease_token) == (TaskStatus.COMPLETED, 1)


def test_a_task_whose_lease_was_lost_before_its_start_is_not_run(outbox, work, caplog):
    gate, begun = threading.Event(), []

    @outbox.task(name="first")
    def first() -> None:
        gate.wait(60)

    @outbox.task(name="second")
    def second() -> None:
        begun.append(1)

    slow, lying = first.using(outbox, priority=1).enqueue(), second.using(outbox).enqueue()
    work(concurrency=1, prefetch=1, heartbeat=0.1)
    until(lambda: outbox.store.get(lying.id).status is TaskStatus.RUNNING)
    outbox.store.cancel(lying.id, force=True)
    until(lambda: "another worker may run it" in caplog.text)
    gate.set()
    ended(outbox, slow)
    until(lambda: "its lease was lost before the task started" in caplog.text)
    assert begun == []


def test_claims_are_kept_even_if_a_write_after_the_claim_fails(outbox, work, monkeypatch):
    """Removing the worker from the sleeping workers is a write, which may fail or wait."""
    handle = outbox.task(name="kept")(lambda: None).using(outbox).enqueue()
    worker = outbox.worker(recover_every=60)

    def broken(*, saturated=False):
        raise OperationalError("withdraw", {}, Exception("the server closed the connection"))

    monkeypatch.setattr(worker._parts.distributor, "at_work", broken)
    worker.start()
    try:
        assert ended(outbox, handle).lease_token == 1
    finally:
        worker.stop()


def test_a_recovered_task_is_run_even_if_the_lookup_of_an_unknown_task_fails(outbox, work, database, monkeypatch):
    known = outbox.task(name="known")(lambda: None).using(outbox).enqueue()
    stranger = database.add(database.store, task_name="stranger")
    database.run("UPDATE task_executions SET recovery_attempts = 1, lease_token = 1")
    database.corrupted = True  # there are no events for these recoveries
    failures = []

    def unknown_runs(store, claims):
        failures.append([claim.id for claim in claims])
        raise OperationalError("runs", {}, Exception("the server closed the connection"))

    monkeypatch.setattr(Store, "unknown_runs", unknown_runs)
    work(recover_every=60)
    assert ended(outbox, known).status is TaskStatus.COMPLETED
    until(lambda: EventType.RELEASED in types(outbox, stranger))
    assert failures == [[stranger.id]]


def test_a_task_whose_transaction_could_not_begin_uses_no_attempt(outbox, work, monkeypatch):
    refusals = []
    real = Store.unit

    def unit(store, **options):
        if not refusals:
            refusals.append(1)
            raise PoolTimeout("no connection is free")
        return real(store, **options)

    monkeypatch.setattr(Store, "unit", unit)
    handle = (
        outbox.task(name="entry", transactional=True, retry=RetryPolicy.never())(lambda: None).using(outbox).enqueue()
    )
    work()
    task = ended(outbox, handle)
    assert (task.status, task.attempt) == (TaskStatus.COMPLETED, 1)
    assert EventType.RELEASED in types(outbox, handle)


@pytest.mark.in_turn
def test_running_counts_handlers_while_they_drain(outbox, work):
    gate = threading.Event()
    outbox.task(name="long")(lambda: gate.wait(60) and None).using(outbox).enqueue_many([()] * 3)
    worker = work(concurrency=3)
    until(lambda: worker.running == 3)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: worker._parts.pool._is_shut_down)
    assert worker.running == 3
    gate.set()
    stopping.join()
