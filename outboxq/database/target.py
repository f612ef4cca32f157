"""Run compiled statements in an open transaction, outboxq's own or the caller's, on its connection.

A caller's target never commits or rolls back the transaction, and never closes the connection. It does not catch
database errors, because otherwise the transaction's owner would not know that the transaction has been aborted.
"""

from __future__ import annotations

import logging
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine, TwoPhaseTransaction
from sqlalchemy import Dialect as SqlalchemyDialect
from sqlalchemy.engine import RootTransaction
from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import memoized_property

from ..errors import ConfigurationError, InvalidTarget
from .dialects import Batch, Begin, Dialect, Execute, Prepared, Row, dialect_for
from .dialects.sqlite_file import file_of
from .drivers import advice, is_async_psycopg, is_psycopg
from .engine_events import listen
from .grammar import Builder

log = logging.getLogger("outboxq.store")

Rows = list[tuple[Any, ...]]

_DATABASE = "outboxq.database"
_SAVEPOINT = "SAVEPOINT outboxq"
_NO_SAVEPOINT = nullcontext()
_NO_VALUES: Mapping[str, Any] = MappingProxyType({})


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

    def database(self) -> str | None:
        """Return the database's name or file, which distinguishes it from other databases; None if it is unknown.

        The connection is asked, because a URL or a setting may contain a service in place of a name.
        """
        raw = self._raw()
        if isinstance(raw, sqlite3.Connection):
            return file_of(raw)
        return raw.info.dbname if is_psycopg(raw) or is_async_psycopg(raw) else None

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
            check_open(self.dialect, raw, "this SQLAlchemy connection is in AUTOCOMMIT mode")
            self._check_two_phase()
        else:
            raise InvalidTarget(advice(self.connection.dialect.driver))

    def has_real_savepoints(self) -> bool:
        """Return False for a SQLite connection whose driver would commit at the end of the first savepoint."""
        raw = self._raw()
        return not (isinstance(raw, sqlite3.Connection) and begins_by_itself(raw))

    def _check_sqlite(self, raw: sqlite3.Connection) -> None:
        if not self.connection.in_transaction():
            self.execute("SELECT 1", {})  # begins a transaction, as SQLAlchemy would with the caller's first statement
        if begins_by_itself(raw):
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
            known[_DATABASE] = super().database()
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


