"""Measure the cost of a task while many workers are idle: `python -m benchmarks.herd`, or `nox -s bench_herd -- --idle 1 --idle 50`.

Each worker is a process. For each number of idle workers, single tasks are enqueued at a steady rate. For each task,
the table contains the number of claims that the workers make; the number of statements that the server runs and the CPU
time that it uses, minus those of an idle period of the same length; and the time from the task's commit to the start of
its handler. The times depend on the machine. The numbers of claims and statements do not.

`--dead 40000` opens a snapshot and runs this number of tasks before the workers start. `--writing` keeps a writing
transaction open, so that no worker falls asleep, and prints only the cost of the idle workers. `--queue default` makes the
workers serve one queue instead of all queues.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import signal
import statistics
import struct
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.bench import SERVER
from benchmarks.place import p99
from outboxq import Outbox
from tests import postgres

SETTLING = 3.0
"""Seconds after which the workers are asleep, plus half a second for each worker."""
REHEARSALS = 12
"""The number of claims that each worker makes before the measurement. psycopg prepares a statement after five executions.
Until then, the server plans each claim, which costs more than the claim itself.
"""
SLOTS = 100_000
COUNTING = {"shared_preload_libraries": "pg_stat_statements"}


class Shared:
    """Numbers that all processes share: the claims of each worker, and the start of each task."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * SLOTS)

    def __getitem__(self, slot: int) -> float:
        return float(struct.unpack_from("d", self._memory, 8 * slot)[0])

    def __setitem__(self, slot: int, number: float) -> None:
        struct.pack_into("d", self._memory, 8 * slot, number)


def main() -> int:
    given = arguments()
    print(
        "| idle workers | claims a task | statements a task | server CPU a task, ms | idle: statements/s | server CPU, ms/s",
        end="",
    )
    print(" | pickup p50, ms | p99, ms |\n|" + "---|" * 8, flush=True)
    for idle in given.idle or [1, 10, 50]:
        cluster = postgres.start(prefer="own", durable=True, settings={**SERVER, **COUNTING, "max_connections": "400"})
        url = cluster.create_database()
        try:
            measure(url, cluster_pid(url), idle, given)
        finally:
            cluster.stop()
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.herd", description=__doc__)
    parser.add_argument(
        "--idle", type=int, action="append", help="number of idle workers; may be repeated (default: 1, 10 and 50)"
    )
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--rate", type=float, default=10.0, help="tasks per second")
    parser.add_argument(
        "--dead", type=int, default=0, help="number of tasks that run under an old snapshot before the workers start"
    )
    parser.add_argument(
        "--writing", action="store_true", help="keep a writing transaction open while the workers are idle"
    )
    parser.add_argument(
        "--queue", action="append", help="a queue that the workers serve; may be repeated (default: all)"
    )
    return parser.parse_args()


