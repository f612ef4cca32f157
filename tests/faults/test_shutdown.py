"""The end of a worker for each combination of signals and load. Some combinations run only with `--full`."""

from __future__ import annotations

import json
import random
import signal
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy.engine import make_url

from outboxq import migrations
from outboxq.model import TaskStatus
from tests import postgres
from tests.conftest import Database
from tests.faults.helpers import started_by
from tests.faults.workers import Forked
from tests.waiting import until

pytestmark = pytest.mark.in_turn

SHORT, LONG = 1.0, 40.0
"""Drain timeouts in seconds: one that must expire, and one that must not, or the worker would end too late."""
GRACE = 20.0
OPTIONS = ["-q", "faults", "-c", "1", "--poll", "100ms", "--log-level", "DEBUG"]
LOADS = ("idle", "busy", "blocked")
TERM, INT, HUP, QUIT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL
STOP, CONT = signal.SIGSTOP, signal.SIGCONT
READY, DONE, RUNNING = TaskStatus.READY, TaskStatus.COMPLETED, TaskStatus.RUNNING

# The signals; then, for an idle, a busy and a blocked worker, the exit code and the task's status.
# An idle worker may have ended before a second signal arrives.
GRACEFUL = ((0,), (0, DONE), (1, READY))
AT_ONCE = ((0, 1), (1, READY), (1, READY))
TABLE = {
    "TERM": ([TERM], GRACEFUL),
    "INT": ([INT], GRACEFUL),
    "HUP": ([HUP], GRACEFUL),
    "TERM and its echo": ([STOP, TERM, INT, CONT], GRACEFUL),  # after a freeze, it receives both at the same time
    "TERM twice": ([TERM, "again"], AT_ONCE),
    "TERM then KILL": ([TERM, KILL], ((0, -9), (-9, RUNNING), (-9, RUNNING))),
    "QUIT": ([QUIT], AT_ONCE),
    "HUP, and TERM during the drain": ([HUP, "told", "again"], AT_ONCE),
}
EVERY_LOAD = ("TERM", "TERM twice")
"""An end in time and one at once. The other signals take these same paths, so their variants with other loads than "busy" are `full`."""
CELLS = [
    pytest.param(told, load, marks=[] if load == "busy" or told in EVERY_LOAD else [pytest.mark.full])
    for told in TABLE
    for load in LOADS
]


def loads(*first):
    """Return all loads as parameters, of which only these run without `--full`."""
    return [pytest.param(load, marks=[] if load in first else [pytest.mark.full]) for load in LOADS]


def drains(seconds: float) -> list[str]:
    return ["--drain-timeout", f"{seconds:g}s"]


class Cell:
    """A worker with a task, or without one."""

    def __init__(self, database: Database, directory, load: str, *, lingers: float = 0.6) -> None:
        """`lingers`: the number of seconds for which a busy handler continues after it was asked to end."""
        self.database, self.directory, self.load = database, directory, load
        args = json.dumps({"directory": str(directory), "seconds": 60 if load == "blocked" else lingers})
        fields = {"task_name": "faults.linger", "queue": "faults", "args": args, "lease": timedelta(seconds=30)}
        self.task = None if load == "idle" else database.add(database.store, **fields).id
        self.began = 0.0

    def settle(self, worker) -> None:
        """Wait until the worker is up and runs its task, if any."""
        until(worker.is_up)
        if self.task:
            until(lambda: worker.pid in started_by(self.directory))

    def told(self, worker) -> bool:
        return (self.directory / f"told-{worker.pid}").exists() or worker.poll() is not None

    def send(self, worker, *signals) -> None:
        self.began = time.monotonic()
        for number in signals:
            if number == "told":
                until(lambda: self.load == "idle" or self.told(worker))
            elif number == "again":  # an immediate second signal counts as an echo
                until(lambda: worker.poll() is not None or worker.send(TERM), every=0.05)
            else:
                worker.send(number)

    def ends(self, worker, *codes: int) -> None:
        code = worker.wait()
        took = time.monotonic() - self.began
        assert code in codes, worker.text()
        assert took < GRACE, f"{took:.2f} s\n{worker.text()}"
        assert worker.orphans() == []
        if code != -9:
            assert "stopped" in worker.text() or "told to stop immediately" in worker.text()

    def left(self, status: TaskStatus) -> None:
        task = self.database.store.get(self.task)
        assert (task.status, task.attempt, task.recovery_attempts) == (status, 1, 0)
        assert (task.lease_expires_at is not None) is (status is RUNNING)


