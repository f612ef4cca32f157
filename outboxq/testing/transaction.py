"""The transaction that a harness works in: a test's own one, or one on Django's connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from ..database.dialects import Begin
from ..database.statements import tasks
from ..database.target import DjangoTarget, SqlalchemyTarget, Target, target_of
from ..integration import Integration
from ..integration.sessions import SessionIntegration


class TestTransaction:
    """A transaction that a test has opened and may roll back. This class is for psycopg and sqlite3 connections."""

    __test__ = False  # pytest would collect it for its name

    def __init__(self, using: object, schema: str | None) -> None:
        self._using = using
        self._schema = schema

    @property
    def is_open(self) -> bool:
        """True if a write now is part of a transaction of the test."""
        return True

    @property
    def within(self) -> object:
        """The open transaction for `Integration.unit_of_work`; None if there is none."""
        return self._using if self.is_open else None

    def target(self) -> Target:
        """Return the store's view of the transaction. Raises InvalidTarget if none is open."""
        return target_of(self._using, schema=self._schema)

    @contextmanager
    def transaction(self, begin: Begin = Begin.WRITE) -> Iterator[Target]:
        """Open a part of the transaction, which an exception takes back as a whole."""
        target = self.target()
        if begin is Begin.READ:
            yield target
            return
        with target.atomic(savepoint=True):
            _count_batches(target)
            yield target

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Keep the transaction usable after a handler, whatever that does to it.

        The handler's writes stay even if it fails, as its committed writes would in production, unless a database error has
        aborted the whole transaction. Raises TransactionEnded if the handler has ended the transaction.
        """
        if not self.is_open:
            yield
            return
        is_usable = False
        try:
            with suppress(_Aborted), self._savepoint() as target:
                yield
                try:
                    target.run(tasks.now, {"now": target.dialect.moment(None)})
                except Exception as error:
                    raise _Aborted from error
                is_usable = True
        except Exception as error:
            if is_usable:
                raise TransactionEnded(_ENDED) from error
            raise

    def _savepoint(self) -> AbstractContextManager[Target]:
        return self.transaction()

    def flush(self) -> None:
        """Write what the test's session still holds back: a handler could not see it."""

    def expire(self) -> None:
        """Have the test's session read again what handlers may have written."""

    @contextmanager
    def sessions(self, integration: Integration) -> Iterator[None]:  # noqa: ARG002 - for those that have any
        """Have the handler's own session write in the test's transaction, inside the integration's `around_handler`."""
        yield


class SqlalchemyTransaction(TestTransaction):
    """A transaction of a Session or a Connection."""

    @contextmanager
    def _savepoint(self) -> Iterator[Target]:
        """Open a savepoint that SQLAlchemy knows of, so that a handler's Session on this connection uses one too."""
        target = self.target()
        assert isinstance(target, SqlalchemyTarget)
        nested = target.connection.begin_nested()
        try:
            yield target
            _roll_back_above(nested, target.connection)
            nested.commit()
        except BaseException:
            _roll_back_above(nested, target.connection)
            nested.rollback()
            raise

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
        target = self.target()
        if isinstance(scoped, scoped_session) and isinstance(target, SqlalchemyTarget):
            scoped.registry.set(
                scoped.session_factory(bind=target.connection, binds={}, join_transaction_mode="create_savepoint")
            )
        yield


class DjangoTransaction(TestTransaction):
    """A transaction of a Django connection: that of a TestCase. In a TransactionTestCase it is the application's, so that at
    times none is open.
    """

    def __init__(self, alias: str, schema: str | None) -> None:
        super().__init__(alias, schema)
        self._alias = alias

    @property
    def is_open(self) -> bool:
        from django.db import connections

        return bool(connections[self._alias].in_atomic_block)

    def target(self) -> Target:
        """Return the store's view of the connection, with or without an open transaction: `transaction` opens one."""
        from django.db import connections

        return DjangoTarget(connections[self._alias], self._schema)

    @contextmanager
    def transaction(self, begin: Begin = Begin.WRITE) -> Iterator[Target]:  # noqa: ARG002 - SELECT needs one too, outside
        from django.db import transaction

        with transaction.atomic(using=self._alias):
            target = self.target()
            _count_batches(target)
            yield target


def transaction_of(using: object, schema: str | None) -> TestTransaction:
    """Return the TestTransaction for a `using`. Raises InvalidTarget if that has no open transaction."""
    if isinstance(using, str):
        return DjangoTransaction(using, schema)
    if hasattr(using, "in_atomic_block") and hasattr(using, "alias"):
        return DjangoTransaction(using.alias, schema)
    if isinstance(using, scoped_session):
        using = using()  # the test's session: a handler has another one
    target = target_of(using, schema=schema)
    assert not isinstance(target, DjangoTarget)
    return (SqlalchemyTransaction if isinstance(target, SqlalchemyTarget) else TestTransaction)(using, schema)


def _count_batches(target: Target) -> None:
    """Have the ends of batches counted at once: this transaction may never be committed."""
    message = target.dialect.count_batches_at_once()
    if message is not None:
        target.execute(message, {})


class TransactionEnded(AssertionError):
    """A handler committed or rolled back the transaction of the test."""


class _Aborted(Exception):
    """A statement failed on PostgreSQL, and its transaction was not rolled back."""


def _roll_back_above(nested: Any, connection: Connection) -> None:
    """Roll back savepoints that a handler left open because it never closed its session."""
    while nested.is_active and (top := connection.get_nested_transaction()) not in (nested, None):
        assert top is not None
        top.rollback()


_ENDED = (
    "a handler committed or rolled back the transaction of the test, so the test cannot go on; in tests, make the application's "
    'sessions with bind=connection, join_transaction_mode="create_savepoint", so that commit() ends a savepoint; if the handler '
    "used the test's own session, commit that before drain(), and give the Harness the connection instead"
)
