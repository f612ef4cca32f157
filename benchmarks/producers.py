"""Measure eight simultaneous producers that commit each task separately."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks import raw
from benchmarks.bench import Bench
from benchmarks.results import MILLISECONDS, RATE
from benchmarks.running import Running
from tests import postgres

CLIENTS = 8


def producers(bench: Bench, kind: str) -> None:
    if kind == "sqlite":
        processes(bench)
    else:
        clients(bench)


def processes(bench: Bench) -> None:
    """Measure processes on SQLite. They write one after the other, so the longest wait matters. SQLite has no notifications."""

    def work(one: Running) -> None:
        one.reset()
        rate, worst = one.produce(CLIENTS, bench.sizes.producing)
        title, name = f"sqlite: {CLIENTS} processes enqueue, a commit for each task", one.queue.name
        bench.results.add("sqlite.producers", title, RATE, name, rate)
        worst_title = f"sqlite: the longest that one of {CLIENTS} such processes waited for a commit"
        bench.results.add("sqlite.producers.worst", worst_title, MILLISECONDS, name, worst * 1000)
        one.reset()

    bench.in_turns("sqlite, producers", bench.queues_of_goals("sqlite"), work, bench.sizes.slow_rounds)


def clients(bench: Bench) -> None:
    """Measure pgbench's clients, whose own cost is negligible, on PostgreSQL, with and without the trigger."""
    binary = next(
        (str(found / "pgbench") for _, found in postgres.installations() if (found / "pgbench").exists()), None
    )
    if binary is None:
        bench.results.missing["postgresql, producers"] = "there is no pgbench, which comes with PostgreSQL"
        return
    script = bench.folder / "enqueue.sql"
    script.write_text(raw.ENQUEUE.replace("%(number)s", "1").replace("bench.nothing", "bench") + ";")
    seconds = max(1, round(bench.sizes.producing))
    command = [binary, "-n", "-c", str(CLIENTS), "-j", "2", "-T", f"{seconds}", "-M", "prepared", "-f", str(script)]
    one = bench.outboxq()
    for beside in ("workers busy", "no worker"):
        one.reset()
        with beside_them(one, beside):
            for _ in range(bench.sizes.rounds):
                for case, state in (("no trigger", "DISABLE"), ("trigger", "ENABLE")):
                    set_trigger(one, state)
                    told = subprocess.run(
                        [*command, one.base.address],
                        capture_output=True,
                        text=True,
                        check=True,
                        timeout=120,
                        env={**os.environ, "PGOPTIONS": ""},
                    )
                    rate = float(told.stdout.split("tps = ")[1].split()[0])
                    title = f"postgresql: {CLIENTS} producers, a commit for each task"
                    bench.results.add("postgresql.producers", title, RATE, f"{case}, {beside}", rate)
    set_trigger(one, "ENABLE")
    one.reset()


def set_trigger(one: Running, state: str) -> None:
    with psycopg.connect(one.base.address, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE task_outbox {state} TRIGGER task_outbox_notify".encode())


@contextmanager
def beside_them(one: Running, what: str) -> Iterator[None]:
    """Run a worker whose threads are all busy, or no worker."""
    if what == "no worker":
        yield
        return
    with one.workers(BENCH_THREADS="2", BENCH_SLEEP="600") as found:
        one.client.ask("fill", 2)
        found[0].ready()
        found[0].tell("begin")
        one.wait_for(2)
        yield
