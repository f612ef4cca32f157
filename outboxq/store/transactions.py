"""Transactions of a store: their beginning, their end, and the next try."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import Any, Self, TypeVar

import tenacity
from sqlalchemy import Connection, Engine, Text
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..context import current
from ..database.dialects import Begin, Dialect, OpenFile, Row, channel, damaged, dialect_for, signal_behind
from ..database.engine import connection_options, reserve
from ..database.grammar import Builder
from ..database.privileges import Feature
from ..database.revisions import no_file
from ..database.target import SqlalchemyTarget, Target, target_of
from ..errors import ConfigurationError, FileUnusable, InvalidTarget
from . import schema
from .arguments import queue_names
from .failure_log import sentence
from .rights import Rights
from .schema import check_fit, explain_undefined, in_a_transaction_that_goes_on

T = TypeVar("T")
log = logging.getLogger("outboxq.store")

_IN_FULL = {Begin.SINGLE: Begin.WRITE, Begin.SINGLE_ASYNCHRONOUS: Begin.ASYNCHRONOUS, Begin.INSERT: Begin.WRITE}
"""The kind of transaction for the next try. It is a whole one, so that `done` and the work see the same."""

_GROWING = tenacity.wait_random_exponential(multiplier=0.02, max=0.5)
"""Seconds between tries: a database that is back is used at once."""
_SOON = tenacity.wait_random(0, 0.01)
_PATIENCE = 30.0
"""Seconds after which no transaction is run again."""
_patience: ContextVar[float | None] = ContextVar("patience", default=None)
"""The same in this thread for now; None: `_PATIENCE`."""
_READS = {Begin.READ, Begin.SNAPSHOT}


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Have this thread run no transaction again after so many seconds: a person waits for an answer, or a worker has to stop."""
    before = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(before)


