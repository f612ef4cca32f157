"""Causes of dead rows: sessions with old snapshots, and tables that are not vacuumed. On SQLite, a reader keeps the log from being
shortened.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from outboxq.database.dialects import Log, sqlite_file
from outboxq.database.using import target_of
from outboxq.errors import InvalidArgument, InvalidTransition, NotPermitted
from outboxq.model.actions import Interface, Operator
from outboxq.operating.worker_verbs import END_SESSION
from outboxq.store import HealthLimits, Rule
from outboxq.store.numbers import dead_rows, health
from outboxq.store.numbers.dead_rows import DeadRows, HeldSnapshot, SnapshotKind
from tests.dialects.conftest import report_statistics

AT_ONCE = HealthLimits(snapshot=timedelta(0))
SILENT = HealthLimits(snapshot=None)


@pytest.fixture
def other(postgresql):
    """An application's session, with its own application name."""
    engine = create_engine(postgresql.engine.url, connect_args={"application_name": "nightly-report"})
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def problem(database, limits=AT_ONCE):
    (found,) = [one for one in database.store.health(limits) if one.rule in {Rule.OLD_SNAPSHOT, Rule.DEAD_ROWS}]
    return found


def rules(database, limits=None):
    return [one.rule for one in database.store.health(limits)]


# Sessions with snapshots


def test_without_snapshots_no_problem_is_found(postgresql):
    assert postgresql.store.system().snapshots == []
    assert rules(postgresql, AT_ONCE) == []


def test_a_session_with_an_old_snapshot_is_reported_with_its_cures(postgresql, other):
    other.execution_options(isolation_level="REPEATABLE READ")
    pid = other.execute(text("SELECT pg_backend_pid() + 0 * length('of a customer')")).scalar_one()
    (snapshot,) = postgresql.store.system().snapshots
    assert (snapshot.kind, snapshot.name, snapshot.pid) == (SnapshotKind.SESSION, "nightly-report", pid)
    assert snapshot.state == "idle in transaction"
    assert timedelta(0) <= snapshot.age < timedelta(minutes=10)
    assert rules(postgresql) == []  # the snapshot is not old
    found = problem(postgresql)
    assert (found.rule, found.subjects) == (Rule.OLD_SNAPSHOT, ("nightly-report",))
    assert f"process {pid} (nightly-report, idle in transaction: SELECT pg_backend_pid()" in found.sentence
    assert "customer" not in found.sentence  # the statement's values may be secret
    assert found.sentence.endswith(f"end it: SELECT pg_terminate_backend({pid})")
    assert [one.command for one in found.cures] == [("db", "end-session", snapshot.session), ("db", "sizes")]
    assert rules(postgresql, SILENT) == []


OPERATOR = Operator(interface=Interface.DASHBOARD, name="ann")


def is_open(connection):
    try:
        return connection.exec_driver_sql("SELECT 1").scalar_one() == 1
    except DBAPIError:
        return False


def test_ending_the_session_named_in_a_problem_is_recorded_as_an_action(postgresql, other):
    other.execution_options(isolation_level="REPEATABLE READ").exec_driver_sql("SELECT 1")
    (session,) = [word for one in problem(postgresql).cures for word in one.command if "@" in word]
    outcome = END_SESSION.do(postgresql.store, session, operator=OPERATOR, reason="it hangs")
    assert outcome.sentence == f"the session {session} was ended; its transaction was rolled back"
    assert not is_open(other)
    [action] = postgresql.store.actions.list()
    assert (action.action, action.target, action.operator) == ("db end-session", session, "ann")
    with pytest.raises(InvalidTransition, match="was not ended: its session is over"):
        postgresql.store.end_session(session)


def test_a_session_that_only_shares_the_process_id_is_not_ended(postgresql, other):
    other.execution_options(isolation_level="REPEATABLE READ").exec_driver_sql("SELECT 1")
    (snapshot,) = postgresql.store.system().snapshots
    earlier = replace(snapshot, began_at=snapshot.began_at - timedelta(microseconds=1))
    with pytest.raises(InvalidTransition, match="its session is over"):
        postgresql.store.end_session(earlier.session)
    other.rollback()  # now it holds nothing
    with pytest.raises(InvalidTransition, match="no longer holds a snapshot"):
        postgresql.store.end_session(snapshot.session)
    assert is_open(other)
    assert postgresql.store.actions.list() == []


def test_the_error_for_a_role_that_may_not_end_the_session_names_the_privilege(postgresql, other):
    other.execution_options(isolation_level="REPEATABLE READ").exec_driver_sql("SELECT 1")
    (snapshot,) = postgresql.store.system().snapshots
    with postgresql.host.connect() as connection:
        connection.exec_driver_sql("SET LOCAL ROLE pg_read_all_stats")
        with pytest.raises(NotPermitted, match=f"is not permitted to end process {snapshot.pid}.*pg_signal_backend"):
            postgresql.store.end_session(snapshot.session, using=connection)
    assert is_open(other)


