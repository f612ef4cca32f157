"""SQLite files: a file is private to its owner. If the file has been replaced, deleted or damaged, the user is told, and no data is lost."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, event
from sqlalchemy.exc import OperationalError

from outboxq import Outbox, configure_sqlite, migrations
from outboxq.cli import main
from outboxq.database.engine import make_engine
from outboxq.errors import ConfigurationError, FileUnusable
from outboxq.store import Store, transactions
from tests.waiting import PATIENCE

APPLICATION = """
from outboxq import Outbox

outbox = Outbox()
"""


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """A working directory with an application that names no database. Files are readable by all, and no OUTBOXQ variables are set."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OUTBOXQ")]:
        monkeypatch.delenv(name)
    Path("unbound.py").write_text(APPLICATION)
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)
    sys.modules.pop("unbound", None)


@pytest.fixture
def file(migrated_sqlite, tmp_path):
    """A file with outboxq's tables, with a copy beside it to restore."""
    shutil.copy(migrated_sqlite, tmp_path / "copy.db")
    return Path(shutil.copy(migrated_sqlite, tmp_path / "shop.db"))


def own(file):
    return make_engine(f"sqlite:///{file}")


def configured(file):
    return configure_sqlite(create_engine(f"sqlite:///{file}"))


def plain(file):
    return create_engine(f"sqlite:///{file}")


@pytest.fixture
def outboxes():
    """Yield a function that creates outboxes. Their engines are disposed of after the test."""
    made = []

    def make(engine):
        made.append(engine)
        return Outbox(engine)

    yield make
    for engine in made:
        engine.dispose()


def restore(file):
    """Replace the file with the copy, and delete the old file's log. Otherwise, SQLite would use the log with the new file."""
    for part in ("-wal", "-shm"):
        file.with_name(f"{file.name}{part}").unlink(missing_ok=True)
    file.with_name("copy.db").rename(file)


def delete(file):
    for one in file.parent.glob(f"{file.name}*"):
        one.unlink()


def tasks_in(file):
    engine = make_engine(f"sqlite:///{file}")
    try:
        return sum(queue.due + queue.completed for queue in Store(engine).stats())
    finally:
        engine.dispose()


def run_for_a_while(outbox):
    """Return the exit code of a worker that stops on its own, and the reason that it gives. The code is 0 if it does not stop."""
    worker = outbox.worker(poll=0.05, recover_every=0.05, drain_timeout=1)
    patience = threading.Timer(PATIENCE, worker.request_stop)
    patience.start()
    try:
        return worker.run(), worker.health.error
    finally:
        patience.cancel()


# -- replaced, deleted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("happens", [restore, delete])
@pytest.mark.parametrize("engine", [own, configured, plain])
def test_a_worker_whose_file_is_replaced_or_deleted_stops_with_a_reason(file, outboxes, caplog, engine, happens):
    outbox = outboxes(engine(file))

    @outbox.task(name="tests.harm")
    def harm() -> None:
        happens(file)

    harm.using(outbox).enqueue()
    code, why = run_for_a_while(outbox)
    assert code == 1
    assert f"the SQLite file {file} was " in why
    assert "while it was open" in why
    assert f"stopping: {why}" in caplog.text
    assert happens is restore or engine is plain or not file.exists()  # no process has created an empty file


@pytest.mark.parametrize("engine", [own, configured])
def test_a_task_enqueued_after_a_restore_is_in_the_restored_file(file, outboxes, engine):
    outbox = outboxes(engine(file))

    @outbox.task(name="tests.work")
    def work() -> None: ...

    work.using(outbox).enqueue()
    restore(file)
    assert tasks_in(file) == 0
    work.using(outbox).enqueue()
    assert tasks_in(file) == 1


@pytest.mark.parametrize("engine", [own, configured])
def test_an_enqueue_into_a_deleted_file_is_refused_and_creates_no_file(file, outboxes, engine):
    outbox = outboxes(engine(file))

    @outbox.task(name="tests.work")
    def work() -> None: ...

    work.using(outbox).enqueue()
    delete(file)
    for _ in range(2):
        with pytest.raises(FileUnusable, match="was deleted while it was open; restore it, or create a new one"):
            work.using(outbox).enqueue()
    assert not file.exists()
    restore(file)
    work.using(outbox).enqueue()
    assert tasks_in(file) == 1


# -- private --------------------------------------------------------------------------------------------------------------


def modes(file):
    return {one.name: oct(stat.S_IMODE(one.stat().st_mode)) for one in file.parent.glob(f"{file.name}*")}


@pytest.mark.parametrize("url", ["sqlite:///new.db", "sqlite:///file:new.db?uri=true"])
def test_a_new_file_and_its_log_are_readable_only_by_the_owner(directory, url):
    engine = make_engine(url)
    migrations.upgrade(engine)
    file = directory / "new.db"
    with engine.connect():
        assert modes(file) == {f"{file.name}{part}": "0o600" for part in ("", "-wal", "-shm")}
    engine.dispose()


