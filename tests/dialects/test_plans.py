"""Query plans for large tables: they use indexes, and read no more than was requested.

The tables contain 20,000 due and 20,000 future entries. `OUTBOXQ_PLAN_ROWS` changes this number.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Connection, event

from outboxq.database.dialects import Begin, dialect_for
from outboxq.database.using import target_of
from outboxq.model import Claim, EventType, NewTask, OnConflict, Outcome, TaskStatus, Waiting
from outboxq.model.batches import NewBatch, new_batch_id
from outboxq.model.uuid7 import uuid7
from outboxq.store import HealthLimits, NewStep, Snapshot
from outboxq.store.claims import due, workers
from tests import postgres
from tests.conftest import Database

ROWS = int(os.environ.get("OUTBOXQ_PLAN_ROWS", "20000"))
QUEUES = ("mail", "reports", "sync")
PAIRS = 5 * len(QUEUES) + 1
LIMIT = 10
OUR_TABLES = ("task_executions", "task_outbox", "execution_events", "idempotency_keys", "task_steps")
NAMED = re.compile(r"\b(task_\w+|execution_events|idempotency_keys|partition_claims) AS (\w+)")

READY = UUID("01900000-0000-7000-8000-000000000007")
DONE = UUID("01800000-0000-7000-8000-000000000004")
BATCH, IN_BATCH = UUID("81700000-0000-8000-8000-000000000001"), ROWS // 10
"""A batch of the oldest tasks: in the order of the primary key, newest first, all other tasks come before them."""

# `later` is claimed first, and has ROWS future entries behind 5 due ones. The other entries are spread over 15 pairs.
FILL_POSTGRESQL = f"""
    CREATE TEMPORARY TABLE made AS
    SELECT n, ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id,
           CASE WHEN n > {ROWS} THEN 'later' ELSE (ARRAY['mail', 'reports', 'sync'])[n % 3 + 1] END AS queue,
           CASE WHEN n > {ROWS} THEN 100 ELSE n % 5 * 10 - 20 END AS priority,
           CASE WHEN n > {ROWS} + 5 OR n % 10 = 0 THEN now() + interval '1 day' ELSE now() - interval '1 day' END
               + n * interval '1 millisecond' AS available_at
    FROM generate_series(1, 2 * {ROWS}) AS n;
    INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
        recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at, completed_at)
    SELECT id, id, 'tests.work', queue, n, priority, '{{}}', 'Ready', 1, 0, 60, 0, 'release', now(), now(), NULL FROM made;
    INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
        recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at, completed_at)
    SELECT ('01800000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, id, 'tests.work', queue, n, priority, '{{}}',
           'Completed', 1, 0, 60, 1, 'release', now(), now(), now() FROM made WHERE n % 4 = 0;
    INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
    SELECT id, queue, priority, n, available_at, now() FROM made;
    INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, event_data, created_at)
    SELECT id, id, 'task_created', jsonb_build_object('available_at', available_at)::text, now() FROM made;
    INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, lease_token, created_at)
    SELECT id, id, kind, token, now() FROM task_executions,
        (VALUES ('task_created', NULL), ('task_claimed', 1), ('task_completed', 1)) AS kinds (kind, token)
    WHERE status = 'Completed';
    INSERT INTO idempotency_keys (scope, key, task_execution_id, expires_at, until_finished, created_at)
    SELECT 'tests.work', n::text, id, CASE WHEN n % 2 = 0 THEN now() END, false, now() FROM made;
    INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
        recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at, completed_at)
    SELECT ('01700000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, '{BATCH}', 'tests.work', queue, n, priority, '{{}}',
           'Completed', 1, 0, 60, 1, 'release', now(), now(), now() FROM made WHERE n <= {IN_BATCH};
    DROP TABLE made;
"""


@dataclass
class Big:
    """A database with large tables and valid claims."""

    database: Database
    held: list[Claim] = field(default_factory=list)
    _captured: dict[Callable[..., object], list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)

    def hold(self) -> Big:
        self.database.claim(200, self.database.store, lease=timedelta(microseconds=1), queues=QUEUES)
        self.held = self.database.claim(200, self.database.store, queues=QUEUES)
        assert len(self.held) == 200
        return self

    def captured(self, call: Callable[..., object]) -> list[tuple[str, dict[str, Any]]]:
        """Return the call's statements with their parameters. The call is made only once, and rolled back."""
        if call not in self._captured:
            self._captured[call] = self._capture(call)
        return self._captured[call]

    def _capture(self, call: Callable[..., object]) -> list[tuple[str, dict[str, Any]]]:
        seen = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            seen.append((statement, dict(parameters)))

        with self.begun(Begin.WRITE) as connection:
            self.database.store.now(using=connection)  # looks up the schema once
            event.listen(self.database.engine, "before_cursor_execute", note)
            try:
                call(self.database.store, self, connection)
            finally:
                event.remove(self.database.engine, "before_cursor_execute", note)
        return [(sql, values) for sql, values in seen if "SAVEPOINT" not in sql and "RELEASE" not in sql]

    def begun(self, begin: Begin | None) -> Any:
        return _begun(self.database, begin)


class _begun:  # noqa: N801 - a context manager
    """A transaction that begins with the dialect's settings or with none, and is rolled back."""

    def __init__(self, database: Database, begin: Begin | None) -> None:
        self.connection = database.engine.connect()
        self.text = dialect_for(database.name).begin[begin] if begin else "BEGIN"

    def __enter__(self) -> Connection:
        self.connection.exec_driver_sql(self.text)
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.exec_driver_sql("ROLLBACK")
        self.connection.close()


@pytest.fixture(scope="module")
def big_postgresql(cluster: postgres.Cluster, migrated_postgresql: str) -> Iterator[Big]:
    url = cluster.create_database(template=migrated_postgresql)
    database = Database("postgresql", url)
    fill(database)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
    yield Big(database).hold()
    database.close()
    cluster.drop_database(url)


@pytest.fixture(scope="module")
def big_sqlite(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Big]:
    path = tmp_path_factory.mktemp("big") / "big.db"
    shutil.copy(migrated_sqlite, path)
    database = Database("sqlite", f"sqlite:///{path}")
    fill(database)
    yield Big(database).hold()
    database.close()


FILL_STEPS = (
    "INSERT INTO task_steps (task_execution_id, name, number, lease_token, created_at) "
    "SELECT id, 'step ' || n, n, 1, created_at FROM task_executions, (SELECT 1 AS n UNION SELECT 2 UNION SELECT 3) AS numbers "
    "WHERE status = 'Completed'"
)


def fill(database: Database) -> None:
    if database.name == "postgresql":
        database.run(FILL_POSTGRESQL.replace("%", "%%"))
        database.run(FILL_STEPS)
        return
    day, now = timedelta(days=1), datetime.now(UTC)
    stamp = now.isoformat(timespec="microseconds")
    executions, entries, events, keys = [], [], [], []
    for n in range(1, 2 * ROWS + 1):
        later = n > ROWS
        identity = f"0190000000007000{0x8000:x}{n:012x}"
        queue, priority = ("later", 100) if later else (QUEUES[n % 3], n % 5 * 10 - 20)
        due = now + (day if n > ROWS + 5 or n % 10 == 0 else -day) + timedelta(milliseconds=n)
        executions.append((identity, identity, queue, n, priority, "Ready", 0, stamp, stamp, None))
        entries.append((identity, queue, priority, n, due.isoformat(timespec="microseconds"), stamp))
        events.append((identity, identity, "task_created", None, stamp))
        keys.append(("tests.work", str(n), identity, None if n % 2 else stamp, 0, stamp))
        if n % 4 == 0:
            done = f"0180000000007000{0x8000:x}{n:012x}"
            executions.append((done, identity, queue, n, priority, "Completed", 1, stamp, stamp, stamp))
            kinds = (("task_created", None), ("task_claimed", 1), ("task_completed", 1))
            events += [(done, done, kind, token, stamp) for kind, token in kinds]
        if n <= IN_BATCH:
            ours = f"0170000000007000{0x8000:x}{n:012x}"
            executions.append((ours, BATCH.hex, queue, n, priority, "Completed", 1, stamp, stamp, stamp))
    with database.engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        raw.execute("BEGIN IMMEDIATE")
        raw.executemany(
            "INSERT INTO task_executions (id, pipeline_execution_id, queue, position, priority, status, lease_token, "
            "created_at, updated_at, completed_at, task_name, args, attempt, recovery_attempts, lease_seconds, on_dead_letter) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'tests.work', '{}', 1, 0, 60, 'release')",
            executions,
        )
        raw.executemany(
            "INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            entries,
        )
        raw.executemany(
            "INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, lease_token, created_at) "
            "VALUES (?, ?, ?, ?, ?)",
            events,
        )
        raw.executemany("INSERT INTO idempotency_keys VALUES (?, ?, ?, ?, ?, ?)", keys)
        raw.execute(FILL_STEPS)
        raw.execute("COMMIT")


# The calls: (store, big, using)


def _claim(queues: tuple[str, ...] | None) -> Callable[..., object]:
    def call(store: Any, big: Big, using: Connection) -> None:
        found = store.claim_ready_task(LIMIT, worker_id=big.database.worker, queues=queues, using=using)
        assert len(found) == (5 if queues == ("later",) else LIMIT)

    return call


def _finish(kind: EventType) -> Callable[..., object]:
    def call(store: Any, big: Big, using: Connection) -> None:
        assert (
            store.finish([Outcome(claim=claim, event_type=kind) for claim in big.held[:LIMIT]], using=using)
            == frozenset()
        )

    return call


def _keyed(first: int, mode: OnConflict, **expected: bool) -> Callable[..., object]:
    def call(store: Any, big: Big, using: Connection) -> None:
        keys = [str(n) for n in range(first, first + 2 * LIMIT, 2)]
        new = [
            NewTask(id=uuid7(), task_name="tests.work", args="{}", idempotency_key=key, on_conflict=mode)
            for key in keys
        ]
        for handle in store.enqueue_many(new, using=using):
            assert {name: getattr(handle, name) for name in expected} == expected

    return call


def _some(rows: Any) -> None:
    assert rows


CLAIMS = {
    "claim from one queue": _claim(("mail",)),
    "claim from a queue of future tasks": _claim(("later",)),
    "claim from three queues": _claim(("later", "sync", "mail")),
    "claim from all queues": _claim(None),
}
ENDS = {
    "complete": _finish(EventType.COMPLETED),
    "release": _finish(EventType.RELEASED),
    "heartbeat": lambda store, big, using: _some(store.heartbeat(big.held[:LIMIT], using=using)),
    "recover": lambda store, big, using: _some(store.recover(LIMIT, using=using)),
    "retry by hand": lambda store, big, using: store.schedule_retry(READY, datetime.now(UTC), 2, using=using),
    "cancel by hand": lambda store, big, using: store.cancel(READY, using=using),
    "cancel a running task": lambda store, big, using: store.cancel(big.held[0].id, using=using),
    "get": lambda store, big, using: store.get(READY, using=using),
    "history": lambda store, big, using: _some(store.history(DONE, using=using)),
    "recent history": lambda store, big, using: _some(store.recent_history(DONE, 2, using=using)),
    "last restart": lambda store, big, using: store.restarted_at(DONE, using=using),
    "complete a step": lambda store, big, using: _some(
        store.steps.complete(big.held[0], NewStep(name="one", number=1), using=using)
    ),
    "steps": lambda store, big, using: _some(store.steps.list(DONE, using=using)),
    "enqueue": lambda store, big, using: store.enqueue(
        NewTask(id=uuid7(), task_name="tests.work", args="{}", idempotency_key="key"), using=using
    ),
}
ENDS |= {
    "enqueue with taken keys": _keyed(ROWS + 1, OnConflict.RETURN, created=False),
    "enqueue with keys that are free again": _keyed(ROWS + 2, OnConflict.RETURN, created=True),
    "replace": _keyed(ROWS + 1, OnConflict.REPLACE, replaced=True),
}
NEXT = {
    "next due time of all queues": lambda store, big, using: _some(store.next_available_at(using=using)),
    "next due time of two queues": lambda store, big, using: _some(
        store.next_available_at(["later", "mail"], using=using)
    ),
}
CALLS = {**CLAIMS, **NEXT, **ENDS}


# PostgreSQL


_UNCAST = re.compile(r"\(available_at\)::timestamp with time zone")


@dataclass
class Explained:
    nodes: list[dict[str, Any]]
    compiled: bool

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Explained:
        nodes, waiting = [], [answer["Plan"]]
        while waiting:
            node = waiting.pop()
            nodes.append(node)
            waiting += node.get("Plans", [])
        return cls(nodes, "JIT" in answer)

    def on(self, table: str) -> list[dict[str, Any]]:
        return [node for node in self.nodes if node.get("Relation Name") == table and "Scan" in node["Node Type"]]

    def read(self, table: str) -> float:
        """Return the number of rows read from the table, including rows that are then discarded."""
        thrown = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
        return sum(
            (node["Actual Rows"] + sum(node.get(key, 0) for key in thrown)) * node["Actual Loops"]
            for node in self.on(table)
        )

    @property
    def buffers(self) -> int:
        return max(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in self.nodes)

    def check(self, name: str) -> None:
        scanned = [(node["Node Type"], node["Relation Name"]) for table in OUR_TABLES for node in self.on(table)]
        assert not [scan for scan in scanned if scan[0] == "Seq Scan"], scanned
        for node in self.on("task_outbox"):
            assert "available_at" not in node.get("Filter", ""), node
        if name in {**CLAIMS, **NEXT}:
            bound = "available_at <= " if name in CLAIMS else "available_at > "
            said = [(node, node.get("Index Cond", "")) for node in self.on("task_outbox")]
            # Compared with an instant of another type, our domain's column appears as "(available_at)::timestamp … <= …".
            ranges = [node for node, condition in said if bound in _UNCAST.sub("available_at", condition)]
            assert ranges
            others = {"ix_task_outbox_key_due"} if name in NEXT else set()  # for tasks with a key; there are none
            assert {node["Index Name"] for node in ranges} - others == {"ix_task_outbox_due"}

    def check_amount(self, name: str, begin: Begin | None) -> None:
        # JIT compilation takes a second. Recursive queries, and plans that cannot avoid a disabled node, seem expensive enough for it.
        assert begin is None or not self.compiled
        assert self.read("task_outbox") < (LIMIT * PAIRS + 100 if "three" in name or "all" in name else 100)
        assert self.read("task_executions") <= 4 * LIMIT
        assert self.read("execution_events") <= 4 * LIMIT
        assert self.read("idempotency_keys") <= 4 * LIMIT
        assert self.buffers < 1500


def explain(big: Big, begin: Begin | None, sql: str, values: dict[str, Any], options: str = "") -> Explained:
    with big.begun(begin) as connection:
        text = f"EXPLAIN (FORMAT JSON{options}) {sql}"
        return Explained.of(connection.exec_driver_sql(text, values).scalar_one()[0])


ANALYZE = ", ANALYZE, BUFFERS, TIMING OFF"


@pytest.mark.parametrize("begin", [Begin.WRITE, None], ids=["our settings", "default settings"])
def test_tasks_recovered_by_other_workers_are_looked_up_by_their_ids(big_postgresql, begin):
    """A hash join would read all tasks for a handful of events."""

    def call(_store: Any, big: Big, using: Connection) -> None:
        asked = {"worker_id": big.database.worker, "limit": LIMIT, "most": ROWS, "first": 1}
        target_of(using).run(workers.recovered, asked)

    ((sql, values),) = big_postgresql.captured(call)
    scans = explain(big_postgresql, begin, sql, values).on("task_executions")
    assert scans
    assert all("Index Cond" in node for node in scans), scans


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("begin", [Begin.WRITE, None], ids=["our settings", "default settings"])
def test_postgresql_uses_indexes_and_reads_only_what_was_requested(big_postgresql, name, begin):
    for sql, values in big_postgresql.captured(CALLS[name]):
        found = explain(big_postgresql, begin, sql, values, ANALYZE)
        found.check(name)
        found.check_amount(name, begin)


@pytest.mark.parametrize("name", ["history", "recent history"])
def test_postgresql_reads_a_history_through_its_three_indexes(big_postgresql, name):
    [(sql, values)] = big_postgresql.captured(CALLS[name])
    used = {node.get("Index Name") for node in explain(big_postgresql, None, sql, values).nodes}
    assert {"uq_execution_events_claim", "uq_execution_events_end", "ix_execution_events_other"} <= used


def generic(
    connection: psycopg.Connection[Any], name: str, sql: str, values: dict[str, Any]
) -> Callable[[str], Explained]:
    """Prepare the statement. Return a function that explains it as if it had been executed many times."""
    order: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        if found[1] not in order:
            order.append(found[1])
        return f"${order.index(found[1]) + 1}"

    text = re.sub(r"%%|%\((\w+)\)s", number, sql)
    assert connection.prepare_threshold is None  # otherwise, psycopg would run DEALLOCATE ALL at each ROLLBACK
    connection.execute(f"PREPARE {name} AS {text}".encode())
    marks = f"({', '.join(['%s'] * len(order))})" if order else ""
    arguments = psycopg.ClientCursor(connection).mogrify(marks, [values[key] for key in order]) if order else ""

    def run(options: str = "") -> Explained:
        row = connection.execute(f"EXPLAIN (FORMAT JSON{options}) EXECUTE {name} {arguments}".encode()).fetchone()
        assert row is not None
        return Explained.of(row[0][0])

    return run


@pytest.fixture
def session(big_postgresql: Big) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(address(big_postgresql.database), autocommit=True, prepare_threshold=None) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        yield connection


def address(database: Database) -> str:
    return database.url.replace("+psycopg", "")


@pytest.mark.current  # unlike psycopg, PREPARE is not given types; older SQLAlchemy omits ::UUID in a CASE
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("begin", [Begin.WRITE, None], ids=["our settings", "default settings"])
def test_a_generic_plan_of_postgresql_also_uses_indexes(big_postgresql, session, name, begin):
    for number, (sql, values) in enumerate(big_postgresql.captured(CALLS[name])):
        session.execute(dialect_for("postgresql").begin[begin] if begin else "BEGIN")
        found = generic(session, f"statement_{number}", sql, values)(ANALYZE)
        session.execute("ROLLBACK")
        found.check(name)
        found.check_amount(name, begin)


@pytest.mark.current  # unlike psycopg, PREPARE is not given types; older SQLAlchemy omits ::UUID in a CASE
@pytest.mark.parametrize("name", CALLS)
def test_a_plan_made_while_the_tables_were_empty_uses_indexes(name, grown):
    """An idle queue's vacuumed tables are empty, and a pooled connection keeps the plan that it made at that time."""
    for connection, prepared in grown[name]:
        connection.execute(dialect_for("postgresql").begin[Begin.WRITE])
        found = prepared(ANALYZE)
        connection.execute("ROLLBACK")
        found.check(name)
        found.check_amount(name, Begin.WRITE)


@pytest.fixture(scope="module")
def grown(big_postgresql: Big, cluster: postgres.Cluster, migrated_postgresql: str) -> Iterator[dict[str, Any]]:
    """Return all calls, prepared and planned on empty tables. The tables were filled afterwards and never analyzed."""
    url = cluster.create_database(template=migrated_postgresql)
    database = Database("postgresql", url)
    for table in (*OUR_TABLES, "task_leases"):
        database.run(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    with database.engine.connect() as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
    with psycopg.connect(address(database), autocommit=True, prepare_threshold=None) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        plans: dict[str, list[Any]] = {}
        for index, (name, call) in enumerate(CALLS.items()):
            plans[name] = []
            for number, (sql, values) in enumerate(big_postgresql.captured(call)):
                connection.execute(dialect_for("postgresql").begin[Begin.WRITE])
                prepared = generic(connection, f"statement_{index}_{number}", sql, values)
                prepared()  # creates the plan that is kept
                connection.execute("COMMIT")
                plans[name].append((connection, prepared))
        fill(database)
        yield plans
    database.close()
    cluster.drop_database(url)


def test_a_time_bound_without_an_index_condition_reads_all_future_rows(big_postgresql):
    """If the clock were a plain volatile function, all future rows would be read and discarded."""
    [(sql, values)] = big_postgresql.captured(CALLS["claim from a queue of future tasks"])
    worse = re.sub(r"\(SELECT clock\.now\s+FROM clock\)", "clock_timestamp()", sql)
    assert worse != sql
    found = explain(big_postgresql, Begin.WRITE, worse, values, ANALYZE)
    assert found.read("task_outbox") > ROWS * 0.9
    with pytest.raises(AssertionError):
        found.check("claim from a queue of future tasks")


# SQLite


FIRST_KEYED = "SCAN keyed USING COVERING INDEX ix_task_outbox_key"
"""Only the first entry is read, to find whether any tasks have a key."""


def scans(connection: Connection, sql: str, values: dict[str, Any]) -> list[str]:
    """Return the lines of the plan that read a whole table of outboxq, or a whole index of such a table."""
    names = {*OUR_TABLES, "task_leases", *(alias for _, alias in NAMED.findall(sql))}
    plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()]
    whole = [line for line in plan if (found := re.match(r"SCAN (\w+)", line)) and found[1] in names]
    return [line for line in whole if line != FIRST_KEYED]


@pytest.mark.parametrize("name", CALLS)
def test_sqlite_uses_indexes(big_sqlite, name):
    for sql, values in big_sqlite.captured(CALLS[name]):
        with big_sqlite.begun(None) as connection:
            found = scans(connection, sql, values)
        if name == "recover":
            found = [line for line in found if line != "SCAN task_leases"]  # small, and by design without an index
        assert found == [], sql


@pytest.mark.parametrize("name", CALLS)
def test_the_work_of_sqlite_does_not_grow_with_the_table(big_sqlite, name):
    """The work is counted in steps of SQLite's virtual machine. Reading only the future rows of one queue would take half a million."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 10

    with big_sqlite.begun(Begin.WRITE) as connection:
        raw = connection.connection.dbapi_connection
        big_sqlite.database.store.now(using=connection)
        raw.set_progress_handler(count, 10)  # some calls take fewer than 100 steps
        CALLS[name](big_sqlite.database.store, big_sqlite, connection)
        raw.set_progress_handler(None, 10)
    assert 0 < steps < 40_000


@pytest.mark.parametrize("queues", [None, ["mail", "sync"]])
def test_an_idle_poll_of_sqlite_scans_no_large_table(big_sqlite, queues):
    prepared = dialect_for("sqlite").compiled[due.ANY_DUE[queues is not None][0]]
    with big_sqlite.begun(Begin.READ) as connection:
        scope = big_sqlite.database.store.scope(target_of(connection, schema=None), queues, None)
        found = scans(connection, prepared.sql, prepared.bind({"now": datetime.now(UTC), **scope}))
        assert [
            line for line in found if line != "SCAN lease"
        ] == []  # counts the running tasks of limited queues, in a small table


# Plans that the planner would hardly choose


FORCED = {
    "nested loops": "hashjoin mergejoin material",
    "nested loops without hashing or sorting": "hashjoin mergejoin material hashagg sort incremental_sort memoize",
    "nested loops over whole tables": "hashjoin mergejoin material indexscan indexonlyscan bitmapscan hashagg sort",
    "nested loops by bitmap": "hashjoin mergejoin material indexscan indexonlyscan seqscan tidscan",
    "hash joins": "nestloop mergejoin indexscan",
    "merge joins": "nestloop hashjoin material",
}
NAIVE = """
    DELETE FROM task_outbox WHERE id IN (
        SELECT id FROM task_outbox WHERE available_at <= clock_timestamp() ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED
    )
"""


@pytest.fixture
def fifty(postgresql: Database) -> Database:
    for queue in ("a", "b"):
        tasks = [NewTask(id=uuid7(), task_name="tests.work", args="{}", queue=queue, priority=n % 3) for n in range(25)]
        postgresql.store.enqueue_many(tasks)
    return postgresql


def force(connection: Connection, combination: str) -> None:
    connection.exec_driver_sql("SET LOCAL jit = off")  # forced plans seem expensive, and JIT would take a second
    for setting in FORCED[combination].split():
        connection.exec_driver_sql(f"SET LOCAL enable_{setting} = off")


@pytest.mark.parametrize("queues", [None, ["a"], ["a", "b"]], ids=["all queues", "one queue", "two queues"])
@pytest.mark.parametrize("combination", FORCED)
def test_a_claim_of_five_gets_five_tasks_under_every_plan(fifty, combination, queues):
    for _ in range(5):
        with _begun(fifty, None) as connection:
            force(connection, combination)
            claims = fifty.store.claim_ready_task(5, worker_id=uuid4(), queues=queues, using=connection)
            left = connection.exec_driver_sql("SELECT count(*) FROM task_outbox").scalar_one()
            assert (len(claims), left) == (5, 45)


def test_the_naive_claim_exceeds_its_limit_under_a_nested_loop(fifty):
    """PostgreSQL's bug #15715. This shows that the test above could fail."""
    taken = {}
    for combination in FORCED:
        with _begun(fifty, None) as connection:
            force(connection, combination)
            taken[combination] = connection.exec_driver_sql(NAIVE).rowcount
    assert max(taken.values()) > 5, taken
    assert min(taken.values()) == 5, taken


# Changes to what was counted

OLD = Snapshot(head=1, open=frozenset({1}))
COUNTED: dict[str, Callable[..., object]] = {
    "tasks": lambda store, _, using: store.count_tasks(snapshot=OLD, using=using),
    "waiting tasks of a queue": lambda store, _, using: store.count_tasks(
        status=TaskStatus.READY, queue="mail", snapshot=OLD, using=using
    ),
    "running tasks": lambda store, _, using: store.count_tasks(status=TaskStatus.RUNNING, snapshot=OLD, using=using),
    "dead letters": lambda store, _, using: store.dead_letters.count(snapshot=OLD, using=using),
    "parts of tasks": lambda store, _, using: store.parts(snapshot=OLD, using=using),
    "parts of a queue": lambda store, _, using: store.parts(
        status=TaskStatus.READY, queue="mail", snapshot=OLD, using=using
    ),
    "parts of dead letters": lambda store, _, using: store.dead_letters.parts(snapshot=OLD, using=using),
    "first parts of tasks": lambda store, _, using: store.parts(snapshot=OLD, limit=5, using=using),
    "first parts of dead letters": lambda store, _, using: store.dead_letters.parts(snapshot=OLD, limit=5, using=using),
}


@pytest.mark.parametrize("name", COUNTED)
def test_events_since_a_snapshot_are_looked_up_by_task_on_postgresql(big_postgresql, name):
    bounded = [one for one in big_postgresql.captured(COUNTED[name]) if "execution_events" in one[0]]
    assert bounded
    for sql, values in bounded:
        found = explain(big_postgresql, Begin.SNAPSHOT, sql, values, ANALYZE)
        nodes = found.on("execution_events")
        assert nodes
        assert not [node for node in nodes if "Index" not in node["Node Type"]], sql
        each = max(node["Actual Rows"] for node in nodes)
        assert each <= 2, sql  # rows per loop


@pytest.mark.parametrize("name", COUNTED)
def test_events_since_a_snapshot_are_looked_up_by_task_on_sqlite(big_sqlite, name):
    for sql, values in big_sqlite.captured(COUNTED[name]):
        if "execution_events" in sql:
            with big_sqlite.begun(Begin.READ) as connection:
                plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()]
            looks = [line for line in plan if "execution_events" in line]
            assert looks
            assert [line for line in looks if not re.search(r"^SEARCH .*\(task_execution_id=\?", line)] == [], looks


