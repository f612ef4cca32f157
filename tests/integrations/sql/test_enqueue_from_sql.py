"""Enqueueing with plain SQL (PostgreSQL's function, SQLite's documented statements) has the same result as in Python."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, OperationalError

from outboxq import Outbox, migrations
from outboxq.errors import DuplicateTask
from outboxq.model import Handle, NewTask, OnDeadLetter, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.conftest import Database
from tests.contract.helpers import at_once, everything, stuck, transaction
from tests.contract.test_schema import ear
from tests.waiting import until

PAGE = (Path(__file__).parents[3] / "docs" / "sql.md").read_text()
SCRIPT = re.search(r"^```sql\n-- SQLite: enqueue\.sql\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]
STATEMENTS = [text for text in SCRIPT.split(";\n") if text.strip()]
PARAMETERS = ("task_name", "args", "queue", "priority", "partition_key", "available_at", "idempotency_key", "headers")
LATER = datetime(2031, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)
HOUR = timedelta(hours=1)

DIFFERS = {"id", "pipeline_execution_id", "task_execution_id", "created_at", "updated_at", "sequence_num", "xact_id"}
"""The columns that differ between any two tasks."""


def enqueue(connection: Connection, **given: Any) -> UUID:
    """Enqueue with plain SQL, in the connection's transaction."""
    given = {"task_name": "tests.work", **given}
    if connection.dialect.name == "postgresql":
        arguments = ", ".join(
            f"{name} => %({name})s" + ("::jsonb" if name in {"args", "headers"} else "") for name in given
        )
        return connection.exec_driver_sql(f"SELECT outboxq_enqueue({arguments})", given).scalar_one()
    bound = {**dict.fromkeys(PARAMETERS), **given}
    for text in STATEMENTS:
        connection.exec_driver_sql(text, bound)
    found = "SELECT task_execution_id FROM idempotency_keys WHERE scope = :task_name AND key = :idempotency_key"
    if given.get("idempotency_key") is None:
        found = "SELECT task_execution_id FROM task_outbox ORDER BY id DESC LIMIT 1"
    return UUID(connection.exec_driver_sql(found, bound).scalar_one())


def committed(database: Database, **given: Any) -> UUID:
    with transaction(database) as connection:
        task_id = enqueue(connection, **given)
        connection.commit()
    return task_id


def rows_of(database: Database, task_id: UUID) -> dict[str, list[dict[str, object]]]:
    """All rows of the task, without the columns that differ between any two tasks."""
    mark = "%s" if database.name == "postgresql" else "?"
    value = task_id if database.name == "postgresql" else task_id.hex
    found = {}
    with database.engine.connect() as connection:
        for table, column in (
            ("task_executions", "id"),
            ("task_outbox", "task_execution_id"),
            ("execution_events", "task_execution_id"),
            ("idempotency_keys", "task_execution_id"),
        ):
            rows = connection.exec_driver_sql(f"SELECT * FROM {table} WHERE {column} = {mark}", (value,)).mappings()
            found[table] = [{key: row[key] for key in row if key not in DIFFERS} for row in rows]
    return found


BY_BOTH = {
    "nothing but a name": ({}, {}),
    "what both databases take": (
        {
            "args": '{"order_id": 7, "note": "\\u00e9 \\ud83c\\udf88", "amounts": [1, 2.5, null, true]}',
            "queue": "mail",
            "priority": -100,
            "partition_key": "customer:é",
            "available_at": LATER.isoformat(),
            "idempotency_key": "order 7",
            "headers": '{"request-id": "\\u00e9"}',
        },
        {
            "args": '{"order_id": 7, "note": "é 🎈", "amounts": [1, 2.5, null, true]}',
            "queue": "mail",
            "priority": -100,
            "partition_key": "customer:é",
            "available_at": LATER,
            "idempotency_key": "order 7",
            "headers": '{"request-id":"é"}',
        },
    ),
    "another offset": ({"available_at": "2031-02-03T06:05:06.789+02:00"}, {"available_at": LATER}),
}


