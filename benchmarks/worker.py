"""Pickup latency, drain, and what wake-ups cost the producers: `nox -s bench_worker`.

The machine is shared with whatever else runs on it, so everything that is compared is run in turns, and medians are printed:
compare the columns of one run, not numbers of two. PostgreSQL runs with its default durability.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[1]))

import psycopg
from sqlalchemy.engine import make_url

from benchmarks import raw
from outboxq import migrations
from outboxq.engine import make_engine
from outboxq.model import NewTask
from outboxq.store import Store
from outboxq.uuid7 import uuid7
from tests import postgres
from tests.waiting import until

ROOT = Path(__file__).parents[1]
POLLING = ("--no-notifications", "--poll", "500ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["pickup", "drain", "producers"])
    parser.add_argument("--tasks", type=int, default=20_000, help="of each drain")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cluster = postgres.start(durable=True)
    try:
        with tempfile.TemporaryDirectory() as directory:
            urls = {"sqlite": f"sqlite:///{directory}/bench.db", "postgresql": cluster.create_database()}
            for url in urls.values():
                migrations.upgrade(url)
            if options.only in {None, "pickup"}:
                for name, url in urls.items():
                    pickup(name, url, Path(directory))
            if options.only in {None, "drain"}:
                drain(urls, options.tasks, options.rounds, Path(directory))
            if options.only in {None, "producers"}:
                producers(urls["postgresql"], options.rounds, Path(directory))
    finally:
        cluster.stop()


# Pickup


def pickup(name: str, url: str, directory: Path, tasks: int = 200) -> None:
    """From just before the enqueue call, its commit included, to the handler's first act; one task each 30 to 70 ms."""
    print(f"\npickup on {name}, an idle worker, {tasks} single tasks; in ms", flush=True)
    print(f"{'':12}{'p50':>8}{'p99':>8}{'worst':>8}{'idle CPU':>10}{'due in 300 ms, late by':>24}")
    medians = {}
    if name == "postgresql":
        raw_pickup(libpq(url), directory, tasks)
    for kind, arguments in (("notified", ()), ("polling", POLLING)):
        with worker(url, directory, *arguments) as (process, log), closing_store(url) as store:
            cpu = idle_cpu(process.pid)
            rounds = tasks if kind == "notified" else tasks // 5  # each waits for the next poll
            waits = sorted(late(store, log, number, timedelta(0)) for number in range(rounds))
            lateness = max(late(store, log, tasks + number, timedelta(milliseconds=300)) for number in range(10))
        medians[kind] = statistics.median(waits)
        row = (medians[kind], waits[int(rounds * 0.99)], waits[-1])
        print(f"{kind:12}{row[0]:8.1f}{row[1]:8.1f}{row[2]:8.1f}{cpu:9.1f}%{lateness:20.1f} max")
    print(f"polling each 500 ms takes {medians['polling'] / medians['notified']:.0f} times as long")


def raw_pickup(address: str, directory: Path, tasks: int) -> None:
    """The same by hand: an autocommitted statement that enqueues, one that claims."""
    log = directory / "raw"
    log.touch()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.raw", address, str(log)], cwd=ROOT)
    try:
        with psycopg.connect(address, autocommit=True) as connection:
            asleep = "SELECT count(*) FROM sleeping_workers WHERE wakes_at = 'infinity'"
            until(lambda: connection.execute(asleep).fetchone() == (1,))
            waits = []
            for number in range(tasks):
                time.sleep(random.uniform(0.03, 0.07))
                before = time.time_ns()
                connection.execute(raw.ENQUEUE, {"number": number})
                began = until(lambda n=number: began_at(log).get(n), every=0.005)
                waits.append((began - before) / 1e6)
            connection.execute("DELETE FROM sleeping_workers")
    finally:
        process.kill()
        process.wait()
    waits.sort()
    print(f"{'raw psycopg':12}{statistics.median(waits):8.1f}{waits[int(tasks * 0.99)]:8.1f}{waits[-1]:8.1f}")


