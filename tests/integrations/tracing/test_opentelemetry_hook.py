"""The OpenTelemetry hook: spans, their names and attributes, their shared trace, and metrics."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind, StatusCode

from outboxq import Cancel, InvalidArgument, Outbox, Retry, RetryPolicy, Snooze, TaskContext
from outboxq.contrib.opentelemetry import OpenTelemetryHook
from outboxq.model import NewTask
from outboxq.model.schedules import NewSchedule
from outboxq.model.uuid7 import uuid7
from outboxq.testing.harness import Harness

pytestmark = pytest.mark.in_turn

AT_ONCE = RetryPolicy(max_attempts=2, wait=timedelta(0))


def trace_of(*spans):
    """The single trace to which these spans belong."""
    [found] = {span.context.trace_id for span in spans}
    return found


def linked(span):
    """The ids of the spans to which this span is linked."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def ids(span):
    return span.context.trace_id, span.context.span_id


def attributes(span):
    return dict(span.attributes)


def test_one_trace_links_the_enqueue_the_handler_and_the_tasks_that_it_enqueues(outbox, telemetry):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.charge", queue="payments", retry=RetryPolicy(max_attempts=7))
    def charge(order: int) -> None:
        with telemetry.tracer.start_as_current_span("the handler's own"):
            receipt.using(ours).enqueue(order)

    @ours.task(name="shop.receipt", queue="mail")
    def receipt(order: int) -> None: ...

    with telemetry.tracer.start_as_current_span("request") as request:
        handle = charge.using(ours).enqueue(7)
    ours.worker(label="worker 1").run(burst=True)

    names = ["request", "send payments", "process payments", "the handler's own", "send mail", "process mail"]
    spans = telemetry.spans()
    assert [span.name for span in spans] == names
    trace_of(*spans)
    for parent, child in pairwise(spans):
        assert child.parent.span_id == parent.context.span_id
    _, sent, processed, *_, last = spans
    assert request.get_span_context().trace_id == trace_of(last)
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {
        "messaging.system": "outboxq",
        "messaging.destination.name": "payments",
        "messaging.message.id": str(handle.id),
        "messaging.outboxq.task": "shop.charge",
    }
    operation = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert attributes(sent) == common | operation
    assert attributes(processed) == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": "worker 1",
        "messaging.outboxq.attempt": 1,
        "messaging.outboxq.max_attempts": 7,
        "messaging.outboxq.outcome": "completed",
    }
    assert linked(processed) == [ids(sent)]
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}


def test_a_batch_is_one_span_and_each_of_its_tasks_is_in_its_trace(outbox, telemetry):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.receipt", queue="mail")
    def receipt(order: int) -> None: ...

    first, *_ = receipt.using(ours).enqueue_many([(1,), (2,), (3,)])
    ours.worker().run(burst=True)
    sent = telemetry.span("send mail")
    batch = str(ours.store.get(first.id).pipeline_execution_id)
    found = attributes(sent)
    assert found["messaging.batch.message_count"] == 3
    assert found["messaging.message.conversation_id"] == batch
    assert "messaging.message.id" not in found
    processed = telemetry.spans("process mail")
    assert len(processed) == 3
    trace_of(sent, *processed)
    assert {span.parent.span_id for span in processed} == {sent.context.span_id}
    assert {span.attributes["messaging.message.conversation_id"] for span in processed} == {batch}


def test_an_emit_is_one_span_and_every_subscriber_is_in_its_trace(outbox, telemetry):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.book", queue="ledger", subscribe="order.*")
    def book(payload: dict) -> None: ...

    @ours.task(name="shop.thank", queue="mail", subscribe="order.paid")
    def thank(payload: dict) -> None: ...

    ours.sync_subscriptions()
    emitted = ours.emit("order.paid", {"id": 7}, using=ours)
    event = {str(ours.store.get(handle.id).pipeline_execution_id) for handle in emitted.handles.values()}
    ours.worker().run(burst=True)
    sent, *processed = telemetry.spans()
    assert (sent.name, sent.kind) == ("send order.paid", SpanKind.PRODUCER)
    assert attributes(sent) == {
        "messaging.system": "outboxq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "order.paid",
        "messaging.message.conversation_id": event.pop(),
        "messaging.batch.message_count": 2,
    }
    assert {span.name for span in processed} == {"process ledger", "process mail"}
    trace_of(sent, *processed)


