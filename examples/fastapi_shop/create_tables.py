"""Create the shop's tables, outboxq's tables, and some stock to sell. Run it once, and again after an upgrade."""

from __future__ import annotations

from models import Base, Stock, WritingSession, engine
from tasks import outbox

STOCK = {"tea": (995, 1_000_000), "biscuits": (250, 40), "clotted cream": (400, 0)}


def create_tables() -> None:
    Base.metadata.create_all(engine)
    outbox.upgrade()
    with WritingSession.begin() as session:
        for item, (cents, left) in STOCK.items():
            if session.get(Stock, item) is None:
                session.add(Stock(item=item, cents=cents, left=left))


if __name__ == "__main__":
    create_tables()
