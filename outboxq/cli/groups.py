"""Groups of commands whose lists show whole sentences, without an import of the commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module

import click
from click.shell_completion import CompletionItem


class Group(click.Group):
    """A group whose list of commands shows the whole first sentence of each help text."""

    def sentence(self, name: str) -> str:
        """Return the sentence that the list has for this command."""
        return sentence_of(self.commands[name])

    def typed(self, ctx: click.Context) -> str:
        """Return the words before a command of this group, as they are typed."""
        return ctx.command_path

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            names = [name for name in self.list_commands(ctx) if not self.is_hidden(ctx, name)]
            formatter.write_dl([(name, self.sentence(name)) for name in names])

    def is_hidden(self, ctx: click.Context, name: str) -> bool:
        """Return whether the list leaves this command out."""
        command = self.get_command(ctx, name)
        return command is None or command.hidden


DATABASE_PARAMETERS = frozenset({"url", "schema", "app", "app_argument", "database_urls"})
"""Names of the parameters that choose the database. A framework's commands leave them out: its settings choose it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The module and the name of a command, with its sentence in the list."""

    module: str
    name: str
    sentence: str


class LateGroup(Group):
    """A group that imports a command when it is used: importing all of them takes 20 times as long as the help."""

    def __init__(self, name: str | None = None, *, places: Mapping[str, Place], **options: object) -> None:
        super().__init__(name, commands=_Commands(places), **options)  # type: ignore[arg-type]  # click's own options
        self.places = places

    def sentence(self, name: str) -> str:
        return self.places[name].sentence

    def is_hidden(self, ctx: click.Context, name: str) -> bool:  # noqa: ARG002
        """Return False without importing the command, since every place has a sentence."""
        return False

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self.sentence(name)) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name, imported at their first use."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._known: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._known:
            place = self._places[name]
            self._known[name] = getattr(import_module(place.module, __package__), place.name)
        return self._known[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._known[name] = command

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._places, **self._known})

    def __len__(self) -> int:
        return len({**self._places, **self._known})


def sentence_of(command: click.Command) -> str:
    """Return the whole first sentence of a command's help."""
    return command.get_short_help_str(limit=1_000_000)
