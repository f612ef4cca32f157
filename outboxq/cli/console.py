"""The console: messages with their exit codes, tables, and JSON."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, TypeVar
from uuid import UUID

import click

from .. import errors
from ..model import forks
from ..model.display import as_json
from ..model.wording import grouped, plain, short
from ..operating.reading import read_span
from .groups import Group, Terminated, ending_on_signals, exit_code, output_checked
from .serving.starting import open_closed_streams

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from sqlalchemy.exc import DBAPIError

EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_SCHEMA = 4
EXIT_FILE = 66
"""The exit code of a worker whose SQLite file was replaced while the old file's log was left behind: a new process
would destroy the new file.
"""
EXIT_UNREACHABLE = 69
EXIT_LOCKED = 75
"""The exit code of a command that gave up because another session held a lock. The command may succeed later."""
EXIT_KILLED = forks.EXIT_KILLED
EXIT_PERMISSION = 77
_EXIT_CODES: dict[type[Exception], int] = {
    errors.NotPermitted: EXIT_PERMISSION,
    errors.AmbiguousTask: EXIT_USAGE,
    LookupError: EXIT_NOT_FOUND,
    errors.TablesLocked: EXIT_LOCKED,
    errors.ConfigurationError: EXIT_USAGE,  # the last entry, because some errors above are also configuration errors
}
"""The exit codes of outboxq's errors. The first entry that matches an error counts. The errors about missing objects are
LookupErrors.
"""

STATEMENT_TIMEOUT = "OUTBOXQ_STATEMENT_TIMEOUT"
_LONGEST_STATEMENT = timedelta(hours=1)
_LEAST = 10
"""The minimum width in characters of a column whose words are split, as long as other columns can be left out."""
_NARROWEST = 6
"""The minimum width in characters of a column whose words are split."""
_GAP = 2
_COUNT = re.compile(r"[0-9]+\+?")
"""Matches a count in a table: a whole number, with a + if there are more."""
_MEASURE = re.compile(r"[0-9][0-9,.]*(e[-+]?[0-9]+)?(\+| (%|ms|s|min|h|d))?")
"""Matches any number in a table, such as a count, a share or a span of time."""


@contextmanager
def speaking_plainly(upgrade: str | None = None) -> Iterator[None]:
    """Report outboxq's errors, database errors and Ctrl-C in one sentence on stderr, and exit with the matching code.

    Other exceptions keep their tracebacks; if the application's import raised them, only the application's own frames
    are shown. `upgrade` is the command that creates the tables, as a user would type it. None means the current group's
    `upgrade` command.
    """
    from sqlalchemy.exc import DBAPIError

    try:
        with output_checked():
            yield
    except errors.SchemaOutOfDate as error:
        command = upgrade or _upgrade_of_the_group()
        fail(str(error if command is None else error.mended_by(command)), EXIT_SCHEMA, error)
    except errors.OutboxqError as error:
        shown = error.mended_by("pass --create") if isinstance(error, errors.QueueNotFound) else error
        code = next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), 1)
        fail(_as_typed(str(shown)), code, error)
    except DBAPIError as error:
        _fail_if_plain(error)
        _fail_if_imported(error)
        raise
    except SyntaxError as error:
        if error.filename is None or not Path(error.filename).is_file():
            raise
        fail(_syntax_error(error))
    except KeyboardInterrupt as stop:
        if not isinstance(stop, Terminated):
            click.echo(err=True)  # after the ^C that the terminal echoes
        fail("stopped", exit_code(stop))
    except Exception as error:
        _fail_if_imported(error)
        raise


def imported(name: str) -> ModuleType:
    """Import an application's module. `speaking_plainly` shows only the part of a traceback that is inside the module."""
    return import_module(name)


def _fail_if_imported(error: Exception) -> None:
    """If the import of the application's module raised `error`, print the application's part of the traceback, and exit
    with code 1.
    """
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code is not imported.__code__:
        found = found.tb_next
    while found is not None and _imports(found.tb_frame.f_code):
        found = found.tb_next
    if found is not None:
        sys.excepthook(type(error), error.with_traceback(found), found)
        sys.exit(1)