# Statistics


BOUND = 100
LOOKS = {
    "by queue": lambda store, _, using: store.stats(using=using),
    "of one queue": lambda store, _, using: store.stats(queues=["later"], using=using),
    "by task": lambda store, _, using: store.stats(by="task", using=using),
}


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BOUND", "BOUND_BY_TASK", "LOOKED_UP"):
        monkeypatch.setattr(f"outboxq.store.numbers.live.{name}", BOUND)


def outbox_statements(big: Big, name: str) -> list[tuple[str, dict[str, Any]]]:
    return [(sql, values) for sql, values in big.captured(LOOKS[name]) if "task_outbox" in sql]


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("begin", [Begin.READ, Begin.SNAPSHOT])
def test_postgresql_counts_waiting_tasks_up_to_the_bound(big_postgresql, bounds, name, begin):
    [(sql, values)] = outbox_statements(big_postgresql, name)
    found = explain(big_postgresql, begin, sql, values, ANALYZE)
    assert not [node for node in found.on("task_outbox") if node["Node Type"] == "Seq Scan"]
    counted = sum(node["Actual Rows"] * node["Actual Loops"] for node in found.on("task_outbox"))
    pairs = 1 if name == "of one queue" else PAIRS
    # Entries that are due now, entries that are due later, and looked-up entries. Finding queues and priorities takes six per pair.
    assert BOUND < counted <= 3 * pairs * (BOUND + 1) + 6 * PAIRS
    assert found.read("task_executions") <= 2 * pairs * (BOUND + 1) * 2
    assert not [node for node in found.on("task_executions") if node["Node Type"] == "Seq Scan"]


