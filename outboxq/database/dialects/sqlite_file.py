"""The file behind an SQLite connection: made for its owner alone, and told apart from another that takes its place.

Whoever has a file open keeps it, whatever its name leads to by then: what is written to a file that was deleted, or that a
restored copy has replaced, is gone with the last process that has it open.

The log beside it (`-wal`, with its index `-shm`) is found by name alone, and does not say which file it belongs to. Who opens
a new file beside the log of the old one writes the old pages into it, and destroys it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from sqlalchemy import Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, DisconnectionError

from ...errors import FileUnusable

Identity = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file as it was when a connection opened it."""

    path: str
    identity: Identity
    beside: tuple[Identity | None, ...] = ()
    """Its log, and the index of that."""

    @property
    def is_there(self) -> bool:
        """Return whether its name still leads to it. It costs one look at the directory, a microsecond or two.

        Raises FileUnusable where the name leads nowhere.
        """
        if (found := _identity(self.path)) is None:
            raise deleted(self.path)
        return found == self.identity

    @property
    def has_left_its_log(self) -> bool:
        """Return whether its own log, or the index of that, still lies where the log of a file in its place is looked for."""
        return any(
            mine is not None and mine == found for mine, found in zip(self.beside, _beside(self.path), strict=False)
        )

    def check(self) -> None:
        """Raise FileUnusable unless its name still leads to it."""
        if self.is_there:
            return
        if self.has_left_its_log:
            raise replaced(self.path)
        raise FileUnusable(
            f"the SQLite file {self.path} was replaced while it was open; stop every process that uses it before a restore; "
            "start this one again"
        )


def replaced(path: str) -> FileUnusable:
    """Return the error for a file that was put beside the log of another."""
    return FileUnusable(
        f"the SQLite file {path} was replaced while it was open, and the old file's log lies beside the new one, which it "
        f"destroys when that is opened; stop every process that uses it, delete {path}-wal and {path}-shm, put the copy in "
        "place again, and start",
        may_start_again=False,
    )


def deleted(path: str) -> FileUnusable:
    return FileUnusable(
        f"the SQLite file {path} was deleted while it was open; restore it, or make a new one (outboxq upgrade), and start "
        "this process again"
    )


def open_file(raw: sqlite3.Connection) -> OpenFile | None:
    """Return the file that a connection has open; None: its database is in memory, or its file is gone already."""
    cursor = raw.cursor()
    cursor.row_factory = None
    listed = [str(file) for _, name, file in cursor.execute("PRAGMA database_list") if name == "main" and file]
    cursor.close()
    if not listed or (identity := _identity(listed[0])) is None:
        return None
    return OpenFile(listed[0], identity, _beside(listed[0]))


def follow(engine: Engine) -> None:
    """Have an engine give up connections to a file that was replaced: the next transaction is in the file that is there.

    It is asked when a connection is taken from the pool. Connections raise FileUnusable instead where the file was deleted, of
    which none is made anew, or where it was replaced and the old one's log lies beside the new file. The engine forgets what it
    had open when it is disposed of.
    """
    last: dict[str, OpenFile] = {}
    """The file that this engine opened last, by its path. A file can go between two connections, so they alone do not remember it."""

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
    """Have an engine make a new file readable and writable for its owner alone (0600); SQLite makes -wal and -shm alike.

    A file that is there keeps its mode. One that was there when the engine first connected is never made anew.
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
        if not Path(target).parent.is_dir():
            raise _no_directory(target)
        with suppress(OSError):  # SQLite says it better
            _make(target)
            known.add(target)

    event.listen(engine, "do_connect", connecting)


def is_in_memory(url: URL) -> bool:
    """Return whether a URL leads to a database in memory, shared with other connections of this process or not."""
    name, said = _said(url.database or ":memory:")
    said.update({key: value if isinstance(value, str) else "".join(value) for key, value in url.query.items()})
    return name in {"", ":memory:"} or said.get("mode") == "memory" or said.get("vfs") == "memdb"


def path_of(url: URL) -> str | None:
    """Return the absolute path of the file that a URL leads to; None: its database is in memory."""
    return None if is_in_memory(url) else str(Path(_said(url.database or "")[0]).absolute())


def missing(url: URL) -> str | None:
    """Return the absolute path of the file that a connection would make; None: it is there, or none would be made.

    Where its directory is missing too, SQLite makes nothing.
    """
    if is_in_memory(url):
        return None
    arguments, options = url.get_dialect()().create_connect_args(url)
    path = _new_path(str(arguments[0]), is_uri=bool(options.get("uri")))
    if path is None or Path(path).exists() or not Path(path).parent.is_dir():
        return None
    return path


def code(error: BaseException) -> int | None:
    """Return SQLite's primary result code; None: it is no error of SQLite's."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    number = getattr(cause, "sqlite_errorcode", None)
    return number & 0xFF if isinstance(cause, sqlite3.Error) and number is not None else None


def is_undefined(error: BaseException) -> bool:
    """Return whether SQLite does not know a table or a column that a statement names; its code for that says no more."""
    said = str(error.orig if isinstance(error, DBAPIError) else error)
    return code(error) == sqlite3.SQLITE_ERROR and said.startswith(_UNDEFINED)


def is_damaged(error: BaseException) -> bool:
    """Return whether SQLite says that its file is damaged, or is no database."""
    return code(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def damaged(error: BaseException) -> str:
    """Return the sentence for such an error."""
    said = error.orig if isinstance(error, DBAPIError) else error
    return (
        f"the SQLite file is damaged, or is no database ({said}); check the address; stop every process that uses the file, and "
        "restore a copy"
    )


_UNDEFINED = ("no such table: ", "no such column: ")

NO_TEXT = "Could not decode to UTF-8"
"""So begins the driver's error about a text that is none; it has no code."""
_FILE = "outboxq_file"
"""In the `info` of a connection: its `OpenFile`."""


def _new_path(name: str, *, is_uri: bool) -> str | None:
    """Return the absolute path of the file that SQLite makes if it is not there; None: it makes none."""
    said = _said(name)[1] if is_uri else {}
    return _path(name, is_uri=is_uri) if said.get("mode", "rwc") == "rwc" else None


def _path(name: str, *, is_uri: bool) -> str | None:
    """Return the absolute path of the file that SQLite opens; None: it opens none, or none of this machine's own."""
    name, said = _said(name) if is_uri else (name, {})
    return None if name in {"", ":memory:"} or "vfs" in said else str(Path(name).absolute())


def _said(name: str) -> tuple[str, dict[str, str]]:
    """Return the path and the parameters of SQLite's own form of an address, `file:…`; of anything else, itself and none."""
    if not name.startswith("file:"):
        return name, {}
    parts = urlsplit(name)
    return unquote(parts.path), dict(parse_qsl(parts.query))


def _no_directory(path: str) -> sqlite3.OperationalError:
    """Return SQLite's own error, which does not say which file it means."""
    error = sqlite3.OperationalError(f"there is no directory {Path(path).parent} for the SQLite file {path}")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN"
    return error


def _make(path: str) -> None:
    # Not opened: to close a file ends every lock that this process has on it, those of other connections too.
    try:
        os.mknod(path, stat.S_IFREG | 0o600)
    except (AttributeError, PermissionError):  # Windows has none, and on macOS only root may
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _beside(path: str) -> tuple[Identity | None, ...]:
    return _identity(f"{path}-wal"), _identity(f"{path}-shm")


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - whenever a connection is taken: a Path would cost as much again
    except OSError:
        return None
    return found.st_dev, found.st_ino
