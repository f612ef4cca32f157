"""The console: messages with their exit codes, tables, and spans of time."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn
from uuid import UUID

import click

from ..errors import (
    AmbiguousTask,
    BatchNotFound,
    NotPermitted,
    OutboxqError,
    QueueNotFound,
    ScheduleNotFound,
    SchemaOutOfDate,
    TablesLocked,
    TaskNotFound,
)
from ..model import LONGEST, forks
from .groups import Group, Terminated, ending_on_signals, exit_code

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_SCHEMA = 4
EXIT_FILE = 66
"""Exit code of a worker whose SQLite file was replaced beside the old log: a successor would destroy the new file."""
EXIT_UNREACHABLE = 69
EXIT_LOCKED = 75
"""Exit code of a command that met a lock of another session: it may work later."""
EXIT_KILLED = forks.EXIT_KILLED
EXIT_PERMISSION = 77
_EXIT_CODES = {
    NotPermitted: EXIT_PERMISSION,
    TaskNotFound: EXIT_NOT_FOUND,
    BatchNotFound: EXIT_NOT_FOUND,
    ScheduleNotFound: EXIT_NOT_FOUND,
    QueueNotFound: EXIT_NOT_FOUND,
    AmbiguousTask: EXIT_USAGE,
    TablesLocked: EXIT_LOCKED,
}

STATEMENT_TIMEOUT = "OUTBOXQ_STATEMENT_TIMEOUT"
_LONGEST_STATEMENT = timedelta(hours=1)
_LEAST = 12
"""Minimum width of a column of text, in characters. Longer text wraps if the terminal is too narrow."""
_GAP = 2


@contextmanager
def speaking_plainly(upgrade: str | None = None) -> Iterator[None]:
    """Print errors of outboxq and of the database, and Ctrl-C, as one sentence on stderr, and exit with the code of their kind.

    Any other exception keeps its traceback. `upgrade` is the command that creates the tables, as it is typed here; None: the
    command `upgrade` of the present group.
    """
    from sqlalchemy.exc import DBAPIError, OperationalError

    from ..database.dialects import damaged, dialect_for, is_damaged

    try:
        yield
    except SchemaOutOfDate as error:
        command = upgrade or _upgrade_of_the_group()
        fail(str(error if command is None else error.mended_by(command)), EXIT_SCHEMA)
    except OutboxqError as error:
        fail(str(error), next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), 1))
    except DBAPIError as error:
        if is_damaged(error):
            fail(damaged(error), EXIT_UNREACHABLE)
        if dialect_for("postgresql").is_denied(error):
            refusal = f"the database does not permit it: {error.orig}; outboxq grants prints what a role needs"
            fail(refusal, EXIT_PERMISSION)
        if dialect_for("postgresql").is_cut_off(error):
            fail(
                f"a statement was ended: {error.orig}; it may run for a minute, or where it reads whole tables for as long as "
                f"{STATEMENT_TIMEOUT} says (1h by default)",
                EXIT_UNREACHABLE,
            )
        connecting = error.statement is None
        if not (connecting or error.connection_invalidated or isinstance(error, OperationalError)):
            raise
        fail(f"the database cannot be used: {error.orig}", EXIT_UNREACHABLE)
    except KeyboardInterrupt as stop:
        if not isinstance(stop, Terminated):
            click.echo(err=True)  # behind the ^C that the terminal shows
        fail("stopped", exit_code(stop))


@contextmanager
def command_on_database(upgrade: str | None = None) -> Iterator[None]:
    """Run a command that asks the database: `speaking_plainly`, ended by SIGTERM as by Ctrl-C, and with a limit for a statement."""
    from ..database.dialects import statement_timeout

    with speaking_plainly(upgrade), ending_on_signals(), statement_timeout(_longest_statement()):
        yield


def _longest_statement() -> timedelta:
    if not (text := os.environ.get(STATEMENT_TIMEOUT)):
        return _LONGEST_STATEMENT
    try:
        return read_span(text)
    except click.BadParameter as error:
        fail(f"{STATEMENT_TIMEOUT} is {text!r}: {error.message}", EXIT_USAGE)


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
    click.echo(f"outboxq: {plain(' '.join(sentence.split()))}", err=True)
    sys.exit(code)


def table(
    head: Sequence[str], rows: Sequence[Sequence[object]], *, spare: Sequence[str] = (), whole: Collection[str] = ()
) -> None:
    """Print a table: on a terminal as `drawn`, in a pipe separated by tabs."""
    if sys.stdout.isatty():
        console = screen()
        console.print(drawn(head, rows, width=console.width, spare=spare, whole=whole), crop=False)
        return
    for row in (head, *rows):
        click.echo("\t".join(plain(cell) for cell in row))


def screen() -> Console:
    """Return the terminal; it shows text as it is, without markup."""
    from rich.console import Console

    return Console(no_color="NO_COLOR" in os.environ, markup=False, emoji=False, highlight=False)


def drawn(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    width: int,
    spare: Sequence[str] = (),
    whole: Collection[str] = (),
) -> Table:
    """Return a table for a terminal of this width.

    Times are in UTC, to the second; the column's head says UTC. `spare` names the columns that a narrow terminal leaves out, the
    first one first. An id is never cut or wrapped, so that it can be copied; `whole` names further columns of ids.
    """
    from rich.table import Table

    columns = [_Column(name, [row[place] for row in rows], is_id=name in whole) for place, name in enumerate(head)]
    for name in spare:
        if sum(column.least + _GAP for column in columns) - _GAP <= width:
            break
        columns = [column for column in columns if column.name != name]
    lines = Table(box=None, pad_edge=False)
    for column in columns:
        least = column.least if column.is_whole else None
        lines.add_column(column.head, no_wrap=column.is_whole, min_width=least, overflow="fold")
    for cells in zip(*(column.cells for column in columns), strict=True):
        lines.add_row(*cells)
    return lines


def span(_context: click.Context, _parameter: click.Parameter, value: str | None) -> timedelta | None:
    """Read a span of time as a click callback."""
    return None if value is None else read_span(value)


def read_span(value: str) -> timedelta:
    """Read a span of time: 90d, 7d12h, 30m, 45s, 0.5s, 500ms. Raises BadParameter for other text."""
    parts = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d{1,6})?)s)?(?:(\d+)ms)?", value)
    if not value or parts is None:
        raise click.BadParameter("write it as 90d, 7d12h, 30m, 0.5s or 500ms")
    units = ("days", "hours", "minutes", "seconds", "milliseconds")
    try:
        given = timedelta(**{unit: float(part or 0) for unit, part in zip(units, parts.groups(), strict=True)})
    except (OverflowError, ValueError):  # a number too large becomes infinite
        given = timedelta.max
    if given > LONGEST:
        raise click.BadParameter(f"that is longer than {LONGEST.days}d")
    return given


class _Column:
    def __init__(self, name: str, values: Collection[object], *, is_id: bool = False) -> None:
        kinds = {type(value) for value in values if value is not None}
        is_time = any(issubclass(kind, datetime) for kind in kinds)
        self.name = name
        self.head = plain(f"{name} UTC" if is_time else name)  # it may be the name of a queue
        self.cells = [plain(short(value) if isinstance(value, datetime) else value) for value in values]
        self.is_whole = is_id or is_time or any(issubclass(kind, UUID) for kind in kinds)
        longest = max(len(text) for text in (self.head, *self.cells))
        self.least = longest if self.is_whole else min(longest, _LEAST)


def short(moment: datetime) -> str:
    """Return the time in UTC, to the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def in_utc(moment: datetime | None) -> datetime | str | None:
    """Return the time as the tables write it on a terminal."""
    return f"{short(moment)} UTC" if moment is not None and sys.stdout.isatty() else moment


def brief(span: timedelta) -> str:
    """Write a duration in about seven characters at most: 12ms, 1.5s, 5m, 2h, 3d."""
    seconds = span.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 100:
        return f"{seconds:.1f}s"
    for unit, length in (("m", 60), ("h", 3600)):
        if seconds < 100 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def plain(cell: object, *, kept: str = "") -> str:
    """Return the text with invisible characters, except those to be kept, written out: none may control the terminal."""
    text = "" if cell is None else str(cell)
    return "".join(one if one.isprintable() or one in kept else repr(one)[1:-1] for one in text)


def leave_uncollected() -> None:
    """Exempt all objects that exist now from garbage collection. They live until the process ends, yet Python would look through
    them again and again while tasks come and go, which took a third of a busy worker's CPU.

    Each such look also made one page of the dashboard in 15 wait for 50 ms: with 10 million tasks of each kind the 95th
    percentile of the failures is 67 ms without this and 21 ms with it (`python -m benchmarks.dashboard`).
    """
    gc.collect()
    gc.freeze()
