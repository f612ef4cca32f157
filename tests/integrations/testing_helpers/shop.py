"""A small shop whose database is a test's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, String, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outboxq import Outbox, RetryPolicy, TaskContext


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "test_orders"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    state: Mapped[str] = mapped_column(String(20), default="new")


@dataclass
class Shop:
    """The parts of an application that a test needs."""

    outbox: Outbox
    sessions: sessionmaker[Session]
    """The application's sessions, in the test's transaction."""
    tasks: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.tasks[name]


def declared(sessions: sessionmaker[Session]) -> tuple[Outbox, sessionmaker[Session], dict[str, Any]]:
    outbox = Outbox("sqlite:////nowhere/production.db")

    @outbox.task(name="shop.receipt", queue="mail", retry=RetryPolicy(max_attempts=3, wait=10))
    def receipt(order_id: int, copy_to: str = "nobody") -> str:
        return f"receipt {order_id}"

    @outbox.task(name="shop.book", queue="ledger", transactional=True)
    def book(ctx: TaskContext, order_id: int) -> int:
        ctx.session.get(Order, order_id).state = "booked"
        receipt.enqueue(order_id)
        return order_id

    @outbox.task(name="shop.ship", retry=RetryPolicy(max_attempts=2, wait=60))
    def ship(order_id: int) -> None:
        with sessions() as session:
            session.scalars(select(Order).filter_by(id=order_id)).one().state = "shipped"
            session.commit()

    @outbox.task(name="shop.break_everything", retry=RetryPolicy.never())
    def break_everything(order_id: int) -> None:
        with sessions() as session:
            session.get(Order, order_id).state = "broken"
            session.flush()
            session.execute(text("SELECT * FROM there_is_no_such_table"))

    @outbox.task(name="shop.notify", subscribe="order.*")
    def notify(payload: dict[str, int]) -> int:
        return payload["id"]

    return (
        outbox,
        sessions,
        {
            "receipt": receipt,
            "book": book,
            "ship": ship,
            "break_everything": break_everything,
            "notify": notify,
        },
    )
