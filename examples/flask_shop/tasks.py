"""The tasks that follow an order: `flask --app shop outboxq worker` runs them."""

from __future__ import annotations

import logging
import os
from uuid import UUID

from outboxq import TaskContext
from outboxq.contrib.flask import Outboxq

from models import LedgerEntry, Order, db

outbox = Outboxq()
log = logging.getLogger("shop")

LEASE = float(os.environ.get("SHOP_LEASE", "60"))
"""The time in seconds after which another worker runs a dead worker's task."""


@outbox.task(name="shop.book", queue="ledger", transactional=True, lease=LEASE)
def book(order_id: UUID) -> None:
    """Write the entry and enqueue the receipt in the transaction of the task's completion, so both happen exactly once."""
    order = db.session.get(Order, order_id)
    db.session.add(LedgerEntry(order_id=order.id, cents=order.cents))
    send_receipt.enqueue(order.id)


@outbox.task(name="shop.send_receipt", queue="mail", lease=LEASE)
def send_receipt(ctx: TaskContext, order_id: UUID) -> str:
    """Send the receipt at least once, since mail leaves the database. The task's id lets the mail provider drop duplicates."""
    order = db.session.get(Order, order_id)
    log.info("receipt %s: %d × %s, %.2f", ctx.task_id, order.quantity, order.item, order.cents / 100)
    return order.reference
