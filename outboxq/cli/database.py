"""The database that a command works on, chosen by URL or by application, and the wording of follow-up commands."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from ..errors import ConfigurationError
from ..integration import FrontEnd
from ..model.unknown_options import nearest
from .console import command_on_database, fail, imported, json_option, merged
from .groups import DATABASE_PARAMETERS
from .parameters import option, span_option, stacked

if TYPE_CHECKING:
    from types import ModuleType

    from click.shell_completion import CompletionItem
    from sqlalchemy.engine import URL, Engine

    from ..outbox import Outbox
    from ..store import Cure, Explanation, Problem, Store

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., Any])

DATABASE_URL = "OUTBOXQ_DATABASE_URL"
APP = "OUTBOXQ_APP"

FRONT_END = "outboxq.front_end"
"""The key in `Context.meta` for the FrontEnd of a program whose command line click cannot see, such as manage.py."""

OUTBOX = "outboxq.outbox"
"""The key in `Context.meta` for a function that returns the application's outbox with its tasks, if the command has an
application.
"""

url_option = option(
    "--url",
    envvar=DATABASE_URL,
    show_envvar=True,
    help="URL of the database. To hide a password from other users on the machine, set the environment variable instead.",
)
schema_option = option(
    "--schema",
    envvar="OUTBOXQ_SCHEMA",
    show_envvar=True,
    help="PostgreSQL schema of outboxq's tables. Cannot be used with APP.",
)
app_option = option(
    "-A", "--app", envvar=APP, show_envvar=True, metavar="APP", help="Application, such as shop:outbox (module:outbox)."
)


rounds_options = stacked(
    span_option(
        "--lock-timeout",
        help="Maximum duration of one attempt to lock the tables, during which other sessions wait (PostgreSQL).",
        default="900ms",
    ),
    span_option(
        "--wait", help="Total time to wait for other transactions that use the tables (PostgreSQL).", default="2m"
    ),
)
"""Adds `--lock-timeout` and `--wait` to a command that locks whole tables. Both values are passed as time spans."""
app_argument = click.argument("app_argument", required=False, metavar="[APP]")


def database_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--url`, `--schema`, `--app`, `--json`, and APP as the last argument. The command receives the Store as
    `store`.
    """
    return database_options_after_ids(app_argument(command))


def database_options_after_ids(command: Callable[P, R]) -> Callable[P, R]:
    """Add the same options, but not the argument APP, to a command that takes any number of arguments."""

    @json_option
    @url_option
    @schema_option
    @app_option
    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        values = {name: kwargs.pop(name, None) for name in DATABASE_PARAMETERS}
        with opened(given(click.get_current_context(), values)) as store:
            if not getattr(command, "any_schema", False):
                store.ensure_current()
            kwargs["store"] = store
            return command(*args, **kwargs)

    return wrapped


def any_schema(command: C) -> C:
    """Mark a command's function as able to run even if the tables are missing, too old or too new."""
    command.any_schema = True  # type: ignore[attr-defined]
    return command


def opens_app(command: C) -> C:
    """Mark a command's function as one that opens the application itself: from APP or, in a framework, through
    `present_outbox()`.
    """
    command.opens_app = True  # type: ignore[attr-defined]
    return command


