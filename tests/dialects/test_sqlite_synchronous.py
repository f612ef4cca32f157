"""Synchronous levels on SQLite: on a worker's own connections, claims need not be on disk. The host's connections are never changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event

from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.conftest import Database

OFF, NORMAL, FULL, EXTRA = range(4)


@contextmanager
def begun(engine: Engine) -> Iterator[list[tuple[str, int]]]:
    """Yield a list of the statements that begin transactions, with the level at which each begins."""
    seen: list[tuple[str, int]] = []

    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("BEGIN"):
            raw = connection.connection.dbapi_connection
            seen.append((statement, raw.execute("PRAGMA synchronous").fetchone()[0]))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def writes(store: Store, worker: Any) -> list[int]:
    """Return the levels at which a claim, a heartbeat, a durable end and a non-durable end are written."""
    store.enqueue_many([NewTask(id=uuid7(), task_name="tests.work", args="{}") for _ in range(2)])
    with begun(store.bound_engine) as seen:
        first, second = store.claim_ready_task(2, worker_id=worker)
        store.heartbeat([first, second])
        assert store.finish([Outcome(claim=first, event_type=EventType.COMPLETED)]) == frozenset()
        assert store.finish([Outcome(claim=second, event_type=EventType.COMPLETED)], durable=False) == frozenset()
    return [level for statement, level in seen if statement == "BEGIN IMMEDIATE"]


def made(database: Database, level: int) -> Engine:
    engine = database.own(create_engine(database.url))
    event.listen(engine, "connect", lambda raw, _: raw.execute(f"PRAGMA synchronous = {level}"))
    return engine


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (OFF, [OFF, OFF, OFF, OFF]),
        (NORMAL, [NORMAL, NORMAL, NORMAL, NORMAL]),
        (FULL, [NORMAL, NORMAL, FULL, NORMAL]),
        (EXTRA, [NORMAL, NORMAL, EXTRA, NORMAL]),
    ],
)
def test_on_connections_of_a_worker_only_durable_ends_are_flushed(sqlite, level, expected):
    store = Store(made(sqlite, level)).reserved(threading.Event())
    sqlite.own(store.bound_engine)
    assert writes(store, sqlite.worker) == expected


def test_on_connections_of_an_application_the_synchronous_level_is_unchanged(sqlite):
    assert writes(Store(made(sqlite, FULL)), sqlite.worker) == [FULL] * 4


def test_after_a_full_claim_the_next_one_skips_the_check(sqlite):
    store = Store(made(sqlite, FULL))
    store.enqueue_many([NewTask(id=uuid7(), task_name="tests.work", args="{}") for _ in range(3)])
    with begun(store.bound_engine) as seen:
        assert len(store.claim_ready_task(2, worker_id=sqlite.worker)) == 2
        assert len(store.claim_ready_task(2, worker_id=sqlite.worker)) == 1
        assert store.claim_ready_task(2, worker_id=sqlite.worker) == []
    kinds = [statement.removeprefix("BEGIN ") for statement, _ in seen]
    assert kinds == ["DEFERRED", "IMMEDIATE", "IMMEDIATE", "DEFERRED"]
