"""The check after every test: it finds what `verify` finds, and leaves nothing behind for the next test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from outboxq.database.engine import detached, make_engine
from tests.conftest import Database
from tests.reuse import CheckedFile

PID = "SELECT pg_backend_pid()"


def test_a_corruption_is_found_by_the_statement_with_all_checks(postgresql, reused_postgresql):
    postgresql.add()
    assert reused_postgresql.is_sound(postgresql.url, postgresql.clock())
    postgresql.run("UPDATE task_executions SET attempt = 7")
    assert not reused_postgresql.is_sound(postgresql.url, postgresql.clock())
    postgresql.run("UPDATE task_executions SET attempt = 1")


def test_another_database_is_not_considered_sound(postgresql, reused_postgresql):
    assert not reused_postgresql.is_sound(f"{postgresql.url}_of_another_test", postgresql.clock())


def test_the_checked_file_finds_corruption_in_each_file_it_receives(migrated_sqlite, tmp_path):
    """Two schema changes with the same number are also distinguished."""
    checked = CheckedFile()
    for number, (change, is_sound) in enumerate(
        {
            "SELECT 1": True,
            "UPDATE task_executions SET attempt = 7": False,
            "UPDATE task_executions SET attempt = 1": True,
            "CREATE TABLE orders (id integer)": True,
            "DROP INDEX ix_task_outbox_due": False,
            "CREATE TABLE parcels (id integer)": True,
            "DELETE FROM task_outbox": False,
        }.items()
    ):
        path = tmp_path / f"{number}.db"
        shutil.copy(migrated_sqlite, path)
        database = Database("sqlite", f"sqlite:///{path}")
        database.add()
        database.run(change)
        assert checked.is_sound(database.engine, database.clock()) is is_sound, change
        assert (database.store.verify() == []) is is_sound, change
        database.close()
    checked.close()


@contextmanager
def lent(url: str) -> Iterator[Connection]:
    """Yield a connection. Its engine is disposed of at the end."""
    engine = make_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.mark.parametrize(
    ("left", "asked"),
    [
        ("SET lock_timeout = '7s'", "SHOW lock_timeout"),
        ("SET ROLE pg_monitor", "SELECT current_user"),
        ("SET SESSION AUTHORIZATION pg_monitor", "SELECT session_user"),
        ("LISTEN noise", "SELECT count(*) FROM pg_listening_channels()"),
        (
            "SELECT pg_advisory_lock(7)",
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        ),
        ("CREATE TEMPORARY TABLE noise ()", "SELECT to_regclass('noise')"),
        ("DECLARE noise CURSOR WITH HOLD FOR SELECT 1", "SELECT count(*) FROM pg_cursors WHERE name = 'noise'"),
    ],
)
def test_a_reused_connection_is_reset(postgresql, left, asked):
    with lent(postgresql.url) as connection:
        pid, before = connection.exec_driver_sql(PID).scalar(), connection.exec_driver_sql(asked).scalar()
        connection.exec_driver_sql(left)
        assert connection.exec_driver_sql(asked).scalar() != before
    with lent(postgresql.url) as connection:
        assert connection.exec_driver_sql(PID).scalar() == pid
        assert connection.exec_driver_sql(asked).scalar() == before


def test_statements_stay_prepared(postgresql):
    prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement = %s"
    for _ in range(7):
        with lent(postgresql.url) as connection:
            connection.exec_driver_sql(PID)
    with lent(postgresql.url) as connection:
        assert connection.exec_driver_sql(prepared, (PID,)).scalar() == 1


def test_a_connection_in_a_transaction_is_not_lent_again(postgresql):
    engine = postgresql.own(make_engine(postgresql.url))
    raw = detached(engine)
    pid = raw.execute(PID).fetchone()
    raw.execute("BEGIN")
    raw.close()
    with lent(postgresql.url) as connection:
        assert connection.exec_driver_sql(PID).one() != pid


def test_a_connection_of_an_applications_engine_is_not_lent_to_outboxq(postgresql):
    with postgresql.host.connect() as connection:
        pid = connection.exec_driver_sql(PID).scalar()
    postgresql.host.dispose()
    with lent(postgresql.url) as connection:
        assert connection.exec_driver_sql(PID).scalar() != pid


def test_connections_after_a_change_of_settings_use_them(postgresql):
    with lent(postgresql.url):
        pass
    postgresql.run(f"ALTER DATABASE {make_url(postgresql.url).database} SET work_mem = '9MB'")
    with lent(postgresql.url) as connection:
        assert connection.exec_driver_sql("SHOW work_mem").scalar() == "9MB"


def test_a_connection_that_the_server_has_ended_is_not_lent_again(postgresql):
    with lent(postgresql.url) as connection:
        pid = connection.exec_driver_sql(PID).scalar()
        postgresql.rows(f"SELECT pg_terminate_backend({pid})")
    with lent(postgresql.url) as connection:
        assert connection.exec_driver_sql(PID).scalar() != pid