def _imports(code: CodeType) -> bool:
    return code in (imported.__code__, import_module.__code__) or code.co_filename.startswith("<frozen importlib")


_COMMAND = re.compile(
    r"(?<![\w/.] )\boutboxq (?=(?:batch show|failed|queue|schedule list|task (?:explain|show)|workers) ?)"
)
"""Matches the program name before a command in a message."""


def _as_typed(sentence: str) -> str:
    """Return a message with its commands as they are typed in the framework whose command is running."""
    for context, group in _groups():
        program = group.program(context)
        return sentence if program == context.find_root().command_path else _COMMAND.sub(f"{program} ", sentence)
    return sentence


_NO_DATABASE = re.compile(r'database "(.+)" does not exist')
"""Matches PostgreSQL's message about a missing database. The error of a failed connection has no SQLSTATE."""


def _fail_if_plain(error: DBAPIError) -> None:
    """Exit with a sentence about a database error, unless the error's traceback is more informative."""
    from sqlalchemy.exc import OperationalError

    from ..database.dialects import damaged, dialect_for, is_damaged

    if is_damaged(error):
        fail(damaged(error), EXIT_UNREACHABLE)
    if dialect_for("postgresql").is_denied(error):
        refusal = f"the database denied permission: {error.orig}; run outboxq grants to print the required privileges"
        fail(refusal, EXIT_PERMISSION)
    if dialect_for("postgresql").is_cut_off(error):
        limit = f"a minute, or {STATEMENT_TIMEOUT} (1h by default) if the statement reads whole tables"
        fail(f"a statement was cancelled: {error.orig}; the time limit is {limit}", EXIT_UNREACHABLE)
    # A failed connection has no statement.
    if error.statement is None or error.connection_invalidated or isinstance(error, OperationalError):
        missing = _NO_DATABASE.search(str(error.orig))
        cure = f"; create it, e.g. createdb {shlex.quote(missing[1])}" if missing else ""
        fail(f"the database cannot be used: {error.orig}{cure}", EXIT_UNREACHABLE)


def _syntax_error(error: SyntaxError) -> str:
    """Return the sentence to print instead of the import's traceback, which would end with the faulty line."""
    line = f": {error.text.strip()}" if error.text else ""
    return f"{error.filename}, line {error.lineno}: {error.msg}{line}; correct this line, and start the command again"


@contextmanager
def command_on_database(upgrade: str | None = None) -> Iterator[None]:
    """Report errors as `speaking_plainly` does, limit the time of each statement, and treat SIGTERM as Ctrl-C."""
    from ..database.dialects import statement_timeout

    open_closed_streams()  # a framework's program has not done this
    with speaking_plainly(upgrade), ending_on_signals(), statement_timeout(_longest_statement()):
        yield


def _longest_statement() -> timedelta:
    if not (text := os.environ.get(STATEMENT_TIMEOUT)):
        return _LONGEST_STATEMENT
    try:
        return read_span(text)
    except errors.InvalidArgument as error:
        fail(f"{STATEMENT_TIMEOUT} is {text!r}: {error}")


def _upgrade_of_the_group() -> str | None:
    """Return the current group's `upgrade` command as a user would type it; None if the group has no such command."""
    upgrading = (one for one in _groups() if one[1].get_command(one[0], "upgrade") is not None)
    return next((f"{group.typed(context)} upgrade" for context, group in upgrading), None)


def _groups() -> Iterator[tuple[click.Context, Group]]:
    """Yield the groups that the current command belongs to, beginning with the innermost."""
    context = click.get_current_context(silent=True)
    while context is not None and (context := context.parent) is not None:
        if isinstance(context.command, Group):
            yield context, context.command


