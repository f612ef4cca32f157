"""The campaign's small disk: it can be full on both databases and with each method, and it is gone after the tests, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from tests.faults.disk import FileLimits, Refusals, SmallDisk, mounted, refuses
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

KILLED = """
import os, signal
from tests.faults.disk import mounted
with mounted(4) as directory:
    print(directory, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for line in sys.stdin:
    try:
        connection.execute("INSERT INTO ballast (filler) VALUES ('little')")
        print("written", flush=True)
    except sqlite3.OperationalError as error:
        print(error, flush=True)
"""


def mounts() -> str:
    return Path("/proc/mounts").read_text()


def events(engine: Engine) -> Engine:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE execution_events (id int)"))
    return engine


def test_a_small_disk_can_be_filled_and_freed_and_is_removed_afterwards(tmp_path: Path) -> None:
    with mounted(4) as directory:
        if directory is None:  # in this case, the campaign reports it and uses another method
            return
        engine = create_engine(f"sqlite:///{directory / 'it.db'}")
        disk = SmallDisk(engine, directory)
        assert disk.how == "a tmpfs of 4 MB, filled by a file"
        assert not disk.is_full()
        disk.fill()
        assert disk.is_full()
        disk.free()
        assert not disk.is_full()
        engine.dispose()
    assert not directory.exists()
    assert str(directory) not in mounts()


def test_a_killed_process_does_not_leave_a_disk_behind() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, check=False, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    directory = done.stdout.strip()
    if directory != "None":
        until(lambda: not Path(directory).exists() and directory not in mounts())


def test_without_permission_to_mount_sqlite_writers_cannot_extend_files(tmp_path: Path) -> None:
    path = tmp_path / "outboxq.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    (tmp_path / "runs").touch()
    disk = FileLimits(engine, tmp_path)
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:

        def write() -> str:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
            return writer.stdout.readline().strip()

        disk.pids = lambda: [writer.pid]
        assert write() == "written"
        disk.fill()
        assert disk.is_full()
        assert "disk I/O error" in write()
        disk.free()
        assert not disk.is_full()
        assert write() == "written"
        assert writer.stdin is not None
        writer.stdin.close()
    engine.dispose()


def test_without_permission_to_mount_postgresql_refuses_every_event(cluster) -> None:
    engine = events(create_engine(url := cluster.create_database()))
    try:
        disk = Refusals(engine)
        assert not disk.is_full()
        disk.fill()
        assert refuses(engine)
        with pytest.raises(OperationalError, match="No space left"), engine.begin() as connection:
            connection.execute(text("INSERT INTO execution_events VALUES (1)"))
        disk.free()
        assert not refuses(engine)
    finally:
        engine.dispose()
        cluster.drop_database(url)