@pytest.mark.parametrize("case", BY_BOTH)
def test_sql_writes_the_same_rows_as_python(database, case):
    by_sql, by_python = BY_BOTH[case]
    expected = rows_of(database, database.add(database.store, **by_python).id)
    database.run("DELETE FROM idempotency_keys")
    found = rows_of(database, committed(database, **by_sql))
    assert [len(rows) for rows in found.values()] == [1, 1, 1, int("idempotency_key" in by_sql)]
    comparable(expected)
    comparable(found)
    assert found == expected


def comparable(rows: dict[str, list[dict[str, object]]]) -> None:
    """Remove values that two enqueues cannot share, such as positions and times, and decode the JSON."""
    (execution,), (entry,), (event,) = rows["task_executions"], rows["task_outbox"], rows["execution_events"]
    assert execution.pop("position") == entry.pop("position")
    execution["args"] = json.loads(execution["args"])  # type: ignore[arg-type]
    execution["headers"] = execution["headers"] and json.loads(execution["headers"])  # type: ignore[arg-type]
    event["event_data"] = set(json.loads(event["event_data"]))  # type: ignore[arg-type]
    if datetime.fromisoformat(str(entry["available_at"])) != LATER:
        assert abs(datetime.fromisoformat(str(entry["available_at"])) - datetime.now(UTC)) < HOUR
        del entry["available_at"]
    for key in rows["idempotency_keys"]:
        assert key.pop("expires_at") is None


def test_every_option_of_the_function_works_as_in_python(postgresql):
    pipeline = uuid7()
    expires = LATER + HOUR
    shared = {"max_attempts": 3, "partition_key": "k", "expires_at": expires, "unique_until_finished": True}
    expected = postgresql.add(
        postgresql.store,
        **shared,
        lease=timedelta(seconds=90),
        timeout=timedelta(milliseconds=1500),
        on_dead_letter=OnDeadLetter.HOLD,
        idempotency_key="a",
        unique_for=HOUR,
        pipeline_execution_id=pipeline,
    ).id
    found = committed(
        postgresql,
        **shared,
        lease="90 seconds",
        timeout="1500 milliseconds",
        on_dead_letter="hold",
        idempotency_key="b",
        unique_for="1 hour",
        pipeline_execution_id=pipeline,
    )
    assert {postgresql.store.get(task).pipeline_execution_id for task in (expected, found)} == {pipeline}
    both = rows_of(postgresql, expected), rows_of(postgresql, found)
    keys = [rows.pop("idempotency_keys")[0] for rows in both]
    for rows in both:
        rows["idempotency_keys"] = []
        comparable(rows)
    assert both[0] == both[1]
    assert abs(keys[0].pop("expires_at") - keys[1].pop("expires_at")) < HOUR / 10
    assert [key.pop("key") for key in keys] == ["a", "b"]
    assert keys[0] == keys[1]


def test_null_stands_for_the_default(postgresql):
    with psycopg_connection(postgresql) as connection:
        names = [
            name
            for (names,) in connection.execute("SELECT proargnames FROM pg_proc WHERE proname = 'outboxq_enqueue'")
            for name in names[1:]
        ]
        assert len(names) == 15
        nulls = ", ".join(f"{name} => NULL" for name in names)
        [with_nulls] = connection.execute(f"SELECT outboxq_enqueue('tests.work', {nulls})").fetchone()
        [without] = connection.execute("SELECT outboxq_enqueue('tests.work')").fetchone()
        connection.commit()
    both = rows_of(postgresql, with_nulls), rows_of(postgresql, without)
    for rows in both:
        comparable(rows)
    assert both[0] == both[1]


@contextmanager
def psycopg_connection(database: Database, **options: Any) -> Iterator[psycopg.Connection[Any]]:
    address = make_url(database.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, **options) as connection:
        yield connection


