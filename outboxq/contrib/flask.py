"""The Flask extension. Tasks are declared on an `Outboxq()`, each application has its own database, and the commands
are `flask outboxq …`.

With Flask-SQLAlchemy, `task.enqueue()` writes in the transaction of `db.session`. Tasks run in an application context.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakKeyDictionary

import click
from click.core import ParameterSource
from flask import Flask, Response, current_app, has_app_context, request
from flask.cli import ScriptInfo, with_appcontext
from flask.globals import app_ctx
from sqlalchemy import Engine
from sqlalchemy.orm import scoped_session

from ..cli.framework import ELSEWHERE, Frame, FramedGroup, worker_command
from ..cli.serving.starting import leave_on_signals, starts_worker
from ..context import TaskContext, UnitOfWork
from ..database.engine import configure_sqlite, make_engine
from ..errors import ConfigurationError, InvalidTarget, WebhookInvalid
from ..integration import FrontEnd, Integration
from ..integration.hooks import Hook
from ..integration.sessions import Scope, bind_for, scope_of
from ..integration.uncommitted import belongs_to, forget
from ..model.unknown_options import naming_options
from ..model.wording import IMPORT
from ..outbox import Outbox
from ..store import Store
from ..webhooks import WebhookSource
from .framework_store import FrameworkStore
from .wsgi import read_body

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
    """An Outbox that uses the database of the current Flask application.

    Create it before any application, like `db = SQLAlchemy()`, and declare tasks on it. Within an application context
    it is that application's outbox. Elsewhere it behaves like any other Outbox, so its tasks can be enqueued with
    `using(session)`.
    """

    @naming_options("Outboxq()")
    def __init__(
        self,
        app: Flask | None = None,
        *,
        session: scoped_session[Any] | None = None,
        schema: str | None = None,
        hooks: Iterable[Hook] = (),
        version: str = "",
        retention: timedelta | float | None = None,
        outage_timeout: timedelta | float = Store.outage_timeout,
        source: str | None = None,
    ) -> None:
        """Create an outbox. If `app` is given, initialize the application; see `init_app`.

        `session` is the scoped_session of an application that does not use Flask-SQLAlchemy. `schema` is the PostgreSQL
        schema for outboxq's tables. `hooks`, `version`, `retention`, `outage_timeout` and `source` are the same as for
        `Outbox`; a hook that needs an application context must push one. Raises ConfigurationError for any other kind
        of session, and for a hook that is not a Hook.
        """
        if session is not None and not isinstance(session, scoped_session):
            raise ConfigurationError("session= takes a scoped_session, which gives each handler its own session")
        if _starts_worker(sys.argv[1:]):
            leave_on_signals()  # the rest of the application has not been imported yet
        self._session = session
        self._applications: WeakKeyDictionary[Flask, Application] = WeakKeyDictionary()
        self._store_outside = _StoreOutside(None, schema=schema)
        super().__init__(
            schema=schema,
            integration=FlaskIntegration(self),
            hooks=hooks,
            version=version,
            retention=retention,
            outage_timeout=outage_timeout,
            source=source,
        )
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Give the application its outbox, as `app.extensions["outboxq"]`, and the commands `flask outboxq …`.

        Call this method after Flask-SQLAlchemy's `db.init_app(app)`. The method reads `app.config`:

        * `OUTBOXQ_DATABASE_URL`: the URL of the database. None means Flask-SQLAlchemy's database.
        * `OUTBOXQ_BIND_KEY`: a key in `SQLALCHEMY_BINDS`. None means Flask-SQLAlchemy's default database.
        * `OUTBOXQ_CONFIGURE_SQLITE` (True): call `configure_sqlite` on Flask-SQLAlchemy's engine.
        * `OUTBOXQ_TASKS`: modules that declare tasks. The worker and `flask outboxq upgrade` import them.

        Raises ConfigurationError if these settings do not name exactly one database.
        """
        if "outboxq" in app.extensions:
            raise ConfigurationError("this application already has an outbox; declare all of its tasks on that Outboxq")
        for key, default in DEFAULTS.items():
            app.config.setdefault(key, default)
        self._applications[app] = self._made_for(app)
        app.extensions["outboxq"] = self
        app.cli.add_command(commands())
        app.after_request(self._forget_refused)

    def _forget_refused(self, response: Response) -> Response:
        """Forget the uncommitted tasks from a request that returns an error, so that no warning is logged."""
        application = self.application
        scope = None if response.status_code < 400 or application is None else application.scope
        if scope is not None and scope.session.registry.has():
            forget(scope.session)
        return response

    @property
    def store(self) -> Store:
        """The current application's Store."""
        if self._stand_in is not None:
            return self._stand_in.store
        application = self.application
        if application is not None and application.store is not None:
            return application.store
        return super().store if super().is_bound else self._store_outside

    @property
    def is_bound(self) -> bool:
        """True if the current application or this outbox has a database."""
        application = self.application
        return (application is not None and application.store is not None) or super().is_bound

    @property
    def application(self) -> Application | None:
        """The current application; None outside an application context and in an application without an outbox."""
        return self._applications.get(app_ctx.app) if has_app_context() else None

    def load_tasks(self) -> None:
        """Import the modules in the current application's `OUTBOXQ_TASKS`. Raises ConfigurationError for a module that
        does not exist.
        """
        modules = app_ctx.app.config["OUTBOXQ_TASKS"] if self.application is not None else ()
        for module in [modules] if isinstance(modules, str) else modules:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                    raise  # the module exists, and imports another one that does not
                raise ConfigurationError(
                    f"OUTBOXQ_TASKS names {module!r}, but there is no module {error.name!r}"
                ) from None

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Create a worker for the current application's tasks. The worker's threads push their own application
        contexts.

        Raises ConfigurationError outside an application context.
        """
        from ..worker.worker import Worker

        if self.application is None:
            raise ConfigurationError(
                f"a worker needs a current Flask application whose tasks it can run; run flask outboxq worker, or {_PUSH}"
            )
        self.load_tasks()
        integration = FlaskIntegration(self, app_ctx.app)
        return Worker(self.store, self.tasks, integration=integration, hooks=self.hooks, **options)

    def _store_of(self, engine: Engine) -> _FlaskStore:
        return self._of_application(_FlaskStore(engine, schema=self.schema))

    def _made_for(self, app: Flask) -> Application:
        url, key = app.config["OUTBOXQ_DATABASE_URL"], app.config["OUTBOXQ_BIND_KEY"]
        db = app.extensions.get("sqlalchemy")
        if url is not None and key is not None:
            raise ConfigurationError("OUTBOXQ_DATABASE_URL and OUTBOXQ_BIND_KEY are both set; set only one of them")
        if self._session is not None:
            scope_of(self._session)  # raises ConfigurationError for a session that handlers cannot use
        if url is not None:
            return Application(store=self._store_of(make_engine(url)), session=self._session)
        if db is None or self._session is not None:
            if key is not None:
                raise ConfigurationError("OUTBOXQ_BIND_KEY names a Flask-SQLAlchemy bind: call db.init_app(app) first")
            if not super().is_bound:
                raise ConfigurationError(
                    "this application has no database for its outbox; call Flask-SQLAlchemy's db.init_app(app) first, or "
                    "set OUTBOXQ_DATABASE_URL in its config"
                )
            return Application(session=self._session)
        with app.app_context():
            engines = db.engines
        if key not in engines:
            known = ", ".join(repr(one) for one in engines if one is not None) or "none"
            raise ConfigurationError(
                f"OUTBOXQ_BIND_KEY: Flask-SQLAlchemy has no bind {key!r}; SQLALCHEMY_BINDS has {known}"
            )
        engine = engines[key]
        store = self._store_of(engine)
        if engine.url.get_backend_name() == "sqlite" and app.config["OUTBOXQ_CONFIGURE_SQLITE"]:
            configure_sqlite(engine)
        scope_of(db.session)
        return Application(store=store, db=db, engine=engine)


def webhook_view(outbox: Outbox, source: WebhookSource) -> Callable[[], Response]:
    """Return a view that receives the webhooks from the source, for ``app.add_url_rule("/hooks/erp", view_func=…)``.

    The endpoint is called ``webhooks_`` followed by the source's name. The view returns 204 when the tasks are
    committed, 401 for an invalid signature or timestamp, 413 for a body that is too large, and 405 for any method
    except POST. A database error is raised, and Flask returns 500.
    """

    def receive_webhook() -> Response:
        try:
            body = read_body(source, request.stream.read, request.content_length)
            body = body or request.get_data()  # the application has read it before and Flask has kept it
            outbox.receive_webhook(dict(request.headers), body, source=source)
        except WebhookInvalid as error:
            return Response(str(error), status=error.status, content_type="text/plain; charset=utf-8")
        return Response(status=204)

    receive_webhook.__name__ = f"webhooks_{source.name}".replace(".", "_")  # Flask refuses a dot and a duplicate name
    receive_webhook.methods = ["POST"]  # type: ignore[attr-defined]  # Flask reads it
    return receive_webhook


@dataclass(frozen=True, kw_only=True, slots=True)
class Application:
    """The parts of a Flask application that its Outboxq needs."""

    store: Store | None = None
    """The application's Store. None means the Outboxq's own Store."""
    session: scoped_session[Any] | None = None
    """The Outboxq's scoped_session; None if the application has none, or uses the session of `db`."""
    db: Any = None
    """The Flask-SQLAlchemy extension, if the application uses its `session`."""
    engine: Engine | None = None
    """Flask-SQLAlchemy's engine for the database that contains outboxq's tables."""

    @property
    def scope(self) -> Scope | None:
        """The application's sessions. `db.session` is read each time, because tests replace it."""
        session = self.session if self.db is None else self.db.session
        return None if session is None else scope_of(session)