def test_a_new_file_is_private_on_systems_without_mknod(directory, monkeypatch):
    """On macOS, only root can create a file without opening it. On Windows, this is impossible."""
    monkeypatch.delattr(os, "mknod")
    engine = make_engine("sqlite:///new.db")
    with engine.connect():
        assert set(modes(directory / "new.db").values()) == {"0o600"}
    engine.dispose()


def test_an_existing_file_keeps_its_mode(file):
    file.chmod(0o640)
    engine = own(file)
    with engine.connect():
        assert set(modes(file).values()) == {"0o640"}
    engine.dispose()


# -- in memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":memory:",
        "file:x?mode=memory&cache=shared&uri=true",
        "file::memory:?cache=shared&uri=true",
        "file:/x?vfs=memdb&uri=true",
    ],
)
def test_every_form_of_an_in_memory_database_is_refused(name):
    for made in (make_engine, Outbox):
        with pytest.raises(ConfigurationError, match="an in-memory SQLite database cannot be shared with a worker"):
            made(f"sqlite:///{name}")


def test_a_read_only_file_is_not_taken_for_an_in_memory_database(file):
    engine = make_engine(f"sqlite:///file:{file}?mode=ro&uri=true")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM task_executions").scalar() == 0
    engine.dispose()


# -- damaged --------------------------------------------------------------------------------------------------------------

COMMANDS = [
    ["status"],
    ["task", "list"],
    ["failed", "list"],
    ["queue", "list"],
    ["verify"],
    ["prune", "--older-than", "1d", "--yes"],
    ["upgrade"],
    ["worker", "unbound"],
]


def overwrite(file):
    """Overwrite the file with content that is not a database."""
    file.write_bytes(b"to do: buy milk\n" * 1000)


def spoil(file, table):
    """Damage the first pages of this table and its indexes."""
    engine = make_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        size = connection.exec_driver_sql("PRAGMA page_size").scalar()
        found = connection.exec_driver_sql(f"SELECT rootpage FROM sqlite_master WHERE tbl_name = '{table}'").scalars()
        pages = [page for page in found if page]
    engine.dispose()
    with file.open("r+b") as opened:
        for page in pages:
            opened.seek((page - 1) * size)
            opened.write(b"\xff" * size)


@pytest.mark.parametrize(
    "damage", [overwrite, lambda file: spoil(file, "outboxq_alembic_version")], ids=["text", "page"]
)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_damaged_file_is_reported_in_one_line_by_every_command(file, monkeypatch, command, damage):
    damage(file)
    monkeypatch.setenv("OUTBOXQ_DATABASE_URL", f"sqlite:///{file}")
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.output.count("\n")) == (69, 1)
    assert result.output.startswith("outboxq: the SQLite file is damaged, or is not a database (")


def test_a_worker_stops_if_its_file_is_damaged(file, outboxes, caplog):
    outbox = outboxes(own(file))
    spoil(file, "task_outbox")
    code, why = run_for_a_while(outbox)
    assert code == 1
    assert why.startswith("the SQLite file is damaged, or is not a database (database disk image is malformed)")
    assert "claiming failed" not in caplog.text


# -- locked ---------------------------------------------------------------------------------------------------------------


def test_an_enqueue_gives_up_once_sqlite_has_waited_half_a_minute(file, outboxes, monkeypatch, caplog):
    """SQLite waits before each attempt. In this test, the half minute is 50 ms."""
    monkeypatch.setattr("outboxq.store.transactions._PATIENCE", 0.05)
    outbox = outboxes(own(file))
    event.listen(outbox.store.engine, "connect", lambda raw, _: raw.execute("PRAGMA busy_timeout = 50"))

    @outbox.task(name="tests.work")
    def work() -> None: ...

    work.using(outbox).enqueue()
    engine = plain(file)
    with engine.connect() as other, caplog.at_level("INFO"):
        other.exec_driver_sql("BEGIN EXCLUSIVE")
        with pytest.raises(OperationalError, match="database is locked"):
            work.using(outbox).enqueue()
    engine.dispose()
    assert "running it again" not in caplog.text


def test_sqlite_waits_and_transactions_are_retried_for_half_a_minute(file, outboxes):
    with outboxes(own(file)).store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 1000 * transactions._PATIENCE == 30_000


def test_a_file_that_could_not_be_created_is_not_reported_as_deleted(tmp_path):
    """The file's directory is created late, like a directory that is mounted."""
    engine = make_engine(f"sqlite:///{tmp_path}/late/shop.db")
    with pytest.raises(OperationalError, match="the directory .* does not exist"):
        engine.connect()
    (tmp_path / "late").mkdir()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
    engine.dispose()
