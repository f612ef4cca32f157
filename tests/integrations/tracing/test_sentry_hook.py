"""The Sentry hook: queue spans in one trace, the reported errors, and the task's data in them."""

from __future__ import annotations

import json
import logging
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from threading import Event
from uuid import uuid4

import pytest
import sentry_sdk

from outboxq import Cancel, Retry, RetryPolicy, Snooze, TaskContext
from outboxq.contrib.opentelemetry import OpenTelemetryHook
from outboxq.contrib.sentry import SentryHook, _data
from outboxq.model import Claim, NewTask
from outboxq.model.uuid7 import uuid7

pytestmark = pytest.mark.in_turn

TWICE = RetryPolicy(max_attempts=2, wait=timedelta(0))


def test_one_trace_links_the_enqueue_the_handler_and_the_tasks_that_it_enqueues(outbox, sentry):
    sent, ours = sentry(), outbox(SentryHook())

    @ours.task(name="shop.charge", queue="payments")
    def charge(order: int) -> None:
        receipt.using(ours).enqueue(order)

    @ours.task(name="shop.receipt", queue="mail")
    def receipt(order: int) -> None: ...

    with sentry_sdk.start_transaction(name="POST /orders", op="http.server"):
        handle = charge.using(ours).enqueue(7)
    ours.worker().run(burst=True)

    request, charged, received = sent.transactions
    assert [one["transaction"] for one in sent.transactions] == ["POST /orders", "shop.charge", "shop.receipt"]
    assert len({one["contexts"]["trace"]["trace_id"] for one in sent.transactions}) == 1
    [published] = request["spans"]
    assert (published["op"], published["description"]) == ("queue.publish", "shop.charge")
    data = {
        "messaging.system": "outboxq",
        "messaging.message.id": str(handle.id),
        "messaging.destination.name": "payments",
        "messaging.message.body.size": len('{"order":7}'),
    }
    assert data.items() <= published["data"].items()
    assert charged["transaction_info"] == {"source": "task"}
    trace = charged["contexts"]["trace"]
    assert (trace["op"], trace["parent_span_id"], trace["status"]) == (
        "queue.task.outboxq",
        published["span_id"],
        "ok",
    )
    processed, again = charged["spans"]
    assert (processed["op"], again["op"]) == ("queue.process", "queue.publish")
    assert (data | {"messaging.message.retry.count": 0}).items() <= processed["data"].items()
    assert 0 < processed["data"]["messaging.message.receive.latency"] < 3_600_000
    assert again["parent_span_id"] == processed["span_id"]
    assert received["contexts"]["trace"]["parent_span_id"] == again["span_id"]
    assert sent.errors == []


@pytest.mark.current
def test_streamed_spans_also_share_one_trace(outbox, sentry):
    sent, ours = sentry(trace_lifecycle="stream"), outbox(SentryHook())

    @ours.task(name="shop.charge", queue="payments", retry=RetryPolicy.never())
    def charge(order: int) -> None:
        receipt.using(ours).enqueue(order)
        raise ConnectionError("the bank is away")

    @ours.task(name="shop.receipt", queue="mail")
    def receipt(order: int) -> None: ...

    with sentry_sdk.traces.start_span("POST /orders", attributes={"sentry.op": "http.server"}):
        charge.using(ours).enqueue(7)
    ours.worker().run(burst=True)
    sentry_sdk.flush(timeout=10)
    spans = [span for items in sent.of("span") for span in items["items"]]
    found = {(span["name"], span["attributes"]["sentry.op"]["value"]): span for span in spans}
    assert set(found) == {
        ("POST /orders", "http.server"),
        ("shop.charge", "queue.publish"),
        ("shop.charge", "queue.task.outboxq"),
        ("shop.charge", "queue.process"),
        ("shop.receipt", "queue.publish"),
        ("shop.receipt", "queue.task.outboxq"),
        ("shop.receipt", "queue.process"),
    }
    assert len({span["trace_id"] for span in spans}) == 1
    assert found["shop.charge", "queue.process"]["status"] == "error"
    assert found["shop.receipt", "queue.process"]["status"] == "ok"
    assert len(sent.errors) == 1


def test_an_emit_and_a_batch_are_one_span_each(outbox, sentry):
    sent, ours = sentry(), outbox(SentryHook())

    @ours.task(name="shop.book", queue="ledger", subscribe="order.paid")
    def book(payload: dict) -> None: ...

    @ours.task(name="shop.thank", queue="mail", subscribe="order.paid")
    def thank(payload: dict) -> None: ...

    ours.sync_subscriptions()
    with sentry_sdk.start_transaction(name="POST /orders"):
        ours.emit("order.paid", {"id": 7}, using=ours)
        book.using(ours).enqueue_many([({},), ({},), ({},)])
    ours.worker().run(burst=True)
    request, *attempts = sent.transactions
    emitted, batch = request["spans"]
    assert (emitted["description"], emitted["data"]["messaging.destination.name"]) == ("order.paid", "order.paid")
    assert emitted["data"]["messaging.batch.message_count"] == 2
    assert (batch["description"], batch["data"]["messaging.batch.message_count"]) == ("shop.book", 3)
    parents = [one["contexts"]["trace"]["parent_span_id"] for one in attempts]
    assert sorted(parents) == sorted([emitted["span_id"]] * 2 + [batch["span_id"]] * 3)


