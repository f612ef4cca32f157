"""Tests of the shop. outboxq's `harness` fixture checks what a test has enqueued, and `drain()` runs it as a worker would."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from outboxq.testing import Harness
from sqlalchemy import func, select

from app import app
from models import LedgerEntry, Order, ReadingSession
from tasks import book, send_receipt

TEA = {"reference": "PO-1", "item": "tea", "quantity": 2}


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def test_an_order_is_accepted_together_with_its_booking(client: TestClient, harness: Harness) -> None:
    response = client.post("/orders", json=TEA)
    assert (response.status_code, response.json()["cents"]) == (201, 2 * 995)
    harness.assert_enqueued(book, UUID(response.json()["id"]), queue="ledger", times=1)


def test_an_order_is_booked_and_its_receipt_sent(client: TestClient, harness: Harness) -> None:
    order = client.post("/orders", json=TEA).json()
    assert not order["booked"]
    assert [ran.task_name for ran in harness.drain()] == [book.name, send_receipt.name]
    assert client.get(f"/orders/{order['id']}").json() == order | {"booked": True}
    assert entries(order["id"]) == 1


def test_an_order_that_is_refused_leaves_nothing(client: TestClient, harness: Harness) -> None:
    response = client.post("/orders", json=TEA | {"item": "clotted cream", "reference": "PO-2"})
    assert response.status_code == 409
    harness.refute_enqueued()
    with ReadingSession() as session:
        assert session.scalars(select(Order).where(Order.reference == "PO-2")).all() == []


def test_the_same_request_twice_is_one_order(client: TestClient, harness: Harness) -> None:
    first, second = (client.post("/orders", json=TEA, headers={"Idempotency-Key": "same"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    harness.assert_enqueued(book, times=1)


def test_a_booking_that_fails_is_booked_once_when_it_is_tried_again(
    client: TestClient, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = client.post("/orders", json=TEA).json()
    with monkeypatch.context() as broken:
        broken.setattr("tasks.send_receipt", None)  # after the ledger was written
        with pytest.raises(AttributeError):
            harness.drain()
    assert entries(order["id"]) == 0
    harness.drain(until=3600)
    assert entries(order["id"]) == 1


def entries(order_id: str) -> int:
    with ReadingSession() as session:
        counted = select(func.count()).where(LedgerEntry.order_id == UUID(order_id))
        return session.scalar(counted) or 0
