"""Measure how ten million finished tasks affect later tasks: `nox -s bench_history`.

The benchmark compares the most frequent statements with hand-written ones, on empty and on full tables in turns, and counts
the pages that they read. It also measures the statistics, and the deletion of old history: in batches while a loop runs
tasks, and a month at a time. PostgreSQL runs with its default durability. Other processes on the machine affect the times,
so compare only the columns of one run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
from sqlalchemy import event

from benchmarks import raw
from benchmarks.forgetting import dropping, pruning
from benchmarks.past import Past, tidy
from benchmarks.place import Place, completed, libpq, new, said, timed
from benchmarks.raw_sqlite import Hand
from outboxq import migrations
from outboxq.database.dialects import Begin, dialect_for
from outboxq.database.engine import make_engine
from outboxq.model import Claim
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests import postgres

BATCH, SINGLES = 100, 10
WARM = 5
DURING = {"enqueue 1": SINGLES, f"enqueue {BATCH}": 1, f"claim {BATCH}": 1, f"complete {BATCH}": 1}
"""Maps each measured call to the number of times that a turn makes it."""


class Ours:
    """The calls of outboxq."""

    def __init__(self, store: Store) -> None:
        self._store, self._worker = store, uuid4()

    def enqueue(self, tasks: int) -> None:
        if tasks == 1:
            self._store.enqueue(new())
        else:
            self._store.enqueue_many([new() for _ in range(tasks)])

    def claim(self) -> list[Claim]:
        return self._store.claim_ready_task(BATCH, worker_id=self._worker, queues=["bench"])

    def complete(self, claims: Sequence[Claim]) -> None:
        self._store.finish([completed(claim) for claim in claims])

    def close(self) -> None: ...


class ByHand:
    """The SQL of `raw.py` through psycopg. Its claims are not flushed to disk either."""

    def __init__(self, address: str) -> None:
        self._worker = uuid4()
        self._durable = psycopg.connect(address, autocommit=True)
        self._relaxed = psycopg.connect(address, autocommit=True, options="-c synchronous_commit=off")

    def enqueue(self, tasks: int) -> None:
        # The statement for a batch is the same, with more rows. The client creates the ids, as in outboxq, so they are in time order.
        rows = "unnest(%(ids)s::uuid[]) AS id"
        statement = raw.ENQUEUE.replace("(SELECT gen_random_uuid() AS id)", f"(SELECT {rows})")
        assert statement != raw.ENQUEUE
        self._durable.execute(statement.encode(), {"number": 1, "ids": [uuid7() for _ in range(tasks)]})

    def claim(self) -> list[Any]:
        found = self._relaxed.execute(raw.CLAIM, {"limit": BATCH, "worker": self._worker}).fetchall()
        return [row[0] for row in found]

    def complete(self, ids: Sequence[Any]) -> None:
        self._durable.execute(raw.COMPLETE, {"ids": list(ids), "worker": self._worker})

    def close(self) -> None:
        self._durable.close()
        self._relaxed.close()


class ByHandOnSqlite(Hand):
    def enqueue(self, tasks: int) -> None:  # type: ignore[override]
        super().enqueue([uuid7() for _ in range(tasks)])

    def claim(self) -> list[Any]:  # type: ignore[override]
        return super().claim(BATCH)


def hands_of(place: Place) -> dict[str, Any]:
    if place.kind == "sqlite":
        return {"outboxq": Ours(place.store), "raw": ByHandOnSqlite(place.url.removeprefix("sqlite:///"))}
    return {"outboxq": Ours(place.store), "raw": ByHand(libpq(place.url))}


def hot(places: dict[str, Place], rounds: int) -> None:
    """Measure the milliseconds of each call. Every round makes each call once, so that noise affects all of them."""
    took: dict[tuple[str, str, str], list[float]] = {}
    hands = {side: hands_of(place) for side, place in places.items()}
    for turn in range(rounds + WARM):
        order = [(side, who) for side in places for who in ("outboxq", "raw")]
        for side, who in order if turn % 2 else reversed(order):
            for what, seconds in one_turn(hands[side][who]):
                if turn >= WARM:  # by then, the statements are compiled and planned
                    took.setdefault((what, side, who), []).append(seconds * 1000)
    for mine in hands.values():
        for hand in mine.values():
            hand.close()
    print(f"  {'ms, median of ' + str(rounds) + ' rounds':24}", end="")
    print("".join(f"{f'{who}, {side}':>16}" for side in places for who in ("outboxq", "raw")), end="")
    print(f"{'o/r empty':>11}{'o/r full':>10}{'quotient':>10}")
    for what in DURING:
        middle = {key[1:]: statistics.median(values) for key, values in took.items() if key[0] == what}
        ratio = {side: middle[side, "raw"] / middle[side, "outboxq"] for side in places}
        print(
            f"  {what:24}" + "".join(f"{middle[side, who]:>16.2f}" for side in places for who in ("outboxq", "raw")),
            end="",
        )
        print(
            f"{ratio['empty']:>11.2f}{ratio['full']:>10.2f}{ratio['full'] / ratio['empty']:>10.2f}"
            f"{said(ratio['full'] / ratio['empty'] >= 0.9, '>= 0.9')}"
        )


def one_turn(hand: Any) -> Iterator[tuple[str, float]]:
    """Make each call, and yield its name and its seconds. Only finished tasks are left behind."""
    for _ in range(SINGLES):
        yield "enqueue 1", timed(lambda: hand.enqueue(1))[0]
    yield f"enqueue {BATCH}", timed(lambda: hand.enqueue(BATCH))[0]
    seconds, claims = timed(hand.claim)
    assert len(claims) == BATCH
    yield f"claim {BATCH}", seconds
    yield f"complete {BATCH}", timed(lambda: hand.complete(claims))[0]
    hand.complete(hand.claim())


def buffers(places: dict[str, Place], rounds: int = 7) -> None:
    """Count the shared buffers that outboxq's statements hit or read, in transactions that are rolled back."""
    read: dict[str, dict[str, int]] = {}
    for side, place in places.items():
        ours = Ours(place.store)
        ours.enqueue(2 * BATCH)
        claims = ours.claim()
        calls: dict[str, Callable[[Any], object]] = {
            "enqueue 1": lambda using, s=place.store: s.enqueue(new(), using=using),
            f"enqueue {BATCH}": lambda using, s=place.store: s.enqueue_many([new() for _ in range(BATCH)], using=using),
            f"claim {BATCH}": lambda using, s=place.store: s.claim_ready_task(
                BATCH, worker_id=uuid4(), queues=["bench"], using=using
            ),
            f"complete {BATCH}": lambda using, s=place.store, c=claims: s.finish(
                [completed(o) for o in c], using=using
            ),
            f"heartbeat {BATCH}": lambda using, s=place.store, c=claims: s.heartbeat(c, using=using),
        }
        for name, call in calls.items():
            seen = captured(place, call)
            read.setdefault(name, {})[side] = min(visited(place, seen) for _ in range(rounds))
        ours.complete(claims)
        ours.complete(ours.claim())
    print(f"  {'shared buffers':24}" + "".join(f"{side:>10}" for side in places) + f"{'ratio':>10}")
    for name, found in read.items():
        ratio = found["full"] / found["empty"]
        print(f"  {name:24}{found['empty']:>10}{found['full']:>10}{ratio:>10.2f}{said(ratio <= 1.15, '<= 1.15')}")


