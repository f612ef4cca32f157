"""PostgreSQL's function for autoscalers, `outboxq_backlog`: what it counts, what it reads, and who may call it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NamedTuple
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from outboxq import migrations
from outboxq.database.privileges import Role
from outboxq.database.tables import task_metrics
from outboxq.store import Store
from tests.conftest import Database

HOUR = timedelta(hours=1)


class Backlog(NamedTuple):
    due: int
    oldest_seconds: float
    started_last_minute: int
    running: int


def backlog(database, queue="default", schema="public") -> Backlog:
    with database.engine.connect() as connection:
        found = connection.execute(text(f"SELECT * FROM {schema}.outboxq_backlog(:queue)"), {"queue": queue})
        return Backlog(**found.mappings().one())


def add(database, **fields):
    return database.add(database.store, **fields)


def fill(database, number: int, **columns: object) -> None:
    """Insert entries without tasks. The function does not read the tasks."""
    values = {"queue": "'default'", "priority": 0, "partition_key": "NULL", "available_at": "clock_timestamp()"}
    values |= columns
    database.run(
        "INSERT INTO task_outbox (task_execution_id, queue, priority, partition_key, position, available_at, created_at) "
        f"SELECT gen_random_uuid(), {values['queue']}, {values['priority']}, {values['partition_key']}, "
        f"nextval('task_position'), {values['available_at']}, clock_timestamp() FROM generate_series(1, {number}) AS number"
    )
    database.corrupted = True


def fill_events(database, number: int, task_id: object, kind: str, ago: str) -> None:
    database.run(
        "INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, lease_token, created_at) "
        f"SELECT gen_random_uuid(), '{task_id}', '{kind}', {'number + 100' if kind == 'task_claimed' else 'NULL'}, "
        f"clock_timestamp() - interval '{ago}' FROM generate_series(1, {number}) AS number"
    )
    database.corrupted = True


def count_by_worker(database, began: int, ago: str, queue: str = "default") -> None:
    """Insert a worker's record that `began` attempts started within ten seconds."""
    given = {
        "id": "gen_random_uuid()",
        "seconds": 10,
        "queue": f"'{queue}'",
        "task_name": "'tests.work'",
        "wait_3": began,
        "completed": began,
    }
    zero = [one.name for one in task_metrics.c if one.name not in {"at", "worker_id", *given}]
    database.run(
        f"INSERT INTO task_metrics (at, {', '.join([*given, *zero])}) "
        f"SELECT clock_timestamp() - interval '{ago}', {', '.join(map(str, given.values()))}, {', '.join('0' for _ in zero)}"
    )


def test_a_queue_without_tasks_has_counts_of_zero(postgresql):
    assert backlog(postgresql, "nobody's") == (0, 0.0, 0, 0)


def test_null_as_a_queue_is_refused_with_a_message(postgresql):
    with pytest.raises(Exception, match=r"outboxq_backlog\(\) requires the name of a queue, not NULL"):
        backlog(postgresql, None)


def test_due_tasks_of_every_priority_and_key_are_counted(postgresql):
    for priority in (-100, -7, 0, 100):
        add(postgresql, priority=priority)
    for key in ("a", "a", "b"):
        add(postgresql, partition_key=key)
    add(postgresql, queue="mail")
    later = postgresql.store.now() + HOUR
    add(postgresql, available_at=later)
    add(postgresql, available_at=later, partition_key="c")
    assert backlog(postgresql)[0] == 7
    assert backlog(postgresql, "mail")[0] == 1


@pytest.mark.parametrize("which", [{"priority": -100}, {"priority": 100}, {"partition_key": "a"}])
def test_the_age_is_that_of_the_task_that_has_been_due_the_longest(postgresql, which):
    add(postgresql)
    add(postgresql, partition_key="b")
    add(postgresql, available_at=postgresql.store.now() - HOUR, **which)
    assert 3600 <= backlog(postgresql).oldest_seconds < 3660


