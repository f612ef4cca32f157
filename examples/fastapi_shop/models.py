"""The shop's tables, and the sessions of requests and tasks."""

from __future__ import annotations

import os
from uuid import UUID

from outboxq import configure_sqlite
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

engine = configure_sqlite(create_engine(os.environ.get("SHOP_DATABASE_URL", "sqlite:///shop.db")))

WritingSession = sessionmaker(engine)
ReadingSession = sessionmaker(engine.execution_options(sqlite_begin="DEFERRED"))
"""For transactions that only read. On SQLite, they do not wait for writers. On PostgreSQL, there is no difference."""


class Base(DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "stock"

    item: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]
    left: Mapped[int]


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    reference: Mapped[str]
    """The name that the customer gave to the order."""
    item: Mapped[str]
    quantity: Mapped[int]
    cents: Mapped[int]
    task_id: Mapped[UUID] = mapped_column(unique=True)
    """The id of the task that books the order."""


class LedgerEntry(Base):
    __tablename__ = "ledger"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[UUID] = mapped_column(index=True)  # not unique: outboxq ensures that each order is booked once
    cents: Mapped[int]
