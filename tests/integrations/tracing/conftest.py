"""Recorders of the reports of the two tracing hooks, without a global provider."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from outboxq import Outbox
from outboxq.contrib.opentelemetry import OpenTelemetryHook


class Telemetry:
    """OpenTelemetry's SDK with its hook."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self._reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.tracers.get_tracer("tests")

    def hook(self, **options: Any) -> OpenTelemetryHook:
        return OpenTelemetryHook(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """The ended spans with this name, in the order of their start."""
        found = [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def span(self, name: str) -> ReadableSpan:
        [found] = self.spans(name)
        return found

    def metrics(self) -> dict[str, list[Any]]:
        """The data points of each metric, by its name."""
        data = self._reader.get_metrics_data()
        every = [metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics]
        return {metric.name: list(metric.data.data_points) for metric in every}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


class Sent(Transport):
    """A transport that keeps the items instead of sending them."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.items: list[tuple[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(item.type, item.payload.json) for item in envelope.items]

    def of(self, kind: str) -> list[Any]:
        return [payload for found, payload in self.items if found == kind]

    @property
    def errors(self) -> list[Any]:
        return self.of("event")

    @property
    def transactions(self) -> list[Any]:
        return self.of("transaction")


@pytest.fixture
def sentry() -> Iterator[Any]:
    """A function that sets up the Sentry SDK in this process until the test ends."""
    before = sentry_sdk.get_global_scope().client

    def init(**options: Any) -> Sent:
        sent = Sent()
        sentry_sdk.init(
            **{
                "dsn": "http://key@127.0.0.1/1",
                "transport": sent,
                "default_integrations": False,
                "integrations": [LoggingIntegration(), DedupeIntegration()],
                "traces_sample_rate": 1.0,
                "shutdown_timeout": 0,
                **options,
            }
        )
        return sent

    yield init
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(before)


@pytest.fixture
def outbox(database: Any) -> Iterator[Any]:
    """A function that makes an outbox with hooks on the test's database."""
    made: list[Outbox] = []

    def make(*hooks: Any) -> Outbox:
        made.append(Outbox(database.url, hooks=hooks))
        return made[-1]

    yield make
    for one in made:
        one.store.bound_engine.dispose()
