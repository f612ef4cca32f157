"""Commands that change things: the commands made from verbs; and for bulk changes the question, the progress and the
result.

A command asks first if it acts on a filter or on several ids and its effect cannot be undone. It does not ask about a
single id.
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
from typing import TYPE_CHECKING, Any, Final

import click

from ..model.wording import grouped, plain
from ..operating.verbs import Field, Noun, Outcome, ValueMissing, Verb, verbs_of
from .console import fail, tell, wants_json
from .database import database_options
from .groups import Terminated, exit_code, terminate
from .parameters import TASK_ID, Add, Read, stacked

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from ..store import Count, Store

EXIT_DECLINED: Final = 1
_EXIT_USAGE: Final = 2
_LOOK: Final = 0.2
"""Seconds between two checks for Ctrl-C while nothing is typed."""

FEW: Final = 5
"""The number of things that `--dry-run` prints."""
ATTENDED: Final = "outboxq.attended"
"""The key in `Context.meta` that is False if a program, not a person, calls the command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exactly:
    """An exact number of things; `store.Count` may also be a lower bound."""

    number: int
    at_least: bool = False


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask. Required without a terminal.")
_dry_run_option = click.option("--dry-run", is_flag=True, help="Change nothing. Print the number, and the first few.")


confirmation_options = stacked(yes_option, _dry_run_option)
"""Adds `--yes` and `--dry-run`."""


def confirmed(
    count: Exactly | Count | Callable[[], Exactly | Count],
    what: str,
    *,
    yes: bool,
    dry_run: bool,
    done: str = "changed",
    first: Callable[[], Sequence[object]] = lambda: (),
) -> bool:
    """Return whether the command may act on `what`, such as "dead letters of the queue 'mail'".

    With `yes`, return True. With `dry_run`, print how many would be `done` (a participle: ``discarded``) and the
    `first` few, and return False. Otherwise ask on the terminal, unless nothing is found. If the answer is not yes, or
    there is no terminal, the command ends with a sentence and exit code 1 or 2, and nothing is changed. `count` is only
    called if the number is shown.
    """
    if dry_run:
        _print_what_would_be(count() if callable(count) else count, what, done, first())
        return False
    if yes:
        return True
    if not is_attended():
        sentence = (
            f"nothing was changed: there is no terminal to ask whether {what} should be {done}; --yes answers, and --dry-run "
            "shows what would be changed"
        )
        fail(sentence, _EXIT_USAGE)
    try:
        found = count() if callable(count) else count
        if found.number == 0:
            return True
        click.echo(plain(f"{what}: {written(found)} will be {done}"), err=True)
        agreed = _answer()
    except KeyboardInterrupt as stop:
        click.echo(err=True)
        fail("nothing was changed", exit_code(stop))
    if not agreed:
        fail("nothing was changed", EXIT_DECLINED)
    return True


def up_to(limit: int | None, count: Exactly | Count) -> Exactly | Count:
    """Return the number of things that a command with this limit changes."""
    return count if limit is None or count.number < limit else Exactly(number=limit)


def changed(
    action: str,
    number: int,
    count: Exactly | Count | None = None,
    *,
    dry_run: bool = False,
    first: Sequence[object] = (),
) -> dict[str, object]:
    """Return the result of a bulk command, as `--json` prints it.

    `action` is a participle such as ``discarded``, and `count` is the number of things that matched.
    """
    matched, at_least = (None, False) if count is None else (count.number, count.at_least)
    found = {"action": action, "changed": 0 if dry_run else number, "matched": matched, "at_least": at_least}
    return {**found, "dry_run": dry_run, "first": first}


def outcome(done: str, number: int, count: Exactly | Count, others: str) -> str:
    """Return the result in words: "938 of 940 cancelled; 2 had ended meanwhile". `others` are the last words."""
    if count.at_least or number >= count.number:
        return f"{number} {done}"
    return f"{number} of {count.number} {done}; {count.number - number} had {others}"


def is_attended() -> bool:
    """Return whether a person at a terminal reads the question and can answer."""
    context = click.get_current_context(silent=True)
    if context is not None and not context.meta.get(ATTENDED, True):
        return False
    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)


def written(count: Exactly | Count) -> str:
    """Return the number for people: ``1 500``, or ``at least 100 000``."""
    return f"at least {grouped(count.number)}" if count.at_least else grouped(count.number)


def _print_what_would_be(found: Exactly | Count, what: str, done: str, first: Sequence[object]) -> None:
    tell(f"{what}: {written(found)} would be {done}", changed(done, 0, found, dry_run=True, first=first))
    if wants_json():
        return
    for one in first:
        tell(f"  {one}", None)
    if first and (found.at_least or found.number > len(first)):
        click.echo("  …")


def _answer() -> bool:
    """Ask on stderr, so that stdout contains only the result. End of input means no."""
    click.echo("Go on? [y/N] ", nl=False, err=True)
    # A plain read could miss a Ctrl-C that comes just before it, and wait for ever.
    with suppress(OSError, ValueError):  # on this system, select() does not accept terminals
        while not select([sys.stdin], [], [], _LOOK)[0]:
            pass
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        click.echo(err=True)
    return line.strip().lower() in {"y", "yes"}


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream is not None and stream.isatty())
    except ValueError:  # it is closed
        return False


