"""Measure the delay of results and the cost of waiting for them: `python -m benchmarks.awaited`, or `nox -s bench_results`.

A worker in another process runs the tasks. The latency is the time from the return of the function to the return of
`result()`, so it includes the write of the task's end. The processor time is that of the whole waiting process, with its
threads.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from benchmarks.bench import SERVER
from outboxq import Handle, Outbox, migrations
from tests import postgres

SPANS = (0.0, 0.1, 1.0, 5.0)
"""The durations, in seconds, of the tasks whose latency is measured."""
SETTLED = 15.0
"""Seconds after which the pauses between polls have reached their maximum, and the cost of the first polls has been spent."""


def declared(url: str) -> Outbox:
    outbox = Outbox(url)

    @outbox.task(name="bench.take")
    def take(seconds: float) -> float:
        ended = threading.Event()
        ended.wait(seconds)
        return time.time()

    return outbox


def main() -> int:
    given = arguments()
    if given.work:
        return declared(given.work).worker(concurrency=16).run()
    with tempfile.TemporaryDirectory() as folder:
        if given.on == "postgresql":
            cluster = postgres.start(prefer="own", durable=True, settings=SERVER)
            url = cluster.create_database()
        else:
            url = f"sqlite:///{folder}/awaited.db"
        migrations.upgrade(url)
        print(f"{given.on}\n| what | figure |\n|---|---|")
        outbox = declared(url)
        with worker(url):
            latencies(outbox, given.rounds)
        callers(outbox, url, given.callers, given.seconds)
        outbox.store.bound_engine.dispose()
        if given.on == "postgresql":
            cluster.drop_database(url)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.awaited", description=__doc__)
    parser.add_argument("--on", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument(
        "--rounds", type=int, default=100, help="number of tasks of each duration; fewer for long durations"
    )
    parser.add_argument("--callers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--work", metavar="URL", help="run as the worker on this database")
    return parser.parse_args()


@contextmanager
def worker(url: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.awaited", "--work", url], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def latencies(outbox: Outbox, rounds: int) -> None:
    """Measure a single caller that waits for one task after another."""
    take = outbox.tasks.get("bench.take")
    take.using(outbox).enqueue(0.0).result(timeout=60)
    for seconds in SPANS:
        number = max(10, min(rounds, int(30 / seconds))) if seconds else rounds
        show(
            f"one caller, a task of {seconds:g} s",
            [latency(take.using(outbox).enqueue(seconds)) for _ in range(number)],
        )


def callers(outbox: Outbox, url: str, number: int, seconds: float) -> None:
    """Measure many threads that each wait for a different task. During the first period of `seconds`, no task ends.
    During the second period, all of them end.
    """
    take = outbox.tasks.get("bench.take")
    waiter = outbox._waiters.of(outbox.store)
    threading.stack_size(256 * 1024)
    begin = datetime.now(UTC) + timedelta(seconds=2 * seconds + SETTLED + number / 100)
    handles = [
        take.using(outbox, run_after=begin + timedelta(seconds=n * seconds / number)).enqueue(0.0)
        for n in range(number)
    ]
    with ThreadPoolExecutor(number) as pool:
        waits = [pool.submit(latency, handle) for handle in handles]
        while len(waiter._waits) < number:
            threading.Event().wait(0.1)
        threading.Event().wait(SETTLED)
        share, looks = spent(waiter, seconds)
        print(f"| {number} callers, nothing ends | {share:.2%} of a core, {looks:.1f} looks a second |", flush=True)
        with worker(url):
            threading.Event().wait(max(0.0, (begin - datetime.now(UTC)).total_seconds()))
            share, looks = spent(waiter, seconds)
            print(
                f"| {number} callers, {number / seconds:g} tasks end a second | {share:.2%} of a core, {looks:.1f} looks a second |"
            )
            show("... and are answered after", [wait.result() for wait in waits])


def latency(handle: Handle[float]) -> float:
    returned = handle.result(timeout=600)
    return (time.time() - returned) * 1000


def show(what: str, found: list[float]) -> None:
    found = sorted(found)
    p95 = found[int(len(found) * 0.95)]
    print(f"| {what} | p50 {statistics.median(found):.1f} ms, p95 {p95:.1f} ms |", flush=True)


def spent(waiter: object, seconds: float) -> tuple[float, float]:
    """Return this process's use of the processor over `seconds`, as a share of a core, and the number of polls per second."""
    before, looks, began = time.process_time(), waiter.polls, time.monotonic()  # type: ignore[attr-defined]
    threading.Event().wait(seconds)
    took = time.monotonic() - began
    return (time.process_time() - before) / took, (waiter.polls - looks) / took  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
