"""Where a harness works: the test's own transaction, Django's connection, or transactions of the outbox's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from ..database.dialects import Begin
from ..database.target import DjangoTarget, SqlalchemyTarget, Target, target_of
from ..integration.base import Integration
from ..integration.sessions import SessionIntegration
from .errors import TransactionEnded


class TestTransaction(ABC):
    """A transaction that a test has opened, and may roll back. Django's may also be none at present."""

    __test__ = False  # pytest would collect it for its name

    def __init__(self, using: object, schema: str | None) -> None:
        self._using = using
        self._schema = schema

    @property
    def is_open(self) -> bool:
        """Whether what is written now is part of a transaction of the test's."""
        return True

    @property
    def within(self) -> object:
        """For `Integration.unit_of_work`: the open transaction; None: there is none."""
        return self._using if self.is_open else None

    def target(self) -> Target:
        """Raises InvalidTarget where no transaction is open."""
        return target_of(self._using, schema=self._schema)

    @contextmanager
    def transaction(self, begin: Begin = Begin.WRITE) -> Iterator[Target]:
        """A part of it, taken back as a whole with any error."""
        target = self.target()
        if begin is Begin.READ:
            yield target
            return
        with target.atomic(savepoint=True):
            yield target

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around a handler: whatever it does to the transaction, what comes after it can go on.

        What it wrote stays, even if it failed, as what it had committed would; unless a database error has aborted it all.
        """
        if not self.is_open:
            yield
            return
        is_usable = False
        try:
            with suppress(_Aborted), self._savepoint() as target:
                yield
                try:
                    target.dialect.statements.now.run(target.execute, {"now": target.dialect.moment(None)})
                except Exception as error:
                    raise _Aborted from error
                is_usable = True
        except Exception as error:
            if is_usable:
                raise TransactionEnded(_ENDED) from error
            raise

    @abstractmethod
    def _savepoint(self) -> Any: ...

    def flush(self) -> None:  # noqa: B027 - most hold nothing back
        """What the test has not written yet, a handler could not see."""

    def expire(self) -> None:  # noqa: B027 - nor keep what they read
        """What handlers wrote is to be read anew."""

    @contextmanager
    def sessions(self, integration: Integration) -> Iterator[None]:  # noqa: ARG002 - for those that have any
        """Inside the integration's `around_handler`: the session that a handler has of its own writes in the test's transaction."""
        yield


class RawTransaction(TestTransaction):
    """A psycopg or sqlite3 connection."""

    def _savepoint(self) -> Any:
        return self.transaction()


class SqlalchemyTransaction(TestTransaction):
    """A Session or a Connection."""

    @contextmanager
    def _savepoint(self) -> Iterator[Target]:
        """One that SQLAlchemy knows of: a Session that a handler makes on this connection then keeps to a savepoint too."""
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
    """A Django connection: in a TestCase inside its transaction, in a TransactionTestCase as the application would."""

    def __init__(self, alias: str, schema: str | None) -> None:
        super().__init__(alias, schema)
        self._alias = alias

    @property
    def is_open(self) -> bool:
        from django.db import connections

        return bool(connections[self._alias].in_atomic_block)

    def target(self) -> Target:
        """Whether a transaction is open or not: `transaction` opens one."""
        from django.db import connections

        return DjangoTarget(connections[self._alias], self._schema)

    @contextmanager
    def transaction(self, begin: Begin = Begin.WRITE) -> Iterator[Target]:  # noqa: ARG002 - SELECT needs one too, outside
        from django.db import transaction

        with transaction.atomic(using=self._alias):
            yield self.target()

    def _savepoint(self) -> Any:
        return self.transaction()


def transaction_of(using: object, schema: str | None) -> TestTransaction:
    """Raises InvalidTarget for what has no open transaction."""
    if isinstance(using, str):
        return DjangoTransaction(using, schema)
    if hasattr(using, "in_atomic_block") and hasattr(using, "alias"):
        return DjangoTransaction(using.alias, schema)
    if isinstance(using, scoped_session):
        using = using()  # the one of now: a handler has another one
    target = target_of(using, schema=schema)
    assert not isinstance(target, DjangoTarget)
    return (SqlalchemyTransaction if isinstance(target, SqlalchemyTarget) else RawTransaction)(using, schema)


class _Aborted(Exception):
    """A statement has failed on PostgreSQL, and nobody has rolled back."""


def _roll_back_above(nested: Any, connection: Connection) -> None:
    """Savepoints that a handler left open, of a session that it never closed."""
    while nested.is_active and (top := connection.get_nested_transaction()) not in (nested, None):
        assert top is not None
        top.rollback()


_ENDED = (
    "a handler has committed or rolled back the transaction of the test, which cannot go on; make the application's sessions "
    'in tests with bind=connection, join_transaction_mode="create_savepoint", so that their commit() ends a savepoint; if it was '
    "the very session of the test, commit that before drain(), and give the Harness the connection instead of it"
)
