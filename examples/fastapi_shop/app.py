"""The shop's endpoints. They are plain `def` functions: outboxq is synchronous, and FastAPI runs them in threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from uuid import UUID, uuid4

from fastapi import Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel, Field
from sqlalchemy import exists, select, update
from sqlalchemy.orm import Session

from models import LedgerEntry, Order, ReadingSession, Stock, WritingSession
from tasks import book

app = FastAPI(title="Shop")


def writing_session() -> Iterator[Session]:
    with WritingSession.begin() as session:
        yield session


def reading_session() -> Iterator[Session]:
    with ReadingSession() as session:
        yield session


# scope="function" commits before the response is sent. With the default scope, the commit would come later, so the
# customer would get "201 Created" for an order whose commit may still fail.
Writing = Annotated[Session, Depends(writing_session, scope="function")]
Reading = Annotated[Session, Depends(reading_session, scope="function")]


class NewOrder(BaseModel):
    reference: str = Field(max_length=100)
    item: str
    quantity: int = Field(ge=1)


class PlacedOrder(BaseModel):
    id: UUID
    item: str
    quantity: int
    cents: int
    booked: bool


@app.post("/orders", status_code=201)
def place_order(
    wanted: NewOrder,
    session: Writing,
    response: Response,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> PlacedOrder:
    order_id = uuid4()
    task = book.using(session, idempotency_key=idempotency_key).enqueue(order_id)
    if not task.created:  # the request was repeated
        response.status_code = 200
        return described(session, session.scalars(select(Order).where(Order.task_id == task.id)).one())

    stock = update(Stock).where(Stock.item == wanted.item, Stock.left >= wanted.quantity)
    price = session.scalar(stock.values(left=Stock.left - wanted.quantity).returning(Stock.cents))
    if price is None:
        raise HTTPException(409, f"there is not enough {wanted.item}")  # rolls everything back, including the task
    order = Order(
        id=order_id,
        reference=wanted.reference,
        item=wanted.item,
        quantity=wanted.quantity,
        cents=price * wanted.quantity,
        task_id=task.id,
    )
    session.add(order)
    return described(session, order)


@app.get("/orders/{order_id}")
def show_order(order_id: UUID, session: Reading) -> PlacedOrder:
    order = session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "there is no such order")
    return described(session, order)


def described(session: Session, order: Order) -> PlacedOrder:
    booked = session.scalar(select(exists().where(LedgerEntry.order_id == order.id)))
    return PlacedOrder(id=order.id, item=order.item, quantity=order.quantity, cents=order.cents, booked=bool(booked))