class FlaskIntegration(Integration):
    """The integration with the current application. A worker's threads have no current application, so the worker
    passes `app`.
    """

    how_to_import = f"{IMPORT}, or list the module in OUTBOXQ_TASKS"

    def __init__(self, outbox: Outboxq, app: Flask | None = None) -> None:
        self.front_end = FrontEnd(program=program(), finds_app=True)
        self._outbox = outbox
        self._app = app

    @property
    def knows_transaction(self) -> bool:
        application = self._outbox.application
        return application is None or application.scope is not None

    @contextmanager
    def transaction(self) -> Iterator[object]:
        application = self._outbox.application
        if application is None:
            raise InvalidTarget(f"there is no current Flask application; {_PUSH}, or {_SAY}")
        if application.scope is None:
            raise InvalidTarget(
                f"this application's outbox has no session; {_SAY}. (With Flask-SQLAlchemy, the session is db.session, unless "
                "OUTBOXQ_DATABASE_URL is set. Otherwise, give Outboxq(session=…) a scoped_session.)"
            )
        session = application.scope.session()
        if application.engine is None:
            yield session
        else:  # db.session writes to several databases
            connection = session.connection(bind_arguments={"bind": bind_for(session, application.engine)})
            belongs_to(connection, session)
            yield connection

    @contextmanager
    def around_handler(self, context: TaskContext) -> Iterator[None]:
        app = self._app or app_ctx.app
        with app.app_context():
            application = self._outbox.application
            scope = None if application is None else application.scope
            with nullcontext() if scope is None else scope.own(context):
                yield

    def around_pages(self, app: object) -> AbstractContextManager[None]:
        if not isinstance(app, Flask) or app.extensions.get("outboxq") is not self._outbox:
            raise ConfigurationError(
                "flask= takes the Flask application of this Outboxq; call outbox.init_app(app) before application(outbox, flask=app)"
            )
        return app.app_context()  # type: ignore[return-value]  # nobody uses what it yields

    def unit_of_work(self, store: Store, *, within: object = None) -> AbstractContextManager[UnitOfWork]:
        application = self._outbox.application
        if application is None or application.scope is None:
            return super().unit_of_work(store, within=within)
        return application.scope.unit_of_work(store, within=within, home=application.engine)


