"""The demo's small shop, written like a user's application. Its workers run `outboxq worker outboxq.cli.demo.shop:outbox`."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from functools import cache

from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.orm import Session

from ...context import TaskContext
from ...database.engine import configure_sqlite
from ...model import Handle
from ...outbox import Outbox
from ...retry import RetryPolicy

QUEUE = "outboxq-demo"
FLAKY_EVERY = 7
DECLINED = 13
HEAVY = 17

outbox = Outbox()
metadata = MetaData()
orders = Table("outboxq_demo_orders", metadata, Column("number", Integer, primary_key=True, autoincrement=False))
receipts = Table("outboxq_demo_receipts", metadata, Column("number", Integer, primary_key=True, autoincrement=False))
packers = Table("outboxq_demo_packers", metadata, Column("pid", Integer, primary_key=True, autoincrement=False))

LEASE = 3
"""The tasks' lease in seconds. The lease is short, because the demo waits for other workers to take over the dead
worker's tasks.
"""
SHORTLY = RetryPolicy(max_attempts=3, wait=timedelta(milliseconds=300))


@outbox.task(queue=QUEUE, retry=SHORTLY, lease=LEASE)
def send_receipt(ctx: TaskContext, number: int) -> str:
    """Send a receipt. The first attempt for every seventh order fails, as if the mail server were down."""
    if number % FLAKY_EVERY == 0 and ctx.attempt == 1:
        raise ConnectionError("the mail server hung up")
    with engine().begin() as connection:
        found = connection.execute(select(orders.c.number).where(orders.c.number == number)).first()
        if found is None:
            raise LookupError(f"there is no order {number}")
        # A task may run twice, but the receipt is written only once.
        if connection.execute(select(receipts.c.number).where(receipts.c.number == number)).first() is None:
            connection.execute(insert(receipts).values(number=number))
    return f"receipt for order {number}"


@outbox.task(queue=QUEUE, retry=SHORTLY, lease=LEASE)
def charge_card(number: int) -> None:
    """Charge the card. One customer's card is always declined, so that customer's task becomes a dead letter."""
    if number == DECLINED:
        raise PermissionError("card declined")


@outbox.task(queue=QUEUE, retry=SHORTLY, lease=LEASE)
def pack_parcel(ctx: TaskContext, number: int) -> None:
    """Pack a parcel. One parcel is heavy: the worker is killed while packing it, and the next worker succeeds."""
    if number != HEAVY or ctx.recovery_attempts:
        return
    with engine().begin() as connection:
        connection.execute(insert(packers).values(pid=os.getpid()))
    while not ctx.should_stop:
        time.sleep(0.05)


def place_order(session: Session, number: int) -> list[Handle]:
    """Write the order and enqueue its three tasks, in the caller's transaction."""
    session.execute(insert(orders).values(number=number))
    return [task.using(session).enqueue(number) for task in (send_receipt, charge_card, pack_parcel)]


@cache
def engine() -> Engine:
    """Return the shop's own engine, on the same database as its outbox."""
    return configure_sqlite(create_engine(outbox.store.bound_engine.url))


def close() -> None:
    """Close the connections to the shop's database."""
    engine().dispose()
    outbox.store.bound_engine.dispose()
    engine.cache_clear()