@pytest.mark.parametrize("key", ["NULL", "'k' || mod(number, 50)"])
def test_at_most_ten_thousand_due_tasks_are_counted(postgresql, key):
    fill(postgresql, 6_000, priority=1, partition_key=key)
    fill(postgresql, 6_000, priority=0, partition_key=key)
    fill(postgresql, 1, priority=-1, available_at="clock_timestamp() - interval '2 hours'")
    found = backlog(postgresql)
    assert found.due == 10_000
    assert found.oldest_seconds >= 7200, "the oldest task counts even if it comes after the first 10,000"


def test_claims_of_the_last_minute_count_as_starts(postgresql):
    for _ in range(3):
        add(postgresql)
    add(postgresql, queue="mail")
    claims = postgresql.claim(2, postgresql.store, queues=["default"])
    postgresql.store.complete(claims[0])
    assert backlog(postgresql)[2:] == (2, 1), "two started, and one of them is still running"
    assert backlog(postgresql, "mail")[2:] == (0, 0)


def test_an_earlier_claim_does_not_count_as_a_start(postgresql):
    handle = add(postgresql)
    fill_events(postgresql, 5, handle.id, "task_claimed", "61 seconds")
    assert backlog(postgresql).started_last_minute == 0
    fill_events(postgresql, 5, handle.id, "task_created", "0 seconds")
    assert backlog(postgresql).started_last_minute == 0


def test_starts_in_the_future_are_ignored(postgresql):
    handle = add(postgresql)
    fill_events(postgresql, 5, handle.id, "task_claimed", "-1 hour")
    count_by_worker(postgresql, 500, "-1 hour")
    assert backlog(postgresql).started_last_minute == 0, "they were written before the clock was set back"


def test_at_most_ten_thousand_recent_events_are_read_to_count_starts(postgresql):
    handle = add(postgresql)
    fill_events(postgresql, 1, handle.id, "task_claimed", "1 seconds")
    fill_events(postgresql, 9_998, handle.id, "task_created", "0 seconds")
    assert backlog(postgresql).started_last_minute == 1
    fill_events(postgresql, 1_000, handle.id, "task_created", "0 seconds")
    assert backlog(postgresql).started_last_minute == 0, "the function reads no more events than that"
    count_by_worker(postgresql, 500, "20 seconds")
    assert backlog(postgresql).started_last_minute == 500, "but it reads the workers' own counts"


def test_the_greater_of_two_counts_is_returned(postgresql):
    add(postgresql)
    postgresql.claim(1, postgresql.store)
    for ago in range(15, 75, 10):
        count_by_worker(postgresql, 100, f"{ago} seconds")
    count_by_worker(postgresql, 1000, "75 seconds")
    count_by_worker(postgresql, 1000, "20 seconds", queue="mail")
    assert backlog(postgresql).started_last_minute == 600


def test_each_bucket_of_waits_counts_as_starts(postgresql):
    buckets = [one.name for one in task_metrics.c if re.fullmatch(r"wait_\d+", one.name)]
    count_by_worker(postgresql, 0, "20 seconds")
    postgresql.run("UPDATE task_metrics SET " + ", ".join(f"{name} = 1" for name in buckets))
    assert backlog(postgresql).started_last_minute == len(buckets) == 23


@pytest.fixture
def fresh(cluster, migrated_postgresql):
    """Return a new database, whose tables have no statistics and no dead rows."""
    url = cluster.create_database(template=migrated_postgresql)
    database = Database("postgresql", url)
    yield database
    database.close()
    cluster.drop_database(url)


