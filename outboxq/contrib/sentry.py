"""The Sentry hook: queue spans in one trace, errors of tasks that failed for good, and monitors of schedules.

It needs the package sentry-sdk: `outboxq[sentry]`. Until the program calls `sentry_sdk.init()`, it does nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

try:
    import sentry_sdk
    from sentry_sdk.utils import event_from_exception
except ImportError as error:
    raise ImportError(
        f"outboxq.contrib.sentry needs sentry-sdk; run: pip install 'outboxq[sentry]' ({error})", name=error.name
    ) from error

from ..context import TaskContext
from ..integration.hooks import Hook, Sending
from ..model import EventType, Outcome, duration
from . import sentry_spans as spans
from .baggage import with_baggage
from .outcomes import error_of
from .sentry_monitors import CheckIn

_STATUSES = {EventType.CANCELLED: "cancelled"}
"""The statuses of spans whose attempt neither completed nor failed. Sentry counts others than `ok` and `cancelled` as failures."""


class SentryHook(Hook):
    """A hook that makes Sentry's queue spans, and reports the error of each task that failed for good.

    An enqueue or emit is a span `queue.publish`, if it is made inside a span, such as a request. An attempt is a transaction with the task's name, and a span `queue.process` in
    it; both are in the trace of the enqueue. An event of an attempt has the tags `task`, `queue` and `attempt`. The arguments of
    the task are attached only if the program has set `send_default_pii=True`, or `queues` of Sentry's `data_collection`.
    """

    def __init__(
        self,
        *,
        every_attempt: bool = False,
        monitor_schedules: bool = False,
        checkin_margin: timedelta | float = timedelta(minutes=5),
    ) -> None:
        """Make a hook for `Outbox(hooks=[…])`.

        Args:
            every_attempt: Report the error of each failed attempt, and not of the last one alone.
            monitor_schedules: Check in with a cron monitor at each tick of a schedule. Sentry creates the monitor, and may charge
                for it.
            checkin_margin: The time after a tick from which on Sentry takes it for missed: longer than the schedule's jitter.

        Raises InvalidArgument if `checkin_margin` is no span of time.
        """
        self._every_attempt = every_attempt
        self._monitors = monitor_schedules
        self._margin = duration(checkin_margin, "checkin_margin")
        self._running: dict[int, _Attempt] = {}
        """The attempts that run, by the identity of their contexts."""

    @contextmanager
    def sending(self, sent: Sending) -> Iterator[Mapping[str, str] | None]:
        if not sentry_sdk.get_client().is_active() or not spans.is_inside():
            yield None
            return
        name = sent.topic or sent.task_names[0]
        data: dict[str, object] = {
            "messaging.system": "outboxq",
            "messaging.destination.name": sent.topic or sent.queue,
            "messaging.message.body.size": sent.size,
        }
        if sent.pipeline_execution_id is None:
            data["messaging.message.id"] = str(sent.ids[0])
        elif sent.count is not None:
            data["messaging.batch.message_count"] = sent.count
        with spans.span(spans.OP_PUBLISH, name, data) as span:
            yield with_baggage(span.headers(), sent.headers)
            if sent.pipeline_execution_id is not None:
                span.set("messaging.batch.message_count", len(sent.handles))
            elif sent.handles:  # a taken idempotency key has its own task
                span.set("messaging.message.id", str(sent.handles[0].id))

    @contextmanager
    def handling(self, context: TaskContext) -> Iterator[None]:
        if not sentry_sdk.get_client().is_active():
            yield
            return
        with self._attempt(context) as attempt:
            if attempt.check_in is not None:
                attempt.check_in.begin()
            self._running[id(context)] = attempt
            attempt.end_as("aborted")  # unless it ends: its outcome is discarded if its lease was lost
            try:
                # `ended` has set the status: a Retry, for instance, is no failure.
                with suppress(Exception):
                    yield
            finally:
                self._running.pop(id(context), None)

    def ended(self, context: TaskContext, outcome: Outcome, seconds: float) -> None:
        attempt = self._running.get(id(context))
        if context.was_killed and sentry_sdk.get_client().is_active():
            # Its own spans are in a child process that is gone, or in a thread that does not end.
            self._running.pop(id(context), None)
            with self._attempt(context) as late:
                self._note(late, context, outcome, seconds)
                late.end_after(seconds)
        elif attempt is not None:  # else Sentry is not set up
            self._note(attempt, context, outcome, seconds)

    def _note(self, attempt: _Attempt, context: TaskContext, outcome: Outcome, seconds: float) -> None:
        error = error_of(context, outcome)
        attempt.end_as(_STATUSES.get(outcome.event_type, "ok") if error is None else "internal_error")
        if attempt.check_in is not None:
            attempt.check_in.end(outcome, seconds)
        is_final = outcome.event_type is EventType.FAILED
        if error is not None and (is_final or self._every_attempt):
            _capture(error, is_final=is_final)

    @contextmanager
    def _attempt(self, context: TaskContext) -> Iterator[_Attempt]:
        """Open the scope and the spans of an attempt."""
        data = _data(context)
        sampling = {"task": context.task_name, "queue": context.queue, "attempt": context.attempt}
        with ExitStack() as stack:
            scope = stack.enter_context(sentry_sdk.isolation_scope())
            _describe(scope, context)
            segment = stack.enter_context(spans.transaction(context.task_name, context.headers, data, sampling))
            process = stack.enter_context(spans.span(spans.OP_PROCESS, context.task_name, data))
            check_in = CheckIn.of(context, self._margin) if self._monitors else None
            yield _Attempt(spans=(segment, process), check_in=check_in)


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """An attempt that runs."""

    spans: tuple[spans.AnySpan, ...]
    check_in: CheckIn | None

    def end_as(self, status: str) -> None:
        for span in self.spans:
            span.end_as(status)

    def end_after(self, seconds: float) -> None:
        """End the spans now, as if they had begun so many seconds ago."""
        for span in reversed(self.spans):
            span.end_after(seconds)


def _data(context: TaskContext) -> dict[str, object]:
    """Return the data fields of an attempt, under the names that Sentry's page about queues reads."""
    # Where the due time is not known, that of the enqueue: they differ for a task that was delayed or is tried again.
    since = context.claim.waits_since or context.created_at
    waited = max(timedelta(0), context.claim.started_at - since)
    return {
        "messaging.system": "outboxq",
        "messaging.message.id": str(context.task_id),
        "messaging.destination.name": context.queue,
        "messaging.message.retry.count": context.attempt - 1,
        "messaging.message.body.size": len(context.claim.args.encode()),
        "messaging.message.receive.latency": waited / timedelta(milliseconds=1),
    }


