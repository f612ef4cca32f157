"""Commands that meet a locked table, row or SQLite file name the session that holds the lock, and exit with code 75."""

from __future__ import annotations

from datetime import timedelta

import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, event

from outboxq.cli import database, main
from outboxq.database import engine as engines
from outboxq.database.table_locks import statement_shown
from outboxq.store import Store
from tests.contract.helpers import called
from tests.waiting import until

LOCKING = "LOCK TABLE task_outbox IN ACCESS EXCLUSIVE MODE"


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Disable retries, so that a command waits for one lock timeout only."""
    monkeypatch.setattr(database, "_OUTAGE", timedelta())


@pytest.fixture
def psql(postgresql):
    """Another program's connection."""
    engine = postgresql.own(create_engine(postgresql.url, connect_args={"application_name": "psql"}))
    with engine.connect() as connection:
        yield connection


def refused(database, *words):
    """Run the command, which meets a lock. Returns its stderr."""
    result = CliRunner().invoke(main, [*words, "--url", database.url], catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (75, ""), result.output
    return result.stderr


def pid_of(connection):
    return connection.connection.driver_connection.info.backend_pid


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        *(pytest.param(words, marks=pytest.mark.full) for words in (("verify",), ("failed", "list"))),
        ("queue", "pause", "mail"),
        ("prune", "--older-than", "0s", "--yes"),
    ],
)
def test_a_command_names_the_session_that_has_locked_a_table(postgresql, psql, words):
    psql.exec_driver_sql(
        "LOCK TABLE task_outbox, task_executions, dead_letters, queue_settings IN ACCESS EXCLUSIVE MODE"
    )
    said = refused(postgresql, *words)
    assert f"waited too long for a lock in {called(postgresql.url)}: " in said
    assert f"process {pid_of(psql)} (psql, its transaction began " in said
    assert "last statement: LOCK TABLE task_outbox, task_executions" in said
    assert said.count("\n") == 1


def test_a_command_names_a_session_waiting_for_a_lock_and_the_session_that_blocks_it(postgresql, psql):
    """The reader itself blocks no command, but a session that waits for the reader does."""
    psql.exec_driver_sql("SELECT count(*) FROM task_outbox")
    other = postgresql.own(create_engine(postgresql.url, connect_args={"application_name": "deploy"})).connect()
    raw = other.connection.driver_connection
    raw.pgconn.send_query(b"BEGIN; LOCK TABLE task_outbox IN ACCESS EXCLUSIVE MODE")
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    until(lambda: postgresql.rows(waits))
    said = refused(postgresql, "status")
    first, second = said.index(f"process {pid_of(psql)} (psql"), said.index(f"process {raw.info.backend_pid} (deploy")
    assert first < second
    assert "has requested a lock on task_outbox, and other sessions are waiting behind it" in said
    raw.close()
    other.invalidate()
    other.close()


def test_a_command_names_the_sessions_that_may_have_locked_a_row(postgresql, psql):
    task_id = postgresql.add(postgresql.store).id
    psql.exec_driver_sql("UPDATE task_executions SET priority = 99")
    said = refused(postgresql, "task", "cancel", str(task_id))
    assert f"a row is locked, perhaps by one of these: process {pid_of(psql)} (psql" in said
    assert "UPDATE task_executions SET priority = …" in said


def test_a_statement_is_shown_without_its_values():
    text = "UPDATE users\n SET name = 'O''Hara', card = 4111111111111111, t1 = x WHERE id = 7 AND note = 'cut"
    assert statement_shown(text) == "UPDATE users SET name = …, card = …, t1 = x WHERE id = … AND note = …"
    assert len(statement_shown("SELECT " + "x, " * 100)) <= 102


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("UPDATE k SET t = $$s3cret$$, u = $x$s3'cret$x$", "UPDATE k SET t = …, u = …"),
        ("UPDATE k SET t = $$s3cret, cut o", "UPDATE k SET t = …"),
        (r"SELECT E'it\'s s3cret', 'b'", "SELECT …, …"),
        ("UPDATE k SET t = 4_111_111, u = 4.1e9, v = 0x1F, t1 = -7", "UPDATE k SET t = …, u = …, v = …, t1 = -…"),
        ("SELECT 1 -- it's\n, 's3cret' /* it's */ , $1", "SELECT … , … , $…"),
    ],
)
def test_values_in_statements_are_never_shown(text, shown):
    assert statement_shown(text) == shown


def test_a_prepared_transaction_is_named_with_the_command_that_ends_it(postgresql, psql):
    """A prepared transaction has no process, and outlives its session."""
    psql.exec_driver_sql(LOCKING)
    psql.exec_driver_sql("PREPARE TRANSACTION 'payment 7'")
    try:
        said = refused(postgresql, "status")
    finally:
        postgresql.run("ROLLBACK PREPARED 'payment 7'")
    assert "the prepared transaction 'payment 7' (its transaction began " in said
    assert "ROLLBACK PREPARED" in said


def test_a_command_reports_how_long_another_connection_has_locked_the_file(sqlite, monkeypatch):
    made = engines.create_engine

    def impatient(*arguments, **options):
        engine = made(*arguments, **options)
        event.listen(engine, "connect", lambda raw, _record: raw.execute("PRAGMA busy_timeout = 1000"))
        return engine

    with sqlite.host.connect() as holder:
        holder.exec_driver_sql("SELECT 1")  # this takes the write lock
        with monkeypatch.context() as patched:
            patched.setattr(engines, "create_engine", impatient)
            patched.setattr("outboxq.database.dialects.sqlite.SqliteDialect.set_up", lambda *_: None)
            said = refused(sqlite, "queue", "pause", "mail")
    file = sqlite.engine.url.database
    assert f"another connection, in this or another process, has kept the SQLite file {file} locked for " in said
    assert int(said.split(" locked for ")[1].split(" s")[0]) >= 1
    assert "using(" not in said, "a command has no transaction of its own"


def test_the_notes_of_the_error_name_the_locked_file_for_programs(sqlite):
    engine = sqlite.own(engines.make_engine(sqlite.url))
    event.listen(engine, "connect", lambda raw, _record: raw.execute("PRAGMA busy_timeout = 10"))
    with sqlite.host.connect() as holder:
        holder.exec_driver_sql("SELECT 1")
        with pytest.raises(Exception, match="locked") as raised:
            Store(engine).queues.pause("mail")
    fact, cure = raised.value.__notes__
    assert "has kept the SQLite file" in fact
    assert cure.endswith("commit it first, or join it with using(session) or using=session")
