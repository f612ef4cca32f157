"""What the hot statements cost on this machine, on both databases: `nox -s bench`.

PostgreSQL runs with its default durability. The machine is shared with whatever else runs on it, so compare the columns of
one run, not numbers of two.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1]))

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outboxq import migrations
from outboxq.engine import configure_sqlite, make_engine
from outboxq.model import EventType, NewTask, Outcome
from outboxq.store import Store
from outboxq.uuid7 import uuid7
from tests import postgres

BATCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    tasks = parser.parse_args().tasks
    figures: dict[str, dict[str, float]] = {}
    with databases() as found:
        for name, url in found:
            for what, rate in measure(url, tasks).items():
                figures.setdefault(what, {})[name] = rate
    print(f"\n{'tasks per second':46}{'sqlite':>12}{'postgresql':>12}")
    for what, rates in figures.items():
        print(f"{what:46}{rates['sqlite']:>12,.0f}{rates['postgresql']:>12,.0f}")


def measure(url: str, tasks: int) -> dict[str, float]:
    migrations.upgrade(url)
    engine, worker = make_engine(url), uuid4()
    store, host = Store(engine), create_engine(url)
    if host.dialect.name == "sqlite":
        configure_sqlite(host)
    figures = {}

    figures["enqueue, a transaction each"] = rate(200, lambda: [store.enqueue(task()) for _ in range(200)])
    with Session(host) as session:
        figures["enqueue, in one transaction of the caller"] = rate(
            1000, lambda: [store.enqueue(task(), using=session) for _ in range(1000)]
        )
        session.commit()
    figures["enqueue_many, 10 000 at once"] = rate(10_000, lambda: store.enqueue_many([task() for _ in range(10_000)]))
    store.enqueue_many([task() for _ in range(tasks)])

    def claim_and_complete(limit: int, queues: list[str] | None) -> int:
        claims = store.claim_ready_task(limit, worker_id=worker, queues=queues)
        store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])
        return len(claims)

    figures["claim 1 + complete 1"] = rate(200, lambda: [claim_and_complete(1, ["default"]) for _ in range(200)])
    rounds = tasks // BATCH // 3
    for name, queues in (("one queue", ["default"]), ("three queues", ["default", "a", "b"]), ("all queues", None)):
        seconds = statistics.median(timed(lambda q=queues: claim_and_complete(BATCH, q)) for _ in range(rounds))
        figures[f"claim {BATCH} + complete {BATCH}, {name}"] = BATCH / seconds
    claims = store.claim_ready_task(BATCH, worker_id=worker)
    figures[f"heartbeat {BATCH}"] = BATCH / statistics.median(timed(lambda: store.heartbeat(claims)) for _ in range(50))
    assert store.verify() == []
    host.dispose()
    engine.dispose()
    return figures


def task() -> NewTask:
    return NewTask(id=uuid7(), task_name="bench", args='{"number":1}', lease=timedelta(seconds=60))


def rate(tasks: int, work: Callable[[], object]) -> float:
    return tasks / timed(work)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextmanager
def databases() -> Iterator[list[tuple[str, str]]]:
    cluster = postgres.start(durable=True)
    try:
        with tempfile.TemporaryDirectory() as directory:
            yield [("sqlite", f"sqlite:///{directory}/bench.db"), ("postgresql", cluster.create_database())]
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
