"""The sizes of the tables: PostgreSQL's, with indexes and partitions."""

from __future__ import annotations

from outboxq import migrations
from outboxq.database.tables import metadata
from tests.conftest import Database


def test_each_table_has_the_bytes_that_postgresql_counts(postgresql):
    postgresql.add()
    found = {one.name: one for one in postgresql.store.table_sizes()}
    assert set(found) == set(metadata.tables)
    for name, one in found.items():
        assert [(one.size,)] == postgresql.rows(f"SELECT pg_total_relation_size('{name}')")


def test_dead_rows_are_counted(postgresql):
    postgresql.add()
    postgresql.run("UPDATE task_executions SET updated_at = updated_at")
    with postgresql.engine.connect() as connection:
        connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
    postgresql.run("ANALYZE task_executions")
    [dead] = [one.dead_rows for one in postgresql.store.table_sizes() if one.name == "task_executions"]
    assert dead >= 1


def test_partitions_belong_to_their_table_and_tables_that_are_not_there_are_left_out(cluster):
    url = cluster.create_database()
    migrations.upgrade(url, "0001")
    database = Database("postgresql", url)
    try:
        assert "task_metrics" not in {one.name for one in database.store.table_sizes()}
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


def test_sqlite_has_no_sizes_of_tables(sqlite):
    assert sqlite.store.table_sizes() == []
