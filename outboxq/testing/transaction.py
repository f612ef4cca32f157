"""The transaction in which a harness works, opened by the test or by Django, and the store that uses it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from traceback import walk_stack
from typing import Any, TypeVar
from uuid import UUID

import tenacity
from sqlalchemy import Connection, Engine, NestedTransaction
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session

from ..database.dialects import Begin, Dialect
from ..database.privileges import Feature
from ..database.target import SqlalchemyTarget, Target
from ..database.using import DjangoTarget, target_of
from ..errors import ConfigurationError, InvalidTarget
from ..integration import Integration
from ..integration.sessions import SessionIntegration, join
from ..model import Handle, NewTask, Outcome
from ..model.batches import BatchLink
from ..model.subscriptions import Emitted, NewEvent
from ..store import BatchStanding, Store
from ..store.claims.units_of_work import Unit
from .clock import Clock

N = TypeVar("N", NewTask, NewEvent)


class TestTransaction:
    """A transaction that a test has opened and may roll back. This class handles psycopg and sqlite3 connections."""

    __test__ = False  # pytest would collect it because of its name

    def __init__(self, using: object, schema: str | None) -> None:
        self._using = using
        self._schema = schema

    @property
    def is_open(self) -> bool:
        """True if a write at this point would be part of one of the test's transactions."""
        return True

    @property
    def within(self) -> object:
        """The open transaction, for `Integration.unit_of_work`; None if there is none."""
        return self._using if self.is_open else None

    def target(self) -> Target:
        """Return the target for the store's statements. Raises InvalidTarget if no transaction is open."""
        return target_of(self._using, schema=self._schema)

    @contextmanager
    def transaction(self, begin: Begin = Begin.WRITE) -> Iterator[Target]:
        """Open a savepoint in the transaction. An exception rolls the transaction back to the savepoint."""
        target = self.target()
        if begin is Begin.READ:
            yield target
            return
        # Tasks in batches are counted immediately, because the test's transaction may never be committed. Plans are
        # kept, because planning takes three quarters of the time for a tick.
        commands = filter(None, [target.dialect.count_batches_at_once(), target.dialect.plan_once()])
        with target.atomic(savepoint=True, then="; ".join(commands)):
            target.own = True  # an error ends this savepoint, so statements do not need another one
            yield target

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Keep the transaction usable after the block, which runs a handler.

        The handler's writes are kept even if the handler fails, just as its committed writes would be in production,
        unless a database error has aborted the whole transaction. Raises TransactionEnded if the handler has ended the
        transaction.
        """
        if not self.is_open:
            yield
            return
        is_usable = False
        try:
            with suppress(_Aborted), self._savepoint() as target:
                yield
                if target.is_aborted():
                    raise _Aborted
                is_usable = True
        except Exception as error:
            if is_usable:
                raise TransactionEnded(_ENDED) from error
            raise

    def _savepoint(self) -> AbstractContextManager[Target]:
        return self.transaction()

    def series(self) -> AbstractContextManager[None]:
        """Make savepoints cheaper for the handlers that run in the block, if the transaction supports this."""
        return nullcontext()

    def check(self) -> None:
        """Raise InvalidTarget if the transaction cannot contain savepoints for handlers."""

    @property
    def is_flushed(self) -> bool:
        """True if `flush` would write nothing."""
        return True

    def flush(self) -> None:
        """Flush the test's session, so that a handler sees its rows."""

    def expire(self) -> None:
        """Expire the test's session, so that it reads handlers' rows."""

    @contextmanager
    def sessions(self, integration: Integration) -> Iterator[None]:  # noqa: ARG002 - a subclass uses it
        """Make the handler's own session write in the test's transaction, inside the integration's `around_handler`."""
        yield


class NoTransaction(TestTransaction):
    """The lack of a test's transaction: the outbox commits, as in production."""

    is_open = False

    def __init__(self) -> None:
        super().__init__(None, None)


