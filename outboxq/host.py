"""What the program around a task brings along: where its requests write, and what its handlers need about them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import ArgumentError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from .context import TaskContext, Unit
from .dialects import dialect_for
from .errors import ConfigurationError, InvalidTarget
from .model import Outcome
from .store import Store
from .tables import task_executions


class Host:
    """A program without a framework. One for a framework overrides what it knows better."""

    @contextmanager
    def transaction(self) -> Iterator[object | None]:
        """The transaction that is written in when none was named: what `using()` would be given. None: nobody knows."""
        yield None

    @contextmanager
    def handling(self, context: TaskContext) -> Iterator[None]:  # noqa: ARG002 - for those who override it
        """Around a handler and the transaction of its task, in its thread. What it raises at its beginning fails the attempt."""
        yield

    def unit(self, store: Store, *, within: object = None) -> AbstractContextManager[Unit]:
        """The transaction of a transactional task; `within` a test's own transaction, a savepoint of that.

        Committed after the block, rolled back with any error of it.
        """
        return store.unit(using=within)

    def handled(self, context: TaskContext, outcome: Outcome) -> None:
        """The handler ended so (`context.error` is what it raised): about to be written, or committed if it was transactional."""

    def leave(self) -> None:
        """A handler thread ends: close what it opened."""


class SessionHost(Host):
    """A program whose requests have one Session each, known to a function: `Outbox(session=…)`.

    With a `scoped_session`, a handler has a session of its own, removed after it; that of a transactional task writes in the
    task's transaction. With any other function, only `enqueue()` and `emit()` ask it; handlers have `ctx.session`.
    """

    def __init__(self, session: scoped_session[Any] | Callable[[], Session | None]) -> None:
        self._session = session
        self._scope = Scope(session) if isinstance(session, scoped_session) else None

    @contextmanager
    def transaction(self) -> Iterator[object | None]:
        yield self._session()

    @contextmanager
    def handling(self, context: TaskContext) -> Iterator[None]:  # noqa: ARG002
        if self._scope is None:
            yield
            return
        with self._scope.own():
            yield

    @contextmanager
    def unit(self, store: Store, *, within: object = None) -> Iterator[Unit]:
        with store.unit(using=within) as unit:
            if self._scope is None:
                yield unit
                return
            with self._scope.joined(unit) as joined:
                yield joined


class Scope:
    """A `scoped_session`, for handlers: each has a session of its own, that of a transactional task in its transaction."""

    def __init__(self, session: scoped_session[Any]) -> None:
        """Raises ConfigurationError for one that is not made of a sessionmaker."""
        self.session = session
        self._joined = threading.local()
        try:
            event.listen(session, "after_transaction_create", self._refuse_another)
        except ArgumentError:
            raise ConfigurationError(
                "this scoped_session makes its sessions by a function of its own, so that those of a transactional task could "
                "not be told from others; give it a sessionmaker: scoped_session(sessionmaker(engine))"
            ) from None

    @contextmanager
    def own(self) -> Iterator[None]:
        """Without the session that this thread has, which is given back to it; one that is made meanwhile is removed."""
        registry = self.session.registry
        before = registry() if registry.has() else None
        registry.clear()
        try:
            yield
        finally:
            try:
                self.session.remove()
            finally:
                registry.clear()  # also where closing the session failed
                if before is not None:
                    registry.set(before)

    @contextmanager
    def joined(self, unit: Unit, *, home: Engine | None = None) -> Iterator[Unit]:
        """With a session as its factory makes it, which writes in the transaction of `unit` what it would write to `home`.

        `home` is the engine of our tables; None: the session knows. Its other engines are its own, and their transactions
        apart. Raises InvalidTarget where the session is of another database.
        """
        with self.own():
            session = self.session.session_factory()
            try:
                _join(session, unit.connection, home or _home(session))
                self.session.registry.set(session)
                before, self._joined.session = getattr(self._joined, "session", None), session
                try:
                    yield _Joined(unit, session)
                finally:
                    self._joined.session = before
            finally:
                session.close()

    def _refuse_another(self, session: Session, _transaction: Any) -> None:
        """Called when a session of the factory begins."""
        own = getattr(self._joined, "session", None)
        if own is not None and own is not session:
            raise InvalidTarget(
                "this session is not the one of the task's transaction: it was made after session.remove(), or in another "
                "application context, and what it writes would be committed apart; use the session that the handler began "
                "with, or Session(engine) for what is to be committed apart"
            )


class _Joined:
    """The transaction of a task, with the program's own kind of session in it."""

    def __init__(self, unit: Unit, session: Session) -> None:
        self.target = unit.target
        self.connection = unit.connection
        self.session = session
        self._unit = unit

    def flush(self) -> None:
        if self.session.in_transaction():
            self.session.commit()
        self._unit.flush()


def _join(session: Session, connection: Connection, home: Engine | None) -> None:
    """Have this one session write on the connection, in savepoints. (Its class is the program's, and chooses engines its own way.)"""
    if home is not None:
        _check_database(home, connection.engine)
    ask = session.get_bind

    def get_bind(*args: Any, **kwargs: Any) -> Engine | Connection:
        bind = ask(*args, **kwargs)
        ours = bind.engine is home or _leads_to_the_same(bind.engine, connection.engine)
        return connection if ours else bind

    session.get_bind = get_bind  # type: ignore[method-assign]
    session.join_transaction_mode = "create_savepoint"
    session.twophase = False  # the task's transaction has one phase, and only its owner ends it


def _home(session: Session) -> Engine | None:
    """Where it would write to our tables: a session may read elsewhere."""
    try:
        return session.get_bind(clause=task_executions.update()).engine
    except UnboundExecutionError:
        return None


def _check_database(home: Engine, ours: Engine) -> None:
    names = [dialect_for(one.dialect.name).database_name(one.url) for one in (home, ours)]
    if home.dialect.name != ours.dialect.name or (None not in names and names[0] != names[1]):
        raise InvalidTarget(
            f"the sessions of this program are of the database {names[0]!r}, but the outbox is bound to {names[1]!r}; a "
            "transactional task writes where the outbox is"
        )


def _leads_to_the_same(one: Engine, other: Engine) -> bool:
    """Whether two engines are of one database, as far as their URLs say so."""
    if one.pool is other.pool:
        return True
    first, second = (
        (
            engine.url.get_backend_name(),
            engine.url.host,
            engine.url.port,
            engine.url.database,
            engine.url.query.get("host"),
        )
        for engine in (one, other)
    )
    return one.url.database is not None and first == second
