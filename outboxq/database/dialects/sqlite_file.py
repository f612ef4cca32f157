"""Manage the file of a SQLite database: create it so that only its owner can access it, and detect its replacement.

A process keeps using a file that it has opened, even if the name later refers to another file. Writes to a file that
has been deleted or replaced by a restored copy are lost when the last process closes it.

SQLite finds the log next to the file (`-wal`, with its index `-shm`) by name only, and the log does not record which
file it belongs to. A process that opens a new file next to the old file's log writes the old pages into the new file,
and so destroys it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from sqlalchemy import Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, DisconnectionError

from ...errors import FileUnusable

Identity = tuple[int, int]
"""Device and inode of a file."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file as it was when a connection opened it."""

    path: str
    identity: Identity
    beside: tuple[Identity | None, ...] = ()
    """The file's log and the log's index."""

    @property
    def is_there(self) -> bool:
        """Return True if the file's name still refers to this file. The check takes one directory lookup, a microsecond
        or two.

        Raises FileUnusable if the name no longer refers to a file.
        """
        if (found := _identity(self.path)) is None:
            raise deleted(self.path)
        return found == self.identity

    @property
    def has_left_its_log(self) -> bool:
        """Return True if the file's log, or the log's index, still has the name under which SQLite would look for a new
        file's log or index.
        """
        return any(
            mine is not None and mine == found for mine, found in zip(self.beside, _beside(self.path), strict=False)
        )

    def check(self) -> None:
        """Raise FileUnusable unless the file's name still refers to this file."""
        if self.is_there:
            return
        if self.has_left_its_log:
            raise replaced(self.path)
        raise FileUnusable(
            f"the SQLite file {self.path} was replaced while it was open; restart this process; before restoring a copy, stop every "
            "process that uses the file"
        )


def replaced(path: str) -> FileUnusable:
    """Return the error for a file that was placed next to another file's log."""
    return FileUnusable(
        f"the SQLite file {path} was replaced while it was open, and the old file's log, which is still next to the new "
        f"file, will destroy the new file when it is opened; stop every process that uses the file, delete {path}-wal and {path}-shm, put the "
        "new file in place again, and start the processes",
        may_start_again=False,
    )


def deleted(path: str) -> FileUnusable:
    return FileUnusable(
        f"the SQLite file {path} was deleted while it was open; restore it, or create a new one (outboxq upgrade), then "
        "restart this process"
    )


def open_file(raw: sqlite3.Connection) -> OpenFile | None:
    """Return the file that a connection has open; None if its database is in memory, or if its file no longer
    exists.
    """
    file = _main_file(raw)
    identity = None if file is None else _identity(file)
    return None if file is None or identity is None else OpenFile(file, identity, _beside(file))


def file_of(raw: sqlite3.Connection) -> str | None:
    """Return the real path of the file that a connection has open; None if its database is in memory."""
    file = _main_file(raw)
    return None if file is None else real_path(file)


def _main_file(raw: sqlite3.Connection) -> str | None:
    cursor = raw.cursor()
    cursor.row_factory = None
    text_factory, raw.text_factory = raw.text_factory, os.fsdecode
    try:
        return next((file for _, name, file in cursor.execute("PRAGMA database_list") if name == "main" and file), None)
    finally:
        raw.text_factory = text_factory
        cursor.close()


def real_path(file: str) -> str:
    """Return the path by which connections to one file are recognized as connections to the same database."""
    # A relative path depends on the process's current directory, so it is made absolute outside the cache.
    return _resolved(file if file.startswith("/") else str(Path(file).absolute()))


@lru_cache(maxsize=64)
def _resolved(file: str) -> str:
    return str(Path(file).resolve())


