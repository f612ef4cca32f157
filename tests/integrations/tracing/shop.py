"""The shop of test_one_trace.py: a Flask application and its workers, with OpenTelemetry and Sentry enabled.

Spans are appended to the file TRACES, one JSON object per line, when they end or, with AT_EXIT, when the process ends.
Sentry sends to SENTRY_DSN.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import sentry_sdk
from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy
from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from sqlalchemy.orm import Mapped, mapped_column

from outboxq import RetryPolicy, TaskContext
from outboxq.contrib.flask import Outboxq
from outboxq.contrib.opentelemetry import OpenTelemetryHook
from outboxq.contrib.sentry import SentryHook


class FileExporter(SpanExporter):
    """Write a line for each span. A short write to a file that is open for appending is atomic, even between processes."""

    def export(self, spans: Any) -> SpanExportResult:
        with Path(os.environ["TRACES"]).open("a") as file:
            file.writelines(json.dumps(json.loads(span.to_json(indent=None))) + "\n" for span in spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


sentry_sdk.init(os.environ["SENTRY_DSN"], traces_sample_rate=1.0)
provider = TracerProvider(resource=Resource.create({"service.name": "shop", "service.instance.id": str(os.getpid())}))
if "AT_EXIT" in os.environ:
    provider.add_span_processor(BatchSpanProcessor(FileExporter(), schedule_delay_millis=3_600_000))
else:
    provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
trace.set_tracer_provider(provider)

db = SQLAlchemy()
outbox = Outboxq(hooks=[OpenTelemetryHook(), SentryHook()])


class Order(db.Model):
    __tablename__ = "traced_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


@outbox.task(name="shop.charge", queue="payments", transactional=True)
def charge(ctx: TaskContext, number: int) -> None:
    """Enqueue two tasks and emit an event, all in the transaction of this task."""
    ship.using().enqueue_many([(number,), (number,)])
    outbox.emit("order.paid", {"number": number})


@outbox.task(name="shop.ship", queue="warehouse")
def ship(number: int) -> None: ...


@outbox.task(name="shop.book", queue="ledger", subscribe="order.paid", retry=RetryPolicy.never())
def book(payload: dict) -> None:
    raise ConnectionError("the ledger is closed")


@outbox.task(name="shop.thank", queue="mail", subscribe="order.paid")
def thank(payload: dict) -> None: ...


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["SHOP_URL"]
    db.init_app(app)
    outbox.init_app(app)

    @app.post("/orders/<int:number>")
    def order(number: int) -> dict[str, str]:
        # Flask's instrumentation does the same.
        parent = propagate.extract({name.lower(): value for name, value in request.headers})
        with trace.get_tracer("shop").start_as_current_span("POST /orders", context=parent, kind=trace.SpanKind.SERVER):
            db.session.add(Order(number=number))
            handle = charge.enqueue(number)
            db.session.commit()
        return {"task": str(handle.id)}

    return app
