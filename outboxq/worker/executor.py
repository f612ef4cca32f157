"""Runs a task's function for a claim, and returns the outcome. Only this module calls users' functions. The module does
not use a database.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from ..context import Asleep, Leave, TaskContext, current
from ..errors import ConfigurationError, PayloadError, StepRefused, UnreadableArguments, WebhookFailed
from ..model import Cancel, Claim, EventType, Outcome, Retry, Snooze, TaskTimeout, forks
from ..payload.parameters import dump_result, sanitize
from ..task import Task, takes_context
from .timeouts import TimeLimit

_ERROR_BYTES = 1000
_TRACEBACK_BYTES = 8192
SHORTEST_SNOOZE = timedelta(seconds=1)
"""The shortest delay for a Snooze. Without this limit, a handler that always asks to run again immediately would write
hundreds of events per second.
"""
_COMPLETED = EventType.COMPLETED
"""An enum member that is looked up once, as in `task_runner.py`."""
_LONGEST = timedelta(days=3650)  # keeps now + delay within the range of datetime


def context_of(
    claim: Claim, task: Task[..., Any], stopping: threading.Event, *, keeps_log: bool = False
) -> TaskContext:
    """Return the context for the claim's handler. The worker keeps the context, and uses it to inform the running
    handler, for example of a lost lease.

    With `keeps_log`, the lines that the handler logs are kept, so that they can be stored with the event that records
    how the handler ended.
    """
    bound = task.retry_policy.max_attempts if claim.max_attempts is None else claim.max_attempts
    context = TaskContext(claim, max_attempts=bound, stopping=stopping, outbox=task.outbox)
    context.keeps_log = keeps_log
    return context


def execute(task: Task[..., Any], context: TaskContext, limit: TimeLimit | None = None) -> Outcome:
    """Run the task's function and return the outcome of its claim. `execute` never raises an error, because each error
    in the function becomes an outcome.

    With a `limit`, TaskTimeout may be raised in the function, and only there. SystemExit, KeyboardInterrupt and similar
    exceptions end this attempt as any other error would, and do not end the worker.
    """
    context.began = time.monotonic()
    context.thread = threading.get_ident()
    token = current.set(context)
    try:
        outcome = _run(task, context, limit)
        # Skipped for a handler without notes: this call was 1 % of the function calls for a task.
        return outcome if context.handler_log is None and context.reported is None else with_notes(outcome, context)
    except BaseException as error:  # noqa: BLE001 - a user's exception may fail even while it is being described
        return _failed_for_good(context, error)
    finally:
        context.ended = time.monotonic()
        current.reset(token)


def call_step(call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], context: TaskContext) -> Any:
    """Call a step's function and return its result. The function receives the context if its first parameter is
    annotated with TaskContext. A Snooze, Cancel or Retry that the function returns is raised, because it is meant for
    the handler.
    """
    function, args, kwargs = call
    result = _called(function, (context, *args) if wants_context(function) else args, kwargs)
    if isinstance(result, Snooze | Cancel | Retry):
        raise result
    return result


def wants_context(function: Callable[..., Any]) -> bool:
    """Return whether the function takes the context as its first argument. A function whose signature is unknown is
    assumed not to take the context.
    """
    try:
        if type(function) is not FunctionType:
            return takes_context(function)
        if (known := _WANTING.get(function)) is None:
            known = _WANTING[function] = takes_context(function)
        return known
    except (ValueError, TypeError, AttributeError):
        return False


_WANTING: WeakKeyDictionary[FunctionType, bool] = WeakKeyDictionary()
"""True for step functions that take the context. The keys are weak, because a step function may be a closure created in
one run.

Without this cache, a step in a module with `from __future__ import annotations` took 56 us longer (`python -m timeit -s
"from outboxq.task.task import takes_context" -s "from outboxq import TaskContext" -s "def f(ctx: 'TaskContext'): ..."
"takes_context(f)"`).
"""


def failed(task: Task[..., Any], context: TaskContext, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that raised this error: a retry or a failure."""
    claim, asked, available_at = context.claim, None, None
    context.error = error
    try:
        seconds = 0.0 if context.began is None else time.monotonic() - context.began
        cause = TimeoutError(str(error)) if isinstance(error, TaskTimeout) else error
        elapsed = claim.started_at - claim.first_started_at + timedelta(seconds=seconds)
        if isinstance(error, Retry):
            available_at = error.at
            until = None if available_at is None else available_at - claim.started_at - timedelta(seconds=seconds)
            asked = _bounded_delay(until or error.delay or timedelta(0))
        decide = partial(
            task.retry_policy.next_delay,
            attempt=claim.attempt,
            error=cause,
            max_attempts=claim.max_attempts,
            asked=asked,
        )
        delay = decide(elapsed=elapsed)
        is_too_late = delay is None and task.retry_policy.has_stop and decide(elapsed=timedelta(0)) is not None
        if is_too_late and context.step_runner is not None:
            # Asked last, because the task's history and its sleeps are read from the database.
            delay = decide(elapsed=elapsed - context.step_runner.uncounted_time(context))
        if delay is not None and isinstance(error, WebhookFailed) and error.retry_after is not None:
            delay = max(delay, error.retry_after)
    except ConfigurationError as broken:  # an error in the policy must not hide the task's own error
        return _failed_for_good(context, error, policy_error=sanitize(str(broken), limit=_ERROR_BYTES))
    if delay is None:
        return _failed_for_good(context, error)
    data = _describe(error)
    return Outcome(
        claim=claim,
        event_type=EventType.RETRY_SCHEDULED,
        error=data["error"],
        available_at=available_at,
        delay=delay if available_at is None else timedelta(0),
        data=data,
    )


