"""Measure the deletion of old history: in batches while a loop runs tasks, and a month at a time."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from benchmarks.past import Past, tidy
from benchmarks.place import Place, completed, new, p99, said, timed
from outboxq import migrations
from outboxq.database.dialects.partitioning import Partitioning
from outboxq.database.engine import make_engine
from outboxq.model.periods import Every, Period, periods
from outboxq.store import Store


def pruning(place: Place, past: Past, rows: int, seconds: float, each: int = 10, rate: int = 500) -> None:
    """Measure a prune in batches by a separate process, while a loop claims `each` tasks at a time, `rate` per second."""
    now = datetime.now(UTC)
    older_than = now - past.moment(rows) + timedelta(seconds=1)
    loop = Loop(place.store, each, rate)
    before = loop.run(until=lambda began: time.monotonic() - began > seconds)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answer = pool.apply_async(prune, (place.url, older_than))
        during = loop.run(until=lambda _: answer.ready())
        took, gone = answer.get()
    low, high = p99(before.claims), p99(during.claims)
    print(f"  pruned {gone:,} tasks in {took:.1f} s, {gone / took:,.0f} a second, beside {during.rate:.0f} tasks/s")
    print(
        f"  claim of {each}, p50 and p99, ms: before {statistics.median(before.claims):.2f} {low:.2f} ({before.rate:.0f} tasks/s),"
        f" during {statistics.median(during.claims):.2f} {high:.2f}; p99 x {high / low:.2f}{said(high <= 2 * low, '<= 2')}"
    )


def prune(url: str, older_than: timedelta) -> tuple[float, int]:
    engine = make_engine(url)
    Store(engine).prune(1e9)  # deletes nothing, but compiles the statements
    return timed(lambda: Store(engine).prune(older_than))


class Loop:
    """A worker that runs tasks at a steady rate."""

    def __init__(self, store: Store, each: int, rate: int) -> None:
        self._store, self._each, self._pause, self._worker = store, each, each / rate, uuid4()
        self.claims: list[float] = []
        self.rate = 0.0

    def run(self, until: Callable[[float], bool]) -> Loop:
        ran = Loop.__new__(Loop)
        ran.claims, done, began = [], 0, time.monotonic()
        while not until(began) or len(ran.claims) < 20:
            turn = time.monotonic()
            self._store.enqueue_many([new() for _ in range(self._each)])
            seconds, claims = timed(
                lambda: self._store.claim_ready_task(self._each, worker_id=self._worker, queues=["bench"])
            )
            self._store.finish([completed(claim) for claim in claims])
            ran.claims.append(seconds * 1000)
            done += len(claims)
            time.sleep(max(0.0, turn + self._pause - time.monotonic()))
        ran.rate = done / (time.monotonic() - began)
        return ran


def dropping(url: str, rows: int) -> None:
    """Measure the deletion of the oldest month of a partitioned history. That month is half a year old."""
    migrations.upgrade(url)
    engine = make_engine(url)
    store, now = Store(engine), datetime.now(UTC)
    half_a_year_ago = periods(Every.MONTH, now - timedelta(days=183), 9)
    partition(store, half_a_year_ago)
    for number, month in enumerate(half_a_year_ago[1:3]):
        end = month.end - timedelta(seconds=1)
        Past(rows=rows, begin=month.begin, end=end, queue=f"month {number}").write(engine, bulk=False)
    tidy(engine)
    place = Place(url=url, store=store)
    dead = "SELECT pg_stat_force_next_flush(), (SELECT sum(n_dead_tup) FROM pg_stat_user_tables)"
    with engine.connect() as connection:
        before = connection.exec_driver_sql(dead).one()[1]
    oldest = half_a_year_ago[1]
    took, gone = timed(lambda: store.prune(datetime.now(UTC) - oldest.end, whole_partitions=True))
    with engine.connect() as connection:
        after = connection.exec_driver_sql(dead).one()[1]
    left = place.scalar("SELECT count(*) FROM task_executions")
    print(
        f"  the oldest month, {gone:,} tasks with their events: {took * 1000:.0f} ms; dead tuples {before} before, {after} after"
    )
    assert (gone, left) == (rows, rows)
    engine.dispose()


def partition(store: Store, wanted: Sequence[Period]) -> None:
    """Partition an empty history by these periods, as `outboxq partition` would have done at the time. All periods except the
    first become tables."""
    with store.bound_engine.begin() as connection:
        connection.exec_driver_sql("BEGIN")

        def execute(text: str, values: Any) -> Any:
            found = connection.exec_driver_sql(text, dict(values))
            return found.all() if found.returns_rows else []

        Partitioning(store.dialect).bring_up_to_date(execute, wanted, wanted[0].begin, dry_run=False)
        connection.exec_driver_sql("COMMIT")
