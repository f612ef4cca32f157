"""The OpenTelemetry hook: traces that lead from each enqueue to its attempts, and metrics for both.

Names and attributes follow OpenTelemetry's conventions for messaging. Only the API is imported: the opentelemetry-api
package, from the `outboxq[opentelemetry]` extra. In a program without OpenTelemetry's SDK, the API does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from ..context import TaskContext
from ..integration.hooks import Hook, Sending, WorkerInfo
from ..model import Outcome, duration
from ..model.records import OUTCOMES
from .tracing import error_of, with_baggage

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError(
        f"outboxq.contrib.opentelemetry needs opentelemetry-api; run: pip install 'outboxq[opentelemetry]' ({error})",
        name=error.name,
    ) from error

SAME_TRACE_FOR: Final = timedelta(minutes=5)
"""The maximum time from an enqueue to the start of an attempt in the same trace. An attempt that starts later begins a
new trace.
"""

_SEND_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The bucket bounds in seconds that the conventions recommend."""
_PROCESS_BOUNDS = (*_SEND_BOUNDS, 30.0, 60.0, 300.0, 900.0, 3600.0)
_LOST = "outboxq.errors.LeaseLost"


class OpenTelemetryHook(Hook):
    """A hook that creates a span for each enqueue and each attempt, and carries the trace from the enqueue to the
    attempts.

    An enqueue's span is called `send QUEUE`, and an emit's span `send TOPIC`; both have the kind PRODUCER. An attempt's
    span is called `process QUEUE` and has the kind CONSUMER. The task's headers carry the context in the format of the
    program's propagator: `traceparent`, `tracestate` and `baggage`. The first attempt continues the enqueue's trace. A
    retry, a schedule tick, and a task that starts more than `same_trace_for` after the enqueue begin a new trace with a
    link to the enqueue. Task arguments are never recorded.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        same_trace_for: timedelta | float = SAME_TRACE_FOR,
    ) -> None:
        """Create a hook for `Outbox(hooks=[…])`.

        Args:
            tracer_provider: The tracer provider. None means the program's, even if it is set later.
            meter_provider: The meter provider. None means the program's, even if it is set later.
            same_trace_for: The maximum time from an enqueue to the start of an attempt in the same trace. An attempt
                that starts later begins a new trace.

        Raises InvalidArgument if `same_trace_for` is not a time span.
        """
        self._same_trace_for = duration(same_trace_for, "same_trace_for")
        self._tracer = trace.get_tracer("outboxq", tracer_provider=tracer_provider)
        meter = metrics.get_meter("outboxq", meter_provider=meter_provider)

        def seconds(name: str, text: str, bounds: Sequence[float]) -> metrics.Histogram:
            return meter.create_histogram(name, unit="s", description=text, explicit_bucket_boundaries_advisory=bounds)

        def number(name: str, text: str) -> metrics.Counter:
            return meter.create_counter(name, unit="{message}", description=text)

        words = "Duration of an enqueue, an enqueue_many or an emit."
        self._send_seconds = seconds("messaging.client.operation.duration", words, _SEND_BOUNDS)
        self._process_seconds = seconds("messaging.process.duration", "Duration of an attempt.", _PROCESS_BOUNDS)
        self._sent = number("messaging.client.sent.messages", "Number of enqueued tasks.")
        self._consumed = number("messaging.client.consumed.messages", "Number of started attempts.")
        self._labels: dict[UUID, str] = {}
        """The labels of this process's workers."""
        self._attempts: dict[int, _Attempt] = {}
        """The running attempts, keyed by the identity of their contexts."""

    def worker_started(self, worker: WorkerInfo) -> None:
        self._labels[worker.id] = worker.label

    def worker_stopped(self, worker: WorkerInfo) -> None:
        self._labels.pop(worker.id, None)

    @contextmanager
    def sending(self, sent: Sending) -> Iterator[Mapping[str, str]]:
        common = _common("send", sent.topic or sent.queue or "")
        attributes = {**common, **_of_group(sent.pipeline_execution_id)}
        if sent.pipeline_execution_id is None:
            attributes["messaging.message.id"] = str(sent.ids[0])
        if len(set(sent.task_names)) == 1:
            attributes["messaging.outboxq.task"] = sent.task_names[0]
        name = f"send {common['messaging.destination.name']}"
        with self._tracer.start_as_current_span(
            name, kind=SpanKind.PRODUCER, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            began, failure, count = time.perf_counter(), {}, sent.count or 1
            try:
                propagate.inject(carrier := dict[str, str]())
                yield with_baggage(carrier, sent.headers)
                count = sum(handle.created or handle.replaced for handle in sent.handles)
                if sent.pipeline_execution_id is not None:
                    span.set_attribute("messaging.batch.message_count", len(sent.handles))
                elif sent.handles:  # if the idempotency key was taken, this is the task that has it
                    span.set_attribute("messaging.message.id", str(sent.handles[0].id))
            except BaseException as error:
                failure = _record(span, error)
                raise
            finally:
                self._send_seconds.record(time.perf_counter() - began, common | failure)
                self._sent.add(count, _without_type(common) | failure)

    @contextmanager
    def handling(self, context: TaskContext) -> Iterator[None]:
        parent, links = self._origin(context)
        token = contexts.attach(parent)
        try:
            span = self._begin(context, parent, links)
            of_task = _of_task(context)
            self._consumed.add(1, _without_type(of_task))
            self._attempts[id(context)] = attempt = _Attempt(span)
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                try:
                    yield
                finally:
                    self._attempts.pop(id(context), None)
                    if not context.was_killed:  # otherwise `ended` ends the span, because the handler may never return
                        self._end(attempt, of_task)
        finally:
            contexts.detach(token)

    def ended(self, context: TaskContext, outcome: Outcome, seconds: float) -> None:
        attempt = self._attempts.get(id(context))
        if context.was_killed:
            if attempt is None:  # it ran in a child process
                since = time.time_ns() - round(seconds * 1e9)
                attempt = _Attempt(self._begin(context, *self._origin(context), since=since))
            attempt.began = time.perf_counter() - seconds
        if attempt is None:  # this hook's `handling` failed
            return
        attempt.has_ended = True
        attempt.span.set_attribute("messaging.outboxq.outcome", OUTCOMES[outcome.event_type])
        if (error := error_of(context, outcome)) is not None:
            attempt.failure = _record(attempt.span, error)
        if context.was_killed:
            self._attempts.pop(id(context), None)
            self._end(attempt, _of_task(context))

    def _origin(self, context: TaskContext) -> tuple[contexts.Context, list[Link]]:
        """Return the parent context for the attempt's span, and the link to the enqueue."""
        base = trace.set_span_in_context(INVALID_SPAN)  # a task's only parent is its enqueue
        parent = propagate.extract(context.headers, context=base)
        origin = trace.get_current_span(parent).get_span_context()
        waited = context.claim.started_at - context.created_at
        # After a long wait, a backend may have closed the enqueue's trace.
        if context.attempt > 1 or context.schedule is not None or waited > self._same_trace_for:
            parent = trace.set_span_in_context(INVALID_SPAN, parent)
        return parent, [Link(origin)] if origin.is_valid else []

    def _begin(
        self, context: TaskContext, parent: contexts.Context, links: list[Link], *, since: int | None = None
    ) -> Span:
        """Start an attempt's span, now or at `since` (in nanoseconds)."""
        return self._tracer.start_span(
            f"process {context.queue}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=_common("process", context.queue) | self._of(context),
            links=links,
            start_time=since,
        )

    def _end(self, attempt: _Attempt, of_task: Mapping[str, str]) -> None:
        span = attempt.span
        if not attempt.has_ended:  # the outcome was discarded
            attempt.failure = {"error.type": _LOST}
            span.set_attribute("error.type", _LOST)
            span.set_status(Status(StatusCode.ERROR, "the lease was lost"))
        self._process_seconds.record(time.perf_counter() - attempt.began, {**of_task, **attempt.failure})
        span.end()

    def _of(self, context: TaskContext) -> dict[str, Any]:
        """Return the attributes of an attempt's span, except those that all operations have."""
        grouped = context.pipeline_execution_id != context.task_id
        found = {
            "messaging.message.id": str(context.task_id),
            "messaging.client.id": self._labels.get(context.claim.worker_id),
            "messaging.outboxq.task": context.task_name,
            "messaging.outboxq.attempt": context.attempt,
            "messaging.outboxq.max_attempts": context.max_attempts,
            "messaging.outboxq.schedule": context.schedule,
            **_of_group(context.pipeline_execution_id if grouped else None),
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass
class _Attempt:
    """A running attempt."""

    span: Span
    began: float = field(default_factory=time.perf_counter)
    has_ended: bool = False
    """True once the outcome is known."""
    failure: dict[str, str] = field(default_factory=dict)
    """The attribute that describes the failure, for the metrics."""


def _common(operation: str, destination: str) -> dict[str, str]:
    """Return the attributes that spans and metrics share."""
    return {
        "messaging.system": "outboxq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }


def _of_task(context: TaskContext) -> dict[str, str]:
    """Return the attributes that an attempt's span and the metrics share."""
    return _common("process", context.queue) | {"messaging.outboxq.task": context.task_name}


def _without_type(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes for a counter. By convention, a counter does not have an operation type."""
    return {name: value for name, value in attributes.items() if name != "messaging.operation.type"}


def _of_group(pipeline_execution_id: UUID | None) -> dict[str, str]:
    """Return the attribute that identifies the tasks that were written together."""
    return {} if pipeline_execution_id is None else {"messaging.message.conversation_id": str(pipeline_execution_id)}


def _record(span: Span, error: BaseException) -> dict[str, str]:
    """Record an operation's failure in the span, and return the failure's attribute for metrics."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, name))
    span.record_exception(error)
    return {"error.type": name}
