"""The tables in the database: columns, constraints, ids, and the trigger that wakes workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError

from outboxq import migrations
from outboxq.database.privileges import Role
from outboxq.database.tables import metadata
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.loops import case
from tests.waiting import PATIENCE

COLUMNS = {
    "task_executions": """id pipeline_execution_id task_name queue topic partition_key position priority args headers
        status attempt max_attempts recovery_attempts lease_seconds timeout_seconds lease_token worker_id
        cancel_requested_at on_dead_letter expires_at retry_at first_started_at started_at completed_at created_at
        updated_at last_error result""",
    "task_outbox": """id task_execution_id queue priority partition_key position topic available_at expires_at
        created_at""",
    "execution_events": """sequence_num pipeline_execution_id task_execution_id event_type event_data worker_id lease_token
        created_at xact_id""",
    "task_leases": "task_execution_id queue lease_token worker_id lease_expires_at begun progress progress_note",
    "dead_letters": "task_execution_id queue task_name topic partition_key exception failed_at lost_key",
    "idempotency_keys": "scope key task_execution_id expires_at until_finished created_at",
    "partition_claims": "queue partition_key task_execution_id held",
}
NULLABLE = {
    "task_executions": """topic partition_key headers max_attempts timeout_seconds worker_id cancel_requested_at
        expires_at retry_at first_started_at started_at completed_at last_error result""",
    "task_outbox": "partition_key topic expires_at",
    "execution_events": "task_execution_id event_data worker_id lease_token xact_id",
    "task_leases": "begun progress progress_note",
    "dead_letters": "topic partition_key exception lost_key",
    "idempotency_keys": "expires_at",
    "partition_claims": "",
}
OTHERS = {
    "inbox_messages",
    "key_rates",
    "maintenance_jobs",
    "operator_actions",
    "queue_samples",
    "queue_settings",
    "relay_messages",
    "relay_shards",
    "relays",
    "schedule_ticks",
    "sleeping_workers",
    "task_batch_changes",
    "task_batches",
    "task_metrics",
    "task_schedules",
    "task_steps",
    "task_subscriptions",
    "workers",
    "outboxq_alembic_version",
}
UPDATES = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'task_executions'"
ODD_QUEUES = ['"; drop table x; --', "é" * 200, "a'b\\c", "tab\tand\nnewline", "日本語 🎈", " "]


@contextmanager
def ear(url: str, channel: str = "task_ready") -> Iterator[Any]:
    """Listen as a sleeping worker does. Yield a function that returns the queues notified so far.

    A sentinel marks the end of the notifications, so the function need not wait for more.
    """
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as listener, psycopg.connect(address, autocommit=True) as speaker:
        listener.execute(f"LISTEN {channel}")
        schema = channel.removeprefix("task_ready").lstrip("_") or "public"
        speaker.execute(f"""INSERT INTO "{schema}".sleeping_workers VALUES (gen_random_uuid(), '', 'infinity')""")

        def heard() -> list[str]:
            sentinel = f"sentinel {uuid4()}"
            speaker.execute("SELECT pg_notify(%s, %s)", (channel, sentinel))
            payloads = []
            for notify in listener.notifies(timeout=PATIENCE):
                if notify.payload == sentinel:
                    return payloads
                payloads.append(notify.payload.partition(" ")[2])
            raise AssertionError("the sentinel was not received")

        yield heard


def new(**fields: object) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})  # type: ignore[arg-type]


def test_each_table_has_the_expected_columns_and_nullability(database):
    for table, named in COLUMNS.items():
        with case(table):
            columns = {column["name"]: column for column in inspect(database.engine).get_columns(table)}
            assert list(columns) == named.split()
            assert {name for name, column in columns.items() if column["nullable"]} == set(NULLABLE[table].split())


def test_the_database_has_exactly_the_expected_tables(database):
    assert set(inspect(database.engine).get_table_names()) == {*COLUMNS, *OTHERS}


def test_every_constraint_and_index_has_the_name_from_the_metadata(database):
    for table in sorted(metadata.tables):
        with case(table):
            found = inspect(database.engine)
            counted = database.name == "sqlite" and table in {
                "task_outbox",
                "execution_events",
                "relay_messages",
            }  # AUTOINCREMENT does not allow a name
            assert found.get_pk_constraint(table)["name"] == (None if counted else f"pk_{table}")
            declared = metadata.tables[table]
            names = {c["name"] for c in found.get_check_constraints(table)}
            checks = [c for c in declared.constraints if c.__visit_name__.endswith("check_constraint")]
            assert names == {c.name for c in checks if c._ddl_if is None or c._ddl_if.dialect == database.name}
            assert all(name.startswith(f"ck_{table}_") for name in names)
            unique = {c["name"] for c in found.get_unique_constraints(table)}
            assert unique == (
                {f"uq_{table}_task_execution_id"} if table in {"task_outbox", "partition_claims"} else set()
            )
            indexes = {i["name"] for i in found.get_indexes(table) if not i.get("duplicates_constraint")}
            assert indexes == {index.name for index in declared.indexes}


def test_the_partial_indexes_are_partial(database):
    catalog = "pg_indexes" if database.name == "postgresql" else "sqlite_master"
    column = "indexdef, indexname" if database.name == "postgresql" else "sql, name"
    definitions = {name: sql for sql, name in database.rows(f"SELECT {column} FROM {catalog}")}
    for name in (
        "ix_task_executions_pipeline",
        "ix_task_outbox_due",
        "ix_task_outbox_key",
        "ix_task_outbox_key_due",
        "uq_execution_events_claim",
        "uq_execution_events_end",
        "ix_execution_events_other",
    ):
        assert " WHERE " in definitions[name], name
    assert "UNIQUE" in definitions["uq_execution_events_claim"]
    assert "UNIQUE" in definitions["uq_execution_events_end"]


@pytest.mark.parametrize("row", ["'mail', 'k', '{b}'", "'mail', 'other', '{a}'"])
def test_a_key_has_one_claim_and_a_task_claims_one_key(database, row):
    database.corrupted = True
    a, b = uuid4().hex, uuid4().hex
    held = "true" if database.name == "postgresql" else "1"
    database.run(f"INSERT INTO partition_claims VALUES ('mail', 'k', '{a}', {held})")
    with pytest.raises(IntegrityError):
        database.run(f"INSERT INTO partition_claims VALUES ({row.format(a=a, b=b)}, {held})")


def test_no_table_has_a_foreign_key(database):
    found = inspect(database.engine)
    assert [found.get_foreign_keys(table) for table in metadata.tables] == [[]] * len(metadata.tables)


IMPOSSIBLE = [
    "status = 'ready'",
    "status = 'Paused'",
    "status = ''",
    "status = NULL",
    "priority = 101",
    "priority = -101",
    "priority = NULL",
    "attempt = 0",
    "attempt = -1",
    "max_attempts = 0",
    "recovery_attempts = -1",
    "lease_token = -1",
    "lease_seconds = 0",
    "lease_seconds = -1",
    "timeout_seconds = 0",
    "on_dead_letter = 'keep'",
    "on_dead_letter = NULL",
    "status = 'Running'",
    "worker_id = pipeline_execution_id",
    "completed_at = created_at",
    "status = 'Completed'",
    "status = 'Failed'",
    "status = 'Cancelled'",
    "status = 'Completed', completed_at = created_at, worker_id = pipeline_execution_id",
    "status = 'Running', worker_id = pipeline_execution_id, completed_at = created_at",
    "task_name = NULL",
    "queue = NULL",
    "args = NULL",
    "position = NULL",
    "created_at = NULL",
    "updated_at = NULL",
]


def test_the_database_refuses_an_impossible_execution(database):
    database.add()
    for change in IMPOSSIBLE:
        with case(change), pytest.raises(IntegrityError):
            database.run(f"UPDATE task_executions SET {change}")


BOUNDED = {
    "task_executions": {
        "lease_seconds": "inf 1e308 1e12 nan",
        "timeout_seconds": "inf 1e12 nan -1",
        "lease_token": "9223372036854775807",
        "position": "9223372036854775807 -1",
        "attempt": "2147483647",
        "recovery_attempts": "2147483647",
        "created_at": "infinity -infinity 1969-12-31T00:00:00.000000+00:00 9001-01-01T00:00:00.000000+00:00",
        "expires_at": "infinity -infinity",
        "first_started_at": "infinity",
        "queue": "''",
        "task_name": "''",
        "partition_key": "''",
    },
    "task_outbox": {
        "available_at": "infinity -infinity 9001-01-01T00:00:00.000000+00:00",
        "priority": "101 -101",
        "queue": "''",
        "partition_key": "''",
    },
}
SQLITES_OWN = {
    "task_executions": {
        "created_at": ("", "never", "9999-99-99Tzz", "2030-01-01 12:00:00"),
        "id": ("no hex", "A" * 32, "z" * 32, "01900000-0000-7000-8000-000000000000"),
    },
    "task_outbox": {"available_at": ("2999-01-01 00:00:00", "")},
}


def test_the_database_refuses_values_that_a_claim_cannot_process(database):
    database.add()
    for table, columns in BOUNDED.items():
        for column, value in ((column, value) for column, values in columns.items() for value in values.split()):
            said = "9e999" if (value, database.name) == ("inf", "sqlite") else f"'{value.strip(chr(39))}'"
            with case(f"{table}.{column} = {said}"), pytest.raises(IntegrityError):
                database.run(f"UPDATE {table} SET {column} = {said}")


@pytest.mark.parametrize(("table", "column"), [(table, name) for table in SQLITES_OWN for name in SQLITES_OWN[table]])
def test_sqlite_refuses_text_that_is_not_a_valid_time_or_id(sqlite, table, column):
    sqlite.add()
    for value in SQLITES_OWN[table][column]:
        with pytest.raises(IntegrityError):
            sqlite.run(f"UPDATE {table} SET {column} = '{value}'")


@pytest.mark.parametrize(
    "change",
    ["priority = 100", "priority = -100", "max_attempts = 1", "max_attempts = NULL", "on_dead_letter = 'hold'"],
)
def test_the_database_accepts_the_extreme_values(database, change):
    database.corrupted = True  # its outbox entry does not change with it
    database.add()
    database.run(f"UPDATE task_executions SET {change}")


def test_a_task_has_at_most_one_outbox_entry(database):
    database.add()
    columns = "task_execution_id, queue, priority, position, available_at, created_at"
    with pytest.raises(IntegrityError):
        database.run(f"INSERT INTO task_outbox ({columns}) SELECT {columns} FROM task_outbox")
    assert database.counts() == (1, 1, 1)


@pytest.mark.parametrize("event", ["task_claimed", "task_completed"])
def test_the_database_refuses_a_second_claim_or_end_with_one_lease_token(database, event):
    database.add()
    [claim] = database.claim()
    database.frozen.complete(claim)
    columns = "pipeline_execution_id, task_execution_id, lease_token, worker_id, created_at"
    with pytest.raises(IntegrityError):
        database.run(
            f"INSERT INTO execution_events (event_type, {columns}) "
            f"SELECT '{event}', {columns} FROM execution_events WHERE lease_token IS NOT NULL LIMIT 1"
        )


def test_the_id_of_a_deleted_row_is_never_used_again(database):
    database.add()
    [[first]] = database.rows("SELECT id FROM task_outbox")
    database.claim()  # deletes the only row, which has the greatest id
    database.add()
    [[second]] = database.rows("SELECT id FROM task_outbox")
    assert second > first

    [[last]] = database.rows("SELECT max(sequence_num) FROM execution_events")
    pipeline = "'" + "0" * 32 + "'"
    unrouted = (
        "INSERT INTO execution_events (pipeline_execution_id, event_type, created_at) "
        f"VALUES ({pipeline}, 'event_unrouted', '2030-01-01T12:00:00.000000+00:00')"
    )
    numbers = [last]
    for _ in range(2):
        database.run(unrouted)
        numbers += database.rows("SELECT max(sequence_num) FROM execution_events")[0]
        database.run(f"DELETE FROM execution_events WHERE sequence_num = {numbers[-1]}")
    assert numbers == sorted(set(numbers))


def test_sequence_numbers_increase_with_every_event(database):
    for _ in range(3):
        database.add()
    for claim in database.claim(3):
        database.frozen.complete(claim)
    numbers = [number for (number,) in database.rows("SELECT sequence_num FROM execution_events ORDER BY sequence_num")]
    assert len(set(numbers)) == 9
    for task in database.rows("SELECT id FROM task_executions"):
        kinds = database.rows(
            f"SELECT event_type FROM execution_events WHERE task_execution_id = '{task[0]}' ORDER BY sequence_num"
        )
        assert kinds == [("task_created",), ("task_claimed",), ("task_completed",)]


def test_deleting_a_task_keeps_its_events(database):
    database.corrupted = True
    database.add()
    database.run("DELETE FROM task_outbox")
    database.run("DELETE FROM task_executions")
    assert database.counts() == (0, 1, 0)


def test_sqlite_has_only_batch_triggers_and_uses_autoincrement_ids(sqlite):
    triggers = sqlite.rows("SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger' ORDER BY tbl_name")
    assert triggers == [("task_batch_changes",), ("task_batches",), ("task_executions",)]
    tables = sqlite.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'")
    assert sorted(tables) == [("execution_events",), ("relay_messages",), ("task_outbox",)]


def test_postgresql_columns_have_the_expected_types(postgresql):
    types = {
        (table, column): (kind, identity)
        for table, column, kind, identity in postgresql.rows(
            "SELECT table_name, column_name, udt_name, is_identity FROM information_schema.columns "
            "WHERE table_schema = 'public'"
        )
    }
    assert types["task_outbox", "id"] == ("int8", "YES")
    assert types["execution_events", "sequence_num"] == ("int8", "YES")
    assert types["execution_events", "xact_id"] == ("xid8", "NO")
    for (table, column), (kind, _) in types.items():
        if column.endswith("_at"):
            assert kind == "timestamptz", (table, column)
        if (column == "id" and table not in {"task_outbox", "task_batch_changes", "relay_messages"}) or column in {
            "task_execution_id",
            "worker_id",
        }:
            assert kind == "uuid", (table, column)
        if column in {"lease_token", "position"}:
            assert kind == "int8", (table, column)
        if column.endswith("_seconds"):
            assert kind == "float8", (table, column)
    assert types["task_executions", "pipeline_execution_id"][0] == "uuid"


def test_postgresql_records_the_transaction_id_of_each_event(postgresql):
    with postgresql.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        postgresql.store.enqueue_many([new(), new()], using=connection)
        [mine] = connection.exec_driver_sql("SELECT pg_current_xact_id()::text").one()
        noted = connection.exec_driver_sql("SELECT DISTINCT xact_id::text FROM execution_events").all()
        connection.exec_driver_sql("COMMIT")
    assert [tuple(row) for row in noted] == [(mine,)]


def test_postgresql_tables_have_the_measured_storage_options(postgresql):
    options = {
        name: set(found or ())
        for name, found in postgresql.rows("SELECT relname, reloptions FROM pg_class WHERE relkind = 'r'")
    }
    restless = {
        "autovacuum_vacuum_scale_factor=0",
        "autovacuum_vacuum_threshold=5000",
        "autovacuum_vacuum_cost_delay=0",
    }
    assert options["task_executions"] == {"fillfactor=50"}
    assert options["task_outbox"] == options["partition_claims"] == restless
    assert options["task_leases"] == options["sleeping_workers"] == {"fillfactor=50", *restless}


def test_no_index_on_executions_contains_columns_that_a_transition_changes(postgresql):
    definitions = postgresql.rows("SELECT indexdef FROM pg_indexes WHERE tablename = 'task_executions'")
    for (definition,) in definitions:
        assert not any(word in definition for word in ("status", "lease", "completed_at", "worker_id")), definition


def test_the_updates_of_a_claim_and_a_completion_stay_heap_only(postgresql):
    postgresql.frozen.enqueue_many([new() for _ in range(200)])
    claims = []

    def claim(connection):
        claims.extend(postgresql.frozen.claim_ready_task(50, worker_id=postgresql.worker, using=connection))

    def finish(connection):
        done = [Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims]
        postgresql.frozen.finish(done, using=connection)

    for work in (claim, finish):
        with postgresql.engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            before = connection.exec_driver_sql(UPDATES).one()
            work(connection)
            after = connection.exec_driver_sql(UPDATES).one()
            connection.exec_driver_sql("COMMIT")
        assert after.n_tup_upd - before.n_tup_upd == 50
        assert after.n_tup_hot_upd - before.n_tup_hot_upd >= 40


def test_a_thousand_tasks_in_one_statement_send_one_notification_per_queue(postgresql, postgresql_url):
    with ear(postgresql_url) as heard:
        postgresql.frozen.enqueue_many([new(queue=f"q{n % 3}") for n in range(1000)])
        assert sorted(heard()) == ["q0", "q1", "q2"]


def test_a_thousand_tasks_in_one_transaction_send_one_notification(postgresql, postgresql_url):
    with ear(postgresql_url) as heard:
        with postgresql.host_engine().begin() as connection:
            for _ in range(100):
                postgresql.frozen.enqueue_many([new(queue="mail") for _ in range(10)], using=connection)
        assert heard() == ["mail"]


@pytest.mark.parametrize("queue", ODD_QUEUES)
def test_the_payload_is_the_queue_name_whatever_characters_it_contains(postgresql, postgresql_url, queue):
    with ear(postgresql_url) as heard:
        postgresql.add(queue=queue)
        assert heard() == [queue]
    assert [claim.queue for claim in postgresql.claim(queues=[queue])] == [queue]


@pytest.mark.parametrize("queue", ODD_QUEUES)
def test_sqlite_accepts_any_characters_in_a_queue_name(sqlite, queue):
    sqlite.add(queue=queue)
    assert [claim.queue for claim in sqlite.claim(queues=[queue])] == [queue]


def test_a_rollback_sends_no_notification(postgresql, postgresql_url):
    with ear(postgresql_url) as heard:
        with postgresql.host_engine().connect() as connection:
            postgresql.frozen.enqueue(new(), using=connection)
            connection.rollback()
        assert heard() == []


def test_a_transition_without_a_new_outbox_entry_sends_no_notification(postgresql, postgresql_url):
    postgresql.add()
    with ear(postgresql_url) as heard:
        [claim] = postgresql.claim()
        postgresql.frozen.heartbeat([claim])
        postgresql.frozen.complete(claim)
        assert postgresql.claim() == []
        assert heard() == []


def test_a_released_task_notifies_again(postgresql, postgresql_url):
    postgresql.add(queue="mail")
    with ear(postgresql_url) as heard:
        [claim] = postgresql.claim()
        postgresql.frozen.release(claim)
        assert heard() == ["mail"]


def test_a_transaction_with_notify_off_sends_none_and_can_be_prepared(postgresql, postgresql_url):
    address = make_url(postgresql_url).set(drivername="postgresql").render_as_string()
    with ear(postgresql_url) as heard, psycopg.connect(address) as connection:
        connection.execute("SET LOCAL outboxq.notify = off")
        postgresql.frozen.enqueue(new(queue="silent"), using=connection)
        connection.execute("PREPARE TRANSACTION 'outboxq'")
        connection.autocommit = True
        connection.execute("COMMIT PREPARED 'outboxq'")
        assert heard() == []
        connection.autocommit = False
        postgresql.frozen.enqueue(new(queue="loud"), using=connection)  # it was silent only for that transaction
        connection.commit()
        assert heard() == ["loud"]
    assert len(postgresql.claim(5)) == 2


def test_a_transaction_that_notified_cannot_be_prepared(postgresql, postgresql_url):
    address = make_url(postgresql_url).set(drivername="postgresql").render_as_string()
    with ear(postgresql_url), psycopg.connect(address) as connection:
        postgresql.frozen.enqueue(new(), using=connection)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot PREPARE"):
            connection.execute("PREPARE TRANSACTION 'outboxq'")
        connection.rollback()
    assert postgresql.counts() == (0, 0, 0)


def test_the_trigger_notifies_for_a_role_that_may_only_enqueue(postgresql, postgresql_url):
    """No role has EXECUTE on the function, because a trigger does not need it."""
    role = f"outboxq_{uuid4().hex[:12]}"
    postgresql.run(f"CREATE ROLE {role}")
    Store(postgresql.engine).rights.grant(Role.PRODUCER, role)
    try:
        with ear(postgresql_url) as heard:
            with postgresql.host_engine().begin() as connection:
                connection.exec_driver_sql(f"SET LOCAL ROLE {role}")
                postgresql.frozen.enqueue(new(queue="mail"), using=connection)
            assert heard() == ["mail"]
    finally:
        postgresql.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_downgrade_removes_all_tables_triggers_functions_and_sequences(postgresql_url):
    migrations.downgrade(postgresql_url, "base")
    address = make_url(postgresql_url).set(drivername="postgresql").render_as_string()
    with psycopg.connect(address) as connection:
        left = connection.execute(
            """
            SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
            UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
            UNION ALL SELECT tgname FROM pg_trigger
            """
        ).fetchall()
    assert left == []


def test_downgrade_removes_all_tables_on_sqlite(sqlite_url):
    migrations.downgrade(sqlite_url, "base")
    engine = migrations.make_engine(sqlite_url)
    try:
        assert inspect(engine).get_table_names() == []
    finally:
        engine.dispose()
