"""Changes of many things: the question before, with `--yes` and `--dry-run`, the progress on a terminal, and the result.

A command asks if it acts on a filter or on several ids and what it does cannot be taken back. One id is an answer already.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from select import select
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

import click

from ..model.wording import grouped, plain
from ..operating.verbs import Field, Noun, Outcome, ValueMissing, Verb, verbs_of
from .console import fail, tell, wants_json
from .database import database_options
from .groups import Terminated, exit_code, terminate
from .parameters import TASK_ID, Read

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from ..store import Store


C = TypeVar("C", bound=Callable[..., Any])

EXIT_DECLINED: Final = 1
_EXIT_USAGE: Final = 2
_LOOK: Final = 0.2
"""Seconds between two looks for Ctrl-C while nothing is typed."""

FEW: Final = 5
"""The number of things that `--dry-run` prints."""
ATTENDED: Final = "outboxq.attended"
"""The key in `Context.meta` that is False where a program, and no person, calls the command."""


class Counted(Protocol):
    """The number of things that a filter finds; `store.Count` is one."""

    @property
    def number(self) -> int:
        """The number; the least one if `at_least`."""
        ...

    @property
    def at_least(self) -> bool:
        """True if there are more."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Exactly:
    """A number that was counted to its end."""

    number: int
    at_least: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """The result of a command on many, as `--json` prints it."""

    action: str
    """A participle such as ``discarded``."""
    changed: int
    """The number of things that were changed; 0 with `--dry-run`."""
    matched: int | None = None
    """The number of things that the filter found; None: they were not counted."""
    at_least: bool = False
    """True if there are more than `matched`."""
    dry_run: bool = False
    first: Sequence[object] = ()
    """A few of them, with `--dry-run`."""


def yes_option(command: C) -> C:
    """Add `--yes`; the command gets it as `yes`."""
    add: Callable[[C], C] = click.option(
        "--yes", "-y", is_flag=True, help="Do not ask. Required where no terminal is there to answer."
    )
    return add(command)


def dry_run_option(command: C) -> C:
    """Add `--dry-run`; the command gets it as `dry_run`."""
    add: Callable[[C], C] = click.option(
        "--dry-run", is_flag=True, help="Change nothing. Print how many would be changed, and the first few."
    )
    return add(command)


def confirmation_options(command: C) -> C:
    """Add `--yes` and `--dry-run`."""
    return yes_option(dry_run_option(command))


def confirmed(
    count: Counted | Callable[[], Counted],
    what: str,
    *,
    yes: bool,
    dry_run: bool,
    done: str = "changed",
    first: Callable[[], Sequence[object]] = lambda: (),
) -> bool:
    """Return whether the command may act on `what`, such as "dead letters of the queue 'mail'".

    With `dry_run` it prints how many would be `done` (a participle: ``discarded``) with the `first` few, and returns False. With
    `yes` it returns True. Else it asks on the terminal: any answer but yes, or where no terminal is there, ends the command
    with a sentence, exit code 1 or 2, and nothing changed. Where nothing is found there is no question. `count` is counted
    only where the number is shown.
    """
    if dry_run:
        _print_what_would_be(_counted(count), what, done, first())
        return False
    if yes:
        return True
    if not is_attended():
        _refuse(
            f"nothing was changed: no terminal is there to ask whether {what} should be {done}; --yes answers, and --dry-run "
            "shows what would be changed",
            _EXIT_USAGE,
        )
    try:
        found = _counted(count)
        if found.number == 0:
            return True
        _say(f"{what}: {written(found)} will be {done}")
        agreed = _answer()
    except KeyboardInterrupt as stop:
        click.echo(err=True)
        _refuse("nothing was changed", exit_code(stop))
    if not agreed:
        _refuse("nothing was changed", EXIT_DECLINED)
    return True


def up_to(limit: int | None, count: Counted) -> Counted:
    """Return the count of what a command with this limit changes."""
    if limit is None or count.number < limit:
        return count
    return Exactly(number=limit)


def changed(action: str, number: int, count: Counted | None = None) -> Change:
    """Return the result of a command that has changed so many of `count`."""
    if count is None:
        return Change(action=action, changed=number)
    return Change(action=action, changed=number, matched=count.number, at_least=count.at_least)


