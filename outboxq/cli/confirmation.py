"""The question before a command that changes many things at once, with `--yes` and `--dry-run`.

A command asks if it acts on a filter or on several ids and what it does cannot be taken back. One id is an answer already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from select import select
from typing import Any, Final, NoReturn, Protocol, TypeVar

import click

from .groups import exit_code
from .output import tell, wants_json

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


def grouped(number: int) -> str:
    """Return the number with its digits in groups of three."""
    return f"{number:,}".replace(",", " ")


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
    from .console import plain

    click.echo(plain(sentence), err=True)


def _refuse(sentence: str, code: int) -> NoReturn:
    from .console import fail

    fail(sentence, code)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream is not None and stream.isatty())
    except ValueError:  # it is closed
        return False
