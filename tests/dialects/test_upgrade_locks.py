"""An upgrade beside other transactions on PostgreSQL: it waits in short rounds, so no other session queues behind it for long.

The next release is simulated by a copy of the scripts with one more revision, which alters several tables.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine

from outboxq import migrations
from outboxq.database.revisions import REVISION
from outboxq.errors import InvalidArgument, TablesLocked
from outboxq.model.periods import Every
from tests import forked
from tests.conftest import Database
from tests.waiting import until

ROOT = Path(__file__).parents[2]
NEXT = f"{int(REVISION) + 1:04}"
SCRIPT = f'''
"""Columns more."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{REVISION}"
ALTERED = ("task_executions", "task_leases", "workers")


def upgrade():
    locked = op.get_bind().exec_driver_sql(
        "SELECT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock'"
    )
    assert {{*ALTERED, "task_outbox"}} <= set(locked.scalars()), "all tables are locked before the first statement"
    for table in ALTERED:
        op.add_column(table, sa.Column("colour", sa.Text()))


def downgrade():
    for table in ALTERED:
        op.drop_column(table, "colour")
'''
COMMAND = """
import sys
from pathlib import Path
from outboxq import migrations
scripts = Path(sys.argv.pop(1))
migrations.script_location = lambda: scripts
from outboxq.cli import main
main()
"""
COLUMNS = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'colour'"
QUEUEING = """
    SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE NOT granted AND locktype = 'relation' AND mode = 'AccessExclusiveLock' AND datname = current_database()
"""
HOLDING = {
    "enqueued": "UPDATE task_executions SET priority = priority",
    "read": "SELECT count(*) FROM task_leases",
}


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """Return the directory with the next release's scripts."""
    later = tmp_path / "alembic"
    shutil.copytree(ROOT / "alembic", later, ignore=shutil.ignore_patterns("__pycache__"))
    (later / "versions" / f"{NEXT}_next.py").write_text(SCRIPT)
    return later


@pytest.fixture
def later(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the next release."""
    monkeypatch.setattr(migrations, "script_location", lambda: scripts)


@contextmanager
def transaction(database: Database, statement: str = HOLDING["read"]) -> Iterator[Connection]:
    """Yield an application's transaction, which stays open."""
    engine = database.own(create_engine(database.url, connect_args={"application_name": "shop"}))
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
        yield connection


@dataclass
class Upgrade:
    """An upgrade in its own process."""

    process: forked.Popen
    said: Path

    def text(self) -> str:
        return self.said.read_text()

    def ends(self) -> int:
        return self.process.wait(60)


@contextmanager
def process(words: Sequence[str], said: Path, warm: forked.Warm = forked.OUTBOXQ) -> Iterator[Upgrade]:
    """Start an upgrade. It is killed at the end of the block."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXQ")}
    with (
        said.open("w") as output,
        forked.Popen([*forked.PYTHON, *words], warm=warm, env=environment, stdout=output, stderr=output) as running,
    ):
        yield Upgrade(running, said)
        running.kill()


def by_command(database: Database, scripts: Path, _tmp: Path) -> list[str]:
    return ["-c", COMMAND, str(scripts), "upgrade", database.url, "--wait", "50s"]


def by_alembic(database: Database, scripts: Path, tmp: Path) -> list[str]:
    text = (ROOT / "alembic.ini").read_text()
    text = re.sub(r"(?m)^script_location.*$", f"script_location = {scripts}", text)
    (tmp / "alembic.ini").write_text(text)
    return ["-m", "alembic", "-c", str(tmp / "alembic.ini"), "-x", f"url={database.url}", "upgrade", "head"]


def by_hosts_alembic(database: Database, scripts: Path, tmp: Path) -> list[str]:
    """Create the application's own migrations, one of which calls outboxq's migrations, as in docs/install.md."""
    project = tmp / "host"
    (project / "versions").mkdir(parents=True)
    (project / "alembic.ini").write_text(
        f"[alembic]\nscript_location = %(here)s\npath_separator = os\nsqlalchemy.url = {database.url}\n"
        "[loggers]\nkeys = root\n[handlers]\nkeys = console\n[formatters]\nkeys = plain\n[formatter_plain]\n"
        "[logger_root]\nlevel = WARNING\nhandlers = console\n"
        "[handler_console]\nclass = StreamHandler\nargs = (sys.stderr,)\nformatter = plain\n"
    )
    (project / "env.py").write_text(
        textwrap.dedent(
            """
            from logging.config import fileConfig
            from alembic import context
            from sqlalchemy import create_engine

            fileConfig(context.config.config_file_name)
            engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
            with engine.connect() as connection:
                context.configure(connection=connection)
                with context.begin_transaction():
                    context.run_migrations()
            """
        )
    )
    (project / "versions" / "host1.py").write_text(
        textwrap.dedent(
            f"""
            from pathlib import Path
            from alembic import op
            from outboxq import migrations

            revision, down_revision = "host1", None
            migrations.script_location = lambda: Path({str(scripts)!r})

            def upgrade():
                migrations.upgrade(op.get_bind())
            """
        )
    )
    return ["-m", "alembic", "-c", str(project / "alembic.ini"), "upgrade", "head"]


@pytest.mark.parametrize(
    ("way", "statement"),
    [
        (by_command, "read"),
        pytest.param(by_alembic, "enqueued", marks=pytest.mark.full),
        (by_hosts_alembic, "enqueued"),
    ],
    ids=["outboxq upgrade", "alembic", "the application's Alembic"],
)
def test_producers_can_enqueue_while_an_upgrade_waits_for_an_open_transaction(
    postgresql, scripts, tmp_path, way, statement
):
    """Producers queue behind the upgrade for at most one round. Otherwise, the first enqueue would wait until the open transaction ends."""
    postgresql.add(postgresql.store)
    with transaction(postgresql, HOLDING[statement]) as holder:
        pid = holder.connection.driver_connection.info.backend_pid
        # The application's logging disables all loggers that exist when it is configured.
        warm = forked.PACKAGES if way is by_hosts_alembic else forked.OUTBOXQ
        with process(way(postgresql, scripts, tmp_path), tmp_path / "said", warm) as upgrade:
            until(lambda: postgresql.rows(QUEUEING) != [(0,)] or upgrade.process.poll() is not None)
            for _ in range(20):
                postgresql.add(postgresql.store)
            until(lambda: "could not be locked" in upgrade.text() or upgrade.process.poll() is not None)
            told = next((line for line in upgrade.text().splitlines() if "could not be locked" in line), upgrade.text())
            assert f"process {pid} (shop, its transaction began " in told
            assert "idle in transaction for " in told
            assert f"last statement: {HOLDING[statement]}" in told
            assert postgresql.rows(COLUMNS) == [(0,)]
            holder.rollback()
            assert upgrade.ends() == 0, upgrade.text()
    assert postgresql.rows(COLUMNS) == [(3,)]
    assert postgresql.rows("SELECT version_num FROM outboxq_alembic_version") == [(NEXT,)]
    assert postgresql.counts()[0] == 21


def test_an_upgrade_that_cannot_lock_the_tables_reports_why_and_changes_nothing(postgresql, scripts, tmp_path):
    with transaction(postgresql) as holder:
        pid = holder.connection.driver_connection.info.backend_pid
        words = by_command(postgresql, scripts, tmp_path)
        with process([*words[:-1], "1s"], tmp_path / "said") as upgrade:
            assert upgrade.ends() == 75
        last = upgrade.text().splitlines()[-1]
        assert last.startswith("outboxq: nothing was changed, because the tables of ")
        assert f"could not be locked within 1 s: process {pid} (shop, " in last
        assert "Traceback" not in upgrade.text()
    assert postgresql.rows(COLUMNS) == [(0,)]
    postgresql.store.ensure_current()


def test_a_lock_timeout_that_postgresql_would_treat_as_none_is_refused(postgresql):
    for call in (migrations.upgrade, migrations.partition):
        with pytest.raises(InvalidArgument, match="lock_timeout must be at least 1 ms, not 0.0004 s"):
            call(postgresql.url, lock_timeout=timedelta(microseconds=400))


def test_a_killed_upgrade_leaves_no_session_waiting_for_locks(postgresql, scripts, tmp_path):
    with transaction(postgresql):
        with process(by_command(postgresql, scripts, tmp_path), tmp_path / "said") as upgrade:
            until(lambda: postgresql.rows(QUEUEING) != [(0,)])
            upgrade.process.kill()
            upgrade.process.wait()
        until(lambda: postgresql.rows(QUEUEING) == [(0,)], seconds=30)
        postgresql.add(postgresql.store)
    assert postgresql.rows(COLUMNS) == [(0,)]


def test_an_upgrade_waits_for_a_vacuum_without_blocking_producers(postgresql, scripts, tmp_path):
    """The upgrade first requests the lock that VACUUM takes. No other statement of outboxq waits for that lock."""
    waiting = (
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE NOT granted AND mode = 'ShareUpdateExclusiveLock' AND datname = current_database()"
    )
    with (
        transaction(postgresql, "LOCK TABLE task_outbox IN SHARE UPDATE EXCLUSIVE MODE") as vacuum,
        process(by_command(postgresql, scripts, tmp_path), tmp_path / "said") as upgrade,
    ):
        until(lambda: postgresql.rows(waiting) != [(0,)])
        assert postgresql.rows(QUEUEING) == [(0,)]
        postgresql.add(postgresql.store)
        vacuum.rollback()
        assert upgrade.ends() == 0, upgrade.text()
    assert postgresql.rows(COLUMNS) == [(3,)]


@pytest.mark.usefixtures("later")
def test_in_a_transaction_of_the_caller_a_failed_round_releases_its_locks(postgresql):
    """The transaction continues with its own timeouts and without a lock on outboxq's tables."""
    held = "SELECT count(*) FROM pg_locks WHERE pid = {} AND mode ~ 'Exclusive' AND locktype = 'relation'"
    with transaction(postgresql) as holder, postgresql.host.connect() as caller:
        caller.exec_driver_sql("SET LOCAL lock_timeout = '7s'; SET LOCAL statement_timeout = '77s'")
        pid = caller.connection.driver_connection.info.backend_pid
        with pytest.raises(TablesLocked, match=r"process \d+ \(shop"):
            migrations.upgrade(caller, lock_timeout=timedelta(milliseconds=50), wait=timedelta(0))
        assert postgresql.rows(held.format(pid)) == [(0,)]
        postgresql.add(postgresql.store)
        holder.rollback()
        migrations.upgrade(caller)
        shown = [caller.exec_driver_sql(f"SHOW {one}_timeout").scalar() for one in ("lock", "statement")]
        assert shown == ["7s", "77s"]
        caller.commit()
    assert postgresql.rows(COLUMNS) == [(3,)]


def test_an_upgrade_with_nothing_to_do_locks_no_table(postgresql):
    with transaction(postgresql, "LOCK TABLE task_outbox IN ACCESS EXCLUSIVE MODE"):
        migrations.upgrade(postgresql.url, wait=timedelta(0))


def test_the_first_partitioning_waits_in_rounds_and_names_the_blocking_process(postgresql):
    with transaction(postgresql, "SELECT count(*) FROM execution_events"):
        with pytest.raises(TablesLocked, match=r"process \d+ \(shop, .*SELECT count\(\*\) FROM execution_events\)"):
            migrations.partition(postgresql.url, wait=timedelta(0))
        postgresql.add(postgresql.store)
    assert len(migrations.partition(postgresql.url, every=Every.MONTH)) == 10