def test_the_ids_are_current_and_unique_uuids_of_version_7(database):
    before = time.time_ns() // 1_000_000
    with transaction(database) as connection:
        ids = [enqueue(connection) for _ in range(50)]
        connection.commit()
    after = time.time_ns() // 1_000_000
    assert len(set(ids)) == 50
    for task_id in ids:
        assert (task_id.version, task_id.variant) == (7, "specified in RFC 4122")
        assert before - 2 <= task_id.int >> 80 <= after + 2
    assert {str(task_id)[19] for task_id in ids} == set("89ab")
    positions = [database.store.get(task_id).position for task_id in ids]
    assert positions == sorted(set(positions))


def test_a_rolled_back_task_leaves_no_rows(database):
    before = everything(database)
    with transaction(database) as connection:
        enqueue(connection, idempotency_key="k")
    with transaction(database) as connection:
        kept = enqueue(connection)
        with pytest.raises(ZeroDivisionError), connection.begin_nested():
            enqueue(connection, idempotency_key="k")
            raise ZeroDivisionError
        connection.commit()
    assert before["task_executions"] == []
    assert [row[0] for row in everything(database)["task_executions"]] == [str_or_uuid(database, kept)]
    assert everything(database)["idempotency_keys"] == []


def str_or_uuid(database: Database, task_id: UUID) -> object:
    return task_id if database.name == "postgresql" else task_id.hex


def test_tasks_from_sql_and_python_with_the_same_key_run_in_order(database):
    outbox, ran = Outbox(database.host_engine()), []

    @outbox.task(name="tests.work")
    def work(number: int) -> None:
        ran.append(number)

    with transaction(database) as connection:
        for number in range(6):
            if number % 2:
                work.using(connection, partition_key="k").enqueue(number)
            else:
                enqueue(connection, args=json.dumps({"number": number}), partition_key="k")
        connection.commit()
    assert outbox.worker(concurrency=2).run(burst=True) == 0
    assert ran == list(range(6))


def test_arguments_that_do_not_match_the_handler_fail_in_the_worker(database):
    outbox = Outbox(database.host_engine())

    @outbox.task(name="tests.work")
    def work(number: int) -> None:
        raise AssertionError(number)

    task_id = committed(database, args='{"nummer": 1}')
    outbox.worker().run(burst=True)
    assert "nummer" in (database.store.get(task_id).last_error or "")


# --- Idempotency keys


def test_a_taken_key_returns_its_task_from_sql_or_python(database):
    by_python = database.add(database.store, idempotency_key="p").id
    by_sql = committed(database, idempotency_key="s")
    before = everything(database)
    assert committed(database, idempotency_key="p", args='{"other": 1}') == by_python
    assert committed(database, idempotency_key="s") == by_sql
    assert database.add(database.store, idempotency_key="s") == Handle(id=by_sql, created=False)
    assert everything(database) == before
    assert committed(database, task_name="tests.other", idempotency_key="p") not in {by_python, by_sql}


def test_the_same_key_twice_in_a_transaction_is_one_task(database):
    with transaction(database) as connection:
        assert enqueue(connection, idempotency_key="k") == enqueue(connection, idempotency_key="k")
        assert enqueue(connection) != enqueue(connection)
        connection.commit()
    assert database.counts() == (3, 3, 3)


FREE: dict[str, Callable[[Database], object]] = {
    "time is over": lambda it: it.run(f"UPDATE idempotency_keys SET expires_at = '{LATER.replace(year=2001).isoformat()}' WHERE expires_at IS NOT NULL OR until_finished"),
    "its task was pruned": lambda it: [it.run(f"DELETE FROM {table}") for table in ("task_outbox", "task_executions", "execution_events")],
    "its task has ended": lambda it: [it.store.complete(claim) for claim in it.claim(store=it.store)],
}  # fmt: skip


