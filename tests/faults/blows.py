"""Faults of the database, or transactions in it, that last longer than a lease."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, Engine, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from tests import postgres
from tests.conftest import Database
from tests.faults.disk import Disk

LEASE = 2.0
"""The lease of every task in the campaign, in seconds."""


class Blow(ABC):
    """A fault that begins and ends. `end` may be called at any time, even if `begin` failed."""

    kind: str
    seconds = 1.5 * LEASE
    """The duration in seconds."""
    task_id: UUID | None = None
    """The only task that the fault affects, or None if it affects all tasks."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> None: ...


class Outage(Blow):
    """The PostgreSQL server is stopped, cleanly or as in a crash, and started again."""

    def __init__(self, database: Database, server: postgres.Cluster, mode: Literal["fast", "immediate"]) -> None:
        self.kind = "crash" if mode == "immediate" else "outage"
        self._database, self._server, self._mode = database, server, mode
        self._is_down = False

    def begin(self) -> None:
        # A crash may undo claims made just before it, which excuses repeated runs. Earlier claims must survive, so they are flushed.
        self._database.run("INSERT INTO ballast (filler) VALUES ('')")
        self._is_down = True
        self._server.halt(self._mode)

    def end(self) -> None:
        if self._is_down:
            self._server.launch()
            for engine in self._database.engines:
                engine.dispose()
        self._is_down = False


class LongWriter(Blow):
    """A transaction holds SQLite's only write lock, which is SQLite's form of an outage."""

    kind = "long writer"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None

    def begin(self) -> None:
        self._connection = _opened(self._engine, lambda _: None)

    def end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class StuckCall(Blow):
    """An administrator's transaction that changes one running task stays open, and is finally rolled back."""

    seconds = 3 * LEASE

    def __init__(self, database: Database, engine: Engine, task_id: UUID, call: str) -> None:
        self.kind = f"stuck {call}"
        self.task_id = task_id
        self._store, self._engine, self._call = database.store, engine, call
        self._connection: Connection | None = None

    def begin(self) -> None:
        self._connection = _opened(self._engine, self._say)

    def end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _say(self, connection: Connection) -> None:
        assert self.task_id is not None
        if self._call == "schedule_retry":
            later = datetime.now(UTC) + timedelta(hours=1)
            self._store.schedule_retry(self.task_id, later, 2, using=connection)
        else:
            self._store.cancel(self.task_id, force=self._call == "cancel by force", using=connection)


CALLS = ("cancel by force", "cancel", "schedule_retry")


class FullDisk(Blow):
    """The disk has no room for another row until the fault ends."""

    kind = "full disk"

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.stayed_full = True

    def begin(self) -> None:
        self._disk.fill()

    def end(self) -> None:
        try:
            with suppress(OperationalError):  # a frozen process holds SQLite's lock, so the query fails
                self.stayed_full = self._disk.is_full()
        finally:
            self._disk.free()


class OldSnapshot:
    """A transaction that has read once and stays open for the whole campaign.

    While it is open, PostgreSQL keeps the dead rows that it can see, and SQLite cannot restart its log.
    """

    def __init__(self, database: Database) -> None:
        self._engine = create_engine(database.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self._connection: Connection | None = None
        self.taken = 0
        """The number of snapshots taken: the first one, and one after each outage that ended a snapshot."""

    def hold(self) -> None:
        """Take the snapshot, or prove that it is still held."""
        if self._connection is not None:
            try:
                _read(self._connection)
            except OperationalError:
                self.release()
        if self._connection is None:
            self._connection = self._engine.connect()
            self._connection.exec_driver_sql(_BEGIN[self._engine.name])
            _read(self._connection)
            self.taken += 1

    def release(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


_BEGIN = {"postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ", "sqlite": "BEGIN"}


def _read(connection: Connection) -> None:
    connection.execute(text("SELECT count(*) FROM task_executions")).all()


def _opened(engine: Engine, say: Callable[[Connection], object]) -> Connection:
    """Return a connection with an open transaction in which `say` has run."""
    connection = engine.connect()
    try:
        connection.begin()
        say(connection)
    except BaseException:
        connection.close()
        raise
    return connection
