"""Runs the function of a task: one claim in, one outcome out. Only this module calls user code, and it knows no database."""

from __future__ import annotations

import threading
import time
import traceback
from datetime import timedelta
from typing import Any

from ..context import Leave, TaskContext, current
from ..errors import ConfigurationError, PayloadError, UnreadableArguments
from ..model import Cancel, Claim, EventType, Outcome, Retry, Snooze
from ..payload.parameters import dump_result, sanitize
from ..task import Task

_ERROR_BYTES = 1000
_TRACEBACK_BYTES = 8192
SHORTEST_SNOOZE = timedelta(seconds=1)
"""The shortest delay of a Snooze. A handler that asked to run again at once, each time, would make hundreds of events a second."""
_LONGEST = timedelta(days=3650)  # what is added to a clock must stay a date


def context_of(claim: Claim, task: Task[..., Any], stopping: threading.Event) -> TaskContext:
    """Return the context in which the claim's task runs. The worker keeps it, to tell the handler what happens meanwhile."""
    bound = task.retry.max_attempts if claim.max_attempts is None else claim.max_attempts
    return TaskContext(claim, max_attempts=bound, stopping=stopping, outbox=task.outbox)


def execute(claim: Claim, task: Task[..., Any], context: TaskContext) -> Outcome:
    """Run the task's function and return the outcome of its claim. Never raises: whatever the function does is an outcome.

    SystemExit, KeyboardInterrupt and the like end this attempt as any error does; they do not end the worker.
    """
    began = time.monotonic()
    context.begin()
    token = current.set(context)
    try:
        return _run(claim, task, context, began)
    except BaseException as error:  # noqa: BLE001 - an exception of the user's that cannot even be looked at
        context.error = error
        return _failed_for_good(claim, _describe(error))
    finally:
        context.end()
        current.reset(token)


def failed(claim: Claim, task: Task[..., Any], error: Exception) -> Outcome:
    """Return the outcome of a task whose handler returned, but whose transaction could not be committed."""
    return _failed(claim, task, error, elapsed=claim.started_at - claim.first_started_at)


def _run(claim: Claim, task: Task[..., Any], context: TaskContext, began: float) -> Outcome:
    try:
        try:
            arguments = task.parameters.load(claim.args)
        except UnreadableArguments as error:
            context.error = error
            return _failed_for_good(claim, _describe(error))
        result = task.function(context, **arguments) if task.takes_context else task.function(**arguments)
        if isinstance(result, Snooze | Cancel | Retry):
            raise result  # returned or raised, it means the same
        return _completed(claim, task, result, context)
    except Snooze as request:
        return _snoozed(claim, request)
    except Cancel as request:
        return _cancelled(claim, request)
    except BaseException as error:  # noqa: BLE001
        context.error = error
        elapsed = claim.started_at - claim.first_started_at + timedelta(seconds=time.monotonic() - began)
        return _failed(claim, task, error, elapsed=elapsed)


def released(claim: Claim, reason: str, *, delay: timedelta = timedelta(0), **data: object) -> Outcome:
    """Return the outcome that gives a task back: no attempt is used, and another worker may claim it after the delay."""
    return Outcome(claim=claim, event_type=EventType.RELEASED, delay=delay, data={"reason": reason, **data})


def unwritable(outcome: Outcome, refused: Exception) -> Outcome:
    """Return a failure that any database can store, in place of an outcome that it refused."""
    why = str(getattr(refused, "orig", None) or refused).partition("\n")[0]
    text = f"the database refused its outcome {outcome.event_type}: {why}".encode("ascii", "backslashreplace").decode()
    error = sanitize(text, limit=_ERROR_BYTES)
    return Outcome(claim=outcome.claim, event_type=EventType.FAILED, error=error, data={"error": error})


STOPPED = "the worker stopped"


def _completed(claim: Claim, task: Task[..., Any], result: object, context: TaskContext) -> Outcome:
    try:
        stored = dump_result(result, name=task.name)
    except PayloadError as error:
        # The handler did its work, and would do it again: a retry cannot help, silence would lose the result.
        context.error = error
        return _failed_for_good(claim, _describe(error))
    return Outcome(claim=claim, event_type=EventType.COMPLETED, result=stored)


def _snoozed(claim: Claim, request: Snooze) -> Outcome:
    least = timedelta(0) if isinstance(request, Leave) else SHORTEST_SNOOZE
    return Outcome(claim=claim, event_type=EventType.SNOOZED, delay=_bounded_delay(max(request.delay, least)))


def _cancelled(claim: Claim, request: Cancel) -> Outcome:
    data = {"reason": sanitize(request.reason)} if request.reason else {}
    return Outcome(claim=claim, event_type=EventType.CANCELLED, data=data)


def _failed(claim: Claim, task: Task[..., Any], error: BaseException, *, elapsed: timedelta) -> Outcome:
    details = _describe(error)
    try:
        if isinstance(error, Retry):
            return _retried(claim, task, error, details)
        delay = task.retry.next_delay(
            attempt=claim.attempt, error=error, max_attempts=claim.max_attempts, elapsed=elapsed
        )
    except ConfigurationError as broken:  # the policy itself: the task's own error must not be lost over it
        return _failed_for_good(claim, {**details, "policy_error": sanitize(str(broken), limit=_ERROR_BYTES)})
    if delay is None:
        return _failed_for_good(claim, details)
    return Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error=details["error"], delay=delay, data=details)


def _retried(claim: Claim, task: Task[..., Any], request: Retry, details: dict[str, str]) -> Outcome:
    """Return the retry that the handler has asked for, or a failure if no attempt is left."""
    bound = task.retry.max_attempts if claim.max_attempts is None else claim.max_attempts
    if bound is not None and claim.attempt >= bound:
        return _failed_for_good(claim, details)
    return Outcome(
        claim=claim,
        event_type=EventType.RETRY_SCHEDULED,
        error=details["error"],
        available_at=request.at,
        delay=_bounded_delay(request.delay or timedelta(0)),
        data=details,
    )


def _bounded_delay(delay: timedelta) -> timedelta:
    """Return the delay, but at least zero and at most what a date can hold."""
    return min(max(delay, timedelta(0)), _LONGEST)


def _failed_for_good(claim: Claim, details: dict[str, str]) -> Outcome:
    return Outcome(claim=claim, event_type=EventType.FAILED, error=details["error"], data=details)


def _describe(error: BaseException) -> dict[str, str]:
    """Return what the event stores of an error: without local variables, cut to size, and in characters that databases take."""
    kind = type(error)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not keep the failure from being recorded
        message = "(its message cannot be read)"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001
        trace = ""
    return {
        "error": sanitize(f"{kind.__qualname__}: {message}" if message else kind.__qualname__, limit=_ERROR_BYTES),
        "exception": f"{kind.__module__}.{kind.__qualname__}",
        "traceback": sanitize(trace, limit=_TRACEBACK_BYTES),
    }