@pytest.fixture
def run(database, nursery, tmp_path):
    started = []

    def start(drain: float) -> Forked:
        options = [*OPTIONS, *drains(drain)]
        worker = Forked(nursery, tmp_path / "worker.log", {"kind": "cli", "url": database.url, "options": options})
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.end()


@pytest.mark.parametrize(("told", "load"), CELLS)
def test_a_worker_that_is_told_to_stop_exits(database, run, tmp_path, told, load):
    signals, expected = TABLE[told]
    graceful = expected is GRACEFUL
    cell = Cell(database, tmp_path, load, lingers=0.3 if graceful else GRACE - 5)
    worker = run(SHORT if graceful and load == "blocked" else LONG)
    cell.settle(worker)
    cell.send(worker, *signals)
    if load == "idle":
        cell.ends(worker, *expected[0])
    else:
        code, status = expected[LOADS.index(load)]
        cell.ends(worker, code)
        cell.left(status)
    assert "Traceback" not in worker.text()


@pytest.mark.parametrize("load", loads("busy"))
def test_a_worker_that_is_told_to_stop_while_it_starts_exits(database, start, tmp_path, load):
    """The signal arrives within 100 ms after the worker starts to handle signals."""
    cell, worker = Cell(database, tmp_path, load), start(*OPTIONS[2:], *drains(SHORT if load == "blocked" else LONG))
    until(lambda: worker.hears(TERM), every=0.001)
    time.sleep(random.uniform(0, 0.1))  # a random moment is the point
    cell.send(worker, TERM)
    code = worker.wait()
    assert worker.orphans() == []
    claimed = cell.task is not None and database.store.get(cell.task).lease_token > 0
    assert code == 0 or (claimed and load == "blocked"), worker.text()
    if cell.task:
        cell.left(DONE if database.store.get(cell.task).completed_at and load == "busy" else READY)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_worker_ignores_signals_that_were_ignored_when_it_started(database, start, add):
    """Signals are ignored under nohup or with a script's `&`."""
    worker = start(*OPTIONS[2:], ignores=("HUP", "INT", "QUIT"))
    until(worker.is_up)
    for number in (HUP, INT, QUIT):
        worker.send(number)
    task = add("nothing", number=1)
    until(lambda: database.store.get(task).status is DONE or worker.poll() is not None)
    worker.send(TERM)
    assert worker.wait() == 0, worker.text()
    assert database.store.get(task).status is DONE


@contextmanager
def refused(cluster, url):
    """End all connections to this database, and refuse new ones."""
    name = make_url(url).database
    with cluster._connect() as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        gone = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'"
        # One of them belongs to the fixture.
        assert connection.execute(gone).fetchone()[0] > 1, "the worker was not connected, so the test proved nothing"
        try:
            yield
        finally:
            connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def ends_without_a_database(cell, worker):
    cell.send(worker, TERM)
    cell.ends(worker, 0 if cell.load == "idle" else 1)


@pytest.mark.parametrize("load", loads("idle", "busy"))
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_worker_that_is_told_to_stop_while_it_reconnects_exits(database, cluster, run, tmp_path, load):
    cell, worker = Cell(database, tmp_path, load), run(SHORT)
    cell.settle(worker)
    until(lambda: "listening on" in worker.text())
    database.close()
    with refused(cluster, database.url):
        until(lambda: "reconnecting" in worker.text())
        ends_without_a_database(cell, worker)
    if cell.task:
        cell.left(RUNNING)


@pytest.fixture(scope="module")
def own_cluster():
    """A server that may be stopped."""
    server = postgres.start(prefer="own")
    yield server
    server.stop()


@pytest.mark.parametrize("load", loads("busy"))
def test_a_worker_that_is_told_to_stop_while_postgresql_is_down_exits(own_cluster, nursery, tmp_path, load):
    url = own_cluster.create_database()
    migrations.upgrade(url)
    database = Database("postgresql", url)
    cell = Cell(database, tmp_path, load)
    worker = Forked(
        nursery, tmp_path / "worker.log", {"kind": "cli", "url": url, "options": [*OPTIONS, *drains(SHORT)]}
    )
    try:
        cell.settle(worker)
        until(lambda: "listening on" in worker.text())
        database.close()
        own_cluster._own.halt("fast")
        try:
            until(lambda: "reconnecting" in worker.text())
            ends_without_a_database(cell, worker)
        finally:
            own_cluster._own.launch()
        if cell.task:
            cell.left(RUNNING)
        assert database.store.verify() == []
    finally:
        worker.end()
        database.close()