def outcome(done: str, number: int, count: Counted, others: str) -> str:
    """Return what was done, of how many of `count`: "938 of 940 cancelled; 2 had ended meanwhile". `others` are its last words."""
    if count.at_least or number >= count.number:
        return f"{number} {done}"
    return f"{number} of {count.number} {done}; {count.number - number} had {others}"


def is_attended() -> bool:
    """Return whether a person at a terminal can be asked, and reads the question."""
    context = click.get_current_context(silent=True)
    if context is not None and not context.meta.get(ATTENDED, True):
        return False
    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)


def written(count: Counted) -> str:
    """Return the number as people read it: ``1 500``, or ``at least 100 000``."""
    return f"at least {grouped(count.number)}" if count.at_least else grouped(count.number)


def _counted(count: Counted | Callable[[], Counted]) -> Counted:
    return count() if callable(count) else count


def _print_what_would_be(found: Counted, what: str, done: str, first: Sequence[object]) -> None:
    few = Change(
        action=done, changed=0, matched=found.number, at_least=found.at_least, dry_run=True, first=tuple(first)
    )
    tell(f"{what}: {written(found)} would be {done}", few)
    if wants_json():
        return
    for one in first:
        tell(f"  {one}", None)
    if first and (found.at_least or found.number > len(first)):
        click.echo("  …")


def _answer() -> bool:
    """Ask on stderr, so that stdout has the result only. The end of the input is a no."""
    click.echo("Go on? [y/N] ", nl=False, err=True)
    line = _typed()
    if not line.endswith("\n"):
        click.echo(err=True)
    return line.strip().lower() in {"y", "yes"}


def _typed() -> str:
    """Return the line that is typed. A read alone could miss a Ctrl-C that comes just before it, and wait for ever."""
    with suppress(OSError, ValueError):  # a system whose terminals select() does not take
        while not select([sys.stdin], [], [], _LOOK)[0]:
            pass
    return sys.stdin.readline()


def _say(sentence: str) -> None:
    click.echo(plain(sentence), err=True)


def _refuse(sentence: str, code: int) -> NoReturn:
    fail(sentence, code)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream is not None and stream.isatty())
    except ValueError:  # it is closed
        return False


class Progress:
    """The state of one long piece of work. Call it with the number that is done so far."""

    def __init__(self, done: str, total: int | Counted | None, *, commits: bool = True) -> None:
        self.number = 0
        """The number that is done and committed."""
        self.total = total
        self.was_stopped = False
        """True once the work was asked to end early, and has read it."""
        self.asked_by = KeyboardInterrupt()
        """The exception that names the signal which asked for the end."""
        self._done = done
        self._commits = commits
        self._asked = threading.Event()
        self._bar: Bar | None = None
        self._line: TaskID | None = None

    def __call__(self, number: int, total: int | None = None) -> None:
        """Take note that so many are done; `total` where only the work knows it."""
        self.number = number
        self.total = self.total if total is None else total
        if self._bar is not None and self._line is not None:
            self._bar.update(self._line, completed=number, total=_limit(self.total))

    def show_on(self, bar: Bar | None) -> None:
        """Show the numbers on this bar from now on."""
        if bar is not None:
            self._bar, self._line = bar, bar.add_task(self._done, total=_limit(self.total))

    def stop(self) -> bool:
        """Return whether the work should end before its next batch. Pass it to the store as `stop=`."""
        self.was_stopped = self.was_stopped or self._asked.is_set()
        return self.was_stopped

    def ask_to_stop(self, by: KeyboardInterrupt) -> bool:
        """Have `stop` return True from now on; returns False if it was asked before."""
        before = self._asked.is_set()
        self._asked.set()
        self.asked_by = by
        return not before

    @property
    def sentence(self) -> str:
        """The words after a signal: "stopped: 1 500 of 30 000 discarded; those are committed"."""
        total = self.total if self.total is None or not isinstance(self.total, int) else grouped(self.total)
        kept = "; those are committed" if self._commits and self.number else ""
        of = "" if total is None else f" of {total if isinstance(total, str) else written(total)}"
        return f"stopped: {grouped(self.number)}{of} {self._done}{kept}"