def fail(sentence: str, code: int = EXIT_USAGE, error: errors.OutboxqError | None = None) -> NoReturn:
    """Print the sentence to stderr, and exit with the code. On a terminal, a second line names the error's class, which
    is its id on the page "Troubleshooting by error". If stderr is not a terminal, only one line is printed, because
    scripts read it.
    """
    click.echo(f"outboxq: {plain(' '.join(sentence.split()))}", err=True)
    if error is not None and sys.stderr.isatty():
        page = "in the documentation, under 'Troubleshooting by error'"
        click.echo(f"  for causes and cures, see {type(error).__name__} {page}", err=True)
    sys.exit(code)


Rows = Sequence[Sequence[object]]


class Lines(NamedTuple):
    """A table."""

    head: Sequence[str]
    rows: Rows
    spare: Sequence[str] = ()
    """The columns that are left out on a narrow terminal, in this order."""


def table(head: Sequence[str], rows: Rows, spare: Sequence[str] = (), *, whole: Collection[str] = ()) -> None:
    """Print a table: laid out by `drawn` on a terminal, tab-separated in a pipe."""
    if sys.stdout.isatty():
        console = screen()
        console.print(drawn(head, rows, width=console.width, spare=spare, whole=whole), crop=False)
        return
    for row in (head, *rows):
        click.echo("\t".join(plain(cell) for cell in row))


def card(head: tuple[str, str], lines: Iterable[tuple[str, object]]) -> None:
    """Print a record as a table of names and values, without the values that are None."""
    table(head, [line for line in lines if line[1] is not None])


def add_table(head: Sequence[str], rows: Rows, spare: Sequence[str] = ()) -> None:
    """Print an empty line and the table, unless the table has no rows."""
    if rows:
        click.echo()
        table(head, rows, spare=spare)


def screen() -> Console:
    """Return a console that prints text as it is, without interpreting markup."""
    from rich.console import Console

    return Console(no_color="NO_COLOR" in os.environ, markup=False, emoji=False, highlight=False)


