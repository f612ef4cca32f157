"""Helpers for contract tests, such as concurrent calls and comparisons of whole tables."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from outboxq.database.revisions import REVISION
from outboxq.model import Claim, EventType, NewTask, Outcome
from outboxq.model.batches import BatchLink, NewBatch, new_batch_id
from outboxq.store import Store
from outboxq.task.waiting import ResultWaiter, Wait
from tests.conftest import Database
from tests.waiting import PATIENCE, until

LATER = f"{int(REVISION) + 1:04}"
"""The revision of a later release."""
TABLES = {
    "task_executions": "id",
    "task_outbox": "id",
    "task_leases": "task_execution_id",
    "execution_events": "sequence_num",
    "idempotency_keys": "task_execution_id",
    "dead_letters": "task_execution_id",
    "partition_claims": "task_execution_id",
}


def everything(database: Database) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows of outboxq's tables. If they are equal before and after, nothing was written."""
    return {table: database.rows(f"SELECT * FROM {table} ORDER BY {key}") for table, key in TABLES.items()}


def types(database: Database, task_id: UUID) -> list[str]:
    return [event.event_type.value for event in database.store.history(task_id)]


def claimed(database: Database, **fields: object) -> Claim:
    """Enqueue a task, claim it and return the claim."""
    handle = database.add(**fields)
    (claim,) = database.claim(1)
    assert claim.id == handle.id
    return claim


def batch_with(*then: NewTask, **fields: Any) -> NewBatch:
    """Return a batch with these `then` tasks, each with the id of its place."""
    batch_id = new_batch_id()
    follow = [replace(task, id=BatchLink(batch_id=batch_id, number=n).task_id) for n, task in enumerate(then, start=1)]
    return NewBatch(id=batch_id, then=follow, **fields)


def recovered(database: Database, claim: Claim) -> None:
    """Let the lease expire and recover the task."""
    database.clock.advance(claim.lease_seconds + 1)
    assert [task.id for task in database.frozen.recover()] == [claim.id]


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run each call in a separate thread, all from the same moment. Return the results or exceptions."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(60)
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - handed to the test
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@contextmanager
def transaction(database: Database) -> Iterator[Connection]:
    """Open an application's transaction. It is rolled back unless the test commits it."""
    with database.host.connect() as connection:
        connection.begin()
        yield connection


@contextmanager
def stuck(database: Database, call: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Start `call` in a thread and continue once it waits for a lock (on SQLite, once it has requested the write lock)."""
    asked = threading.Event()

    def see(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement == "BEGIN IMMEDIATE":
            asked.set()

    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool:
        if database.name == "sqlite":
            event.listen(database.engine, "before_cursor_execute", see)
        future = pool.submit(call)
        if database.name == "sqlite":
            until(lambda: asked.is_set() or future.done())
            event.remove(database.engine, "before_cursor_execute", see)
        else:
            until(lambda: database.rows(waits)[0][0] == 1 or future.done())
        yield future


def refuse_event(database: Database, event_type: str) -> None:
    """Make the database refuse events of this type."""
    if database.name == "sqlite":
        database.run(
            f"CREATE TRIGGER refuse BEFORE INSERT ON execution_events WHEN NEW.event_type = '{event_type}' "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    else:
        database.run(
            f"ALTER TABLE execution_events ADD CONSTRAINT refuse CHECK (event_type <> '{event_type}') NOT VALID"
        )


def lost_connection(database: Database) -> OperationalError:
    """Return an error after which the transaction should be retried."""
    if database.name == "sqlite":
        cause: Exception = sqlite3.OperationalError("database is locked")
        cause.sqlite_errorcode = sqlite3.SQLITE_BUSY  # type: ignore[attr-defined]
    else:
        cause = psycopg.OperationalError("the connection is lost")
    return OperationalError("COMMIT", {}, cause)


def lossy(database: Database, monkeypatch: Any, between: Callable[[], object] = lambda: None) -> Store:
    """Return a store whose first write is committed, but whose response from the database is lost."""
    store = Store(database.engine, clock=database.clock)
    real, lost = store.transaction, []

    @contextmanager
    def losing(begin: Any) -> Iterator[Any]:
        with real(begin) as target:
            yield target
        if not lost and begin in {"write", "single"}:
            lost.append(begin)
            between()
            raise lost_connection(database)

    monkeypatch.setattr(store, "transaction", losing)
    return store


def woken(store: Store, monkeypatch: Any) -> list[str]:
    """Return a list that records the queues whose sleeping workers this store wakes from now on."""
    told: list[str] = []
    real = store.wake

    def note(target: Any, queues: Iterable[str]) -> None:
        named = list(queues)
        told.extend(named)
        real(target, named)

    monkeypatch.setattr(store, "wake", note)
    return told


def stale_by(database: Database, seconds: float) -> Any:
    return database.clock.now - timedelta(seconds=seconds)


@contextmanager
def workers(outbox, **defaults):
    """Yield a function that starts a worker of the outbox with these default options. All the workers are stopped at the end."""
    started = []

    def start(outbox=outbox, **options):
        worker = outbox.worker(**{**defaults, **options})
        started.append(worker)
        worker.start()
        return worker

    try:
        yield start
    finally:
        for worker in started:
            worker.stop()


def wait_until_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prolong each wait until it has found its result or failed, so that the speed of the machine does not matter."""
    wait_once = ResultWaiter.wait

    def wait(waiter: ResultWaiter, wait: Wait, seconds: float | None) -> None:
        wait_once(waiter, wait, seconds)
        deadline = time.monotonic() + PATIENCE
        while not (wait.is_found or wait.trouble) and time.monotonic() < deadline:
            wait_once(waiter, wait, seconds)

    monkeypatch.setattr(ResultWaiter, "wait", wait)


def called(url: str) -> str:
    """Return how messages name the database at a URL."""
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        return f"the SQLite file {address.database}"
    return f"the database {address.render_as_string()}"


def dead(database: Database, **fields: object) -> Claim:
    """Return the last claim of a dead letter that was recovered once and retried once."""
    claim = claimed(database, **fields)
    recovered(database, claim)
    (claim,) = database.claim()
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="first")])
    (claim,) = database.claim()
    database.frozen.fail(claim, "second")
    return claim