@pytest.mark.parametrize("free", FREE)
def test_a_key_that_is_free_again_belongs_to_the_new_task(database, free):
    first = database.add(database.store, idempotency_key="k", unique_until_finished=True).id
    assert committed(database, idempotency_key="k") == first
    FREE[free](database)
    second = committed(database, idempotency_key="k")
    assert second != first
    assert committed(database, idempotency_key="k") == second
    assert database.store.get(second).status is TaskStatus.READY
    [key] = rows_of(database, second)["idempotency_keys"]
    assert (key["expires_at"], bool(key["until_finished"])) == (None, False)


def test_a_key_without_expiry_stays_with_an_ended_task(database):
    first = committed(database, idempotency_key="k")
    database.store.complete(database.claim(store=database.store)[0])
    assert committed(database, idempotency_key="k") == first


@pytest.mark.parametrize("taken", [False, True], ids=["new", "free again"])
def test_simultaneous_enqueues_in_sql_and_python_create_one_task(database, taken):
    engine = database.host_engine()

    def by_sql(key: str) -> Callable[[], UUID]:
        def call() -> UUID:
            with engine.connect() as connection, connection.begin():
                return enqueue(connection, idempotency_key=key)

        return call

    def by_python(key: str) -> Callable[[], UUID]:
        task = NewTask(id=uuid7(), task_name="tests.work", args="{}", idempotency_key=key)
        return lambda: database.store.enqueue(task).id

    for number in range(5):
        key = f"k{number}"
        if taken:
            database.add(database.store, idempotency_key=key, unique_for=HOUR)
            FREE["time is over"](database)
        ids = at_once(*(make(key) for make in (by_sql, by_python) * 3))
        assert len(set(ids)) == 1, ids
    assert database.counts() == (5 + 5 * taken,) * 3


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_enqueueing_with_a_key_waits_for_an_open_transaction_that_has_taken_it(database, ends):
    with transaction(database) as connection:
        if database.name == "sqlite":
            connection.exec_driver_sql("SELECT 1")
        first = enqueue(connection, idempotency_key="k")
        with stuck(database, lambda: database.add(database.store, idempotency_key="k")) as second:
            assert not second.done()
            getattr(connection, ends)()
        assert (second.result().id == first) is (ends == "commit")
    if ends == "rollback":
        return
    with transaction(database) as connection:
        assert enqueue(connection, idempotency_key="k") == first


def test_above_read_committed_a_key_taken_meanwhile_is_a_serialization_failure(postgresql):
    """There is never a second task or an endless wait."""
    with psycopg_connection(postgresql) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM idempotency_keys")
        committed(postgresql, idempotency_key="k")
        with pytest.raises(psycopg.errors.SerializationFailure):
            connection.execute("SELECT outboxq_enqueue('tests.work', idempotency_key => 'k')")
        connection.rollback()
    assert postgresql.counts() == (1, 1, 1)


def test_two_simultaneous_enqueues_with_an_expired_key_create_one_task(postgresql):
    """Both have seen that the key is free, and wait for a lock on the key's row, which blocks writes but not reads."""
    first = postgresql.add(postgresql.store, idempotency_key="k", unique_for=HOUR).id
    FREE["time is over"](postgresql)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with transaction(postgresql) as connection, ThreadPoolExecutor(2) as pool:
        connection.exec_driver_sql("SELECT * FROM idempotency_keys FOR UPDATE")
        both = [pool.submit(committed, postgresql, idempotency_key="k") for _ in range(2)]
        until(lambda: postgresql.rows(waits) == [(2,)])
        connection.rollback()
        ids = {future.result() for future in both}
    assert len(ids) == 1
    assert first not in ids
    assert postgresql.counts() == (2, 2, 2)


def dead_letter(database):
    """Create a task that has failed, which makes its key free."""
    task_id = database.add(database.store, idempotency_key="k", unique_until_finished=True).id
    [claim] = database.claim(store=database.store)
    database.store.fail(claim, "no")
    return task_id


