"""Measure the cost of order and fairness on both databases: `nox -s bench_keyed`.

The benchmark measures drains, and claims of 100 tasks from backlogs with different numbers of keys. In each round, these
claims take turns with a claim of tasks without keys. Other processes on the machine affect the times, so compare only the
ratios of one run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from sqlalchemy import Engine

from outboxq import migrations
from outboxq.database.engine import make_engine
from outboxq.model import EventType, Outcome
from outboxq.store import Store
from tests import postgres

BATCH = 100
PLAIN = "without keys"
SHAPES: dict[str, tuple[int, int]] = {
    "200 keys x 1 000": (200, 1_000),
    "1 key x 100 000": (1, 100_000),
    "100 000 keys x 1": (100_000, 1),
}
GROWTH: dict[str, dict[str, tuple[int, int]]] = {
    "200 keys": {"10 000": (200, 50), "1 000 000": (200, 5_000)},
    "1 key": {"10 000": (1, 10_000), "1 000 000": (1, 1_000_000)},
    "a task a key": {"10 000": (10_000, 1), "1 000 000": (1_000_000, 1)},
}

FILL = {
    "postgresql": """
        INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, partition_key, position, priority, args,
            status, attempt, recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at)
        SELECT id, id, 'bench', 'bench', key, n, 0, '{}', 'Ready', 1, 0, 60, 0, 'release', now(), now() FROM (
            SELECT n, ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id,
                'k' || lpad(((n::bigint * 7919) %% %(keys)s)::text, 7, '0') AS key FROM generate_series(1, %(rows)s) AS n) AS made;
        INSERT INTO task_outbox (task_execution_id, queue, priority, partition_key, position, available_at, created_at)
        SELECT id, queue, priority, partition_key, position, now(), now() FROM task_executions WHERE status = 'Ready' ORDER BY position;
    """,
    "sqlite": """
        WITH RECURSIVE made(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM made WHERE n < :rows)
        INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, partition_key, position, priority, args,
            status, attempt, recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at)
        SELECT printf('0190000000007000800000%010x', n), printf('0190000000007000800000%010x', n), 'bench', 'bench',
            printf('k%07d', (n * 7919) % :keys), n, 0, '{}', 'Ready', 1, 0, 60, 0, 'release',
            '2024-01-01T00:00:00.000000+00:00', '2024-01-01T00:00:00.000000+00:00' FROM made;
        INSERT INTO task_outbox (task_execution_id, queue, priority, partition_key, position, available_at, created_at)
        SELECT id, queue, priority, partition_key, position, created_at, created_at FROM task_executions
        WHERE status = 'Ready' ORDER BY position;
    """,
}


class Backlog:
    """A database with this number of keys, and `each` tasks for each key. Without keys, it is the baseline."""

    def __init__(self, url: str, keys: int | None, each: int) -> None:
        migrations.upgrade(url)
        self.engine = make_engine(url)
        self.store, self.worker = Store(self.engine), uuid4()
        fill(self.engine, keys or 1, (keys or 1) * each, keyed=keys is not None)

    def claim(self) -> float:
        """Claim a full batch, and return the seconds of the claim. The tasks are then completed, which is not measured."""
        began = time.perf_counter()
        claims = self.store.claim_ready_task(BATCH, worker_id=self.worker)
        took = time.perf_counter() - began
        self.complete(claims)
        assert claims
        return took

    def drain(self, most: int) -> float:
        """Claim and complete tasks until none is left or `most` are completed. Returns the number of tasks per second."""
        done, began = 0, time.perf_counter()
        while done < most and (claims := self.store.claim_ready_task(BATCH, worker_id=self.worker)):
            self.complete(claims)
            done += len(claims)
        return done / (time.perf_counter() - began)

    def complete(self, claims: list) -> None:
        self.store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])


def fill(engine: Engine, keys: int, rows: int, *, keyed: bool) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in FILL[engine.dialect.name].split(";"):
            if statement.strip():
                connection.exec_driver_sql(statement, {"keys": keys, "rows": rows} if "keys" in statement else {})
        if not keyed:
            connection.exec_driver_sql("UPDATE task_outbox SET partition_key = NULL")
            connection.exec_driver_sql("UPDATE task_executions SET partition_key = NULL")
        connection.exec_driver_sql("VACUUM ANALYZE" if engine.dialect.name == "postgresql" else "ANALYZE")


class Place:
    """Creates databases of one kind."""

    def __init__(self, name: str, server: postgres.Cluster, folder: Path) -> None:
        self.name, self._server, self._folder, self._made = name, server, folder, 0

    def backlog(self, keys: int | None, each: int) -> Backlog:
        self._made += 1
        sqlite = f"sqlite:///{self._folder}/{self._made}.db"
        return Backlog(sqlite if self.name == "sqlite" else self._server.create_database(), keys, each)


def in_turns(backlogs: dict[str, Backlog], rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each claim. Every round makes each claim once, so that noise affects all of them."""
    took: dict[str, list[float]] = {name: [] for name in backlogs}
    for turn in range(rounds + 5):
        for name, backlog in backlogs.items():
            seconds = backlog.claim()
            if turn >= 5:  # by then, the statements are compiled and planned
                took[name].append(seconds * 1000)
    return took


