"""Command groups that import each command on first use, and the handling of signals and of output that cannot be
written.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from pkgutil import resolve_name
from types import FrameType
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem, get_completion_class

from .serving.starting import leave_on_signals, open_closed_streams, starts_worker

DATABASE_PARAMETERS = frozenset({"url", "schema", "app", "app_argument", "database_urls"})
"""The names of the parameters that choose the database. A framework's commands omit these parameters, because the
framework's settings choose the database.
"""

PROGRAM: Final = "{program}"
"""The placeholder in a hint for the words before a command, such as `flask outboxq`."""

EXIT_INTERRUPTED: Final = 130
"""The exit code that shells conventionally use for a command that was stopped with Ctrl-C."""

EXIT_UNWRITTEN: Final = 74
"""The exit code of a command whose output could not be written: EX_IOERR from sysexits.h."""

_UNWRITTEN: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""The errors that a write to a full or broken disk raises."""

_ENDING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, which stop a command as Ctrl-C does: the driver first cancels the statement on the server."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code that shells conventionally use for a command that was stopped by a signal."""
    return 128 + stop.number if isinstance(stop, Terminated) else EXIT_INTERRUPTED


def terminate(number: int, _frame: FrameType | None) -> None:
    """Handle a signal by raising Terminated."""
    raise Terminated(number)


