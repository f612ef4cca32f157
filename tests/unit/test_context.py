"""Information about its task that a running handler can read. These tests use no database and no worker."""

from __future__ import annotations

import contextvars
import itertools
import threading
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from outboxq import Cancel, InvalidTarget, Retry, Snooze, TaskContext
from outboxq import context as module
from outboxq.context import Leave
from outboxq.model import Claim

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def claim_of(**changes):
    values = {
        "id": uuid4(),
        "pipeline_execution_id": uuid4(),
        "task_name": "mail.send",
        "queue": "mail",
        "priority": 0,
        "args": "{}",
        "headers": None,
        "attempt": 2,
        "max_attempts": None,
        "recovery_attempts": 1,
        "lease_token": 3,
        "worker_id": uuid4(),
        "lease_seconds": 60.0,
        "lease_expires_at": NOW,
        "timeout_seconds": None,
        "created_at": NOW,
        "first_started_at": NOW,
        "started_at": NOW,
        **changes,
    }
    return Claim(**values)


@pytest.fixture
def clock(monkeypatch):
    """The current value of `time.monotonic()`, in a list with one element."""
    seconds = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: seconds[0])
    return seconds


def context_of(stopping=None, **changes):
    return TaskContext(claim_of(**changes), max_attempts=5, stopping=stopping or threading.Event())


class UnitOfWork:
    database = None

    connection = target = object()
    session = object()

    def flush(self):
        pass

    def was_interrupted(self, error):
        return False


def test_the_context_has_the_data_of_its_task():
    claim = claim_of()
    context = TaskContext(claim, max_attempts=5, stopping=threading.Event())
    assert (context.task_id, context.pipeline_execution_id) == (claim.id, claim.pipeline_execution_id)
    assert (context.task_name, context.queue) == ("mail.send", "mail")
    assert (context.attempt, context.max_attempts, context.recovery_attempts) == (2, 5, 1)
    assert context.created_at == NOW


def test_a_task_without_a_timeout_never_times_out(clock):
    context = context_of()
    context.began = module.time.monotonic()
    clock[0] += 1e9
    assert not context.timed_out
    assert not context.should_stop
    context.checkpoint()


def test_the_timeout_counts_from_the_start_of_the_handler(clock):
    context = context_of(timeout_seconds=2.5)
    clock[0] += 100
    assert not context.timed_out  # waiting does not count: the handler has not started
    context.began = module.time.monotonic()
    clock[0] += 2.5
    assert not context.timed_out
    clock[0] += 0.1
    assert context.timed_out
    assert context.should_stop


def test_a_checkpoint_past_the_timeout_fails_the_attempt(clock):
    context = context_of(timeout_seconds=2.5)
    context.began = module.time.monotonic()
    context.checkpoint()
    clock[0] += 3
    with pytest.raises(TimeoutError, match=r"longer than its timeout of 2\.5 s"):
        context.checkpoint()


def test_a_checkpoint_raises_cancel_if_a_cancel_was_requested():
    context = context_of()
    context.checkpoint()
    context.cancel_requested = True
    assert context.cancel_requested
    assert context.should_stop
    with pytest.raises(Cancel, match="as asked"):
        context.checkpoint()


def test_a_checkpoint_of_a_stopping_worker_snoozes_the_task_without_a_delay():
    stopping = threading.Event()
    context = context_of(stopping)
    assert not context.should_stop
    stopping.set()
    assert context.should_stop
    with pytest.raises(Leave) as snooze:
        context.checkpoint()
    assert (snooze.value.delay, snooze.value.reason) == (timedelta(0), "the worker is stopping")


def test_a_checkpoint_with_a_lost_lease_ends_the_handler(clock):
    context = context_of()
    context.deadline = clock[0] + 1
    context.checkpoint()
    clock[0] += 1.1
    assert context.lost
    with pytest.raises(Leave) as unreachable:
        context.checkpoint()
    assert unreachable.value.reason == "its lease could not be extended in time"
    context.was_lost = True
    with pytest.raises(Leave) as lost:
        context.checkpoint()
    assert lost.value.reason == "its lease was lost"


def test_a_checkpoint_raises_the_most_important_of_several_reasons(clock):
    stopping = threading.Event()
    context = context_of(stopping, timeout_seconds=1)
    context.began = module.time.monotonic()
    stopping.set()
    with pytest.raises(Snooze):
        context.checkpoint()
    context.cancel_requested = True
    with pytest.raises(Cancel):
        context.checkpoint()
    clock[0] += 2
    with pytest.raises(TimeoutError):
        context.checkpoint()


def test_a_lease_is_lost_if_it_is_marked_lost_or_has_expired(clock):
    context = context_of()
    assert not context.lost  # the worker has not set the deadline yet
    context.deadline = clock[0] + 1
    clock[0] += 2
    assert context.lost
    context.deadline = clock[0] + 1  # a late heartbeat has succeeded
    assert not context.lost
    context.was_lost = True
    clock[0] -= 100
    assert context.lost


def test_only_a_context_with_a_unit_of_work_has_a_transaction():
    context = context_of()
    assert not context.is_transactional
    for name in ("connection", "session"):
        with pytest.raises(
            InvalidTarget, match="mail.send has no transaction of its own; declare it with transactional=True"
        ):
            getattr(context, name)
    unit = UnitOfWork()
    context.unit = unit
    assert context.is_transactional
    assert (context.connection, context.session) == (unit.connection, unit.session)


def test_retry_at_and_snooze_do_not_return():
    context = context_of()
    with pytest.raises(Retry) as retry:
        context.retry_at(NOW)
    assert retry.value.at == NOW
    with pytest.raises(Snooze) as snooze:
        context.snooze(30)
    assert snooze.value.delay == timedelta(seconds=30)


def test_each_thread_has_a_separate_current_context():
    assert module.current.get() is None
    context, seen = context_of(), []
    token = module.current.set(context)
    thread = threading.Thread(target=lambda: seen.append(module.current.get()))
    thread.start()
    thread.join(60)
    copied = contextvars.copy_context().run(module.current.get)
    module.current.reset(token)
    assert (seen, copied, module.current.get()) == ([None], context, None)


@pytest.mark.parametrize(("lost", "cancelled", "late", "stopping"), list(itertools.product([False, True], repeat=4)))
def test_any_one_reason_is_enough_to_stop(clock, lost, cancelled, late, stopping):
    event = threading.Event()
    context = context_of(event, timeout_seconds=1)
    context.began = module.time.monotonic()
    if lost:
        context.was_lost = True
    if cancelled:
        context.cancel_requested = True
    if late:
        clock[0] += 2
    if stopping:
        event.set()
    assert context.should_stop is (lost or cancelled or late or stopping)
