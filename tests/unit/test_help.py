"""The help of every command: whole sentences, and lists that fit a terminal of 80 columns."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.contrib.flask import commands as flask_commands

FLASK = flask_commands()


def tree(command: click.Command) -> Iterator[click.Command]:
    """The command and all below it."""
    yield command
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from tree(one)


COMMANDS = list({id(one): one for one in tree(main)}.values())  # `prune` has two names
GROUPS = [*(one for one in COMMANDS if isinstance(one, click.Group)), FLASK]


def shown(command: click.Command) -> str:
    """The help on a terminal of 80 columns."""
    return CliRunner().invoke(command, ["--help"], terminal_width=78).output


def test_every_list_has_one_line_for_each_command_with_a_whole_sentence():
    for group in GROUPS:
        listed = shown(group).partition("Commands:\n")[2].splitlines()
        lines = [re.fullmatch(r"  (\S+) +([A-Z].*\.)", line) for line in listed]
        context = click.Context(group)
        assert [line and line[1] for line in lines] == [
            name for name in group.list_commands(context) if not group.get_command(context, name).hidden
        ], listed
    assert len(GROUPS) == 10


def test_flask_lists_the_group_with_a_whole_sentence():
    assert re.fullmatch(r"[A-Z].*\.", FLASK.get_short_help_str(60))


def test_every_help_is_made_of_whole_sentences():
    texts = [inspect.cleandoc(one.help or "").replace("\b", "").strip() for one in COMMANDS]
    assert [text for text in texts if not re.match(r"[A-Z][^\n]*\.(\n\n|$)", text)] == []
    options = [one for command in COMMANDS for one in command.params if isinstance(one, click.Option)]
    assert [one.opts for one in options if not one.hidden and not re.fullmatch(r"[A-Z].*\.", one.help or "")] == []


def test_a_block_is_shown_line_by_line():
    """A raw docstring has a backslash and a b in the place of the character that marks a block."""
    assert "\n  worker    runs tasks;" in shown(main.commands["grants"])
    assert not any("\\b" in shown(command) for command in COMMANDS)
