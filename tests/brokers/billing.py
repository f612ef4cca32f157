"""A campaign's billing service. It has its own database, in which each event has one effect, a row."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import text

from outboxq import Outbox, TaskContext
from tests.brokers.faulty import Counting, read_place

folder = Path(os.environ["CAMPAIGN"])
outbox = Outbox(source="billing")


@outbox.receive("*", source=Counting(read_place(folder / "source"), folder), name="book", transactional=True)
def book(ctx: TaskContext, payload: dict[str, int]) -> None:
    ctx.connection.execute(text("INSERT INTO effects (number) VALUES (:number)"), payload)
