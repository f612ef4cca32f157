"""Measure the cost of a durable step: `python -m benchmarks.steps`, or `nox -s bench_steps -- --on sqlite`.

A worker with one thread in this process runs tasks with many steps and durable commits. The time of a step is the
handler's time divided by the number of its steps. For comparison, the table contains the time of a commit in the handler,
which is mostly the time of the flush to disk.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import text

from benchmarks.bench import SERVER
from outboxq import Outbox, RetryPolicy, Task, TaskContext, migrations
from tests import postgres


def main() -> int:
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        if given.on == "postgresql":
            cluster = postgres.start(prefer="own", durable=True, settings=SERVER)
            url = cluster.create_database()
        else:
            url = f"sqlite:///{folder}/steps.db"
        migrations.upgrade(url)
        print(f"{given.on}\n| what | milliseconds a step |\n|---|---|")
        measure(Outbox(url), given.tasks, given.steps)
        if given.on == "postgresql":
            cluster.drop_database(url)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--on", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


def measure(outbox: Outbox, tasks: int, steps: int) -> None:
    spent: dict[str, list[float]] = {}
    kinds = declared(outbox, spent, steps)
    with outbox.store.bound_engine.begin() as connection:
        connection.execute(text("CREATE TABLE bench_effects (number INTEGER)"))
    for _ in range(tasks):  # in turns, so that a busy disk slows down all of them
        for task in kinds:
            task.using(outbox).enqueue()
    if outbox.worker(concurrency=1).run(burst=True) != 0:
        raise SystemExit("the worker failed")
    for what, found in spent.items():
        print(f"| {what} | {statistics.median(found):.3f} |", flush=True)


def declared(outbox: Outbox, spent: dict[str, list[float]], steps: int) -> list[Task[..., Any]]:
    def timed(what: str, call: Callable[[int], object]) -> None:
        began = time.perf_counter()
        for number in range(steps):
            call(number)
        spent.setdefault(what, []).append((time.perf_counter() - began) * 1000 / steps)

    @outbox.task(name="bench.commit")
    def commit() -> None:
        timed("one row, committed by the handler itself", lambda _: committed(outbox))

    @outbox.task(name="bench.plain", retry=RetryPolicy(max_attempts=2, wait=0))
    def plain(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            timed("a step", lambda number: ctx.step(f"step {number}", nothing))
            raise OSError
        timed("a step whose result is stored", lambda number: ctx.step(f"step {number}", nothing))

    @outbox.task(name="bench.transactional")
    def transactional(ctx: TaskContext) -> None:
        timed("a transactional step of one row", lambda number: ctx.step(f"step {number}", write, transactional=True))

    return [commit, plain, transactional]


def nothing() -> str:
    return ""


def write(ctx: TaskContext) -> None:
    ctx.connection.execute(text("INSERT INTO bench_effects VALUES (1)"))


def committed(outbox: Outbox) -> None:
    with outbox.store.bound_engine.begin() as connection:
        connection.execute(text("INSERT INTO bench_effects VALUES (1)"))


if __name__ == "__main__":
    sys.exit(main())