class SqlalchemyTransaction(TestTransaction):
    """A transaction on a Session or a Connection."""

    _around: NestedTransaction | None = None
    """SQLAlchemy's savepoint around a series of handlers."""

    def target(self) -> SqlalchemyTarget:
        target = super().target()
        assert isinstance(target, SqlalchemyTarget)
        return target

    def check(self) -> None:
        if self.target().has_real_savepoints():
            return
        raise InvalidTarget(
            "this test's SQLite engine has no real savepoints: a task's own savepoint would commit the test's transaction; "
            "call outboxq.configure_sqlite(engine) once, where the test creates the engine"
        )

    @contextmanager
    def series(self) -> Iterator[None]:
        """Open one savepoint through SQLAlchemy for all handlers in the block. Each handler then has a savepoint that
        SQLAlchemy does not know about. Such a savepoint takes half as long as one of SQLAlchemy's own.
        """
        self._around = around = self.target().connection.begin_nested()
        try:
            yield
            around.commit()
        except BaseException:
            with suppress(SQLAlchemyError):  # a handler may have ended the transaction
                around.commit()
            raise
        finally:
            self._around = None

    @contextmanager
    def _savepoint(self) -> Iterator[Target]:
        """Open a savepoint inside one of SQLAlchemy's savepoints, so that a handler's Session on this connection uses a
        savepoint too.
        """
        target = self.target()
        if self._around is not None:
            with target.atomic(savepoint=True):
                try:
                    yield target
                finally:
                    _roll_back_above(self._around, target.connection)
            return
        nested = target.connection.begin_nested()
        try:
            yield target
            _roll_back_above(nested, target.connection)
            nested.commit()
        except BaseException:
            _roll_back_above(nested, target.connection)
            nested.rollback()
            raise

    @property
    def is_flushed(self) -> bool:
        session = self._using
        return not (isinstance(session, Session) and (session.new or session.dirty or session.deleted))

    def flush(self) -> None:
        if isinstance(self._using, Session):
            self._using.flush()

    def expire(self) -> None:
        if isinstance(self._using, Session):
            self._using.flush()
            self._using.expire_all()

    @contextmanager
    def sessions(self, integration: Integration) -> Iterator[None]:
        scoped = integration.session if isinstance(integration, SessionIntegration) else None
        if isinstance(scoped, scoped_session):
            connection = self.target().connection
            session = scoped.session_factory(bind=connection, binds={})
            join(session, connection)
            scoped.registry.set(session)
        yield


class DjangoTransaction(TestTransaction):
    """A transaction on a Django connection. In a TestCase, the transaction belongs to the test. In a
    TransactionTestCase, it belongs to the application, and a transaction is not always open.
    """

    def __init__(self, alias: str, schema: str | None) -> None:
        super().__init__(alias, schema)
        self._alias = alias

    @property
    def is_open(self) -> bool:
        return bool(self.target().connection.in_atomic_block)

    def target(self) -> DjangoTarget:
        """Return the connection's target, whether or not a transaction is open; `transaction` opens one."""
        from django.db import connections

        return DjangoTarget(connections[self._alias], self._schema)

    @contextmanager
    def transaction(self, begin: Begin = Begin.WRITE) -> Iterator[Target]:  # noqa: ARG002 - a SELECT outside a transaction needs one too
        from django.db import transaction

        with transaction.atomic(using=self._alias):
            target = self.target()
            if (message := target.dialect.count_batches_at_once()) is not None:
                target.execute(message, {})
            target.own = True  # an error ends this savepoint or transaction, so statements do not need another one
            yield target


def transaction_of(using: object, schema: str | None) -> TestTransaction:
    """Return the TestTransaction for the `using` argument. Raises InvalidTarget if `using` has no open transaction."""
    if isinstance(using, str):
        return DjangoTransaction(using, schema)
    if hasattr(using, "in_atomic_block") and hasattr(using, "alias"):
        return DjangoTransaction(using.alias, schema)
    if isinstance(using, scoped_session):
        using = using()  # the test's session; a handler gets a different one
    target = target_of(using, schema=schema)
    assert not isinstance(target, DjangoTarget)
    return (SqlalchemyTransaction if isinstance(target, SqlalchemyTarget) else TestTransaction)(using, schema)


class ObservingStore(Store):
    """A store with its own transactions, as in production. It tells the harness about each write."""

    runs_alone = True
    clock: Clock
    before_emit: Callable[[], object] = staticmethod(lambda: None)
    written: Callable[[object], object] = staticmethod(lambda _: None)
    """A function that is called after each enqueue, with the enqueue's `using` argument."""

    def enqueue_many(self, tasks: Sequence[NewTask], *, using: object = None) -> list[Handle]:
        handles = super().enqueue_many([self._due(task) for task in tasks], using=using)
        self.written(using)
        return handles

    def emit(self, event: NewEvent, *, using: object = None) -> Emitted:
        self.before_emit()
        emitted = super().emit(self._due(event), using=using)
        self.written(using)
        return emitted

    def finish(
        self, outcomes: Sequence[Outcome], *, durable: bool = True, waits: bool = True, using: object = None
    ) -> frozenset[UUID]:
        for outcome in outcomes:
            self.clock.wait_for(outcome.available_at or self.clock() + outcome.delay)
        return super().finish(outcomes, durable=durable, waits=waits, using=using)

    def _due(self, given: N) -> N:
        due = self.clock.present(given.available_at)
        self.clock.wait_for(due or self.clock() + given.delay)
        return replace(given, available_at=due)