def late(store: Store, log: Path, number: int, delay: timedelta) -> float:
    """Milliseconds from when it may run to when it does."""
    time.sleep(random.uniform(0.03, 0.07))
    before = time.time_ns()
    store.enqueue(task(number, delay=delay))
    began = until(lambda: began_at(log).get(number), seconds=30, every=0.005)
    return (began - before) / 1e6 - delay.total_seconds() * 1000


def idle_cpu(pid: int, seconds: float = 4.0) -> float:
    """Per cent of a core."""
    time.sleep(1)
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds * 100


# Drain


def drain(urls: dict[str, str], tasks: int, rounds: int, directory: Path) -> None:
    """From the first handler's start to the last completion, by the machine's clock; raw: from the first claim."""
    print(f"\ndrain of {tasks:,} no-op tasks by one process, tasks/s, median of {rounds} rounds in turns")
    address = libpq(urls["postgresql"])
    rates: dict[str, list[float]] = {
        "raw psycopg, batches of 100": [],
        "outboxq, postgresql": [],
        "outboxq, sqlite": [],
    }
    for _ in range(rounds):
        fill(urls["postgresql"], tasks)
        vacuum(address)
        rates["raw psycopg, batches of 100"].append(tasks / raw.drain(address, 100))
        for name, url in urls.items():
            fill(url, tasks)
            if name == "postgresql":
                vacuum(address)
            with closing_store(url) as store, worker(url, directory) as (_, log):
                until(lambda s=store: left(s) == 0, seconds=300, every=0.5)
                rates[f"outboxq, {name}"].append(tasks / (last_end(store) - min(began_at(log).values()) / 1e9))
    of_raw = statistics.median(rates["raw psycopg, batches of 100"])
    for what, found in rates.items():
        middle = statistics.median(found)
        print(f"{what:30}{middle:10,.0f}   {middle / of_raw:5.2f} of raw   ({min(found):,.0f} to {max(found):,.0f})")


