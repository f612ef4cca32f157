"""Run a store's transactions: begin, end and retry them."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Self, TypeVar

import sqlalchemy as sa
import tenacity
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..context import current
from ..database import table_locks
from ..database.dialects import Begin, Dialect, OpenFile, Row, channel, damaged, dialect_for, signal_behind
from ..database.engine import connection_options, detached, reserve
from ..database.grammar import Builder, Grammar
from ..database.privileges import Feature
from ..database.queue_order import FLOORS
from ..database.revisions import no_file
from ..database.target import OwnTarget, SqlalchemyTarget, Target
from ..database.using import DriverTarget, target_of
from ..errors import ConfigurationError, FileUnusable, InvalidTarget
from . import schema
from .failure_log import sentence
from .rights import Rights
from .schema import check_fit, explain_undefined, in_a_transaction_that_goes_on

T = TypeVar("T")
log = logging.getLogger("outboxq.store")

_IN_FULL = {Begin.SINGLE: Begin.WRITE, Begin.SINGLE_ASYNCHRONOUS: Begin.ASYNCHRONOUS, Begin.INSERT: Begin.WRITE}
"""Maps a kind of transaction to the kind that further attempts use. These are full transactions, so that `done`,
`committed` and the work see the same state.
"""

_GROWING = tenacity.wait_random_exponential(multiplier=0.02, max=0.5)
"""The wait between attempts: short, so that a database is used again as soon as it is available."""
_SOON = tenacity.wait_random(0, 0.01)
_PATIENCE = 30.0
"""Seconds after which a transaction is no longer retried."""
_patience: ContextVar[float | None] = ContextVar("patience", default=None)
"""The time limit for this thread, in seconds; None means `_PATIENCE`."""
_READS = {Begin.READ, Begin.SNAPSHOT}
_OF_THIS_THREAD = (
    "if this thread's own transaction holds the lock, commit it first, or join it with using(session) or using=session"
)


@contextmanager
def patience(seconds: float = _PATIENCE) -> Iterator[None]:
    """Set the number of seconds for which this thread retries its transactions. Use a small number if, for example, a
    person is waiting or a worker has to stop.
    """
    before = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(before)


class Transactions:
    """Runs transactions on one database: begins and retries them, and checks the tables and the privileges."""

    runs_alone = False
    """True in a test that runs the tasks in this thread, where waiting for another worker would be futile."""
    declared: Callable[[], Iterable[str]] = staticmethod(tuple)
    """Returns the queues of the tasks that the application declares; empty for a store without an application."""
    outage_timeout = timedelta(seconds=5)
    """Longest time for which a transaction is retried outside workers and handlers, where a request may be waiting for it."""
    emits_to_relays = False
    """True once an emit has found a relay to a broker. From then on, emits include the steps that write the relay's
    messages.
    """
    on_retry: Callable[[], object] | None = None
    """A function that is called before a failed transaction is tried again, because the connection may have been lost.
    """

    def __init__(
        self,
        engine: sa.Engine | None,
        *,
        schema: str | None = None,
        clock: Callable[[], datetime] | None = None,
        gone: threading.Event | None = None,
        hurried: bool = False,
        works: bool = False,
    ) -> None:
        """If `engine` is None, only methods with ``using=`` work. `clock` replaces the database's clock in tests.

        Once `gone` is set, failed transactions are not retried, because the store's owner has no time left. `hurried`
        transactions retry much sooner to get SQLite's single lock, and so overtake other transactions.
        """
        self.engine = engine
        self.schema = schema
        self.clock = clock
        self.gone = gone or threading.Event()
        self._hurried, self._works = hurried, works
        self._current = self._is_readable = False
        self._file: OpenFile | None = None
        self.rights = Rights(self, works=works)

    @property
    def bound_engine(self) -> sa.Engine:
        """The engine. Raises ConfigurationError if the store has none."""
        if self.engine is None:
            raise ConfigurationError(
                "this outbox is not bound to a database: give Outbox() a URL or an Engine, set OUTBOXQ_DATABASE_URL, or "
                "call bind()"
            )
        return self.engine

    @cached_property
    def dialect(self) -> Dialect:
        """The dialect of the engine. Raises ConfigurationError if the store has no engine."""
        return dialect_for(self.bound_engine.dialect.name, schema=self.schema)

    @cached_property
    def _options(self) -> Mapping[str, Any]:
        """Execution options for the store's connections."""
        return connection_options(self.bound_engine)

    @cached_property
    def _own_database(self) -> str | None:
        """The database's name or file according to the URL; None if the URL contains neither."""
        return self.dialect.database_name(self.bound_engine.url)

    def ensure_current(self) -> None:
        """Raise SchemaOutOfDate unless this code and the database's schema support each other. A missing SQLite file is
        not created.
        """
        self.ensure_file()
        with self.rights.naming(), self.transaction(Begin.READ) as target:
            self.check_schema(target)

    def ensure_file(self) -> None:
        """Raise SchemaOutOfDate if the database is a missing SQLite file, which a connection would create."""
        if (path := self.dialect.missing_file(self.bound_engine.url)) is not None:
            raise no_file(path)

    def ensure_primary(self) -> None:
        """Raise ConfigurationError if the server is a standby, which refuses writes."""
        with self.transaction(Begin.READ) as target:
            if target.run(schema.is_standby):
                raise ConfigurationError(
                    "this server is a standby and does not accept writes; give the worker the primary's URL"
                )

    def check_file(self) -> None:
        """Raise FileUnusable unless the SQLite file is still the file that the first call found.

        This reads the directory, not the database. For a database server, this method does nothing.
        """
        if self._file is not None:
            self._file.check()
        elif self.dialect.one_writer:
            with self.bound_engine.connect() as connection:
                self._file = self.dialect.open_file(connection.connection.driver_connection)

    def unusable(self, error: BaseException) -> FileUnusable | None:
        """Return the error that a process should stop with if `error` means that the SQLite file is no longer usable;
        None for any other error.
        """
        if isinstance(error, FileUnusable):
            return error
        return FileUnusable(damaged(error)) if self.dialect.is_damaged(error) else None

    def reserved(self, gone: threading.Event, *, hurried: bool = False) -> Self:
        """Return a copy of this store that uses reserved connections (`engine.reserve`) and these arguments to
        `__init__`.
        """
        engine = self.reserve_engine()
        hurried = hurried and self.dialect.one_writer  # a server that is down must not be flooded
        if hurried:
            self.dialect.hurry(engine)
        return type(self)(engine, schema=self.schema, clock=self.clock, gone=gone, hurried=hurried, works=True)

    def reserve_engine(self) -> sa.Engine:
        return reserve(self.bound_engine)

    def run(
        self,
        work: Callable[[Target], T],
        *,
        using: object = None,
        begin: Begin = Begin.WRITE,
        done: Callable[[Target], T | None] = lambda _: None,
        committed: Callable[[Target, T], bool] = lambda *_: False,
        gives_up: Callable[[BaseException], bool] | None = None,
        enqueues: frozenset[Feature] | None = None,
    ) -> T:
        """Run `work` in the caller's transaction or in a separate one. A separate transaction is retried after
        temporary errors, unless `gives_up` returns True.

        If a connection is lost during COMMIT, the outcome is unknown. So before another attempt, `committed` is called
        with what `work` returned. If `committed` finds this result in the tables, `run` returns the result. The answer
        to a single statement that commits itself may be lost before `work` returns. For such a statement, `done` reads
        from the tables what `work` would have returned; it returns None if nothing was committed. `enqueues` marks the
        transaction of a producer that uses these features. Raises NotPermitted if a privilege is missing, either before
        `work` or, in our own transaction, after it.
        """
        if using is not None:
            return self._run_in(using, work, enqueues)
        began = time.monotonic()
        unanswered: list[T] = []  # what `work` returned in the last attempt, before the COMMIT
        try:
            with self.transaction(begin) as target:
                if enqueues not in self.rights.known:
                    self.rights.check(target, enqueues)
                unanswered = [work(target)]
            self.rights.known.add(enqueues)  # added only now, because missing tables hide missing privileges
            return unanswered[0]
        except Exception as error:  # noqa: BLE001 - most transactions need neither a second attempt nor a counter
            failed = error
        self.rights.explain(failed, begin, enqueues)
        # SQLite has waited this long for its single lock. A statement that was cancelled would take just as long again.
        took_long = time.monotonic() - began >= _PATIENCE
        is_in_vain = took_long and (self.dialect.one_writer or self.dialect.is_cut_off(failed))
        is_awaited = not self._works and current.get() is None and _patience.get() is None
        with patience(self.outage_timeout.total_seconds()) if is_awaited else nullcontext():
            attempts = self.tries(gives_up)
        if is_in_vain:
            attempts = attempts.copy(stop=tenacity.stop_after_attempt(1))
        try:
            for attempt in attempts:
                with attempt:
                    if attempt.retry_state.attempt_number == 1:
                        raise failed
                    with self.transaction(_IN_FULL.get(begin, begin)) as target:
                        if (written := done(target)) is not None:
                            return written
                        if not (unanswered and committed(target, unanswered[0])):
                            unanswered = [work(target)]
                    return unanswered[0]
        except Exception as error:
            was_retried = is_awaited and not is_in_vain and not (gives_up is not None and gives_up(error))
            self._note_why_it_failed(error, time.monotonic() - began, is_awaited=was_retried)
            raise
        raise AssertionError("tenacity reraises the last error")

    def _run_in(self, using: object, work: Callable[[Target], T], enqueues: frozenset[Feature] | None) -> T:
        """Run `work` in the caller's transaction. If `using` is a Target, an enclosing call has already checked the
        transaction.
        """
        joined = using if isinstance(using, Target) else self.join(using, enqueues)
        try:
            return work(joined)
        except Exception as error:
            joined.explain(error)
            raise

    def _note_why_it_failed(self, error: Exception, seconds: float, *, is_awaited: bool) -> None:
        """Add a note to the last error of a transaction that was retried."""
        if not self.dialect.is_transient(error):
            return
        if self.dialect.one_writer:
            place = self.dialect.place(None if self.engine is None else self.engine.url, lambda: None)
            error.add_note(
                f"another connection, in this or another process, has kept {place} locked for {seconds:.0f} s"
            )
            if not self._works:
                error.add_note(_OF_THIS_THREAD)
        elif is_awaited:
            limit = self.outage_timeout.total_seconds()
            error.add_note(f"the transaction was retried for {limit:g} s, the outage_timeout of Outbox(…)")
            if self.dialect.is_locked_out(error):
                # A new connection is used, because threads that wait for the same lock may hold all connections of the
                # pool. The database may have become unavailable in the meantime.
                with suppress(Exception), closing(detached(self.bound_engine)) as connection:
                    found = table_locks.holders(self.dialect, DriverTarget(connection, self.dialect).execute)
                    error.add_note(table_locks.explained(found))

    def lock_holders(self) -> list[table_locks.Holder]:
        """Return the sessions that hold or want locks on our tables. The query runs on a separate connection, and is
        not retried.
        """
        with patience(0):
            return self.run(lambda target: table_locks.holders(target.dialect, target.execute), begin=Begin.READ)

    def run_one(self, builder: Builder, *, using: object = None, begin: Begin = Begin.READ, **values: Any) -> list[Row]:
        """Run one statement with these values and the parameters of every statement. `begin` is the kind of transaction
        to begin if `using` is None.
        """
        return self.run(lambda target: target.run(builder, self.values(target, **values)), using=using, begin=begin)

    def join(self, using: object, enqueues: frozenset[Feature] | None = None) -> Target:
        """Return the caller's transaction. Raises an error if the transaction belongs to another database, if our
        tables are missing, or if (with `enqueues`) the role lacks a privilege. The transaction remains usable after the
        error.
        """
        dialect = None if self.engine is None else self.dialect
        target = target_of(using, schema=self.schema, dialect=dialect)
        if self.engine is not None:
            self.check_database(target)
        if not self._current or enqueues not in self.rights.known:
            self._check_tables(target, enqueues)
        return target

    def _check_tables(self, target: Target, enqueues: frozenset[Feature] | None) -> None:
        """Check the privileges and the tables unless they have already been checked. Raises NotPermitted,
        ConfigurationError or SchemaOutOfDate.
        """
        if enqueues not in self.rights.known:
            self.rights.check(target, enqueues)
        with in_a_transaction_that_goes_on():
            self.ensure_schema(target)
        self.rights.known.add(enqueues)  # added only now, because missing tables hide missing privileges

    @contextmanager
    def transaction(self, begin: Begin) -> Iterator[Target]:
        if current.get() is not None and begin not in _READS:
            self._refuse_to_wait_for_itself()
        before = sys.exception()
        try:
            with OwnTarget(self.bound_engine, self.dialect, self._options) as target:
                if not self._is_readable:
                    target.ensure_readable()
                    self._is_readable = True
                try:
                    target.begin(begin)
                    yield target
                except BaseException as error:
                    target.roll_back(error)
                    # An error in a handler's transaction is the user's own.
                    if isinstance(error, Exception) and begin is not Begin.HANDLER:
                        explain_undefined(target, error, self.check_schema)
                        target.explain(error)
                    raise
        except Exception as error:
            if begin is not Begin.HANDLER and (stop := signal_behind(error, before)) is not None:
                raise stop from None  # a cleanup error of SQLAlchemy or the driver has replaced it
            raise

    def _refuse_to_wait_for_itself(self) -> None:
        """Raise InvalidTarget if the handler around this call holds the lock that the call would wait for."""
        running = current.get()
        unit = None if running is None else running.inside
        if running is None or unit is None or not self.dialect.one_writer:
            return
        if (locked := unit.database) is not None and locked == self._database():
            raise InvalidTarget(
                f"inside the transactional task {running.task_name}, nothing can be written to {locked} in a separate transaction: "
                "SQLite allows one writer, which is the task's transaction until its handler returns; call using(ctx), or pass "
                "using=ctx to the store's method, so that the write is committed with the task"
            )

    def _database(self) -> str | None:
        """Return the name of our database, in the form that targets use."""
        if self._own_database is not None:
            return self._own_database
        with self.bound_engine.connect() as connection:
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
        """Log the first attempt at INFO and later ones at DEBUG, because a server may be unavailable for a long
        time.
        """
        if self.on_retry is not None:
            self.on_retry()
        error = state.outcome.exception() if state.outcome else None
        level = logging.INFO if state.attempt_number == 1 else logging.DEBUG
        why = sentence(error) if error else "no error"
        log.log(level, "transaction failed (%s); running it again, attempt %d", why, state.attempt_number + 1)

    def may_pass(self, error: BaseException) -> bool:
        """Return whether another attempt may succeed later, because the database is unavailable or busy, or has no free
        connection.
        """
        return isinstance(error, PoolTimeout) or self.dialect.is_transient(error)

    def is_locked_out(self, error: BaseException) -> bool:
        """Return whether another session kept a row locked for longer than the lock timeout."""
        return self.dialect.is_locked_out(error)

    def cannot_write_now(self, error: BaseException) -> bool:
        """Return whether the database cannot write until an administrator intervenes, because it is out of disk space
        or memory, or its disk is failing.
        """
        return self.dialect.cannot_write_now(error)

    def values(self, target: Target, **values: Any) -> dict[str, Any]:
        """Return the parameters of every statement, with these values added."""
        if self.clock is not None:
            now: datetime | None = self.clock()
        else:
            now = None if target.dialect.has_clock else datetime.now(UTC)
        return {"now": now, **values}

    def now_in(self, target: Target) -> datetime:
        """Return the database's time inside this transaction. If this process's clock supplies the time, no statement
        is needed.
        """
        values = self.values(target)
        return values["now"] or target.run(select_now, values)[0]["now"]  # type: ignore[no-any-return]

    def scope(self, target: Target, queues: Collection[str] | None, topics: Iterable[str] | None) -> dict[str, Any]:
        """Return the parameters that restrict a statement to these queues and topics, and that make it read all dead
        entries. The caller has checked the names with `queue_names`.
        """
        packed = target.dialect.pack("topics", {"topic": sa.Text()}, [(one,) for one in topics or ()])
        packed |= target.dialect.pack("floors", FLOORS, ())
        scope = {"any_topic": topics is None, "one_queue": queues is not None and len(queues) == 1, **packed}
        return scope | (self.queue_values(target, queues) if queues is not None else {})

    def queue_values(self, target: Target, queues: Iterable[str]) -> dict[str, Any]:
        return target.dialect.pack("queues", {"queue": sa.Text()}, [(one,) for one in queues])

    def wake(self, target: Target, queues: Iterable[str]) -> None:
        """Notify sleeping workers, after the commit, that tasks have become claimable without an insert.

        Call this after the change. The method does nothing for SQLite, which has no notifications: workers watch the
        database file instead.
        """
        names = sorted(set(queues))
        if names and target.dialect.notifies:
            target.run(channel.wake, self.values(target) | self.queue_values(target, names))

    def check_database(self, target: Target) -> None:
        if type(target.dialect) is not type(self.dialect):
            raise InvalidTarget(
                f"this connection is to {target.dialect.name}, but the outbox is bound to {self.dialect.name}; a task must be "
                "written to the same database as your own rows"
            )
        here, there = target.database(), self._own_database
        if here is not None and there is not None and here != there:
            raise InvalidTarget(
                f"this connection is to the database {here!r}, but the outbox is bound to {there!r}; a task must be written "
                "to the same database as your own rows"
            )

    def ensure_schema(self, target: Target) -> None:
        """Check the schema unless it has already been checked."""
        if not self._current:
            self.check_schema(target)

    def check_schema(self, target: Target) -> None:
        """Raise SchemaOutOfDate unless the tables exist and fit this code."""
        check_fit(target, None if self.engine is None else self.engine.url)
        self._current = True


class Noun:
    """The base class of the operations on one kind of object, such as ``store.queues``."""

    def __init__(self, store: Transactions) -> None:
        self._store = store


def select_now(g: Grammar) -> sa.Select[Any]:
    return sa.select(g.now.label("now"))