def rows_read(database) -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of rows that one call reads from each table: by sequential scans, and by indexes.

    The numbers are read in one transaction. Between transactions, the server publishes its counts once a second and starts again from 0.
    """
    counted = "SELECT relname, seq_scan + seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables"
    with database.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        before = {name: rows for name, *rows in connection.exec_driver_sql(counted)}
        connection.exec_driver_sql("SELECT outboxq_backlog('default')")
        after = {name: rows for name, *rows in connection.exec_driver_sql(counted)}
        connection.exec_driver_sql("ROLLBACK")
    read = {
        name: [now - then for now, then in zip(rows, before.get(name, (0, 0)), strict=True)]
        for name, rows in after.items()
    }
    return {name: one for name, (one, _) in read.items() if one}, {name: one for name, (_, one) in read.items() if one}


def test_the_function_reads_only_the_rows_it_counts_using_indexes(fresh):
    handle = add(fresh)
    for key in ("NULL", "'k' || mod(number, 500)"):
        fill(fresh, 8_000, priority="mod(number, 4)", partition_key=key)
        later = "clock_timestamp() + interval '1 hour'"
        fill(fresh, 8_000, priority="mod(number, 4)", partition_key=key, available_at=later)
    fill_events(fresh, 10_000, handle.id, "task_created", "1 hour")
    fill_events(fresh, 5_000, handle.id, "task_created", "1 second")
    count_by_worker(fresh, 100, "1 hour")
    before_analyze = rows_read(fresh)
    fresh.run("ANALYZE")
    for scanned, fetched in (before_analyze, rows_read(fresh)):
        assert set(scanned) <= {"task_leases"}, "the only scanned table has one row for each running task"
        assert set(fetched) <= {"task_outbox", "execution_events"}, (
            "no task was claimed, and no worker has recorded counts recently"
        )
        assert fetched["task_outbox"] <= 10_100
        assert 5_000 < fetched["execution_events"] <= 6_010, (
            "the events of the last minute, and up to a thousand older ones"
        )


def test_the_search_path_of_the_caller_does_not_matter(postgresql):
    add(postgresql)
    address = make_url(postgresql.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address) as connection:
        connection.execute("CREATE SCHEMA evil")
        connection.execute("CREATE TABLE evil.task_outbox (nothing int)")
        connection.execute("CREATE TEMP TABLE task_outbox (nothing int)")
        connection.execute(
            "CREATE FUNCTION evil.statement_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz'"
        )
        connection.execute("SET search_path = evil, pg_catalog")
        [due] = connection.execute("SELECT due FROM public.outboxq_backlog('default')").fetchone()
        connection.rollback()
    assert due == 1


def test_the_function_counts_in_its_schema_and_is_dropped_by_a_downgrade(cluster):
    url = cluster.create_database()
    for schema in (None, "jobs"):
        migrations.upgrade(url, schema=schema)
    database = Database("postgresql", url)
    try:
        database.add(Store(database.engine, schema="jobs"))
        assert backlog(database, schema="jobs").due == 1
        assert backlog(database).due == 0
        for schema in (None, "jobs"):
            migrations.downgrade(url, "base", schema=schema)
        assert database.rows("SELECT proname FROM pg_proc WHERE proname = 'outboxq_backlog'") == []
        migrations.upgrade(url)
        assert backlog(database) == (0, 0.0, 0, 0)
    finally:
        database.close()
        cluster.drop_database(url)


def test_a_viewer_may_call_the_function_even_without_a_grant_on_task_metrics(postgresql):
    add(postgresql)
    postgresql.claim(1, postgresql.store)
    count_by_worker(postgresql, 100, "20 seconds")
    role = f"viewer_{uuid4().hex}"
    address = make_url(postgresql.url).set(drivername="postgresql").render_as_string(hide_password=False)
    asked = "SELECT started_last_minute FROM outboxq_backlog('default')"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}")
        try:
            postgresql.store.rights.grant(Role.VIEWER, role)
            connection.execute(f"REVOKE ALL ON task_metrics FROM {role}")
            connection.execute(f"SET ROLE {role}")
            assert connection.execute(asked).fetchone() == (1,)
            connection.execute("RESET ROLE")
            connection.execute(f"GRANT SELECT ON task_metrics TO {role}")
            connection.execute(f"SET ROLE {role}")
            assert connection.execute(asked).fetchone() == (100,)
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def test_a_partitioned_history_is_also_read_from_its_end(fresh):
    handle = add(fresh)
    fill_events(fresh, 5_000, handle.id, "task_created", "1 hour")
    migrations.partition(fresh.url)
    add(fresh)
    fresh.claim(2, fresh.store)
    assert backlog(fresh).started_last_minute == 2
    scanned, fetched = rows_read(fresh)
    assert set(scanned) <= {"task_leases"}, "the only scanned table has one row for each running task"
    assert sum(rows for name, rows in fetched.items() if name.startswith("execution_events")) <= 2_100
