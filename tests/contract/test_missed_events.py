"""A warning is logged if a declared task or relay misses an event because its subscription is not stored yet."""

from __future__ import annotations

import logging

import pytest

from outboxq import Outbox
from tests.conftest import Database
from tests.memory_broker import Broker


@pytest.fixture
def outbox(database: Database) -> Outbox:
    outbox = Outbox(database.engine, source="shop")
    outbox.relay("order.*", to=Broker(), name="orders")

    @outbox.task(name="shop.count", subscribe="order.paid")
    def count(payload: int) -> None: ...

    return outbox


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_an_emit_warns_once_about_each_subscriber_that_is_not_stored(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.emit("bill.paid", 1, using=outbox)
    assert warned(caplog) == []
    outbox.emit("order.sent", 2, using=outbox)
    [sentence] = warned(caplog)
    assert sentence == (
        "an event with the topic 'order.sent' was emitted, but the task 'relay.orders', which this application declares, will never "
        "receive it: the subscription is not stored yet; run outboxq upgrade APP before you emit events, or call sync_subscriptions()"
    )
    outbox.emit("order.paid", 3, using=outbox)
    outbox.emit("order.paid", 4, using=outbox)
    assert len(warned(caplog)) == 2
    assert "the task 'shop.count'," in warned(caplog)[1]


def test_stored_subscribers_get_the_event_without_a_warning(outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    outbox.sync_subscriptions()
    for _ in range(2):  # the second event has the same key, so the relay does not get it
        outbox.emit("order.paid", 1, using=outbox, idempotency_key="7")
    assert warned(caplog) == []


def test_an_emit_with_a_key_warns_too(outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    outbox.emit("order.paid", 1, using=outbox, idempotency_key="7")
    assert "but the tasks 'relay.orders', 'shop.count', which" in warned(caplog)[0]


def test_a_warning_names_a_few_of_many_subscribers(outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1_200):
        outbox.task(lambda _: None, name=f"shop.t{number:04}", subscribe="bill.paid")
    outbox.emit("bill.paid", 1, using=outbox)
    [sentence] = warned(caplog)
    assert "but the tasks 'shop.t0000', 'shop.t0001', 'shop.t0002' and 1,197 more, which" in sentence
