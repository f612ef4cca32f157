"""What outboxq is asked beside hand-written SQL or beside itself: old tables, many producers, bloat, handlers that take their
time, memory.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from uuid import uuid4

import psycopg
from sqlalchemy import Engine

from benchmarks import raw
from benchmarks.bench import Bench
from benchmarks.past import Past, tidy
from benchmarks.place import completed
from benchmarks.results import COUNT, MEGABYTES, MILLISECONDS, RATE, SHARE
from benchmarks.running import Running, SqliteBase
from outboxq.engine import make_engine
from outboxq.model import Claim, NewTask
from outboxq.store import Store
from outboxq.uuid7 import uuid7
from tests import postgres


def history(bench: Bench, kind: str) -> None:
    """A backlog on tables that are small, and behind many finished tasks, in the same rounds."""
    for finished in bench.sizes.finished:
        behind(bench, kind, finished)


def behind(bench: Bench, kind: str, finished: int) -> None:
    tasks, title = bench.sizes.drained, f"{kind}: drain behind {finished:,} finished tasks"
    with ExitStack() as stack:
        few = [bench.another(one, stack) for one in bench.ours(kind)]
        many = [bench.another(one, stack) for one in bench.ours(kind)]
        for one in many:
            engine = engine_of(one)
            Past.of_months(finished).write(engine)
            tidy(engine)
            engine.dispose()

        def work(one: Running) -> None:
            one.fill(tasks)
            name = f"{one.queue.name}, {'few' if one in few else 'many'}"
            bench.results.add(f"{kind}.history.{finished}", title, RATE, name, one.drain(tasks).rate)

        bench.in_turns(f"{kind}, behind {finished:,}", [*few, *many], work, max(2, bench.sizes.slow_rounds))
        buffers(bench, few[1], many[1], finished)


def buffers(bench: Bench, few: Running, many: Running, finished: int) -> None:
    """Shared buffers of one claim of 100, in transactions that are rolled back."""
    from benchmarks.history import Place, captured, visited

    for side, one in (("few", few), ("many", many)):
        engine = engine_of(one)
        place = Place(url=str(engine.url), store=Store(engine))
        place.store.enqueue_many([new() for _ in range(200)])
        for limit in (1, 100):
            ask = partial(place.store.claim_ready_task, limit, worker_id=WORKER, queues=["bench"])
            seen = captured(place, lambda using, ask=ask: ask(using=using))
            key, title = (
                f"postgresql.buffers.{finished}",
                f"postgresql: buffers of a claim behind {finished:,} finished",
            )
            bench.results.add(
                f"{key}.{limit}", f"{title}, of {limit}", COUNT, side, [visited(place, seen) for _ in range(5)]
            )
        engine.dispose()


def engine_of(one: Running) -> Engine:
    address = one.base.address
    if isinstance(one.base, SqliteBase):
        return make_engine(f"sqlite:///{address}")
    return make_engine(address.replace("postgresql:", "postgresql+psycopg:"))


# What lies in the way of a claim


def in_the_way(bench: Bench) -> None:
    """Claims on clean tables, behind dead rows that an old snapshot keeps, and behind tasks that are not due, in turns."""
    many, rounds = bench.sizes.dead, 20 if bench.sizes.rounds < 5 else 40
    stores = {"clean": bench.store(), "dead": bench.store(), "future": bench.store()}
    with ExitStack() as stack:
        old = stack.enter_context(psycopg.connect(bench.address(stores["dead"])))
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT count(*) FROM task_outbox")
        pour(stores["dead"], many)
        while claims := claim(stores["dead"], 100):
            stores["dead"].finish([completed(one) for one in claims])
        pour(stores["future"], many, delay=timedelta(hours=1))
        for store in stores.values():
            pour(store, (rounds + 5) * 101)
        for store in (stores["clean"], stores["future"]):
            tidy(store.bound_engine)
        with stores["dead"].bound_engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE")
        for turn in range(rounds + 5):
            for name, store in stores.items():
                for limit in (1, 100):
                    began = time.perf_counter()
                    claims = claim(store, limit)
                    took = (time.perf_counter() - began) * 1000
                    assert len(claims) == limit
                    store.finish([completed(one) for one in claims])
                    if turn >= 5:
                        title = f"postgresql: claim of {limit}; clean, or behind {many:,} rows that are dead or future"
                        bench.results.add(f"postgresql.claim.{limit}", title, MILLISECONDS, name, took)
        old.rollback()


def claim(store: Store, limit: int) -> list[Claim]:
    return store.claim_ready_task(limit, worker_id=WORKER, queues=["bench"])


WORKER = uuid4()


def new(delay: timedelta = timedelta(0)) -> NewTask:
    return NewTask(id=uuid7(), task_name="bench", args='{"number": 1}', queue="bench", delay=delay)


def pour(store: Store, tasks: int, delay: timedelta = timedelta(0)) -> None:
    for low in range(0, tasks, 10_000):
        store.enqueue_many([new(delay) for _ in range(min(10_000, tasks - low))])


# Producers


def producers(bench: Bench, clients: int = 8) -> None:
    """Commits per second of single enqueues by pgbench, whose clients cost next to nothing; with the trigger and without."""
    binary = next(
        (str(found / "pgbench") for _, found in postgres.installations() if (found / "pgbench").exists()), None
    )
    if binary is None:
        bench.results.missing["postgresql, producers"] = "there is no pgbench, which comes with PostgreSQL"
        return
    script = bench.folder / "enqueue.sql"
    script.write_text(raw.ENQUEUE.replace("%(number)s", "1").replace("bench.nothing", "bench") + ";")
    command = [binary, "-n", "-c", str(clients), "-j", "2", "-T", f"{max(1, round(bench.sizes.producing))}"]
    one = bench.outboxq()
    for beside in ("workers busy", "no worker"):
        one.reset()
        with beside_them(one, beside):
            for _ in range(bench.sizes.rounds):
                for case, state in (("no trigger", "DISABLE"), ("trigger", "ENABLE")):
                    set_trigger(one, state)
                    told = subprocess.run(
                        [*command, "-M", "prepared", "-f", script, one.base.address],
                        capture_output=True,
                        text=True,
                        check=True,
                        timeout=120,
                        env={**os.environ, "PGOPTIONS": ""},
                    )
                    rate = float(told.stdout.split("tps = ")[1].split()[0])
                    title = f"postgresql: {clients} producers, a commit for each task"
                    bench.results.add("postgresql.producers", title, RATE, f"{case}, {beside}", rate)
    set_trigger(one, "ENABLE")
    one.reset()


def set_trigger(one: Running, state: str) -> None:
    with psycopg.connect(one.base.address, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE task_outbox {state} TRIGGER task_outbox_notify".encode())


@contextmanager
def beside_them(one: Running, what: str) -> Iterator[None]:
    if what == "no worker":
        yield
        return
    with one.workers(BENCH_THREADS="2", BENCH_SLEEP="600") as found:
        one.client.ask("fill", 2)
        found[0].tell("begin")
        one.wait_for(2)
        yield


# Handlers and memory


def handlers(bench: Bench, kind: str) -> None:
    """Handlers that wait for something else: the share of the rate that so many threads could reach."""
    one = bench.outboxq(kind)
    for milliseconds in (1, 20):
        for threads in (1, 8, 32):
            ideal = threads / (milliseconds / 1000)
            tasks = min(max(20, threads, int(ideal * bench.sizes.handlers)), 40_000)

            title = f"{kind}: handlers of 1 and 20 ms, beside threads / duration"
            for _ in range(bench.sizes.slow_rounds):
                one.reset()
                one.fill(tasks)
                drained = one.drain(tasks, BENCH_THREADS=str(threads), BENCH_SLEEP=str(milliseconds / 1000))
                name = f"{milliseconds} ms, {threads} threads"
                bench.results.add(f"{kind}.handlers", title, SHARE, name, drained.rate / ideal)
    one.reset()


def memory(bench: Bench, kind: str) -> None:
    """Of one worker process, after N tasks and after ten times as many."""
    one, few = bench.outboxq(kind), bench.sizes.memory
    one.reset()
    one.fill(few)
    try:
        with one.workers() as found:
            first = one.drained(found, few)
            one.fill(9 * few)
            second = one.drained(found, 9 * few, before=few)
        for name, drained in ((f"after {few:,}", first), (f"after {10 * few:,}", second)):
            bench.results.add(f"{kind}.memory", f"{kind}: memory of a worker", MEGABYTES, name, drained.rss / 1e6)
    except RuntimeError as error:
        bench.failed(f"{kind}, memory", error)
    one.reset()
