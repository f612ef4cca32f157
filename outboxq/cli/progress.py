"""The progress of a long command: a bar on a terminal, and how far it came if a signal ends it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import click

from .confirmation import Counted, grouped, written
from .groups import Terminated, exit_code, terminate

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


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