def vacuum(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


# Producers


def producers(url: str, rounds: int, directory: Path, *, clients: int = 8, seconds: int = 4) -> None:
    """Commits per second of single enqueues by pgbench, whose clients cost next to nothing."""
    print(f"\n{clients} producers, commits/s, median of {rounds} rounds of {seconds} s in turns")
    binary = pgbench()
    script = directory / "enqueue.sql"
    script.write_text(raw.ENQUEUE.replace("%(number)s", "1") + ";")  # its clients cost next to nothing
    address = libpq(url)
    busy = ("-c", "2")
    cases: dict[str, tuple[tuple[str, ...] | None, str, str]] = {
        "no trigger, a busy worker": (busy, "DISABLE", "idle"),
        "trigger, a busy worker": (busy, "ENABLE", "idle"),
        "no trigger, nobody": (None, "DISABLE", "idle"),
        "trigger, nobody": (None, "ENABLE", "idle"),
        "always notifying, two listeners": (("listeners",), "ENABLE", "always"),
    }
    rates: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, (arguments, trigger, notify) in cases.items():
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(
                    "TRUNCATE task_executions, task_outbox, execution_events, task_leases, sleeping_workers"
                )
                connection.execute(f"ALTER TABLE task_outbox {trigger} TRIGGER task_outbox_notify")  # type: ignore[arg-type]
            with producing(url, directory, arguments):
                command = [
                    binary,
                    "-n",
                    "-c",
                    str(clients),
                    "-j",
                    "2",
                    "-T",
                    str(seconds),
                    "-M",
                    "prepared",
                    "-f",
                    script,
                ]
                environment = {**os.environ, "PGOPTIONS": f"-c outboxq.notify={notify}"}
                told = subprocess.run([*command, address], env=environment, capture_output=True, text=True, check=True)
                rates[case].append(float(told.stdout.split("tps = ")[1].split()[0]))
    for case, found in rates.items():
        middle = statistics.median(found)
        print(f"{case:46}{middle:8,.0f}   ({min(found):,.0f} to {max(found):,.0f})")
    for with_trigger, without in (
        ("trigger, a busy worker", "no trigger, a busy worker"),
        ("trigger, nobody", "no trigger, nobody"),
        ("always notifying, two listeners", "no trigger, nobody"),
    ):
        ratios = [one / other for one, other in zip(rates[with_trigger], rates[without], strict=True)]
        print(f"{with_trigger} / {without}: {statistics.median(ratios):.2f}")


@contextmanager
def producing(url: str, directory: Path, arguments: tuple[str, ...] | None) -> Iterator[None]:
    """What runs beside the producers."""
    if arguments is None:
        yield
    elif arguments == ("listeners",):
        with psycopg.connect(libpq(url), autocommit=True) as one, psycopg.connect(libpq(url), autocommit=True) as other:
            for listener in (one, other):
                listener.execute("LISTEN task_ready")
            yield
    else:
        with worker(url, directory, *arguments) as (_, log), closing_store(url) as store:
            store.enqueue_many([task(number, name="bench.slow") for number in range(2)])
            until(lambda: len(began_at(log)) == 3)
            yield


def pgbench() -> str:
    for _, binaries in postgres.installations():
        if (binaries / "pgbench").exists():
            return str(binaries / "pgbench")
    raise SystemExit("this needs pgbench, which comes with PostgreSQL's server or contrib package")


# What all of them need


@contextmanager
def worker(url: str, directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A worker process that is up, and the file that its tasks write their beginnings to."""
    log = directory / f"began-{uuid7()}"
    log.touch()
    options = ("worker", "benchmarks.app:outbox", "-q", "bench", "--log-level", "WARNING", *arguments)
    environment = {**os.environ, "OUTBOXQ_DATABASE_URL": url, "OUTBOXQ_BENCH_LOG": str(log), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-m", "outboxq", *options], env=environment, cwd=ROOT)
    try:
        with closing_store(url) as store:
            first = store.enqueue(task(-1))
            until(lambda: store.get(first.id).started_at is not None or left(store) == 0, seconds=60)
        yield process, log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(40)
        finally:
            process.kill()
            process.wait()


@contextmanager
def closing_store(url: str) -> Iterator[Store]:
    engine = make_engine(url)
    try:
        yield Store(engine)
    finally:
        engine.dispose()


def fill(url: str, tasks: int) -> None:
    with closing_store(url) as store:
        for start in range(0, tasks, 5000):
            store.enqueue_many([task(number) for number in range(start, min(start + 5000, tasks))])


def task(number: int, *, name: str = "bench.nothing", delay: timedelta = timedelta(0)) -> NewTask:
    return NewTask(id=uuid7(), task_name=name, args=f'{{"number": {number}}}', queue="bench", delay=delay)


def left(store: Store) -> int:
    with store.bound_engine.connect() as connection:
        sql = "SELECT (SELECT count(*) FROM task_outbox) + (SELECT count(*) FROM task_leases)"
        return int(connection.exec_driver_sql(sql).scalar_one())


def last_end(store: Store) -> float:
    """When the last task was completed, in seconds of the epoch."""
    sql = "SELECT id FROM task_executions ORDER BY updated_at DESC LIMIT 1"
    with store.bound_engine.connect() as connection:
        found = connection.exec_driver_sql(sql).scalar_one()
    ended = store.get(found if isinstance(found, UUID) else UUID(found)).completed_at
    assert ended is not None
    return ended.timestamp()


def began_at(log: Path) -> dict[int, int]:
    return {int(line.split()[0]): int(line.split()[1]) for line in log.read_text().splitlines()}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def libpq(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


if __name__ == "__main__":
    main()