class _FlaskStore(FrameworkStore):
    """One application's Store."""

    @property
    def upgrade_command(self) -> str:
        return f"{program()} upgrade"


class _StoreOutside(Store):
    """The Store that is used outside application contexts."""

    @property
    def bound_engine(self) -> Engine:
        raise ConfigurationError(f"this outbox needs a current Flask application, whose database it uses; {_PUSH}")


def _starts_worker(arguments: Sequence[str]) -> bool:
    """Return whether these arguments of the `flask` program start a worker."""
    words = iter(arguments)
    for word in words:
        if word in {"-A", "--app", "-e", "--env-file"}:
            next(words, None)  # the option's value is a separate word
        elif not word.startswith("-"):
            return word == "outboxq" and starts_worker(list(words))
    return False


_PUSH = "push an application context (with app.app_context():)"
_SAY = "write using(session) with the session or connection that owns the transaction, or using(outbox) for a separate transaction"


def program() -> str:
    """Return the words that the user typed before the command, including ``--app``: ``flask --app shop outboxq``."""
    context = click.get_current_context(silent=True)
    root = None if context is None else context.find_root()
    if root is None or root.get_parameter_source("app") is not ParameterSource.COMMANDLINE:
        return "flask outboxq"
    return shlex.join(["flask", "--app", str(root.ensure_object(ScriptInfo).app_import_path), "outboxq"])


