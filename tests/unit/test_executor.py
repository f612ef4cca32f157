"""The executor takes a claim and returns an outcome. These tests use no database."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import tenacity

from outboxq import Cancel, InvalidArgument, Outbox, PayloadError, Retry, RetryPolicy, Snooze, TaskContext
from outboxq.model import Claim, EventType
from outboxq.worker.executor import context_of, execute, failed

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SOON = RetryPolicy(max_attempts=3, wait=5)


def claim_of(task, args="{}", **changes):
    values = {
        "id": uuid4(),
        "pipeline_execution_id": uuid4(),
        "task_name": task.name,
        "queue": "default",
        "priority": 0,
        "args": args,
        "headers": None,
        "attempt": 1,
        "max_attempts": None,
        "recovery_attempts": 0,
        "lease_token": 1,
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


def outcome_of(function, args="{}", *, retry=SOON, **changes):
    task = Outbox().task(name="t", retry=retry)(function)
    claim = claim_of(task, args, **changes)
    return execute(task, context_of(claim, task, threading.Event()))


def raising(error):
    def handler():
        raise error

    return handler


def test_a_result_completes_the_task():
    outcome = outcome_of(lambda n: {"doubled": n * 2}, '{"n": 4}')
    assert (outcome.event_type, outcome.result) == (EventType.COMPLETED, '{"doubled":8}')


def test_a_task_without_a_result_stores_none():
    assert outcome_of(lambda: None).result is None


def test_an_error_is_retried_by_the_policy_with_its_text_and_traceback():
    outcome = outcome_of(raising(ValueError("boom")))
    assert (outcome.event_type, outcome.delay) == (EventType.RETRY_SCHEDULED, timedelta(seconds=5))
    assert outcome.error == "ValueError: boom"
    assert outcome.data["exception"] == "builtins.ValueError"
    assert "in handler" in outcome.data["traceback"]


def test_the_last_attempt_fails_the_task():
    assert outcome_of(raising(ValueError()), attempt=3).event_type is EventType.FAILED


def test_max_attempts_of_the_task_overrides_that_of_the_policy():
    assert outcome_of(raising(ValueError()), attempt=3, max_attempts=4).event_type is EventType.RETRY_SCHEDULED
    assert outcome_of(raising(ValueError()), attempt=1, max_attempts=1).event_type is EventType.FAILED


def test_a_stop_after_delay_counts_from_the_first_attempt_of_all_processes():
    policy = RetryPolicy(max_attempts=None, stop=tenacity.stop_after_delay(3600), wait=1)
    long_ago = {"attempt": 9, "first_started_at": NOW - timedelta(hours=2)}
    assert outcome_of(raising(ValueError()), retry=policy, **long_ago).event_type is EventType.FAILED
    assert outcome_of(raising(ValueError()), retry=policy, attempt=9).event_type is EventType.RETRY_SCHEDULED


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_that_would_end_a_process_only_ends_the_attempt(error):
    assert outcome_of(raising(error)).event_type is EventType.RETRY_SCHEDULED


@pytest.mark.parametrize("how", ["raised", "returned"])
@pytest.mark.parametrize(
    ("asked", "event_type"),
    [
        (Snooze(30), EventType.SNOOZED),
        (Cancel("gone"), EventType.CANCELLED),
        (Retry(at=NOW), EventType.RETRY_SCHEDULED),
        (Retry(30), EventType.RETRY_SCHEDULED),
    ],
)
def test_a_handler_may_raise_or_return_snooze_cancel_and_retry(how, asked, event_type):
    assert outcome_of(raising(asked) if how == "raised" else lambda: asked).event_type is event_type


def test_a_reason_that_is_not_a_string_is_recorded_as_text():
    assert outcome_of(raising(Cancel(ValueError("gone")))).data == {"reason": "gone"}


def test_a_snooze_has_the_given_delay_up_to_ten_years():
    assert outcome_of(raising(Snooze(30))).delay == timedelta(seconds=30)
    assert outcome_of(raising(Snooze(timedelta.max))).delay == timedelta(days=3650)


@pytest.mark.parametrize("asked", [0, 0.5, -5, timedelta.min])
def test_a_snooze_lasts_at_least_a_second_to_prevent_a_loop_without_pauses(asked):
    assert outcome_of(raising(Snooze(asked))).delay == timedelta(seconds=1)


def test_a_task_left_by_a_stopping_worker_is_due_immediately():
    @Outbox().task(name="t")
    def leaves(ctx: TaskContext) -> None:
        ctx.checkpoint()

    claim, stopping = claim_of(leaves), threading.Event()
    stopping.set()
    outcome = execute(leaves, context_of(claim, leaves, stopping))
    assert (outcome.event_type, outcome.delay) == (EventType.SNOOZED, timedelta(0))


@pytest.mark.parametrize("stored", ["", "{", '{"n": 4', '[{"n": 4}]', "4", '{"n": 4, "n": 5}', "[" * 9999])
def test_unreadable_arguments_fail_the_task_without_a_retry(stored):
    outcome = outcome_of(lambda n: n, stored)
    assert (outcome.event_type, outcome.data["exception"]) == (EventType.FAILED, "outboxq.errors.UnreadableArguments")
    assert outcome.error.endswith("they were not written by enqueue()")


@pytest.mark.parametrize("stored", ["{}", '{"n": 4, "m": 5}'])
def test_arguments_that_another_release_may_accept_are_retried(stored):
    def handler(n: int) -> int:
        return n

    assert outcome_of(handler, stored).event_type is EventType.RETRY_SCHEDULED


def test_a_retry_at_a_given_time_counts_as_an_attempt():
    at = NOW + timedelta(hours=1)
    assert outcome_of(raising(Retry(at=at))).available_at == at
    assert outcome_of(raising(Retry(at=at)), attempt=3).event_type is EventType.FAILED


def test_a_retry_after_a_delay_has_that_delay_and_counts_as_an_attempt():
    outcome = outcome_of(raising(Retry(timedelta(minutes=5))))
    assert (outcome.delay, outcome.available_at) == (timedelta(minutes=5), None)
    assert outcome_of(raising(Retry(-5))).delay == timedelta(0)
    assert outcome_of(raising(Retry(30)), attempt=3).event_type is EventType.FAILED


@pytest.mark.parametrize("asked", [Retry(30), Retry(at=NOW + timedelta(seconds=30))], ids=["delay", "at"])
@pytest.mark.parametrize("stop", [tenacity.stop_after_delay(3600), tenacity.stop_before_delay(3600 + 25)])
def test_the_stop_of_a_policy_ends_the_retries_that_a_handler_asks_for(stop, asked):
    policy = RetryPolicy(max_attempts=None, stop=stop, retry=OSError)
    asking = {"retry": policy, "attempt": 9}
    an_hour_ago = {"first_started_at": NOW - timedelta(hours=1)}
    assert outcome_of(raising(asked), **asking).event_type is EventType.RETRY_SCHEDULED
    assert outcome_of(raising(asked), **asking, **an_hour_ago).event_type is EventType.FAILED


@pytest.mark.parametrize("given", [{}, {"delay": 30, "at": NOW}, {"delay": NOW}, {"delay": "30"}])
def test_a_retry_without_exactly_one_valid_time_is_refused_on_creation(given):
    with pytest.raises(InvalidArgument, match="Retry"):
        Retry(**given)


def test_a_naive_retry_time_is_refused_on_creation():
    with pytest.raises(ValueError, match="aware"):
        Retry(at=datetime(2030, 1, 1))  # noqa: DTZ001


def test_the_context_is_passed_to_handlers_that_accept_it():
    def handler(ctx: TaskContext, n: int) -> list[object]:
        return [ctx.attempt, ctx.max_attempts, ctx.queue, n]

    assert outcome_of(handler, '{"n": 7}', attempt=2).result == '[2,3,"default",7]'


def test_context_retry_at_and_snooze_end_the_attempt():
    def later(ctx: TaskContext) -> None:
        ctx.retry_at(NOW)

    def rest(ctx: TaskContext) -> None:
        ctx.snooze(1)

    assert outcome_of(later).event_type is EventType.RETRY_SCHEDULED
    assert outcome_of(rest).event_type is EventType.SNOOZED


def test_arguments_that_do_not_fit_fail_the_attempt_with_a_reason():
    outcome = outcome_of(lambda n: n, '{"m": 1}')
    assert outcome.event_type is EventType.RETRY_SCHEDULED
    assert (
        "which the function does not accept; if a newer release enqueued the task, deploy that release" in outcome.error
    )
    assert "redrive the task if it has already failed; if the parameter was renamed or removed" in outcome.error


@pytest.mark.parametrize(
    ("listed", "kind"),
    [(OSError, EventType.FAILED), ((OSError, PayloadError), EventType.RETRY_SCHEDULED)],
    ids=["without PayloadError", "with PayloadError"],
)
def test_the_retry_policy_decides_about_arguments_of_another_version(listed, kind):
    assert outcome_of(lambda n: n, '{"n": 1, "m": 1}', retry=RetryPolicy(retry=listed)).event_type is kind


def test_a_result_that_is_not_json_fails_the_task_without_a_retry():
    outcome = outcome_of(object)
    assert outcome.event_type is EventType.FAILED
    assert "PayloadError" in outcome.error


@pytest.mark.parametrize(
    ("handler", "kind"), [(raising(OSError()), OSError), (object, PayloadError), (lambda: 1, type(None))]
)
def test_the_context_contains_the_error_of_the_task(handler, kind):
    task = Outbox().task(name="t", retry=SOON)(handler)
    claim = claim_of(task)
    execute(task, context := context_of(claim, task, threading.Event()))
    assert type(context.error) is kind


@pytest.mark.parametrize("evil", ["\x00\ud800", "x" * 1_000_000, "\x1b]0;owned\x07"])
def test_any_message_can_be_recorded(evil):
    outcome = outcome_of(raising(RuntimeError(evil)))
    assert len(outcome.error.encode()) <= 1000
    assert "\x00" not in outcome.error
    assert len(outcome.data["traceback"].encode()) <= 8192


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
def test_an_error_that_cannot_be_printed_is_recorded(raised):
    class Broken(Exception):
        def __str__(self):
            raise raised("no")

    assert outcome_of(raising(Broken())).event_type is EventType.RETRY_SCHEDULED


def test_a_broken_policy_fails_the_task_with_both_errors():
    policy = RetryPolicy(wait=lambda state: 1 / 0)
    outcome = outcome_of(raising(ValueError("mine")), retry=policy)
    assert outcome.event_type is EventType.FAILED
    assert outcome.error == "ValueError: mine"
    assert "ZeroDivisionError" in outcome.data["policy_error"]


def test_the_traceback_contains_no_locals():
    def handler():
        password = "hunter2"  # noqa: F841
        raise ValueError("boom")

    assert "hunter2" not in outcome_of(handler).data["traceback"].replace('password = "hunter2"', "")


def test_the_time_for_a_timeout_starts_with_the_handler():
    seen = []

    def handler(ctx: TaskContext) -> None:
        seen.append(ctx.timed_out)

    task = Outbox().task(name="t", timeout=3600)(handler)
    claim = claim_of(task, timeout_seconds=3600.0)
    context = context_of(claim, task, threading.Event())
    assert context.began is None
    execute(task, context)
    assert context.began is not None
    assert seen == [False]


def test_a_checkpoint_ends_the_attempt_according_to_its_reason():
    def handler(ctx: TaskContext) -> None:
        ctx.checkpoint()
        raise AssertionError("not reached")

    def outcome(timeout=None, *, cancel=False, stopping=False):
        task = Outbox().task(name="t", retry=SOON)(handler)
        claim = claim_of(task, timeout_seconds=timeout)
        event = threading.Event()
        context = context_of(claim, task, event)
        if cancel:
            context.cancel_requested = True
        if stopping:
            event.set()
        return execute(task, context)

    late = outcome(timeout=-1.0)
    assert (late.event_type, late.data["exception"]) == (EventType.RETRY_SCHEDULED, "builtins.TimeoutError")
    cancelled = outcome(cancel=True)
    assert (cancelled.event_type, cancelled.data) == (EventType.CANCELLED, {"reason": "as asked"})
    given_back = outcome(stopping=True)
    assert (given_back.event_type, given_back.delay) == (EventType.SNOOZED, timedelta(0))
    assert given_back.data == {"reason": "the worker is stopping"}


def test_enqueueing_without_a_target_or_a_unit_of_work_fails():
    outbox = Outbox()
    other = outbox.task(name="other")(lambda: None)
    task = outbox.task(name="t", retry=RetryPolicy.never())(lambda: other.enqueue())  # noqa: PLW0108
    claim = claim_of(task)
    outcome = execute(task, context_of(claim, task, threading.Event()))
    assert outcome.event_type is EventType.FAILED
    assert "InvalidTarget: other: the current transaction is not known" in outcome.error


def test_a_context_is_current_only_while_its_handler_runs():
    from outboxq.context import current

    seen = []
    for error in (None, ValueError("boom"), SystemExit(1)):

        def handler(ctx: TaskContext, error=error) -> None:
            seen.append(current.get() is ctx)
            if error is not None:
                raise error

        outcome_of(handler)
        assert current.get() is None
    assert seen == [True] * 3


def test_the_retry_policy_also_applies_to_errors_after_the_handler():
    task = Outbox().task(name="t", retry=SOON)(lambda: None)
    first, last = claim_of(task), claim_of(task, attempt=3)
    retried = failed(task, context_of(first, task, threading.Event()), ValueError("at commit"))
    assert (retried.event_type, retried.delay) == (EventType.RETRY_SCHEDULED, timedelta(seconds=5))
    assert retried.error == "ValueError: at commit"
    assert (
        failed(task, context_of(last, task, threading.Event()), ValueError("at commit")).event_type is EventType.FAILED
    )


def test_the_time_in_the_handler_counts_if_the_transaction_cannot_be_committed():
    task = Outbox().task(name="t", retry=RetryPolicy(wait=5, stop=tenacity.stop_after_delay(60)))(lambda: None)
    context = context_of(claim_of(task), task, threading.Event())
    assert failed(task, context, ValueError("at commit")).event_type is EventType.RETRY_SCHEDULED
    context.began = time.monotonic() - 61
    assert failed(task, context, ValueError("at commit")).event_type is EventType.FAILED
