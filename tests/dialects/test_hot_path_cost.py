"""The cost of the hot path in this process, compared with recorded values. This finds regressions without a benchmark.

It uses two measures that a busy machine hardly affects. One is the number of Python function calls for each task, which is the same in
every run. The other is this thread's CPU time, as the best of many runs, relative to a loop that only requests the same number of values
from psycopg. `nox -s bench` converts this to tasks per second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from outboxq import Outbox
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from tests.conftest import Database

BATCH = 100

CALLS = {
    "sqlite": {"enqueue": 214, "enqueue alone": 213, "enqueue_many": 11.8, "claim": 20.8, "complete": 13.9},
    "postgresql": {"enqueue": 181, "enqueue alone": 209, "enqueue_many": 4.1, "claim": 19.8, "complete": 13.1},
}
"""Calls of Python and C functions on Python 3.11: for one enqueue, and for each task of a batch. Later versions of Python make fewer calls.
"""
ALLOWED_CALLS = 1.15

CPU = {"enqueue": 3.0, "enqueue alone": 3.0, "enqueue_many": 3.1, "claim": 3.5, "complete": 2.6}
"""CPU time on PostgreSQL, as a multiple of the reference's."""
ALLOWED_CPU = 1.5


class HotPath:
    """The hot calls, each on its own database. One turn makes all calls in sequence and leaves nothing behind."""

    def __init__(self, database: Database) -> None:
        self._store, self._worker = database.store, database.worker
        self._connection = database.host_engine().connect()
        outbox = Outbox(database.engine)
        self._task = outbox.task(_nothing, name="tests.nothing", queue="hot")
        self._alone = outbox.task(_nothing, name="tests.alone", queue="cold").using(outbox)

    def turn(self, measured: Callable[[str, Callable[[], Any]], Any]) -> None:
        new = [NewTask(id=uuid7(), task_name="tests.nothing", args='{"number":1}', queue="hot") for _ in range(BATCH)]
        measured("enqueue_many", lambda: self._store.enqueue_many(new))
        with self._connection.begin() as transaction:
            self._task.using(self._connection).enqueue(0)  # the one-time costs of a transaction
            measured("enqueue", lambda: self._task.using(self._connection).enqueue(1))
            transaction.rollback()
        measured("enqueue alone", lambda: self._alone.enqueue(1))
        claims = measured("claim", lambda: self._store.claim_ready_task(BATCH, worker_id=self._worker, queues=["hot"]))
        assert len(claims) == BATCH
        outcomes = [Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims]
        measured("complete", lambda: self._store.finish(outcomes))

    def close(self) -> None:
        self._connection.close()


def _nothing(number: int) -> None: ...


def test_a_task_needs_no_more_function_calls_than_recorded(database: Database):
    path = HotPath(database)
    path.turn(lambda _, work: work())  # compiles and looks up everything that is cached
    found: dict[str, float] = {}

    def counted(name: str, work: Callable[[], Any]) -> Any:
        calls = 0

        def note(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            return work()
        finally:
            sys.setprofile(None)
            found[name] = calls / (1 if name in {"enqueue", "enqueue alone"} else BATCH)

    path.turn(counted)
    path.close()
    said = {name: round(calls, 1) for name, calls in found.items()}
    assert all(found[name] <= CALLS[database.name][name] * ALLOWED_CALLS for name in found), said


@dataclass(frozen=True, slots=True)
class Row:
    """An object that the reference creates for each row."""

    id: UUID
    name: str
    args: str
    token: int


class Reference:
    """Statements that touch no table but send and receive as many parameters and rows as the hot path, through psycopg."""

    def __init__(self, address: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self._ids = [uuid4() for _ in range(BATCH)]

    def run(self, name: str) -> None:
        if name in {"enqueue", "enqueue alone"}:
            values = {"id": self._ids[0], "name": "tests.nothing", "args": '{"number":1}', "queue": "hot"}
            self._connection.execute(
                "SELECT %(id)s::uuid, %(name)s::text, %(args)s::text, %(queue)s::text", values
            ).fetchall()
            return
        texts = ["tests.nothing"] * BATCH
        statement = "SELECT id, name, name, 1 FROM unnest(%(ids)s::uuid[], %(names)s::text[]) AS made(id, name)"
        rows = self._connection.execute(statement, {"ids": self._ids, "names": texts}).fetchall()
        assert len([Row(*row) for row in rows]) == BATCH

    def close(self) -> None:
        self._connection.close()


def test_a_task_needs_no_more_cpu_time_than_recorded(postgresql: Database):
    path = HotPath(postgresql)
    reference = Reference(postgresql.engine.url.set(drivername="postgresql").render_as_string(hide_password=False))
    best: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.thread_time()
        found = work()
        best[name] = min(best.get(name, 1e9), time.thread_time() - began)
        return found

    def beside(name: str, work: Callable[[], Any]) -> Any:
        timed(f"reference {name}", lambda: reference.run(name))
        return timed(name, work)

    for _ in range(30):
        path.turn(beside)
    path.close()
    reference.close()
    found = {name: best[name] / best[f"reference {name}"] for name in CPU}
    said = {name: round(ratio, 2) for name, ratio in found.items()}
    assert all(found[name] <= CPU[name] * ALLOWED_CPU for name in found), said


@pytest.fixture(autouse=True)
def _without_other_profilers() -> None:
    assert sys.getprofile() is None