@pytest.mark.parametrize("name", LOOKS)
def test_sqlite_counts_waiting_tasks_up_to_the_bound(big_sqlite, bounds, name):
    [(sql, values)] = outbox_statements(big_sqlite, name)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 100

    with big_sqlite.begun(Begin.READ) as connection:
        whole = [line for line in scans(connection, sql, values) if "USING" not in line]
        assert whole == [], sql
        raw = connection.connection.dbapi_connection
        raw.set_progress_handler(count, 100)
        connection.exec_driver_sql(sql, values).all()
        raw.set_progress_handler(None, 100)
    assert 0 < steps < 60 * 3 * (1 if name == "of one queue" else PAIRS) * BOUND


def oldest_due_of_late_queues(big: Big) -> tuple[str, dict[str, Any]]:
    """Return the statement that selects the tasks that explain late queues."""
    [(sql, values)] = [
        one
        for one in big.captured(_late)
        if "task_outbox" in one[0] and "retry_at" not in one[0] and "held" not in one[0]
    ]
    return sql, values


def _late(store: Any, _: Big, using: Connection) -> None:
    _some(store.overview(HealthLimits(no_worker=False), using=using).problems)


def test_postgresql_reads_one_due_entry_of_each_pair_to_explain_late_queues(big_postgresql):
    found = explain(big_postgresql, Begin.READ, *oldest_due_of_late_queues(big_postgresql), ANALYZE)
    assert not [node for node in found.on("task_outbox") if node["Node Type"] == "Seq Scan"]
    assert found.read("task_outbox") <= 6 * PAIRS


