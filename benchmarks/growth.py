"""Measure the cost of each call as the tables grow: `python -m benchmarks.growth`, or `nox -s bench_growth`.

The tables contain from 10 000 to 10 000 000 finished tasks, in ordinary tables or in daily partitions, or the same numbers
of waiting tasks. The benchmark measures the pages, the WAL and the time of an enqueue, a claim, a completion and a query;
the disk space of a task; and the deletion of one day's tasks. It runs on PostgreSQL, with its default durability, and on
SQLite. Pages and bytes are exact, but the times depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks import curves
from benchmarks.bench import SERVER, about
from benchmarks.calls import costs, times
from benchmarks.forgetting import partition
from benchmarks.history import set_up
from benchmarks.past import Past, tidy
from benchmarks.place import Place, timed
from benchmarks.queues import OUTBOXQ, POSTGRESQL, RAW
from benchmarks.results import BYTES, COUNT, MICROSECONDS, MILLISECONDS, Results
from benchmarks.running import PostgresqlBase, Running, SqliteBase
from benchmarks.waiting import Waiting
from outboxq import migrations
from outboxq.database.engine import make_engine
from outboxq.model.periods import Every, periods
from outboxq.store import Store
from tests import postgres

SMALLEST = 10_000
DAYS = 30
VERIFIED = 100_000
"""The largest number of tasks with which `verify` is measured, because it reads all rows."""
ORDINARY, PARTITIONED, WAITING = "finished", "finished, partitions of a day", "waiting"
SERIES = {"postgresql": (ORDINARY, PARTITIONED, WAITING), "sqlite": (ORDINARY, WAITING)}
MOST = {"postgresql": 1_000_000_000, "sqlite": 1_000_000}
HURRIED = 1_000_000
"""From this number of rows on, the rows are written without WAL, which requires two restarts of the server."""
COUNTED = 8
"""The number of rounds in which pages and WAL are counted. They hardly differ between rounds."""


@dataclass(slots=True)
class Growth:
    """One run."""

    results: Results
    cluster: postgres.Cluster
    folder: Path
    rows: int
    until: float
    """A size is measured only if it is expected to end by this time (`time.monotonic()`)."""
    least: int = SMALLEST
    only: Sequence[str] = ()
    rounds: int = 20
    drained: int = 20_000
    _took: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def run(self, kinds: Sequence[str], keep: Callable[[], None]) -> None:
        """Measure the small sizes of all series first, so that only the largest ones are left out if the time runs out. `keep` is
        called after each size."""
        for rows in (one for one in sizes(self.rows) if one >= min(self.least, self.rows)):
            for kind in (one for one in kinds if rows <= MOST[one]):
                for series in (one for one in SERIES[kind] if not self.only or one in self.only):
                    expected = self._expected(kind, series)
                    if time.monotonic() + expected > self.until:
                        self.results.missing[f"{kind}, {series}, {rows:,}"] = f"takes {expected / 60:.0f} minutes"
                        continue
                    began = time.monotonic()
                    self._measure(kind, series, rows)
                    took = time.monotonic() - began
                    self._took.setdefault((kind, series), []).append(took)
                    print(f"{kind}, {rows:,} {series}: {took:.0f} s", file=sys.stderr, flush=True)
                    keep()

    def _expected(self, kind: str, series: str) -> float:
        """Return the expected seconds of the next size. Much of a small size's time is the same for all sizes."""
        took = self._took.get((kind, series), [])
        return took[-1] + 11 * max(0.0, took[-1] - took[-2]) if len(took) > 1 else 0.0

    def add(self, kind: str, series: str, rows: int, what: str, unit: str, who: str, values: list[float]) -> None:
        """Record the figures of the queue `who`. There is a measure for each series, call and unit, with samples for
        each size.
        """
        key = f"{kind}.{series}.{what}.{unit}"
        self.results.add(key, f"{kind}, {series}: {what}", unit, f"{who} {rows}", [float(one) for one in values])

    def _measure(self, kind: str, series: str, rows: int) -> None:
        with self._place(kind, rows) as place:
            past = history(series, rows)
            self._fill(place, series, past)
            self._kept(place, series, rows)
            for what, milliseconds in times(place, waiting=series == WAITING, rounds=self.rounds).items():
                self.add(kind, series, rows, what, MILLISECONDS, OUTBOXQ, milliseconds)
            if kind == "postgresql":
                for (who, what), counts in costs(
                    place, waiting=series == WAITING, rounds=min(self.rounds, COUNTED)
                ).items():
                    self.add(kind, series, rows, what, COUNT, who, counts.buffers)
                    self.add(kind, series, rows, what, BYTES, who, counts.wal)
                if series == ORDINARY:
                    self._lives(place, rows)
            if rows <= VERIFIED:
                seconds, violations = timed(place.store.verify)
                assert violations == [], violations
                self.add(kind, series, rows, "verify", MILLISECONDS, OUTBOXQ, [seconds * 1000])
            if series != WAITING:
                self._forget(place, series, past)

    @contextlib.contextmanager
    def _place(self, kind: str, rows: int) -> Iterator[Place]:
        """Create a database, and drop it at the end."""
        path = self.folder / "growth.db"
        if kind == "postgresql" and rows >= HURRIED:
            set_up(self.cluster, filling=True)
        url = self.cluster.create_database() if kind == "postgresql" else f"sqlite:///{path}"
        migrations.upgrade(url)
        engine = make_engine(url)
        try:
            yield Place(url=url, store=Store(engine))
        finally:
            engine.dispose()
            if kind == "postgresql" and rows >= HURRIED:  # a drop waits for a checkpoint
                self.cluster.drop_database(url)
            if kind == "sqlite":
                for file in self.folder.glob("growth.db*"):
                    file.unlink()

    def _fill(self, place: Place, series: str, past: Past) -> None:
        engine = place.store.bound_engine
        if series == PARTITIONED:
            partition(place.store, periods(Every.DAY, past.begin - timedelta(days=1), DAYS + 4))
        past.write(engine)
        tidy(engine)
        if place.kind == "postgresql" and past.rows >= HURRIED:
            engine.dispose()
            set_up(self.cluster, filling=False)

    def _kept(self, place: Place, series: str, rows: int) -> None:
        """Record the bytes on disk for each task, in tables and indexes."""
        if place.kind == "postgresql":
            kept = {
                "rows": place.scalar(SIZE.format("table")) / rows,
                "indexes": place.scalar(SIZE.format("indexes")) / rows,
            }
        else:
            place.scalar("PRAGMA wal_checkpoint(TRUNCATE)")
            kept = {"the file": Path(place.url.removeprefix("sqlite:///")).stat().st_size / rows}
        for part, size in kept.items():
            self.add(place.kind, series, rows, f"bytes on disk for each task, {part}", BYTES, OUTBOXQ, [size])

    def _lives(self, place: Place, rows: int) -> None:
        """Record the CPU time and the WAL of tasks from the enqueue to the end, with a client process and a worker process, for
        outboxq and for raw."""
        for queue in (queue for queue in POSTGRESQL if queue.name in {OUTBOXQ, RAW}):
            base = PostgresqlBase(place.url, self.cluster.pid)
            running = Running(queue, sys.executable, base, self.folder / "log")
            try:
                server, wal = base.cost()
                singles = max(200, self.drained // 10)
                running.client.ask("enqueue", singles)
                after, written = base.cost()
                self._spent(rows, queue.name, "enqueue", after - server, written - wal, singles + 20)
                while base.scalar(queue.unfinished):
                    with running.workers(1) as found:
                        running.drained(found, singles + 20)
                server, wal = base.cost()
                running.client.ask("fill", self.drained)
                after, written = base.cost()
                self._spent(rows, queue.name, "enqueue among 10 000", after - server, written - wal, self.drained)
                base.tidy()
                done = running.drain(self.drained)
                self._spent(rows, queue.name, "claim and completion", done.server, done.wal, self.drained)
                what, worker = "CPU of a worker process for a task", done.worker / self.drained * 1e6
                self.add("postgresql", ORDINARY, rows, what, MICROSECONDS, queue.name, [worker])
            finally:
                running.close()

    def _spent(self, rows: int, who: str, what: str, server: float, wal: int, tasks: int) -> None:
        cpu = f"CPU of the server for a task's {what}"
        self.add("postgresql", ORDINARY, rows, cpu, MICROSECONDS, who, [server / tasks * 1e6])
        self.add("postgresql", ORDINARY, rows, f"log of a task's {what}", BYTES, who, [wal / tasks])

    def _forget(self, place: Place, series: str, past: Past) -> None:
        """Record the deletion of the oldest day."""
        age = datetime.now(UTC) - past.begin - timedelta(days=1)
        base = PostgresqlBase(place.url, self.cluster.pid) if place.kind == "postgresql" else SqliteBase(":memory:")
        server, wal = base.cost()
        seconds, gone = timed(lambda: place.store.prune(age, whole_partitions=series == PARTITIONED))
        after, written = base.cost()
        base.close()
        late = 1 + past.rows / (DAYS * 24 * 3600)  # tasks that ended on the next day, half a second after they began
        assert abs(gone - past.rows / DAYS) <= late, gone
        what = "a day is dropped" if series == PARTITIONED else "a day is deleted"
        self.add(place.kind, series, past.rows, what, MILLISECONDS, OUTBOXQ, [seconds * 1000])
        if place.kind == "postgresql":
            self.add(
                place.kind, series, past.rows, f"{what}, log for each task", BYTES, OUTBOXQ, [(written - wal) / gone]
            )
            cpu = (after - server) / gone * 1e6
            self.add(
                place.kind, series, past.rows, f"{what}, CPU of the server for each task", MICROSECONDS, OUTBOXQ, [cpu]
            )


SIZE = """
SELECT sum(pg_{}_size(oid)) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname ~ '^(task|execution)_'
"""


def sizes(most: int) -> list[int]:
    """Return the sizes 10 000, 100 000 and so on, and `most` as the last one."""
    found, rows = [], SMALLEST
    while rows < most:
        found.append(rows)
        rows *= 10
    return [*found, most]


def history(series: str, rows: int) -> Past:
    """Return tasks from 30 whole days, up to the end of the day before yesterday."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    begin, end = today - timedelta(days=DAYS + 1), today - timedelta(days=1)
    return Waiting(rows=rows, begin=begin, end=end) if series == WAITING else Past(rows=rows, begin=begin, end=end)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="largest size; at most 1,000,000 on SQLite")
    parser.add_argument("--least", type=int, default=SMALLEST, help="smallest size")
    parser.add_argument("--on", choices=SERIES, help="measure only this database")
    parser.add_argument(
        "--only", action="append", choices=SERIES["postgresql"], help="fill only these tables; may be repeated"
    )
    parser.add_argument("--minutes", type=float, default=25, help="do not begin a size that would end later than this")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--charts", type=Path, help="write charts into this directory")
    parser.add_argument("--read", type=Path, help="print and draw a file that --json wrote, without measuring")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = Results.read(given.read) if given.read else measured(given)
    print("\n".join(curves.tables(results)))
    if given.json and not given.read:
        results.write(given.json)
    if given.charts:
        curves.write(results, given.charts)
    return 0


def measured(given: argparse.Namespace) -> Results:
    results, began = Results(), time.monotonic()
    cluster = postgres.start(prefer="own", durable=True, settings=SERVER)
    try:
        with tempfile.TemporaryDirectory() as folder:
            results.about = about(cluster, Path(folder))
            growth = Growth(
                results=results,
                cluster=cluster,
                folder=Path(folder),
                rows=given.rows,
                until=began + given.minutes * 60,
                least=given.least,
                only=given.only or (),
                rounds=given.rounds,
                drained=min(20_000, given.rows // 10),
            )
            kinds = [kind for kind in SERIES if given.on in {None, kind}]
            growth.run(kinds, lambda: results.write(given.json) if given.json else None)
    finally:
        cluster.stop()
    results.about["took"] = f"{time.monotonic() - began:.0f} s"
    return results


if __name__ == "__main__":
    raise SystemExit(main())
