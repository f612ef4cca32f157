"""The Sentry hook: queue spans in one trace, the errors from tasks that failed permanently, and cron monitors for
schedules.

The hook needs the sentry-sdk package, which the `outboxq[sentry]` extra installs. It does nothing until the program
calls `sentry_sdk.init()`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from ..context import TaskContext
from ..integration.hooks import Hook, Sending
from ..model import EventType, Outcome, duration
from ..model.schedules import RULE_HEADER, SCHEDULE_HEADER, TICK_HEADER, ZONE_HEADER
from .tracing import error_of, with_baggage

try:
    import sentry_sdk
    from sentry_sdk.crons import capture_checkin
    from sentry_sdk.utils import event_from_exception
except ImportError as error:
    raise ImportError(
        f"outboxq.contrib.sentry needs sentry-sdk; run: pip install 'outboxq[sentry]' ({error})", name=error.name
    ) from error

if TYPE_CHECKING:
    from sentry_sdk._types import MonitorConfig, MonitorConfigSchedule, MonitorConfigScheduleUnit

_STATUSES = {EventType.CANCELLED: "cancelled"}
"""Span statuses for attempts that neither completed nor failed. Sentry counts every status except `ok` and `cancelled`
as a failure.
"""


class SentryHook(Hook):
    """A hook that creates Sentry's queue spans, and reports the error from each task that has failed permanently.

    An enqueue or emit inside another span, such as a request, becomes a `queue.publish` span. An attempt becomes a
    transaction that is named after the task and contains a `queue.process` span. Both spans belong to the enqueue's
    trace. Events from an attempt have the tags `task`, `queue` and `attempt`. The task's arguments are attached only if
    the program sets `send_default_pii=True`, or `queues` in Sentry's `data_collection`.
    """

    def __init__(
        self,
        *,
        every_attempt: bool = False,
        monitor_schedules: bool = False,
        checkin_margin: timedelta | float = timedelta(minutes=5),
    ) -> None:
        """Create a hook for `Outbox(hooks=[…])`.

        Args:
            every_attempt: Report the error from each failed attempt, not only from the last one.
            monitor_schedules: Check in with a cron monitor at each tick of a schedule. Sentry creates the monitor, and may
                charge for it.
            checkin_margin: The time after which Sentry reports a tick without a check-in as missed. This time must exceed
                the schedule's jitter.

        Raises InvalidArgument if `checkin_margin` is not a time span.
        """
        self._every_attempt = every_attempt
        self._monitors = monitor_schedules
        self._margin = duration(checkin_margin, "checkin_margin")
        self._running: dict[int, _Attempt] = {}
        """The running attempts, keyed by the identity of their contexts."""

    @contextmanager
    def sending(self, sent: Sending) -> Iterator[Mapping[str, str] | None]:
        if not sentry_sdk.get_client().is_active() or not is_inside():
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
        with span(OP_PUBLISH, name, data) as publish:
            yield with_baggage(publish.headers(), sent.headers)
            if sent.pipeline_execution_id is not None:
                publish.set("messaging.batch.message_count", len(sent.handles))
            elif sent.handles:  # if the idempotency key was taken, this is the task that has it
                publish.set("messaging.message.id", str(sent.handles[0].id))

    @contextmanager
    def handling(self, context: TaskContext) -> Iterator[None]:
        if not sentry_sdk.get_client().is_active():
            yield
            return
        with self._attempt(context) as attempt:
            if attempt.check_in is not None:
                attempt.check_in.begin()
            self._running[id(context)] = attempt
            attempt.end_as("aborted")  # applies until `ended` is called, which does not happen if the lease was lost
            try:
                # `ended` has already set the status. A Retry, for instance, is not a failure.
                with suppress(Exception):
                    yield
            finally:
                self._running.pop(id(context), None)

    def ended(self, context: TaskContext, outcome: Outcome, seconds: float) -> None:
        attempt = self._running.get(id(context))
        if context.was_killed and sentry_sdk.get_client().is_active():
            # The attempt's own spans are in a child process that has died, or in a thread that will never end.
            self._running.pop(id(context), None)
            with self._attempt(context) as late:
                self._note(late, context, outcome, seconds)
                late.end_after(seconds)
        elif attempt is not None:  # otherwise Sentry is not set up
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
        """Open the scope and the spans for an attempt."""
        data = _data(context)
        sampling = {"task": context.task_name, "queue": context.queue, "attempt": context.attempt}
        with ExitStack() as stack:
            scope = stack.enter_context(sentry_sdk.isolation_scope())
            _describe(scope, context)
            segment = stack.enter_context(transaction(context.task_name, context.headers, data, sampling))
            process = stack.enter_context(span(OP_PROCESS, context.task_name, data))
            check_in = CheckIn.of(context, self._margin) if self._monitors else None
            yield _Attempt(spans=(segment, process), check_in=check_in)


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """A running attempt."""

    spans: tuple[_Span, ...]
    check_in: CheckIn | None

    def end_as(self, status: str) -> None:
        for span in self.spans:
            span.end_as(status)

    def end_after(self, seconds: float) -> None:
        """End the spans now, as if they had begun `seconds` seconds ago."""
        for span in reversed(self.spans):
            span.end_after(seconds)


def _data(context: TaskContext) -> dict[str, object]:
    """Return an attempt's data fields, under the names that Sentry's queues page reads."""
    # Use the due time if there is one, because a delayed task or a retry has not been waiting since its enqueue.
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
    """Describe the task in the attempt's scope, for all events in that scope."""
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
        with suppress(ValueError, RecursionError):  # a row that another program's SQL wrote
            about["args"] = json.loads(context.claim.args)
    scope.set_context("outboxq", about)


