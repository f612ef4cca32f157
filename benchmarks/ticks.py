"""Measure the cost of a tick in a test: `python -m benchmarks.ticks`, or `nox -s bench_ticks -- --on sqlite`.

A harness advances its clock past the ticks of a schedule whose task does nothing. Each tick is planted, claimed, run and
ended, either in savepoints of the test's transaction or in transactions of the harness. The figures come from the fastest
of many short rounds, because other processes slow down the rest.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy import StaticPool, create_engine

from outboxq import Outbox, configure_sqlite
from outboxq.testing import Harness
from tests import postgres

EVERY = 10
"""Seconds from one tick to the next."""
TICKS = 50
"""The number of ticks in a round."""


def main() -> int:
    given = arguments()
    print("| database | transactions | ms a tick | ms of processor time |\n|---|---|---|---|")
    if given.on in {"sqlite", "all"}:
        report("SQLite in memory", None, given.rounds)
        with tempfile.TemporaryDirectory() as folder:
            report("SQLite file", f"sqlite:///{folder}/ticks.db", given.rounds)
    if given.on in {"postgresql", "all"}:
        cluster = postgres.start(prefer="own")
        url = cluster.create_database()
        report("PostgreSQL", url, given.rounds)
        cluster.drop_database(url)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ticks", description=__doc__)
    parser.add_argument("--on", choices=["postgresql", "sqlite", "all"], default="all")
    parser.add_argument("--rounds", type=int, default=30)
    return parser.parse_args()


def report(database: str, url: str | None, rounds: int) -> None:
    """Print the cost of a tick in the test's transaction and in transactions of the harness. If `url` is None, the database is
    in memory."""
    for is_tests in (True, False):
        with harness_on(url, is_tests=is_tests) as harness:
            harness.advance(EVERY * 20)
            spent = [of_round(harness) for _ in range(rounds)]
        taken, busy = (min(figures) for figures in zip(*spent, strict=True))
        whose = "the test's" if is_tests else "the harness's"
        print(f"| {database} | {whose} | {taken:.2f} | {busy:.2f} |", flush=True)


@contextmanager
def harness_on(url: str | None, *, is_tests: bool) -> Iterator[Harness]:
    """Enter a harness whose outbox has one schedule. With `is_tests`, it works in an open transaction."""
    engine = create_engine(url or "sqlite://", **({} if url else {"poolclass": StaticPool}))
    if engine.dialect.name == "sqlite":
        configure_sqlite(engine)
    outbox = Outbox(engine)
    outbox.upgrade()
    outbox.periodic(every=EVERY, name="ticking")(outbox.task(name="bench.nothing")(lambda: None))
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        connection = stack.enter_context(engine.connect()) if is_tests else None
        if connection is not None:
            stack.callback(connection.begin().rollback)
        yield stack.enter_context(Harness(outbox, using=connection))


def of_round(harness: Harness) -> tuple[float, float]:
    """Return the milliseconds of a tick, in wall time and in this process's processor time."""
    began, busy = time.perf_counter(), time.process_time()
    ran = harness.advance(EVERY * TICKS)
    if len(ran) != TICKS:
        raise SystemExit(f"{len(ran)} of {TICKS} ticks ran")
    return (time.perf_counter() - began) / TICKS * 1e3, (time.process_time() - busy) / TICKS * 1e3


if __name__ == "__main__":
    sys.exit(main())
