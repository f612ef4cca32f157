"""The application of the worker in test_commits.py. Its database is OUTBOXQ_DATABASE_URL."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outboxq import Outbox, RetryPolicy


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


outbox = Outbox()


@outbox.task(name="commits.see", retry=RetryPolicy.never())
def see(order: int) -> None:
    """Fail permanently unless the business row exists."""
    with Session(outbox.store.bound_engine) as session:
        session.scalars(select(Order).filter_by(id=order)).one()