@contextmanager
def begun(place: Place) -> Iterator[Any]:
    """Begin a transaction with outboxq's own statement, and roll it back at the end."""
    with place.store.bound_engine.connect() as connection:
        connection.exec_driver_sql(dialect_for(place.kind).begin[Begin.WRITE])
        yield connection
        connection.exec_driver_sql("ROLLBACK")


def captured(place: Place, call: Callable[[Any], object]) -> list[tuple[str, Any]]:
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    engine = place.store.bound_engine
    with begun(place) as connection:
        place.store.now(using=connection)  # looks up the schema, which happens only once
        event.listen(engine, "before_cursor_execute", note)
        call(connection)
        event.remove(engine, "before_cursor_execute", note)
    return seen


def visited(place: Place, statements: Sequence[tuple[str, Any]]) -> int:
    total = 0
    for sql, values in statements:
        with begun(place) as connection:
            found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql}", values)
            plan = found.scalar_one()[0]["Plan"]
            total += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return total


def stats(places: dict[str, Place], busy: int) -> None:
    """Measure the statistics of an idle hour, or of an hour in which `busy` tasks ended."""
    now, found = datetime.now(UTC), []
    for place in places.values():
        if busy:
            past = Past(rows=busy, begin=now - timedelta(minutes=50), end=now, queue="busy")
            past.write(place.store.bound_engine, bulk=False)
            tidy(place.store.bound_engine)
        found.append(statistics.median(timed(place.store.stats)[0] for _ in range(5)))
    name = f"{busy:,} in the hour" if busy else "an idle hour"
    print(f"  {'stats(), ms, ' + name:36}" + "".join(f"{side:>10}" for side in places))
    print(f"  {'':36}" + "".join(f"{seconds * 1000:>10.1f}" for seconds in found))


