"""Measure the time that a task adds to its caller's transaction, compared with the same three rows written with text().

`python -m benchmarks.caller --on postgresql` measures single calls, which take turns in one run. It prints the minimum
and the median of three times: the wall time, the CPU time of this process, and the CPU time of the server's process.
The calls are: the rows written by hand, on the driver's connection and through the Session; `select 1` through the
Session; and outboxq's call, in the Session and in a separate transaction.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from benchmarks import raw, raw_sqlite
from benchmarks.bench import Bench, server
from benchmarks.queues import OUTBOXQ, RAW
from benchmarks.results import MILLISECONDS
from outboxq import Outbox, configure_sqlite, migrations
from outboxq.model.uuid7 import uuid7

_number = ("'{\"number\": ' || %(number)s || '}'", ":args")
DRIVEN = {"postgresql": (raw.ENQUEUE_ONE,), "sqlite": raw_sqlite.ENQUEUE}
HAND = {
    "postgresql": (raw.ENQUEUE_ONE.replace("%(id)s::uuid", "CAST(:id AS uuid)").replace(*_number),),
    "sqlite": raw_sqlite.ENQUEUE,
}
NOTHING = "nothing"
ASK = text("SELECT 1")
ORDER = text("INSERT INTO orders (id, number) VALUES (:id, :number)")


def caller(bench: Bench, kind: str) -> None:
    """Measure transactions with one order: without a task, with a task by hand, and with a task by outboxq, in random order."""
    url = bench.cluster.create_database() if kind == "postgresql" else f"sqlite:///{bench.folder / 'caller.db'}"
    with opened(url, kind) as application:
        application.turn(10)  # compiles and plans the statements
        for _ in range(bench.sizes.rounds):
            for way, (call, whole) in application.turn(bench.sizes.caller).items():
                if way != NOTHING:
                    title = f"{kind}: time that a task adds to the caller's transaction, until its commit"
                    bench.results.add(f"{kind}.caller", title, MILLISECONDS, way, call)
                bench.results.add(f"{kind}.caller.whole", f"{kind}: all of that transaction", MILLISECONDS, way, whole)


class Application:
    """An application with a table of orders and its own engine."""

    def __init__(self, url: str, kind: str) -> None:
        self.engine = create_engine(url)
        if kind == "sqlite":
            configure_sqlite(self.engine)
        self.outbox = Outbox(url)
        self._task = self.outbox.task(_nothing, name="bench", queue="bench")
        self._hand = [text(statement) for statement in HAND[kind]]
        self._driven = DRIVEN[kind]
        self._written = (lambda identity: identity) if kind == "postgresql" else (lambda identity: identity.hex)
        self._ways = {NOTHING: lambda *_: None, RAW: self._by_hand, OUTBOXQ: self._by_us}
        self._orders = 0
        with Session(self.engine) as session, session.begin():
            session.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, number INTEGER)"))

    def turn(self, times: int) -> dict[str, tuple[float, float]]:
        """For each way, return the median time of the task and of the whole transaction, in milliseconds."""
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
        for statement in self._hand:
            session.execute(statement, self._values(number))

    def _by_us(self, session: Session, number: int) -> None:
        self._task.using(session).enqueue(number)

    def counted(self, times: int) -> dict[str, list[tuple[float, ...]]]:
        """Return the microseconds of each call: in this thread, in the server's process, and in wall time."""
        found: dict[str, list[tuple[float, ...]]] = {}
        for number in range(times):
            with Session(self.engine) as session:
                raw: Any = session.connection().connection.driver_connection
                process = Path(f"/proc/{raw.info.backend_pid}/schedstat") if hasattr(raw, "info") else None
                calls: dict[str, Callable[[], object]] = {
                    "raw by hand": lambda raw=raw, number=number: self._by_driver(raw, number),
                    "by hand through the Session": lambda session=session, number=number: self._by_hand(
                        session, number
                    ),
                    "select 1 through the Session": lambda session=session: session.execute(ASK),
                    "ours in the Session": lambda session=session, number=number: self._by_us(session, number),
                }
                session.execute(ASK)  # begins the transaction
                for name in random.sample(list(calls), len(calls)):
                    found.setdefault(name, []).append(timed(calls[name], process))
                session.commit()
            found.setdefault("ours in a transaction of its own", []).append(
                timed(lambda number=number: self._task.using(self.outbox).enqueue(number), None)
            )
        return found

    def _by_driver(self, raw: Any, number: int) -> None:
        for statement in self._driven:
            raw.execute(statement, self._values(number))

    def _values(self, number: int) -> dict[str, Any]:
        return {
            "id": self._written(uuid7()),
            "number": number,
            "args": json.dumps({"number": number}),
            "now": raw_sqlite.now(),
        }


def timed(call: Callable[[], object], process: Path | None) -> tuple[float, ...]:
    def clocks() -> tuple[int, int, int]:
        spent = 0 if process is None else int(process.read_text().split()[0])
        return time.thread_time_ns(), spent, time.perf_counter_ns()

    before = clocks()
    call()
    return tuple((after - began) / 1000 for began, after in zip(before, clocks(), strict=True))


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.caller", description=__doc__)
    parser.add_argument("--on", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--calls", type=int, default=1000)
    given = parser.parse_args()
    with (
        server() if given.on == "postgresql" else nullcontext() as cluster,
        tempfile.TemporaryDirectory() as folder,
        opened(cluster.create_database() if cluster else f"sqlite:///{folder}/caller.db", given.on) as application,
    ):
        application.counted(50)  # compiles, prepares and plans the statements
        gc.disable()
        found = application.counted(given.calls)
    print(f"{given.on}, {given.calls} calls; us, least / median")
    print("| | CPU of the client | CPU of the server | wall |\n|---|---|---|---|")
    for name, times in found.items():
        figures = (f"{min(column):.0f} / {statistics.median(column):.0f}" for column in zip(*times, strict=True))
        print(f"| {name} | {' | '.join(figures)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