class OwnTarget(SqlalchemyTarget):
    """A transaction of our own: a context manager that takes a connection from the pool, commits after the block, and
    returns the connection.

    Creating SQLAlchemy's Connection takes as much time as all the other layers between an enqueue and the driver. So a
    Connection is created only if the engine echoes, has listeners or needs options, or if a transactional task or the
    handling of an error needs one. Once it has been created, the Connection ends the transaction.
    """

    own = True

    _is_bare = False
    """True as long as the pool's connection is used without a Connection."""
    _transaction: RootTransaction
    """The Connection's transaction, once the Connection has been created."""

    def __init__(self, engine: Engine, dialect: Dialect, options: Mapping[str, Any]) -> None:
        """`options` are the execution options that the engine's connections need."""
        self._engine, self._options = engine, options
        if options or engine.echo or _has_listeners(engine):
            super().__init__(self.connection, None, dialect)
            return
        Target.__init__(self, dialect)
        try:
            self._pooled: PoolProxiedConnection = engine.raw_connection()
        except engine.dialect.loaded_dbapi.Error as error:
            raise self._wrapped(error, None) from error
        self._is_bare = True
        self._driver: Any = self._pooled.dbapi_connection
        self._takes_the_long_way = not isinstance(self._driver, dialect.driver_connection)
        if not self._takes_the_long_way:
            self._known = self._driver, self._pooled.info

    # Not functools.cached_property: until Python 3.12, all instances share its lock, so a thread that waits for the pool
    # would keep the others from their connections.
    @memoized_property
    def connection(self) -> Connection:
        """The Connection, in which SQLAlchemy has begun a transaction."""
        connection = Connection(self._engine, self._pooled) if self._is_bare else self._engine.connect()
        try:
            if self._options:
                connection.execution_options(**self._options)
            self._transaction = connection.begin().__enter__()
        except BaseException:
            connection.close()
            raise
        self._is_bare, self._known = False, None
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if not self._is_bare:
                self._transaction.__exit__(kind, error, traceback)
            elif kind is None:
                self._commit()
        finally:
            self._pooled.close() if self._is_bare else self.connection.close()

    def begin(self, begin: Begin) -> None:
        """Begin the transaction in the database, unless the transaction is one statement that does not need a BEGIN."""
        if not self.dialect.begin[begin]:
            return
        raw, info = self._raw(), self._info()
        if getattr(raw, "in_transaction", False):  # an application's engine may have begun a transaction on its own
            self.execute("ROLLBACK", {})
        execute = self.connection.exec_driver_sql if self._takes_the_long_way else raw.execute
        for text in self.dialect.begin_statements(begin, info, self._engine.dialect.server_version_info):
            try:
                self.dialect.execute_begin(raw, text, execute)
            except self.dialect.driver_error as error:
                raise self._as_sqlalchemys(error, text, raw) from error

    def roll_back(self, error: BaseException) -> None:
        """Roll back the transaction because of `error`. SQLAlchemy does not roll back if it considers the connection to
        be autocommit.

        A signal's exception, such as KeyboardInterrupt, may be raised during a statement. A rollback would then fail,
        and its error, which looks like an outage, would replace the exception. In this case, the connection is closed
        instead.
        """
        is_midway = self.dialect.stops_midway and not isinstance(error, Exception)
        try:
            raw = self._raw()
            if not is_midway:
                raw.rollback()
            if is_midway or self.dialect.is_of_standby(error, raw):
                self.connection.invalidate(error)  # another host in the URL may be the primary now
        except Exception as failed:  # noqa: BLE001 - `error` is the one to raise
            log.debug("the rollback failed: %s", failed)
            # Otherwise, the pool would log an ERROR when it resets the lost connection, or SQLAlchemy's own rollback
            # would raise the loss in place of `error`.
            if isinstance(failed, self.dialect.driver_error):
                self._drop_if_lost(failed, self._raw())
        except BaseException as interruption:
            if self.dialect.stops_midway:
                self.connection.invalidate(interruption)
            raise

    def _commit(self) -> None:
        """Commit as SQLAlchemy's transaction does, unless a statement without a BEGIN has already been committed."""
        try:
            if self.dialect.is_open(self._driver):
                self._engine.dialect.do_commit(self._driver)
        except self.dialect.driver_error as error:
            raise self._as_sqlalchemys(error, None, self._raw()) from error
        except BaseException as error:
            if not isinstance(error, Exception):  # a signal has interrupted the COMMIT
                self.connection.invalidate(error)
            raise

    def _raw(self) -> Any:
        return self._driver if self._is_bare else super()._raw()

    def _info(self) -> MutableMapping[Any, Any]:
        return self._pooled.info if self._is_bare else super()._info()


def check_open(dialect: Dialect, raw: object, autocommit: str) -> None:
    if not dialect.is_open(raw):
        raise InvalidTarget(
            f"{autocommit} and no transaction is open on it, so the task could not be rolled back with your rows; begin one"
        )


def begins_by_itself(raw: sqlite3.Connection) -> bool:
    """Return True if the driver begins transactions (its default mode), and False if the user or SQLAlchemy's begin
    event does.
    """
    legacy = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", None)
    return raw.isolation_level is not None and getattr(raw, "autocommit", legacy) == legacy


def _has_listeners(engine: Engine) -> bool:
    """Return whether anything listens to the engine's connections, transactions, statements or errors."""
    # In SQLAlchemy 2.0.0, the class has the attribute only once something listens to it.
    if getattr(Connection, "_has_events", False) or _hears_errors(engine.dialect):
        return True
    if not getattr(engine, "_has_events", True):
        return False
    heard = engine.dispatch
    return bool(
        heard.engine_connect
        or heard.begin
        or heard.before_cursor_execute
        or heard.after_cursor_execute
        or heard.commit
        or heard.rollback
    )


def _hears_errors(dialect: SqlalchemyDialect) -> bool:
    """Return whether anything listens to the errors of an engine with this dialect.

    SQLAlchemy also checks `_has_events` before it calls listeners. Asking an object for the listeners to one of its
    events takes ten times as long as this check.
    """
    return bool(getattr(dialect, "_has_events", True) and dialect.dispatch.handle_error)


def _hears_statements(connection: Connection) -> bool:
    """Return whether anything listens to the connection's statements or to their errors."""
    if _hears_errors(connection.dialect):
        return True
    if not (getattr(connection, "_has_events", True) or getattr(connection.engine, "_has_events", True)):
        return False
    return bool(connection.dispatch.before_cursor_execute or connection.dispatch.after_cursor_execute)


def _dialect_of(connection: Connection, schema: str | None) -> Dialect:
    try:
        return dialect_for(connection.dialect.name, schema=schema)
    except ConfigurationError:
        # The driver must be changed before anything else.
        if connection.dialect.driver in {"psycopg2", "psycopg2cffi", "asyncpg", "pg8000"}:
            raise InvalidTarget(advice(connection.dialect.driver)) from None
        raise
