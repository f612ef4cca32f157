"""The sessions of a program: those of its requests, and one of its own for each handler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import ArgumentError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from ..context import TaskContext, UnitOfWork
from ..database.dialects import dialect_for
from ..database.tables import task_executions
from ..errors import ConfigurationError, InvalidTarget
from ..store import Store
from ..store.units import Unit
from .base import Integration


class SessionIntegration(Integration):
    """A program whose requests have one Session each, known to a function: `Outbox(session=…)`.

    With a `scoped_session`, a handler has a session of its own, removed after it; that of a transactional task writes in the
    task's transaction. With any other function, only `enqueue()` and `emit()` ask it; handlers have `ctx.session`.
    """

    def __init__(self, session: scoped_session[Any] | Callable[[], Session | None]) -> None:
        """Raises ConfigurationError for what makes another Session at each call."""
        if isinstance(session, sessionmaker) or (isinstance(session, type) and issubclass(session, Session)):
            raise ConfigurationError(f"session= {_ANEW}")
        self.session = session
        """As it was given."""
        self._scope = scope_of(session) if isinstance(session, scoped_session) else None

    @contextmanager
    def transaction(self) -> Iterator[object | None]:
        session = self.session()
        if self._scope is None and self.session() is not session:
            raise InvalidTarget(f"the function given as session= {_ANEW}")
        yield session

    @contextmanager
    def around_handler(self, context: TaskContext) -> Iterator[None]:  # noqa: ARG002
        if self._scope is None:
            yield
            return
        with self._scope.own():
            yield

    @contextmanager
    def unit_of_work(self, store: Store, *, within: object = None) -> Iterator[UnitOfWork]:
        if self._scope is None:
            with store.unit(using=within) as unit:
                yield unit
            return
        with self._scope.unit_of_work(store, within=within) as joined:
            yield joined


_ANEW = (
    "makes another Session at each call, which nobody would commit; give one that returns the present Session, such as "
    "scoped_session(sessionmaker(engine))"
)


def scope_of(session: scoped_session[Any]) -> Scope:
    """The one of this scoped_session, which keeps it: however many outboxes it is given to, it is listened to once."""
    return session.__dict__.get("_outboxq") or session.__dict__.setdefault("_outboxq", Scope(session))  # type: ignore[no-any-return]


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
    def unit_of_work(self, store: Store, *, within: object = None, home: Engine | None = None) -> Iterator[UnitOfWork]:
        """As `Integration.unit_of_work`, with a session as its factory makes it, which writes there what it would write to `home`.

        `home` is the engine of our tables; None: the session knows. Its other engines are its own, and their transactions
        apart. Raises InvalidTarget where the session is of another database.
        """
        session = self.session.session_factory()
        home = home or _home(session)
        if home is not None and within is None:
            store = _through(home, store)
        with store.unit(using=within) as unit, self.own():
            try:
                _join(session, unit.connection, home)
                self.session.registry.set(session)
                before, self._joined.session = getattr(self._joined, "session", None), session
                try:
                    yield _SessionUnitOfWork(unit, session)
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


class _SessionUnitOfWork:
    """The transaction of a task, with the program's own kind of session in it."""

    def __init__(self, unit: Unit, session: Session) -> None:
        self.connection = unit.connection
        self.session = session
        self.database = unit.database
        self._unit = unit
        self._is_flushed = False

    @property
    def target(self) -> object:
        """In the session's part of it, so that its `rollback()` takes back what was enqueued, as in a request."""
        if self._is_flushed:
            return self._unit.target
        return self.session.connection(bind_arguments={"bind": self.connection})

    def was_interrupted(self, error: BaseException) -> bool:
        return self._unit.was_interrupted(error)

    def flush(self) -> None:
        with self._unit.releasing():
            if self.session.in_transaction():
                self.session.commit()
        self._unit.flush()
        self._is_flushed = True


def _through(home: Engine, store: Store) -> Store:
    """The store on the engine of the sessions: what that sets up (a search path, foreign keys, a map of schemas) must hold."""
    _check_database(home, store.bound_engine)
    if home is store.engine:
        return store
    return type(store)(home, schema=store.schema, clock=store.clock, gone=store.gone)


def _join(session: Session, connection: Connection, home: Engine | None) -> None:
    """Have this one session write on the connection, in savepoints. (Its class is the program's, and chooses engines its own way.)"""
    if home is not None:
        _check_database(home, connection.engine)
    ask = session.get_bind

    def get_bind(*args: Any, **kwargs: Any) -> Engine | Connection:
        bind = ask(*args, **kwargs)
        if bind.engine is not home and not _leads_to_the_same(bind.engine, connection.engine):
            return bind
        if _schemas(bind) != _schemas(connection):
            raise InvalidTarget(
                f"this would be written with schema_translate_map {_schemas(bind)}, but the task's transaction has "
                f"{_schemas(connection)}; write it with the table's own schema, or in a task that is not transactional"
            )
        return connection

    session.get_bind = get_bind  # type: ignore[method-assign]
    session.join_transaction_mode = "create_savepoint"
    session.twophase = False  # the task's transaction has one phase, and only its owner ends it


def _schemas(bind: Engine | Connection) -> object:
    return bind.get_execution_options().get("schema_translate_map")


def _home(session: Session) -> Engine | None:
    """Where it would write to our tables: a session may read elsewhere."""
    try:
        return session.get_bind(clause=task_executions.update()).engine
    except UnboundExecutionError:
        return None


def _check_database(home: Engine, ours: Engine) -> None:
    dialects = [dialect_for(one.dialect.name) for one in (home, ours)]
    names = [dialect.database_name(one.url) for dialect, one in zip(dialects, (home, ours), strict=True)]
    if type(dialects[0]) is not type(dialects[1]) or (None not in names and names[0] != names[1]):
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
    return one.url.database not in (None, "", ":memory:") and first == second