def p(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def claims(place: Place, rounds: int) -> None:
    backlogs = {PLAIN: place.backlog(None, 30_000)}
    backlogs |= {name: place.backlog(keys, each) for name, (keys, each) in SHAPES.items()}
    took = in_turns(backlogs, rounds)
    print(f"\n{place.name}: claim of {BATCH}, ms{'p50':>22}{'p95':>8}{'p95 / plain':>14}")
    for name, values in took.items():
        ratio = p(values, 0.95) / p(took[PLAIN], 0.95)
        print(f"  {name:34}{p(values, 0.5):>8.2f}{p(values, 0.95):>8.2f}{ratio:>14.1f}")


def growth(place: Place, rounds: int) -> None:
    print(f"\n{place.name}: the same, by backlog{'p95 10 000':>22}{'1 000 000':>12}{'ratio p95':>12}{'p50':>6}")
    for name, sizes in GROWTH.items():
        took = in_turns({size: place.backlog(*shape) for size, shape in sizes.items()}, rounds)
        small, large = took.values()
        low, high = p(small, 0.95), p(large, 0.95)
        middle = p(large, 0.5) / p(small, 0.5)
        print(f"  {name:34}{low:>12.2f}{high:>12.2f}{high / low:>12.2f}{middle:>6.2f}")


def drains(place: Place, rounds: int) -> None:
    def rates(make: Callable[[], Backlog], most: int) -> float:
        return statistics.median(make().drain(most) for _ in range(rounds))

    plain = rates(lambda: place.backlog(None, 20_000), 20_000)
    print(f"\n{place.name}: drained, tasks/s{'':14}{'':>8}{'ratio':>8}\n  {PLAIN:34}{plain:>8.0f}")
    for name, (keys, each) in {"200 keys x 100": (200, 100), "100 000 keys x 1": (100_000, 1)}.items():
        rate = rates(lambda keys=keys, each=each: place.backlog(keys, each), 20_000)
        print(f"  {name:34}{rate:>8.0f}{rate / plain:>8.2f}")
    one, rate = rates(lambda: one_by_one(place), 500), rates(lambda: place.backlog(1, 2_000), 500)
    print(f"  {'one key':34}{rate:>8.0f}{rate / one:>8.2f} of a plain loop of one ({one:.0f})")


def one_by_one(place: Place) -> Backlog:
    """Return a backlog without keys whose drain claims and completes one task at a time."""
    backlog = place.backlog(None, 2_000)
    claim = backlog.store.claim_ready_task
    backlog.store.claim_ready_task = lambda _limit, **options: claim(1, **options)  # type: ignore[method-assign]
    return backlog


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--drains", type=int, default=3)
    parser.add_argument("--only", choices=("claims", "growth", "drains"))
    given = parser.parse_args()
    server = postgres.start(durable=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("postgresql", "sqlite"):
                place = Place(name, server, Path(folder))
                for what, rounds in ((claims, given.rounds), (growth, given.rounds), (drains, given.drains)):
                    if given.only in (None, what.__name__):
                        what(place, rounds)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