def test_a_retry_has_a_separate_trace_that_is_linked_to_the_enqueue(outbox, telemetry):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.charge", retry=AT_ONCE)
    def charge(ctx: TaskContext, card: str) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("the bank is away")

    charge.using(ours).enqueue("4111")
    ours.worker().run(burst=True)
    sent = telemetry.span("send default")
    first, second = telemetry.spans("process default")
    trace_of(sent, first)
    assert second.parent is None
    assert second.context.trace_id != sent.context.trace_id
    assert linked(second) == [ids(sent)]
    assert first.attributes["error.type"] == "ConnectionError"
    assert first.attributes["messaging.outboxq.outcome"] == "retried"
    assert first.status.status_code is StatusCode.ERROR
    [event] = first.events
    assert event.attributes["exception.type"] == "ConnectionError"
    assert event.attributes["exception.message"] == "the bank is away"
    assert second.attributes["messaging.outboxq.attempt"] == 2
    assert "error.type" not in second.attributes
    assert not [span for span in telemetry.spans() if "4111" in span.to_json()]


def test_a_task_that_starts_late_has_a_separate_trace(outbox, telemetry):
    """By then, a backend has closed the trace of the enqueue."""
    ours = outbox(telemetry.hook(same_trace_for=0))

    @ours.task(name="shop.remind")
    def remind() -> None: ...

    remind.using(ours).enqueue()
    ours.worker().run(burst=True)
    sent, processed = telemetry.spans()
    assert processed.parent is None
    assert linked(processed) == [ids(sent)]


def test_an_invalid_same_trace_duration_is_refused():
    with pytest.raises(InvalidArgument, match="same_trace_for takes a timedelta or seconds"):
        OpenTelemetryHook(same_trace_for="5 minutes")


def test_the_tick_of_a_schedule_has_a_separate_trace(outbox, telemetry):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.nightly")
    def nightly() -> None: ...

    schedules, start = ours.store.schedules, datetime(2025, 1, 1, tzinfo=UTC)
    schedules.put(NewSchedule(name="every night", task_name="shop.nightly", rule="30 2 * * *"))
    schedules.backfill("every night", start, start + timedelta(days=1))
    with telemetry.tracer.start_as_current_span("around the worker"):
        ours.worker().run(burst=True)
    processed = telemetry.span("process default")
    assert processed.parent is None
    assert processed.attributes["messaging.outboxq.schedule"] == "every night"


def test_a_task_without_headers_begins_a_trace_and_has_no_link(outbox, telemetry):
    """Another program has enqueued the task with plain SQL. A span around the drain is not the task's parent."""
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.import")
    def from_outside() -> None: ...

    ours.store.enqueue(NewTask(id=uuid7(), task_name="shop.import", args="{}"))
    with Harness(ours) as harness, telemetry.tracer.start_as_current_span("a test"):
        harness.drain()
    processed = telemetry.span("process default")
    assert processed.parent is None
    assert linked(processed) == []


WISHES = {
    "snoozed": Snooze(3600),
    "cancelled": Cancel("no longer wanted"),
    "retried": Retry(3600),
}


@pytest.mark.parametrize("outcome", WISHES)
def test_outcomes_requested_by_a_handler_are_not_errors(outbox, telemetry, outcome):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.wishes")
    def wishes() -> None:
        raise WISHES[outcome]

    wishes.using(ours).enqueue()
    ours.worker().run(burst=True)
    processed = telemetry.span("process default")
    assert processed.attributes["messaging.outboxq.outcome"] == outcome
    assert processed.status.status_code is StatusCode.UNSET
    assert "error.type" not in processed.attributes
    assert list(processed.events) == []


