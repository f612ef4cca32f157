"""The database of a command, named by its URL or by the application that uses it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from ..database.dialects import dialect_for
from ..database.engine import make_engine, parse_url
from ..errors import ConfigurationError
from ..outbox import Outbox
from ..store import Store
from .console import EXIT_USAGE, fail
from .loading import load

F = TypeVar("F", bound=Callable[..., Any])

DATABASE_URL = "OUTBOXQ_DATABASE_URL"
SCHEMA = "OUTBOXQ_SCHEMA"
APP = "OUTBOXQ_APP"

url_option = click.option(
    "--url",
    envvar=DATABASE_URL,
    show_envvar=True,
    help="URL of the database. Use the variable for a URL with a password: other users can read a command line.",
)
schema_option = click.option(
    "--schema", envvar=SCHEMA, show_envvar=True, help="PostgreSQL schema of outboxq's tables. APP knows its own."
)
app_option = click.option(
    "-A",
    "--app",
    envvar=APP,
    show_envvar=True,
    metavar="APP",
    help="Application whose database is used, as module:outbox, e.g. shop:outbox.",
)
app_argument = click.argument("app_argument", required=False, metavar="[APP]")


def where_options(command: F) -> F:
    """Add `--url`, `--schema`, `--app`, and APP as the last argument: the parameters that `given` reads."""
    for option in (app_argument, app_option, schema_option, url_option):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The database as the command line and the environment name it; the command line takes precedence."""

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
        """The command that creates the tables there, as it must be typed; it shows no password."""
        words = ["outboxq upgrade"]
        if self.app is not None:
            words.append(shlex.quote(self.app))
        if self.has_own_schema and self.app is None:
            words.append(f"--schema {shlex.quote(str(self.schema))}")
        if self.url is None:
            return " ".join(words)
        if self.from_environment:
            return " ".join([*words, f"(it reads {DATABASE_URL} too)"])
        return " ".join([*words, f"--url {shown(self.url)}"])


def shown(url: str | URL) -> str:
    """Return the URL as it is typed in a shell; a URL with a password is not repeated."""
    try:
        parsed = parse_url(url)
    except ConfigurationError:  # the use of the URL reports it
        return "…"
    if parsed.password is not None or any("password" in name.lower() for name in parsed.query):
        return "… (the same address)"
    return shlex.quote(parsed.render_as_string() if isinstance(url, URL) else url)


def given(context: click.Context, values: Mapping[str, Any], *, app: str | None = None) -> Given:
    """Return the database that `values`, the parameters of `where_options`, name. The command line beats the environment.

    `app` is APP if another argument holds it. Exits if no database is named, or two applications are.
    """
    typed = {name: is_typed(context, name) for name in ("url", "schema", "app")}
    argument = app if app is not None else values.get("app_argument")
    url, chosen = values["url"], _one_of(context, argument, values["app"])
    app_typed = argument is not None or typed["app"]
    if app_typed and not typed["url"]:
        url = None
    elif typed["url"] and not app_typed:
        chosen = None
    if url is None and chosen is None:
        fail(
            f"no database is named; give the application that uses it (module:outbox, e.g. shop:outbox) or --url, or set "
            f"{APP} or {DATABASE_URL}",
            EXIT_USAGE,
        )
    return Given(
        url=url,
        schema=values["schema"],
        app=chosen,
        from_environment=not typed["url"],
        schema_from_environment=not typed["schema"],
    )


def application(context: click.Context, argument: str | None, option: str | None) -> str:
    """Return the APP of a command, given as its argument or as `app_option`. Exits if there is none."""
    chosen = _one_of(context, argument, option)
    if chosen is None:
        fail(f"no application is named; give it as module:outbox, e.g. shop:outbox, or set {APP}", EXIT_USAGE)
    return chosen


def open_store(found: Given) -> Store:
    """Return the Store of this database. Raises ConfigurationError for a URL that outboxq cannot use."""
    if found.app is None:
        return Store(make_engine(found.url or ""), schema=found.schema)
    return open_outbox(found).store


def open_outbox(found: Given) -> Outbox:
    """Return the outbox of APP, on its own database or, if it has none, on the given URL."""
    assert found.app is not None, "only an application has an outbox"
    outbox = load(found.app)
    if found.url is not None and not outbox.is_bound:
        outbox.bind(found.url)
    try:
        engine = outbox.store.bound_engine
    except ConfigurationError as error:
        fail(f"{found.app} has no database: {error}", EXIT_USAGE)
    if found.url is not None and not leads_to(engine.url, parse_url(found.url)):
        fail(
            f"{found.app} and {DATABASE_URL if found.from_environment else '--url'} name two databases; give one of them",
            EXIT_USAGE,
        )
    if found.has_own_schema and found.schema != outbox.schema:
        fail(f"--schema goes with --url; leave it out, since {found.app} knows its own", EXIT_USAGE)
    return outbox


def place_of(engine: Engine, schema: str | None) -> str:
    """Return the name of this engine's database for a message."""
    return dialect_for(engine.dialect.name, schema=schema).place(engine.url, lambda: None)


def leads_to(one: URL, other: URL) -> bool:
    """Return whether both URLs name the same database and role."""
    return address(one) == address(other)


def address(url: URL) -> tuple[object, ...]:
    """Return the parts of a URL that identify its database and role."""
    asked = frozenset((name, value) for name, value in url.query.items() if name in {"host", "port", "service"})
    return url.get_backend_name(), url.host, url.port, url.database, url.username, asked


def _one_of(context: click.Context, argument: str | None, option: str | None) -> str | None:
    if argument is not None and option not in (None, argument) and is_typed(context, "app"):
        fail(f"two applications are given, {argument} and {option}; give one of them", EXIT_USAGE)
    return option if argument is None else argument


def is_typed(context: click.Context, name: str) -> bool:
    """Return whether this option comes from the command line, and not from the environment."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE
