"""The tasks that follow an order: `outboxq worker tasks:outbox` runs them."""

from __future__ import annotations

import logging
import os
from uuid import UUID

from outboxq import Outbox, TaskContext

from models import LedgerEntry, Order, ReadingSession, engine

outbox = Outbox(engine)
log = logging.getLogger("shop")

LEASE = float(os.environ.get("SHOP_LEASE", "60"))
"""The time in seconds after which another worker runs a dead worker's task."""


@outbox.task(name="shop.book", queue="ledger", transactional=True, lease=LEASE)
def book(ctx: TaskContext, order_id: UUID) -> None:
    """Write the entry and enqueue the receipt in the transaction of the task's completion, so both happen exactly once."""
    order = ctx.session.get(Order, order_id)
    ctx.session.add(LedgerEntry(order_id=order.id, cents=order.cents))
    send_receipt.enqueue(order.id)


@outbox.task(name="shop.send_receipt", queue="mail", lease=LEASE)
def send_receipt(ctx: TaskContext, order_id: UUID) -> str:
    """Send the receipt at least once, since mail leaves the database. The task's id lets the mail provider drop duplicates."""
    with ReadingSession() as session:
        order = session.get(Order, order_id)
    log.info("receipt %s: %d × %s, %.2f", ctx.task_id, order.quantity, order.item, order.cents / 100)
    return order.reference
