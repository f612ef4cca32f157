"""The commands of `outboxq` inside a framework: each one exists and uses the framework's database, or there is a stated reason why not."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.cli.database import front_end
from outboxq.cli.framework import Frame, FramedGroup
from outboxq.cli.groups import DATABASE_PARAMETERS
from outboxq.contrib import flask as flask_extension

FLASK = flask_extension.commands()


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the commands of a group and its subgroups, with the words that call them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_flask_has_all_commands_except_those_meant_for_elsewhere():
    ours, theirs = dict(commands(main)), dict(commands(FLASK))
    assert (
        {path[0] for path in ours.keys() - theirs.keys()}
        == {"completion", "demo", "grants", "web"}
        == set(flask_extension.ELSEWHERE)
    )
    assert theirs.keys() <= ours.keys()
    assert {
        ("task", "explain"),
        ("failed", "redrive"),
        ("queue", "pause"),
        ("verify",),
        ("partition",),
    } <= theirs.keys()


def test_flask_commands_have_all_parameters_except_the_database():
    ours = dict(commands(main))
    for path, command in commands(FLASK):
        names = {one.name for one in command.params}
        if path != ("upgrade",):
            assert names == {one.name for one in ours[path].params} - DATABASE_PARAMETERS, path
        assert not names & DATABASE_PARAMETERS, path
        assert command.get_short_help_str() not in ("", "()"), path


def test_a_new_command_is_added_to_a_framework_and_names_that_frameworks_program():
    group = click.Group("outboxq")

    def look(**given: object) -> None:
        raise AssertionError("the command must run on the framework's database")

    def looking(store: Store, name: str) -> None:
        click.echo(f"{store.alias} {name} {front_end('inner look').typed(['verify'])}")

    look.__wrapped__ = looking  # as `database_options` sets it
    url, name = click.Option(["--url"]), click.Argument(["name"])
    inner = click.Group("inner", commands=[click.Command("look", callback=look, params=[url, name])])
    group.add_command(inner)
    alias = click.Option(["--database"], default="default")
    frame = Frame(
        program=lambda: "manage.py outboxq",
        store=Store,
        options=[alias],
        again=lambda database: [] if database == "default" else ["--database", database],
        elsewhere={"demo": "run: outboxq demo"},
    )
    made = FramedGroup(lambda: group, frame, name="outboxq")
    run = CliRunner().invoke
    assert run(made, ["inner", "look", "x"]).output == "default x manage.py outboxq verify\n"
    other = run(made, ["inner", "look", "x", "--database", "other"]).output
    assert other == "other x manage.py outboxq verify --database other\n"
    assert run(made, ["inner", "look", "x", "--url", "sqlite://"]).exit_code == 2
    refused = run(made, ["demo"])
    assert (refused.exit_code, "run: outboxq demo" in refused.output) == (2, True)


class Store:
    """A framework's store."""

    def __init__(self, database: str) -> None:
        self.alias = database

    def ensure_current(self) -> None: ...


@pytest.mark.parametrize("words", [["--help"], ["task", "--help"], ["queue", "pause", "--help"]])
def test_help_does_not_need_an_application(words):
    result = CliRunner().invoke(FLASK, words, prog_name="flask outboxq")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage: flask outboxq")