def run_on_store(command: click.Command, store: Callable[[], Store], /, **options: Any) -> None:
    """Run a command decorated with `database_options` on a known database. `options` are the command's other
    parameters.
    """
    run: Callable[..., Any] = command.callback.__wrapped__  # type: ignore[union-attr]  # the command's function
    with command_on_database():
        known = store()
        with naming_locks(known):
            if not getattr(run, "any_schema", False):
                known.ensure_current()
            run(store=known, **options)


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The database named on the command line or, failing that, in the environment."""

    url: str | None = None
    schema: str | None = None
    app: str | None = None
    from_environment: bool = False
    """True if the URL comes from the environment."""
    schema_from_environment: bool = False

    @property
    def has_own_schema(self) -> bool:
        """True if the command line names a schema."""
        return self.schema is not None and not self.schema_from_environment

    @property
    def upgrade(self) -> str:
        """The command that creates the tables in this database, as a user types it. The command never contains a
        password.
        """
        words = ["outboxq upgrade"]
        if self.app is not None:
            words.append(shlex.quote(self.app))
        elif self.has_own_schema:
            words.append(f"--schema {shlex.quote(str(self.schema))}")
        if self.url is not None:
            words.append(f"(it also reads {DATABASE_URL})" if self.from_environment else f"--url {shown(self.url)}")
        return " ".join(words)


def shown(url: str | URL) -> str:
    """Return the URL quoted for a shell, or an ellipsis if it contains a password."""
    from ..database.engine import parse_url

    try:
        parsed = parse_url(url)
    except ConfigurationError:  # the error is reported when the URL is used
        return "…"
    if parsed.password is not None or any("password" in name.lower() for name in parsed.query):
        return "… (the same address)"
    return shlex.quote(url if isinstance(url, str) else parsed.render_as_string())


def given(context: click.Context, values: Mapping[str, Any], *, app: str | None = None) -> Given:
    """Return the database named by `values`, the parameters of `database_options`. The command line takes precedence.

    `app` is given if the command takes APP from another argument. Exit if no database is given, or if two applications
    are given.
    """
    typed = {name: is_typed(context, name) for name in ("url", "schema", "app")}
    argument = app if app is not None else values.get("app_argument")
    url, chosen = values["url"], one_app(context, argument, values["app"])
    app_typed = argument is not None or typed["app"]
    if app_typed and not typed["url"]:
        url = None
    elif typed["url"] and not app_typed:
        chosen = None
    if url is None and chosen is None:
        cure = f"give an application (module:outbox, e.g. shop:outbox) or --url, or set {APP} or {DATABASE_URL}"
        fail(f"no database is given; {cure}")
    sources: dict[str, Any] = {"from_environment": not typed["url"], "schema_from_environment": not typed["schema"]}
    return Given(url=url, schema=values["schema"], app=chosen, **sources)


def one_app(context: click.Context, argument: str | None, option: str | None) -> str | None:
    """Return a command's APP from its argument or from `--app`. Exit if the two differ."""
    if argument is not None and option not in (None, argument) and is_typed(context, "app"):
        likely = _likely(context, argument)
        fail(f"two applications are given, {argument} and {option}; give only one of them{likely}")
    return option if argument is None else argument


@contextmanager
def opened(found: Given) -> Iterator[Store]:
    """Open this database's Store for the block. Errors are reported as in `speaking_plainly`."""
    from ..database.engine import make_engine
    from ..store import Store

    with command_on_database(upgrade=found.upgrade):
        if found.app is None:
            store = Store(make_engine(found.url or ""), schema=found.schema)
        else:
            outbox = open_outbox(found)
            store = outbox.store
            click.get_current_context().meta[OUTBOX] = lambda: outbox
        store.outage_timeout = _OUTAGE
        with disposing(store.bound_engine), naming_locks(store):
            yield store


@contextmanager
def naming_locks(store: Store) -> Iterator[None]:
    """Raise TablesLocked, which names the owner of the lock, if a statement in the block cannot get a lock."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        if (locked := store.why_locked(error)) is None:
            raise
        raise locked from error


def present_outbox() -> Outbox | None:
    """Return the outbox of the command's application, with its tasks; None if only a database was given."""
    outbox: Callable[[], Outbox] | None = click.get_current_context().meta.get(OUTBOX)
    return None if outbox is None else outbox()


@contextmanager
def disposing(engine: Engine) -> Iterator[Engine]:
    """Close the engine's connections after the block."""
    try:
        yield engine
    finally:
        engine.dispose()


def fail_without_database(app: str, outbox: Outbox, cure: str) -> NoReturn:
    """Exit because the outbox has no database. A framework's outbox uses its application's database, and only the
    framework's own command sets up that application.
    """
    program = outbox.integration.front_end.program
    if program == FrontEnd().program:
        fail(f"{app} has no database: {cure}")
    words = [program, *click.get_current_context().command_path.split()[1:]]
    fail(f"{app} has no database of its own, because it uses its application's database; run: {' '.join(words)}")


