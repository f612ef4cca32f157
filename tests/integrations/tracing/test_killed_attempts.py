"""Attempts whose handler cannot report its end: its child process died, or it runs on after its timeout grace."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.trace import StatusCode

from outboxq import Hook, RetryPolicy, TaskTimeout
from outboxq.contrib.opentelemetry import OpenTelemetryHook
from outboxq.contrib.sentry import SentryHook
from outboxq.model.schedules import NewSchedule
from tests.waiting import PROMPTLY, until

pytestmark = pytest.mark.in_turn

NEVER = RetryPolicy.never()
LAST_YEAR = datetime(2025, 1, 1, tzinfo=UTC)


def run_until_failed(ours, handle, **options):
    worker = ours.worker(poll=0.01, concurrency=2, isolation="process", drain_timeout=10, **options)
    worker.start()
    try:
        until(lambda: ours.store.get(handle.id).completed_at)
    finally:
        worker.stop()


def declared(ours):
    @ours.task(name="shop.resize", queue="images", retry=NEVER)
    def resize() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return resize


def test_an_attempt_whose_child_process_dies_has_a_span(outbox, telemetry):
    ours = outbox(telemetry.hook())
    handle = declared(ours).using(ours).enqueue()
    run_until_failed(ours, handle, label="worker 1")

    sent, processed = telemetry.span("send images"), telemetry.span("process images")
    assert processed.parent.span_id == sent.context.span_id
    assert processed.status.status_code is StatusCode.ERROR
    found = dict(processed.attributes)
    assert found["messaging.message.id"] == str(handle.id)
    assert found["messaging.client.id"] == "worker 1"
    assert (found["messaging.outboxq.outcome"], found["error.type"]) == ("failed", "outboxq.errors.ProcessDied")
    [event] = processed.events
    assert event.attributes["exception.message"] == "the child process of the handler was killed by SIGKILL"
    [point] = telemetry.metrics()["messaging.process.duration"]
    assert (point.count, point.attributes["error.type"]) == (1, "outboxq.errors.ProcessDied")
    seconds = (processed.end_time - processed.start_time) / 1e9
    assert abs(seconds - point.sum) < PROMPTLY
    assert point.sum > 0


def test_the_span_of_an_attempt_ends_even_if_its_handler_does_not(outbox, telemetry, caplog):
    ours, gate, errors = outbox(telemetry.hook()), threading.Event(), []

    @ours.task(name="shop.resize", queue="images", timeout=1, timeout_action="kill", retry=NEVER)
    def resize() -> None:
        try:
            gate.wait(60)
        except TaskTimeout as error:
            errors.append(error)

    handle = resize.using(ours).enqueue()
    worker = ours.worker(poll=0.01, concurrency=1, timeout_grace=0.1)
    worker.start()
    try:
        until(lambda: ours.store.get(handle.id).completed_at)
        processed = until(lambda: telemetry.spans("process images"))[0]
    finally:
        gate.set()
        worker.stop()
    until(lambda: errors and worker._parts.pool.busy == 0)
    assert telemetry.spans("process images") == [processed]
    assert processed.attributes["error.type"] == "outboxq.model.records.TaskTimeout"
    assert (processed.end_time - processed.start_time) / 1e9 > 1
    [point] = telemetry.metrics()["messaging.process.duration"]
    assert point.count == 1
    assert "ended span" not in caplog.text


def test_a_dead_child_is_reported_to_sentry(outbox, sentry):
    sent, ours = sentry(), outbox(SentryHook())
    handle = declared(ours).using(ours).enqueue()
    run_until_failed(ours, handle)

    [error] = sent.errors
    assert error["exception"]["values"][-1]["type"] == "ProcessDied"
    assert error["tags"] == {"task": "shop.resize", "queue": "images", "attempt": 1}
    [attempt] = sent.transactions
    assert (attempt["transaction"], attempt["contexts"]["trace"]["status"]) == ("shop.resize", "internal_error")
    assert [span["op"] for span in attempt["spans"]] == ["queue.process"]
    begun, ended = (datetime.fromisoformat(attempt[name]) for name in ("start_timestamp", "timestamp"))
    task = ours.store.get(handle.id)
    assert timedelta(0) < ended - begun < datetime.now(UTC) - task.created_at


def test_a_handler_that_does_not_end_is_reported_to_sentry(outbox, sentry):
    sent, ours, gate = sentry(), outbox(SentryHook()), threading.Event()

    @ours.task(name="shop.resize", queue="images", timeout=1, timeout_action="kill", retry=NEVER)
    def resize() -> None:
        gate.wait(60)

    handle = resize.using(ours).enqueue()
    worker = ours.worker(poll=0.01, concurrency=1, timeout_grace=0.1)
    worker.start()
    try:
        until(lambda: ours.store.get(handle.id).completed_at)
        [error] = until(lambda: [one for one in sent.errors if "exception" in one])
        [attempt] = until(lambda: sent.transactions)
    finally:
        gate.set()
        worker.stop()
    assert error["exception"]["values"][-1]["type"] == "TaskTimeout"
    assert error["tags"]["task"] == "shop.resize"
    assert attempt["contexts"]["trace"]["status"] == "internal_error"


@pytest.mark.current
def test_a_dead_child_marks_the_streamed_span_as_failed(outbox, sentry):
    import sentry_sdk

    sent, ours = sentry(trace_lifecycle="stream"), outbox(SentryHook())
    run_until_failed(ours, declared(ours).using(ours).enqueue())
    sentry_sdk.flush(timeout=10)
    spans = [span for items in sent.of("span") for span in items["items"]]
    assert {span["name"]: span["status"] for span in spans} == {"shop.resize": "error"}


def test_the_check_in_of_a_tick_ends_even_if_its_child_died(outbox, sentry):
    sent, ours = sentry(), outbox(SentryHook(monitor_schedules=True))
    task = declared(ours)
    schedules = ours.store.schedules
    schedules.put(NewSchedule(name="nightly", task_name=task.name, rule="30 2 * * *"))
    schedules.backfill("nightly", LAST_YEAR, LAST_YEAR + timedelta(days=1))
    run_until_failed(ours, ours.store.tasks(task=task.name)[0])
    [end] = sent.of("check_in")  # the child sent the first check-in through its own copy of this transport
    assert (end["monitor_slug"], end["status"]) == ("nightly", "error")


def test_a_hook_that_does_not_return_suppresses_no_log_line(outbox, caplog):
    gate = threading.Event()

    class Stuck(Hook):
        def ended(self, context, outcome, seconds):
            gate.wait(60)

    ours = outbox(Stuck())
    handle = declared(ours).using(ours).enqueue()
    try:
        run_until_failed(ours, handle)
    finally:
        gate.set()
    [line] = [one for one in caplog.records if one.getMessage().startswith(f"task {handle.id}")]
    assert "ProcessDied: the child process of the handler was killed by SIGKILL" in line.getMessage()


def test_a_hook_whose_handling_failed_creates_no_span(outbox, telemetry):
    """`ended` begins a span only for a killed attempt. After a failed `handling`, there is no span to end."""

    class Broken(OpenTelemetryHook):
        def handling(self, context):
            raise ConnectionError("no")

    ours = outbox(Broken(tracer_provider=telemetry.tracers, meter_provider=telemetry.meters))

    @ours.task(name="fails", queue="images", retry=NEVER)
    def fails() -> None:
        raise ValueError

    fails.using(ours).enqueue()
    ours.worker().run(burst=True)
    assert telemetry.spans("process images") == []