def measure(url: str, server: int, idle: int, given: argparse.Namespace) -> None:
    claims, started = Shared(), Shared()
    seconds = given.tasks / given.rate
    outbox = declared(url, started)
    outbox.upgrade()
    with outbox.store.bound_engine.begin() as connection:
        connection.exec_driver_sql("CREATE EXTENSION pg_stat_statements")
    outbox.store.bound_engine.dispose()
    gc.freeze()
    with ExitStack() as until_the_end:
        outbox = declared(url, started)
        engine, task = outbox.store.bound_engine, outbox.tasks.get("bench.note")
        until_the_end.callback(engine.dispose)
        if given.dead:
            old = until_the_end.enter_context(engine.connect().execution_options(isolation_level="REPEATABLE READ"))
            old.exec_driver_sql("SELECT 1")
            task.using(outbox).enqueue_many([{"number": SLOTS - 1} for _ in range(given.dead)])
            outbox.worker().run(burst=True)
        writing = until_the_end.enter_context(engine.connect().execution_options(isolation_level="READ COMMITTED"))
        if given.writing:
            writing.exec_driver_sql("SELECT pg_current_xact_id()")
        workers = [child(url, claims, started, number, given.queue) for number in range(idle)]
        until_the_end.callback(stop, workers)
        time.sleep(SETTLING + idle / 2)
        for number in range(REHEARSALS):
            task.using(outbox).enqueue(number=SLOTS - 1 - number)
            rehearse(outbox, claims, idle)
        time.sleep(SETTLING)
        before, sent = backends(server), statements(outbox)
        time.sleep(seconds)
        resting, idle_statements = spent(server, before) / seconds, (statements(outbox) - sent) / seconds
        if given.writing:
            print(f"| {idle} | – | – | – | {idle_statements:.1f} | {resting * 1000:.1f} | – | – |", flush=True)
            return
        claimed, before, sent = sum(claims[one] for one in range(idle)), backends(server), statements(outbox)
        committed: list[float] = []
        began = time.monotonic()
        for number in range(given.tasks):
            task.using(outbox).enqueue(number=number)
            committed.append(time.monotonic())
            time.sleep(max(0.0, began + (number + 1) / given.rate - time.monotonic()))
        time.sleep(1.0)
        took = time.monotonic() - began
        used, sent = spent(server, before) - resting * took, statements(outbox) - sent - idle_statements * took
        claimed = sum(claims[one] for one in range(idle)) - claimed
        waits = [(started[number] - moment) * 1000 for number, moment in enumerate(committed)]
        if min(waits) < -1000:
            raise SystemExit("some tasks have not run")
        print(
            f"| {idle} | {claimed / given.tasks:.2f} | {sent / given.tasks:.1f} | {used / given.tasks * 1000:.2f} "
            f"| {idle_statements:.1f} | {resting * 1000:.1f} | {statistics.median(waits):.1f} | {p99(waits):.1f} |",
            flush=True,
        )


def stop(workers: list[int]) -> None:
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    for pid in workers:
        os.waitpid(pid, 0)


def statements(outbox: Outbox) -> float:
    """Return the number of statements that the server has run."""
    with outbox.store.bound_engine.connect() as connection:
        return float(connection.exec_driver_sql("SELECT sum(calls) FROM pg_stat_statements").scalar_one())


def rehearse(outbox: Outbox, claims: Shared, idle: int) -> None:
    """Call every worker, and wait until each has claimed."""
    before = [claims[one] for one in range(idle)]
    with outbox.store.bound_engine.begin() as connection:
        connection.exec_driver_sql("SELECT pg_notify('task_ready', '* default')")
    while any(claims[one] == claimed for one, claimed in enumerate(before)):
        time.sleep(0.01)


def declared(url: str, started: Shared) -> Outbox:
    outbox = Outbox(url)

    @outbox.task(name="bench.note")
    def note(number: int) -> None:
        started[number] = time.monotonic()

    return outbox


def child(url: str, claims: Shared, started: Shared, number: int, queues: list[str] | None) -> int:
    """Fork a worker that counts its claims, and return its process id."""
    if pid := os.fork():
        return pid
    outbox = declared(url, started)
    worker = outbox.worker(queues=queues)
    loop: Any = worker._parts.claim_loop
    claim = loop._claim

    def counted(*args: Any) -> Any:
        claims[number] += 1
        return claim(*args)

    loop._claim = counted
    os._exit(worker.run())


def cluster_pid(url: str) -> int:
    outbox = Outbox(url)
    with outbox.store.bound_engine.connect() as connection:
        backend = int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
    outbox.store.bound_engine.dispose()
    return parent(backend)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def backends(server: int) -> dict[int, int]:
    """Return the CPU time of each of the server's processes in nanoseconds."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if parent(int(entry.name)) == server:
                    found[int(entry.name)] = int((entry / "schedstat").read_text().split()[0])
            except OSError:
                pass  # the process has ended
    return found


def spent(server: int, before: dict[int, int]) -> float:
    """Return the server's CPU time since `before`, in seconds."""
    return sum(used - before.get(pid, 0) for pid, used in backends(server).items()) / 1e9


if __name__ == "__main__":
    sys.exit(main())
