"""Run queues: their databases, clients and workers. Measure the cost of their work."""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

from benchmarks.peers.driver import LINE
from benchmarks.queues import ROOT, Queue

PATIENCE = 180.0
"""The longest time in seconds that a single command or wait may take."""


class Child:
    """The process of a driver."""

    def __init__(self, python: str, queue: Queue, role: str, url: str, **environment: str) -> None:
        command = [python, "-m", f"benchmarks.peers.{queue.module}", role, url]
        kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "OUTBOXQ_DATABASE_URL"}}
        self._name = f"{queue.name} {role}"
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("BENCH_VERBOSE") else subprocess.DEVNULL,
            cwd=ROOT,
            env={**kept, **environment},
            start_new_session=True,
        )

    def tell(self, *message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, seconds: float = PATIENCE) -> Any:
        """Return the next answer. Raises RuntimeError if there is none."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            why = f"no answer within {seconds:.0f} s" if not ready else f"ended with {self.process.wait(5)}"
            raise RuntimeError(f"{self._name}: {why}; BENCH_VERBOSE=1 shows what it prints")
        return json.loads(line)

    def ask(self, command: str, *arguments: Any, seconds: float = PATIENCE) -> Any:
        self.tell(command, *arguments)
        return self.hear(seconds)["answer"]

    def ready(self) -> None:
        """Wait until the worker is ready. It then waits for the command to begin."""
        assert self.hear() == "ready"


def end(children: Sequence[Child]) -> None:
    """End these processes and all processes that they started, first with SIGTERM, then with SIGKILL."""
    for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
        for one in children:
            with suppress(ProcessLookupError):
                os.killpg(one.process.pid, number)
        deadline = time.monotonic() + patience
        for one in children:
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, deadline - time.monotonic()))
    for one in children:
        for pipe in (one.process.stdin, one.process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


class Base(Protocol):
    """The database of a queue."""

    address: str

    def scalar(self, sql: str) -> Any: ...
    def empty(self, tables: Sequence[str]) -> None: ...
    def tidy(self) -> None: ...
    def cost(self) -> tuple[float, int]: ...
    def close(self) -> None: ...


class PostgresqlBase:
    """One database of the server whose main process is `pid`."""

    def __init__(self, url: str, pid: int) -> None:
        self.address = url.replace("+psycopg", "")
        self._pid = pid
        self._connection = psycopg.connect(self.address, autocommit=True)

    def scalar(self, sql: str) -> Any:
        row = self._connection.execute(sql.encode()).fetchone()
        assert row is not None
        return row[0]

    def empty(self, tables: Sequence[str]) -> None:
        self._connection.execute(f"TRUNCATE {', '.join(tables)} CASCADE".encode())

    def tidy(self) -> None:
        self._connection.execute("VACUUM ANALYZE")
        self._connection.execute("CHECKPOINT")

    def cost(self) -> tuple[float, int]:
        """Return the CPU seconds of the server and the bytes of WAL so far."""
        wal = self.scalar("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
        return cpu_of_family(self._pid), int(wal)

    def close(self) -> None:
        self._connection.close()


class SqliteBase:
    """One SQLite file."""

    def __init__(self, path: str) -> None:
        self.address = path
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30)

    def scalar(self, sql: str) -> Any:
        return self._connection.execute(sql).fetchone()[0]

    def empty(self, tables: Sequence[str]) -> None:
        for table in tables:
            self._connection.execute(f"DELETE FROM {table}")

    def tidy(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def cost(self) -> tuple[float, int]:
        return 0.0, 0

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Drained:
    """The rate and the cost of draining a backlog."""

    rate: float
    """Tasks per second, from the start of the first handler until all tasks are finished."""
    steady: float
    """The same rate, measured after a fifth of the tasks have begun, so without the first statements and plans of a process."""
    worker: float
    """The CPU seconds of the worker processes during the drain."""
    server: float
    wal: int
    rss: int
    """The resident memory of the first worker at the end, in bytes."""


@dataclass(slots=True)
class Running:
    """A queue with its own database and a permanent client. Workers are started for each measurement."""

    queue: Queue
    python: str
    base: Base
    log: Path
    client: Child = field(init=False)
    settings: str = field(init=False)

    def __post_init__(self) -> None:
        self.client = Child(self.python, self.queue, "client", self.url)
        try:
            self.settings = self.client.ask("setup")
        except BaseException:
            end([self.client])
            raise

    @property
    def url(self) -> str:
        return self.queue.url.format(self.base.address)

    def close(self) -> None:
        end([self.client])
        self.base.close()

    def reset(self) -> None:
        self.base.empty(self.queue.tables)

    def fill(self, tasks: int) -> None:
        self.client.ask("fill", tasks, seconds=PATIENCE * 5)
        self.base.tidy()

    def produce(self, processes: int, seconds: float) -> tuple[float, float]:
        """Enqueue tasks in this number of processes, each task in a separate transaction. Returns the number of tasks per second
        and the longest wait of a process in seconds."""
        child = Child(self.python, self.queue, "produce", self.url)
        try:
            rate, worst = child.ask("produce", processes, seconds)
            return rate, worst
        finally:
            end([child])

    @contextmanager
    def workers(self, count: int = 1, **environment: str) -> Iterator[list[Child]]:
        """Start worker processes, which wait for the command to begin, and end them afterwards."""
        self.log.write_bytes(b"")
        found: list[Child] = []
        try:
            for _ in range(count):
                found.append(Child(self.python, self.queue, "work", self.url, BENCH_LOG=str(self.log), **environment))
            yield found
        finally:
            end(found)

    def drain(self, tasks: int, processes: int = 1, **environment: str) -> Drained:
        """Write a backlog while the workers get ready, and measure its drain."""
        with self.workers(processes, **environment) as found:
            self.fill(tasks)
            return self.drained(found, tasks)

    def drained(self, found: Sequence[Child], tasks: int, before: int = 0) -> Drained:
        """Measure a drain by these workers. `before` is the number of tasks that they have already begun."""
        if not before:
            for one in found:
                one.ready()
        server, wal = self.base.cost()
        if not before:
            for one in found:
                one.tell("begin")
        self.wait_for(before + 1)
        used = sum(cpu_of(one.process.pid) for one in found)
        self.wait_for(before + tasks)
        finished = self._finished()
        after = sum(cpu_of(one.process.pid) for one in found)
        rss = resident(found[0].process.pid)
        server_after, wal_after = self.base.cost()
        fifth = tasks // 5
        return Drained(
            rate=tasks / ((finished - self._moment(before)) / 1e9),
            steady=(tasks - fifth) / ((finished - self._moment(before + fifth)) / 1e9),
            worker=after - used,
            server=server_after - server,
            wal=wal_after - wal,
            rss=rss,
        )

    def _finished(self) -> int:
        """Wait until all tasks are finished, and return the time in nanoseconds."""
        deadline = time.monotonic() + PATIENCE
        while self.base.scalar(self.queue.unfinished):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.queue.name}: every task began, but some do not end")
            time.sleep(0.002)
        return time.time_ns()

    def wait_for(self, tasks: int) -> None:
        """Wait until this number of tasks has begun. Raises RuntimeError if no task begins for a long time."""
        seen, deadline = 0, time.monotonic() + PATIENCE
        while (found := self.log.stat().st_size) < tasks * LINE:
            if found != seen:
                seen, deadline = found, time.monotonic() + PATIENCE
            elif time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.queue.name}: {found // LINE} of {tasks} tasks began, then none for {PATIENCE:.0f} s"
                )
            time.sleep(0.002)

    def _moment(self, place: int) -> int:
        """Return the time in nanoseconds at which this number of tasks had begun, without reading the whole file."""
        with self.log.open("rb") as file:
            file.seek(place * LINE)
            return int(file.read(LINE)[11:31])

    def beginnings(self) -> list[tuple[int, int]]:
        """Return the number and the start time of each task. This reads the whole file."""
        return [(int(line[:10]), int(line[11:31])) for line in self.log.read_bytes().splitlines()]


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:13]) / os.sysconf("SC_CLK_TCK")


def cpu_of_family(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including those that have ended."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                used[int(entry.name)] = sum(int(field) for field in fields[11:15])
    family, fresh = {pid}, {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - family
        family |= fresh
    return sum(used.get(one, 0) for one in family) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
