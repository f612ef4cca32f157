"""What happens after an order was placed: `flask --app shop outboxq worker` runs it."""

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
"""Seconds until somebody else takes over the task of a worker that died."""


@outbox.task(name="shop.book", queue="ledger", transactional=True, lease=LEASE)
def book(order_id: UUID) -> None:
    """The entry, the receipt's task, and the end of this one: one transaction, so it happens exactly once."""
    order = db.session.get(Order, order_id)
    db.session.add(LedgerEntry(order_id=order.id, cents=order.cents))
    send_receipt.enqueue(order.id)


@outbox.task(name="shop.send_receipt", queue="mail", lease=LEASE)
def send_receipt(ctx: TaskContext, order_id: UUID) -> str:
    """Mail leaves the database, so it happens at least once; the task's id tells the mail provider which are the same."""
    order = db.session.get(Order, order_id)
    log.info("receipt %s: %d × %s, %.2f", ctx.task_id, order.quantity, order.item, order.cents / 100)
    return order.reference