@pytest.mark.parametrize("text", ["4711", "4711@", "x@2026-11-23T02:30:00Z", "4711@2026-11-23T02:30:00", "@"])
def test_a_session_without_a_process_or_start_is_refused(postgresql, text):
    with pytest.raises(InvalidArgument, match="is not a session: give the process ID and start time"):
        postgresql.store.end_session(text)


def test_a_transaction_that_has_written_is_reported_without_a_snapshot(postgresql, other):
    """Under READ COMMITTED, a transaction has a snapshot only while a statement runs, but VACUUM also waits for its transaction id."""
    other.exec_driver_sql("CREATE TEMP TABLE written (number int)")
    (snapshot,) = postgresql.store.system().snapshots
    assert snapshot.name == "nightly-report"
    other.rollback()
    other.exec_driver_sql("SELECT 1")  # a transaction that has only read holds nothing between two statements
    assert postgresql.store.system().snapshots == []


def test_a_prepared_transaction_is_reported_with_its_cure(postgresql):
    with postgresql.host.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE prepared_by_test (number int)")
        connection.exec_driver_sql("PREPARE TRANSACTION 'it''s left'")
    try:
        found = problem(postgresql)
        assert found.sentence.startswith('the prepared transaction "it\'s left" has kept its snapshot for ')
        assert found.sentence.endswith("end it: ROLLBACK PREPARED 'it''s left', or COMMIT PREPARED")
    finally:
        with postgresql.host.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ROLLBACK PREPARED 'it''s left'")
    assert rules(postgresql, AT_ONCE) == []


def test_listing_snapshots_works_for_a_role_without_privileges_to_see_sessions(postgresql, other):
    other.execution_options(isolation_level="REPEATABLE READ").exec_driver_sql("SELECT 1")
    with postgresql.host.connect() as connection:
        assert [one.name for one in dead_rows.held_snapshots_in(target_of(connection))] == ["nightly-report"]
        connection.exec_driver_sql("SET LOCAL ROLE pg_database_owner")
        assert dead_rows.held_snapshots_in(target_of(connection)) == []


def snapshot(kind, **fields):
    given = {"name": "standby-1", "pid": None, "state": None, "query": None, "age": None, "transactions": 0, **fields}
    return HeldSnapshot(kind=kind, **given)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (SnapshotKind.SLOT, ("the replication slot 'standby-1'", "pg_drop_replication_slot")),
        (SnapshotKind.STANDBY, ("a query on the standby 'standby-1'", "hot_standby_feedback = off")),
    ],
)
def test_snapshots_of_slots_and_standbys_are_old_after_a_million_transactions(postgresql, monkeypatch, kind, words):
    several = [snapshot(kind, transactions=1_000_000)]
    monkeypatch.setattr(dead_rows, "held_snapshots_in", lambda _: several)
    assert rules(postgresql) == []
    several[0] = snapshot(kind, transactions=1_000_001)
    several.append(snapshot(SnapshotKind.SLOT, name="lost", transactions=1_000_002))
    found = problem(postgresql, None)
    assert words[0] in found.sentence
    assert "has kept its snapshot for 1,000,001 transactions" in found.sentence
    assert words[1] in found.sentence
    assert found.parts[0].sentence.startswith("the replication slot 'lost', for 1,000,002 transactions; ")


# Tables that are not vacuumed


@contextmanager
def without_autovacuum(database):
    database.run("ALTER TABLE task_outbox SET (autovacuum_enabled = off)")
    try:
        yield
    finally:
        database.run("ALTER TABLE task_outbox RESET (autovacuum_enabled)")


def test_dead_rows_of_a_table_that_is_not_vacuumed_are_a_problem(untouched):
    limits = HealthLimits(dead_rows=20, no_worker=False)
    with without_autovacuum(untouched):
        for _ in range(5):
            untouched.add()
        for _ in range(6):
            untouched.run("UPDATE task_outbox SET created_at = created_at")
        report_statistics(untouched)
        found = problem(untouched, limits)
        assert found.subjects == ("task_outbox",)
        assert "task_outbox has 30 dead rows but only 5 live rows; autovacuum is off" in found.sentence
        assert found.sentence.endswith("run VACUUM task_outbox")
        assert rules(untouched, HealthLimits(dead_rows=30, no_worker=False)) == []
        assert rules(untouched, HealthLimits(dead_rows=None, no_worker=False)) == []
        with untouched.host.connect() as old:  # this snapshot is a cause of dead rows, so one problem reports both
            old.execution_options(isolation_level="REPEATABLE READ").exec_driver_sql("SELECT 1")
            both = HealthLimits(dead_rows=20, snapshot=timedelta(0), no_worker=False)
            found = problem(untouched, both)
            assert found.rule is Rule.OLD_SNAPSHOT
            assert "cannot be vacuumed (dead rows: 30 in task_outbox); end it" in found.sentence
    assert rules(untouched, limits) == []  # autovacuum still has time to run


