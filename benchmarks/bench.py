"""One run of the benchmark: its sizes, its server, and its queues, which take turns."""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.queues import OUTBOXQ, QUEUES, RAW, Environments, Queue
from benchmarks.results import Results
from benchmarks.running import Base, PostgresqlBase, Running, SqliteBase
from outboxq import migrations
from outboxq.database.engine import make_engine
from outboxq.store import Store
from tests import postgres

SERVER = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
"""The settings that differ from PostgreSQL's defaults. fsync, synchronous_commit, full_page_writes and autovacuum are on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of all measures."""

    rounds: int
    """The number of rounds for outboxq, raw and the peers to which a goal refers. Other peers take part in at most
    `slow_rounds`.
    """
    slow_rounds: int
    singles: int
    """The number of tasks to enqueue, each in a separate transaction."""
    bulk: int
    drained: int
    """The number of tasks that the fast queues drain. Each other queue drains its share of this number."""
    backlogs: tuple[int, ...]
    finished: tuple[int, ...]
    pickups: int
    delayed: int
    idle: float
    """The seconds during which an idle worker is measured."""
    producing: float
    """The duration in seconds of each case with producers."""
    dead: int
    caller: int
    claims: int
    """The number of claims of each size in each situation."""
    handlers: float
    """The seconds that an ideal worker would need."""
    handled: tuple[tuple[int, int], ...]
    """Pairs of a handler's duration in milliseconds and the number of threads."""
    memory: int
    """The number of tasks after which a worker's memory is measured for the first time. The second time is after ten times as
    many."""
    relaxed: bool = True
    """True if SQLite is also measured with synchronous=NORMAL."""
    thorough: bool = False
    """True if all measures include the peers to which no goal refers and the settings that are not the default."""


HANDLED = ((1, 1), (1, 8), (1, 32), (20, 1), (20, 8), (20, 32))

QUICK = Sizes(
    rounds=3,
    slow_rounds=1,
    singles=150,
    bulk=10_000,
    drained=20_000,
    backlogs=(),
    finished=(50_000,),
    pickups=30,
    delayed=10,
    idle=2.0,
    producing=1.0,
    dead=5_000,
    caller=100,
    claims=20,
    handlers=0.5,
    handled=((1, 8), (1, 32), (20, 8), (20, 32)),
    memory=2_000,
)
FULL = Sizes(
    rounds=7,
    slow_rounds=3,
    singles=1_000,
    bulk=10_000,
    drained=20_000,
    backlogs=(200_000, 1_000_000),
    finished=(1_000_000, 10_000_000),
    pickups=200,
    delayed=50,
    idle=4.0,
    producing=5.0,
    dead=100_000,
    caller=1_000,
    claims=40,
    handlers=4.0,
    handled=HANDLED,
    memory=100_000,
    thorough=True,
)
TINY = Sizes(
    rounds=1,
    slow_rounds=1,
    singles=20,
    bulk=500,
    drained=300,
    backlogs=(400,),
    finished=(1_000,),
    pickups=5,
    delayed=3,
    idle=0.5,
    producing=1.0,
    dead=500,
    caller=10,
    claims=3,
    handlers=0.1,
    handled=((1, 8),),
    memory=100,
    relaxed=False,
)
"""Sizes for testing whether the benchmark works."""


