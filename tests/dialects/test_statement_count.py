"""The number of statements for each call, as the driver sees them: a whole batch takes one, and nothing is queried twice."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from psycopg.pq import Trace
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import psycopg

from outboxq.database.dialects import dialect_for
from outboxq.database.dialects.postgresql import PostgresDialect
from outboxq.database.using import target_of
from outboxq.model import Claim, EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store.claims import ends
from outboxq.store.claims.ends import _row
from tests.conftest import Database

SIZES = [1, 500]


def new(**fields: object) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})  # type: ignore[arg-type]


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Yield a list of all statements that pass through the database's cursors."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    for engine in database.engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        for engine in database.engines:
            event.remove(engine, "before_cursor_execute", note)


def cost(database: Database, call: Callable[..., object]) -> list[str]:
    """Return the statements of a call in a caller's transaction."""
    with database.host_engine().begin() as connection:
        with statements(database) as seen:
            call(using=connection)
        return seen


def calls(database: Database, n: int) -> dict[str, Callable[..., object]]:
    """Return all hot calls, in an order in which each call finds n tasks."""
    store, claims = database.frozen, []

    def claim(**options: Any) -> None:
        claims[:] = store.claim_ready_task(n, worker_id=database.worker, **options)
        assert len(claims) == n

    def finish(kind: EventType, delay: timedelta = timedelta(0)) -> Callable[..., object]:
        def call(using: object) -> None:
            outcomes = [Outcome(claim=claim, event_type=kind, delay=delay) for claim in claims]
            assert store.finish(outcomes, using=using) == frozenset()

        return call

    def heartbeat(using: object) -> None:
        assert len(store.heartbeat(claims, using=using)) == n

    def recover(using: object) -> None:
        database.clock.advance(timedelta(hours=1))
        assert len(store.recover(n, using=using)) == n

    return {
        "enqueue_many": lambda using: store.enqueue_many([new(queue="a") for _ in range(n)], using=using),
        "enqueue_many, with keys": lambda using: store.enqueue_many(
            [new(queue="b", idempotency_key=f"{k} of {n}") for k in range(n)], using=using
        ),
        "claim from all queues": claim,
        "heartbeat": heartbeat,
        "finish: released": finish(EventType.RELEASED),
        "claim from one queue": lambda using: claim(queues=["a"], using=using),
        "finish: retried": finish(EventType.RETRY_SCHEDULED),
        "claim from three queues": lambda using: claim(queues=["a", "b", "c"], using=using),
        "recover": recover,
        "claim again": claim,
        "finish: completed": finish(EventType.COMPLETED),
        "next_available_at": store.next_available_at,
        "claim, short of tasks": lambda using: store.claim_ready_task(3 * n, worker_id=database.worker, using=using),
        "claim, nothing left": lambda using: store.claim_ready_task(n, worker_id=database.worker, using=using),
    }


@pytest.mark.parametrize("n", SIZES)
def test_every_call_is_one_statement_on_postgresql(postgresql, n):
    """The exception is a claim that finds nothing, which also searches for tasks with keys and limits."""
    for fields in ({}, {"idempotency_key": "k"}):  # each kind of enqueue looks up its privileges once
        cost(postgresql, lambda using: postgresql.frozen.enqueue(new(priority=-1, **fields), using=using))  # noqa: B023
    counted = {name: len(cost(postgresql, call)) for name, call in calls(postgresql, n).items()}
    assert counted == {**dict.fromkeys(counted, 1), "claim, nothing left": 2}


def test_an_enqueue_is_one_statement_once_the_schema_and_privileges_were_looked_up(postgresql):
    enqueue = lambda using: postgresql.frozen.enqueue(new(), using=using)  # noqa: E731
    assert len(cost(postgresql, enqueue)) == 4
    for _ in range(3):
        assert len(cost(postgresql, enqueue)) == 1


def test_taken_idempotency_keys_cost_one_statement_more(postgresql):
    enqueue = lambda using: postgresql.frozen.enqueue_many(  # noqa: E731
        [new(idempotency_key=str(n)) for n in range(100)], using=using
    )
    cost(postgresql, enqueue)
    assert len(cost(postgresql, enqueue)) == 2


def test_a_thousand_tasks_are_enqueued_in_one_statement(postgresql):
    postgresql.frozen.enqueue(new())
    with statements(postgresql) as seen:
        postgresql.frozen.enqueue_many([new() for _ in range(1000)])
    assert len(seen) == 2
    assert seen[0].startswith("BEGIN")


