"""Savepoints and the single writer's lock on SQLite, on the driver's default engines and on engines from configure_sqlite."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from outboxq.database.dialects import LOG_KEPT
from outboxq.database.engine import configure_sqlite, make_engine
from outboxq.errors import InvalidTarget, UnsupportedDatabase
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from tests import forked
from tests.conftest import Database

It = Connection | Session


def task(**fields: object) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})  # type: ignore[arg-type]


def savepoint_first(_: It) -> None: ...


def select_first(it: It) -> None:
    it.execute(text("SELECT count(*) FROM orders")).all()


def dml_first(it: It) -> None:
    it.execute(text("INSERT INTO orders (id) VALUES (1)"))


FIRST = [savepoint_first, select_first, dml_first]
ENDS = ["commit", "roll back to the savepoint", "roll back the savepoint, go on", "roll back all", "enqueue after it"]
each_cell = [
    pytest.mark.parametrize("first", FIRST, ids=lambda it: it.__name__),
    pytest.mark.parametrize("end", ENDS),
    pytest.mark.parametrize(
        "kind", [Connection, pytest.param(Session, marks=pytest.mark.full)], ids=lambda it: it.__name__
    ),
]


def matrix(test: Callable[..., None]) -> Callable[..., None]:
    for mark in each_cell:
        test = mark(test)
    return test


@pytest.fixture
def shop(sqlite: Database) -> Database:
    sqlite.run("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    return sqlite


def run_cell(shop: Database, engine: Engine, kind: type, first: Callable[[It], None], end: str) -> None:
    """Run a transaction with a savepoint in it. With DML first, order 1 is before the savepoint. Order 2 and the task are inside it."""
    with engine.connect() if kind is Connection else Session(engine) as it:
        first(it)
        nested = it.begin_nested()
        it.execute(text("INSERT INTO orders (id) VALUES (2)"))
        if end != "enqueue after it":
            shop.store.enqueue(task(), using=it)
        if end.startswith("roll back") and end != "roll back all":
            nested.rollback()
        else:
            nested.commit()
        if end == "enqueue after it":
            shop.store.enqueue(task(), using=it)
        if end == "roll back the savepoint, go on":
            shop.store.enqueue(task(queue="later"), using=it)
            it.execute(text("INSERT INTO orders (id) VALUES (3)"))
        if end in ("roll back all", "enqueue after it"):
            it.rollback()
        else:
            it.commit()


def expected(first: Callable[[It], None], end: str) -> tuple[list[int], list[str]]:
    """Return the orders and the tasks' queues that must remain."""
    before = [1] if first is dml_first else []
    return {
        "commit": ([*before, 2], ["default"]),
        "roll back to the savepoint": (before, []),
        "roll back the savepoint, go on": ([*before, 3], ["later"]),
        "roll back all": ([], []),
        "enqueue after it": ([], []),
    }[end]


def found(shop: Database) -> tuple[list[Any], list[Any]]:
    entries, events, executions = (len(shop.rows(f"SELECT * FROM {it}")) for it in TABLES)
    assert entries == events == executions
    orders = [row[0] for row in shop.rows("SELECT id FROM orders ORDER BY id")]
    return orders, [row[0] for row in shop.rows("SELECT queue FROM task_executions")]


TABLES = ("task_outbox", "execution_events", "task_executions")


@matrix
def test_a_configured_engine_handles_savepoints_correctly(
    shop: Database, kind: type, first: Callable[[It], None], end: str
) -> None:
    run_cell(shop, shop.host_engine(), kind, first, end)
    assert found(shop) == expected(first, end)


@matrix
def test_an_unconfigured_engine_never_keeps_a_rolled_back_task(
    shop: Database, kind: type, first: Callable[[It], None], end: str
) -> None:
    engine = shop.own(create_engine(shop.url))
    if end == "enqueue after it":
        # The order may survive, because the driver's savepoint is not real. The task does not survive.
        run_cell(shop, engine, kind, first, end)
    else:
        with pytest.raises(InvalidTarget, match=r"outboxq\.configure_sqlite\(engine\)"):
            run_cell(shop, engine, kind, first, end)
    assert found(shop)[1] == []


def test_the_driver_alone_keeps_a_rolled_back_row(shop: Database) -> None:
    """This is why outboxq refuses such engines. If this test ever fails, the refusal can be removed."""
    with shop.own(create_engine(shop.url)).connect() as it:
        with it.begin_nested():
            it.execute(text("INSERT INTO orders (id) VALUES (1)"))
        it.rollback()
    assert shop.rows("SELECT id FROM orders") == [(1,)]


def test_a_refused_savepoint_leaves_the_transaction_usable(shop: Database) -> None:
    with shop.own(create_engine(shop.url)).connect() as it:
        it.execute(text("INSERT INTO orders (id) VALUES (1)"))
        with it.begin_nested(), pytest.raises(InvalidTarget, match="survive your rollback"):
            shop.store.enqueue(task(), using=it)
        shop.store.enqueue(task(), using=it)
        it.commit()
    assert found(shop) == ([1], ["default"])


def test_savepoints_within_savepoints_are_real(shop: Database) -> None:
    with shop.host_engine().connect() as it:
        with it.begin_nested():
            shop.store.enqueue(task(queue="outer"), using=it)
            inner = it.begin_nested()
            shop.store.enqueue(task(queue="inner"), using=it)
            inner.rollback()
        with it.begin_nested():
            shop.store.enqueue(task(queue="second"), using=it)
        assert shop.counts() == (0, 0, 0)
        it.commit()
    assert found(shop) == ([], ["outer", "second"])


