"""What happens after an order was placed: `manage.py outboxq_worker` runs it."""

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
    """The entry, the receipt's task, and the end of this one: one transaction, so it happens exactly once."""
    order = Order.objects.get(pk=order_id)
    LedgerEntry.objects.create(order=order, cents=order.cents)
    send_receipt.enqueue(order.id)


@outbox.task(name="shop.send_receipt", queue="mail", lease=settings.LEASE)
def send_receipt(ctx: TaskContext, order_id: UUID) -> str:
    """Mail leaves the database, so it happens at least once; the task's id tells the mail provider which are the same."""
    order = Order.objects.get(pk=order_id)
    log.info("receipt %s: %d × %s, %.2f", ctx.task_id, order.quantity, order.item, order.cents / 100)
    return order.reference