def test_sqlite_reads_one_due_entry_of_each_pair_to_explain_late_queues(big_sqlite):
    sql, values = oldest_due_of_late_queues(big_sqlite)
    with big_sqlite.begun(Begin.READ) as connection:
        assert [line for line in scans(connection, sql, values) if "USING" not in line] == [], sql
        assert len(connection.exec_driver_sql(sql, values).all()) <= PAIRS


# Batches that are being cancelled


def cancelled_but_for_one(database: Database, members: int) -> list[tuple[str, dict[str, Any]]]:
    """Cancel a batch of which one task is still running. Return the statements of the next check for the batch's remaining tasks."""
    batch, store = NewBatch(id=new_batch_id()), database.store
    store.batches.create(batch)
    fields = {"task_name": "tests.work", "args": "{}", "pipeline_execution_id": batch.id}
    store.enqueue_many([NewTask(id=uuid7(), **fields) for _ in range(members)])
    store.batches.close(batch.id)
    database.claim(1, store)
    assert store.batches.cancel(batch.id) == members
    captured = Big(database).captured(lambda *_: store.batches.continue_cancelling())
    return [(sql, values) for sql, values in captured if "task_executions" in sql]


def test_postgresql_reads_only_the_running_tasks_of_a_cancelled_batch(postgresql):
    statements = cancelled_but_for_one(postgresql, 300)
    postgresql.run("ANALYZE")
    assert len(statements) == 1
    for sql, values in statements:
        found = explain(Big(postgresql), Begin.READ, sql, values, ANALYZE)
        assert found.read("task_executions") == 1, sql


