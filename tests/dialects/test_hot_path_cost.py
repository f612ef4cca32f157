"""What the hot path costs this process, held against what it cost before: a regression is seen without a benchmark.

Two measures that a busy machine does not move much: how many calls of Python functions a task takes, which is the same each
time; and the CPU of this thread beside a loop that asks psycopg for as many values and does nothing else, best of many.
`nox -s bench` says what it means in tasks a second.
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
"""Of Python and C functions, by Python 3.11: of one call of enqueue, and for each task of a batch. Later Pythons call less."""
ALLOWED_CALLS = 1.15

CPU = {"enqueue": 3.0, "enqueue alone": 3.0, "enqueue_many": 3.1, "claim": 3.5, "complete": 2.6}
"""Of the reference on PostgreSQL."""
ALLOWED_CPU = 1.5


class HotPath:
    """Each hot call on a database of its own; they follow each other in a turn, which leaves nothing behind."""

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
            self._task.using(self._connection).enqueue(0)  # whatever a transaction costs once
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


def test_a_task_takes_no_more_calls_than_it_did(database: Database):
    path = HotPath(database)
    path.turn(lambda _, work: work())  # what is compiled and looked up once
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
    """What the reference makes of each row."""

    id: UUID
    name: str
    args: str
    token: int


class Reference:
    """As many parameters and rows as the hot path has, through psycopg, by statements that touch no table."""

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


def test_a_task_takes_no_more_cpu_than_it_did(postgresql: Database):
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
