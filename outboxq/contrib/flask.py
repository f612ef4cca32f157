"""Flask: tasks are declared on an `Outboxq()`, and each application that is made of it has its own database.

With Flask-SQLAlchemy, `task.enqueue()` writes in the transaction of `db.session`; a task runs in an application context.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakKeyDictionary

from flask import Flask, has_app_context
from flask.globals import app_ctx
from sqlalchemy import Engine
from sqlalchemy.orm import scoped_session

from ..context import TaskContext, UnitOfWork
from ..database.engine import configure_sqlite, make_engine
from ..database.target import Target
from ..errors import ConfigurationError, InvalidTarget
from ..integration.base import Integration
from ..integration.front_end import FrontEnd
from ..integration.sessions import Scope, scope_of
from ..outbox import Outbox
from ..store import Store
from .upgrading import upgraded_by

if TYPE_CHECKING:
    from ..worker.options import WorkerOptions
    from ..worker.worker import Worker


DEFAULTS = {
    "OUTBOXQ_DATABASE_URL": None,
    "OUTBOXQ_BIND_KEY": None,
    "OUTBOXQ_CONFIGURE_SQLITE": True,
    "OUTBOXQ_TASKS": (),
}


class Outboxq(Outbox):
    """An Outbox that is, in each Flask application, in that application's database.

    Made before any application, as `db = SQLAlchemy()` is: tasks are declared on it. Within an application context it is the
    application's outbox; elsewhere it is what any Outbox is, so that its tasks can be enqueued with `using(session)`.
    """

    def __init__(
        self, app: Flask | None = None, *, session: scoped_session[Any] | None = None, schema: str | None = None
    ) -> None:
        """`session` is the application's scoped_session, where it has one without Flask-SQLAlchemy.

        `schema` is the PostgreSQL schema of our tables. `app` is initialised at once; see `init_app`.
        """
        if session is not None and not isinstance(session, scoped_session):
            raise ConfigurationError("session= takes a scoped_session; a handler is given one of its own from there")
        self._session = session
        self._applications: WeakKeyDictionary[Flask, Application] = WeakKeyDictionary()
        self._nowhere = _Nowhere(None, schema=schema)
        super().__init__(schema=schema, integration=FlaskIntegration(self))
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Give the application its outbox, as `app.extensions["outboxq"]`, and the commands `flask outboxq …`.

        With Flask-SQLAlchemy after `db.init_app(app)`. Reads `app.config`:

        * `OUTBOXQ_DATABASE_URL`: where there is no Flask-SQLAlchemy. Else the outbox is where `db` is,
        * `OUTBOXQ_BIND_KEY`: in one of `SQLALCHEMY_BINDS`; None: in the default database,
        * `OUTBOXQ_CONFIGURE_SQLITE` (True): whether `configure_sqlite` is done to Flask-SQLAlchemy's engine,
        * `OUTBOXQ_TASKS`: modules with tasks, imported by the worker and by `flask outboxq upgrade`.

        Raises ConfigurationError where that makes no database, or two.
        """
        if "outboxq" in app.extensions:
            raise ConfigurationError("this application has an outbox already; one Outboxq holds all of its tasks")
        for key, default in DEFAULTS.items():
            app.config.setdefault(key, default)
        self._applications[app] = self._made_for(app)
        app.extensions["outboxq"] = self
        from .flask_commands import commands

        app.cli.add_command(commands())

    @property
    def store(self) -> Store:
        """Of the application whose context this is."""
        application = self.application
        if application is not None and application.store is not None:
            return application.store
        return super().store if super().is_bound else self._nowhere

    @property
    def is_bound(self) -> bool:
        application = self.application
        return (application is not None and application.store is not None) or super().is_bound

    @property
    def application(self) -> Application | None:
        """What is known of the application whose context this is. None: outside of any, or of one without an outbox."""
        return self._applications.get(app_ctx.app) if has_app_context() else None

    def load_tasks(self) -> None:
        """Import the modules that `OUTBOXQ_TASKS` names, in the application's context."""
        modules = app_ctx.app.config["OUTBOXQ_TASKS"] if self.application is not None else ()
        for module in [modules] if isinstance(modules, str) else modules:
            importlib.import_module(module)

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for the tasks of the application whose context this is; its threads open contexts of their own."""
        from ..worker.worker import Worker

        if self.application is None:
            raise ConfigurationError(f"a worker runs an application's tasks; {_PUSH}")
        self.load_tasks()
        integration = FlaskIntegration(self, app_ctx.app)
        return Worker(self.store, self.tasks, integration=integration, **options)

    def _engine(self) -> Engine:
        return self.store.bound_engine

    def _made_for(self, app: Flask) -> Application:
        url, key = app.config["OUTBOXQ_DATABASE_URL"], app.config["OUTBOXQ_BIND_KEY"]
        db = app.extensions.get("sqlalchemy")
        if url is not None and key is not None:
            raise ConfigurationError("OUTBOXQ_DATABASE_URL and OUTBOXQ_BIND_KEY name two databases; set one of them")
        if self._session is not None:
            scope_of(self._session)  # or it is refused here
        if url is not None:
            return Application(store=_FlaskStore(make_engine(url), schema=self.schema), session=self._session)
        if db is None or self._session is not None:
            if key is not None:
                raise ConfigurationError("OUTBOXQ_BIND_KEY is a bind of Flask-SQLAlchemy: call db.init_app(app) first")
            if not super().is_bound:
                raise ConfigurationError(
                    "this application says no database for its outbox: call db.init_app(app) of Flask-SQLAlchemy first, or "
                    "set OUTBOXQ_DATABASE_URL in its config"
                )
            return Application(session=self._session)
        with app.app_context():
            engines = db.engines
        if key not in engines:
            raise ConfigurationError(f"OUTBOXQ_BIND_KEY: Flask-SQLAlchemy has no bind {key!r}; see SQLALCHEMY_BINDS")
        engine = engines[key]
        store = _FlaskStore(engine, schema=self.schema)
        if engine.url.get_backend_name() == "sqlite" and app.config["OUTBOXQ_CONFIGURE_SQLITE"]:
            configure_sqlite(engine)
        scope_of(db.session)
        return Application(store=store, db=db, engine=engine)


@dataclass(frozen=True, kw_only=True, slots=True)
class Application:
    """What an Outboxq knows of one Flask application."""

    store: Store | None = None
    """None: the one that the Outboxq has of its own."""
    session: scoped_session[Any] | None = None
    """Its own. None: it has none that we know, or `db` knows."""
    db: Any = None
    """Flask-SQLAlchemy, where its `session` is the application's."""
    engine: Engine | None = None
    """Flask-SQLAlchemy's, for the database that our tables are in."""

    @property
    def scope(self) -> Scope | None:
        """Its sessions. Asked of `db` each time: tests put another `db.session` there."""
        session = self.session if self.db is None else self.db.session
        return None if session is None else scope_of(session)


