"""Write inside the transaction that a task belongs to, on that transaction's connection, with any supported library.

A target runs compiled statements on the caller's connection. A target never commits or rolls back the transaction, and
never closes the connection. It does not catch database errors, because otherwise the transaction's owner would not know
that the transaction has been aborted.
"""

from __future__ import annotations

import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, TwoPhaseTransaction
from sqlalchemy import Dialect as SqlalchemyDialect
from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError, UnboundExecutionError

from ..context import TaskContext
from ..errors import ConfigurationError, InvalidTarget
from .dialects import Batch, Dialect, Execute, Prepared, Row, dialect_for
from .dialects.sqlite_file import file_of
from .drivers import advice, is_async_psycopg, is_psycopg
from .engine_events import listen
from .grammar import Builder
from .tables import task_executions

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


Rows = list[tuple[Any, ...]]

_DATABASE = "outboxq.database"
_SAVEPOINT = "SAVEPOINT outboxq"
_NO_SAVEPOINT = nullcontext()
_NO_VALUES: Mapping[str, Any] = MappingProxyType({})
_OUR_WRITE = task_executions.update()


class Target(ABC):
    """An open transaction, ours or the caller's."""

    own = False
    """True if the transaction is ours. An error ends our transactions, so their statements do not need a savepoint."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    @abstractmethod
    def execute(self, sql: str, parameters: Mapping[str, Any]) -> Rows: ...

    @abstractmethod
    def check(self) -> None:
        """Raise InvalidTarget if the connection's next write would not be committed or rolled back together with the
        caller's rows.
        """

    @abstractmethod
    def database(self) -> str | None:
        """Return the database's name or file, which distinguishes it from other databases; None if it is unknown."""

    def run(self, builder: Builder, values: Mapping[str, Any] = _NO_VALUES, rows: Batch | None = None) -> list[Row]:
        """Run the statement that this builder builds. If the statement needs a batch, `rows` is the batch. The
        statement is compiled once per dialect.
        """
        return self._run(self.execute, builder, values, rows)

    def _run(self, execute: Execute, builder: Builder, values: Mapping[str, Any], rows: Batch | None) -> list[Row]:
        compiled = self.dialect.compiled[builder]
        if rows is None:
            return compiled.run(execute, values)
        assert not isinstance(compiled, Prepared)  # only a transition has a batch
        return compiled.run(execute, values, rows)

    def ensure_readable(self) -> None:
        """Raise UnsupportedDatabase or InvalidTarget if strings would not be read back as they were written. The check
        does not need a round trip.
        """
        self.dialect.ensure_readable(self._raw())

    def is_aborted(self) -> bool:
        """Return True if the transaction refuses further statements because of an error. The check does not need a
        round trip.
        """
        return self.dialect.is_aborted(self._raw())

    def explain(self, error: Exception) -> None:
        """Add a remedy to an error that `execute` raised, or raise a better error. Leave unknown errors unchanged."""
        self.dialect.explain(error, self._raw)

    def forbid_commit(self, reason: Callable[[], InvalidTarget | None]) -> None:
        """Refuse to commit this transaction for as long as `reason` returns an error. A psycopg or sqlite3 connection
        has no hook for this.
        """
        del reason

    @abstractmethod
    def _raw(self) -> object:
        """Return the driver's connection."""

    def atomic(self, *, savepoint: bool = False, then: str = "") -> AbstractContextManager[None]:
        """Run either all of the statements inside the block or none of them, without affecting the transaction around
        them.

        A transition that consists of one statement does not need a savepoint, and neither does our own transaction.
        `savepoint` creates a savepoint around several statements that may raise one of outboxq's errors. The commands
        in `then` are sent with the savepoint, in the same round trip.
        """
        needs_none = (self.own or self.dialect.one_statement) and not savepoint
        return _NO_SAVEPOINT if needs_none else self._savepoint(then)

    @contextmanager
    def _savepoint(self, then: str) -> Iterator[None]:
        if not then:
            self.execute(_SAVEPOINT, {})
        else:
            message = f"{_SAVEPOINT}; {then}"
            self.dialect.execute_begin(self._raw(), message, lambda text: self.execute(text, {}))
        try:
            yield
        except BaseException as error:
            try:
                self.execute("ROLLBACK TO outboxq", {})
                self.execute("RELEASE outboxq", {})
            except Exception as gone:
                # SQLite has rolled everything back, for example because the disk is full: raise that error, not this one.
                raise error from gone
            raise
        self.execute("RELEASE outboxq", {})


def target_of(using: object, *, schema: str | None = None, dialect: Dialect | None = None) -> Target:
    """Return the target for the object that a caller passed to `using()`.

    The object may be a SQLAlchemy Session, scoped_session or Connection, a psycopg or sqlite3 connection, or a Django
    connection or alias. `dialect` is this schema's dialect for the database that is probably in use. Raises
    InvalidTarget, which says what to pass instead, for anything without an open transaction.
    """
    target = _wrap(using, schema, dialect)
    target.check()
    return target