def test_a_separate_transaction_adds_only_the_begin_message(postgresql):
    store = postgresql.frozen
    store.enqueue(new())
    with statements(postgresql) as seen:
        [claim] = store.claim_ready_task(1, worker_id=postgresql.worker)
        store.heartbeat([claim])
        store.complete(claim)
        store.recover()
        store.get(claim.id)
        store.history(claim.id)
    assert len(seen) == 12
    assert all(text.startswith("BEGIN") for text in seen[::2])
    assert not any(text.startswith("BEGIN") for text in seen[1::2])


def test_an_enqueue_in_a_separate_transaction_is_one_statement(postgresql):
    """The privileges have already been looked up."""
    postgresql.frozen.enqueue(new())
    with statements(postgresql) as seen:
        postgresql.frozen.enqueue(new())
    assert len(seen) == 1


def trips(raw: Any, call: Callable[[], object]) -> int:
    """Return the number of messages that wait for an answer. They are counted in libpq's own protocol trace, so no layer can hide one."""
    with tempfile.TemporaryFile("w+") as file:
        raw.pgconn.trace(file.fileno())
        raw.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        try:
            call()
        finally:
            raw.pgconn.untrace()
        file.seek(0)
        sent = [line.split()[2] for line in file if line.startswith("F\t")]
    return sent.count("Sync") + sent.count("Query")


def test_a_call_in_a_separate_transaction_is_three_round_trips(postgresql):
    """The round trips are BEGIN, the statement and COMMIT. An enqueue of a single task is only the statement."""
    store = postgresql.frozen
    store.enqueue_many([new() for _ in range(10)])  # the pool now has its connection
    with postgresql.engine.connect() as connection:
        raw = connection.connection.dbapi_connection
    assert trips(raw, lambda: store.enqueue(new())) == 1
    assert trips(raw, lambda: store.claim_ready_task(5, worker_id=postgresql.worker)) == 3
    nothing = lambda: store.claim_ready_task(5, worker_id=postgresql.worker, queues=["none"])  # noqa: E731
    assert trips(raw, nothing) == 6, "a second transaction searches for tasks with a key"


def test_a_call_of_a_worker_is_one_round_trip(postgresql):
    """The worker's connections are not shared, and have outboxq's settings."""
    store = postgresql.own_store()
    store.enqueue_many([new() for _ in range(10)])
    with store.bound_engine.connect() as connection:
        raw = connection.connection.dbapi_connection
    claims = store.claim_ready_task(1, worker_id=postgresql.worker)
    store.heartbeat(claims)
    store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])
    # All statements are now prepared.

    def claim() -> None:
        claims[:] = store.claim_ready_task(1, worker_id=postgresql.worker)

    assert trips(raw, claim) == 2, "one more, because this commit is not waited for and the last one was"
    assert trips(raw, lambda: store.heartbeat(claims)) == 1
    assert trips(raw, claim) == 1
    end = lambda: store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])  # noqa: E731
    assert trips(raw, end) == 2, "one more, because this commit must be waited for"


def test_on_sqlite_the_number_of_statements_does_not_depend_on_the_number_of_tasks(sqlite):
    counted = []
    for n in SIZES:
        cost(sqlite, lambda using: sqlite.frozen.enqueue(new(priority=-1), using=using))
        counted.append({name: len(cost(sqlite, call)) for name, call in calls(sqlite, n).items()})
    assert counted[0] == counted[1]
    assert max(counted[0].values()) <= 11  # the steps of a transition, and its savepoint


def test_an_idle_poll_of_sqlite_only_reads(sqlite):
    sqlite.add()
    sqlite.claim()
    with statements(sqlite) as seen:
        assert sqlite.claim() == []
        assert sqlite.claim(queues=["a", "b"]) == []
        assert sqlite.frozen.recover() == []
    begins = [text for text in seen if text.startswith("BEGIN")]
    assert begins == ["BEGIN DEFERRED"] * 3
    assert len(seen) == 6


@pytest.mark.parametrize("n", [1, 3])
def test_a_worker_compiles_the_ends_before_it_claims_a_task(postgresql, monkeypatch, n):
    """Otherwise, the first task that ends would have to wait 0.03 s for this."""
    dialect = PostgresDialect(psycopg.dialect(), None)
    monkeypatch.setattr(postgresql.store, "dialect", dialect)
    postgresql.store.compile_ends()
    claims = claimed(postgresql, n)
    monkeypatch.setattr("outboxq.database.dialects.base.Prepared", None)  # from now on, nothing can be compiled
    with postgresql.host_engine().connect() as connection:
        run = target_of(connection).execute
        values = {"worker_id": postgresql.worker}
        ended = [Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims]
        assert len(dialect.compiled[ends.end].run(run, values, [_row(one) for one in ended])) == n


def claimed(database: Database, n: int) -> list[Claim]:
    """Return claims that were made by statements of another dialect object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database.store, "dialect", dialect_for("postgresql"))
        database.store.enqueue_many([new() for _ in range(n)])
        return database.claim(n, database.store)
