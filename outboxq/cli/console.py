"""The console: options of the commands that use a database, messages with their exit codes, and tables."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import click
from sqlalchemy.exc import DBAPIError, OperationalError

from ..database.dialects import damaged, dialect_for, is_damaged
from ..errors import AmbiguousTask, NotPermitted, OutboxqError, SchemaOutOfDate, TaskNotFound
from ..store import Store
from .groups import DATABASE_PARAMETERS, Group

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

P = ParamSpec("P")
R = TypeVar("R")

LONGEST = timedelta(days=36500)
"""Longest span of time: a date minus it is still a date."""

EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_SCHEMA = 4
EXIT_FILE = 66
"""Exit code of a worker whose SQLite file was replaced beside the old log: a successor would destroy the new file."""
EXIT_UNREACHABLE = 69
EXIT_PERMISSION = 77


take_key_back = click.option(
    "--take-key-back", is_flag=True, help="Take the idempotency key back from another task that has it now."
)


def database_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--url`, `--schema`, `--app`, and APP as the last argument. The command gets the Store as `store`."""
    from .database import app_argument

    return database_options_after_ids(app_argument(command))


def database_options_after_ids(command: Callable[P, R]) -> Callable[P, R]:
    """Add the same without the argument APP, for a command that takes any number of arguments."""
    from . import database

    @database.url_option
    @database.schema_option
    @database.app_option
    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        values = {name: kwargs.pop(name, None) for name in DATABASE_PARAMETERS}
        found = database.given(click.get_current_context(), values)
        with speaking_plainly(upgrade=found.upgrade):
            store = kwargs["store"] = database.open_store(found)
            try:
                store.ensure_current()
                return command(*args, **kwargs)
            finally:
                store.bound_engine.dispose()

    return wrapped


def on_store(command: click.Command, store: Callable[[], Store]) -> click.Command:
    """Return a command of `database_options` for a known database, without the parameters that choose one."""
    run: Callable[..., Any] = command.callback.__wrapped__  # type: ignore[union-attr]  # the function of the command

    def callback(**kwargs: Any) -> Any:
        with speaking_plainly():
            known = store()
            known.ensure_current()
            return run(store=known, **kwargs)

    known = copy(command)
    known.callback = callback
    known.params = [one for one in command.params if one.name not in DATABASE_PARAMETERS]
    return known


@contextmanager
def speaking_plainly(upgrade: str | None = None) -> Iterator[None]:
    """Print errors of outboxq and of the database as one sentence on stderr, and exit with the code of their kind.

    Any other exception keeps its traceback. `upgrade` is the command that creates the tables, as it is typed here; None: the
    command `upgrade` of the present group.
    """
    try:
        yield
    except SchemaOutOfDate as error:
        command = upgrade or _upgrade_of_the_group()
        fail(str(error if command is None else error.mended_by(command)), EXIT_SCHEMA)
    except NotPermitted as error:
        fail(str(error), EXIT_PERMISSION)
    except TaskNotFound as error:
        fail(str(error), EXIT_NOT_FOUND)
    except AmbiguousTask as error:
        fail(str(error), EXIT_USAGE)
    except OutboxqError as error:
        fail(str(error), 1)
    except DBAPIError as error:
        if is_damaged(error):
            fail(damaged(error), EXIT_UNREACHABLE)
        if dialect_for("postgresql").is_denied(error):
            fail(
                f"the database does not permit it: {error.orig}; outboxq grants prints what a role needs",
                EXIT_PERMISSION,
            )
        connecting = error.statement is None
        if not (connecting or error.connection_invalidated or isinstance(error, OperationalError)):
            raise
        fail(f"the database cannot be used: {error.orig}", EXIT_UNREACHABLE)


def _upgrade_of_the_group() -> str | None:
    """Return the command `upgrade` of the present group as it is typed; None if the group has none."""
    context = click.get_current_context(silent=True)
    while context is not None and (context := context.parent) is not None:
        group = context.command
        if isinstance(group, Group) and group.get_command(context, "upgrade") is not None:
            return f"{group.typed(context)} upgrade"
    return None


def fail(sentence: str, code: int) -> NoReturn:
    """Print the sentence on stderr, and exit with the code."""
    click.echo(f"outboxq: {_plain(' '.join(sentence.split()))}", err=True)
    sys.exit(code)


def say(sentence: str) -> None:
    """Print one line on stdout."""
    click.echo(_plain(sentence))


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, spare: Sequence[str] = ()) -> None:
    """Print a table: aligned on a terminal, tab-separated in a pipe.

    `spare` names the columns that a narrow terminal leaves out, the first one first.
    """
    if sys.stdout.isatty():
        screen().print(drawn(head, rows, spare=spare), crop=False)
        return
    for row in (head, *rows):
        click.echo("\t".join(_plain(cell) for cell in row))


def screen() -> Console:
    """Return the terminal; it shows text as it is, without markup."""
    from rich.console import Console

    return Console(no_color="NO_COLOR" in os.environ, markup=False, emoji=False, highlight=False)


def drawn(head: Sequence[str], rows: Sequence[Sequence[object]], *, spare: Sequence[str] = ()) -> Table:
    """Return a table for `screen`, as `table` prints it."""
    from .tables import fitted

    return fitted(head, rows, width=screen().width, spare=spare, plain=_plain)


def span(_context: click.Context, _parameter: click.Parameter, value: str | None) -> timedelta | None:
    """Read a span of time as a click callback: 90d, 7d12h, 30m, 45s, 500ms."""
    if value is None:
        return None
    parts = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?", value)
    if not value or parts is None:
        raise click.BadParameter("write it as 90d, 7d12h, 30m, 45s or 500ms")
    days, hours, minutes, seconds, milliseconds = (int(part or 0) for part in parts.groups())
    try:
        given = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    except OverflowError:
        given = timedelta.max
    if given > LONGEST:
        raise click.BadParameter(f"that is longer than {LONGEST.days}d")
    return given


def _plain(cell: Any) -> str:
    """Return the text with control characters written out, so that data cannot control the terminal."""
    text = "" if cell is None else str(cell)
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