def test_a_dead_letter_whose_key_belongs_to_a_task_from_sql_is_not_redriven(database):
    old = dead_letter(database)
    new = committed(database, idempotency_key="k")
    with pytest.raises(DuplicateTask) as error:
        database.store.redrive(old)
    assert error.value.task_id == new


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_task_from_sql_waits_for_an_open_redrive_with_the_same_key(postgresql, ends):
    old = dead_letter(postgresql)
    with transaction(postgresql) as connection:
        postgresql.store.redrive(old, using=connection)
        with stuck(postgresql, lambda: committed(postgresql, idempotency_key="k")) as waiting:
            getattr(connection, ends)()
            assert (waiting.result(60) == old) == (ends == "commit")
    assert len(postgresql.claim(2, store=postgresql.store)) == 1


# --- Refusals


REFUSED = {
    "task_name": (None, "", "x" * 201),
    "args": ("[]", "1", '"text"', "null", json.dumps({"a": "x" * 262_144})),
    "queue": ("", "x" * 201),
    "priority": (-101, 101),
    "available_at": ("infinity", "-infinity", "1969-12-31T00:00:00Z", "9001-01-01T00:00:00Z"),
    "partition_key": ("", "x" * 201),
    "idempotency_key": ("", "x" * 201),
    "expires_at": ("infinity", "1969-12-31T00:00:00Z"),
    "max_attempts": (0, -1),
    "lease": ("0", "-1 second", "101 years"),
    "timeout": ("0", "-1 second", "101 years"),
    "on_dead_letter": ("keep", "hold"),
    "unique_for": ("1 hour",),
    "unique_until_finished": (True,),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_function_refuses_the_same_values_as_python_and_writes_nothing(postgresql, name):
    before = everything(postgresql)
    with psycopg_connection(postgresql) as connection:
        for value in REFUSED[name]:
            given = {"task_name": "tests.work", name: value}
            cast = "::jsonb" if name == "args" else ""
            arguments = ", ".join(f"{key} => %({key})s{cast if key == name else ''}" for key in given)
            with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
                connection.execute(f"SELECT outboxq_enqueue({arguments})", given)
            connection.rollback()
            assert (refused.value.diag.message_primary or "").startswith("outboxq_enqueue of task ")
            said = {"on_dead_letter": "hold|release", "unique_until_finished": "unique_until_finished"}.get(name, name)
            assert re.search(said, str(refused.value))
    assert everything(postgresql) == before


def test_the_statements_refuse_invalid_values(sqlite):
    for given, error in (
        ({"args": "[]"}, IntegrityError),
        ({"headers": "[]"}, OperationalError),
        ({"args": "{"}, OperationalError),
        ({"available_at": "tomorrow"}, IntegrityError),
        ({"priority": 101}, IntegrityError),
        ({"task_name": None}, IntegrityError),
    ):
        with transaction(sqlite) as connection, pytest.raises(error):
            enqueue(connection, **given)
    assert sqlite.counts() == (0, 0, 0)


# --- PostgreSQL's function as a database object


def test_the_function_wakes_workers_of_the_queue(postgresql):
    with ear(postgresql.url) as heard:
        committed(postgresql, queue="mail")
        assert heard() == ["mail"]


def test_the_function_ignores_the_search_path(postgresql):
    with psycopg_connection(postgresql) as connection:
        connection.execute("CREATE SCHEMA evil")
        for table in ("task_executions", "task_outbox", "execution_events", "idempotency_keys"):
            connection.execute(f"CREATE TEMP TABLE {table} (nothing int)")
            connection.execute(f"CREATE TABLE evil.{table} (nothing int)")
        connection.execute(
            "CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz'"
        )
        connection.execute("SET search_path = evil, pg_catalog")
        [task_id] = connection.execute("SELECT public.outboxq_enqueue('tests.work', idempotency_key => 'k')").fetchone()
        connection.commit()
        connection.execute("DROP SCHEMA evil CASCADE")
    assert postgresql.store.get(task_id).status is TaskStatus.READY


def test_the_function_is_in_its_schema_and_is_removed_with_the_tables(cluster):
    url = cluster.create_database()
    for schema in (None, "jobs"):
        migrations.upgrade(url, schema=schema)
    engine = create_engine(url)
    with engine.begin() as connection:
        task_id = connection.exec_driver_sql(
            "SELECT jobs.outboxq_enqueue('tests.work', idempotency_key => 'k')"
        ).scalar_one()
    assert Store(engine, schema="jobs").get(task_id).status is TaskStatus.READY
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM public.task_executions").scalar_one() == 0
    assert Store(engine, schema="jobs").verify() == []
    for schema in (None, "jobs"):
        migrations.downgrade(url, "base", schema=schema)
    with engine.connect() as connection:
        left = connection.exec_driver_sql("SELECT count(*) FROM pg_proc WHERE proname LIKE 'outboxq%%'").scalar_one()
    engine.dispose()
    assert left == 0


def test_a_role_can_be_allowed_only_to_enqueue(postgresql):
    """The role has the privileges that docs/sql.md grants."""
    granted = re.search(r"-- PostgreSQL\n(REVOKE EXECUTE.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]
    role = f"storefront_{uuid4().hex}"  # roles belong to the whole server
    with psycopg_connection(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}")
        try:
            connection.execute(f"SET ROLE {role}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT outboxq_enqueue('tests.work')")
            connection.execute("RESET ROLE")
            connection.execute(granted.replace("storefront", role))
            connection.execute(f"SET ROLE {role}")
            [task_id] = connection.execute("SELECT outboxq_enqueue('tests.work', idempotency_key => 'k')").fetchone()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("DELETE FROM task_executions")
        finally:
            connection.execute("RESET ROLE")
            connection.execute("ALTER FUNCTION outboxq_enqueue SECURITY INVOKER")
            connection.execute("GRANT EXECUTE ON FUNCTION outboxq_enqueue TO PUBLIC")
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")
    assert postgresql.store.get(task_id).status is TaskStatus.READY


def test_a_caller_needs_only_the_privileges_that_the_page_names(postgresql):
    written = "task_executions, execution_events, task_outbox"
    role = f"storefront_{uuid4().hex}"  # roles belong to the whole server
    with psycopg_connection(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}")
        try:
            connection.execute(f"GRANT SELECT, INSERT ON {written} TO {role}")
            connection.execute(f"GRANT SELECT ON sleeping_workers TO {role}")
            connection.execute(f"GRANT USAGE ON SEQUENCE task_position TO {role}")
            connection.execute(f"GRANT SELECT, INSERT, UPDATE ON idempotency_keys TO {role}")
            connection.execute(f"SET ROLE {role}")
            keyed = "SELECT outboxq_enqueue('tests.work', idempotency_key => 'k', unique_for => '1 microsecond')"
            ids = {connection.execute(keyed).fetchone() for _ in range(3)}
            connection.execute("SELECT outboxq_enqueue('tests.work')")
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")
    assert len(ids) == 3
    assert postgresql.counts() == (4, 4, 4)


def test_an_open_session_can_enqueue_after_the_history_was_partitioned(cluster):
    url = cluster.create_database()
    migrations.upgrade(url)
    engine = create_engine(url)
    with engine.connect() as connection:
        for _ in range(7):  # until the session has cached the plans
            enqueue(connection, idempotency_key="k")
            enqueue(connection)
        connection.commit()
        migrations.partition(url)
        task_id = enqueue(connection)
        connection.commit()
    store = Store(engine)
    assert store.get(task_id).status is TaskStatus.READY
    assert store.verify() == []
    engine.dispose()