def test_a_retry_requested_in_the_last_attempt_is_an_error(outbox, telemetry):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.wishes", retry=RetryPolicy.never())
    def wishes() -> None:
        raise Retry(1)

    wishes.using(ours).enqueue()
    ours.worker().run(burst=True)
    processed = telemetry.span("process default")
    assert processed.attributes["messaging.outboxq.outcome"] == "failed"
    assert processed.status.status_code is StatusCode.ERROR
    assert processed.attributes["error.type"].endswith("Retry")


def test_the_span_of_a_transactional_task_lasts_until_its_commit(outbox, telemetry):
    """Its enqueued tasks are in its trace, and an error at its commit is its error."""
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.book", queue="ledger", transactional=True, retry=RetryPolicy.never())
    def book(ctx: TaskContext, broken: bool) -> object:
        receipt.enqueue()
        return object() if broken else None

    @ours.task(name="shop.receipt", queue="mail")
    def receipt() -> None: ...

    book.using(ours).enqueue(False)
    ours.worker().run(burst=True)
    assert [span.name for span in telemetry.spans()] == ["send ledger", "process ledger", "send mail", "process mail"]
    trace_of(*telemetry.spans())
    book.using(ours).enqueue(True)
    ours.worker().run(burst=True)
    *_, processed, _ = telemetry.spans()
    assert processed.attributes["messaging.outboxq.outcome"] == "failed"
    assert processed.attributes["error.type"] == "outboxq.errors.PayloadError"


def test_the_span_of_a_transactional_task_shows_a_lost_lease(outbox, telemetry, database):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.book", transactional=True)
    def book(ctx: TaskContext) -> None:
        if ctx.attempt == 1 and ctx.claim.lease_token == 1:
            # The row is as if another worker had claimed the task and given it back.
            ctx.connection.exec_driver_sql("UPDATE task_leases SET lease_token = 99")

    handle = book.using(ours).enqueue()
    ours.worker().run(burst=True)
    first, *_ = telemetry.spans("process default")
    assert "messaging.outboxq.outcome" not in first.attributes
    assert first.attributes["error.type"] == "outboxq.errors.LeaseLost"
    assert first.status.status_code is StatusCode.ERROR
    ours.store.cancel(handle.id)


def test_the_span_of_a_failed_enqueue_has_an_error_but_no_arguments(outbox, telemetry, database):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.charge", queue="payments")
    def charge(card: str) -> None: ...

    database.run("ALTER TABLE task_outbox RENAME TO elsewhere")
    try:
        with pytest.raises(Exception, match=r"task_outbox|outboxq upgrade"):
            charge.using(ours).enqueue("4111 1111")
    finally:
        database.run("ALTER TABLE elsewhere RENAME TO task_outbox")
    sent = telemetry.span("send payments")
    assert sent.status.status_code is StatusCode.ERROR
    assert sent.attributes["error.type"]
    assert "4111" not in sent.to_json()
    [point] = telemetry.metrics()["messaging.client.sent.messages"]
    assert (point.value, point.attributes["error.type"]) == (1, sent.attributes["error.type"])


def test_the_span_for_a_taken_idempotency_key_names_its_task(outbox, telemetry):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.charge", queue="payments")
    def charge() -> None: ...

    first = charge.using(ours, idempotency_key="order 7").enqueue()
    again = charge.using(ours, idempotency_key="order 7").enqueue()
    assert not again.created
    one, two = telemetry.spans("send payments")
    assert one.attributes["messaging.message.id"] == two.attributes["messaging.message.id"] == str(first.id)
    [point] = telemetry.metrics()["messaging.client.sent.messages"]
    assert point.value == 1


def test_baggage_and_trace_are_sent_along_with_headers_of_the_caller(outbox, telemetry):
    ours, seen = outbox(telemetry.hook()), {}

    @ours.task(name="shop.charge")
    def charge(ctx: TaskContext) -> None:
        seen.update(ctx.headers, tenant=baggage.get_baggage("tenant"), plan=baggage.get_baggage("plan"))

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        charge.using(ours, headers={"request-id": "r1", "baggage": "tenant=old,plan=gold"}).enqueue()
    finally:
        context.detach(token)
    ours.worker().run(burst=True)
    sent = telemetry.span("send default").context
    assert seen["request-id"] == "r1"
    assert seen["traceparent"] == f"00-{sent.trace_id:032x}-{sent.span_id:016x}-{sent.trace_flags:02x}"
    assert (seen["tenant"], seen["plan"]) == ("acme", "gold")


