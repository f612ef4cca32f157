"""Compare the final contents of the database with the answers that the customers received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Engine, Integer, MetaData, Table, Text, Uuid, func, select

from outboxq.database.tables import execution_events, task_executions
from outboxq.model import EventType, TaskStatus
from outboxq.store import Store
from tests.integrations.examples.customers import Wanted

_metadata = MetaData()
orders = Table(
    "orders",
    _metadata,
    *(Column(name, Uuid) for name in ("id", "task_id")),
    *(Column(name, Text) for name in ("reference", "item")),
    *(Column(name, Integer) for name in ("quantity", "cents")),
)
ledger = Table("ledger", _metadata, Column("order_id", Uuid), Column("cents", Integer))
stock = Table("stock", _metadata, *(Column(name, Integer) for name in ("left", "cents")), Column("item", Text))


def stocked(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return {row.item: row.left for row in connection.execute(select(stock.c.item, stock.c.left))}


def recoveries(engine: Engine) -> int:
    counted = select(func.count()).where(execution_events.c.event_type == EventType.RESET)
    with engine.connect() as connection:
        return int(connection.scalar(counted) or 0)


def complaints(engine: Engine, wanted: Iterable[Wanted], before: dict[str, int]) -> list[str]:
    """Return every way in which an order was not handled exactly once, or an empty list."""
    with engine.connect() as connection:
        placed = {row.id: row for row in connection.execute(select(orders))}
        booked = connection.execute(select(ledger)).all()
        tasks = {row.id: row for row in connection.execute(select(task_executions))}
        events = Counter(
            (row.task_execution_id, row.event_type)
            for row in connection.execute(select(execution_events.c.task_execution_id, execution_events.c.event_type))
        )
    return [
        *_of_customers(wanted, {UUID(str(one)): row.reference for one, row in placed.items()}),
        *_of_bookings(placed, booked),
        *_of_tasks(placed, tasks, events),
        *_of_stock(placed, before, stocked(engine)),
        *(f"verify: {violation}" for violation in Store(engine).verify()),
    ]


def _of_customers(wanted: Iterable[Wanted], placed: dict[UUID, str]) -> Iterable[str]:
    known: dict[str, list[str]] = {}
    for order_id, reference in placed.items():
        known.setdefault(reference, []).append(str(order_id))
    for one in wanted:
        found = known.pop(one.reference, [])
        if one.is_accepted and set(found) != one.ids:
            yield f"{one.reference} was answered with {one.answers}, and its orders are {found}"
        if one.is_refused and found:
            yield f"{one.reference} was refused ({one.answers}), and its orders are {found}"
        if len(found) > 1:
            yield f"{one.reference} was ordered once, and there are {len(found)} orders"
        if sum(status == 201 for status, _ in one.answers) > 1:
            yield f"{one.reference} was created more than once: {one.answers}"
    yield from (f"nobody ordered {reference}" for reference in known)


def _of_bookings(placed: dict[UUID, Any], booked: Iterable[Any]) -> Iterable[str]:
    entries: dict[UUID, list[int]] = {}
    for row in booked:
        entries.setdefault(row.order_id, []).append(row.cents)
    for order_id, order in placed.items():
        if (found := entries.pop(order_id, [])) != [order.cents]:
            yield f"order {order_id} over {order.cents} is in the ledger as {found}"
    yield from (f"the ledger has an order that does not exist: {order_id}" for order_id in entries)


def _of_tasks(placed: dict[UUID, Any], tasks: dict[UUID, Any], events: Counter[tuple[UUID, str]]) -> Iterable[str]:
    kinds: dict[str, list[UUID]] = {"book": [], "send_receipt": []}
    for task_id, task in tasks.items():
        kinds[task.task_name.rpartition(".")[2]].append(task_id)
        if task.status != TaskStatus.COMPLETED or events[task_id, EventType.COMPLETED] != 1:
            yield f"task {task_id} ({task.task_name}) is {task.status}: {task.last_error}"
    wanted = {order.task_id for order in placed.values()}
    for what, many in (("without an order", set(kinds["book"]) - wanted), ("missing", wanted - set(kinds["book"]))):
        yield from (f"a booking is {what}: {task_id}" for task_id in many)
    if len(kinds["send_receipt"]) != len(placed):
        yield f"{len(placed)} orders, and {len(kinds['send_receipt'])} receipts"


def _of_stock(placed: dict[UUID, Any], before: dict[str, int], after: dict[str, int]) -> Iterable[str]:
    sold: Counter[str] = Counter()
    for order in placed.values():
        sold[order.item] += order.quantity
    for item, had in before.items():
        if had - sold[item] != after[item]:
            yield f"of {had} {item}, {sold[item]} were sold and {after[item]} are left"