@contextmanager
def progress(
    done: str, total: int | Counted | None = None, *, stoppable: bool = False, commits: bool = True
) -> Iterator[Progress]:
    """Show the progress of the block on a terminal's stderr; nothing in a pipe. `done` is a participle such as ``discarded``.

    Ctrl-C prints how far the block came, and exits with code 130; SIGTERM and SIGHUP do so with 143 and 129. `stoppable` is for
    work that asks `Progress.stop` between its batches: the first signal then waits for the present batch, so that the number is
    exact, and the second does not. `commits` is False for work that changes nothing.
    """
    state = Progress(done, total, commits=commits)
    try:
        with _first_interrupt_asks(state) if stoppable else nullcontext(), _bar() as bar:
            state.show_on(bar)
            yield state
    except KeyboardInterrupt as stop:
        _stop(state, stop)
    if state.was_stopped:
        _stop(state, state.asked_by)


def _stop(state: Progress, by: KeyboardInterrupt) -> None:
    click.echo(f"outboxq: {state.sentence}", err=True)
    sys.exit(exit_code(by))


@contextmanager
def _first_interrupt_asks(state: Progress) -> Iterator[None]:
    """Have the first signal ask the work to stop. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, _frame: Any) -> None:
        by_keyboard = number == signal.SIGINT
        stop = KeyboardInterrupt() if by_keyboard else Terminated(number)
        if not state.ask_to_stop(stop):
            raise stop
        again = b"Ctrl-C again" if by_keyboard else b"a second signal"
        with suppress(OSError):  # no lock: the signal may come while another line is written
            os.write(2, b"outboxq: stopping after the present batch; " + again + b" stops at once\n")

    numbers = [signal.SIGINT, *(one for one in signal.valid_signals() if signal.getsignal(one) is terminate)]
    before = {number: signal.signal(number, interrupted) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _bar() -> Iterator[Bar | None]:
    """Yield a bar on a terminal; None in a pipe, and on a terminal that cannot move its cursor."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color="NO_COLOR" in os.environ, markup=False, emoji=False, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        yield bar


def _limit(total: int | Counted | None) -> int | None:
    """Return the total for a bar; None if it is not known."""
    if total is None or isinstance(total, int):
        return total
    return None if total.at_least else total.number


_TARGETS = {
    Noun.TASK: click.argument("target", metavar="TASK_ID", type=TASK_ID),
    Noun.BATCH: click.argument("target", metavar="BATCH_ID", type=click.UUID),
    Noun.QUEUE: click.argument("target", metavar="NAME"),
    Noun.SCHEDULE: click.argument("target", metavar="NAME"),
}


def say(_store: Store, outcome: Outcome) -> None:
    """Print the sentence of an outcome, or its answer alone."""
    tell(outcome.answer or outcome.sentence, outcome.record)


def add_verbs(group: click.Group, noun: Noun, show: Callable[[Store, Outcome], None] = say) -> None:
    """Add a command for each verb of this kind of thing for which the group has none; `show` prints an outcome."""
    for verb in verbs_of(noun):
        if verb.name not in group.commands and not verb.words[2:]:
            group.add_command(_command_of(verb, show))


def with_fields(*fields: Field) -> Callable[[C], C]:
    """Add the options of these fields to a command, which gets the values by the names of the fields."""

    def add(command: C) -> C:
        for field in reversed(fields):
            command = _parameter_of(field)(command)
        return command

    return add


def _command_of(verb: Verb, show: Callable[[Store, Outcome], None]) -> click.Command:
    def act(store: Store, target: Any, **values: Any) -> None:
        try:
            outcome = verb.do(store, store.find(target) if verb.noun is Noun.TASK else target, **values)
        except ValueMissing as error:
            raise click.UsageError(str(error)) from None
        show(store, outcome)

    command = _TARGETS[verb.noun](with_fields(*verb.fields)(database_options(act)))
    return click.command(verb.name, help=verb.help)(command)


def _parameter_of(field: Field) -> Callable[[C], C]:
    read = field.read
    if read is None:
        return click.option(field.option, field.name, is_flag=True, help=field.help)
    if field.choices:
        return click.argument(
            field.name, type=click.Choice(field.choices), callback=lambda _context, _parameter, value: read(value)
        )
    kind = Read("text", read)
    if field.is_required:
        return click.argument(field.name, type=kind, metavar=field.option)
    return click.option(
        field.option, field.name, type=kind, default=field.default, metavar=field.metavar, help=field.help
    )