@dataclass(slots=True)
class Bench:
    """The sizes, queues and databases of a run, which the measures use."""

    sizes: Sizes
    results: Results
    environments: Environments
    folder: Path
    memory: Path
    """A directory in memory, to which the tasks write."""
    cluster: postgres.Cluster | None
    """None if only SQLite is measured."""
    peers: frozenset[str] | None = None
    """The peers that take part; None means all of them."""
    _open: ExitStack = field(default_factory=ExitStack)
    _queues: dict[str, list[Running]] = field(default_factory=dict)
    _made: int = 0

    def queues(self, kind: str) -> list[Running]:
        """Return the queues for this kind of database, each with its own database."""
        if kind not in self._queues:
            self._queues[kind] = [found for queue in QUEUES[kind] if (found := self._started(queue, kind))]
        return self._queues[kind]

    def queues_of_goals(self, kind: str) -> list[Running]:
        """Return the queues that take part in every round; in a full run, these are all queues."""
        return [one for one in self.queues(kind) if one.queue.always or self.sizes.thorough]

    def ours(self, kind: str = "postgresql") -> list[Running]:
        """Return raw and outboxq."""
        return [one for one in self.queues(kind) if one.queue.peer in {RAW, OUTBOXQ}]

    def as_it_comes(self, kind: str) -> list[Running]:
        """Return raw and outboxq. On SQLite, they use synchronous=FULL; a thorough run includes both settings."""
        return [one for one in self.ours(kind) if self.sizes.thorough or not one.queue.name.endswith("NORMAL")]

    def outboxq(self, kind: str = "postgresql") -> Running:
        """Return outboxq; on SQLite, with synchronous=FULL."""
        return next(one for one in self.ours(kind) if one.queue.name in {OUTBOXQ, f"{OUTBOXQ} FULL"})

    def ours_together(self, kind: str, stack: ExitStack) -> list[Running]:
        """Return raw and outboxq in one new database, which is dropped when the stack ends."""
        base = self._base(kind)
        if isinstance(base, PostgresqlBase):
            stack.callback(self.cluster.drop_database, base.address)
        else:
            stack.callback(self._remove, base.address)
        stack.callback(base.close)
        return [
            stack.enter_context(contextlib.closing(self._running(one.queue, one.python, self._same(base))))
            for one in self.as_it_comes(kind)
        ]

    def store(self, kind: str = "postgresql") -> Store:
        """Return the store of a new database, for measures in this process."""
        url = self.cluster.create_database() if kind == "postgresql" else f"sqlite:///{self._file()}"
        migrations.upgrade(url)
        engine = make_engine(url)
        self._open.callback(engine.dispose)
        return Store(engine)

    def address(self, store: Store) -> str:
        """Return the store's address in the form that the driver accepts."""
        if store.bound_engine.dialect.name == "sqlite":
            return str(store.bound_engine.url.database)
        return store.bound_engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def close(self) -> None:
        self._open.close()

    def in_turns(
        self, what: str, runners: Sequence[Running], work: Callable[[Running], None], rounds: int | None = None
    ) -> None:
        """Do the work with each queue in every round, so that noise affects all of them. A queue that fails is reported and left
        out of the later rounds."""
        rest = list(runners)
        for turn in range(rounds or self.sizes.rounds):
            for one in rest if turn % 2 == 0 else rest[::-1]:
                if not one.queue.always and turn >= self.sizes.slow_rounds:
                    continue
                try:
                    work(one)
                except Exception as error:  # noqa: BLE001 - an error in one peer must not end the run
                    self.failed(f"{what}: {one.queue.name}", error)
                    rest = [other for other in rest if other is not one]

    def failed(self, what: str, error: Exception) -> None:
        said = (str(error) or type(error).__name__).splitlines()[0]
        self.results.missing[what] = said
        print(f"  {what}: {said}", file=sys.stderr, flush=True)
        if os.environ.get("BENCH_VERBOSE"):
            traceback.print_exception(error)

    def _started(self, queue: Queue, kind: str) -> Running | None:
        if not wanted(queue, self.sizes, self.peers):
            return None
        python = self.environments.python(queue)
        if python is None:
            self.results.missing[queue.name] = self.environments.missing[queue.module]
            return None
        try:
            found = self._running(queue, python, self._base(kind))
        except Exception as error:  # noqa: BLE001 - an error in one peer must not end the run
            self.failed(f"{kind}: {queue.name}", error)
            return None
        self._open.callback(found.close)
        self.results.about["settings"][f"{kind}: {queue.name}"] = found.settings
        return found

    def _base(self, kind: str) -> Base:
        """Return a connection to a new database."""
        if kind == "postgresql":
            return PostgresqlBase(self.cluster.create_database(), self.cluster.pid)
        return SqliteBase(self._file())

    def _same(self, base: Base) -> Base:
        """Return another connection to the same database."""
        if isinstance(base, PostgresqlBase):
            return PostgresqlBase(base.address, self.cluster.pid)
        return SqliteBase(base.address)

    def _file(self) -> str:
        self._made += 1
        return str(self.folder / f"{self._made}.db")

    def _remove(self, path: str) -> None:
        for end in ("", "-wal", "-shm"):
            Path(path + end).unlink(missing_ok=True)

    def _running(self, queue: Queue, python: str, base: Base) -> Running:
        self._made += 1
        return Running(queue, python, base, self.memory / f"began-{self._made}")


def wanted(queue: Queue, sizes: Sizes, peers: frozenset[str] | None) -> bool:
    """Return whether the queue takes part."""
    if queue.peer in {RAW, OUTBOXQ}:
        return sizes.relaxed or not queue.name.endswith("NORMAL")
    return peers is None or queue.peer in peers


@contextmanager
def server() -> Iterator[postgres.Cluster]:
    cluster = postgres.start(prefer="own", durable=True, settings=SERVER)
    try:
        yield cluster
    finally:
        cluster.stop()


def about(cluster: postgres.Cluster | None, folder: Path) -> dict[str, object]:
    """Return the properties of the machine that affect the figures."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    total = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    return {
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} x {model or platform.machine()}, {int(total) // 2**20} GiB, {platform.system()} {platform.release()}",
        "load at the beginning": round(os.getloadavg()[0], 1),
        "write and flush of 8 kB, us": round(_flush(folder)),
        "PostgreSQL": _server(cluster),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "settings": {},
        "drained": {},
    }


def _server(cluster: postgres.Cluster | None) -> str:
    if cluster is None:
        return "not asked"
    return f"{'.'.join(str(one) for one in cluster.version)} ({cluster.source.split()[0]}), {_said(SERVER)}"


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(path).read_text().splitlines()
    return []


def _flush(folder: Path, times: int = 50) -> float:
    """Return the median time of a flush in microseconds."""
    took = []
    with (folder / "flushed").open("wb", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(bytes(8192))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return sorted(took)[times // 2] * 1e6


def _said(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
