"""What a task adds to the transaction of a caller, beside the same three rows by text() through the same Session."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from benchmarks import raw, raw_sqlite
from benchmarks.bench import Bench
from benchmarks.queues import OUTBOXQ, RAW
from benchmarks.results import MILLISECONDS
from outboxq import Outbox, configure_sqlite, migrations
from outboxq.model.uuid7 import uuid7

_number = ("'{\"number\": ' || %(number)s || '}'", ":args")
HAND = {
    "postgresql": (raw.ENQUEUE_ONE.replace("%(id)s::uuid", "CAST(:id AS uuid)").replace(*_number),),
    "sqlite": raw_sqlite.ENQUEUE,
}
NOTHING = "nothing"
ORDER = text("INSERT INTO orders (id, number) VALUES (:id, :number)")


def caller(bench: Bench, kind: str) -> None:
    """One order in a transaction of its own: alone, with a task by hand, with a task by us, in random order."""
    url = bench.cluster.create_database() if kind == "postgresql" else f"sqlite:///{bench.folder / 'caller.db'}"
    with opened(url, kind) as application:
        application.turn(10)  # compiled and planned
        for _ in range(bench.sizes.rounds):
            for way, (call, whole) in application.turn(bench.sizes.caller).items():
                if way != NOTHING:
                    title = f"{kind}: time that a task adds to the caller's transaction, until its commit"
                    bench.results.add(f"{kind}.caller", title, MILLISECONDS, way, call)
                bench.results.add(f"{kind}.caller.whole", f"{kind}: all of that transaction", MILLISECONDS, way, whole)


class Application:
    """A host with a table of orders, and an engine of its own."""

    def __init__(self, url: str, kind: str) -> None:
        self.engine = create_engine(url)
        if kind == "sqlite":
            configure_sqlite(self.engine)
        self.outbox = Outbox(url)
        self._task = self.outbox.task(_nothing, name="bench", queue="bench")
        self._hand = [text(statement) for statement in HAND[kind]]
        self._written = (lambda identity: identity) if kind == "postgresql" else (lambda identity: identity.hex)
        self._ways = {NOTHING: lambda *_: None, RAW: self._by_hand, OUTBOXQ: self._by_us}
        self._orders = 0
        with Session(self.engine) as session, session.begin():
            session.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, number INTEGER)"))

    def turn(self, times: int) -> dict[str, tuple[float, float]]:
        """Milliseconds of the task and of the whole transaction in each way, medians."""
        calls: dict[str, list[float]] = {way: [] for way in self._ways}
        wholes: dict[str, list[float]] = {way: [] for way in self._ways}
        for _ in range(times):
            for way in random.sample(list(self._ways), len(self._ways)):
                self._orders += 1
                began = time.perf_counter()
                with Session(self.engine) as session, session.begin():
                    session.execute(ORDER, {"id": self._orders, "number": self._orders})
                    before = time.perf_counter()
                    self._ways[way](session, self._orders)
                    after = time.perf_counter()
                calls[way].append((after - before) * 1000)
                wholes[way].append((time.perf_counter() - began) * 1000)
        return {way: (statistics.median(calls[way]), statistics.median(wholes[way])) for way in self._ways}

    def _by_hand(self, session: Session, number: int) -> None:
        values = {"id": self._written(uuid7()), "args": json.dumps({"number": number}), "now": raw_sqlite.now()}
        for statement in self._hand:
            session.execute(statement, values)

    def _by_us(self, session: Session, number: int) -> None:
        self._task.using(session).enqueue(number)


@contextmanager
def opened(url: str, kind: str) -> Iterator[Application]:
    migrations.upgrade(url)
    application = Application(url, kind)
    try:
        yield application
    finally:
        application.engine.dispose()
        application.outbox.store.bound_engine.dispose()


def _nothing(number: int) -> None: ...
