"""Relays to HTTP endpoints: content, order and repetition of events, and the effect of a failure on other events."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outboxq import (
    CloudEvent,
    ConfigurationError,
    EventType,
    InvalidArgument,
    Outbox,
    RetryPolicy,
    TaskStatus,
    Webhook,
    configure_sqlite,
    verify_webhook,
)
from outboxq.testing import Harness
from tests.conftest import Database
from tests.contract.helpers import types
from tests.endpoints import LOCAL, endpoint

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
AT_ONCE = RetryPolicy(max_attempts=3, wait=0)


@dataclass
class Receiver:
    """A custom endpoint. It fails as often as the test specifies for a payload, and records the events."""

    failures: dict[str, int] = field(default_factory=dict)
    sent: list[CloudEvent] = field(default_factory=list)
    accepted: list[CloudEvent] = field(default_factory=list)

    def send(self, event: CloudEvent) -> None:
        self.sent.append(event)
        if self.failures.get(event.data, 0):
            self.failures[event.data] -= 1
            raise ConnectionError("down")
        self.accepted.append(event)

    @property
    def payloads(self) -> list[str]:
        return [one.data for one in self.accepted]


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database.host, source="shop")


def run(outbox: Outbox, **options: Any) -> None:
    outbox.worker(**{"concurrency": 1, "notifications": False, **options}).run(burst=True)


@contextmanager
def emitting(outbox: Outbox, database: Database) -> Iterator[Session]:
    outbox.sync_subscriptions()
    with Session(database.host) as session, session.begin():
        yield session


def test_an_event_is_sent_only_if_its_transaction_is_committed(database: Database, outbox: Outbox) -> None:
    receiver = Receiver()
    task = outbox.relay("order.*", to=receiver, name="crm")
    with emitting(outbox, database) as session:
        headers = {"traceparent": "00-1", "tenant": "eu", "baggage": "user=7"}
        paid = outbox.emit("order.paid", {"id": 7}, using=session, partition_key="ada", headers=headers)
        outbox.emit("invoice.sent", {"id": 8}, using=session)
    with emitting(outbox, database) as session:
        outbox.emit("order.lost", {"id": 9}, using=session)
        session.rollback()
    run(outbox)
    [event] = receiver.accepted
    [handle] = paid.handles.values()
    assert (event.id, event.source, event.type) == (paid.pipeline_execution_id, "shop", "order.paid")
    assert (event.partition_key, dict(event.headers)) == ("ada", headers)
    assert (event.attributes["tenant"], "baggage" in event.attributes) == ("eu", False)
    assert event.time == database.store.get(handle.id).created_at
    assert json.loads(event.data) == {"id": 7}
    assert (task.name, database.store.get(handle.id).queue) == ("relay.crm", "relay.crm")


@pytest.mark.parametrize("key", [None, "once"])
def test_a_payload_arrives_as_it_was_written(database: Database, outbox: Outbox, key: str | None) -> None:
    """Numbers are not parsed and formatted again, even if the emit has an idempotency key."""
    receiver = Receiver()
    outbox.relay("*", to=receiver, name="crm")
    given = {"sum": 12345678901234567890123, "rate": 1e3, "text": 'é}:"{', "none": None}
    with emitting(outbox, database) as session:
        outbox.emit("order.paid", given, using=session, idempotency_key=key)
    [(stored,)] = database.rows("SELECT args FROM task_executions")
    run(outbox)
    assert receiver.payloads == [str(stored).removeprefix('{"payload":').removesuffix("}")]
    assert json.loads(receiver.payloads[0]) == given


def test_order_is_kept_after_a_failure_and_other_keys_continue(database: Database, outbox: Outbox) -> None:
    receiver = Receiver(failures={"1": 2})
    outbox.relay("*", to=receiver, name="crm", retry=AT_ONCE)
    with emitting(outbox, database) as session:
        for number, key in enumerate(["ada", "ada", "bob", "ada"], start=1):
            outbox.emit("order.paid", number, using=session, partition_key=key)
    run(outbox, concurrency=4)
    assert [one.data for one in receiver.accepted if one.partition_key == "ada"] == ["1", "2", "4"]
    assert receiver.payloads.index("3") < receiver.payloads.index("1"), "bob's event does not wait for ada's events"
    assert [one.data for one in receiver.sent].count("2") == 1, "2 is sent only after 1 has arrived"


@pytest.mark.parametrize("policy", ["release", "hold"])
def test_an_event_that_cannot_be_sent_does_not_block_other_keys(
    database: Database, outbox: Outbox, policy: str
) -> None:
    receiver = Receiver(failures={"1": 3})
    outbox.relay("*", to=receiver, name="crm", retry=AT_ONCE, on_dead_letter=policy)
    with emitting(outbox, database) as session:
        for number, key in enumerate(["ada", "ada", "bob", None], start=1):
            outbox.emit("order.paid", number, using=session, partition_key=key)
    run(outbox)
    assert sorted(receiver.payloads) == (["3", "4"] if policy == "hold" else ["2", "3", "4"])
    [letter] = database.store.dead_letters.list()
    assert (letter.task_name, letter.topic, letter.partition_key) == ("relay.crm", "order.paid", "ada")
    database.store.redrive(letter.id)
    run(outbox)
    assert sorted(receiver.payloads) == ["1", "2", "3", "4"]
    ada = [one.data for one in receiver.accepted if one.partition_key == "ada"]
    assert ada == (["1", "2"] if policy == "hold" else ["2", "1"])


def test_events_without_a_key_are_sent_simultaneously(database: Database, outbox: Outbox) -> None:
    together = threading.Barrier(4, timeout=60)

    class Slow:
        def send(self, _event: CloudEvent) -> None:
            together.wait()  # breaks unless four events are sent at the same time

    outbox.relay("*", to=Slow(), name="crm", retry=RetryPolicy.never())
    with emitting(outbox, database) as session:
        for number in range(8):
            outbox.emit("order.paid", number, using=session)
    run(outbox, concurrency=4)
    assert database.rows("SELECT count(*) FROM task_executions WHERE status = 'Completed'") == [(8,)]


def test_a_duplicate_has_the_same_id_so_that_its_effect_happens_once(
    database: Database, outbox: Outbox, tmp_path: Any
) -> None:
    """The receiver is a service with its own database. Its first answer is lost after its commit."""
    engine = database.own(configure_sqlite(create_engine(f"sqlite:///{tmp_path}/theirs.db")))
    theirs = Outbox(engine)
    theirs.upgrade()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (message_id TEXT)"))

    class Service:
        arrivals = 0

        def send(self, event: CloudEvent) -> None:
            with engine.begin() as connection:
                if theirs.inbox.accept("billing", str(event.id), source=event.source, using=connection):
                    connection.execute(text("INSERT INTO effects VALUES (:id)"), {"id": str(event.id)})
            self.arrivals += 1
            if self.arrivals == 1:
                raise ConnectionError("the answer is lost")

    service = Service()
    outbox.relay("*", to=service, name="crm", retry=AT_ONCE)
    with emitting(outbox, database) as session:
        emitted = outbox.emit("order.paid", 1, using=session)
    run(outbox)
    with engine.connect() as connection:
        effects = connection.execute(text("SELECT message_id FROM effects")).scalars().all()
    assert (service.arrivals, effects) == (2, [str(emitted.pipeline_execution_id)])


def test_a_dead_endpoint_is_retried_for_a_day_with_increasing_waits(database: Database, outbox: Outbox) -> None:
    """The default policy keeps trying for about a day and waits longer after each attempt."""
    receiver = Receiver(failures={"1": 99})
    task = outbox.relay("*", to=receiver, name="crm")
    with emitting(outbox, database) as session:
        [handle] = outbox.emit("order.paid", 1, using=session).handles.values()
    run(outbox)
    waiting = database.store.get(handle.id)
    assert (len(receiver.sent), waiting.status) == (1, TaskStatus.READY)
    longest = timedelta(0)
    for attempt in range(1, 20):
        delay = max(
            task.retry_policy.next_delay(
                attempt=attempt, error=ConnectionError(), max_attempts=None, elapsed=timedelta(0)
            )
            or timedelta(0)
            for _ in range(200)
        )
        longest += delay
    assert timedelta(hours=24) < longest < timedelta(days=4)
    assert task.retry_policy.next_delay(attempt=20, error=OSError(), max_attempts=None, elapsed=timedelta(0)) is None


def test_a_retry_after_header_does_not_shorten_the_wait(database: Database, outbox: Outbox) -> None:
    with endpoint((503, {"retry-after": "0"})) as other:
        hook = Webhook(url=other.url(), secret=SECRET, allowed_networks=LOCAL, allow_http=True)
        outbox.relay("order.*", to=hook, name="crm", retry=RetryPolicy(max_attempts=5, wait=3600))
        with emitting(outbox, database) as session:
            [handle] = outbox.emit("order.paid", {"id": 7}, using=session).handles.values()
        run(outbox)
        waiting = database.store.get(handle.id)
        assert waiting.retry_at is not None
        assert waiting.retry_at - database.store.now() > timedelta(minutes=59)


def test_a_410_answer_does_not_pause_a_queue_with_other_tasks(database: Database, outbox: Outbox) -> None:
    with endpoint((410, {})) as other:
        hook = Webhook(url=other.url(), secret=SECRET, allowed_networks=LOCAL, allow_http=True)
        outbox.relay("order.*", to=hook, name="crm", queue="default", retry=RetryPolicy(max_attempts=1))
        with emitting(outbox, database) as session:
            [handle] = outbox.emit("order.paid", {"id": 7}, using=session).handles.values()
        run(outbox)
    assert database.store.get(handle.id).status is TaskStatus.FAILED
    assert database.store.queues.settings() == []


def test_a_webhook_is_sent_again_at_the_time_given_by_retry_after(database: Database, outbox: Outbox) -> None:
    with endpoint((503, {"retry-after": "3600"})) as other:
        hook = Webhook(url=other.url(), secret=SECRET, allowed_networks=LOCAL, allow_http=True)
        outbox.relay("order.*", to=hook, name="crm")
        with emitting(outbox, database) as session:
            [handle] = outbox.emit("order.paid", {"id": 7}, using=session).handles.values()
        run(outbox)
        waiting = database.store.get(handle.id)
        assert (len(other.arrivals), waiting.status, waiting.attempt) == (1, TaskStatus.READY, 2)
        assert waiting.retry_at is not None
        assert timedelta(minutes=59) < waiting.retry_at - database.store.now() <= timedelta(hours=1)
        assert "the endpoint of the webhook to localhost answered 503" in str(waiting.last_error)
        database.store.run_now(handle.id)
        run(outbox)
        first, second = other.arrivals
        assert first.body == second.body
        assert verify_webhook(second.headers, second.body, SECRET).id == first.headers["webhook-id"]


def test_a_410_answer_pauses_the_queue_and_does_not_use_an_attempt(
    database: Database, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    with endpoint((410, {})) as other:
        hook = Webhook(url=other.url(), secret=SECRET, allowed_networks=LOCAL, allow_http=True)
        outbox.relay("*", to=hook, name="crm")
        with emitting(outbox, database) as session:
            [handle] = outbox.emit("order.paid", {"id": 7}, using=session).handles.values()
        run(outbox)
        assert (database.store.get(handle.id).status, database.store.get(handle.id).attempt) == (TaskStatus.READY, 1)
        assert types(database, handle.id)[-1] == EventType.SNOOZED
        assert "answered 410: it no longer exists; the queue 'relay.crm' is paused" in caplog.text
        database.store.run_now(handle.id)
        assert "paused" in database.store.explain(handle.id).sentence
        [paused] = [one for one in database.store.queues.settings() if one.paused_at is not None]
        assert paused.queue == "relay.crm"
        run(outbox)
        assert len(other.arrivals) == 1
        database.store.queues.resume("relay.crm")
        run(outbox)
        assert (database.store.get(handle.id).status, len(other.arrivals)) == (TaskStatus.COMPLETED, 2)


def test_no_secret_is_stored_or_logged(database: Database, outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with endpoint((500, {}), (500, {}), (500, {})) as other:
        hook = Webhook(url=other.url("/T00/s3cret"), secret=SECRET, allowed_networks=LOCAL, allow_http=True)
        outbox.relay("*", to=hook, name="crm", retry=AT_ONCE)
        with emitting(outbox, database) as session:
            outbox.emit("order.paid", {"id": 7}, using=session)
        run(outbox, log_tracebacks=True)
    tables = ("task_executions", "execution_events", "dead_letters", "task_subscriptions", "workers")
    shown = [str(database.rows(f"SELECT * FROM {name}")) for name in tables] + [caplog.text]
    assert "answered 500" in shown[0]
    for one in shown:
        assert "MfKQ9r8G" not in one
        assert "s3cret" not in one


def test_a_harness_sends_to_an_endpoint_of_the_test(database: Database, outbox: Outbox) -> None:
    receiver = Receiver()
    task = outbox.relay("order.*", to=receiver, name="crm")
    with database.host.connect() as connection, connection.begin(), Harness(outbox, using=connection) as harness:
        outbox.emit("order.paid", {"id": 7}, using=connection)
        assert [dict(one.args) for one in harness.enqueued(task)] == [{"payload": {"id": 7}}]
        harness.drain()
    assert [json.loads(one) for one in receiver.payloads] == [{"id": 7}]


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"name": ""}, InvalidArgument, "name of relay ''"),
        ({"name": "n" * 200}, InvalidArgument, "1 to 200 characters"),
        (
            {"to": "https://crm.example"},
            ConfigurationError,
            r"takes a Webhook, a Transport, or an object with send\(\) or publish\(\)",
        ),
        ({"queue": ""}, InvalidArgument, "queue of relay 'crm'"),
        ({"on_dead_letter": "skip"}, InvalidArgument, "on_dead_letter"),
    ],
)
def test_a_relay_with_invalid_options_is_refused(
    options: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        Outbox(source="shop").relay("*", **{"to": Receiver(), "name": "crm", **options})


def test_a_relay_needs_a_source_and_a_unique_name() -> None:
    with pytest.raises(ConfigurationError, match=r"relay 'crm' must name .*: write Outbox\(source='shop'\)"):
        Outbox().relay("*", to=Receiver(), name="crm")
    with pytest.raises(InvalidArgument, match="source must be a URI or a name without spaces"):
        Outbox(source="my shop")
    outbox = Outbox(source="shop")
    outbox.relay("*", to=Receiver(), name="crm")
    with pytest.raises(ConfigurationError, match=r"two tasks are called 'relay\.crm'"):
        outbox.relay("*", to=Receiver(), name="crm")
