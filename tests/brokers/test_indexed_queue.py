"""The tests' replacement for moto's queue works like Amazon's FIFO queues."""

from __future__ import annotations

from uuid import uuid4

import pytest
from moto.sqs.exceptions import ReceiptHandleIsInvalid
from moto.sqs.models import Message, SQSBackend

from tests.brokers import indexed_queue

pytestmark = pytest.mark.apart

NAME = "orders.fifo"


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr("moto.sqs.models.Queue", indexed_queue.IndexedQueue)
    made = SQSBackend("eu-central-1", "123456789012")
    made.create_queue(NAME, FifoQueue="true")
    return made


def send(service: SQSBackend, body: str, group: str = "ada", name: str | None = None) -> None:
    service.send_message(NAME, body, group_id=group, deduplication_id=name or uuid4().hex)


def receive(service: SQSBackend, count: int = 10) -> list[Message]:
    return service.receive_message(NAME, count, 0, 30)


def test_a_repeated_message_is_dropped_while_the_queue_contains_the_first_one(service):
    send(service, "first", name="one")
    send(service, "again", name="one")
    [got] = receive(service)
    assert got.body == "first"
    service.delete_message(NAME, got.receipt_handle)
    send(service, "later", name="one")
    assert [one.body for one in receive(service)] == ["later"]


def test_a_message_repeated_after_five_minutes_is_stored(service):
    send(service, "first", name="one")
    [queued] = service.queues[NAME]._messages
    queued.sent_timestamp -= 301_000
    send(service, "again", name="one")
    assert [one.body for one in receive(service)] == ["first", "again"]


def test_a_group_waits_while_one_of_its_messages_is_being_received(service):
    for number in range(3):
        send(service, f"ada {number}")
    send(service, "bob", group="bob")
    [first] = receive(service, 1)
    assert [first.body, *(one.body for one in receive(service))] == ["ada 0", "bob"]
    assert receive(service) == service.queues[NAME].messages == []
    service.delete_message(NAME, first.receipt_handle)
    assert [one.body for one in receive(service)] == ["ada 1", "ada 2"]


def test_a_message_not_deleted_in_time_is_delivered_again_before_later_messages(service):
    send(service, "ada 0")
    send(service, "ada 1")
    receive(service, 1)
    service.queues[NAME]._messages[0].change_visibility(-1)
    assert [one.body for one in receive(service)] == ["ada 0", "ada 1"]


def test_deleting_a_message_twice_is_not_an_error(service):
    send(service, "first")
    [got] = receive(service)
    service.delete_message(NAME, got.receipt_handle)
    service.delete_message(NAME, got.receipt_handle)
    assert service.queues[NAME]._messages == []
    with pytest.raises(ReceiptHandleIsInvalid):
        service.delete_message(NAME, "unknown")