def _may_have_arguments() -> bool:
    client = sentry_sdk.get_client()
    try:
        from sentry_sdk.utils import has_data_collection_enabled
    except ImportError:  # a release without that setting
        return client.should_send_default_pii()
    if has_data_collection_enabled(client.options):
        return bool(client.options["data_collection"]["queues"])
    return client.should_send_default_pii()


def _capture(error: BaseException, *, is_final: bool) -> None:
    mechanism = {"type": "outboxq", "handled": not is_final}
    event, hint = event_from_exception(error, sentry_sdk.get_client().options, mechanism)
    for value in event["exception"]["values"]:
        for frame in (value.get("stacktrace") or {}).get("frames", ()):
            if str(frame.get("module")).startswith("outboxq."):  # the frame's variables are the task's arguments
                frame.pop("vars", None)
    sentry_sdk.capture_event(event, hint)


ORIGIN: Final = "auto.queue.outboxq"
OP_PUBLISH: Final = "queue.publish"
OP_TASK: Final = "queue.task.outboxq"
OP_PROCESS: Final = "queue.process"
_NO_ERRORS = frozenset({"ok", "cancelled"})


class _Span:
    """A span in Sentry's older mode, which sends a trace as a whole."""

    def __init__(self, found: Any, data: Mapping[str, object] | None = None) -> None:
        self._span = found
        for name, value in (data or {}).items():
            self.set(name, value)

    def set(self, name: str, value: object) -> None:
        """Set one of the span's data fields."""
        self._span.set_data(name, value)

    def end_as(self, status: str) -> None:
        """Set the span's status: ok, cancelled, aborted or internal_error."""
        self._span.set_status(status)

    def end_after(self, seconds: float) -> None:
        """End the span now, as if it had begun `seconds` seconds ago."""
        now = datetime.now(UTC)
        self._span.start_timestamp = now - timedelta(seconds=seconds)
        self._span.finish(end_timestamp=now)

    def headers(self) -> dict[str, str]:
        """Return the headers that continue the span's trace: `sentry-trace` and `baggage`."""
        return dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers(span=self._span))


class _StreamedSpan(_Span):
    """A span that is sent separately."""

    def set(self, name: str, value: object) -> None:
        self._span.set_attribute(name, value)

    def end_as(self, status: str) -> None:
        self._span.status = "ok" if status in _NO_ERRORS else "error"

    def end_after(self, seconds: float) -> None:
        """Keep the SDK's times, because the SDK does not accept a different start time."""


def streams() -> bool:
    """Return whether spans are streamed (`trace_lifecycle="stream"`)."""
    try:
        from sentry_sdk.tracing_utils import has_span_streaming_enabled
    except ImportError:  # a release without that mode
        return False
    return has_span_streaming_enabled(sentry_sdk.get_client().options)


def is_inside() -> bool:
    """Return whether a span is open in the current scope. If so, another span can be its child.

    Outside any span there is only the trace of the whole process, which must not grow with each enqueue.
    """
    scope = sentry_sdk.get_current_scope()
    return (scope.streamed_span if streams() else scope.span) is not None


@contextmanager
def span(op: str, name: str, data: Mapping[str, object]) -> Iterator[_Span]:
    """Start a span inside the current span, and end it after the block."""
    if streams():
        with sentry_sdk.traces.start_span(name, attributes=_attributes(op, data)) as streamed:
            yield _StreamedSpan(streamed)
        return
    with sentry_sdk.start_span(op=op, name=name, origin=ORIGIN) as found:
        yield _Span(found, data)


