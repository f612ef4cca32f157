"""Find the transaction that a caller passes to `using()`, with any supported library."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError

from ..context import TaskContext
from ..errors import InvalidTarget
from .dialects import Dialect, dialect_for
from .drivers import advice, is_async_psycopg, is_psycopg
from .tables import task_executions
from .target import Rows, SqlalchemyTarget, Target, begins_by_itself, check_open

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_OUR_WRITE = task_executions.update()


def target_of(using: object, *, schema: str | None = None, dialect: Dialect | None = None) -> Target:
    """Return the target for the object that a caller passed to `using()`.

    The object may be a SQLAlchemy Session, scoped_session or Connection, a psycopg or sqlite3 connection, or a Django
    connection or alias. `dialect` is this schema's dialect for the database that is probably in use. Raises
    InvalidTarget, which says what to pass instead, for anything without an open transaction.
    """
    target = _wrap(using, schema, dialect)
    target.check()
    return target


class DriverTarget(Target):
    """A psycopg or sqlite3 connection."""

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.connection = connection

    def execute(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        try:
            return self.dialect.fetch(self.connection, sql, parameters)
        except self.dialect.driver_error as error:
            self.dialect.hide_rows(error)
            raise

    def check(self) -> None:
        if not isinstance(self.connection, sqlite3.Connection):
            check_open(self.dialect, self.connection, "this psycopg connection is in autocommit mode")
        elif not self.connection.in_transaction:
            if not begins_by_itself(self.connection):
                raise InvalidTarget(
                    "no transaction is open on this sqlite3 connection, which does not begin one automatically (isolation_level=None); "
                    'execute("BEGIN IMMEDIATE") first'
                )
            self.execute("BEGIN IMMEDIATE", {})

    def _raw(self) -> object:
        return self.connection


class DjangoTarget(Target):
    """A Django connection, used through its own cursor, because SQLAlchemy on Django's raw connection would roll back
    the user's work.
    """

    def __init__(self, connection: Any, schema: str | None) -> None:
        super().__init__(dialect_for(connection.vendor, schema=schema, paramstyle="pyformat"))
        self.connection = connection

    def execute(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql, parameters or None)
                return list(cursor.fetchall()) if cursor.description else []
        except Exception as error:
            self.dialect.hide_rows(error)
            raise

    def check(self) -> None:
        if not self.connection.in_atomic_block and self.connection.get_autocommit():
            raise InvalidTarget(
                f"no transaction is open on the Django connection {self.connection.alias!r}, so the task could not be "
                "rolled back with your rows; enqueue inside transaction.atomic()"
            )
        raw = self.connection.connection
        if isinstance(raw, sqlite3.Connection) and not raw.in_transaction:
            # After set_autocommit(False) the driver would begin too, but not before a savepoint.
            self.execute("BEGIN IMMEDIATE", {})

    def forbid_commit(self, reason: Callable[[], InvalidTarget | None]) -> None:
        """Make Django roll back the innermost `atomic()` block that has a savepoint when that block ends. Django itself
        rolls back that block after an error in an `atomic()` block without a savepoint.
        """
        if self.connection.in_atomic_block and (error := reason()) is not None:
            self.connection.rollback_exc = error  # the cause of the error that Django raises at the next query
            self.connection.set_rollback(True)

    def is_aborted(self) -> bool:
        # Django itself refuses statements in a block whose error it has seen.
        return self.connection.needs_rollback or self._raw() is None or super().is_aborted()

    def _raw(self) -> object:
        return self.connection.connection


def _wrap(using: Any, schema: str | None, dialect: Dialect | None) -> Target:
    if isinstance(using, TaskContext):
        using = using.target
    if isinstance(using, Connection):
        return SqlalchemyTarget(using, schema, dialect)
    if _is_a("session", "Session", using):
        return SqlalchemyTarget(_connection_of(using), schema, dialect)
    if _is_a("scoping", "scoped_session", using):
        return SqlalchemyTarget(_connection_of(using()), schema, dialect)
    if is_psycopg(using):
        return DriverTarget(using, dialect_for("postgresql", schema=schema))
    if isinstance(using, sqlite3.Connection):
        return DriverTarget(using, dialect_for("sqlite", schema=schema))
    if isinstance(using, str):
        return DjangoTarget(_django_connection(using), schema)
    if hasattr(using, "in_atomic_block") and hasattr(using, "settings_dict"):
        return DjangoTarget(using, schema)
    raise InvalidTarget(refusal(using))


def _is_a(module: str, name: str, using: object) -> bool:
    """Return whether `using` is an instance of the class `name` in this module of `sqlalchemy.orm`. An instance cannot
    exist unless the module is imported.

    So a process that does not use sessions avoids the import, which takes a quarter as long as importing SQLAlchemy.
    """
    kind = getattr(sys.modules.get(f"sqlalchemy.orm.{module}"), name, None)
    return kind is not None and isinstance(using, kind)


def _connection_of(session: Session) -> Connection:
    try:
        # Request the connection for a write to our table, because a Session may have one engine for each table and no
        # default engine, and another engine for reads.
        return session.connection(bind_arguments={"clause": _OUR_WRITE})
    except UnboundExecutionError:
        raise InvalidTarget(
            "this Session has no engine for outboxq's tables; give it a default bind=, or bind those tables too"
        ) from None


def _django_connection(alias: str) -> Any:
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections
        from django.utils.connection import ConnectionDoesNotExist
    except ImportError:
        raise InvalidTarget(f"{alias!r} looks like a Django database alias, but Django is not installed") from None
    try:
        return connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise InvalidTarget(f"Django has no database {alias!r}; DATABASES in the settings has {known}") from None
    except ImproperlyConfigured:
        raise InvalidTarget(
            f"{alias!r} looks like a Django database alias, but this process has no Django settings; pass a Session or a connection"
        ) from None


def refusal(using: object) -> str:
    """Return the message for an object that provides no transaction. The message says what to pass instead."""
    kind = type(using)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(using, type):
        return f"{using.__name__} is a class and has no transaction; pass the instance whose transaction the task belongs to"
    if any(base.__module__ == "sqlalchemy.orm.session" and base.__name__ == "sessionmaker" for base in kind.__mro__):
        return "a sessionmaker has no transaction; pass the Session that it made, whose transaction the task belongs to"
    if isinstance(using, Engine):
        return "an Engine has no transaction; pass the Session or Connection whose transaction the task belongs to"
    if any(base.__module__ == "outboxq.outbox" for base in kind.__mro__):
        return "this task belongs to another Outbox; pass that Outbox, or a Session or Connection to its database"
    if any(base.__module__.startswith("sqlalchemy.ext.asyncio") for base in kind.__mro__):
        if (driver := _driver_of(using)) in {"aiosqlite", "asyncpg"}:
            return advice(driver)
        if kind.__name__ == "AsyncEngine":
            return (
                "an AsyncEngine has no transaction; write inside an AsyncSession on it: await session.run_sync(lambda s: "
                "task.using(s).enqueue(…))"
            )
        given = "connection" if any(base.__name__ == "AsyncConnection" for base in kind.__mro__) else "session"
        return (
            f"outboxq is synchronous; inside an {kind.__name__}, write: await {given}.run_sync(lambda s: task.using(s).enqueue(…)); pass "
            "using=s to emit, batch and inbox.accept, and write chain(…).using(s).enqueue() for a chain"
        )
    if is_async_psycopg(using):
        return "outboxq is synchronous; enqueue on a psycopg.Connection"
    return (
        f"cannot enqueue on {name}; pass a SQLAlchemy Session or Connection, a psycopg or sqlite3 connection, a Django "
        "connection or alias, or the context of a transactional task"
    )


def _driver_of(using: object) -> str | None:
    """Return the driver of an asynchronous engine, connection or session; None if it is not known."""
    if hasattr(using, "registry"):  # a scoped session would create a session
        return None
    engine = getattr(using, "engine", None) or getattr(using, "bind", None) or using
    return getattr(getattr(engine, "dialect", None), "driver", None)
