"""The integration with SQLAlchemy sessions: a request's session, and a separate session for each handler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import ArgumentError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from ..context import TaskContext, UnitOfWork
from ..database.dialects import dialect_for
from ..database.tables import task_executions
from ..errors import ConfigurationError, InvalidTarget
from ..store import Store
from ..store.claims.units_of_work import Unit
from . import Integration
from .uncommitted import forget


class SessionIntegration(Integration):
    """The integration for `Outbox(session=…)`, whose argument is a function that returns the current request's Session.

    With a `scoped_session`, each handler gets a separate session, which is removed afterwards. In a transactional task,
    this session writes in the task's transaction. Any other function is used only by `enqueue()` and `emit()`, and
    handlers then use `ctx.session`.
    """

    def __init__(self, session: scoped_session[Any] | Callable[[], Session | None]) -> None:
        """Raise ConfigurationError for a class or a sessionmaker, which create a new Session on each call."""
        if type(session).__module__.startswith("sqlalchemy.ext.asyncio"):
            raise ConfigurationError(
                "session= takes a function that returns a Session, but this one returns an AsyncSession; leave session= out, and write "
                "await async_session.run_sync(lambda s: task.using(s).enqueue(…))"
            )
        if isinstance(session, sessionmaker) or (isinstance(session, type) and issubclass(session, Session)):
            raise ConfigurationError(f"session= {_ANEW}")
        self.session = session
        """The function that returns the current Session."""
        self._scope = scope_of(session) if isinstance(session, scoped_session) else None

    @property
    def knows_transaction(self) -> bool:
        return True

    def is_in_a_test(self) -> bool:
        """Return whether the current Session has joined a Connection's transaction, which outlives the Session."""
        if isinstance(self.session, scoped_session) and not self.session.registry.has():
            return False
        bind = getattr(self.session(), "bind", None)
        return isinstance(bind, Connection) and bind.in_transaction()

    @contextmanager
    def transaction(self) -> Iterator[object | None]:
        session = self.session()
        if self._scope is None and self.session() is not session:
            raise InvalidTarget(f"the function given as session= {_ANEW}")
        yield session

    def around_handler(self, context: TaskContext) -> AbstractContextManager[None]:
        return super().around_handler(context) if self._scope is None else self._scope.own(context)

    def unit_of_work(self, store: Store, *, within: object = None) -> AbstractContextManager[UnitOfWork]:
        if self._scope is None:
            return super().unit_of_work(store, within=within)
        return self._scope.unit_of_work(store, within=within)


_ANEW = (
    "creates a new Session on each call, and that Session would never be committed; pass a function that returns the current Session, "
    "such as scoped_session(sessionmaker(engine))"
)


def scope_of(session: scoped_session[Any]) -> Scope:
    """Return this scoped_session's Scope. The Scope is stored in the session's attributes, so that several outboxes
    share one listener.
    """
    return session.__dict__.get("_outboxq") or session.__dict__.setdefault("_outboxq", Scope(session))  # type: ignore[no-any-return]


class Scope:
    """A `scoped_session` for handlers. Each handler gets a separate session, which in a transactional task joins the
    task's transaction.
    """

    def __init__(self, session: scoped_session[Any]) -> None:
        """Listen to the sessions. Raises ConfigurationError if they are not created by a sessionmaker."""
        self.session = session
        self._joined = threading.local()
        try:
            event.listen(session, "after_transaction_create", self._refuse_another)
        except ArgumentError:
            raise ConfigurationError(
                "this scoped_session creates its sessions with a custom function, so a transactional task's session could not be "
                "recognized; give it a sessionmaker: scoped_session(sessionmaker(engine))"
            ) from None

    @contextmanager
    def own(self, context: TaskContext | None = None) -> Iterator[None]:
        """Set the thread's session aside for the duration of the block, and remove the session that is created in the
        block.

        `context` belongs to the handler that runs in the block. If the handler fails, nothing is logged about its
        uncommitted tasks.
        """
        registry = self.session.registry
        before = registry() if registry.has() else None
        registry.clear()
        try:
            yield
        finally:
            try:
                if context is not None and context.error is not None and registry.has():
                    forget(registry())
                self.session.remove()
            finally:
                registry.clear()  # even if the session could not be closed
                if before is not None:
                    registry.set(before)

    @contextmanager
    def unit_of_work(self, store: Store, *, within: object = None, home: Engine | None = None) -> Iterator[UnitOfWork]:
        """Open a transaction as `Integration.unit_of_work` does, with a new session that writes in it.

        `home` is the engine for outboxq's tables. None means the engine that the session uses for those tables.
        Anything that the session writes to other engines is committed in separate transactions. Raises InvalidTarget if
        the session and the store use different databases.
        """
        session = self.session.session_factory()
        if home is None and (bind := _bind_of(session)) is not None:
            home = bind.engine  # the session may read with a different engine
        if home is not None and within is None:
            _check_database(home, store.bound_engine)
            # With the sessions' engine, its configuration applies: search path, foreign keys and schema map.
            if home is not store.engine:
                store = type(store)(home, schema=store.schema, clock=store.clock, gone=store.gone)
        with store.unit(using=within) as unit, self.own():
            try:
                join(session, unit.connection, home)
                self.session.registry.set(session)
                before, self._joined.session = getattr(self._joined, "session", None), session
                try:
                    yield _SessionUnitOfWork(unit, session)
                finally:
                    self._joined.session = before
            finally:
                session.close()

    def _refuse_another(self, session: Session, _transaction: Any) -> None:
        """Refuse a second session within a transactional task. This listener is called when a session that the factory
        created begins a transaction.
        """
        own = getattr(self._joined, "session", None)
        if own is not None and own is not session:
            raise InvalidTarget(
                "this session does not belong to the task's transaction: it was created after session.remove(), or in another "
                "application context, so its writes would be committed separately; use the session that the handler had "
                "at the beginning, or Session(engine) for a separate transaction"
            )