def test_an_engine_stays_configured_after_a_connection_was_in_autocommit_mode(shop: Database) -> None:
    engine = configure_sqlite(shop.own(create_engine(shop.url, pool_size=1, max_overflow=0)))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as it:
        it.execute(text("INSERT INTO orders (id) VALUES (1)"))
    with engine.connect() as it:
        with it.begin_nested():
            shop.store.enqueue(task(), using=it)
        it.rollback()
    assert found(shop) == ([1], [])


# --- configure_sqlite


def test_configure_sqlite_leaves_a_postgresql_engine_unchanged() -> None:
    """An application may make the same call in development and in production."""
    engine = create_engine("postgresql+psycopg://nobody@nowhere/none")
    before = list(engine.pool.dispatch.connect)
    assert configure_sqlite(engine) is engine
    assert list(engine.pool.dispatch.connect) == before


def test_an_engine_for_another_database_is_refused(monkeypatch) -> None:
    engine = create_engine("sqlite://")
    monkeypatch.setattr(engine.dialect, "name", "mysql")
    with pytest.raises(UnsupportedDatabase, match="not on 'mysql'"):
        configure_sqlite(engine)


@pytest.mark.parametrize("make", ["configured", "ours"])
def test_every_new_connection_has_the_busy_timeout_and_the_wal_mode(sqlite: Database, make: str) -> None:
    url = sqlite.url
    engine = sqlite.own(make_engine(url) if make == "ours" else configure_sqlite(create_engine(url)))
    seen = set()
    for _ in range(2):
        with engine.connect() as one, engine.connect() as other:
            for it in (one, other):
                raw = it.connection.dbapi_connection
                seen.add(id(raw))
                pragmas = [raw.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS]
                assert pragmas == [30_000, "wal", LOG_KEPT]
        engine.dispose()
    assert len(seen) >= 2


PRAGMAS = ("busy_timeout", "journal_mode", "journal_size_limit")


def test_configure_sqlite_returns_an_engine_that_begins_as_a_writer(sqlite: Database) -> None:
    engine = create_engine(sqlite.url)
    assert configure_sqlite(sqlite.own(engine)) is engine
    begins = begun(engine)
    with engine.connect() as it:
        it.execute(text("SELECT 1"))
    assert begins == ["BEGIN IMMEDIATE"]


def begun(engine: Engine) -> list[str]:
    """Return a list that collects each BEGIN from now on."""
    begins: list[str] = []
    event.listen(
        engine, "before_cursor_execute", lambda _c, _k, sql, *_: begins.append(sql) if sql[:5] == "BEGIN" else None
    )
    return begins


def test_a_reader_with_a_deferred_begin_needs_no_lock(shop: Database) -> None:
    engine = shop.host_engine()
    with engine.begin() as writer:
        shop.store.enqueue(task(), using=writer)
        begins = begun(engine)
        with engine.connect().execution_options(sqlite_begin="DEFERRED") as reader:
            assert reader.scalar(text("SELECT count(*) FROM task_outbox")) == 0
            assert begins == ["BEGIN DEFERRED"]
        with Session(engine.execution_options(sqlite_begin="DEFERRED")) as reader:
            assert reader.scalar(text("SELECT count(*) FROM task_outbox")) == 0


def test_an_autocommit_connection_begins_no_transaction(shop: Database) -> None:
    engine = shop.host_engine()
    begins = begun(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as it:
        it.execute(text("INSERT INTO orders (id) VALUES (1)"))
    assert (begins, found(shop)) == ([], ([1], []))


# --- Readers that become writers


def test_a_reader_that_becomes_a_writer_fails_unless_it_began_as_one(shop: Database) -> None:
    """SQLite raises SQLITE_BUSY_SNAPSHOT, and no timeout helps. So the configured engine begins as a writer."""
    engine = shop.host_engine()
    with engine.connect().execution_options(sqlite_begin="DEFERRED") as it:
        it.execute(text("SELECT count(*) FROM orders")).all()
        shop.store.enqueue(task())
        with pytest.raises(OperationalError, match="database is locked"):
            shop.store.enqueue(task(), using=it)
        it.rollback()
    with engine.connect() as it:
        it.execute(text("SELECT count(*) FROM orders")).all()
        shop.store.enqueue(task(), using=it)
        it.commit()
    assert shop.counts() == (2, 2, 2)


PRODUCER = """
import sys
from sqlalchemy import create_engine, text
from outboxq.database.engine import configure_sqlite
from outboxq.model import NewTask
from outboxq.store import Store
from outboxq.model.uuid7 import uuid7

engine = configure_sqlite(create_engine(sys.argv[1]))
store, locked, waited = Store(engine), 0, 0
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    try:
        with engine.begin() as it:
            it.execute(text("SELECT count(*) FROM task_executions")).all()
            store.enqueue(NewTask(id=uuid7(), task_name="tests.work", args="{}"), using=it)
            if number % 5 == 0:
                it.rollback()
    except Exception as error:
        print(repr(error)[:200], file=sys.stderr)
        locked += 1
print(locked, flush=True)
engine.dispose()
"""


def test_four_processes_that_read_and_then_enqueue_never_find_the_database_locked(sqlite: Database) -> None:
    each = 60
    command = [*forked.PYTHON, "-c", PRODUCER, sqlite.url, str(each)]
    pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
    with ExitStack() as stack:
        producers = [stack.enter_context(forked.Popen(command, **pipes, text=True)) for _ in range(4)]
        for one in producers:
            assert one.stdout.readline() == "ready\n"
        for one in producers:  # all at the same time
            one.stdin.write("\n")
            one.stdin.flush()
        ended = [one.communicate() for one in producers]
    assert ended == [("0\n", "")] * 4
    assert sqlite.counts() == (4 * each * 4 // 5,) * 3
    writers = sqlite.rows("SELECT count(*) FROM execution_events")
    assert writers == [(192,)]