def drawn(
    head: Sequence[str], rows: Rows, *, width: int, spare: Sequence[str] = (), whole: Collection[str] = ()
) -> Table:
    """Return a table for a terminal of this width.

    Times are shown in UTC, to the second, and their column headings end in UTC. If the table does not fit, columns in
    which all cells are empty are left out. `spare` lists further columns to leave out on a narrow terminal, in the
    given order. Ids and numbers are never cut or wrapped, so that they can be copied and read; `whole` names further id
    columns. If the other columns do not fit beside the ids and numbers, the table is wider than the terminal.
    """
    from rich.table import Table

    columns = [_Column(name, [row[place] for row in rows], is_id=name in whole) for place, name in enumerate(head)]
    if rows and _total(column.longest for column in columns) > width:
        columns = [column for column in columns if any(column.cells)] or columns
    for name in spare:
        if _total(column.least for column in columns) <= width:
            break
        columns = [column for column in columns if column.name != name]
    widths = _widths(columns, width)
    lines = Table(box=None, padding=0, width=_total(widths))
    for column, wide in zip(columns, widths, strict=True):
        if lines.columns:  # a gap; the widths that padding adds at the edges differ between rich's releases
            lines.add_column(width=_GAP)
        side: Literal["left", "right"] = "right" if column.is_number else "left"
        lines.add_column(column.head, justify=side, no_wrap=column.is_whole, width=wide, overflow="fold")
    for cells in zip(*(column.cells for column in columns), strict=True):
        lines.add_row(*[one for cell in cells for one in ("", cell)][1:])
    return lines


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Return the widths of the columns. If the columns do not fit, the widest texts are narrowed first, and words are
    split only if nothing else can be narrowed.
    """
    widths = [column.longest if column.is_whole else min(column.longest, width) for column in columns]
    for longest_word in (width, _LEAST, _NARROWEST):
        least = [column.longest if column.is_whole else min(column.word, longest_word) for column in columns]
        while _total(widths) > width:
            wider = [place for place, wide in enumerate(widths) if wide > least[place]]
            if not wider:
                break
            widths[max(wider, key=widths.__getitem__)] -= 1
    return widths


def _total(widths: Iterable[int]) -> int:
    return sum(wide + _GAP for wide in widths) - _GAP


class _Column:
    def __init__(self, name: str, values: Collection[object], *, is_id: bool = False) -> None:
        from rich.cells import cell_len

        kinds = {type(value) for value in values if value is not None}
        is_time = any(issubclass(kind, datetime) for kind in kinds)
        self.name = name
        self.head = plain(f"{name} UTC" if is_time else name)  # the name may be a queue's
        texts = [str(value) for value in values if value is not None]
        is_count = int in kinds or any(text.endswith("+") for text in texts)
        self.is_number = is_count and kinds <= {int, str} and all(map(_COUNT.fullmatch, texts))
        self.cells = [self._cell(value) for value in values]
        is_measure = bool(texts) and all(map(_MEASURE.fullmatch, texts))
        self.is_whole = is_id or is_time or is_measure or any(issubclass(kind, UUID) for kind in kinds)
        written = (self.head, *self.cells)
        self.longest = max(map(cell_len, written))
        self.word = max((cell_len(word) for text in written for word in text.split()), default=1)
        self.least = self.longest if self.is_whole else min(self.longest, _LEAST)

    def _cell(self, value: object) -> str:
        if isinstance(value, datetime):
            return short(value)
        if self.is_number and value is not None:
            digits, plus, _ = str(value).partition("+")
            return f"{grouped(int(digits))}{plus}"
        return plain(value)


def in_utc(moment: datetime | None) -> datetime | str | None:
    """Return the time in the form that tables use on a terminal; in a pipe it is unchanged."""
    return f"{short(moment)} UTC" if moment is not None and sys.stdout.isatty() else moment


def leave_uncollected() -> None:
    """Exempt all existing objects from garbage collection, because they live until the process ends. Otherwise, Python
    would scan them again and again, using a third of a busy worker's CPU time. In the dashboard, a scan would delay one
    page in 15 by 50 ms. With 10 million finished and 10 million waiting tasks, the 95th percentile of the failures
    page's response time is 67 ms without this exemption, and 21 ms with it (`python -m benchmarks.dashboard`).
    """
    gc.collect()
    gc.freeze()


C = TypeVar("C", bound=Callable[..., Any])

JSON: Final = "outboxq.json"
"""The key in `Context.meta` whose value is True if `--json` was given."""


def _remember(context: click.Context, _option: click.Parameter, value: bool | None) -> None:
    if value:
        context.meta[JSON] = True


json_option = click.option("--json", is_flag=True, expose_value=False, callback=_remember, help="Print JSON.")
"""Adds `--json`. The command does not receive this option as an argument: `show`, `tell` and `wants_json` read it."""


def wants_json() -> bool:
    """Return whether `--json` was given to the current command."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON, False))


def show(
    head: Sequence[str], rows: Rows, spare: Sequence[str] = (), *, records: object, whole: Collection[str] = ()
) -> None:
    """Print the rows as a `table` or, with `--json`, print the `records`: a list or a single record."""
    if wants_json():
        write_json(records)
    else:
        table(head, rows, spare=spare, whole=whole)


def tell(sentence: str, record: object) -> None:
    """Print the sentence or, with `--json`, the record."""
    if wants_json():
        write_json(record)
    else:
        click.echo(plain(sentence, kept="\n"))


def write_json(records: object, *, line: bool = False) -> None:
    """Print a JSON document, indented on a terminal and on one line in a pipe. With `line`, always print it on one
    line.

    Characters outside ASCII are escaped, so that stored text cannot send control sequences to the terminal.
    """
    indent = 2 if sys.stdout.isatty() and not line else None
    text = json.dumps(as_json(records), indent=indent, allow_nan=False)
    click.echo(text.replace("\x7f", "\\u007f"))


def merged(*records: object, without: Iterable[str] = ()) -> dict[str, Any]:
    """Merge the fields of several records into one object, leaving out the names in `without`."""
    whole = {name: value for record in records for name, value in as_json(record).items()}
    return {name: value for name, value in whole.items() if name not in set(without)}