class Progress:
    """The state of a long operation. Call it with the number of things that are done so far."""

    def __init__(self, done: str, total: int | Exactly | Count | None, *, commits: bool = True) -> None:
        self.number = 0
        """The number of things that are done and committed."""
        self.total = total
        self.was_stopped = False
        """True after the operation has seen the request to stop early."""
        self.asked_by = KeyboardInterrupt()
        """The exception for the signal that requested the stop."""
        self._done = done
        self._commits = commits
        self._is_asked = False  # not an Event: a signal that comes while its lock is held would wait for ever
        self._bar: Bar | None = None
        self._line: TaskID | None = None

    def __call__(self, number: int, total: int | None = None) -> None:
        """Record the number of things that are done, and the `total` if only the operation knows it."""
        self.number = number
        self.total = self.total if total is None else total
        if self._bar is not None and self._line is not None:
            self._bar.update(self._line, completed=number, total=_limit(self.total))

    def show_on(self, bar: Bar | None) -> None:
        """Show the numbers on this bar from now on."""
        if bar is not None:
            self._bar, self._line = bar, bar.add_task(self._done, total=_limit(self.total))

    def stop(self) -> bool:
        """Return whether the operation should end before its next batch. Pass this to the store as `stop=`."""
        self.was_stopped = self.was_stopped or self._is_asked
        return self.was_stopped

    def ask_to_stop(self, by: KeyboardInterrupt) -> bool:
        """Make `stop` return True from now on. Return False if it had already been requested."""
        before, self._is_asked = self._is_asked, True
        self.asked_by = by
        return not before

    @property
    def sentence(self) -> str:
        """The words after a signal: "stopped: 1 500 of 30 000 discarded; those are committed"."""
        kept = "; those are committed" if self._commits and self.number else ""
        total = Exactly(number=self.total) if isinstance(self.total, int) else self.total
        of = "" if total is None else f" of {written(total)}"
        return f"stopped: {grouped(self.number)}{of} {self._done}{kept}"


@contextmanager
def progress(
    done: str, total: int | Exactly | Count | None = None, *, stoppable: bool = False, commits: bool = True
) -> Iterator[Progress]:
    """Show the progress of the block on a terminal's stderr, and nothing in a pipe. `done` is a participle such as ``discarded``.

    Ctrl-C prints the number that is done, and exits with code 130; after SIGTERM and SIGHUP the code is 143 and 129. If
    the operation is `stoppable`, it calls `Progress.stop` between its batches. After the first signal, the current
    batch is finished, so that the number is exact; a second signal does not wait. `commits` is False for an operation
    that changes nothing.
    """
    state = Progress(done, total, commits=commits)
    by: KeyboardInterrupt | None = None
    try:
        with _first_interrupt_asks(state) if stoppable else nullcontext(), _bar() as bar:
            state.show_on(bar)
            yield state
    except KeyboardInterrupt as stop:
        by = stop
    if by is not None or state.was_stopped:
        click.echo(f"outboxq: {state.sentence}", err=True)
        sys.exit(exit_code(by or state.asked_by))


@contextmanager
def _first_interrupt_asks(state: Progress) -> Iterator[None]:
    """Make the first signal a request to stop. Only the main thread gets signals."""
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
            os.write(2, b"outboxq: stopping after the current batch; " + again + b" stops at once\n")

    numbers = [signal.SIGINT, *(one for one in signal.valid_signals() if signal.getsignal(one) is terminate)]
    before = {number: signal.signal(number, interrupted) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _bar() -> Iterator[Bar | None]:
    """Yield a progress bar on a terminal; None in a pipe, and on a terminal that cannot move its cursor."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color="NO_COLOR" in os.environ, markup=False, emoji=False, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        yield bar


def _limit(total: int | Exactly | Count | None) -> int | None:
    """Return the total for a progress bar; None if it is unknown."""
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
    """Print the sentence of an outcome, or only its answer."""
    tell(outcome.answer or outcome.sentence, outcome.record)


def add_verbs(group: click.Group, noun: Noun, show: Callable[[Store, Outcome], None] = say) -> None:
    """Add those verbs of a noun for which the group does not have a command yet. `show` prints an outcome."""
    for verb in verbs_of(noun):
        if verb.name not in group.commands and not verb.words[2:]:
            group.add_command(_command_of(verb, show))


def with_fields(*fields: Field) -> Add[Any]:
    """Add the options of these fields to a command. It gets the values by the names of the fields."""
    return stacked(*map(_parameter_of, fields))


def _command_of(verb: Verb, show: Callable[[Store, Outcome], None]) -> click.Command:
    def act(store: Store, target: Any, **values: Any) -> None:
        try:
            outcome = verb.do(store, store.find(target) if verb.noun is Noun.TASK else target, **values)
        except ValueMissing as error:
            raise click.UsageError(str(error)) from None
        show(store, outcome)

    command = _TARGETS[verb.noun](with_fields(*verb.fields)(database_options(act)))
    return click.command(verb.name, help=verb.help)(command)


def _parameter_of(field: Field) -> Add[Any]:
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
