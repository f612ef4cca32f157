"""outboxq, through its public interface."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta

from sqlalchemy import Engine, event

from benchmarks.peers.driver import Driver, began, main
from outboxq import Outbox
from outboxq.cli.console import leave_uncollected
from outboxq.database.engine import make_engine
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7

RELAXED = "sqlite+normal:"
"""The prefix for the path of a file that is written with synchronous=NORMAL. Without it, the setting is outboxq's default,
FULL."""


def engine_of(url: str) -> Engine:
    if url.startswith("postgresql:"):
        return make_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    engine = make_engine(f"sqlite:///{url.removeprefix(RELAXED)}")
    if url.startswith(RELAXED):
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = NORMAL"))
    return engine


class OutboxqDriver(Driver):
    settings = "8 threads, as `outboxq worker` has them; bulk is Store.enqueue_many"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._outbox = Outbox(engine_of(url))

        @self._outbox.task(name="bench", queue="bench")
        def bench(number: int) -> None:
            began(number)

        self._bench = bench

    def setup(self) -> None:
        self._outbox.upgrade()

    def enqueue(self, numbers: Iterable[int]) -> None:
        task = self._bench.using(self._outbox)
        for number in numbers:
            task.enqueue(number)

    def bulk(self, numbers: Sequence[int]) -> None:
        self._outbox.store.enqueue_many(
            [NewTask(id=uuid7(), task_name="bench", args=f'{{"number":{number}}}', queue="bench") for number in numbers]
        )

    def later(self, number: int, seconds: float) -> None:
        self._bench.using(self._outbox, delay=timedelta(seconds=seconds)).enqueue(number)

    def prepare(self) -> None:
        self._outbox.store.ensure_current()

    def work(self) -> None:
        worker = self._outbox.worker(queues=["bench"], concurrency=int(os.environ.get("BENCH_THREADS", "8")))
        leave_uncollected()  # as `outboxq worker` does
        raise SystemExit(worker.run())


if __name__ == "__main__":
    main(OutboxqDriver)
