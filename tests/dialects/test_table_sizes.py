"""Table sizes. On PostgreSQL, they include indexes and partitions."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path

from outboxq import migrations
from outboxq.database.revisions import REVISION
from outboxq.database.tables import metadata
from tests.conftest import Database
from tests.dialects.conftest import report_statistics


def test_each_table_has_the_size_that_postgresql_reports(untouched):
    untouched.add()
    found = {one.name: one for one in untouched.store.table_sizes()}
    assert set(found) == set(metadata.tables)
    for name, one in found.items():
        assert [(one.size,)] == untouched.rows(f"SELECT pg_total_relation_size('{name}')")
        assert [(one.index_size,)] == untouched.rows(f"SELECT pg_indexes_size('{name}')")
    assert found["task_executions"].last_vacuumed_at is None


def test_row_counts_and_the_last_vacuum_match_postgresql_statistics(postgresql):
    for _ in range(3):
        postgresql.add()
    report_statistics(postgresql)  # otherwise, a late report would count the rows again
    with postgresql.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE task_executions")
    [one] = [one for one in postgresql.store.table_sizes() if one.name == "task_executions"]
    assert one.rows == 3
    assert timedelta(0) <= postgresql.store.now() - one.last_vacuumed_at < timedelta(minutes=10)


def test_dead_rows_are_counted(untouched):
    untouched.add()
    untouched.run("UPDATE task_executions SET updated_at = updated_at")
    report_statistics(untouched)
    assert [one.dead_rows for one in untouched.store.table_sizes() if one.name == "task_executions"] == [1]


def test_the_size_of_a_table_includes_its_partitions(cluster):
    url = cluster.create_database()
    database = Database("postgresql", url)
    try:
        migrations.upgrade(url)
        migrations.partition(url)
        found = {one.name: one.size for one in database.store.table_sizes()}
        assert set(found) == set(metadata.tables)
        parts = database.rows(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
            "WHERE relname LIKE 'execution_events%%' AND relkind IN ('r', 'p')"
        )
        assert [(found["execution_events"],)] == parts
    finally:
        database.close()
        cluster.drop_database(url)


def test_sqlite_has_no_table_sizes(sqlite):
    assert sqlite.store.table_sizes() == []


def test_the_system_describes_the_database(database):
    found = database.store.system()
    assert (found.revision, found.oldest_code, found.partitions) == (REVISION, "0001", [])
    assert found.tables == database.store.table_sizes()
    assert found.size > 0
    if database.name == "sqlite":
        assert found.server == f"SQLite {sqlite3.sqlite_version}"
        assert found.size == Path(str(database.engine.url.database)).stat().st_size
    else:
        [(version,)] = database.rows("SELECT current_setting('server_version')")
        assert found.server == f"PostgreSQL {version.partition(' ')[0]}"


def test_partitions_are_listed_with_their_sizes(cluster):
    url = cluster.create_database()
    migrations.upgrade(url)
    migrations.partition(url)
    database = Database("postgresql", url)
    try:
        found = database.store.system().partitions
        names = {one.name for one in found}
        assert {
            f"{table}_{part}" for table in ("task_executions", "execution_events") for part in ("first", "default")
        } <= names
        for one in found:
            assert [(one.size,)] == database.rows(f"SELECT pg_total_relation_size('{one.name}')")
    finally:
        database.close()
        cluster.drop_database(url)