class SqlalchemyTarget(Target):
    """A SQLAlchemy Connection. A connection that outboxq opened does not need `check`.

    Statements go directly to the driver's cursor, because SQLAlchemy's layers take longer than claiming one task.
    SQLAlchemy still raises the errors, notices a lost connection, and begins the transaction. If the engine logs
    statements (`echo`), or if its cursor events have a listener, for example for tracing, outboxq's statements use
    SQLAlchemy's cursor.
    """

    _known: tuple[Any, MutableMapping[Any, Any]] | None = None
    """The result of `_known_driver` as long as an `OwnTarget` has no Connection; otherwise None."""

    def __init__(self, connection: Connection, schema: str | None, dialect: Dialect | None = None) -> None:
        """If `dialect` is None or belongs to another database, the dialect is determined from the connection."""
        super().__init__(
            dialect
            if dialect is not None and dialect.name == connection.dialect.name
            else _dialect_of(connection, schema)
        )
        self.connection = connection
        self._engine = connection.engine
        self._takes_the_long_way = bool(
            self._engine.echo
            or _hears_statements(connection)
            or not isinstance(self._raw(), self.dialect.driver_connection)
        )

    def run(self, builder: Builder, values: Mapping[str, Any] = _NO_VALUES, rows: Batch | None = None) -> list[Row]:
        if (known := self._known or self._known_driver()) is None:
            return self._run(self.execute, builder, values, rows)
        raw, info = known
        try:
            return self._run(partial(self.dialect.fetch, raw, info=info), builder, values, rows)
        except self.dialect.driver_error as error:
            raise self._as_sqlalchemys(error, vars(error)["outboxq_sql"], raw) from error

    def execute(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        if (known := self._known or self._known_driver()) is None:
            try:
                return self._take_the_long_way(sql, parameters)
            except DBAPIError as error:
                if self.dialect.is_unreadable(sql, error):
                    return self.dialect.fetch(self._raw(), sql, parameters)
                error.hide_parameters = True
                self.dialect.hide_rows(error)
                raise
        raw, _ = known
        try:
            return self.dialect.fetch(raw, sql, parameters)
        except self.dialect.driver_error as error:
            raise self._as_sqlalchemys(error, sql, raw) from error

    def _take_the_long_way(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        result = self.connection.exec_driver_sql(sql, dict(parameters))
        if not result.returns_rows:
            return []
        cursor: Any = result.cursor
        found = getattr(cursor, "pgresult", None)
        try:
            return result.all()  # type: ignore[return-value]  # a Row is a tuple
        except DataError:
            if found is None:
                raise
            return self.dialect.read_again(cursor, found)

    def check(self) -> None:
        raw = self._raw()
        if isinstance(raw, sqlite3.Connection):
            self._check_sqlite(raw)
        elif is_psycopg(raw) or is_async_psycopg(raw):  # the latter inside `AsyncSession.run_sync`
            _check_open(self.dialect, raw, "this SQLAlchemy connection is in AUTOCOMMIT mode")
            self._check_two_phase()
        else:
            raise InvalidTarget(advice(self.connection.dialect.driver))

    def has_real_savepoints(self) -> bool:
        """Return False for a SQLite connection whose driver would commit at the end of the first savepoint."""
        raw = self._raw()
        return not (isinstance(raw, sqlite3.Connection) and _begins_by_itself(raw))

    def _check_sqlite(self, raw: sqlite3.Connection) -> None:
        if not self.connection.in_transaction():
            self.execute("SELECT 1", {})  # begins a transaction, as SQLAlchemy would with the caller's first statement
        if _begins_by_itself(raw):
            # True for a transactional task's connection, whose transaction the store begins.
            ours = "outboxq_begins" in self.connection.get_execution_options()
            if self.connection.in_nested_transaction() and not ours:
                raise InvalidTarget(
                    "this SQLite engine's savepoints do not work: releasing the first one commits the transaction, so the "
                    "task could survive your rollback; call outboxq.configure_sqlite(engine) once, where you create the engine"
                )
            if not raw.in_transaction:
                # The driver would begin a transaction too, but only before an INSERT, and not before our savepoint.
                self.execute("BEGIN IMMEDIATE", {})
        elif not raw.in_transaction:
            raise InvalidTarget(
                "this SQLite connection is in AUTOCOMMIT mode and no transaction is open on it, so the task could not be "
                "rolled back with your rows; begin one, or pass a connection from an engine without AUTOCOMMIT"
            )

    def _check_two_phase(self) -> None:
        if isinstance(self.connection.get_transaction(), TwoPhaseTransaction):
            notify = self.execute("SELECT current_setting('outboxq.notify', true)", {})
            if notify[0][0] != "off":
                raise InvalidTarget(
                    "a two-phase transaction cannot be prepared once it has sent a notification; execute SET LOCAL "
                    "outboxq.notify = off in it before you enqueue (workers then find the task by polling)"
                )

    def forbid_commit(self, reason: Callable[[], InvalidTarget | None]) -> None:
        """Roll back and raise the error at commit, as the database does if a deferred constraint is violated."""
        raw: Any = self.connection.connection.dbapi_connection
        is_over = False

        def refuse(connection: Connection, *_: object) -> None:
            nonlocal is_over
            is_over = is_over or connection.connection.dbapi_connection is not raw
            if is_over:
                return
            error, is_over = reason(), True  # a rollback to a savepoint may have removed it
            if error is not None:
                raw.rollback()
                raise error

        listen(self.connection, "commit", refuse)
        listen(self.connection, "prepare_twophase", refuse)

    def database(self) -> str | None:
        known = self._info()  # SQLAlchemy drops it with the driver's connection
        if _DATABASE not in known:
            known[_DATABASE] = _database_of(self._raw())
        return known[_DATABASE]  # type: ignore[no-any-return]

    def _as_sqlalchemys(self, error: Exception, sql: str | None, raw: Any) -> BaseException:
        return self._wrapped(error, sql, lost=self._drop_if_lost(error, raw))

    def _drop_if_lost(self, error: Exception, raw: Any) -> bool:
        """Return whether the driver's error means that the connection is lost. If so, SQLAlchemy drops this connection
        and the other connections in the pool.
        """
        lost = self._engine.dialect.is_disconnect(error, raw, None)  # type: ignore[arg-type]
        if lost:
            with suppress(SQLAlchemyError):
                self.connection.exec_driver_sql("SELECT 1")
        return lost

    def _wrapped(self, error: Exception, sql: str | None, *, lost: bool = False) -> BaseException:
        self.dialect.hide_rows(error)
        return DBAPIError.instance(
            sql,
            None,
            error,
            self.dialect.driver_error,
            hide_parameters=True,
            connection_invalidated=lost,
            dialect=self._engine.dialect,
        )

    def _known_driver(self) -> tuple[Any, MutableMapping[Any, Any]] | None:
        """Return the driver's connection and SQLAlchemy's record of it; None if statements must not go to the driver,
        because something listens to them, or because SQLAlchemy has not begun the transaction yet.
        """
        if self._takes_the_long_way or not self.connection.in_transaction():
            return None
        return self._raw(), self._info()

    def _raw(self) -> Any:
        pooled = self.connection.connection
        raw = pooled.dbapi_connection  # the same object as the driver's, unless that is asynchronous
        return raw if isinstance(raw, self.dialect.driver_connection) else pooled.driver_connection

    def _info(self) -> MutableMapping[Any, Any]:
        """Return SQLAlchemy's record of the driver's connection."""
        return self.connection.info


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
            _check_open(self.dialect, self.connection, "this psycopg connection is in autocommit mode")
        elif not self.connection.in_transaction:
            if not _begins_by_itself(self.connection):
                raise InvalidTarget(
                    "no transaction is open on this sqlite3 connection, which does not begin one automatically (isolation_level=None); "
                    'execute("BEGIN IMMEDIATE") first'
                )
            self.execute("BEGIN IMMEDIATE", {})

    def database(self) -> str | None:
        return _database_of(self.connection)

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

    def database(self) -> str | None:
        # Ask the connection instead of the settings, which may contain a service in place of a name.
        return _database_of(self.connection.connection)

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


def _begins_by_itself(raw: sqlite3.Connection) -> bool:
    """Return True if the driver begins transactions (its default mode), and False if the user or SQLAlchemy's begin
    event does.
    """
    legacy = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", None)
    return raw.isolation_level is not None and getattr(raw, "autocommit", legacy) == legacy


def hears_errors(dialect: SqlalchemyDialect) -> bool:
    """Return whether anything listens to the errors of an engine with this dialect.

    SQLAlchemy also checks `_has_events` before it calls listeners. Asking an object for the listeners to one of its
    events takes ten times as long as this check.
    """
    return bool(getattr(dialect, "_has_events", True) and dialect.dispatch.handle_error)


def _hears_statements(connection: Connection) -> bool:
    """Return whether anything listens to the connection's statements or to their errors."""
    if hears_errors(connection.dialect):
        return True
    if not (getattr(connection, "_has_events", True) or getattr(connection.engine, "_has_events", True)):
        return False
    return bool(connection.dispatch.before_cursor_execute or connection.dispatch.after_cursor_execute)


def _dialect_of(connection: Connection, schema: str | None) -> Dialect:
    try:
        return dialect_for(connection.dialect.name, schema=schema)
    except ConfigurationError:
        if connection.dialect.driver in _OTHER_DRIVERS:  # the driver must be changed before anything else
            raise InvalidTarget(advice(connection.dialect.driver)) from None
        raise


_ASYNC_DRIVERS = frozenset({"aiosqlite", "asyncpg"})
_OTHER_DRIVERS = frozenset({"psycopg2", "psycopg2cffi", "asyncpg", "pg8000"})


def _check_open(dialect: Dialect, raw: object, autocommit: str) -> None:
    if not dialect.is_open(raw):
        raise InvalidTarget(
            f"{autocommit} and no transaction is open on it, so the task could not be rolled back with your rows; begin one"
        )


def _database_of(raw: object) -> str | None:
    if isinstance(raw, sqlite3.Connection):
        return file_of(raw)
    return raw.info.dbname if is_psycopg(raw) or is_async_psycopg(raw) else None


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
        if (driver := _driver_of(using)) in _ASYNC_DRIVERS:
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
