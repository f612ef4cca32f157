"""The store on an application's engine: outboxq controls its own transactions and leaves the pool unchanged."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from outboxq.database.engine import configure_sqlite
from outboxq.model import NewTask, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.conftest import Database

# Each recipe creates an engine as one kind of application does, with a single connection, which is used every time.
Recipe = Callable[[str], Engine]


def serializable(url: str) -> Engine:
    return create_engine(url, isolation_level="SERIALIZABLE", pool_size=1, max_overflow=0)


def repeatable_read(url: str) -> Engine:
    return create_engine(url, isolation_level="REPEATABLE READ", pool_size=1, max_overflow=0)


def postgresql_default(url: str) -> Engine:
    return create_engine(url, pool_size=1, max_overflow=0)


def session_defaults(url: str) -> Engine:
    """Change every session setting on which outboxq relies."""
    defaults = (
        "-c default_transaction_isolation=serializable -c default_transaction_read_only=on -c TimeZone=Asia/Kolkata"
    )
    return create_engine(url, connect_args={"options": defaults}, pool_size=1, max_overflow=0)


def sqlite_default(url: str) -> Engine:
    return create_engine(url, pool_size=1, max_overflow=0)


def plain_begin(url: str) -> Engine:
    """SQLAlchemy's documented recipe for real savepoints."""
    engine = create_engine(url, pool_size=1, max_overflow=0)

    @event.listens_for(engine, "connect")
    def by_hand(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def configured(url: str) -> Engine:
    return configure_sqlite(create_engine(url, pool_size=1, max_overflow=0))


def autocommit(url: str) -> Engine:
    return create_engine(url, isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=0)


def no_rollback_in_autocommit(url: str) -> Engine:
    """Use an option of SQLAlchemy 2.0.43 and later."""
    return create_engine(url, skip_autocommit_rollback=True, pool_size=1, max_overflow=0)


POSTGRESQL = [postgresql_default, serializable, repeatable_read, autocommit, no_rollback_in_autocommit]
SQLITE = [sqlite_default, plain_begin, configured, autocommit, no_rollback_in_autocommit]
each_recipe = pytest.mark.parametrize(
    ("database", "recipe"),
    [
        pytest.param(
            database,
            recipe,
            id=f"{database}-{recipe.__name__}",
            marks=[pytest.mark.current] if recipe is no_rollback_in_autocommit else [],
        )
        for database, recipes in (("sqlite", SQLITE), ("postgresql", POSTGRESQL))
        for recipe in recipes
    ],
    indirect=["database"],
)


def task(**fields: object) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})  # type: ignore[arg-type]


@contextmanager
def observed(engine: Engine) -> Iterator[set[str]]:
    """Yield how transactions that write to outboxq's tables begin, as the driver sees it while they run."""
    seen: set[str] = set()

    def note(connection: Any, cursor: Any, sql: str, *_: object) -> None:
        if not any(word in sql for word in ("INSERT INTO task_", "DELETE FROM task_", "UPDATE task_")):
            return
        raw = connection.connection.dbapi_connection
        if isinstance(raw, sqlite3.Connection):
            seen.add(begins[-1] if begins and raw.in_transaction else "nothing")
        else:
            for name in ("transaction_isolation", "transaction_read_only", "lock_timeout"):
                seen.add(raw.execute(f"SHOW {name}").fetchone()[0])

    begins: list[str] = []

    def trace(sql: str) -> None:
        if sql.startswith("BEGIN"):
            begins.append(sql)

    event.listen(engine, "before_cursor_execute", note)
    with engine.connect() as it:
        raw = it.connection.dbapi_connection
        if isinstance(raw, sqlite3.Connection):
            raw.set_trace_callback(trace)
    yield seen
    event.remove(engine, "before_cursor_execute", note)
    if isinstance(raw, sqlite3.Connection):
        raw.set_trace_callback(None)


def work_through(store: Store, database: Database) -> None:
    """Run each kind of transaction in a worker's life once."""
    claimed: dict[str, Any] = {}
    store.enqueue_many([task(queue=queue) for queue in ("done", "failed", "again", "released", "lost")])
    for claim in store.claim_ready_task(10, worker_id=database.worker):
        claimed[claim.queue] = claim
    assert len(claimed) == 5
    assert len(store.heartbeat(list(claimed.values()))) == 5
    store.complete(claimed["done"])
    store.fail(claimed["failed"], "no")
    store.schedule_retry(claimed["again"].id, store.now(), 2)
    store.release(claimed["released"])
    database.run("UPDATE task_leases SET lease_expires_at = '2020-01-01T00:00:00.000000+00:00'")
    assert [it.status for it in store.recover()] == [TaskStatus.READY]
    store.cancel(claimed["again"].id)
    store.redrive(claimed["failed"].id)
    statuses = {queue: store.get(claim.id).status for queue, claim in claimed.items()}
    assert statuses == {
        "done": TaskStatus.COMPLETED,
        "failed": TaskStatus.READY,
        "again": TaskStatus.CANCELLED,
        "released": TaskStatus.READY,
        "lost": TaskStatus.READY,
    }


