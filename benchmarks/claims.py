"""Measure claims that must skip rows: dead rows and tasks that are not due."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from uuid import uuid4

import psycopg

from benchmarks.bench import Bench
from benchmarks.past import tidy
from benchmarks.place import completed
from benchmarks.results import MILLISECONDS
from outboxq.model import Claim, NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store

WARM = 5
WORKER = uuid4()


def claims(bench: Bench, kind: str) -> None:
    """Measure claims on clean tables, behind rows that an old snapshot keeps, and behind tasks that are not due, in turns.

    On PostgreSQL, an old snapshot keeps dead rows. On SQLite, it keeps checkpoints from completing.
    """
    many, rounds = bench.sizes.dead, bench.sizes.claims
    stores = {side: bench.store(kind) for side in ("clean", "dead", "future")}
    with old_snapshot(bench, kind, stores["dead"]):
        pour(stores["dead"], many)
        while taken := claim(stores["dead"], 100):
            stores["dead"].finish([completed(one) for one in taken])
        pour(stores["future"], many, delay=timedelta(hours=1))
        time.sleep(1.1)  # PostgreSQL counts dead rows once a second, and the claims use this count
        for store in stores.values():
            pour(store, (rounds + WARM) * 101)
        for side in ("clean", "future"):
            tidy(stores[side].bound_engine)
        with stores["dead"].bound_engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE")
        for turn in range(rounds + WARM):
            for side, store in stores.items():
                for limit in (1, 100):
                    began = time.perf_counter()
                    taken = claim(store, limit)
                    took = (time.perf_counter() - began) * 1000
                    assert len(taken) == limit
                    store.finish([completed(one) for one in taken])
                    if turn >= WARM:
                        title = f"{kind}: claim of {limit}; clean, or behind {many:,} rows that are dead or future"
                        bench.results.add(f"{kind}.claim.{limit}", title, MILLISECONDS, side, took)


@contextmanager
def old_snapshot(bench: Bench, kind: str, store: Store) -> Iterator[None]:
    address = bench.address(store)
    if kind == "sqlite":
        with closing(sqlite3.connect(address, isolation_level=None)) as file:
            file.execute("BEGIN")
            file.execute("SELECT count(*) FROM task_outbox").fetchall()
            yield
    else:
        with psycopg.connect(address) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT count(*) FROM task_outbox")
            yield
            connection.rollback()


def claim(store: Store, limit: int) -> list[Claim]:
    return store.claim_ready_task(limit, worker_id=WORKER, queues=["bench"])


def new(delay: timedelta = timedelta(0)) -> NewTask:
    return NewTask(id=uuid7(), task_name="bench", args='{"number": 1}', queue="bench", delay=delay)


def pour(store: Store, tasks: int, delay: timedelta = timedelta(0)) -> None:
    for low in range(0, tasks, 10_000):
        store.enqueue_many([new(delay) for _ in range(min(10_000, tasks - low))])