@contextmanager
def handling_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handler` for these signals in the block. Outside the main thread nothing is changed, because only the main
    thread receives signals.
    """
    ours = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if ours}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def ending_on_signals() -> AbstractContextManager[None]:
    """Make SIGTERM and SIGHUP raise Terminated in the block. If the surrounding program handles or ignores a signal, as
    nohup does, its handler is kept.
    """
    return handling_signals([one for one in _ENDING if signal.getsignal(one) is signal.SIG_DFL], terminate)


class Stop:
    """The user's request to stop the command. The command checks for it between two pieces of work."""

    def __init__(self) -> None:
        self.is_wanted = False
        self._waits = False

    def wait(self, seconds: float) -> bool:
        """Wait for this long, or until a signal arrives. Return whether the command should stop."""
        with suppress(_Woken):
            self._waits = True
            if not self.is_wanted:
                time.sleep(seconds)
        self._waits = False
        return self.is_wanted

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal. A second signal stops the command immediately."""
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
        if self._waits:
            raise _Woken


class _Woken(BaseException):
    """The exception that the first signal raises while the command is waiting."""


@contextmanager
def until_stopped() -> Iterator[Stop]:
    """Turn Ctrl-C and SIGTERM into a request that the block finds when it next checks the `Stop`. Stopping this way is
    not an error.

    The signal does not raise an exception inside a transaction. An exception during a statement would leave its
    connection unusable, and would look like an outage, so the statement would be repeated.
    """
    stop = Stop()
    with handling_signals((signal.SIGINT, signal.SIGTERM), stop.ask), suppress(KeyboardInterrupt, _Woken):
        yield stop


@contextmanager
def output_checked() -> Iterator[None]:
    """Exit with a sentence if the block cannot write its output because the disk is full or broken."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITTEN or error.filename is not None:  # a file that the application opened
            raise
        with suppress(OSError):  # standard error may be on the same disk
            reason = f"{error.strerror}; free some space, or write the output elsewhere"
            click.echo(f"outboxq: the output cannot be written: {reason}; changes that were made are kept", err=True)
        # Python writes the rest of its buffers when it exits.
        with suppress(OSError, ValueError):
            devnull = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(devnull, stream.fileno())
        sys.exit(EXIT_UNWRITTEN)


Resolved = tuple[str | None, click.Command | None, list[str]]
"""The name of a command, the command, and its arguments."""


class Group(click.Group):
    """A group that lists the first sentence of each command's help, and whose errors say where an option belongs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the group's own options. A group has few options, so an unknown option probably belongs to a command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            name, line = error.option_name, f"{ctx.command_path} COMMAND {error.option_name}"
            message = f"No such option {name!r} before a command; a command's options come after its name: {line}"
            raise click.NoSuchOption(name, message, ctx=ctx) from None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Resolved:
        """Return the command. The error for an unknown command says what to write instead."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            name = click.utils.make_str(args[0])
            if name.startswith("-") or self.get_command(ctx, name) is not None:
                raise
        from ..model.guesses import instead_of
        from .guesses import no_command

        names = self.list_commands(ctx)
        sentence, cure = no_command(name, group="" if "worker" in names else self.name or "", known=names)
        raise click.UsageError(sentence + instead_of(self.written(ctx, cure)), ctx=ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. The error for an option from another program says what to write instead."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.ctx is None or error.ctx.parent is not ctx:
                raise
            from ..model.guesses import Guess, instead_of, replacement

            name, command = error.option_name, error.ctx.command.name or ""
            if "worker" not in self.list_commands(ctx):
                command = f"{self.name} {command}"
            if not (cure := replacement(Guess.COMMAND_OPTION, command, name)):
                raise
            raise click.NoSuchOption(
                name, f"No such option {name!r}{instead_of(self.written(ctx, cure))}", ctx=error.ctx
            ) from None

    def written(self, ctx: click.Context, cure: str) -> str:
        """Return a cure in which PROGRAM is replaced by the words that a user types before a command."""
        return cure.replace(PROGRAM, self.program(ctx))

    def program(self, ctx: click.Context) -> str:
        """Return the words that a user types before a command in the program."""
        return ctx.find_root().command_path

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, with an example below its help."""
        found = super().get_command(ctx, cmd_name)
        if found is None or isinstance(found, click.Group):
            return found
        if (example := example_of(f"{ctx.command_path} {cmd_name}")) is not None:
            found = copy(found)
            found.epilog = "\n\n".join(filter(None, (example, found.epilog)))
        return found

    def listed(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return the name and the sentence of each listed command."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [(name, sentence_of(command)) for name, command in found if command is not None and not command.hidden]

    def typed(self, ctx: click.Context) -> str:
        """Return the words that a user types before a command in this group."""
        return ctx.command_path

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.listed(ctx))


def sentence_of(command: click.Command) -> str:
    """Return the complete first sentence of a command's help."""
    return command.get_short_help_str(limit=1_000_000)


class Place(NamedTuple):
    """A command's location, and its sentence in the list of commands."""

    path: str
    """The location, written as `.module:name`."""
    sentence: str


class LateGroup(Group):
    """A group that imports each command on first use, because importing all of them takes 20 times as long as showing
    the help.
    """

    def __init__(self, name: str | None = None, *, places: Mapping[str, Place], **options: Any) -> None:
        super().__init__(name, commands=_Commands(places), **options)
        self._places = places

    def listed(self, ctx: click.Context) -> list[tuple[str, str]]:
        return [(name, self._places[name].sentence) for name in self.list_commands(ctx)]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=text) for name, text in self.listed(ctx) if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


class Program(LateGroup):
    """A program's top-level group. The process ends when the command ends. An import creates hundreds of thousands of
    objects that live until the process ends. Python does not scan these objects for garbage during the import,
    afterwards or at exit, which saves a third of the time that `outboxq status` takes (``python -m timeit -n 1 -r 9 -s
    "import subprocess" "subprocess.run(['outboxq', 'status'])"``).
    """

    _is_starting = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        open_closed_streams()  # before a file or a connection gets the number of a closed stream
        if starts_worker(sys.argv[1:]):
            leave_on_signals()
        gc.disable()
        self._is_starting = True
        atexit.register(gc.freeze)
        return super().__call__(*args, **kwargs)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Read the command line and run the command."""
        with output_checked():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C stops it with the usual exit code, even while modules are being imported."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            click.echo("\noutboxq: stopped", err=True)
            sys.exit(exit_code(stop))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Resolved:
        """Import the command and return it."""
        try:
            return super().resolve_command(ctx, args)
        finally:
            if self._is_starting:
                self._is_starting = False
                gc.freeze()
                gc.enable()


class _Commands(UserDict[str, Any]):
    """The commands, keyed by name. Each command is imported on first use."""

    def __getitem__(self, name: str) -> click.Command:
        found = self.data[name]
        if isinstance(found, Place):
            found = self.data[name] = resolve_name(f"{__package__}{found.path}")
        assert isinstance(found, click.Command), "a Place names a command"
        return found


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print the completion script for bash, zsh or fish.

    \b
    bash  eval "$(outboxq completion bash)" in ~/.bashrc
    zsh   eval "$(outboxq completion zsh)" in ~/.zshrc
    fish  outboxq completion fish > ~/.config/fish/completions/outboxq.fish
    """  # noqa: D301 - click reads the backspace
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    script = kind(context.find_root().command, {}, "outboxq", "_OUTBOXQ_COMPLETE").source_template
    names = {"complete_func": "_outboxq_completion", "complete_var": "_OUTBOXQ_COMPLETE", "prog_name": "outboxq"}
    click.echo(script % names)


_ID: Final = "0198c1d2"

EXAMPLES: Final[dict[str, str]] = {
    "actions": "--since 1d --operator ann",
    "batch cancel": "--reason 'wrong file' 0198c1d2-7f3a-8b4c-9d5e-0123456789ab",
    "batch list": "--open",
    "batch show": "0198c1d2-7f3a-8b4c-9d5e-0123456789ab",
    "check": "--max-age 10m --max-failed none -q mail",
    "completion": "bash",
    "db current": "--json",
    "db history": "",
    "db sizes": "",
    "db end-session": "4711@2026-11-23T02:30:00.123456Z",
    "db sql": "--from 0001 > upgrade.sql",
    "demo": "",
    "emit": """order.paid --payload '{"id": 7}'""",
    "enqueue": """shop.send_receipt --args '{"order_id": 7}' --delay 10m""",
    "failed discard": "--task shop.send_receipt --since 2h --dry-run",
    "failed list": "-q mail --since 1d",
    "failed redrive": "--exception ConnectionError --limit 300",
    "failed summary": "-q mail",
    "grants": "--role producer --with emit shop_web",
    "log": "--follow --event task_failed",
    "partition": "--every month --dry-run",
    "prune": "--older-than 90d --dry-run",
    "queue forget": "mial",
    "queue limit": "mail --concurrency 4 --rate 100/1m",
    "queue list": "",
    "queue order": "mail oldest",
    "relay list": "",
    "relay pause": "orders --reason 'broker upgrade'",
    "relay remove": "orders --dry-run",
    "relay run": "shop:outbox --name orders",
    "schedule add": "nightly shop.report '0 3 * * *' --tz Europe/Berlin",
    "schedule add-retention": "90d",
    "schedule backfill": "nightly --from 2026-11-01 --to 2026-11-08",
    "schedule edit": "nightly --rule '30 4 * * *' --reason 'the export is late'",
    "schedule list": "",
    "schedule next": "'0 3 * * *' --tz Europe/Berlin -n 3",
    "schedule plant": "--ahead 10m",
    "status": "--watch 5 --by task --window 10m",
    "subscription list": "",
    "subscription remove": "shop.old_report --dry-run",
    "task cancel": "-q mail --dry-run",
    "task discard": f"{_ID} --reason 'the order was cancelled'",
    "task list": "--status failed -q mail --since 2h",
    "task priority": f"{_ID} 50",
    "task rerun": f"{_ID} --from charge --dry-run",
    "task reschedule": f"{_ID} --in 2h",
    "task show": f"{_ID} --traceback",
    "task state-at": f"{_ID} 2026-11-23T02:30Z",
    "task steps": f"{_ID} --show-results",
    "upgrade": "shop:outbox",
    "verify": "",
    "web": "--port 8080",
    "worker": "shop:outbox -q mail -c 8",
    "workers list": "",
    "workers quiet": 'web-1:4711 --reason "new release"',
    "workers recover": 'web-1:4711 --reason "the machine is gone"',
    "workers stop": "0198c1d2-7f3a-7b4c-9d5e-0123456789ab",
    "workers show": "0198c1d2-7f3a-7b4c-9d5e-0123456789ab",
}
"""The words that follow a command in its example, keyed by command."""
_TARGETS: Final = {"queue": "mail", "relay": "orders", "schedule": "nightly", "task": _ID, "workers": "web-1:4711"}
"""The target in the examples of a group's other commands, keyed by group."""


def example_of(path: str) -> str | None:
    """Return the text below the help for the command that a user types as `path`; None for a group."""
    words = path.split()
    listed = (EXAMPLES.get(" ".join(words[at:])) for at in range(len(words)))
    found = next((one for one in listed if one is not None), _TARGETS.get(" ".join(words[-2:-1])))
    return None if found is None else f"\b\nExample:\n  {f'{path} {found}'.rstrip()}"
