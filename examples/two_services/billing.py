"""The billing service: it writes one invoice for each order it receives, in its own database."""

import os

from outboxq import Outbox, TaskContext, configure_sqlite
from outboxq.brokers import RabbitMQ
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = configure_sqlite(create_engine("sqlite:///billing.db"))  # or postgresql+psycopg://user@host/database
outbox = Outbox(engine)
rabbitmq = RabbitMQ(url=os.environ.get("RABBITMQ_URL", "amqp://localhost/"), queue="billing")


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]
    cents: Mapped[int]


Base.metadata.create_all(engine)


@outbox.receive("order.*", source=rabbitmq, name="billing.invoice", transactional=True)
def invoice(ctx: TaskContext, payload: dict[str, int]) -> None:
    ctx.session.add(Invoice(order=payload["order"], cents=payload["cents"]))  # committed with the task: exactly once


if __name__ == "__main__":
    with Session(engine) as session:
        for one in session.scalars(select(Invoice).order_by(Invoice.id)):
            print(f"order {one.order}: {one.cents} cents")
