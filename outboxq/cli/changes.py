"""Support for commands that make changes: the confirmation, the progress bar and the result of bulk changes.

A command asks for confirmation before it makes an irreversible change to several ids or to everything that matches a
filter. A change to a single id needs no confirmation.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from select import select
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from ..model.wording import grouped, plain
from .console import fail, tell, wants_json
from .groups import Terminated, exit_code, handling_signals, terminate
from .parameters import flag, stacked

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from ..store import Count

EXIT_DECLINED: Final = 1
_LOOK: Final = 0.2
"""Seconds between checks for Ctrl-C while waiting for an answer."""

FEW: Final = 5
"""The maximum number of items that `--dry-run` lists."""
ATTENDED: Final = "outboxq.attended"
"""A key in `Context.meta`. Its value is False if a program rather than a person calls the command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exactly:
    """An exact count. (A `store.Count` may be a lower bound.)"""

    number: int
    at_least: bool = False


Counted: TypeAlias = "Exactly | Count"

yes_option = flag("--yes", "-y", help="Do not ask for confirmation. Required if there is no terminal.")
_dry_run_option = flag("--dry-run", help="Change nothing. Print the number of matches, and a few examples.")


confirmation_options = stacked(yes_option, _dry_run_option)
"""Adds `--yes` and `--dry-run`."""


def confirmed(
    count: Counted | Callable[[], Counted],
    what: str,
    *,
    yes: bool,
    dry_run: bool,
    done: str = "changed",
    first: Callable[[], Sequence[object]] = lambda: (),
) -> bool:
    """Return whether the command may act on `what`, such as "dead letters in the queue 'mail'".

    With `yes`, return True without asking. With `dry_run`, print how many items would be `done` (a participle such as
    ``discarded``), list the `first` few, and return False. Otherwise ask on the terminal, unless there is nothing to
    change. If the user declines, exit with code 1; if there is no terminal, exit with code 2. In both cases nothing is
    changed. `count` is called only if the number is shown.
    """
    if dry_run:
        _print_what_would_be(count() if callable(count) else count, what, done, first())
        return False
    if yes:
        return True
    if not is_attended():
        sentence = (
            f"nothing was changed: without a terminal, nobody can confirm that {what} should be {done}; pass --yes, or "
            "--dry-run to see what would be changed"
        )
        fail(sentence)
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


def up_to(limit: int | None, count: Counted) -> Counted:
    """Return how many of the counted items a command with this limit changes."""
    return count if limit is None or count.number < limit else Exactly(number=limit)


def changed(
    action: str, number: int, count: Counted | None = None, *, dry_run: bool = False, first: Sequence[object] = ()
) -> dict[str, object]:
    """Return the result of a bulk command in the form that `--json` prints.

    `action` is a participle such as ``discarded``, and `count` is the number of items that matched.
    """
    matched, at_least = (None, False) if count is None else (count.number, count.at_least)
    found = {"action": action, "changed": 0 if dry_run else number, "matched": matched, "at_least": at_least}
    return {**found, "dry_run": dry_run, "first": first}


def outcome(done: str, number: int, count: Counted, others: str) -> str:
    """Return the result in words: "938 of 940 cancelled; 2 had ended in the meantime". `others` says what happened to
    the rest.
    """
    if count.at_least or number >= count.number:
        return f"{number} {done}"
    return f"{number} of {count.number} {done}; {count.number - number} had {others}"


def is_attended() -> bool:
    """Return whether a person at a terminal can read the question and answer it."""
    context = click.get_current_context(silent=True)
    if context is not None and not context.meta.get(ATTENDED, True):
        return False
    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)


def written(count: Counted) -> str:
    """Return the count in a readable form: ``1,500`` or ``at least 100,000``."""
    return f"at least {grouped(count.number)}" if count.at_least else grouped(count.number)


def _print_what_would_be(found: Counted, what: str, done: str, first: Sequence[object]) -> None:
    tell(f"{what}: {written(found)} would be {done}", changed(done, 0, found, dry_run=True, first=first))
    if wants_json():
        return
    for one in first:
        tell(f"  {one}", None)
    if first and (found.at_least or found.number > len(first)):
        click.echo("  …")


def _answer() -> bool:
    """Ask on stderr, so that stdout contains only the result. End of input counts as "no"."""
    click.echo("Continue? [y/N] ", nl=False, err=True)
    # A plain read could miss a Ctrl-C that arrives just before it, and then wait forever.
    with suppress(OSError, ValueError):  # on some systems, select() does not accept terminals
        while not select([sys.stdin], [], [], _LOOK)[0]:
            pass
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        click.echo(err=True)
    return line.strip().lower() in {"y", "yes"}


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream is not None and stream.isatty())
    except ValueError:  # the stream is closed
        return False


