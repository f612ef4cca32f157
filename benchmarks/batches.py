"""Measure the cost of ending a task in a batch and outside one: `python -m benchmarks.batches`, or `nox -s bench_batches`.

One connection claims and ends tasks, either one or a hundred in each statement. The variants take turns, so that a busy
machine slows all of them. The time is the processor time of the server's process for one claim and one end. The columns
are: a schema without the trigger for batches; the schema with the trigger, but tasks outside batches; and tasks of one
batch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from uuid import uuid4

from benchmarks.bench import SERVER
from outboxq import migrations
from outboxq.database.dialects import Begin
from outboxq.database.engine import make_engine
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.batches import NewBatch, new_batch_id
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests import postgres

_WITHOUT = "ALTER TABLE task_executions DISABLE TRIGGER task_executions_batch"


def main() -> int:
    given = arguments()
    cluster = postgres.start(prefer="own", settings=SERVER)
    before, after = cluster.create_database(), cluster.create_database()
    for url in (before, after):
        migrations.upgrade(url)
    with make_engine(before).connect() as connection:
        connection.exec_driver_sql(_WITHOUT)
    print("| ended together | no trigger | in no batch | in a batch |\n|---|---|---|---|")
    for together in (1, 100):
        found = [
            (drained(before, given, together), drained(after, given, together), drained(after, given, together, True))
            for _ in range(given.turns)
        ]
        best = [min(column) for column in zip(*found, strict=True)]
        print(f"| {together} | " + " | ".join(f"{one:.0f} µs" for one in best) + " |", flush=True)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches", description=__doc__)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--turns", type=int, default=10)
    return parser.parse_args()


def drained(url: str, given: argparse.Namespace, together: int, in_a_batch: bool = False) -> float:
    """Return the server's processor time, in microseconds, for the claim and the end of one task."""
    store, worker = Store(make_engine(url)), uuid4()
    batch = NewBatch(id=new_batch_id())
    if in_a_batch:
        store.batches.create(batch)
    number = given.tasks * (10 if together > 1 else 1)
    of = batch.id if in_a_batch else None
    for _ in range(0, number, 100):
        store.enqueue_many(
            [NewTask(id=uuid7(), task_name="bench", args="{}", pipeline_execution_id=of) for _ in range(100)]
        )
    if in_a_batch:
        store.batches.close(batch.id)
    with store.transaction(Begin.READ) as target:
        pid = target.execute("SELECT pg_backend_pid()", {})[0][0]
    began, done = spent(pid), 0
    while claims := store.claim_ready_task(together, worker_id=worker):
        store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])
        done += len(claims)
    took = spent(pid) - began
    store.bound_engine.dispose()
    return took / done


def spent(pid: int) -> float:
    """Return the processor time of a process in microseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


if __name__ == "__main__":
    sys.exit(main())