def _describe(scope: sentry_sdk.Scope, context: TaskContext) -> None:
    """Describe the task in the scope of its attempt, for all events in it."""
    scope.clear_breadcrumbs()
    scope.set_tag("task", context.task_name)
    scope.set_tag("queue", context.queue)
    scope.set_tag("attempt", context.attempt)
    about: dict[str, Any] = {
        "task_id": str(context.task_id),
        "pipeline_id": str(context.pipeline_execution_id),
        "max_attempts": context.max_attempts,
        "topic": context.topic,
    }
    if _may_have_arguments():
        with suppress(ValueError, RecursionError):  # a row of foreign SQL
            about["args"] = json.loads(context.claim.args)
    scope.set_context("outboxq", about)


def _may_have_arguments() -> bool:
    client = sentry_sdk.get_client()
    try:
        from sentry_sdk.utils import has_data_collection_enabled
    except ImportError:  # a release before that setting
        return client.should_send_default_pii()
    if has_data_collection_enabled(client.options):
        return bool(client.options["data_collection"]["queues"])
    return client.should_send_default_pii()


def _capture(error: BaseException, *, is_final: bool) -> None:
    mechanism = {"type": "outboxq", "handled": not is_final}
    event, hint = event_from_exception(error, sentry_sdk.get_client().options, mechanism)
    for value in event["exception"]["values"]:
        for frame in (value.get("stacktrace") or {}).get("frames", ()):
            if str(frame.get("module")).startswith("outboxq."):  # its variables are the task's arguments
                frame.pop("vars", None)
    sentry_sdk.capture_event(event, hint)
