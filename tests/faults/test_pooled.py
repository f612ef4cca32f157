"""Producers, workers and commands that use a pooler in transaction mode with three connections, without any configuration for it.

Each test runs through the simulated pooler and, in a full run, through PgBouncer if it is installed. `nox -s pgbouncer` fails if it is
not installed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from outboxq import Outbox
from outboxq.database.revisions import REVISION
from outboxq.model import TaskStatus
from tests import forked
from tests.conftest import Database
from tests.faults.helpers import left
from tests.faults.workers import Worker
from tests.poolers import KINDS, pooling
from tests.waiting import until

POOL_SIZE = 3
THREADS, EACH = 4, 40
DEAF = "notifications do not reach this worker"


@pytest.fixture(params=KINDS)
def pooled_url(request: pytest.FixtureRequest, postgresql: Database) -> Iterator[str]:
    with pooling(request.param, postgresql.url, POOL_SIZE) as pooler:
        yield pooler.url


@pytest.fixture
def pooled(pooled_url: str) -> Iterator[Outbox]:
    outbox = Outbox(pooled_url)
    yield outbox
    outbox.store.bound_engine.dispose()


def nothing(number: int) -> None: ...


def enqueue_at_once(outbox: Outbox, threads: int, each: int) -> tuple[int, list[Exception]]:
    """Return the number of tasks that were enqueued, and the errors of the others."""
    plain = outbox.task(nothing, name="faults.nothing", queue="faults")
    transactional = outbox.task(nothing, name="faults.entry", queue="faults")
    barrier = threading.Barrier(threads)

    def enqueue(thread: int) -> list[Exception]:
        barrier.wait(60)
        errors: list[Exception] = []
        for number in range(each):
            task = transactional if number % 4 == 0 else plain
            key = f"{thread} {number}" if number % 5 == 0 else None
            try:
                task.using(outbox, idempotency_key=key).enqueue(number)
            except Exception as error:  # noqa: BLE001 - counted
                errors.append(error)
        return errors

    with ThreadPoolExecutor(threads) as pool:
        errors = [error for found in pool.map(enqueue, range(threads)) for error in found]
    return threads * each - len(errors), errors


def test_threads_enqueue_through_a_pooler_without_errors(postgresql, pooled):
    written, errors = enqueue_at_once(pooled, THREADS, EACH)
    print(f"enqueued {written}, failed {len(errors)}")
    assert {str(error).partition("\n")[0] for error in errors} == set()
    assert postgresql.rows("SELECT count(*) FROM task_executions") == [(THREADS * EACH,)]


def test_workers_lose_no_task_and_repeat_no_effect(postgresql, pooled, pooled_url, tmp_path):
    postgresql.run("CREATE TABLE effects (task CHAR(32) NOT NULL)")
    workers = [Worker(pooled_url, tmp_path / f"worker-{number}.log") for number in range(2)]
    try:
        for worker in workers:
            until(worker.is_up)
        written, errors = enqueue_at_once(pooled, THREADS, EACH)
        until(lambda: left(postgresql) == 0 or any(worker.poll() is not None for worker in workers))
        for worker in workers:
            until(lambda worker=worker: DEAF in worker.text())
    finally:
        for worker in workers:
            worker.end()
    logs = [worker.text() for worker in workers]
    wrong = [line for log in logs for line in log.splitlines() if " ERROR " in line or line.startswith("Traceback")]
    effects = postgresql.rows("SELECT count(*), count(DISTINCT task) FROM effects")
    statuses = dict(postgresql.rows("SELECT status, count(*) FROM task_executions GROUP BY status"))
    retried = postgresql.rows("SELECT count(*) FROM task_executions WHERE attempt > 1 OR recovery_attempts > 0")
    print(
        f"enqueued {written}, failed {len(errors)}; {statuses}, run again {retried}; effects {effects}; errors {wrong}"
    )
    assert (len(errors), wrong) == (0, [])
    assert statuses == {TaskStatus.COMPLETED.value: THREADS * EACH}
    assert retried == [(0,)]
    entries = THREADS * len(range(0, EACH, 4))
    assert effects == [(entries, entries)]
    for log in logs:
        assert log.count(DEAF) == 1


def test_commands_work_through_a_pooler(cluster, pooled_url, postgresql, request):
    def run(*words):
        return forked.run([*forked.PYTHON, "-m", "outboxq", *words], capture_output=True, text=True)

    fresh = cluster.create_database()
    with pooling(request.node.callspec.params["pooled_url"], fresh, POOL_SIZE) as pooler:
        upgraded = [run("upgrade", pooler.url) for _ in range(2)]
    cluster.drop_database(fresh)
    assert [(one.returncode, one.stderr.rpartition("is now")[2]) for one in upgraded] == [(0, f" {REVISION}\n")] * 2
    postgresql.add(postgresql.store, task_name="faults.nothing", queue="faults")
    for command in ("status", "verify"):
        done = run(command, "--url", pooled_url)
        assert done.returncode == 0, done.stderr