class FlaskIntegration(Integration):
    """The application whose context this is; for a worker, whose threads have none, the one it was made in."""

    front_end = FrontEnd(program="flask outboxq", worker="flask outboxq worker")

    def __init__(self, outbox: Outboxq, app: Flask | None = None) -> None:
        self._outbox = outbox
        self._app = app

    @contextmanager
    def transaction(self) -> Iterator[object]:
        application = self._outbox.application
        if application is None:
            raise InvalidTarget(f"it is not known which application this is of; {_PUSH}, or {_SAY}")
        if application.scope is None:
            raise InvalidTarget(
                f"this application has no session that its outbox knows of; {_SAY}. (With Flask-SQLAlchemy it is db.session, "
                "unless OUTBOXQ_DATABASE_URL is set; else give Outboxq(session=…) a scoped_session.)"
            )
        session = application.scope.session()
        if application.engine is None:
            yield session
        else:  # of several databases
            yield session.connection(bind_arguments={"bind": application.engine})

    @contextmanager
    def around_handler(self, context: TaskContext) -> Iterator[None]:  # noqa: ARG002
        app = self._app or app_ctx.app
        with app.app_context():
            application = self._outbox.application
            if application is None or application.scope is None:
                yield
                return
            with application.scope.own():
                yield

    @contextmanager
    def unit_of_work(self, store: Store, *, within: object = None) -> Iterator[UnitOfWork]:
        application = self._outbox.application
        if application is None or application.scope is None:
            with store.unit(using=within) as unit:
                yield unit
            return
        with application.scope.unit_of_work(store, within=within, home=application.engine) as joined:
            yield joined


class _FlaskStore(Store):
    """An application's own."""

    def ensure_file(self) -> None:
        with upgraded_by(_UPGRADE):
            super().ensure_file()

    def _check_schema(self, target: Target) -> None:
        with upgraded_by(_UPGRADE):
            super()._check_schema(target)


class _Nowhere(Store):
    """Outside of any application context."""

    @property
    def bound_engine(self) -> Engine:
        raise ConfigurationError(f"this outbox is in the database of a Flask application; {_PUSH}")


_UPGRADE = "flask outboxq upgrade"
_PUSH = "push an application's context: with app.app_context():"
_SAY = (
    "write using(session) with the session or connection whose transaction it is, or using(outbox) for one of its own"
)
