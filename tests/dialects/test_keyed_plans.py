"""Claims of keys and operators' queries read only a bounded number of rows and pages of large tables.

There are 200 keys with 1,000 tasks each, one key with 20,000 tasks, 20,000 keys with one task each, and 10,000 keys of which five are due.
The bounds limit the rows and pages visited, not the time. `OUTBOXQ_PLAN_ROWS` replaces the 20,000.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection

from outboxq.database.dialects import Begin, dialect_for
from outboxq.database.using import target_of
from outboxq.model import TaskStatus
from outboxq.store import Store, retention
from outboxq.store.claims import due, partition_keys
from outboxq.store.explain import explain as explaining
from outboxq.store.tasks import dead_letters, event_log, task_pages
from tests import postgres
from tests.conftest import Database
from tests.dialects.test_plans import ANALYZE, ROWS, Big, Explained, address, explain, generic, scans

LIMIT = 10
RECENT = 50
"""Number of tasks that ended just now. A tenth of the rows are tasks that ended a year ago, dead letters, and tasks that hold keys."""
FOUND = {"many": LIMIT, "one": 1, "each": LIMIT, "wall": 5}


def shapes(rows: int) -> dict[str, tuple[int, int]]:
    """Return the number of keys, and of tasks for each key, by queue. Behind the wall's keys, which are due tomorrow, are five that are due
    now.
    """
    return {"many": (200, rows // 100), "one": (1, rows), "each": (rows, 1), "wall": (rows // 10, 1)}


TABLES = (
    "task_executions",
    "task_outbox",
    "execution_events",
    "idempotency_keys",
    "partition_claims",
    "dead_letters",
)
INDEXES = {
    "postgresql": "SELECT indexname, indexdef FROM pg_indexes WHERE indexname LIKE %(like)s",
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND name LIKE :like",
}

# Every task has an entry. Only the first task of each key, which may be claimed, has an execution.
SAME = """
    INSERT INTO task_outbox (task_execution_id, queue, priority, partition_key, position, available_at, created_at)
    SELECT id, queue, 0, key, position, due, due FROM made ORDER BY position, queue;
    INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, partition_key, position, priority, args, status,
        attempt, recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at)
    SELECT id, id, 'tests.work', queue, key, position, 0, '{}', 'Ready', 1, 0, 60, 0, 'release', due, due FROM made
    WHERE position <= 2000 OR (queue = 'wall' AND position > WALL);
    INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
        recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at, completed_at)
    SELECT id, id, 'tests.work', 'old', number, 0, '{}', 'Completed', 1, 0, 60, 1, 'release', moment, moment, moment FROM old;
    INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, lease_token, created_at)
    SELECT id, id, 'task_claimed', 1, moment FROM old ORDER BY number;
    INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, lease_token, created_at)
    SELECT id, id, 'task_completed', 1, CASE WHEN number > LAST THEN now ELSE moment END FROM old ORDER BY number;
    INSERT INTO dead_letters (task_execution_id, queue, task_name, failed_at)
    SELECT id, CASE WHEN number % 2 = 0 THEN 'mail' ELSE 'sync' END, 'tests.work', moment FROM old;
    INSERT INTO partition_claims (queue, partition_key, task_execution_id, held) SELECT 'busy', id, id, false FROM old;
    INSERT INTO idempotency_keys (scope, key, task_execution_id, until_finished, created_at)
    SELECT 'tests.work', 'k' || number, id, false, moment FROM old;
    DROP TABLE made;
    DROP TABLE old
