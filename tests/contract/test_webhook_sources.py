"""Webhooks as a source: each signed webhook becomes exactly one task, which is committed before the answer."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from outboxq import (
    ConfigurationError,
    EventType,
    InvalidArgument,
    Outbox,
    TaskContext,
    TaskStatus,
    WebhookInvalid,
    WebhookSource,
)
from outboxq.store.messages.inbox import InboxMessages
from outboxq.task.receivers import UNREADABLE
from outboxq.testing import Harness
from outboxq.webhooks import signed_headers
from tests.conftest import Database

OLD = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NEW = "whsec_bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3"
EVENT = b'{"specversion": "1.0", "id": "e1", "source": "erp", "type": "billing.paid", "data": {"total": 1.10}}'


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database.host)


@pytest.fixture
def erp(outbox: Outbox) -> WebhookSource:
    source = WebhookSource(name="erp", secret=[NEW, OLD])

    @outbox.receive("billing.*", source=source, name="book", queue="books")
    def book(ctx: TaskContext, payload: dict[str, Any]) -> None: ...

    return source


def send(outbox: Outbox, body: bytes, *, id: str = "m1", secret: str = NEW, age: float = 0, **given: Any) -> int:
    signed = signed_headers(id, body, secret, now=datetime.now(UTC) - timedelta(seconds=age))
    return outbox.receive_webhook(signed, body, **given)


def run(outbox: Outbox) -> None:
    outbox.worker(concurrency=1, notifications=False).run(burst=True)


@pytest.mark.parametrize("secret", [NEW, OLD])
def test_a_signed_webhook_becomes_one_committed_task(
    outbox: Outbox, database: Database, erp: WebhookSource, secret: str
) -> None:
    assert send(outbox, EVENT, secret=secret) == 1
    assert database.rows("SELECT task_name, queue, args FROM task_executions") == [
        ("book", "books", '{"payload":{"total": 1.10}}')
    ]
    assert database.rows("SELECT consumer, source, message_id FROM inbox_messages") == [("book", "erp", "e1")]
    assert (send(outbox, EVENT), send(outbox, EVENT, secret=OLD)) == (0, 0)
    run(outbox)
    assert [task.status for task in outbox.store.tasks()] == [TaskStatus.COMPLETED]


def test_a_webhook_in_several_simultaneous_requests_becomes_one_task(outbox: Outbox, erp: WebhookSource) -> None:
    begin = threading.Barrier(6)

    def arrive(_: int) -> int:
        begin.wait(60)
        return send(outbox, EVENT)

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(arrive, range(6))) == [0, 0, 0, 0, 0, 1]
    assert len(outbox.store.tasks()) == 1


def test_a_harness_receives_webhooks(outbox: Outbox, database: Database, erp: WebhookSource) -> None:
    with (
        database.host_engine().connect() as connection,
        connection.begin() as transaction,
        Harness(outbox, using=connection) as harness,
    ):
        assert (send(outbox, EVENT), send(outbox, EVENT)) == (1, 0)
        assert [(one.task_name, one.outcome) for one in harness.drain()] == [("book", EventType.COMPLETED)]
        transaction.rollback()
    assert database.rows("SELECT 1 FROM task_executions UNION ALL SELECT 1 FROM inbox_messages") == []


def test_a_body_that_is_not_a_cloudevent_is_identified_by_its_signed_id(outbox: Outbox, erp: WebhookSource) -> None:
    body = b'{"type": "billing.paid", "data": 7}'
    assert [send(outbox, body, id=one) for one in ("m1", "m2", "m1")] == [1, 1, 0]
    assert [json.loads(task.args) for task in outbox.store.tasks()] == [{"payload": json.loads(body)}] * 2


def test_unsigned_headers_do_not_identify_a_webhook(outbox: Outbox, database: Database, erp: WebhookSource) -> None:
    body = b'{"type": "billing.paid"}'
    signed = signed_headers("m1", body, NEW)
    for number in range(3):
        own = {"CE_ID": f"e{number}", "ce_id": f"e{number}", "ce_source": f"s{number}", "ce_type": "billing.other"}
        assert outbox.receive_webhook({**signed, **own, "traceparent": "00-1"}, body) == (number == 0)
    ((headers,),) = database.rows("SELECT headers FROM task_executions")
    assert json.loads(headers) == {"ce_id": "m1", "ce_source": "", "ce_type": "billing.paid", "traceparent": "00-1"}


def test_a_body_without_a_type_has_the_topic_of_the_source(outbox: Outbox) -> None:
    source = WebhookSource(name="erp", secret=NEW, topic="erp.changed")
    outbox.receive("erp.changed", source=source, name="change")(lambda payload: None)
    assert [send(outbox, body, id=f"{body!r}") for body in (b"[1]", b"7", b'{"type": 7}')] == [1, 1, 1]
    assert [task.task_name for task in outbox.store.tasks()] == ["change"] * 3


def test_a_webhook_without_a_valid_signature_stores_nothing(
    outbox: Outbox, database: Database, erp: WebhookSource
) -> None:
    other = "whsec_b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhl"
    signed = signed_headers("m1", EVENT, NEW)
    for headers, body in (
        ({}, EVENT),
        (signed, EVENT + b" "),
        ({**signed, "webhook-id": "m2"}, EVENT),
        (signed_headers("m1", EVENT, other), EVENT),
        (signed_headers("m1", b"{]", other), b"{]"),
    ):
        with pytest.raises(WebhookInvalid) as caught:
            outbox.receive_webhook(headers, body)
        assert caught.value.status == 401
    for age in (310, -310):
        with pytest.raises(WebhookInvalid, match="too long ago"):
            send(outbox, EVENT, age=age)
    assert database.rows("SELECT 1 FROM task_executions UNION ALL SELECT 1 FROM inbox_messages") == []
    assert send(outbox, EVENT, age=250) == 1


def test_the_source_determines_the_tolerance(outbox: Outbox) -> None:
    source = WebhookSource(name="erp", secret=NEW, tolerance=30)
    outbox.receive("*", source=source, name="book")(lambda payload: None)
    with pytest.raises(WebhookInvalid, match="too long ago"):
        send(outbox, EVENT, age=60)
    assert send(outbox, EVENT, age=5) == 1


def test_a_body_above_the_limit_is_refused_before_it_is_verified(outbox: Outbox, database: Database) -> None:
    source = WebhookSource(name="erp", secret=NEW, max_bytes=len(EVENT))
    outbox.receive("*", source=source, name="book")(lambda payload: None)
    with pytest.raises(WebhookInvalid, match=f"more than {len(EVENT)} bytes") as caught:
        outbox.receive_webhook({}, EVENT + b" ")
    assert caught.value.status == 413
    assert send(outbox, EVENT) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{]", "not JSON"),
        (b"\xff\x00", "UTF-8"),
        (b'{"data": 1}', "no type"),
        (b'{"type": "order.paid"}', "no receiver of this source subscribes to the topic 'order.paid'"),
    ],
)
def test_a_webhook_that_cannot_be_read_becomes_one_dead_letter(
    outbox: Outbox, erp: WebhookSource, body: bytes, reason: str
) -> None:
    assert (send(outbox, body), send(outbox, body)) == (1, 0)
    run(outbox)
    (letter,) = outbox.store.dead_letters.list()
    assert (letter.task_name, letter.queue) == (UNREADABLE, "books")
    assert reason in (letter.last_error or "")
    stored = json.loads(outbox.store.get(letter.id).args)
    assert (stored["source"], stored["message"]["id"]) == ("the webhooks of erp", "m1")
    assert "v1," not in outbox.store.get(letter.id).args


def test_a_redriven_webhook_is_read_again(outbox: Outbox, database: Database, erp: WebhookSource) -> None:
    send(outbox, b'{"type": "order.paid"}')
    run(outbox)
    (letter,) = outbox.store.dead_letters.list()
    later = Outbox(database.host)
    later.receive("order.*", source=WebhookSource(name="erp", secret=NEW), name="ship")(lambda payload: None)
    later.store.redrive(letter.id)
    run(later)
    assert [task.status for task in later.store.tasks(task="ship")] == [TaskStatus.COMPLETED]


def test_a_database_error_is_raised_and_the_webhook_can_be_sent_again(
    outbox: Outbox, erp: WebhookSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def fail(*_: object, **__: object) -> int:
            raise OperationalError("INSERT", {}, Exception("gone"))

        patch.setattr(InboxMessages, "receive", fail)
        with pytest.raises(OperationalError):
            send(outbox, EVENT)
    assert send(outbox, EVENT) == 1


def test_several_sources_are_distinguished(outbox: Outbox, erp: WebhookSource) -> None:
    crm = WebhookSource(name="crm", secret=OLD)
    with pytest.raises(ConfigurationError, match="no task receives the webhooks of crm"):
        send(outbox, EVENT, source=crm)
    outbox.receive("*", source=crm, name="note")(lambda payload: None)
    with pytest.raises(ConfigurationError, match="several programs .* source="):
        send(outbox, EVENT)
    with pytest.raises(WebhookInvalid):
        send(outbox, EVENT, source=crm, secret=NEW)
    assert send(outbox, EVENT, source=crm, secret=OLD) == 1
    assert send(outbox, EVENT, source=erp) == 1
    assert sorted(task.task_name for task in outbox.store.tasks()) == ["book", "note"]


def test_an_outbox_without_a_receiver_refuses_webhooks() -> None:
    with pytest.raises(ConfigurationError, match="no task receives webhooks"):
        Outbox().receive_webhook({}, b"")


def test_a_worker_does_not_connect_to_webhooks(
    outbox: Outbox, erp: WebhookSource, caplog: pytest.LogCaptureFixture
) -> None:
    send(outbox, EVENT)
    with caplog.at_level(logging.WARNING):
        run(outbox)
    assert caplog.records == []


def test_no_secret_is_shown_logged_or_stored(
    outbox: Outbox, erp: WebhookSource, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    texts = [repr(erp), str(erp), repr(outbox.tasks.receivers)]
    for call in (
        lambda: send(outbox, EVENT, age=900),
        lambda: outbox.receive_webhook({}, EVENT),
        lambda: WebhookSource(name="erp", secret=NEW[:20]),
        lambda: WebhookSource(name="erp", secret=[NEW, OLD], tolerance=0),
        lambda: WebhookSource(name="erp", secret=NEW, max_bytes=0),
        lambda: Outbox().receive_webhook({}, EVENT, source=erp),
    ):
        with pytest.raises((WebhookInvalid, InvalidArgument, ConfigurationError)) as caught:
            call()
        texts += [str(caught.value), repr(caught.value)]
    send(outbox, b"{]")
    run(outbox)
    (letter,) = outbox.store.dead_letters.list()
    found = "\n".join([*texts, caplog.text, repr(letter), outbox.store.get(letter.id).args])
    for secret in (NEW, OLD):
        assert secret.removeprefix("whsec_")[:12] not in found


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"name": ""}, "name"),
        ({"topic": "t" * 201}, "topic"),
        ({"secret": "whsec_short"}, "secret"),
        ({"secret": []}, "at least one secret"),
        ({"tolerance": -1}, "tolerance"),
        ({"max_bytes": 0}, "max_bytes"),
    ],
)
def test_a_source_with_invalid_options_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        WebhookSource(**{"name": "erp", "secret": NEW, **given})
