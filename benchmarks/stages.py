"""Measure the processor time of each stage of a task in a worker: `python -m benchmarks.stages`, or `nox -s bench_stages -- --on sqlite`.

One thread claims tasks, holds them, runs them and writes their outcomes, one stage after the other, so no thread waits for
another. The minimum of many rounds distinguishes two commits that differ by 1 %, on a machine whose drains vary by 20 %. If
the figures of two commits are even closer, count instructions: run `valgrind --tool=callgrind` with `--rounds 10` and with
`--rounds 40`, and divide the difference by the number of tasks in 30 rounds.
"""

from __future__ import annotations

import argparse
import gc
import queue
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from benchmarks.bench import SERVER
from outboxq import Outbox
from outboxq.model import NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.worker.leases import ActiveClaim
from tests import postgres

T = TypeVar("T")
TASKS = 200
"""The number of tasks in a round, which is about the number that a busy worker claims at once."""
STAGES = ("claim", "hold", "run", "write", "settle")


def main() -> int:
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        if given.on == "postgresql":
            cluster = postgres.start(prefer="own", durable=True, settings=SERVER)
            url = cluster.create_database()
        else:
            url = f"sqlite:///{folder}/stages.db"
        spent = measure(Outbox(url), given.rounds)
        if given.on == "postgresql":
            cluster.drop_database(url)
    print(f"{given.on}, {given.rounds} rounds of {TASKS} tasks\n| stage | least us a task | median |\n|---|---|---|")
    for stage in STAGES:
        print(f"| {stage} | {min(spent[stage]):.2f} | {statistics.median(spent[stage]):.2f} |")
    least = sum(min(spent[stage]) for stage in STAGES)
    print(f"| all | {least:.2f} | {sum(statistics.median(spent[stage]) for stage in STAGES):.2f} |")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__)
    parser.add_argument("--on", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--rounds", type=int, default=60)
    return parser.parse_args()


def measure(outbox: Outbox, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds per task in each round, for each stage."""
    outbox.upgrade()

    @outbox.task(name="bench.nothing", queue="bench")
    def nothing(number: int) -> None: ...

    outbox.store.enqueue_many(
        [
            NewTask(id=uuid7(), task_name=nothing.name, args=f'{{"number": {number}}}', queue="bench")
            for number in range(TASKS * rounds)
        ]
    )
    worker = outbox.worker(queues=["bench"])  # never started, because this thread does the work of all its threads
    loop, completer, handle = worker._parts.claim_loop, worker._parts.completer, worker._parts.pool.handle
    jobs: list[ActiveClaim] = []
    worker._parts.pool.submit = jobs.append  # type: ignore[assignment, method-assign]
    finish = completer.store.finish
    spent: dict[str, list[float]] = defaultdict(list)

    def timed(stage: str, work: Callable[..., T], *args: Any, **options: Any) -> T:
        began = time.thread_time()
        found = work(*args, **options)
        spent[stage].append((time.thread_time() - began) / TASKS * 1e6)
        return found

    completer.store.finish = lambda *args, **options: timed("write", finish, *args, **options)  # type: ignore[method-assign]
    gc.freeze()
    gc.disable()
    for _ in range(rounds):
        sent = time.monotonic()
        claims = timed("claim", loop._claim, TASKS, sent)
        timed("hold", loop._dispatch, claims, sent)
        timed("run", lambda: [handle(job) for job in jobs])
        jobs.clear()
        outcomes = taken(completer._outcomes)
        if len(outcomes) != TASKS:
            raise SystemExit(f"{len(outcomes)} of {TASKS} tasks have an outcome")
        timed("settle", completer._write, outcomes)
        spent["settle"][-1] -= spent["write"][-1]  # settling includes the write
    return spent


def taken(outcomes: queue.SimpleQueue[Any]) -> list[Outcome]:
    return [outcomes.get_nowait() for _ in range(outcomes.qsize())]


if __name__ == "__main__":
    sys.exit(main())