def test_sqlite_reads_only_the_running_tasks_of_a_cancelled_batch(sqlite):
    statements = cancelled_but_for_one(sqlite, 300)
    assert len(statements) == 1
    for sql, values in statements:
        with sqlite.engine.connect() as connection:
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()]
        [line] = [line for line in plan if "task_executions" in line]
        assert line.startswith("SEARCH task_executions USING INDEX sqlite_autoindex_task_executions_1"), plan


# Pages of the dashboard

SCAN = 200
"""Maximum number of rows that one page may read in these tests."""
PAGES: dict[str, Callable[..., object]] = {
    "all": lambda store, _, using: store.task_page(limit=LIMIT, using=using),
    "all, older": lambda store, _, using: store.task_page(limit=LIMIT, before=READY, using=using),
    "all, newer": lambda store, _, using: store.task_page(limit=LIMIT, after=DONE, using=using),
    "no such task": lambda store, _, using: store.task_page(task="none", limit=LIMIT, using=using),
    "of a worker": lambda store, big, using: store.task_page(worker=big.database.worker, limit=LIMIT, using=using),
    "ready": lambda store, _, using: store.task_page(status=TaskStatus.READY, limit=LIMIT, using=using),
    "ready, no such task": lambda store, _, using: store.task_page(
        status=TaskStatus.READY, task="none", limit=LIMIT, using=using
    ),
    "ready, of a queue": lambda store, _, using: store.task_page(
        status=TaskStatus.READY, queue="mail", limit=LIMIT, using=using
    ),
    "retrying": lambda store, _, using: store.task_page(
        status=TaskStatus.READY, waiting=Waiting.RETRYING, limit=LIMIT, using=using
    ),
    "due, of a queue": lambda store, _, using: store.task_page(
        status=TaskStatus.READY, waiting=Waiting.DUE, queue="mail", limit=LIMIT, using=using
    ),
    "of a batch": lambda store, _, using: store.task_page(batch=BATCH, limit=LIMIT, using=using),
    "completed, of a batch": lambda store, _, using: store.task_page(
        status=TaskStatus.COMPLETED, batch=BATCH, before=READY, limit=LIMIT, using=using
    ),
    "running": lambda store, _, using: store.task_page(status=TaskStatus.RUNNING, limit=LIMIT, using=using),
    "failed": lambda store, _, using: store.task_page(status=TaskStatus.FAILED, limit=LIMIT, using=using),
    "the mark of change": lambda store, _, using: store.change_mark(using=using),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_reads_a_bounded_number_of_rows_on_postgresql(big_postgresql, monkeypatch, name):
    monkeypatch.setattr("outboxq.store.tasks.task_pages.SCAN", SCAN)
    PAGES[name](big_postgresql.database.store, big_postgresql, None)  # looks up the schema once
    captured = big_postgresql.captured(PAGES[name])
    assert captured
    for sql, values in captured:
        found = explain(big_postgresql, Begin.READ, sql, values, ANALYZE)
        for table in OUR_TABLES:
            assert not [node for node in found.on(table) if node["Node Type"] == "Seq Scan"], sql
            assert found.read(table) <= 3 * SCAN + (IN_BATCH if "batch" in name else 0), (table, sql)


@pytest.mark.parametrize("name", [name for name in PAGES if name != "the mark of change"])  # it scans 200 rows by id
def test_a_page_reads_no_whole_table_on_sqlite(big_sqlite, name):
    PAGES[name](big_sqlite.database.store, big_sqlite, None)
    small = {"queue_settings", "task_schedules", "workers", "task_leases"}
    for sql, values in big_sqlite.captured(PAGES[name]):
        with big_sqlite.begun(Begin.READ) as connection:
            whole = [line for line in scans(connection, sql, values) if "USING" not in line]
            assert [line for line in whole if not small & set(line.split()) and "(subquery" not in line] == [], sql


# Changes by people

ACTIONS: dict[str, Callable[..., object]] = {
    "all": lambda store, _, using: store.actions.list(using=using),
    "of a target": lambda store, _, using: store.actions.list(target="mail", using=using),
}
INDEXES = {"all": "sqlite_autoindex_operator_actions_1", "of a target": "ix_operator_actions_target"}


@pytest.mark.parametrize("name", INDEXES)
def test_actions_are_listed_in_the_order_of_an_index(big_sqlite, name):
    [(sql, values)] = [one for one in big_sqlite.captured(ACTIONS[name]) if "operator_actions" in one[0]]
    with big_sqlite.begun(Begin.READ) as connection:
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()]
    assert len(plan) == 1, "there is no sort"
    assert INDEXES[name] in plan[0]
