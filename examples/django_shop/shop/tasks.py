"""The tasks that follow an order: `manage.py outboxq worker` runs them."""

from __future__ import annotations

import logging
from uuid import UUID

from django.conf import settings
from outboxq import TaskContext
from outboxq.contrib.django import outbox

from .models import LedgerEntry, Order

log = logging.getLogger("shop")


@outbox.task(name="shop.book", queue="ledger", transactional=True, lease=settings.LEASE)
def book(order_id: UUID) -> None:
    """Write the entry and enqueue the receipt in the transaction of the task's completion, so both happen exactly once."""
    order = Order.objects.get(pk=order_id)
    LedgerEntry.objects.create(order=order, cents=order.cents)
    send_receipt.enqueue(order.id)


@outbox.task(name="shop.send_receipt", queue="mail", lease=settings.LEASE)
def send_receipt(ctx: TaskContext, order_id: UUID) -> str:
    """Send the receipt at least once, since mail leaves the database. The task's id lets the mail provider drop duplicates."""
    order = Order.objects.get(pk=order_id)
    log.info("receipt %s: %d × %s, %.2f", ctx.task_id, order.quantity, order.item, order.cents / 100)
    return order.reference