"""
MADE = {
    "postgresql": """
    CREATE TEMPORARY TABLE made AS
    SELECT number, position, queue, 'k' || lpad(key::text, 7, '0') AS key,
        ('0190000' || shape || '-0000-7000-8000-' || lpad(to_hex(number), 12, '0'))::uuid AS id,
        now() + position * interval '1 ms' + CASE WHEN shape = 4 AND key <= keys - 5 THEN interval '1 day' ELSE interval '-1 day' END
            AS due
    FROM (SELECT number, (number - 1) % keys + 1 AS key, number AS position, queue, shape, keys
        FROM (VALUES SHAPES) AS shapes (shape, queue, keys, each), generate_series(1, keys * each) AS number) AS numbered;
    CREATE TEMPORARY TABLE old AS
    SELECT number, now() - interval '1 year' + number * interval '1 ms' AS moment, now() AS now,
        ('01700000-0000-7000-8000-' || lpad(to_hex(number), 12, '0'))::uuid AS id
    FROM generate_series(1, OLD) AS number;
    """,
    "sqlite": """
    CREATE TEMPORARY TABLE made AS
    WITH RECURSIVE shapes(shape, queue, keys, each) AS (VALUES SHAPES),
    numbers(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < MOST)
    SELECT number, number AS position, queue, printf('k%07d', (number - 1) % keys + 1) AS key,
        printf('0190000%d000070008000%012x', shape, number) AS id,
        CASE WHEN shape = 4 AND number <= keys - 5 THEN 'TOMORROW' ELSE 'YESTERDAY' END || printf('T00:%02d:%02d.%06d+00:00',
            number / 60000000, number / 1000000 % 60, number % 1000000) AS due
    FROM shapes JOIN numbers ON number <= keys * each;
    CREATE TEMPORARY TABLE old AS
    WITH RECURSIVE numbers(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < OLD)
    SELECT number, printf('AGOT00:00:00.%06d+00:00', number) AS moment, 'NOW' AS now,
        printf('01700000000070008000%012x', number) AS id FROM numbers;
    """,
}


def fill(database: Database, rows: int, *, at_once: bool = True) -> None:
    """Fill the tables. If `at_once` is True, the outbox's indexes are created at the end."""
    now = datetime.now(UTC)
    words = {
        "SHAPES": ", ".join(
            f"({n}, '{q}', {keys}, {each})" for n, (q, (keys, each)) in enumerate(shapes(rows).items(), 1)
        ),
        "MOST": str(max(keys * each for keys, each in shapes(rows).values())),
        "LAST": str(rows // 10 - RECENT),
        "OLD": str(rows // 10),
        "WALL": str(rows // 10 - 5),
        "TOMORROW": f"{now + timedelta(days=2):%Y-%m-%d}",
        "YESTERDAY": f"{now - timedelta(days=2):%Y-%m-%d}",
        "AGO": f"{now - timedelta(days=365):%Y-%m-%d}",
        "NOW": now.isoformat(timespec="microseconds"),
    }
    script = MADE[database.name] + SAME
    for word, value in words.items():
        script = script.replace(word, value)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        indexes = (
            connection.exec_driver_sql(INDEXES[database.name], {"like": "ix_task_outbox%"}).all() if at_once else []
        )
        statements = [f"DROP INDEX {name}" for name, _ in indexes] + script.split(";")
        for statement in [*statements, *(definition for _, definition in indexes)]:
            connection.exec_driver_sql(statement.replace("%", "%%") if database.name == "postgresql" else statement)
        connection.exec_driver_sql("COMMIT")


@pytest.fixture(scope="module")
def keyed_postgresql(cluster: postgres.Cluster, migrated_postgresql: str) -> Iterator[Big]:
    url = cluster.create_database(template=migrated_postgresql)
    database = Database("postgresql", url)
    fill(database, ROWS)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
    yield Big(database)
    database.close()
    cluster.drop_database(url)


@pytest.fixture(scope="module")
def keyed_sqlite(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Big]:
    path = tmp_path_factory.mktemp("keyed") / "keyed.db"
    shutil.copy(migrated_sqlite, path)
    database = Database("sqlite", f"sqlite:///{path}")
    fill(database, ROWS)
    yield Big(database)
    database.close()


# The calls: (store, big, using)


def _claim(*queues: str, oldest: bool = False) -> Callable[..., object]:
    def call(_: Store, big: Big, using: Connection) -> None:
        store = Store(big.database.engine)  # with its own turns and cursors, so all calls are alike
        if oldest:
            store.queues.order(queues[0], fair=False, using=using, create=True)
        found = store.claim_ready_task(LIMIT, worker_id=big.database.worker, queues=queues or None, using=using)
        assert len(found) == min(LIMIT, sum(FOUND[queue] for queue in queues or FOUND))

    return call


def _waits(queue: str, *, can_claim: bool) -> Callable[..., object]:
    """Return the query that a worker runs before it sleeps."""

    def call(store: Store, _: Big, using: Connection) -> None:
        target = target_of(using, schema=None)
        values = store.values(target) | store.scope(target, [queue], None)
        assert bool(target.run(due.ANY_DUE[True][0], values)) is can_claim
        target.run(partition_keys.other_queues_given, values)

    return call


def _next(store: Store, _: Big, using: Connection) -> None:
    assert store.next_available_at(["wall", "one", "each"], using=using) is not None


def _settle(store: Store, _: Big, using: Connection) -> None:
    """Release half of the keys that were won, and give the other half to another task."""
    target = target_of(using, schema=None)
    changed = [(held(n), UUID(int=n) if n % 2 else None) for n in range(1, LIMIT + 1)]
    target.run(partition_keys.release_unused, store.values(target), changed)


def _prune(store: Store, _: Big, using: Connection) -> None:
    """Prune one batch."""
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 1

    assert store.prune(timedelta(days=30), batch=LIMIT, stop=stop, using=using) == LIMIT


def _explain(queue: str, number: int) -> Callable[..., object]:
    task = waiting(queue, number)
    return lambda store, _, using: store.explain(task, using=using)


def _detail(queue: str, number: int) -> Callable[..., object]:
    task = waiting(queue, number)
    return lambda store, _, using: store.task_detail(task, using=using)


def _outlooks(store: Store, _: Big, using: Connection) -> None:
    tasks = [store.get(waiting(queue, number), using=using) for queue in ("one", "each") for number in (1, 500, 1000)]
    assert len(store.outlooks(tasks, using=using)) == len(tasks)


def waiting(queue: str, number: int) -> UUID:
    return UUID(f"0190000{list(FOUND).index(queue) + 1}-0000-7000-8000-{number:012x}")


def held(number: int) -> UUID:
    return UUID(f"01700000-0000-7000-8000-{number:012x}")


CLAIMS: dict[str, Callable[..., object]] = {
    **{f"claim from {queue}": _claim(queue) for queue in FOUND},
    "claim from many, the oldest first": _claim("many", oldest=True),
    "claim from all": _claim(),
}
QUESTIONS: dict[str, Callable[..., object]] = {
    "before sleeping, can be claimed": _waits("many", can_claim=True),
    "before sleeping, the wall": _waits("wall", can_claim=True),
    "next due time": _next,
    "explain the next of a key": _explain("one", 1000),
    "explain a head": _explain("each", 1000),
    "page of the next of a key": _detail("one", 1000),
    "page of a head": _detail("each", 1000),
    "what tasks of a page wait for": _outlooks,
    "dead letters": lambda store, _, using: store.dead_letters.list(limit=LIMIT, using=using),
    "list of dead letters": lambda store, _, using: store.tasks(status=TaskStatus.FAILED, limit=LIMIT, using=using),
}
CHANGES: dict[str, Callable[..., object]] = {"settle": _settle, "prune": _prune}
CALLS = {**CLAIMS, **QUESTIONS, **CHANGES}

# Keys are read one by one: at most BUDGET for a claim of ten, and at most WALL before a worker stops searching.
BUDGET, WALL = 32, 1_000
MOST = 3 * BUDGET
"""Maximum number of rows that one statement reads from any table."""
MOST_ENTRIES = {"claim from all": len(FOUND) * 2 * BUDGET, "before sleeping, the wall": WALL + BUDGET}
MOST_PAGES = {
    "before sleeping, the wall": 5 * WALL,
    **dict.fromkeys(CLAIMS, 1_000),
    "claim from all": 1_500,
    "prune": 400,  # each call reads the catalog once, to find other tables and the privileges on them
}
MOST_STEPS = {
    "before sleeping, the wall": 80 * WALL,
    **dict.fromkeys(CLAIMS, 25_000),
}
"""Steps of SQLite's virtual machine. Reading the entries of one queue takes a million steps."""


# PostgreSQL


def check(name: str, found: Explained) -> None:
    assert not [node for table in TABLES for node in found.on(table) if node["Node Type"] == "Seq Scan"]
    assert not found.compiled
    assert found.read("task_outbox") <= MOST_ENTRIES.get(name, MOST)
    for table in set(TABLES) - {"task_outbox"}:
        assert found.read(table) <= MOST, table


@pytest.mark.parametrize("name", CALLS)
def test_postgresql_reads_a_bounded_number_of_rows_and_pages(keyed_postgresql, name):
    pages = 0
    for sql, values in keyed_postgresql.captured(CALLS[name]):
        found = explain(keyed_postgresql, Begin.WRITE, sql, values, ANALYZE)
        check(name, found)
        pages += found.buffers
    assert 0 < pages < MOST_PAGES.get(name, 150)


@pytest.mark.current  # unlike psycopg, PREPARE is not given types; older SQLAlchemy omits ::UUID in a CASE
@pytest.mark.parametrize("name", CALLS)
def test_a_generic_plan_of_postgresql_reads_no_more_rows(keyed_postgresql, session, name):
    for number, (sql, values) in enumerate(keyed_postgresql.captured(CALLS[name])):
        session.execute(dialect_for("postgresql").begin[Begin.WRITE])
        found = generic(session, f"statement_{number}", sql, values)(ANALYZE)
        session.execute("ROLLBACK")
        check(name, found)


@pytest.mark.current  # unlike psycopg, PREPARE is not given types; older SQLAlchemy omits ::UUID in a CASE
@pytest.mark.parametrize("name", CALLS)
def test_a_plan_made_while_the_tables_were_empty_reads_no_more_rows(grown, name):
    explained, pages = 0, 0
    for sql, values in grown.big.captured(CALLS[name]):
        if sql in grown.order:
            found = grown.explain(sql, values)
            check(name, found)
            explained += 1
            pages += found.buffers
    assert explained
    assert pages < MOST_PAGES.get(name, 150)


class Grown:
    """Statements that were prepared and planned before the tables had rows, and are kept."""

    def __init__(self, database: Database, connection: psycopg.Connection[Any]) -> None:
        self.big = Big(database)
        self.order: dict[str, list[str]] = {}
        self._connection = connection
        for builder in (
            partition_keys.acquire,
            partition_keys.acquire_due,
            partition_keys.acquire_recent,
            partition_keys.claim_heads,
            partition_keys.release_unused,
            partition_keys.other_queues,
            partition_keys.other_queues_given,
            due.ANY_DUE[True][0],
            due.ANY_RECENT[True],
            due.NEXT_AVAILABLE_AT[True][0],
            retention.delete_old,
            dead_letters.newest,
            task_pages.PAGE["letters_down"],
            task_pages.END["letters_down"],
            explaining.ahead,
            explaining.waiting,
            explaining.one,
        ):
            prepared = dialect_for("postgresql").compiled[builder]
            for sql in (prepared.sql, getattr(prepared, "sql_of_one", None)):
                if sql is not None:
                    self._prepare(sql)

    def _prepare(self, sql: str) -> None:
        order = self.order[sql] = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
        text = re.sub(r"%\((\w+)\)s", lambda found: f"${order.index(found[1]) + 1}", sql).replace("%%", "%")
        self._connection.execute(dialect_for("postgresql").begin[Begin.WRITE])
        self._connection.execute(f"PREPARE {self._name(sql)} AS {text}".encode())
        self._explain(sql, dict.fromkeys(order), "")
        self._connection.execute("COMMIT")

    def explain(self, sql: str, values: dict[str, Any]) -> Explained:
        self._connection.execute(dialect_for("postgresql").begin[Begin.WRITE])
        found = self._explain(sql, values, ANALYZE)
        self._connection.execute("ROLLBACK")
        return found

    def _explain(self, sql: str, values: dict[str, Any], options: str) -> Explained:
        marks = f"({', '.join(['%s'] * len(self.order[sql]))})" if self.order[sql] else ""
        arguments = psycopg.ClientCursor(self._connection).mogrify(marks, [values[key] for key in self.order[sql]])
        text = f"EXPLAIN (FORMAT JSON{options}) EXECUTE {self._name(sql)} {arguments}"
        return Explained.of(self._connection.execute(text.encode()).fetchone()[0][0])  # type: ignore[index]

    def _name(self, sql: str) -> str:
        return f"statement_{list(self.order).index(sql)}"


@pytest.fixture(scope="module")
def grown(cluster: postgres.Cluster, migrated_postgresql: str) -> Iterator[Grown]:
    """Return statements for tables with a tenth of the rows. That is enough to notice a plan that reads a whole table."""
    url = cluster.create_database(template=migrated_postgresql)
    database = Database("postgresql", url)
    for table in TABLES:
        database.run(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    with database.engine.connect() as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
    with psycopg.connect(address(database), autocommit=True, prepare_threshold=None) as connection:
        found = Grown(database, connection)
        fill(database, ROWS // 10, at_once=False)
        yield found
    database.close()
    cluster.drop_database(url)


@pytest.fixture
def session(keyed_postgresql: Big) -> Iterator[psycopg.Connection[Any]]:
    url = address(keyed_postgresql.database)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        yield connection


# SQLite


SMALL = {"SCAN lease", "SCAN task_leases", "SCAN queue_settings", "SCAN mine", "SCAN settings"}
"""Tables that are small by design."""


@pytest.mark.parametrize("name", CALLS)
def test_sqlite_scans_no_large_table(keyed_sqlite, name):
    for sql, values in keyed_sqlite.captured(CALLS[name]):
        with keyed_sqlite.begun(None) as connection:
            assert set(scans(connection, sql, values)) <= SMALL, sql


@pytest.mark.parametrize("name", CALLS)
def test_sqlite_runs_a_bounded_number_of_steps(keyed_sqlite, name):
    assert 0 < steps(keyed_sqlite, CALLS[name]) < MOST_STEPS.get(name, 5_000)


def steps(big: Big, call: Callable[..., object]) -> int:
    """Return the number of steps of SQLite's virtual machine."""
    taken = 0

    def count() -> None:
        nonlocal taken
        taken += 10

    with big.begun(Begin.WRITE) as connection:
        big.database.store.now(using=connection)
        raw = connection.connection.dbapi_connection
        raw.set_progress_handler(count, 10)
        call(big.database.store, big, connection)
        raw.set_progress_handler(None, 10)
    return taken


# Both databases


@pytest.fixture(params=["sqlite", "postgresql"])
def keyed(request: pytest.FixtureRequest) -> Big:
    return request.getfixturevalue(f"keyed_{request.param}")  # type: ignore[no-any-return]


@pytest.mark.parametrize("limit", [10, 100])
def test_a_fair_claim_from_200_keys_of_1000_tasks_reads_two_keys_for_each_key_it_wins(keyed, limit):
    """The claim uses the index, whatever comes after the heads."""

    def claim(_: object, big: Big, using: Connection) -> None:
        found = Store(big.database.engine).claim_ready_task(
            limit, worker_id=big.database.worker, queues=["many"], using=using
        )
        assert len(found) == len({one.partition_key for one in found}) == limit

    if keyed.database.name == "sqlite":
        assert steps(keyed, claim) < 2_000 * limit + 5_000
        return
    by_index = {"ix_task_outbox_key", "ix_task_outbox_key_due", "ix_task_outbox_due", "pk_task_outbox", "Tid Scan"}
    entries, used = 0.0, set()
    for sql, values in keyed.captured(claim):
        found = explain(keyed, Begin.WRITE, sql, values, ANALYZE)
        entries += found.read("task_outbox")
        used |= {node.get("Index Name", node["Node Type"]) for node in found.on("task_outbox")}
    assert "ix_task_outbox_key" in used <= by_index
    # Entries are read to find the keys, to find, lock and delete the heads, and to check whether a task is due.
    assert entries <= max(2 * limit, BUDGET) + 3 * limit + 10


def test_the_first_event_after_a_time_is_found_by_binary_search(keyed):
    """Statistics do not read the log."""
    seen = keyed.captured(lambda store, _, using: store.stats(by="task", using=using))
    assert [sql for sql, _ in seen if "execution_events" in sql] == []

    def search(store: Store, _: Big, using: Connection) -> None:
        target = target_of(using, schema=None)
        assert target.run(event_log.first_of_window, {"search_from": store.now() - timedelta(hours=1)})

    if keyed.database.name == "sqlite":
        assert steps(keyed, search) < 500 * RECENT
        return
    [(sql, values)] = [one for one in keyed.captured(search) if "execution_events" in one[0]]
    found = explain(keyed, Begin.SNAPSHOT, sql, values, ANALYZE)
    assert not [node for node in found.on("execution_events") if node["Node Type"] == "Seq Scan"]
    assert found.read("execution_events") <= RECENT + 20