def open_outbox(found: Given) -> Outbox:
    """Return APP's outbox. If APP has no database, bind the outbox to the given URL."""
    from ..database.engine import parse_url

    assert found.app is not None, "only an application has an outbox"
    outbox = load(found.app)
    if found.url is not None and not outbox.is_bound:
        outbox.bind(found.url)
    try:
        engine = outbox.store.bound_engine
    except ConfigurationError as error:
        fail_without_database(found.app, outbox, str(error))
    if found.url is not None and address(engine.url) != address(parse_url(found.url)):
        other = DATABASE_URL if found.from_environment else "--url"
        fail(f"{found.app} and {other} name different databases; give only one of them")
    if found.has_own_schema and found.schema != outbox.schema:
        fail(f"--schema applies only to --url; leave it out, because {found.app} chooses its own schema")
    return outbox


def address(url: URL) -> tuple[object, ...]:
    """Return the parts of a URL that identify its database and role."""
    asked = frozenset((name, value) for name, value in url.query.items() if name in {"host", "port", "service"})
    return url.get_backend_name(), url.host, url.port, url.database, url.username, asked


def is_typed(context: click.Context, name: str) -> bool:
    """Return whether an option was given on the command line rather than in the environment."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def load(app: str) -> Outbox:
    """Return the Outbox that `module:name` refers to, either directly or by naming one of its tasks. The working
    directory is put on Python's path.

    Exit if APP is wrong. Raise ConfigurationError if the module needs psycopg, but psycopg is not installed.
    """
    from ..outbox import Outbox
    from ..task import Task

    found, module_name, name = named(app), *_parts(app)
    if isinstance(found, Task):
        found = found.outbox
    if not isinstance(found, Outbox):
        known = [one for one, value in vars(sys.modules[module_name]).items() if isinstance(value, Outbox)]
        any_of = f"; did you mean {' or '.join(map(repr, known))}?" if known else f"; {_written(app)}"
        cure = nearest(name, known) or any_of
        fail(f"{module_name} has no Outbox called {name!r}{cure}")
    if found.integration.needs_front_end:
        cure = f"run: python {found.integration.front_end.program} …"
        fail(f"{app} is the outbox of a framework, and the framework must be set up first; {cure}")
    return found


def named(app: str) -> object:
    """Import the module in `module:name`, and return the object with this name; None if the module does not have it.

    Exit or raise as `load` does.
    """
    module_name, name = _parts(app)
    written = _written(app)
    if "://" in app:  # it may contain a password
        fail(f"APP is the URL of a database; give it with --url; {written}")
    if not names_module(module_name):
        fail(f"{module_name!r} is not the name of a module; {written}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    return getattr(_imported(module_name, written), name, None)


def _parts(app: str) -> tuple[str, str]:
    """Return the names of the module and of the object in it."""
    module_name, _, name = app.partition(":")
    return module_name, name or "outbox"


def _written(app: str) -> str:
    """Return the end of a message about an invalid APP."""
    likely = _likely(click.get_current_context(silent=True), app)
    return f"write APP as module:outbox, e.g. shop.tasks:outbox{likely}"


def _likely(context: click.Context | None, word: str) -> str:
    """Return the end of a message about an invalid APP: what the word probably means, and the line to write."""
    from .guesses import option_for

    if context is None or "://" in word or context.params.get("app_argument") != word:
        return ""
    command = context.command_path.removeprefix(context.find_root().command_path).strip()
    if (found := option_for(word, command=command)) is None:
        return ""
    meaning, option = found
    own = [one for one in context.command.params if isinstance(one, click.Argument) and one.name != "app_argument"]
    before = [shlex.quote(str(value)) for one in own if (value := context.params.get(str(one.name))) is not None]
    app = context.params.get("app")
    finds_app = context.get_parameter_source("app") is ParameterSource.ENVIRONMENT or is_typed(context, "url")
    after = [] if finds_app or (app is None and command == "enqueue" and ":" in before[0]) else ["-A", app or "APP"]
    line = " ".join([context.command_path, *before, option, *after])
    return f"; if {word!r} is {meaning}, write: {line}"


_PACKAGES: Final = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Driver packages whose names differ from those of their modules."""


def _imported(module_name: str, written: str) -> ModuleType:
    """Import an application's module. `written` is a hint that says how to write APP."""
    try:
        return imported(module_name)
    except ModuleNotFoundError as error:
        from ..database.drivers import ensure_psycopg, missing_driver

        if error.name == "psycopg":
            ensure_psycopg()  # the application's create_engine() needs it; this error says what to install
        if (driver := missing_driver(error)) is not None:
            package = _PACKAGES.get(driver, driver)
            fail(
                f"{module_name} creates an engine with the driver {driver}, which is not installed; run: pip install {package}"
            )
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but fails to import another one
        fail(f"there is no module {module_name!r} in {Path.cwd()} or on Python's path; {written}")
    except Exception as error:
        if type(error).__module__ != "django.core.exceptions":
            raise
        fail(f"{module_name} needs a Django project that has been set up; run: python manage.py outboxq …")