def follow(engine: Engine) -> None:
    """Make an engine drop connections to a file that was replaced, so that the next transaction uses the new file.

    The file is checked when a connection is taken from the pool. Connections raise FileUnusable if the file was deleted
    (a new file must not be created), or if the old file's log is next to the new file. Disposing of the engine makes
    it forget the file.
    """
    last: dict[str, OpenFile] = {}
    """Maps each path to the file that this engine last opened there. A file can vanish while no connection is open, so
    checking open connections is not enough.
    """

    def connecting(_dialect: Any, _record: Any, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        path = _path(str(arguments[0]), is_uri=bool(options.get("uri")))
        file = None if path is None else last.get(os.path.realpath(path))
        if file is not None and not file.is_there and file.has_left_its_log:
            raise replaced(file.path)

    def connected(connection: sqlite3.Connection, record: Any) -> None:
        record.info[_FILE] = file = open_file(connection)
        if file is not None:
            last[os.path.realpath(file.path)] = file

    def taken(_connection: sqlite3.Connection, record: Any, _proxy: Any) -> None:
        file = record.info.get(_FILE)
        if file is not None and not file.is_there:
            if file.has_left_its_log:
                raise replaced(file.path)
            raise DisconnectionError("the SQLite file was replaced")  # the pool then makes another connection

    event.listen(engine, "do_connect", connecting)
    event.listen(engine, "connect", connected)
    event.listen(engine, "checkout", taken)
    event.listen(engine, "engine_disposed", lambda _engine: last.clear())


def keep_private(engine: Engine) -> None:
    """Make an engine create a new file that only its owner can read and write (0600); SQLite gives -wal and -shm the
    same mode.

    An existing file keeps its mode. A file that existed when the engine first connected is never created again.
    """
    known: set[str] = set()

    def connecting(_dialect: Any, _record: Any, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        if (path := _new_path(str(arguments[0]), is_uri=bool(options.get("uri")))) is None:
            return
        target = os.path.realpath(path)
        if Path(target).exists():
            known.add(target)
            return
        if target in known:
            raise deleted(target)
        if not (parent := Path(target).parent).is_dir():
            # An error like SQLite's own, but with the name of the file.
            error = sqlite3.OperationalError(f"the directory {parent} of the SQLite file {target} does not exist")
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN"
            raise error
        with suppress(OSError):  # SQLite's own error is better
            _make(target)
            known.add(target)

    event.listen(engine, "do_connect", connecting)


def is_in_memory(url: URL) -> bool:
    """Return True if a URL refers to a database in memory, including one shared by several connections of this
    process.
    """
    name, said = _said(url.database or ":memory:")
    said.update({key: value if isinstance(value, str) else "".join(value) for key, value in url.query.items()})
    return name in {"", ":memory:"} or said.get("mode") == "memory" or said.get("vfs") == "memdb"


def path_of(url: URL) -> str | None:
    """Return the absolute path of the file that a URL refers to; None if its database is in memory."""
    return None if is_in_memory(url) else str(Path(_said(url.database or "")[0]).absolute())


def missing(url: URL) -> str | None:
    """Return the absolute path of the file that a connection would create; None if that file exists, or if the
    connection would not create a file.

    SQLite does not create a file in a directory that does not exist.
    """
    if is_in_memory(url):
        return None
    arguments, options = url.get_dialect()().create_connect_args(url)
    path = _new_path(str(arguments[0]), is_uri=bool(options.get("uri")))
    if path is None or Path(path).exists() or not Path(path).parent.is_dir():
        return None
    return path


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """The log next to a file (`-wal`)."""

    size: int
    """Size in bytes. A checkpoint that no reader blocks lets SQLite restart the log, and then shorten it to
    `LOG_KEPT`.
    """
    readers: tuple[int, ...] = ()
    """The other processes that are currently reading the database, as far as the operating system lists them."""


LOG_KEPT = 64 * 2**20
"""The size, in bytes, to which SQLite shortens a log that it restarts (journal_size_limit)."""


def log_of(url: URL) -> Log | None:
    """Return the log of the file that a URL refers to; None if it does not have one."""
    if (path := path_of(url)) is None:
        return None
    try:
        return Log(size=Path(f"{path}-wal").stat().st_size, readers=_readers(Path(f"{path}-shm").stat()))
    except OSError:
        return None


def _readers(index: os.stat_result) -> tuple[int, ...]:
    """Return the processes that hold a reader's lock on the log's index, as Linux lists them."""
    try:
        listed = Path("/proc/locks").read_text().splitlines()
    except OSError:  # other systems do not have it
        return ()
    place = f"{os.major(index.st_dev):02x}:{os.minor(index.st_dev):02x}:{index.st_ino}"
    found = set()
    for line in listed:  # such as "7: POSIX  ADVISORY  READ 4242 08:01:131 124 124"
        words = line.split()
        if len(words) == 8 and words[3] == "READ" and words[5] == place and int(words[6]) in _READ_LOCKS:
            found.add(int(words[4]))
    return tuple(sorted(found - {os.getpid()}))


_READ_LOCKS = range(123, 128)
"""The bytes of the index that readers lock; see "WAL-Index Locks" in https://www.sqlite.org/walformat.html."""


def code(error: BaseException) -> int | None:
    """Return SQLite's primary result code; None if the error is not SQLite's."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    number = getattr(cause, "sqlite_errorcode", None)
    return number & 0xFF if isinstance(cause, sqlite3.Error) and number is not None else None


def is_undefined(error: BaseException) -> bool:
    """Return True if SQLite does not recognize a table or a column that a statement names. SQLite's error code does not
    identify this case.
    """
    said = str(error.orig if isinstance(error, DBAPIError) else error)
    return code(error) == sqlite3.SQLITE_ERROR and said.startswith(_UNDEFINED)


def is_damaged(error: BaseException) -> bool:
    """Return True if SQLite reports that its file is damaged or is not a database."""
    return code(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def damaged(error: BaseException) -> str:
    """Return the message for a damaged file."""
    said = error.orig if isinstance(error, DBAPIError) else error
    return (
        f"the SQLite file is damaged, or is not a database ({said}); check the URL; if it is correct, stop every process that uses the file, and "
        "restore a copy"
    )


_UNDEFINED = ("no such table: ", "no such column: ")

NO_TEXT = "Could not decode to UTF-8"
"""The beginning of the driver's error for bytes that are not text; the error has no code."""
_FILE = "outboxq_file"
"""The key under which a connection's `info` holds its `OpenFile`."""


def _new_path(name: str, *, is_uri: bool) -> str | None:
    """Return the absolute path of the file that SQLite creates if the file does not exist; None if SQLite does not
    create a file.
    """
    said = _said(name)[1] if is_uri else {}
    return _path(name, is_uri=is_uri) if said.get("mode", "rwc") == "rwc" else None


def _path(name: str, *, is_uri: bool) -> str | None:
    """Return the absolute path of the file that SQLite opens; None if it does not open a file, or if the file is not on
    this machine.
    """
    name, said = _said(name) if is_uri else (name, {})
    return None if name in {"", ":memory:"} or "vfs" in said else str(Path(name).absolute())


def _said(name: str) -> tuple[str, dict[str, str]]:
    """Return the path and the parameters of an address in SQLite's own form (`file:…`). Any other string is returned
    without parameters.
    """
    if not name.startswith("file:"):
        return name, {}
    parts = urlsplit(name)
    return unquote(parts.path), dict(parse_qsl(parts.query))


def _make(path: str) -> None:
    # The file is not opened, because closing it would release all locks that this process has on it, including those of
    # other connections.
    try:
        os.mknod(path, stat.S_IFREG | 0o600)
    except (AttributeError, PermissionError):  # Windows does not have it, and on macOS only root may use it
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _beside(path: str) -> tuple[Identity | None, ...]:
    return _identity(f"{path}-wal"), _identity(f"{path}-shm")


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - whenever a connection is taken: a Path would cost as much again
    except OSError:
        return None
    return found.st_dev, found.st_ino