def commands() -> FramedGroup:
    """Return the commands of `outboxq` in the application's context, with Flask's own `worker` and `upgrade`.

    Every Flask application builds this group, so each command imports its modules only when it is used.
    """
    frame = Frame(program=program, store=_store, outbox=_outbox_with_tasks, own=_own, elsewhere=ELSEWHERE)
    return FramedGroup(
        _source,
        frame,
        name="outboxq",
        help="Run and inspect the tasks of the transactional outbox.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _source() -> click.Group:
    from ..cli import main

    return main


def _own() -> Mapping[str, click.Command]:
    """Return the two commands that differ from those of `outboxq`."""
    return {
        "worker": worker_command(_worker, help=cleandoc(_worker.__doc__ or "")),
        "upgrade": click.command("upgrade")(_upgrade),
    }


@click.pass_context
@with_appcontext
def _worker(ctx: click.Context, /, **options: Any) -> None:
    """Run the application's tasks until SIGTERM, SIGINT or SIGHUP.

    After the signal, the worker lets running tasks finish. A second signal, or SIGQUIT, releases them immediately.
    """
    from ..cli.console import EXIT_USAGE, fail
    from ..cli.serving.worker import serve

    written = list(ctx.obj)

    def again(lifeline: int) -> list[str]:
        return [sys.executable, *sys.orig_argv[1:], "--lifeline", str(lifeline)]

    if (options["processes"] > 1 or options["reload"]) and sys.orig_argv[-len(written) :] != written:
        fail(
            "--processes and --reload run the flask command again, but this process was not started by that command",
            EXIT_USAGE,
        )
    serve(_outbox, again, **options)


@with_appcontext
def _upgrade() -> None:
    """Create or upgrade the tables, subscriptions and schedules."""
    from ..cli.console import command_on_database
    from ..cli.db import await_server, upgraded

    with command_on_database():
        outbox = _outbox()
        outbox.load_tasks()
        await_server(outbox.store.bound_engine)
        click.echo(upgraded(outbox), err=True)


@with_appcontext
def _store() -> Store:
    """Push the application's context, which remains pushed until the command ends. Return the application's Store."""
    return _outbox().store


@with_appcontext
def _outbox_with_tasks() -> Outboxq:
    """Push the application's context, which remains pushed until the command ends. Return the outbox with its tasks."""
    outbox = _outbox()
    outbox.load_tasks()
    return outbox


def _outbox() -> Outboxq:
    outbox: Outboxq = current_app.extensions["outboxq"]
    return outbox
