"""Spans in Sentry, in both of its modes: whole transactions, or spans that are streamed one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import sentry_sdk

ORIGIN: Final = "auto.queue.outboxq"
OP_PUBLISH: Final = "queue.publish"
OP_TASK: Final = "queue.task.outboxq"
OP_PROCESS: Final = "queue.process"
_NO_ERRORS = frozenset({"ok", "cancelled"})


class AnySpan(Protocol):
    """A span of either mode."""

    def set(self, name: str, value: object) -> None:
        """Set one of its data fields."""

    def end_as(self, status: str) -> None:
        """Set its status: ok, cancelled, aborted or internal_error."""

    def end_after(self, seconds: float) -> None:
        """End it now, as if it had begun so many seconds ago. One that is streamed keeps its own begin."""

    def headers(self) -> dict[str, str]:
        """Return the headers that continue its trace: `sentry-trace` and `baggage`."""


def streams() -> bool:
    """Return whether spans are streamed (`trace_lifecycle="stream"`)."""
    try:
        from sentry_sdk.tracing_utils import has_span_streaming_enabled
    except ImportError:  # a release before that mode
        return False
    return has_span_streaming_enabled(sentry_sdk.get_client().options)


def is_inside() -> bool:
    """Return whether a span is open here, so that another one can be its child.

    Outside of any there is only the trace of the whole process, which is not to grow with each enqueue.
    """
    scope = sentry_sdk.get_current_scope()
    return (scope.streamed_span if streams() else scope.span) is not None


@contextmanager
def span(op: str, name: str, data: Mapping[str, object]) -> Iterator[AnySpan]:
    """Start a span inside the present one, and end it after the block."""
    if streams():
        with sentry_sdk.traces.start_span(name, attributes=_attributes(op, data)) as streamed:
            yield _Streamed(streamed)
        return
    with sentry_sdk.start_span(op=op, name=name, origin=ORIGIN) as legacy:
        for key, value in data.items():
            legacy.set_data(key, value)
        yield _Legacy(legacy)


@contextmanager
def transaction(
    name: str, headers: Mapping[str, str], data: Mapping[str, object], sampling: Mapping[str, Any]
) -> Iterator[AnySpan]:
    """Start the outermost span of a task, in the trace of these headers. `sampling` is what a `traces_sampler` may look at."""
    if streams():
        sentry_sdk.traces.continue_trace(dict(headers))
        sentry_sdk.Scope.set_custom_sampling_context({"outboxq": dict(sampling)})
        attributes = {**_attributes(OP_TASK, data), "sentry.segment.name.source": "task"}
        with sentry_sdk.traces.start_span(name, attributes=attributes, parent_span=None) as streamed:
            yield _Streamed(streamed)
        return
    begun = sentry_sdk.continue_trace(dict(headers), op=OP_TASK, name=name, source="task", origin=ORIGIN)
    with sentry_sdk.start_transaction(begun, custom_sampling_context={"outboxq": dict(sampling)}) as legacy:
        for key, value in data.items():
            legacy.set_data(key, value)
        yield _Legacy(legacy)


def _attributes(op: str, data: Mapping[str, object]) -> dict[str, Any]:
    return {"sentry.op": op, "sentry.origin": ORIGIN, **data}


class _Legacy:
    def __init__(self, found: Any) -> None:
        self._span = found

    def set(self, name: str, value: object) -> None:
        self._span.set_data(name, value)

    def end_as(self, status: str) -> None:
        self._span.set_status(status)

    def end_after(self, seconds: float) -> None:
        now = datetime.now(UTC)
        self._span.start_timestamp = now - timedelta(seconds=seconds)
        self._span.finish(end_timestamp=now)

    def headers(self) -> dict[str, str]:
        return _headers(self._span)


class _Streamed:
    def __init__(self, found: Any) -> None:
        self._span = found

    def set(self, name: str, value: object) -> None:
        self._span.set_attribute(name, value)

    def end_as(self, status: str) -> None:
        self._span.status = "ok" if status in _NO_ERRORS else "error"

    def end_after(self, seconds: float) -> None:
        """Leave the times to the SDK, which takes none for the begin."""

    def headers(self) -> dict[str, str]:
        return _headers(self._span)


def _headers(found: Any) -> dict[str, str]:
    return dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers(span=found))
