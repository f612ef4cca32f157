"""Groups of commands: what their lists say is said in whole sentences, and need not import what does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module

import click
from click.shell_completion import CompletionItem


class Group(click.Group):
    """A group whose list of commands has the whole first sentence of each help text."""

    def sentence(self, name: str) -> str:
        """Return what the list says of this command."""
        return sentence_of(self.commands[name])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.sentence(name)) for name in self.list_commands(ctx) if not self.is_hidden(name)]
            )

    def is_hidden(self, name: str) -> bool:
        """Return whether a command works, but is not in the list: one under a name that it had before."""
        return self.commands[name].hidden


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a command is, and what the list says of it."""

    module: str
    name: str
    sentence: str


class LateGroup(Group):
    """A group that imports a command when it is used: importing all of them takes twenty times as long as the help."""

    def __init__(self, name: str | None = None, *, places: Mapping[str, Place], **options: object) -> None:
        super().__init__(name, commands=_Commands(places), **options)  # type: ignore[arg-type]  # click's own options
        self.places = places

    def sentence(self, name: str) -> str:
        return self.places[name].sentence

    def is_hidden(self, name: str) -> bool:  # noqa: ARG002 - what is listed there has no former names
        """Return False, and import nothing to find out."""
        return False

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self.sentence(name)) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name, imported when asked for."""

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
    """Return the first sentence of a command's help, as long as it is."""
    return command.get_short_help_str(limit=1_000_000)