@each_recipe
def test_the_store_works_and_begins_its_transactions_correctly(database: Database, recipe: Recipe) -> None:
    engine = database.own(recipe(database.url))
    store = Store(engine)
    store.ensure_current()
    with observed(engine) as seen:
        work_through(store, database)
    database.corrupted = True  # leases were changed to expire in the past, so the log shows early recoveries
    assert seen == ({"BEGIN IMMEDIATE"} if database.name == "sqlite" else {"read committed", "off", "2s"})


def test_session_defaults_do_not_affect_transactions_of_outboxq(postgresql: Database) -> None:
    engine = postgresql.own(session_defaults(postgresql.url))
    with observed(engine) as seen:
        work_through(Store(engine), postgresql)
    postgresql.corrupted = True
    assert seen == {"read committed", "off", "2s"}
    with engine.connect() as it:
        assert it.scalar(text("SHOW transaction_isolation")) == "serializable"
        assert it.scalar(text("SHOW transaction_read_only")) == "on"


SETTINGS = ("transaction_isolation", "transaction_read_only", "lock_timeout", "statement_timeout", "enable_seqscan")
SETTINGS += ("enable_bitmapscan", "TimeZone", "search_path", "synchronous_commit")


def state(engine: Engine) -> dict[str, object]:
    """Return the settings that the application finds on a pooled connection."""
    with engine.connect() as it:
        raw = it.connection.dbapi_connection
        if isinstance(raw, sqlite3.Connection):
            begun = raw.in_transaction
            it.execute(text("SELECT 1"))
            names = ("busy_timeout", "journal_mode", "foreign_keys", "read_uncommitted", "synchronous")
            found: dict[str, object] = {name: it.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names}
            return {**found, "mode": raw.isolation_level, "begun": begun, "in transaction": raw.in_transaction}
        found = {name: it.exec_driver_sql(f"SHOW {name}").scalar() for name in SETTINGS}
        return {**found, "autocommit": raw.autocommit, "id": id(raw), "status": raw.info.transaction_status}


@each_recipe
def test_pooled_connections_are_left_unchanged(database: Database, recipe: Recipe) -> None:
    engine = database.own(recipe(database.url))
    before = state(engine)
    work_through(Store(engine), database)
    database.corrupted = True
    assert state(engine) == before


@each_recipe
def test_a_failed_transaction_of_outboxq_leaves_nothing_behind(database: Database, recipe: Recipe) -> None:
    engine = database.own(recipe(database.url))
    store = Store(engine)
    before = state(engine)
    taken = store.enqueue(task())
    with pytest.raises(DBAPIError):
        store.enqueue_many([task(), task(id=taken.id)])
    assert state(engine) == before
    with pytest.raises(ZeroDivisionError):
        store.run(lambda target: (target.execute("DELETE FROM task_outbox", {}), 1 / 0))
    assert state(engine) == before
    assert database.counts() == (1, 1, 1)


@each_recipe
def test_transactions_of_the_application_still_include_tasks(database: Database, recipe: Recipe) -> None:
    engine = database.own(recipe(database.url))
    store = Store(engine)
    store.enqueue(task())  # outboxq has used the pooled connection
    if recipe is autocommit:
        return
    real = recipe is not sqlite_default and not (recipe is no_rollback_in_autocommit and database.name == "sqlite")
    for keeps, expected in ((False, 1), (True, 2 + real)):
        with engine.connect() as it:
            store.enqueue(task(), using=it)
            if real:
                with it.begin_nested():
                    store.enqueue(task(), using=it)
            it.commit() if keeps else it.rollback()
        assert database.counts() == (expected,) * 3


def test_a_worker_on_a_serializable_engine_is_not_stopped_by_a_simultaneous_claim(postgresql: Database) -> None:
    engine = postgresql.own(serializable(postgresql.url))
    postgresql.store.enqueue_many([task() for _ in range(4)])
    with postgresql.engine.connect() as it, it.begin():
        it.exec_driver_sql("BEGIN")
        mine = postgresql.claim(2, postgresql.store, using=it)
        theirs = postgresql.claim(4, Store(engine))
        it.exec_driver_sql("COMMIT")
    assert len({claim.id for claim in [*mine, *theirs]}) == 4


def test_an_engine_that_prepares_every_statement_works(postgresql):
    engine = postgresql.own(create_engine(postgresql.url, connect_args={"prepare_threshold": 0}))
    store = Store(engine)
    handle = postgresql.add(store)
    assert [claim.id for claim in postgresql.claim(1, store)] == [handle.id]
    with engine.connect() as connection:
        assert connection.connection.dbapi_connection.prepare_threshold == 0


def test_a_forked_child_opens_separate_connections(postgresql):
    assert postgresql.store.now()
    parent = backend(postgresql)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(backend(postgresql)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(read, 32)) != parent
    assert backend(postgresql) == parent
    os.close(read)
    os.close(write)


def backend(database):
    return database.rows("SELECT pg_backend_pid()")[0][0]
