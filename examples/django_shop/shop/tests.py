"""Tests of the shop. `self.harness` checks what a test has enqueued, and `drain()` runs it as a worker would."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch
from uuid import UUID

from django.http import HttpResponse
from django.test import TestCase
from outboxq.testing import OutboxTests

from .models import LedgerEntry, Order
from .tasks import book, send_receipt

TEA = {"reference": "PO-1", "item": "tea", "quantity": 2}


class ShopTests(OutboxTests, TestCase):
    """Each test runs in a transaction that is rolled back together with its tasks."""

    def test_an_order_is_accepted_together_with_its_booking(self) -> None:
        response = self.order(TEA)
        self.assertEqual((response.status_code, response.json()["cents"]), (201, 2 * 995))
        self.harness.assert_enqueued(book, UUID(response.json()["id"]), queue="ledger", times=1)

    def test_an_order_is_booked_and_its_receipt_sent(self) -> None:
        order = self.order(TEA).json()
        self.assertFalse(order["booked"])
        self.assertEqual([ran.task_name for ran in self.harness.drain()], [book.name, send_receipt.name])
        self.assertEqual(self.client.get(f"/orders/{order['id']}").json(), order | {"booked": True})
        self.assertEqual(LedgerEntry.objects.count(), 1)

    def test_an_order_that_is_refused_leaves_nothing(self) -> None:
        self.assertEqual(self.order(TEA | {"item": "clotted cream"}).status_code, 409)
        self.harness.refute_enqueued()
        self.assertEqual(Order.objects.count(), 0)

    def test_the_same_request_twice_is_one_order(self) -> None:
        first, second = (self.order(TEA, headers={"Idempotency-Key": "same"}) for _ in range(2))
        self.assertEqual((first.status_code, second.status_code), (201, 200))
        self.assertEqual(first.json(), second.json())
        self.harness.assert_enqueued(book, times=1)

    def test_a_booking_that_fails_is_booked_once_when_it_is_tried_again(self) -> None:
        self.order(TEA)
        with patch("shop.tasks.send_receipt", None), self.assertRaises(AttributeError):  # after the ledger was written
            self.harness.drain()
        self.assertEqual(LedgerEntry.objects.count(), 0)
        self.harness.drain(until=3600)
        self.assertEqual(LedgerEntry.objects.count(), 1)

    def order(self, wanted: dict[str, Any], **options: Any) -> HttpResponse:
        return self.client.post("/orders", wanted, content_type="application/json", **options)
