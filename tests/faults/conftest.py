from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import timedelta

import pytest

from tests.faults.workers import Forked, Process, Worker
from tests.waiting import until

AT_WORK = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' "
    "AND wait_event IS DISTINCT FROM 'ClientRead'"
)
"""A query for the number of statements that the server is executing for other connections, including those of dead clients.

It excludes a client that froze while sending a statement (one longer than 8 kB is sent in pieces). Such a client counts as active,
although the server is waiting for it.
"""


@pytest.fixture
def start(database, tmp_path):
    """Start worker processes on the test's database, as a user does. All end with the test."""
    started: list[Process] = []
    numbers = itertools.count()

    def start_worker(*options: str, ignores: Sequence[str] = ()) -> Worker:
        worker = Worker(database.url, tmp_path / f"worker-{next(numbers)}.log", *options, ignores=ignores)
        started.append(worker)
        return worker

    yield start_worker
    for worker in started:
        worker.end()


@pytest.fixture
def effects(database):
    """Create the application's table that its transactional tasks write to. Return a function that reads it."""
    database.run("CREATE TABLE effects (task CHAR(32) NOT NULL)")
    yield lambda: sorted(row[0] for row in database.rows("SELECT task FROM effects"))
    database.run("DROP TABLE effects")


@pytest.fixture
def fork(database, effects, nursery, tmp_path):
    """Fork processes, optionally with faults: `fork(fault={"point": …, "action": "kill"}, concurrency=2)`."""
    started: list[Process] = []
    numbers = itertools.count()

    def start_process(kind: str = "worker", **options: object) -> Forked:
        log = tmp_path / f"forked-{next(numbers)}.log"
        process = Forked(nursery, log, {"kind": kind, "url": database.url, **options})
        started.append(process)
        return process

    yield start_process
    for process in started:
        process.end()


@pytest.fixture
def add(database):
    """Enqueue one of the application's tasks, as in `add("note", name="a")`, and return its id."""

    def add_task(kind: str, /, *, lease: float = 30, priority: int = 0, **args: object):
        fields = {"task_name": f"faults.{kind}", "queue": "faults", "args": json.dumps(args), "priority": priority}
        return database.add(database.store, lease=timedelta(seconds=lease), **fields).id

    return add_task


@pytest.fixture
def died(database):
    """Let all leases expire once the given processes have died: `died(worker)`."""

    def run_out(*workers: Process) -> None:
        for worker in workers:
            assert worker.wait() != 0
        if database.name == "sqlite":
            database.run("UPDATE task_leases SET lease_expires_at = '2020-01-01T00:00:00.000000+00:00'")
            return
        until(lambda: database.rows(AT_WORK) == [(0,)])
        # In the order in which all code locks them, because a frozen process may hold some and wait for others.
        database.run(
            "WITH all_of_them AS (SELECT task_execution_id AS id FROM task_leases ORDER BY id FOR UPDATE) "
            "UPDATE task_leases SET lease_expires_at = '2020-01-01T00:00:00Z' FROM all_of_them WHERE task_execution_id = id"
        )

    return run_out
