"""Measure the cost of the statistics with a large backlog: `python -m benchmarks.status`, or `nox -s bench_status`.

The benchmark fills a database with waiting tasks, with tasks that ended in the last hour, and with the counts that workers
wrote about them. It then times `stats()` and a sample. Most waiting tasks have only an entry in the outbox and no row of
their own, because none of these calls reads the row.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from benchmarks.bench import SERVER
from outboxq import migrations
from outboxq.database.engine import make_engine
from outboxq.model.histograms import COUNTS, SECONDS
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.store.numbers.metrics import RUN, WAIT
from tests import postgres

TASKS, WORKERS = 20, 4
NUMBERS = (*COUNTS, *SECONDS, *WAIT, *RUN)

FILL = {
    "postgresql": """
        INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
        SELECT gen_random_uuid(), (ARRAY['mail', 'reports', 'sync'])[mod(n, 3) + 1], 0, n,
               now() - interval '2 hours' + n * interval '300 microseconds', now()
        FROM generate_series(1, {waiting}) AS n;
        CREATE TEMPORARY TABLE made AS SELECT n, gen_random_uuid() AS id FROM generate_series(1, {ended}) AS n;
        INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
            recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at, first_started_at,
            started_at, completed_at)
        SELECT id, id, 'task' || mod(n, {tasks}), (ARRAY['mail', 'reports', 'sync'])[mod(n, 3) + 1], n, 0, '{{}}', 'Completed', 1, 0, 60,
            1, 'release', moment, moment, moment, moment, moment
        FROM (SELECT *, now() - interval '1 hour' + n * interval '1 hour' / {ended} AS moment FROM made) AS timed;
        INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, lease_token, created_at)
        SELECT id, id, 'task_completed', 1, completed_at FROM task_executions ORDER BY completed_at;
    """,
    "sqlite": """
        INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
        WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {waiting})
        SELECT lower(hex(randomblob(16))), CASE n % 3 WHEN 0 THEN 'mail' WHEN 1 THEN 'reports' ELSE 'sync' END, 0, n,
            '{now}', '{now}' FROM numbers;
        INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
            recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at, first_started_at,
            started_at, completed_at)
        WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {ended})
        SELECT lower(hex(randomblob(16))), lower(hex(randomblob(16))), 'task' || n % {tasks},
            CASE n % 3 WHEN 0 THEN 'mail' WHEN 1 THEN 'reports' ELSE 'sync' END, n, 0, '{{}}', 'Completed', 1, 0, 60.0, 1,
            'release', '{now}', '{now}', '{now}', '{now}', '{now}' FROM numbers;
        INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, lease_token, created_at)
        SELECT id, id, 'task_completed', 1, completed_at FROM task_executions;
    """,
}


def main() -> int:
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        if given.on == "postgresql":
            cluster = postgres.start(prefer="own", durable=True, settings=SERVER)
            url = cluster.create_database()
        else:
            url = f"sqlite:///{folder}/status.db"
        measure(url, given.waiting, given.ended, given.rounds)
        if given.on == "postgresql":
            cluster.drop_database(url)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.status", description=__doc__)
    parser.add_argument("--on", choices=sorted(FILL), default="postgresql")
    parser.add_argument("--waiting", type=int, default=10_000_000)
    parser.add_argument("--ended", type=int, default=500_000, help="number of tasks that ended in the last hour")
    parser.add_argument("--rounds", type=int, default=20)
    return parser.parse_args()


def measure(url: str, waiting: int, ended: int, rounds: int) -> None:
    migrations.upgrade(url)
    engine = make_engine(url)
    store = Store(engine)
    fill(store, waiting, ended)
    print(f"{engine.dialect.name}: {waiting:,} waiting, {ended:,} ended in the hour, {spans(store):,} rows of metrics")
    print("| what | milliseconds, median | the slowest |\n|---|---|---|")
    looks: dict[str, Callable[[], object]] = {
        "stats()": store.stats,
        'stats(by="task")': lambda: store.stats(by="task"),
    }
    for what, look in looks.items():
        say(what, [timed(look) for _ in range(rounds)][1:])
    say("a sample, up to the bound", [timed(store.samples.look) for _ in range(rounds)])
    took = [timed(store.samples.count) for _ in range(3)]
    say("a sample, counted in full", took)
    seconds = statistics.median(took) / 1000
    every = max(15.0, 100 * seconds)
    print(f"a full sample every {every:.0f} s: {seconds / every:.2%} of the time")
    engine.dispose()


def fill(store: Store, waiting: int, ended: int) -> None:
    engine = store.bound_engine
    now = datetime.now(UTC) - timedelta(seconds=60)
    values = {"waiting": waiting, "ended": ended, "tasks": TASKS, "now": now.isoformat(timespec="microseconds")}
    with engine.connect() as connection:
        for statement in FILL[engine.dialect.name].format(**values).split(";\n"):
            if statement.strip():
                began = time.monotonic()
                connection.exec_driver_sql(statement)
                print(f"{statement.split()[2]}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        write_metrics(connection, engine.dialect.name, ended)
        connection.exec_driver_sql("VACUUM ANALYZE" if engine.dialect.name == "postgresql" else "ANALYZE")


def write_metrics(connection: object, kind: str, ended: int) -> None:
    """Write the counts of four workers with 20 task names for one hour. A row covers ten seconds in the last three minutes, and
    one minute before that."""
    rows, now = [], datetime.now(UTC)
    spans = [(10 * n + 10, 10, worker) for n in range(18) for worker in range(WORKERS)]
    spans += [(180 + 60 * n + 60, 60, 0) for n in range(57)]
    for ago, seconds, _ in spans:
        for task in range(TASKS):
            number = ended * seconds // 3600 // TASKS // (WORKERS if seconds == 10 else 1)
            numbers = [number if name in {"completed", "wait_3", "run_2"} else 0 for name in NUMBERS]
            at, queue = now - timedelta(seconds=ago), ("mail", "reports", "sync")[task % 3]
            key = (uuid7(), at) if kind == "postgresql" else (uuid7().hex, at.isoformat(timespec="microseconds"))
            rows.append((*key, seconds, queue, f"task{task}", *numbers))
    names = ("id", "at", "seconds", "queue", "task_name", *NUMBERS)
    place = "%s" if kind == "postgresql" else "?"
    statement = f"INSERT INTO task_metrics ({', '.join(names)}) VALUES ({', '.join([place] * len(names))})"
    for row in rows:
        connection.exec_driver_sql(statement, row)  # type: ignore[attr-defined]


def spans(store: Store) -> int:
    with store.bound_engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM task_metrics").scalar_one())


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def say(what: str, milliseconds: list[float]) -> None:
    print(f"| {what} | {statistics.median(milliseconds):,.1f} | {max(milliseconds):,.1f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