class Transactions:
    """Runs transactions on one database: begins them, runs them again, and sees that the tables and the rights are there."""

    runs_alone = False
    """True if no worker runs the tasks but this thread, in a test: to wait for one would be in vain."""
    declared: Callable[[], Iterable[str]] = staticmethod(tuple)
    """Returns the queues of the tasks that the application declares; none where the store has no application."""
    on_retry: Callable[[], object] | None = None
    """Called when a transaction failed and is to be run again: the connection may have been lost."""

    def __init__(
        self,
        engine: Engine | None,
        *,
        schema: str | None = None,
        clock: Callable[[], datetime] | None = None,
        gone: threading.Event | None = None,
        hurried: bool = False,
        works: bool = False,
    ) -> None:
        """`engine` None: only methods with ``using=`` work. `clock` replaces the database's clock, in tests.

        Once `gone` is set, nothing is run again that failed: its owner has no time left. `hurried`: what waits for SQLite's
        one lock is tried again much sooner than usual, and so comes before what waits besides.
        """
        self.engine = engine
        self.schema = schema
        self.clock = clock
        self.gone = gone or threading.Event()
        self._hurried = hurried
        self._current = self._is_readable = False
        self._file: OpenFile | None = None
        self.rights = Rights(self, works=works)

    @property
    def bound_engine(self) -> Engine:
        """The engine. Raises ConfigurationError while the store has none."""
        if self.engine is None:
            raise ConfigurationError(
                "this outbox is not bound to a database: give Outbox() a URL or an Engine, set OUTBOXQ_DATABASE_URL, or "
                "call bind()"
            )
        return self.engine

    @cached_property
    def dialect(self) -> Dialect:
        """The dialect of the engine. Raises ConfigurationError while the store has no engine."""
        return dialect_for(self.bound_engine.dialect.name, schema=self.schema)

    @cached_property
    def _database_name(self) -> str | None:
        return self.dialect.database_name(self.bound_engine.url)

    @cached_property
    def _connection_options(self) -> Mapping[str, Any]:
        return connection_options(self.bound_engine)

    def ensure_current(self) -> None:
        """Raise SchemaOutOfDate unless the database has a schema that this code runs on and that admits it.

        An SQLite file that is not there is not made.
        """
        self.ensure_file()
        with self.rights.naming(), self.transaction(Begin.READ) as target:
            self.check_schema(target)

    def ensure_file(self) -> None:
        """Raise SchemaOutOfDate where the database is an SQLite file that is not there, which a connection would make."""
        if (path := self.dialect.missing_file(self.bound_engine.url)) is not None:
            raise no_file(path)

    def ensure_primary(self) -> None:
        """Raise ConfigurationError where the server takes no writes because it follows another."""
        with self.transaction(Begin.READ) as target:
            if target.run(schema.is_standby):
                raise ConfigurationError(
                    "this server is a standby and takes no writes; give the worker the primary's URL"
                )

    def check_file(self) -> None:
        """Raise FileUnusable unless the SQLite file is the file that the first call found, and still in its place.

        It reads the directory, not the database; of a server it asks nothing.
        """
        if self._file is not None:
            self._file.check()
        elif self.dialect.one_writer:
            with self.bound_engine.connect() as connection:
                self._file = self.dialect.open_file(connection.connection.driver_connection)

    def unusable(self, error: BaseException) -> FileUnusable | None:
        """Return what to stop with where this error says that the SQLite file cannot be used any more; None: it does not."""
        if isinstance(error, FileUnusable):
            return error
        return FileUnusable(damaged(error)) if self.dialect.is_damaged(error) else None

    def reserved(self, gone: threading.Event, *, hurried: bool = False) -> Self:
        """The same store on connections of its own; see `engine.reserve`, and `gone` and `hurried` above."""
        engine = self.reserve_engine()
        hurried = hurried and self.dialect.one_writer  # a server that is away is not to be run over
        if hurried:
            self.dialect.hurry(engine)
        return type(self)(engine, schema=self.schema, clock=self.clock, gone=gone, hurried=hurried, works=True)

    def reserve_engine(self) -> Engine:
        return reserve(self.bound_engine)

    def run(
        self,
        work: Callable[[Target], T],
        *,
        using: object = None,
        begin: Begin = Begin.WRITE,
        done: Callable[[Target], T | None] = lambda _: None,
        gives_up: Callable[[BaseException], bool] | None = None,
        enqueues: frozenset[Feature] | None = None,
    ) -> T:
        """Run `work` in the caller's transaction, or in one of our own. Run it again after errors that pass, unless `gives_up`
        says no.

        A connection that is lost during COMMIT leaves open whether it happened. So before `work` is run again, `done` says
        from the tables what it returned, had it been committed; None: it was not. `enqueues`: it is a producer's, with these
        features. Raises NotPermitted for a right that is lacking: before `work`, or from the end of a transaction of our own.
        """
        if using is not None:
            joined = self.join(using, enqueues)
            try:
                return work(joined)
            except Exception as error:
                joined.explain(error)
                raise
        began = time.monotonic()
        try:
            with self.transaction(begin) as target:
                if enqueues not in self.rights.known:
                    self.rights.check(target, enqueues)
                found = work(target)
            self.rights.known.add(enqueues)  # only now: of tables that are not there, no right is lacking
            return found
        except Exception as error:  # noqa: BLE001 - the first attempt; most need no second, and nobody to count them
            failed = error
        self.rights.explain(failed, begin, enqueues)
        # SQLite itself has waited that long for its one lock. A statement that was cut off would take as long again.
        is_in_vain = self.dialect.one_writer or self.dialect.is_cut_off(failed)
        attempts = self.tries(gives_up)
        if is_in_vain and time.monotonic() - began >= _PATIENCE:
            attempts = attempts.copy(stop=tenacity.stop_after_attempt(1))
        try:
            for attempt in attempts:
                with attempt:
                    if attempt.retry_state.attempt_number == 1:
                        raise failed
                    with self.transaction(_IN_FULL.get(begin, begin)) as target:
                        return again if (again := done(target)) is not None else work(target)
        except Exception as error:
            if self.dialect.one_writer and self.dialect.is_transient(error):
                place = self.dialect.place(self.bound_engine.url, lambda: None)
                seconds = time.monotonic() - began
                error.add_note(
                    f"another connection, of this or another process, has kept {place} locked for {seconds:.0f} s"
                )
            raise
        raise AssertionError("tenacity reraises the last error")

    def read(self, builder: Builder, *, using: object = None, **values: Any) -> list[Row]:
        """Run one statement that only reads, with these values besides those of every statement."""
        return self.run(
            lambda target: target.run(builder, self.values(target, **values)), using=using, begin=Begin.READ
        )

    def join(self, using: object, enqueues: frozenset[Feature] | None = None) -> Target:
        """Return the caller's transaction. Raises first, where it could still be used, if it is in another database, lacks our
        tables, or (`enqueues`) its role lacks a right.
        """
        dialect = None if self.engine is None else self.dialect
        target = target_of(using, schema=self.schema, dialect=dialect)
        if self.engine is not None:
            self.check_database(target)
        if not self._current or enqueues not in self.rights.known:
            self._check_tables(target, enqueues)
        return target

    def _check_tables(self, target: Target, enqueues: frozenset[Feature] | None) -> None:
        """Raise NotPermitted, ConfigurationError or SchemaOutOfDate, unless both are known to hold."""
        if enqueues not in self.rights.known:
            self.rights.check(target, enqueues)
        if not self._current:
            with in_a_transaction_that_goes_on():
                self.check_schema(target)
        self.rights.known.add(enqueues)  # only now: of tables that are not there, no right is lacking

    @contextmanager
    def transaction(self, begin: Begin) -> Iterator[Target]:
        if current.get() is not None and begin not in _READS:
            self._refuse_to_wait_for_itself()
        engine = self.bound_engine
        before = sys.exception()
        try:
            with engine.connect() as connection:
                if self._connection_options:
                    connection.execution_options(**self._connection_options)
                with connection.begin():
                    target = SqlalchemyTarget(connection, self.schema, self.dialect)
                    target.own = True
                    if not self._is_readable:
                        target.ensure_readable()
                        self._is_readable = True
                    try:
                        # A host's engine has its own idea of how a transaction begins.
                        if getattr(connection.connection.dbapi_connection, "in_transaction", False):
                            target.execute("ROLLBACK", {})
                        target.begin(begin)
                        yield target
                    except BaseException as error:
                        self._roll_back(connection, error)
                        if isinstance(error, Exception) and begin is not Begin.HANDLER:  # else it is the user's
                            explain_undefined(target, error, self.check_schema)
                            target.explain(error)
                        raise
        except Exception as error:
            if begin is not Begin.HANDLER and (stop := signal_behind(error, before)) is not None:
                raise stop from None  # an error of cleaning up, in SQLAlchemy or the driver, has replaced it
            raise

    def _roll_back(self, connection: Connection, error: BaseException) -> None:
        """Roll back what `error` ended. SQLAlchemy does not where it believes that the connection is in autocommit.

        An exception of a signal, such as KeyboardInterrupt, may come in the midst of a statement. A rollback would then fail, and
        its error, which looks like an outage, would replace the exception. So such a connection is closed.
        """
        is_midway = self.dialect.stops_midway and not isinstance(error, Exception)
        try:
            raw: Any = connection.connection.dbapi_connection
            if not is_midway:
                raw.rollback()
            if is_midway or self.dialect.is_of_standby(error, raw):
                connection.invalidate(error)  # of a URL's hosts, another may be the primary by now
        except Exception as failed:  # noqa: BLE001 - `error` is the one to raise
            log.debug("the rollback failed: %s", failed)
        except BaseException as interruption:
            if self.dialect.stops_midway:
                connection.invalidate(interruption)
            raise

    def _refuse_to_wait_for_itself(self) -> None:
        """Raise InvalidTarget where the handler around this call is the one that keeps us from writing."""
        running = current.get()
        unit = None if running is None else running.inside
        if running is None or unit is None or not self.dialect.one_writer:
            return
        if (locked := unit.database) is not None and locked == self._database():
            raise InvalidTarget(
                f"inside the transactional task {running.task_name} nothing can be written to {locked} in a transaction of its "
                "own: SQLite has one writer, which is the task's transaction until its handler returns; write using(ctx), or "
                "using=ctx in a call of the store, so that it is committed with the task"
            )

    def _database(self) -> str | None:
        """Return the name that a target in our database gives it."""
        engine = self.bound_engine
        if self._database_name is not None:
            return self._database_name
        with engine.connect() as connection:
            return SqlalchemyTarget(connection, self.schema).database()

    def tries(self, gives_up: Callable[[BaseException], bool] | None = None) -> tenacity.Retrying:
        transient = self.dialect.is_transient
        helps = transient if gives_up is None else lambda error: transient(error) and not gives_up(error)
        own = _patience.get()
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(helps),
            wait=_SOON if self._hurried else _GROWING,
            stop=tenacity.stop_after_delay(_PATIENCE if own is None else own) | tenacity.stop_when_event_set(self.gone),
            sleep=tenacity.sleep_using_event(self.gone),
            before_sleep=None if self._hurried else self._note_retry,
            reraise=True,
        )

    def _note_retry(self, state: tenacity.RetryCallState) -> None:
        if self.on_retry is not None:
            self.on_retry()
        _log_retry(state)

    def may_pass(self, error: BaseException) -> bool:
        """Return whether the same may well succeed a little later: the database is away, busy, or has no connection left."""
        return isinstance(error, PoolTimeout) or self.dialect.is_transient(error)

    def is_locked_out(self, error: BaseException) -> bool:
        """Return whether another session kept a row locked for longer than we wait for one."""
        return self.dialect.is_locked_out(error)

    def cannot_write_now(self, error: BaseException) -> bool:
        """Return whether the database has no room, no memory, or a disk that fails: what it takes no writes for until that is
        mended.
        """
        return self.dialect.cannot_write_now(error)

    def values(self, target: Target, **values: Any) -> dict[str, Any]:
        """The parameters every statement may take, and these."""
        clock = self.clock or target.dialect.clock
        return {"now": clock() if clock else None, **values}

    def scope(self, target: Target, queues: Iterable[str] | None, topics: Iterable[str] | None) -> dict[str, Any]:
        """The parameters that say which tasks are asked for: of which queues, handling which emitted events."""
        names, patterns = queue_names(queues), queue_names(topics, "topics")
        packed = target.dialect.pack("topics", {"topic": Text()}, [(one,) for one in patterns or ()])
        scope = {"any_topic": patterns is None, "one_queue": names is not None and len(names) == 1, **packed}
        return scope | (self.queue_values(target, names) if names is not None else {})

    def queue_values(self, target: Target, queues: Iterable[str]) -> dict[str, Any]:
        return target.dialect.pack("queues", {"queue": Text()}, [(one,) for one in queues])

    def wake(self, target: Target, queues: Iterable[str]) -> None:
        """Tell sleeping workers that something became claimable without an insert, once the transaction commits.

        To be called after the change. A database that cannot notify is watched instead, so nothing is written there.
        """
        names = sorted(set(queues))
        if names and target.dialect.notifies:
            target.run(channel.wake, self.values(target) | self.queue_values(target, names))

    def check_database(self, target: Target) -> None:
        if type(target.dialect) is not type(self.dialect):
            raise InvalidTarget(
                f"this connection is to {target.dialect.name}, but the outbox is bound to {self.dialect.name}; a task must be "
                "written where its business rows are"
            )
        here, there = target.database(), self._database_name
        if here is not None and there is not None and here != there:
            raise InvalidTarget(
                f"this connection is to the database {here!r}, but the outbox is bound to {there!r}; a task must be written "
                "where its business rows are"
            )

    def ensure_schema(self, target: Target) -> None:
        """Check the schema unless that was done before."""
        if not self._current:
            self.check_schema(target)

    def check_schema(self, target: Target) -> None:
        """Raise SchemaOutOfDate unless the tables are there and fit this code."""
        check_fit(target, None if self.engine is None else self.engine.url)
        self._current = True


def _log_retry(state: tenacity.RetryCallState) -> None:
    """Told once of each transaction, however often it is run again: a server may be away for long."""
    error = state.outcome.exception() if state.outcome else None
    level = logging.INFO if state.attempt_number == 1 else logging.DEBUG
    why = sentence(error) if error else "no error"
    log.log(level, "transaction failed (%s); running it again, attempt %d", why, state.attempt_number + 1)
