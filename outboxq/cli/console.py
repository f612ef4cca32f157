"""How the commands find the database, and how they speak."""

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

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

P = ParamSpec("P")
R = TypeVar("R")

LONGEST = timedelta(days=36500)
"""What is subtracted from a date must leave one."""

EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_SCHEMA = 4
EXIT_FILE = 66
"""Of a worker whose SQLite file was replaced beside the old log: a successor would destroy the new file."""
EXIT_UNREACHABLE = 69
EXIT_PERMISSION = 77


take_key_back = click.option(
    "--take-key-back", is_flag=True, help="Take the idempotency key back from another task that has it now."
)


def database_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--url`, `--schema`, `--app`, and APP as the last argument; they reach the command as `store`."""
    from .database import app_argument

    return database_options_after_ids(app_argument(command))


def database_options_after_ids(command: Callable[P, R]) -> Callable[P, R]:
    """Add the same but APP as an argument: for a command that takes any number of arguments."""
    from . import database

    @database.url_option
    @database.schema_option
    @database.app_option
    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        values = {name: kwargs.pop(name, None) for name in database.OPTIONS}
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
    """The same command of `database_options` where the database is known: without what says which one it is."""
    from .database import OPTIONS

    run: Callable[..., Any] = command.callback.__wrapped__  # type: ignore[union-attr]  # what it wraps

    def callback(**kwargs: Any) -> Any:
        with speaking_plainly():
            known = store()
            known.ensure_current()
            return run(store=known, **kwargs)

    known = copy(command)
    known.callback = callback
    known.params = [one for one in command.params if one.name not in OPTIONS]
    return known


@contextmanager
def speaking_plainly(upgrade: str | None = None) -> Iterator[None]:
    """Print our errors as one sentence on stderr, each kind with its exit code; anything else keeps its traceback.

    `upgrade` is the command that makes the tables, as it must be typed here; None: that of the group which the command is in.
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
                f"the database does not permit it: {error.orig}; outboxq grants --help says what a role needs",
                EXIT_PERMISSION,
            )
        connecting = error.statement is None
        if not (connecting or error.connection_invalidated or isinstance(error, OperationalError)):
            raise
        fail(f"the database cannot be used: {error.orig}", EXIT_UNREACHABLE)


def _upgrade_of_the_group() -> str | None:
    """Return how the command `upgrade` is called that stands beside the present one; None: there is none."""
    context = click.get_current_context(silent=True)
    while context is not None and (context := context.parent) is not None:
        group = context.command
        if isinstance(group, click.Group) and group.get_command(context, "upgrade") is not None:
            return f"{context.command_path} upgrade"
    return None


def fail(sentence: str, code: int) -> NoReturn:
    click.echo(f"outboxq: {_plain(' '.join(sentence.split()))}", err=True)
    sys.exit(code)


def say(sentence: str) -> None:
    """One line on stdout."""
    click.echo(_plain(sentence))


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, spare: Sequence[str] = ()) -> None:
    """Lines for people on a terminal, tab-separated values in a pipe.

    `spare` names the columns that a narrow terminal is not shown, the first one first.
    """
    if sys.stdout.isatty():
        screen().print(drawn(head, rows, spare=spare), crop=False)
        return
    for row in (head, *rows):
        click.echo("\t".join(_plain(cell) for cell in row))


def screen() -> Console:
    """The terminal; what it is given is shown as it is, whatever the text looks like."""
    from rich.console import Console

    return Console(no_color="NO_COLOR" in os.environ, markup=False, emoji=False, highlight=False)


def drawn(head: Sequence[str], rows: Sequence[Sequence[object]], *, spare: Sequence[str] = ()) -> Table:
    """A table for `screen`, as in `table`."""
    from .tables import fitted

    return fitted(head, rows, width=screen().width, spare=spare, plain=_plain)


def span(_context: click.Context, _parameter: click.Parameter, value: str | None) -> timedelta | None:
    """90d, 7d12h, 30m, 45s, 500ms: a span of time as a click callback."""
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
    """Text from a database must not speak to the terminal: control characters are shown, not sent."""
    text = "" if cell is None else str(cell)
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