@pytest.mark.parametrize("every_attempt", [False, True])
def test_an_error_is_reported_when_the_task_has_failed_for_good(outbox, sentry, every_attempt):
    """The error is reported once, although the worker's own log line has the same exception."""
    sent, ours = sentry(), outbox(SentryHook(every_attempt=every_attempt))

    @ours.task(name="shop.charge", queue="payments", retry=TWICE)
    def charge(ctx: TaskContext, order: int) -> None:
        raise ConnectionError(f"attempt {ctx.attempt}")

    with sentry_sdk.start_transaction(name="POST /orders"):
        handle = charge.using(ours).enqueue(7)
    ours.worker().run(burst=True)
    *earlier, last = sent.errors
    assert [one["tags"]["attempt"] for one in earlier] == ([1] if every_attempt else [])
    assert last["exception"]["values"][-1]["value"] == "attempt 2"
    assert last["exception"]["values"][-1]["mechanism"]["handled"] is False
    assert last["tags"] == {"task": "shop.charge", "queue": "payments", "attempt": 2}
    assert last["contexts"]["outboxq"]["task_id"] == str(handle.id)
    assert last["transaction"] == "shop.charge"
    _, first, second = sent.transactions
    assert {one["contexts"]["trace"]["status"] for one in (first, second)} == {"internal_error"}
    assert second["spans"][0]["data"]["messaging.message.retry.count"] == 1
    assert last["contexts"]["trace"]["trace_id"] == second["contexts"]["trace"]["trace_id"]
    assert len({one["contexts"]["trace"]["trace_id"] for one in sent.transactions}) == 1


WISHES = {"ok": [Snooze(3600), Retry(3600)], "cancelled": [Cancel("no longer wanted")]}


@pytest.mark.parametrize("status", WISHES)
def test_outcomes_requested_by_a_handler_are_never_reported(outbox, sentry, status):
    sent, ours = sentry(), outbox(SentryHook(every_attempt=True))

    @ours.task(name="shop.wishes")
    def wishes(number: int) -> None:
        raise WISHES[status][number]

    for number in range(len(WISHES[status])):
        wishes.using(ours).enqueue(number)
    ours.worker().run(burst=True)
    assert sent.errors == []
    assert [one["contexts"]["trace"]["status"] for one in sent.transactions] == [status] * len(WISHES[status])


def test_a_retry_requested_in_the_last_attempt_is_reported(outbox, sentry):
    """The task has failed permanently, and somebody has to know."""
    sent, ours = sentry(), outbox(SentryHook())

    @ours.task(name="shop.wishes", retry=RetryPolicy.never())
    def wishes() -> None:
        raise Retry(1)

    wishes.using(ours).enqueue()
    ours.worker().run(burst=True)
    [error] = sent.errors
    assert error["exception"]["values"][-1]["type"] == "Retry"
    assert [one["contexts"]["trace"]["status"] for one in sent.transactions] == ["internal_error"]


def test_a_transactional_task_that_lost_its_lease_is_aborted(outbox, sentry):
    sent, ours = sentry(), outbox(SentryHook())

    @ours.task(name="shop.book", transactional=True)
    def book(ctx: TaskContext) -> None:
        ctx.connection.exec_driver_sql("UPDATE task_leases SET lease_token = 99")

    handle = book.using(ours).enqueue()
    ours.worker().run(burst=True)
    assert {one["contexts"]["trace"]["status"] for one in sent.transactions} == {"aborted"}
    ours.store.cancel(handle.id)


SETTINGS = [
    pytest.param({}, False, id="nothing"),
    pytest.param({"send_default_pii": True}, True, id="send_default_pii"),
    pytest.param({"data_collection": {"queues": True}}, True, id="queues", marks=pytest.mark.current),
    pytest.param({"data_collection": {"queues": False}}, False, id="no queues", marks=pytest.mark.current),
]