@contextmanager
def server() -> Iterator[postgres.Cluster]:
    cluster = postgres.start(prefer="own", durable=True)
    try:
        yield cluster
    finally:
        cluster.stop()


def set_up(cluster: postgres.Cluster, *, filling: bool) -> None:
    """Restart the server. While tables are being filled, it runs without WAL where possible; otherwise, with its defaults."""
    settings = ["wal_level = minimal", "max_wal_senders = 0", "max_wal_size = '8GB'"]
    with psycopg.connect(libpq(cluster.url), autocommit=True) as connection:
        for setting in settings if filling else ():
            connection.execute(f"ALTER SYSTEM SET {setting}".encode())
        if not filling:
            connection.execute("ALTER SYSTEM RESET ALL")
    cluster.restart()


def filled(url: str, past: Past | None) -> Place:
    migrations.upgrade(url)
    engine, began = make_engine(url), time.monotonic()
    if past is not None:
        past.write(engine)
    tidy(engine)
    if past is not None:
        print(
            f"  {past.rows:,} finished tasks, {3 * past.rows:,} events, written in {time.monotonic() - began:.0f} s",
            flush=True,
        )
    return Place(url=url, store=Store(engine))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of the measurement."""

    rows: dict[str, int]
    rounds: int
    busy: int = 100_000
    pruned: int = 1_000_000
    month: int = 1_000_000
    seconds: float = 20

    @property
    def quick(self) -> Sizes:
        """A hundredth of these sizes, to test that the benchmark works."""
        rows = {kind: number // 100 for kind, number in self.rows.items()}
        return Sizes(rows=rows, rounds=10, busy=1_000, pruned=10_000, month=10_000, seconds=3)


PARTS = ("hot", "buffers", "stats", "prune", "drop")


def measure(kind: str, urls: list[str], cluster: postgres.Cluster, sizes: Sizes, parts: set[str]) -> None:
    print(f"\n{kind}", flush=True)
    past = Past.of_months(sizes.rows[kind])
    if kind == "postgresql":
        set_up(cluster, filling=True)
    places = {"empty": filled(urls[0], None), "full": filled(urls[1], past)}
    if kind == "postgresql":
        set_up(cluster, filling=False)
    else:
        parts = parts - {"buffers", "drop"}
    measures: list[tuple[str, Callable[[], object]]] = [
        ("stats", lambda: stats(places, 0)),
        ("hot", lambda: hot(places, sizes.rounds)),
        ("buffers", lambda: buffers(places)),
        ("stats", lambda: stats(places, sizes.busy)),
        ("prune", lambda: pruning(places["full"], past, min(sizes.pruned, past.rows // 4), sizes.seconds)),
        ("drop", lambda: dropping(cluster.create_database(), sizes.month)),
    ]
    for part, run in measures:
        if part in parts:
            run()
            sys.stdout.flush()
    for place in places.values():
        place.store.bound_engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="number of finished tasks on PostgreSQL")
    parser.add_argument("--sqlite-rows", type=int, default=2_000_000, help="number of finished tasks on SQLite")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument(
        "--quick", action="store_true", help="use a hundredth of each number, only to check that everything works"
    )
    parser.add_argument("--only", choices=PARTS)
    given = parser.parse_args()
    sizes = Sizes(rows={"postgresql": given.rows, "sqlite": given.sqlite_rows}, rounds=given.rounds)
    parts = {given.only} if given.only else set(PARTS)
    with server() as cluster, tempfile.TemporaryDirectory() as folder:
        urls = {
            "postgresql": [cluster.create_database() for _ in range(2)],
            "sqlite": [f"sqlite:///{folder}/{side}.db" for side in ("empty", "full")],
        }
        for kind, both in urls.items():
            measure(kind, both, cluster, sizes.quick if given.quick else sizes, parts)


if __name__ == "__main__":
    main()
