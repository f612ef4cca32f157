"""The commands of `outboxq` as commands of a framework: `manage.py outboxq …`, `flask outboxq …`.

The framework's settings choose the database. A command is looked up in `outboxq` when it is used: so every new command is there
too, and a process that runs no command imports none.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from ..integration.front_end import FrontEnd
from .groups import DATABASE_PARAMETERS, Group, sentence_of

if TYPE_CHECKING:
    from ..store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The program in which the commands are typed, and the database that they use."""

    program: Callable[[], str]
    """A function that returns the words before a command, e.g. ``flask outboxq``."""
    store: Callable[..., Store]
    """A function that returns the Store; called when a command runs, with the values of `options` by name."""
    options: Sequence[click.Option] = ()
    """Additional options of every command."""
    again: Callable[..., Sequence[str]] = lambda **_values: ()
    """A function that returns the words to repeat in printed commands, such as ``("--database", "other")``; called as `store`."""
    own: Callable[[], Mapping[str, click.Command]] = dict
    """A function that returns the framework's own commands, by the names of those that they replace."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Names of the commands that are left out, each with what to run instead."""


class FramedGroup(Group):
    """A group with the commands of another group in a frame, inner groups included."""

    def __init__(
        self, source: Callable[[], click.Group], frame: Frame, *, is_root: bool = True, **attributes: Any
    ) -> None:
        super().__init__(**attributes)
        self._source = source
        self._frame = frame
        self._is_root = is_root

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = {*self._source().list_commands(ctx), *self._own()}
        return sorted(names - set(self._elsewhere()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (own := self._own().get(cmd_name)) is not None:
            return own
        found = None if cmd_name in self._elsewhere() else self._source().get_command(ctx, cmd_name)
        if not isinstance(found, click.Group):
            return None if found is None else framed(found, self._frame)
        return FramedGroup(lambda: found, self._frame, is_root=False, name=found.name, help=found.help)

    def sentence(self, name: str) -> str:
        command = self.get_command(click.Context(self), name)
        return "" if command is None else sentence_of(command)

    def typed(self, ctx: click.Context) -> str:
        return self._frame.program() if self._is_root else super().typed(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command. Raises UsageError for one that is left out, with what to run instead."""
        if args and (instead := self._elsewhere().get(args[0])) is not None:
            ctx.fail(f"{self._frame.program()} has no command {args[0]!r}; {instead}")
        return super().resolve_command(ctx, args)

    def _own(self) -> Mapping[str, click.Command]:
        return self._frame.own() if self._is_root else {}

    def _elsewhere(self) -> Mapping[str, str]:
        return self._frame.elsewhere if self._is_root else {}


def framed(command: click.Command, frame: Frame) -> click.Command:
    """Return the command for the frame's database, with the frame's options in place of `database_options`."""
    from .console import on_store
    from .typed import typed_as

    def callback(**given: Any) -> Any:
        chosen = {str(one.name): given.pop(str(one.name)) for one in frame.options if one.expose_value}
        run = on_store(command, lambda: frame.store(**chosen)).callback
        assert run is not None, "every command of outboxq has a callback"
        again = shlex.join(frame.again(**chosen))
        program = frame.program()
        with typed_as(FrontEnd(program=program, worker=f"{program} worker", options=again)):
            return run(**given)

    known = copy(on_store(command, frame.store))
    known.callback = callback
    known.params = [*(one for one in known.params if one.name not in DATABASE_PARAMETERS), *frame.options]
    return known