@pytest.mark.filterwarnings("ignore:The send_default_pii option is deprecated")
@pytest.mark.parametrize(("options", "expected"), SETTINGS)
def test_arguments_are_attached_only_if_sentry_is_set_to_send_them(outbox, sentry, options, expected):
    """Sentry's setting `include_local_variables` decides about a handler's local variables."""
    sent, ours = sentry(**options), outbox(SentryHook())

    @ours.task(name="shop.charge", retry=RetryPolicy.never())
    def charge(card: str) -> None:
        del card
        raise ConnectionError("the bank is away")

    card = str(uuid4())  # not a text in this file, because Sentry sends these lines with the traceback
    charge.using(ours).enqueue(card)
    ours.worker().run(burst=True)
    [error] = sent.errors
    assert error["contexts"]["outboxq"].get("args") == ({"card": card} if expected else None)
    assert (card in json.dumps(sent.items)) is expected


def test_an_error_at_the_commit_of_a_transactional_task_is_reported(outbox, sentry):
    sent, ours = sentry(), outbox(SentryHook())

    @ours.task(name="shop.book", transactional=True, retry=RetryPolicy.never())
    def book(ctx: TaskContext) -> object:
        return object()

    book.using(ours).enqueue()
    ours.worker().run(burst=True)
    [error] = sent.errors
    assert error["exception"]["values"][-1]["type"] == "PayloadError"


def test_an_enqueue_outside_of_any_span_has_no_trace(outbox, sentry):
    """Otherwise, a program that enqueues all day would put all of a day's tasks into one trace."""
    sent, ours = sentry(), outbox(SentryHook())

    @ours.task(name="shop.charge")
    def charge() -> None: ...

    for _ in range(2):
        charge.using(ours).enqueue()
    ours.worker().run(burst=True)
    one, two = (found["contexts"]["trace"] for found in sent.transactions)
    assert one["trace_id"] != two["trace_id"]


def test_tasks_without_headers_have_separate_traces(outbox, sentry):
    sent, ours = sentry(), outbox(SentryHook())

    @ours.task(name="shop.import")
    def from_outside() -> None: ...

    for _ in range(2):
        ours.store.enqueue(NewTask(id=uuid7(), task_name="shop.import", args="{}"))
    ours.worker().run(burst=True)
    one, two = (found["contexts"]["trace"]["trace_id"] for found in sent.transactions)
    assert one != two


def test_the_latency_is_measured_from_when_the_task_was_enqueued_and_due():
    enqueued = datetime(2030, 1, 1, 12, tzinfo=UTC)
    started = enqueued + timedelta(hours=1, milliseconds=30)
    unknown = {one.name: None for one in fields(Claim)} | {"args": "{}", "queue": "default", "attempt": 1}
    claim = Claim(**unknown | {"created_at": enqueued, "started_at": started})

    def latency(due):
        context = TaskContext(replace(claim, waits_since=due), max_attempts=1, stopping=Event())
        return _data(context)["messaging.message.receive.latency"]

    assert latency(enqueued + timedelta(hours=1)) == 30
    assert latency(None) == 3_600_030
    assert latency(started + timedelta(seconds=1)) == 0


def test_the_hook_works_with_opentelemetry_and_headers_of_the_caller(outbox, sentry, telemetry):
    """Each of them has members in `baggage`."""
    sentry()
    seen = {}
    for hooks in ([SentryHook(), telemetry.hook()], [telemetry.hook(), SentryHook()]):
        ours = outbox(*hooks)

        @ours.task(name="shop.charge")
        def charge(ctx: TaskContext) -> None:
            seen.update(ctx.headers)

        with sentry_sdk.start_transaction(name="POST /orders"):
            charge.using(ours, headers={"request-id": "r1", "baggage": "tenant=acme"}).enqueue()
        seen.clear()
        ours.worker().run(burst=True)
        assert set(seen) == {"request-id", "traceparent", "sentry-trace", "baggage"}
        members = seen["baggage"].split(",")
        assert "tenant=acme" in members
        assert sum(member.startswith("sentry-trace_id=") for member in members) == 1


def test_without_init_the_hook_does_nothing(outbox):
    ours, seen = outbox(SentryHook()), []

    @ours.task(name="shop.charge", retry=RetryPolicy.never())
    def charge(ctx: TaskContext) -> None:
        seen.append(dict(ctx.headers))
        raise ConnectionError("the bank is away")

    charge.using(ours).enqueue()
    ours.worker().run(burst=True)
    assert seen == [{}]


def test_a_broken_transport_does_not_affect_a_task(outbox, sentry, caplog):
    def broken(*_):
        raise OSError("the tracker is down")

    sentry(traces_sampler=broken, before_send=broken)
    ours, ran = outbox(SentryHook(), OpenTelemetryHook()), []

    @ours.task(name="shop.charge", retry=RetryPolicy.never())
    def charge() -> None:
        ran.append(1)
        raise ConnectionError("the bank is away")

    handle = charge.using(ours).enqueue()
    with caplog.at_level(logging.ERROR):
        ours.worker().run(burst=True)
    assert ran == [1]
    assert ours.store.get(handle.id).last_error == "ConnectionError: the bank is away"