class _SessionUnitOfWork:
    """A task's transaction, with a session of the program's own class."""

    def __init__(self, unit: Unit, session: Session) -> None:
        self.connection = unit.connection
        self.session = session
        self.database = unit.database
        self.was_interrupted, self.abandon = unit.was_interrupted, unit.abandon
        self._unit = unit
        self._is_flushed = False

    @property
    def target(self) -> object:
        """The session's savepoint. The session's `rollback()` therefore undoes an enqueue, as in a request."""
        if self._is_flushed:
            return self._unit.target
        return self.session.connection(bind_arguments={"bind": self.connection})

    def flush(self) -> None:
        with self._unit.releasing():
            if self.session.in_transaction():
                self.session.commit()
        self._unit.flush()
        self._is_flushed = True


def join(session: Session, connection: Connection, home: Engine | None = None) -> None:
    """Make this session write on the connection, in savepoints, regardless of how its class chooses engines. The
    session's writes to other databases are not affected.
    """
    if home is not None:
        _check_database(home, connection.engine)
    ask = session.get_bind

    def get_bind(*args: Any, **kwargs: Any) -> Engine | Connection:
        bind = ask(*args, **kwargs)
        if bind.engine is not home and not _leads_to_the_same(bind.engine, connection.engine):
            return bind
        if _schemas(bind) != _schemas(connection):
            raise InvalidTarget(
                f"the session would write with schema_translate_map {_schemas(bind)}, but the task's transaction has "
                f"{_schemas(connection)}; give the table its own schema, or write in a task that is not transactional"
            )
        return connection

    session.get_bind = get_bind  # type: ignore[method-assign]
    session.join_transaction_mode = "create_savepoint"
    session.twophase = False  # the task's transaction does not use two phases, and its owner ends it


def _schemas(bind: Engine | Connection) -> object:
    return bind.get_execution_options().get("schema_translate_map")


def bind_for(session: Session, home: Engine) -> Engine | Connection:
    """Return the connection that the session uses for outboxq's tables, if it has joined a transaction in this engine's
    database, as in a test; otherwise the engine.
    """
    bind = _bind_of(session)
    return bind if isinstance(bind, Connection) and _leads_to_the_same(bind.engine, home) else home


def _bind_of(session: Session) -> Engine | Connection | None:
    """Return the engine or connection that the session uses to write to outboxq's tables; None if it has neither."""
    try:
        return session.get_bind(clause=_OUR_WRITE)
    except UnboundExecutionError:
        return None


_OUR_WRITE = task_executions.update()


def _check_database(home: Engine, ours: Engine) -> None:
    dialects = [dialect_for(one.dialect.name) for one in (home, ours)]
    names = [dialect.database_name(one.url) for dialect, one in zip(dialects, (home, ours), strict=True)]
    if type(dialects[0]) is not type(dialects[1]) or (None not in names and names[0] != names[1]):
        raise InvalidTarget(
            f"this program's sessions use the database {names[0]!r}, but the outbox is bound to {names[1]!r}; bind both to "
            "one database, because a transactional task writes in the outbox's database"
        )


def _leads_to_the_same(one: Engine, other: Engine) -> bool:
    """Return whether two engines use the same database, according to their URLs."""
    if one.pool is other.pool:
        return True
    urls = (one.url, other.url)
    places = [(url.get_backend_name(), url.host, url.port, url.database, url.query.get("host")) for url in urls]
    return one.url.database not in (None, "", ":memory:") and places[0] == places[1]