class TransactionBoundStore(ObservingStore):
    """A store whose methods, if called without ``using=``, run in a savepoint in the test's transaction and are rolled
    back with that transaction.
    """

    def __init__(self, within: TestTransaction, *, schema: str | None, clock: Clock) -> None:
        super().__init__(None, schema=schema, clock=clock)
        self._within = within
        self._has_warned = False

    @cached_property
    def dialect(self) -> Dialect:
        return self._within.target().dialect

    @property
    def bound_engine(self) -> Engine:
        """Raise ConfigurationError."""
        raise ConfigurationError(
            "during a test this outbox has no engine: it uses the test's own transaction, which a worker cannot see; run "
            "tasks with drain(), or leave out the Harness's using= and let the test commit"
        )

    def ensure_file(self) -> None:
        """Do nothing, because the test's connection is open."""

    @contextmanager
    def unit(self, *, using: object = None) -> Iterator[Unit]:
        with super().unit(using=self._within.within if using is None else using) as unit:
            yield unit

    def batch_standings(
        self, links: Collection[BatchLink], *, everything: bool = True
    ) -> Mapping[BatchLink, BatchStanding]:
        with self.transaction(Begin.WRITE):  # a batch's tasks are counted at a commit or, here, at a savepoint
            return super().batch_standings(links, everything=everything)

    def may_pass(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return False, so that the test sees the error immediately."""
        return False

    def join(self, using: object, enqueues: frozenset[Feature] | None = None) -> Target:
        target = super().join(using, enqueues)
        ours = self._within.target()
        if getattr(target, "connection", None) is getattr(ours, "connection", self):
            return target
        if type(target.dialect) is not type(ours.dialect) or target.database() != ours.database():
            raise InvalidTarget(
                f"this is a transaction in the database {target.database()!r} ({target.dialect.name}), but the test's transaction is "
                f"in {ours.database()!r} ({ours.dialect.name}); a task must be stored in the same database as its business rows"
            )
        if enqueues is not None and not self._has_warned and _driver_connection(target) is not _driver_connection(ours):
            self._has_warned = True
            warnings.warn(_OUTSIDE, UserWarning, stacklevel=_calls_inside() + 1)
        return target

    @contextmanager
    def transaction(self, begin: Begin) -> Iterator[Target]:
        with self._within.transaction(begin) as target:
            self.ensure_schema(target)
            yield target

    def tries(self, gives_up: Callable[[BaseException], bool] | None = None) -> tenacity.Retrying:  # noqa: ARG002
        """Allow only a single attempt, because only the test can run its transaction again."""
        return tenacity.Retrying(stop=tenacity.stop_after_attempt(1), reraise=True)


def _driver_connection(target: Target) -> object:
    """Return the driver's connection, which several sessions and connections may share."""
    if isinstance(target, SqlalchemyTarget):
        return target.connection.connection.driver_connection
    connection: Any = getattr(target, "connection", None)
    return connection.connection if isinstance(target, DjangoTarget) else connection


class TransactionEnded(AssertionError):
    """A handler committed or rolled back the test's transaction."""


class _Aborted(Exception):
    """A statement failed on PostgreSQL, but its transaction was not rolled back."""


def _roll_back_above(nested: Any, connection: Connection) -> None:
    """Roll back savepoints that a handler left open because it never closed its session."""
    while nested.is_active and (top := connection.get_nested_transaction()) not in (nested, None):
        assert top is not None
        top.rollback()


def _calls_inside() -> int:
    """Return the number of calls between the caller's function and the application's code that called outboxq."""
    frames = enumerate(frame for frame, _ in walk_stack(sys._getframe(1)))  # noqa: SLF001
    return next((number for number, frame in frames if not frame.f_globals["__name__"].startswith("outboxq.")), 1)


_OUTSIDE = (
    "a task or an event was written through a connection other than the harness's: if it is committed, it outlives this test, but "
    "the changes that drain() makes to it are rolled back; create the application's sessions on the harness's connection, with "
    'join_transaction_mode="create_savepoint", or let the test commit: do not pass using= to the Harness, and do not override the '
    "outboxq_using fixture; an AsyncSession on an AsyncEngine always needs a test that commits"
)
_ENDED = (
    "a handler committed or rolled back the test's transaction, so the test cannot continue; in tests, create the application's "
    'sessions with bind=connection and join_transaction_mode="create_savepoint", so that commit() ends a savepoint; if the handler '
    "used the test's own session, commit that session before drain(), and pass the connection to the Harness instead"
)
