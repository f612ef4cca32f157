"""The `outboxq` commands inside a framework's command line: `manage.py outboxq …`, `flask outboxq …`.

The framework's settings choose the database. A command is looked up in `outboxq` when it is used. New commands are
therefore available automatically, and a process imports only the command that it runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from ..integration import FrontEnd
from .groups import DATABASE_PARAMETERS, PROGRAM, Group, Resolved

if TYPE_CHECKING:
    from ..outbox import Outbox
    from ..store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The program whose command line contains the commands, and the database that they use."""

    program: Callable[[], str]
    """A function that returns the words before a command, e.g. ``flask outboxq``."""
    store: Callable[..., Store]
    """A function that returns the Store. The function is called when a command runs, with the values of `options` by
    name.
    """
    outbox: Callable[..., Outbox] | None = None
    """A function that returns the outbox with its tasks. Commands that need tasks call this function with the same
    values as `store`. None if there is no application.
    """
    options: Sequence[click.Option] = ()
    """Options that are added to every command."""
    again: Callable[..., Sequence[str]] = lambda **_values: ()
    """A function that returns the words to repeat in printed commands, such as ``("--database", "other")``. The
    function is called with the same values as `store`.
    """
    own: Callable[[], Mapping[str, click.Command]] = dict
    """A function that returns the framework's own commands, keyed by the name of the command that each one replaces."""
    attended: bool = True
    """False if a program calls the commands. The commands then do not ask for confirmation."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """The names of omitted commands, each with a hint that says what to use instead."""


ELSEWHERE: Final = {
    "completion": "run: outboxq completion",
    "demo": "run: outboxq demo",
    "grants": "run: outboxq grants, with a URL that connects to the database as the owner of the tables",
    "web": "mount outboxq.web.application() in your site, behind your own login",
}
"""Commands that frameworks omit, each with a hint that says what to use instead."""


def worker_command(run: Callable[..., Any], *more: click.Option, help: str | None) -> click.Command:
    """Return a framework's `worker` command, with the options of `outboxq worker` and the options in `more`."""
    from .serving.worker import EPILOG, Rerunnable, worker

    own = [one for one in worker.params if one.name not in DATABASE_PARAMETERS]
    return Rerunnable("worker", callback=run, params=[*own, *more], help=help, epilog=EPILOG)


class FramedGroup(Group):
    """A group that offers another group's commands, including nested groups, adapted to a Frame."""

    def __init__(self, source: Callable[[], click.Group], frame: Frame, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._source = source
        self._frame = frame

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._source().list_commands(ctx), *self._frame.own()} - set(self._frame.elsewhere))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (own := self._frame.own().get(cmd_name)) is not None:
            return own
        found = None if cmd_name in self._frame.elsewhere else self._source().get_command(ctx, cmd_name)
        if not isinstance(found, click.Group):
            return None if found is None else framed(found, self._frame)
        inner = replace(self._frame, own=dict, elsewhere={})
        return FramedGroup(lambda: found, inner, name=found.name, help=found.help)

    def typed(self, ctx: click.Context) -> str:  # noqa: ARG002
        return self._frame.program()

    def program(self, ctx: click.Context) -> str:  # noqa: ARG002
        return self._frame.program()

    def written(self, ctx: click.Context, cure: str) -> str:
        """Return a cure as a user of the framework would type it. For a command that the framework leaves out, say
        what to use instead.
        """
        elsewhere = self._frame.elsewhere
        return next((how for name, how in elsewhere.items() if cure == f"{PROGRAM} {name}"), super().written(ctx, cure))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Resolved:
        """Return the command. Raises UsageError for a command that the framework leaves out; the error says what to
        use instead.
        """
        if args and (instead := self._frame.elsewhere.get(args[0])) is not None:
            ctx.fail(f"{self._frame.program()} has no command {args[0]!r}; {instead}")
        return super().resolve_command(ctx, args)


def framed(command: click.Command, frame: Frame) -> click.Command:
    """Return a copy of the command that uses the frame's database, and has the frame's options in place of
    `database_options`.

    A command that needs no database runs unchanged.
    """
    from .changes import ATTENDED
    from .database import FRONT_END, OUTBOX, run_on_store

    needs_database = any(one.name in DATABASE_PARAMETERS for one in command.params)

    def callback(**given: Any) -> None:
        chosen = {str(one.name): given.pop(str(one.name)) for one in frame.options if one.expose_value}
        program, again = frame.program(), shlex.join(frame.again(**chosen))
        front_end = FrontEnd(program=program, finds_app=True, options=again)
        meta = click.get_current_context().meta
        meta[FRONT_END] = front_end
        meta[ATTENDED] = frame.attended
        if frame.outbox is not None:
            meta[OUTBOX] = partial(frame.outbox, **chosen)
        assert command.callback is not None, "a command has a function"
        if not needs_database or getattr(command.callback, "opens_app", False):
            command.callback(**given)
            return
        run_on_store(command, lambda: frame.store(**chosen), **given)

    known = copy(command)
    known.callback = callback
    known.params = [*(one for one in command.params if one.name not in DATABASE_PARAMETERS), *frame.options]
    return known
