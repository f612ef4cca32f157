"""The help of every command: whole sentences, and lists that fit a terminal of 80 columns."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator

import click
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.cli.groups import EXAMPLES, example_of
from outboxq.contrib.flask import commands as flask_commands

FLASK = flask_commands()


def tree(command: click.Command) -> Iterator[click.Command]:
    """Yield the command and all its subcommands."""
    yield command
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from tree(one)


COMMANDS = list({id(one): one for one in tree(main)}.values())  # `prune` has two names
GROUPS = [*(one for one in COMMANDS if isinstance(one, click.Group)), FLASK]


def shown(command: click.Command) -> str:
    """Return the help, as shown on a terminal of 80 columns."""
    return CliRunner().invoke(command, ["--help"], terminal_width=78).output


def test_every_list_describes_each_command_in_one_line_with_a_full_sentence():
    for group in GROUPS:
        listed = shown(group).partition("Commands:\n")[2].splitlines()
        lines = [re.fullmatch(r"  (\S+) +([A-Z].*\.)", line) for line in listed]
        context = click.Context(group)
        assert [line and line[1] for line in lines] == [
            name for name in group.list_commands(context) if not group.get_command(context, name).hidden
        ], listed
    assert len(GROUPS) == 11


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that call each command."""
    context = click.Context(group)
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        yield from leaves(one, (*path, name)) if isinstance(one, click.Group) else [(*path, name)]


def test_each_command_has_an_example_that_its_parser_accepts():
    commands = {" ".join(path): example_of(" ".join(path)) for path in leaves(main)}
    assert commands.keys() >= EXAMPLES.keys()
    for words, example in commands.items():
        assert example is not None, words
        typed = shlex.split(example.partition("Example:")[2].partition(" > ")[0])
        context, command = click.Context(main, info_name="outboxq"), main
        while isinstance(command, click.Group):
            name, command, typed = command.resolve_command(context, typed)
            context = click.Context(command, info_name=name, parent=context)
        with command.make_context(context.info_name, typed, parent=context.parent):
            assert f"Example:\n    outboxq {words}" in command.get_help(context), words


def test_an_example_is_written_for_the_current_program():
    result = CliRunner().invoke(FLASK, ["queue", "pause", "--help"], prog_name="flask outboxq")
    assert result.output.endswith("Example:\n    flask outboxq queue pause mail\n")


def test_every_help_text_fits_a_terminal_of_80_columns():
    wide = [
        (path, line)
        for path in leaves(main)
        for line in CliRunner().invoke(main, [*path, "--help"], terminal_width=80).output.splitlines()
        if len(line) > 80
    ]
    assert wide == []


def test_flask_lists_the_group_with_a_full_sentence():
    assert re.fullmatch(r"[A-Z].*\.", FLASK.get_short_help_str(60))


def test_every_help_text_consists_of_full_sentences():
    texts = [inspect.cleandoc(one.help or "").replace("\b", "").strip() for one in COMMANDS]
    assert [text for text in texts if not re.match(r"[A-Z][^\n]*\.(\n\n|$)", text)] == []
    options = [one for command in COMMANDS for one in command.params if isinstance(one, click.Option)]
    assert [one.opts for one in options if not one.hidden and not re.fullmatch(r"[A-Z].*\.", one.help or "")] == []


def test_a_block_is_shown_line_by_line():
    """A raw docstring would have a backslash and a "b" instead of the character that marks a block."""
    assert "\n  worker    runs tasks;" in shown(main.commands["grants"])
    assert not any("\\b" in shown(command) for command in COMMANDS)