class Progress:
    """The progress of a long operation. Call the object with the number of items processed so far."""

    def __init__(self, done: str, total: int | Counted | None, *, commits: bool = True) -> None:
        self.number = 0
        """The number of items that have been processed and committed."""
        self.total = total
        self.was_stopped = False
        """True after the operation has seen the request to stop early."""
        self.asked_by = KeyboardInterrupt()
        """The exception for the signal that requested the stop."""
        self._done = done
        self._commits = commits
        self._is_asked = False  # not an Event, because a signal handler would wait forever if its lock were held
        self._update: Callable[..., None] | None = None

    def __call__(self, number: int, total: int | None = None) -> None:
        """Record how many items have been processed, and the `total` if it was not known before."""
        self.number = number
        self.total = self.total if total is None else total
        if self._update is not None:
            self._update(completed=number, total=_limit(self.total))

    def show_on(self, bar: Bar | None) -> None:
        """Display the progress on this bar from now on."""
        if bar is not None:
            self._update = partial(bar.update, bar.add_task(self._done, total=_limit(self.total)))

    def stop(self) -> bool:
        """Return whether to stop before the next batch. Pass this method to the store as `stop=`."""
        self.was_stopped = self.was_stopped or self._is_asked
        return self.was_stopped

    def ask_to_stop(self, by: KeyboardInterrupt) -> bool:
        """Make `stop` return True from now on. Return False if the stop had already been requested."""
        before, self._is_asked = self._is_asked, True
        self.asked_by = by
        return not before

    @property
    def sentence(self) -> str:
        """The message printed after a signal: "stopped: 1,500 of 30,000 discarded; these changes are committed"."""
        kept = "; these changes are committed" if self._commits and self.number else ""
        total = Exactly(number=self.total) if isinstance(self.total, int) else self.total
        of = "" if total is None else f" of {written(total)}"
        return f"stopped: {grouped(self.number)}{of} {self._done}{kept}"


@contextmanager
def progress(
    done: str, total: int | Counted | None = None, *, stoppable: bool = False, commits: bool = True
) -> Iterator[Progress]:
    """Show the block's progress on stderr if that is a terminal. `done` is a participle such as ``discarded``.

    After Ctrl-C, print how many items were processed, and exit with code 130. The exit code is 143 after SIGTERM, and
    129 after SIGHUP. A `stoppable` operation calls `Progress.stop` between batches. After the first signal, the
    operation finishes the current batch, so that the number is exact; a second signal stops the operation immediately.
    If the operation fails after it has changed some items, their number is printed before the error. `commits` is False
    for an operation that changes nothing.
    """
    state = Progress(done, total, commits=commits)
    by: KeyboardInterrupt | None = None
    try:
        with _first_interrupt_asks(state) if stoppable else nullcontext(), _bar() as bar:
            state.show_on(bar)
            yield state
    except KeyboardInterrupt as stop:
        by = stop
    except Exception:
        if commits and state.number:
            click.echo(f"outboxq: {state.sentence}", err=True)
        raise
    if by is not None or state.was_stopped:
        click.echo(f"outboxq: {state.sentence}", err=True)
        sys.exit(exit_code(by or state.asked_by))


def _first_interrupt_asks(state: Progress) -> AbstractContextManager[None]:
    """Treat the first signal as a request to stop."""

    def interrupted(number: int, _frame: Any) -> None:
        by_keyboard = number == signal.SIGINT
        stop = KeyboardInterrupt() if by_keyboard else Terminated(number)
        if not state.ask_to_stop(stop):
            raise stop
        again = b"Ctrl-C again" if by_keyboard else b"a second signal"
        with suppress(OSError):  # os.write takes no lock, which code that is printing another line may hold
            os.write(2, b"outboxq: stopping after the current batch; " + again + b" stops immediately\n")

    ending = (one for one in signal.valid_signals() if signal.getsignal(one) is terminate)
    return handling_signals([signal.SIGINT, *ending], interrupted)


@contextmanager
def _bar() -> Iterator[Bar | None]:
    """Yield a progress bar; None in a pipe and on a terminal that cannot move its cursor."""
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
    """Return the total for a progress bar; None if the total is unknown."""
    if total is None or isinstance(total, int):
        return total
    return None if total.at_least else total.number