def test_baggage_that_is_too_long_does_not_lose_the_trace(outbox, telemetry):
    ours, seen = outbox(telemetry.hook()), {}

    @ours.task(name="shop.charge")
    def charge(ctx: TaskContext) -> None:
        seen.update(ctx.headers)

    long = baggage.set_baggage("long", "x" * 8000, baggage.set_baggage("tenant", "acme"))
    token = context.attach(long)
    try:
        charge.using(ours, headers={"request-id": "r" * 3000}).enqueue()
    finally:
        context.detach(token)
    ours.worker().run(burst=True)
    assert set(seen) == {"request-id", "traceparent", "baggage"}
    assert seen["baggage"] == "tenant=acme"


def test_the_metrics_have_the_names_of_the_conventions(outbox, telemetry):
    ours = outbox(telemetry.hook())

    @ours.task(name="shop.charge", queue="payments", retry=RetryPolicy.never())
    def charge(order: int) -> None:
        if order == 2:
            raise ConnectionError("the bank is away")

    charge.using(ours).enqueue_many([(1,), (2,), (3,)])
    ours.worker().run(burst=True)
    found = telemetry.metrics()
    send = {
        "messaging.system": "outboxq",
        "messaging.operation.name": "send",
        "messaging.destination.name": "payments",
    }
    process = {**send, "messaging.operation.name": "process", "messaging.outboxq.task": "shop.charge"}
    [sent], [consumed] = found["messaging.client.sent.messages"], found["messaging.client.consumed.messages"]
    assert (sent.value, dict(sent.attributes)) == (3, send)
    assert (consumed.value, dict(consumed.attributes)) == (3, process)
    [duration] = found["messaging.client.operation.duration"]
    assert (duration.count, dict(duration.attributes)) == (1, {**send, "messaging.operation.type": "send"})
    process["messaging.operation.type"] = "process"
    points = {point.attributes.get("error.type"): point for point in found["messaging.process.duration"]}
    assert {error: point.count for error, point in points.items()} == {None: 2, "ConnectionError": 1}
    assert dict(points[None].attributes) == process
    assert points[None].explicit_bounds[-1] == 3600
    assert set(found) == {
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
    }


def test_a_program_without_the_sdk_adds_no_headers(outbox):
    ours, seen = outbox(OpenTelemetryHook()), []

    @ours.task(name="shop.charge")
    def charge(ctx: TaskContext) -> None:
        seen.append(dict(ctx.headers))

    charge.using(ours).enqueue()
    ours.worker().run(burst=True)
    assert seen == [{}]


class Broken(SpanProcessor):
    """A span processor that fails where the SDK does not catch errors."""

    def on_start(self, span, parent_context=None):
        raise OSError("the exporter is down")


def test_a_broken_exporter_does_not_affect_a_task(outbox, telemetry, caplog):
    broken = TracerProvider()
    broken.add_span_processor(Broken())
    ours, ran = outbox(OpenTelemetryHook(tracer_provider=broken), telemetry.hook()), []

    @ours.task(name="shop.charge")
    def charge() -> None:
        ran.append(1)

    with caplog.at_level(logging.ERROR):
        charge.using(ours).enqueue()
        ours.worker().run(burst=True)
    assert ran == [1]
    assert [span.name for span in telemetry.spans()] == ["send default", "process default"]
    assert "the exporter is down" in caplog.text
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_two_outboxes_have_separate_hooks(database, telemetry):
    with_hook, without = Outbox(database.url, hooks=[telemetry.hook()]), Outbox(database.url)
    try:

        @without.task(name="shop.silent")
        def silent() -> None: ...

        @with_hook.task(name="shop.traced", queue="traced")
        def traced() -> None: ...

        silent.using(without).enqueue()
        traced.using(with_hook).enqueue()
        without.worker(queues=["default"]).run(burst=True)
        assert [span.name for span in telemetry.spans()] == ["send traced"]
    finally:
        for one in (with_hook, without):
            one.store.bound_engine.dispose()
