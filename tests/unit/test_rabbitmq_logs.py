"""Logs of lost connections: outboxq reports the loss and drops pika's records about it. The application's own records are kept."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from uuid import uuid4

import pika
import pytest

from outboxq import CloudEvent
from outboxq.brokers import RabbitMQ
from outboxq.model.transports import Unsure
from tests import postgres


@pytest.fixture
def url() -> str:
    return f"amqp://127.0.0.1:{postgres.free_port()}/"


@pytest.fixture(autouse=True)
def level(caplog):
    """Set the root logger's level, so that the level of `pika` stays unset."""
    caplog.set_level(logging.INFO)


def of_pika(caplog) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.startswith("pika")]


def fail_to_publish(url: str) -> None:
    event = CloudEvent(id=uuid4(), source="shop", type="order.paid", time=datetime.now(UTC), data="{}")
    transport = RabbitMQ(url=url)
    [outcome] = transport.publish([event], time.monotonic() + 30)
    transport.close()
    assert isinstance(outcome, Unsure)


def fail_to_receive(url: str) -> None:
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        RabbitMQ(url=url, queue="billing").connect()


@pytest.mark.parametrize("fail", [fail_to_publish, fail_to_receive])
def test_records_of_pika_about_outboxqs_connections_are_dropped(url, fail, caplog):
    fail(url)
    assert of_pika(caplog) == []


@pytest.mark.parametrize("fail", [fail_to_publish, fail_to_receive])
def test_records_of_pika_are_kept_if_the_application_sets_the_level(url, fail, caplog):
    caplog.set_level(logging.INFO, logger="pika")
    fail(url)
    assert any(record.levelno == logging.ERROR for record in of_pika(caplog))


def test_records_about_the_applications_connections_are_kept(url, caplog):
    fail_to_receive(url)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(url))
    assert any(record.levelno == logging.ERROR for record in of_pika(caplog))