@pytest.mark.parametrize("vacuumed", ["never", "long ago", "lately"])
def test_autovacuum_is_behind_if_the_last_vacuum_was_long_ago(postgresql, monkeypatch, vacuumed):
    now = postgresql.store.now()
    times = {"never": None, "long ago": now - timedelta(hours=2), "lately": now - timedelta(minutes=9)}
    full = dead_rows.HotTable(
        name="task_outbox", rows=7, dead_rows=200_000, last_vacuumed_at=times[vacuumed], autovacuum=True
    )
    monkeypatch.setattr(DeadRows, "read", lambda *_: DeadRows(tables=[full]))
    postgresql.add(postgresql.store)
    found = {one.rule: one.sentence for one in postgresql.store.health(HealthLimits(history=None))}
    if vacuumed == "long ago":
        assert "autovacuum is behind (last vacuum: 2 h ago); run VACUUM task_outbox" in found[Rule.DEAD_ROWS]
    else:
        assert Rule.DEAD_ROWS not in found  # a table that is less than ten minutes old has not been vacuumed yet


# SQLite's log


def test_a_reader_that_keeps_the_sqlite_log_from_shrinking_is_a_problem(sqlite, monkeypatch, tmp_path):
    path = str(sqlite.engine.url.database)
    size = log.stat().st_size if (log := Path(f"{path}-wal")).exists() else 0
    monkeypatch.setattr(health, "_LOG_LIMIT", size + 100_000)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM task_executions").fetchone()
    for _ in range(60):
        sqlite.add(args='{"long": "' + "x" * 4000 + '"}')
    (found,) = [one for one in sqlite.store.health(HealthLimits(no_worker=False)) if one.rule is Rule.OLD_SNAPSHOT]
    assert "the log (-wal) of the SQLite file has grown to" in found.sentence
    # The reader is this process.
    assert "a long read transaction keeps it from being shortened; end that transaction" in found.sentence
    assert rules(sqlite, HealthLimits(no_worker=False, snapshot=None)) == []
    reader.close()


def test_the_readers_of_the_sqlite_log_are_found_in_the_list_of_locks(sqlite, monkeypatch):
    path = str(sqlite.engine.url.database)
    sqlite.add()
    index = Path(f"{path}-shm").stat()
    place = f"{os.major(index.st_dev):02x}:{os.minor(index.st_dev):02x}:{index.st_ino}"
    lines = [
        f"1: POSIX  ADVISORY  READ 4242 {place} 124 124",
        f"2: POSIX  ADVISORY  READ {os.getpid()} {place} 124 124",  # this process, which reads the list
        f"3: POSIX  ADVISORY  READ 4243 {place} 128 128",  # has the file open
        f"4: POSIX  ADVISORY  WRITE 4244 {place} 120 120",  # writes
        "5: POSIX  ADVISORY  READ 4245 00:1b:1 124 124",
        "6: -> POSIX  ADVISORY  READ 4246 00:1b:1 124 124",
    ]
    monkeypatch.setattr(sqlite_file.Path, "read_text", lambda self: "\n".join(lines))
    assert sqlite.store.dialect.log_of(sqlite.engine.url).readers == (4242,)

    def missing(self):
        raise FileNotFoundError(self)

    monkeypatch.setattr(sqlite_file.Path, "read_text", missing)
    assert sqlite.store.dialect.log_of(sqlite.engine.url).readers == ()


def test_the_problem_names_the_processes_that_read_the_log(sqlite, monkeypatch):
    log = Log(size=health._LOG_LIMIT + 1, readers=(17, 4242))
    monkeypatch.setattr(type(sqlite.store.dialect), "log_of", staticmethod(lambda _: log))
    (found,) = sqlite.store.health()
    assert "being shortened; these processes are reading the file: 17, 4242; end that transaction" in found.sentence
    monkeypatch.setattr(type(sqlite.store.dialect), "log_of", staticmethod(lambda _: Log(size=health._LOG_LIMIT)))
    assert rules(sqlite) == []


def test_a_sqlite_file_without_a_log_returns_none(sqlite):
    Path(f"{sqlite.engine.url.database}-wal").unlink(missing_ok=True)
    assert sqlite.store.dialect.log_of(sqlite.engine.url) is None
    sqlite.corrupted = True