@contextmanager
def transaction(
    name: str, headers: Mapping[str, str], data: Mapping[str, object], sampling: Mapping[str, Any]
) -> Iterator[_Span]:
    """Start a task's outermost span, in the trace that these headers carry. A `traces_sampler` can read `sampling`."""
    if streams():
        sentry_sdk.traces.continue_trace(dict(headers))
        sentry_sdk.Scope.set_custom_sampling_context({"outboxq": dict(sampling)})
        attributes = {**_attributes(OP_TASK, data), "sentry.segment.name.source": "task"}
        with sentry_sdk.traces.start_span(name, attributes=attributes, parent_span=None) as streamed:
            yield _StreamedSpan(streamed)
        return
    begun = sentry_sdk.continue_trace(dict(headers), op=OP_TASK, name=name, source="task", origin=ORIGIN)
    with sentry_sdk.start_transaction(begun, custom_sampling_context={"outboxq": dict(sampling)}) as found:
        yield _Span(found, data)


def _attributes(op: str, data: Mapping[str, object]) -> dict[str, Any]:
    return {"sentry.op": op, "sentry.origin": ORIGIN, **data}


_LONGEST_SLUG = 50
_UNITS: Mapping[int, MonitorConfigScheduleUnit] = {86_400: "day", 3_600: "hour", 60: "minute"}
"""Sentry's interval units, keyed by their length in seconds."""
_CHECK_IN_STATUSES: Mapping[EventType, str] = {
    EventType.COMPLETED: "ok",
    EventType.CANCELLED: "ok",  # a person asked for it
    EventType.FAILED: "error",
}
"""The check-in status for each final outcome. After any other outcome, the task is still in progress."""


@dataclass(frozen=True, kw_only=True)
class CheckIn:
    """The check-in for one tick. All attempts at the tick's task share one check-in, whose id is the task's id."""

    slug: str
    """The name of the monitor."""
    id: str
    config: MonitorConfig

    @classmethod
    def of(cls, context: TaskContext, margin: timedelta) -> CheckIn | None:
        """Return the check-in for an attempt's tick; None if the attempt has no tick, or if Sentry cannot express the
        rule.
        """
        headers = context.headers
        name, rule = headers.get(SCHEDULE_HEADER), headers.get(RULE_HEADER)
        schedule = None if rule is None else schedule_of(rule)
        if name is None or schedule is None or TICK_HEADER not in headers:
            return None
        config: MonitorConfig = {
            "schedule": schedule,
            "timezone": headers.get(ZONE_HEADER, "UTC"),
            "checkin_margin": _minutes(margin.total_seconds()),
        }
        if context.claim.timeout_seconds is not None:
            config["max_runtime"] = _minutes(context.claim.timeout_seconds)
        return cls(slug=slug_of(name), id=context.task_id.hex, config=config)

    def begin(self) -> None:
        """Tell Sentry that the task has started, perhaps not for the first time."""
        capture_checkin(self.slug, self.id, "in_progress", monitor_config=self.config)

    def end(self, outcome: Outcome, seconds: float) -> None:
        """Tell Sentry the task's outcome, unless the task will run again."""
        if (status := _CHECK_IN_STATUSES.get(outcome.event_type)) is not None:
            capture_checkin(self.slug, self.id, status, duration=seconds, monitor_config=self.config)


def schedule_of(rule: str) -> MonitorConfigSchedule | None:
    """Return a rule in Sentry's form; None if the rule contains seconds, which Sentry cannot express."""
    words = rule.split()
    if words[0] == "every":
        seconds = float(words[1])
        for size, unit in _UNITS.items():
            if seconds % size == 0:
                return {"type": "interval", "value": int(seconds // size), "unit": unit}
        return None
    return {"type": "crontab", "value": rule} if len(words) == 5 else None


def slug_of(name: str) -> str:
    """Return the monitor name for a schedule: up to 50 characters from a-z, 0-9, `-` and `_`.

    If anything other than dots, spaces and capitals had to be replaced, the name ends in a digest, so that no two
    schedules share a monitor.
    """
    slug = re.sub(r"[. ]", "-", name.lower())
    if re.fullmatch(r"[a-z0-9_-]{1,50}", slug) and not slug.isdigit():
        return slug
    digest = sha256(name.encode()).hexdigest()[:8]
    kept = re.sub(r"[^a-z0-9_-]+", "-", slug)[: _LONGEST_SLUG - len(digest) - 1]
    return f"{kept.strip('-') or 'schedule'}-{digest}"


def _minutes(seconds: float) -> int:
    """Return the duration in whole minutes, Sentry's unit; at least 1."""
    return max(1, math.ceil(seconds / 60))