def names_module(text: str) -> bool:
    """Return whether the string could be an APP. A URL cannot be an APP. A URL must not appear in a message, because it
    may contain a password.
    """
    return "://" not in text and all(part.isidentifier() for part in text.partition(":")[0].split("."))


def front_end(own: str) -> FrontEnd:
    """Return the FrontEnd that says how to type other commands. `own` is this command's name with its group:
    ``task explain``.

    The other commands repeat the APP, URL and schema that were typed, except a URL with a password. If APP came from
    the environment, the worker command omits it, because the worker reads the same environment.
    """
    ctx = click.get_current_context()
    if isinstance(known := ctx.meta.get(FRONT_END), FrontEnd):
        return known
    program = ctx.command_path.removesuffix(own).strip() or "outboxq"
    typed = {name: value for name, value in ctx.params.items() if is_typed(ctx, name)}
    options = [f"--url {shown(typed['url'])}"] if typed.get("url") else []
    if typed.get("schema"):
        options.append(f"--schema {shlex.quote(typed['schema'])}")
    is_given = "url" in typed or "app_argument" in typed
    finds_app = not is_given and ctx.get_parameter_source("app") is ParameterSource.ENVIRONMENT
    app = typed.get("app") or typed.get("app_argument")
    return FrontEnd(program=program, finds_app=finds_app, app=app, options=" ".join(options))


def with_cures(record: Explanation | Problem, own: str) -> dict[str, Any]:
    """Return a record in its JSON form, with each cure as a user would type it. `own` has the same meaning as in
    `front_end`.
    """
    typed = front_end(own).typed

    def written(cures: Iterable[Cure]) -> list[dict[str, str]]:
        return [{"purpose": one.purpose, "command": typed(one.command)} for one in cures]

    parts = [merged(one, {"cures": written(one.cures)}) for one in getattr(record, "parts", ())]
    return merged(record, {"cures": written(record.cures)}, {"parts": parts} if parts else {})


_OUTAGE: Final = timedelta(seconds=30)
"""The time for which a command waits for a database that is busy or restarting. Commands such as `log --follow` and
bulk changes run long enough to encounter such an outage.
"""
_PATIENCE: Final = 1.0
"""Seconds for which a failed read of the database is retried."""


def completions(kind: str, context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the known names of this kind that begin with `incomplete`, with a hint for shells that show one. The list
    is empty if the database cannot be read, because an error message would be printed in the middle of the user's line.
    """
    from click.shell_completion import CompletionItem

    from ..store.transactions import patience

    try:
        with redirect_stderr(io.StringIO()), context.scope(cleanup=False), patience(_PATIENCE):
            values = {"url": None, "schema": None, "app": None, **context.params}
            with opened(given(context, values)) as store:
                found = dict(_SOURCES[kind](store))
    except (Exception, SystemExit):  # noqa: BLE001
        return []
    # Shells read the names line by line.
    return [
        CompletionItem(name, help=hint if hint.isprintable() else None)
        for name, hint in sorted(found.items())
        if name.startswith(incomplete) and name.isprintable()
    ]


def _tasks(store: Store) -> Iterable[tuple[str, str]]:
    outbox = present_outbox()
    declared = () if outbox is None else ((task.name, task.options.queue) for task in outbox.tasks)
    counted = store.stats(window=timedelta(days=1), by="task")
    return (*((one.task_name, one.queue) for one in counted if one.task_name is not None), *declared)


_SOURCES: Final[Mapping[str, Callable[[Store], Iterable[tuple[str, str]]]]] = {
    "queue": lambda store: ((one.queue, "") for one in store.queues.list()),
    "task": _tasks,
    "schedule": lambda store: ((one.name, one.rule) for one in store.schedules.list()),
    "group": lambda store: ((one.id, f"{one.task_name}: {one.message}") for one in store.dead_letters.groups().groups),
}
"""The names that a shell can offer, each with a hint, keyed by kind."""