def released(claim: Claim, reason: str, *, delay: timedelta = timedelta(0), **data: object) -> Outcome:
    """Return the outcome that releases a task. The release does not use an attempt, and another worker may claim the
    task after the delay.
    """
    return Outcome(claim=claim, event_type=EventType.RELEASED, delay=delay, data={"reason": reason, **data})


def with_notes(outcome: Outcome, context: TaskContext) -> Outcome:
    """Return the outcome with the attempt's progress and handler log, to be stored in the event."""
    if context.handler_log is None and context.reported is None:
        return outcome
    notes: dict[str, object] = {} if context.handler_log is None else context.handler_log.as_data()
    if context.reported is not None:
        notes["progress"] = context.reported.as_data()
    return replace(outcome, data={**outcome.data, **notes}) if notes else outcome


def unwritable(outcome: Outcome, refused: Exception) -> Outcome:
    """Return a failure that every database can store, in place of an outcome that the database refused."""
    why = str(getattr(refused, "orig", None) or refused).partition("\n")[0]
    text = f"the database refused its outcome {outcome.event_type}: {why}".encode("ascii", "backslashreplace").decode()
    error = sanitize(text, limit=_ERROR_BYTES)
    return Outcome(claim=outcome.claim, event_type=EventType.FAILED, error=error, data={"error": error})


STOPPED = "the worker stopped"


def _run(task: Task[..., Any], context: TaskContext, limit: TimeLimit | None) -> Outcome:
    claim = context.claim
    try:
        try:
            arguments = task.parameters.load(claim.args)
        except UnreadableArguments as error:
            return _failed_for_good(context, error)
        call = task.function if limit is None else partial(limit.call, task.function)
        result = _called(call, (context,) if task.takes_context else (), arguments)
        if isinstance(result, Snooze | Cancel | Retry):
            raise result  # returning a Snooze, Cancel or Retry means the same as raising it
        try:
            stored = dump_result(result, name=task.name)
        except PayloadError as error:
            # The handler has done its work, and a retry would only repeat it; completing would lose the result.
            return _failed_for_good(context, error)
        return Outcome(claim=claim, event_type=_COMPLETED, result=stored)
    except Asleep as request:
        data = {"step": request.name}
        return Outcome(claim=claim, event_type=EventType.SNOOZED, available_at=request.until, data=data)
    except StepRefused as error:  # another attempt would call the same functions and would be refused too
        return _failed_for_good(context, error)
    except Leave as request:
        return Outcome(claim=claim, event_type=EventType.SNOOZED, data={"reason": request.reason})
    except Snooze as request:
        delay = _bounded_delay(max(request.delay, SHORTEST_SNOOZE))
        return Outcome(claim=claim, event_type=EventType.SNOOZED, delay=delay)
    except Cancel as request:
        data = {"reason": sanitize(request.reason)} if request.reason else {}
        return Outcome(claim=claim, event_type=EventType.CANCELLED, data=data)
    except BaseException as error:  # noqa: BLE001
        return failed(task, context, error)


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function and return its result. If the function forks this process, the child process ends in this call.

    Otherwise, the child would continue as a second worker on the same connections, and would record the outcome of this
    process's task.
    """
    depth = forks.depth
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        if forks.depth != depth:
            forks.end_fork(error)
        raise
    if forks.depth != depth:
        forks.end_fork(None)
    return result


def _bounded_delay(delay: timedelta) -> timedelta:
    """Return the delay, limited to the range from zero to ten years."""
    return min(max(delay, timedelta(0)), _LONGEST)


def _failed_for_good(context: TaskContext, error: BaseException, **more: str) -> Outcome:
    context.error = error
    data = {**_describe(error), **more}
    return Outcome(claim=context.claim, event_type=EventType.FAILED, error=data["error"], data=data)


def _describe(error: BaseException) -> dict[str, str]:
    """Return the strings that describe an error in its event. The strings do not contain local variables, are
    truncated, and contain only characters that databases accept.
    """
    kind = type(error)
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - a broken __str__ must not keep the failure from being recorded
        message = "(its message cannot be read)"
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001
        trace = ""
    return {
        "error": sanitize(f"{kind.__qualname__}: {message}" if message else kind.__qualname__, limit=_ERROR_BYTES),
        "exception": f"{kind.__module__}.{kind.__qualname__}",
        "traceback": sanitize(trace, limit=_TRACEBACK_BYTES),
    }
