"""Replacing a SQLite file beside its old log: the new file stays intact, because processes that had the old file open do not write to it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine

from outboxq import Outbox, configure_sqlite
from outboxq.database.engine import make_engine
from outboxq.errors import FileUnusable
from tests import forked
from tests.waiting import until

APPLICATION = """
import os, sys

from outboxq import Outbox

outbox = Outbox("sqlite:///shop.db")


@outbox.task(name="tests.note")
def note(text: str) -> None: ...


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            note.using(outbox).enqueue(line * 100)
            print("enqueued", flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OUTBOXQ")]:
        monkeypatch.delenv(name)
    Path("app.py").write_text(APPLICATION)
    return tmp_path


@pytest.fixture
def file(migrated_sqlite, tmp_path):
    return Path(shutil.copy(migrated_sqlite, tmp_path / "shop.db"))


@contextmanager
def process(*arguments):
    """Start Python with these arguments. It writes its errors to `log`, and is killed at the end of the block."""
    command, pipes = [*forked.PYTHON, *arguments], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    options = {"starts_others": "--processes" in arguments, "text": True, "bufsize": 1}
    with Path("log").open("w") as log, forked.Popen(command, **options, **pipes, stderr=log) as one:
        yield one
        one.kill()


def told(producer, line):
    """Write a line to the producer, and return its answer."""
    producer.stdin.write(f"{line}\n")
    return producer.stdout.readline().strip()


def tasks(file):
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT count(*) FROM task_executions").fetchone()[0]


def put_a_copy_in_place(file):
    """Replace the file the wrong way, as a person who has not read the instructions would. Return the copy's content."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("VACUUM INTO 'copy.db'")
    copy = Path("copy.db").read_bytes()
    Path("copy.db").rename(file)
    return copy


def is_intact(file, copy):
    """Return True if nothing has been written to the file and SQLite finds nothing wrong without the old log."""
    assert file.read_bytes() == copy
    for part in ("-wal", "-shm"):
        file.with_name(f"{file.name}{part}").unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.full)])
def test_a_copy_that_replaces_the_file_of_an_idle_worker_stays_intact(file, processes):
    """The supervisor starts no new process in a worker's place, because the new process would not know about the old file."""
    with process("app.py") as producer:
        assert told(producer, "before") == "enqueued"
    with process("-m", "outboxq", "worker", "app:outbox", "--poll", "50ms", "--processes", processes) as worker:
        with closing(sqlite3.connect(file)) as connection:
            until(lambda: connection.execute("SELECT count(completed_at) FROM task_executions").fetchone() == (1,))
            # A worker that is still starting has not seen the old file, and cannot notice the change.
            until(lambda: connection.execute("SELECT count(pid) FROM workers").fetchone() == (int(processes),))
        copy = put_a_copy_in_place(file)
        assert worker.wait(60) == 66
    assert "put the new file in place again, and start the processes" in Path("log").read_text()
    assert is_intact(file, copy)
    assert tasks(file) == 1


def test_a_copy_that_replaces_the_file_of_a_producer_stays_intact_and_is_used_once_the_log_is_gone(file):
    with process("app.py") as producer:
        for text in ("a", "b", "c"):
            assert told(producer, text) == "enqueued"
        copy = put_a_copy_in_place(file)
        for _ in range(3):
            said = told(producer, "d")
            assert said.startswith(f"FileUnusable: the SQLite file {file} was replaced while it was open")
        assert is_intact(file, copy)
        assert told(producer, "e") == "enqueued"
        assert tasks(file) == 4


def own(file):
    return make_engine(f"sqlite:///{file}")


def configured(file):
    return configure_sqlite(create_engine(f"sqlite:///{file}"))


def unpooled(file):
    return configure_sqlite(create_engine(f"sqlite:///{file}", poolclass=NullPool))


@pytest.mark.parametrize("engine", [own, configured, unpooled])
def test_a_new_connection_refuses_a_file_beside_the_log_of_another_file(file, engine):
    """This also applies to the pool's new connections. Here, another process wrote the log, and has the old file open all the time."""
    engine = engine(file)
    outbox = Outbox(engine)
    note = outbox.task(name="tests.note")(lambda: None)
    with closing(sqlite3.connect(file)) as other:
        other.execute("SELECT count(*) FROM task_executions").fetchone()
        note.using(outbox).enqueue()
        copy = put_a_copy_in_place(file)
        for _ in range(2):
            with pytest.raises(
                FileUnusable, match="delete .*shop.db-wal and .*shop.db-shm, put the new file in place again"
            ):
                note.using(outbox).enqueue()
    assert is_intact(file, copy)
    note.using(outbox).enqueue()
    engine.dispose()
    assert tasks(file) == 2
