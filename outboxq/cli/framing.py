"""The commands of `outboxq` as commands of a framework, whose settings say the database: `manage.py outboxq …`, `flask outboxq …`.

They are found when they are asked for: a command that `outboxq` gets is there as well, and a process that runs none imports none.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from ..integration.front_end import FrontEnd
from .groups import Group, sentence_of

if TYPE_CHECKING:
    from ..store import Store

WHERE = frozenset({"url", "schema", "app", "app_argument", "database_urls"})
"""The names of the parameters that say where the tables are, which the framework's settings say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The program that the commands are typed in, and the database that they work on."""

    program: str
    """The words before a command, e.g. ``flask outboxq``."""
    store: Callable[..., Store]
    """Called while a command runs, with the values of `options` by their names."""
    options: Sequence[click.Option] = ()
    """The options that every command has besides its own."""
    again: Callable[..., Sequence[str]] = lambda **_values: ()
    """Called as `store` is: the words that a command printed by another one has to be given too, ``("--database", "other")``."""
    own: Callable[[], Mapping[str, click.Command]] = dict
    """Commands that the framework has in the place of ours."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """The names of commands that make no sense there, each with what to run instead."""


class FramedGroup(Group):
    """A group with the commands of another one, in a frame. Groups among them are framed too."""

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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raise UsageError for a command that is elsewhere, with what to run instead."""
        if args and (instead := self._elsewhere().get(args[0])) is not None:
            ctx.fail(f"{self._frame.program} has no command {args[0]!r}; {instead}")
        return super().resolve_command(ctx, args)

    def _own(self) -> Mapping[str, click.Command]:
        return self._frame.own() if self._is_root else {}

    def _elsewhere(self) -> Mapping[str, str]:
        return self._frame.elsewhere if self._is_root else {}


def framed(command: click.Command, frame: Frame) -> click.Command:
    """The same command on the frame's database: `database_options` is replaced by the frame's own options."""
    from .console import on_store
    from .typed import typed_as

    def callback(**given: Any) -> Any:
        chosen = {str(one.name): given.pop(str(one.name)) for one in frame.options if one.expose_value}
        run = on_store(command, lambda: frame.store(**chosen)).callback
        assert run is not None, "every command of ours does something"
        again = shlex.join(frame.again(**chosen))
        with typed_as(FrontEnd(program=frame.program, worker=f"{frame.program} worker", options=again)):
            return run(**given)

    known = copy(on_store(command, frame.store))
    known.callback = callback
    known.params = [*(one for one in known.params if one.name not in WHERE), *frame.options]
    return known
