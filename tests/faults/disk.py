"""A small disk that can be filled, for the tables only, and other ways to get the same errors where mounting is not permitted."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from tests import postgres

# It ends when the pipe from the test process closes, even if that process was killed.
_KEEPER = """
mount -t tmpfs -o "size=$2m,mode=755" outboxq-disk "$1" && echo mounted
exec >/dev/null
read -r _
umount "$1" || umount -l "$1"
rmdir "$1"
"""
_STEP = 50_000
_MOST_STEPS = 2000
_INSERT = text("INSERT INTO ballast (filler) VALUES (:filler)")


@contextmanager
def mounted(megabytes: int) -> Iterator[Path | None]:
    """Mount a tmpfs of this size and yield its directory, or None if mounting is not permitted. It is unmounted in any case."""
    directory = Path(tempfile.mkdtemp(prefix="outboxq-disk-", dir=postgres.parent_directory()))
    directory.chmod(0o755)  # the database server may run under another account
    keeper = subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, "outboxq-disk-keeper", directory, str(megabytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # Ctrl-C must reach only the tests, which still need the disk while they end
    )
    assert keeper.stdout is not None
    try:
        yield directory if keeper.stdout.readline() else None
    finally:
        keeper.communicate()


class Disk(ABC):
    """The disk that contains the tables. `how` describes its implementation."""

    how: str

    @abstractmethod
    def fill(self) -> None:
        """Use up the remaining space, until the database refuses to write for lack of it."""

    @abstractmethod
    def is_full(self) -> bool:
        """Return whether the database still refuses to write."""

    @abstractmethod
    def free(self) -> None:
        """Free the space, if `fill` has used it up."""


class SmallDisk(Disk):
    """A separate disk, filled by a file next to the tables."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self._engine, self._ballast = engine, directory / "ballast"
        size = os.statvfs(directory)
        self.how = f"a tmpfs of {size.f_blocks * size.f_frsize >> 20} MB, filled by a file"
        _prepare(engine)

    def fill(self) -> None:
        for _ in range(_MOST_STEPS):  # space that the database has already allocated must be used up too
            self._take_the_rest()
            if self.is_full():
                return
        raise AssertionError("the disk is full, but the database still writes")

    def is_full(self) -> bool:
        return refuses(self._engine)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def _take_the_rest(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for piece in (1 << 20, 4096):
                try:
                    while file.write(bytes(piece)) == piece:
                        pass
                except OSError:  # no space left
                    continue


class FileLimits(Disk):
    """A substitute for a disk: processes cannot make files longer than SQLite's log is. SQLite reports EFBIG as an I/O error."""

    how = "a limit to the length of files (RLIMIT_FSIZE) for lack of the right to mount: SQLITE_IOERR, not SQLITE_FULL"

    def __init__(self, engine: Engine, directory: Path) -> None:
        """`directory`: contains files to which the processes must still be able to write."""
        self._engine, self._directory = engine, directory
        self.pids: Callable[[], Iterable[int]] = list
        """A function that returns the pids of the processes that write to the database. The campaign sets it."""
        self._limited: list[int] = []
        _prepare(engine)

    def fill(self) -> None:
        written = (path.stat().st_size for path in self._directory.iterdir() if not path.name.startswith("outboxq.db"))
        limit = max(written) + (2 << 20)
        with self._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_autocheckpoint = 0")  # so that SQLite does not restart the log
            connection.commit()
            for _ in range(limit // _STEP + 1):
                connection.execute(_INSERT, {"filler": os.urandom(_STEP).hex()})
            self._limit(self.pids(), limit)
            connection.commit()
            connection.invalidate()

    def is_full(self) -> bool:
        return bool(self._limited)

    def free(self) -> None:
        self._limit(self._limited, resource.RLIM_INFINITY)
        self._limited = []

    def _limit(self, pids: Iterable[int], length: int) -> None:
        self._limited = list(pids)
        for pid in self._limited:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (length, resource.RLIM_INFINITY))


class Refusals(Disk):
    """A substitute for a disk: a trigger raises the error of a full disk for each event written to PostgreSQL."""

    how = "a trigger that raises SQLSTATE 53100, for lack of the right to mount"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        _prepare(engine)
        self._run(
            "CREATE FUNCTION disk_is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$"
        )

    def fill(self) -> None:
        for table in ("ballast", "execution_events"):
            self._run(f"CREATE TRIGGER full_disk BEFORE INSERT ON {table} EXECUTE FUNCTION disk_is_full()")

    def is_full(self) -> bool:
        return refuses(self._engine)

    def free(self) -> None:
        for table in ("ballast", "execution_events"):
            self._run(f"DROP TRIGGER IF EXISTS full_disk ON {table}")

    def _run(self, statement: str) -> None:
        with self._engine.begin() as connection:
            connection.exec_driver_sql(statement)


def refuses(engine: Engine) -> bool:
    """Return whether the database has no room for another row."""
    try:
        with engine.begin() as connection:
            connection.execute(_INSERT, {"filler": os.urandom(_STEP).hex()})  # which cannot be compressed
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == "53100" or "database or disk is full" in str(error.orig):
            return True
        raise
    return False


def _prepare(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE ballast (filler TEXT)")
