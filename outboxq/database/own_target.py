"""Write in a transaction of our own, on a connection from an engine's pool."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import RootTransaction
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import memoized_property

from .dialects import Begin, Dialect
from .target import SqlalchemyTarget, Target, hears_errors

log = logging.getLogger("outboxq.store")


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


def _has_listeners(engine: Engine) -> bool:
    """Return whether anything listens to the engine's connections, transactions, statements or errors."""
    # In SQLAlchemy 2.0.0, the class has the attribute only once something listens to it.
    if getattr(Connection, "_has_events", False) or hears_errors(engine.dialect):
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
