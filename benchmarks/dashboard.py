"""Measure the dashboard's pages on large tables: `python -m benchmarks.dashboard`, or `nox -s bench_dashboard`.

The benchmark fills PostgreSQL with finished and waiting tasks, dead letters, two days of counts and samples, and four
workers. It times each of the store's reading methods that a page calls, and then whole pages, and counts the statements.
Ten million tasks of each kind need about 20 GB of disk and a quarter of an hour.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from sqlalchemy import Engine, event, text

from benchmarks.bench import SERVER
from benchmarks.dashboard_pages import GOAL_MS, GOAL_STATEMENTS, measure_pages
from benchmarks.past import Past
from benchmarks.status import write_metrics
from benchmarks.waiting import Waiting
from outboxq import migrations
from outboxq.database.engine import make_engine
from outboxq.model import TaskStatus
from outboxq.model.schedules import NewSchedule
from outboxq.store import Store
from tests import postgres

LETTERS, RUNNING, HELD = 20_000, 32, 50
MARK_MS = 1.0

FILL = """
    CREATE TEMPORARY TABLE chosen AS
        SELECT id, created_at, row_number() OVER (ORDER BY id) AS n
        FROM (SELECT id, created_at FROM task_executions WHERE queue = 'past' ORDER BY id DESC LIMIT {letters}) AS newest;
    UPDATE task_executions AS task SET status = 'Failed', task_name = 'shop.task' || mod(n, 20),
        last_error = (ARRAY['ValueError: order ' || n || ' is not paid', 'TimeoutError: no answer from 10.0.0.' || mod(n, 250),
            'KeyError: ''' || md5(n::text) || '''', 'OSError: disk ' || md5(n::text)])[mod(n, 4) + 1]
        FROM chosen WHERE chosen.id = task.id;
    INSERT INTO dead_letters (task_execution_id, queue, task_name, exception, failed_at)
        SELECT id, 'past', 'shop.task' || mod(n, 20),
            (ARRAY['builtins.ValueError', 'builtins.TimeoutError', 'builtins.KeyError', 'builtins.OSError'])[mod(n, 4) + 1],
            now() - n * interval '20 seconds' FROM chosen;
    CREATE TEMPORARY TABLE taken AS SELECT id FROM task_executions WHERE queue = 'bench' ORDER BY id LIMIT {running};
    DELETE FROM task_outbox WHERE task_execution_id IN (SELECT id FROM taken);
    UPDATE task_executions SET status = 'Running', worker_id = '{worker}', started_at = now()
        WHERE id IN (SELECT id FROM taken);
    INSERT INTO task_leases (task_execution_id, queue, lease_token, worker_id, lease_expires_at)
        SELECT id, 'bench', 1, '{worker}', now() + interval '1 day' FROM taken;
    CREATE TEMPORARY TABLE keyed AS SELECT id, row_number() OVER (ORDER BY id) AS n FROM task_executions
        WHERE queue = 'bench' AND status = 'Ready' ORDER BY id LIMIT 5000;
    UPDATE task_executions AS task SET queue = 'keyed', partition_key = 'k' || mod(n, 500) FROM keyed WHERE keyed.id = task.id;
    UPDATE task_outbox AS entry SET queue = 'keyed', partition_key = 'k' || mod(n, 500) FROM keyed
        WHERE keyed.id = entry.task_execution_id;
    INSERT INTO partition_claims (queue, partition_key, task_execution_id, held)
        SELECT 'keyed', 'k' || n, id, true FROM chosen WHERE n <= {held};
    CREATE TEMPORARY TABLE rare AS SELECT id FROM task_executions WHERE queue = 'bench' AND status = 'Ready' ORDER BY id LIMIT 500;
    UPDATE task_executions SET queue = 'rare' WHERE id IN (SELECT id FROM rare);
    UPDATE task_outbox SET queue = 'rare' WHERE task_execution_id IN (SELECT id FROM rare);
    INSERT INTO queue_samples (at, queue, due, delayed, running, failed, exact)
        SELECT now() - n * interval '15 seconds', queue, 1000 + n, 10, 4, 3, true
        FROM generate_series(0, 11520) AS n, unnest(ARRAY['bench', 'keyed', 'rare', 'past', 'other']) AS queue;
    INSERT INTO task_metrics
        SELECT (jsonb_populate_record(metric, jsonb_build_object('id', gen_random_uuid(), 'at', metric.at - n * interval '57 minutes'))).*
        FROM task_metrics AS metric, generate_series(1, 50) AS n WHERE metric.seconds = 60;
"""


def main() -> int:
    given = arguments()
    cluster = postgres.start(prefer="own", settings=SERVER)
    url = cluster.create_database()
    try:
        return measure(url, given.finished, given.waiting, given.rounds)
    finally:
        cluster.drop_database(url)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    parser.add_argument("--finished", type=int, default=10_000_000)
    parser.add_argument("--waiting", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    return parser.parse_args()


def measure(url: str, finished: int, waiting: int, rounds: int) -> int:
    migrations.upgrade(url)
    engine = make_engine(url)
    store = Store(engine)
    worker = fill(store, finished, waiting)
    print(f"{finished:,} finished, {waiting:,} waiting, {LETTERS:,} dead letters; {rounds} calls each")
    print("| method | statements | ms, median | ms, 95th percentile | |\n|---|---|---|---|---|")
    missed = 0
    for what, look in looks(store, worker).items():
        look()
        sent = statements_of(engine, look)
        took = sorted(timed(look) for _ in range(rounds))
        late = took[int(len(took) * 0.95)]
        goal = MARK_MS if what == "change_mark()" else GOAL_MS
        misses = late > goal or sent > GOAL_STATEMENTS
        missed += misses
        said = "misses its goal" if misses else ""
        print(f"| {what} | {sent} | {statistics.median(took):.2f} | {late:.2f} | {said} |", flush=True)
    missed += measure_pages(engine, worker, rounds)
    engine.dispose()
    return min(missed, 1)


def fill(store: Store, finished: int, waiting: int) -> UUID:
    """Fill the tables, and return the id of the worker that is running tasks."""
    engine, now = store.bound_engine, datetime.now(UTC)
    for past in (
        Past(rows=finished, begin=now - timedelta(days=30), end=now - timedelta(hours=1)),
        Waiting(rows=waiting, begin=now - timedelta(days=1), end=now - timedelta(minutes=1)),
    ):
        began = time.monotonic()
        past.write(engine, bulk=type(past) is Past)
        print(f"{past.rows:,} of {past.queue}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    workers = [uuid4() for _ in range(4)]
    for number, worker in enumerate(workers):
        store.workers.register(worker, label=f"ant:{number}", concurrency=8, task_names=["bench.nothing", "bench.past"])
        store.workers.describe(worker, host="ant", pid=number, version="1.0", release="0.0", busy=8)
    for number in range(20):
        store.schedules.put(NewSchedule(name=f"schedule{number}", task_name="bench.nothing", rule="0 3 * * *"))
    values = {"letters": LETTERS, "running": RUNNING, "held": HELD, "worker": workers[0]}
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        write_metrics(connection, "postgresql", 500_000)
        for statement in FILL.format(**values).split(";\n"):
            if statement.strip():
                connection.execute(text(statement))
        while store.metrics.sum_up(spans=1000):
            pass
        began = time.monotonic()
        connection.exec_driver_sql("VACUUM ANALYZE")
        print(f"vacuum: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return workers[0]


def looks(store: Store, worker: UUID) -> dict[str, Callable[[], object]]:
    """Return the calls that pages make, by their names in the table."""
    now = store.now()
    hour, day = timedelta(hours=1), timedelta(days=1)
    ready = store.tasks(status=TaskStatus.READY, queue="keyed", limit=1)[0].id
    failed = store.dead_letters.list(limit=1)[0].id
    deep = store.tasks(until=now - timedelta(days=15), limit=1)[0].id
    group = store.dead_letters.groups().groups[0].id
    page = store.task_page
    status = TaskStatus
    waiting = page(status=status.READY, limit=50).tasks
    return {
        "change_mark()": store.change_mark,
        "overview()": store.overview,
        "metrics.series(1 h)": lambda: store.metrics.series(since=now - hour, until=now, step=60),
        "metrics.series(24 h)": lambda: store.metrics.series(since=now - day, until=now, step=600),
        "metrics.series(24 h, one queue)": lambda: store.metrics.series(
            since=now - day, until=now, step=600, queue="mail"
        ),
        "samples.series(1 h)": lambda: store.samples.series(since=now - hour, until=now, step=60),
        "samples.series(24 h)": lambda: store.samples.series(since=now - day, until=now, step=600),
        "trends(1 h)": lambda: store.trends(since=now - hour, until=now, step=60),
        "trends(24 h)": lambda: store.trends(since=now - day, until=now, step=600),
        "trends(24 h, one queue)": lambda: store.trends(
            since=now - day, until=now, step=600, queue="mail", held_keys=50
        ),
        "queues.list()": store.queues.list,
        "queues.held_keys()": lambda: store.queues.held_keys("keyed"),
        "workers.list()": store.workers.list,
        "schedules.list()": store.schedules.list,
        "system()": store.system,
        "task_page()": page,
        "task_page(before=, of 15 days ago)": lambda: page(before=deep),
        "task_page(after=, of 15 days ago)": lambda: page(after=deep),
        "task_page(since=, until=)": lambda: page(since=now - timedelta(days=16), until=now - timedelta(days=15)),
        "task_page(COMPLETED)": lambda: page(status=status.COMPLETED),
        "task_page(COMPLETED, another task)": lambda: page(status=status.COMPLETED, task="none"),
        "task_page(key=)": lambda: page(key="k7"),
        "task_page(worker=)": lambda: page(worker=worker),
        "task_page(READY)": lambda: page(status=status.READY),
        "task_page(READY, large queue)": lambda: page(status=status.READY, queue="bench"),
        "task_page(READY, small queue)": lambda: page(status=status.READY, queue="rare"),
        "task_page(READY, another task)": lambda: page(status=status.READY, task="none"),
        "task_page(READY, key=)": lambda: page(status=status.READY, queue="keyed", key="k7"),
        "task_page(RUNNING)": lambda: page(status=status.RUNNING),
        "task_page(RUNNING, worker=)": lambda: page(status=status.RUNNING, worker=worker),
        "task_page(FAILED)": lambda: page(status=status.FAILED),
        "task_page(FAILED, another task)": lambda: page(status=status.FAILED, task="none"),
        "get()": lambda: store.get(ready),
        "explain(), of a held key": lambda: store.explain(ready),
        "task_detail(), of a held key": lambda: store.task_detail(ready),
        "task_detail(), of a dead letter": lambda: store.task_detail(failed),
        "outlooks(), of a page": lambda: store.outlooks(waiting),
        "recent_history()": lambda: store.recent_history(failed, 100),
        "attempts()": lambda: store.attempts(failed),
        "dead_letters.groups()": store.dead_letters.groups,
        "dead_letters.list()": store.dead_letters.list,
        "dead_letters.list(group=)": lambda: store.dead_letters.list(group=group),
        "dead_letters.count()": store.dead_letters.count,
        "count_tasks(queue=)": lambda: store.count_tasks(queue="bench"),
        "count_tasks(task=)": lambda: store.count_tasks(task="bench.nothing"),
    }


def statements_of(engine: Engine, look: Callable[[], object]) -> int:
    sent: list[str] = []

    def see(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith(("BEGIN", "SET")):
            sent.append(statement)

    event.listen(engine, "before_cursor_execute", see)
    try:
        look()
    finally:
        event.remove(engine, "before_cursor_execute", see)
    return len(sent)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    sys.exit(main())
