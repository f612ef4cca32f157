"""The shop's tables."""

from __future__ import annotations

from uuid import UUID

from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)


class Stock(db.Model):
    item: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]
    left: Mapped[int]


class Order(db.Model):
    __tablename__ = "orders"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    reference: Mapped[str]
    """The name that the customer gave to the order."""
    item: Mapped[str]
    quantity: Mapped[int]
    cents: Mapped[int]
    task_id: Mapped[UUID] = mapped_column(unique=True)
    """The id of the task that books the order."""


class LedgerEntry(db.Model):
    __tablename__ = "ledger"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[UUID] = mapped_column(index=True)  # not unique: outboxq ensures that each order is booked once
    cents: Mapped[int]
