"""The command line's hints for commands and options of other programs."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files

import click
import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.cli.groups import PROGRAM
from outboxq.contrib.flask import commands as flask_commands
from outboxq.model.guesses import Guess, tables

COMMANDS, OPTIONS = tables()[Guess.COMMAND], tables()[Guess.COMMAND_OPTION]


def said(words: str, program: click.Group = main, name: str = "outboxq") -> str:
    result = CliRunner().invoke(program, words.split(), prog_name=name)
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1].removeprefix("Error: ")


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("purge", "; write outboxq task cancel -q QUEUE --status ready"),
        ("beat", "; it is not needed: every worker enqueues the tasks of schedules"),
        ("migrate", "; write outboxq upgrade"),
        ("flower", "; write outboxq web"),
        ("inspect active", "; write outboxq workers list, outboxq task list"),
        ("events", "; write outboxq log --follow"),
        ("failed retry", "; write outboxq failed redrive"),
        ("failed requeue 0198", "; write outboxq failed redrive"),
        ("schedule run nightly", "; write outboxq schedule trigger NAME"),
        ("task revoke 0198", "; write outboxq task cancel ID"),
        ("workers ping", "; write outboxq workers list"),
        ("worker -Q mail,crm", "No such option '-Q'; write -q, once for each queue"),
        ("worker -lINFO", "No such option '-l'; write --log-level"),
        ("worker --pool=prefork", "No such option '--pool'; write --isolation thread"),
        ("worker --beat", "No such option '--beat'; it is not needed: every worker"),
        ("worker --autoscale 10,3", "; write -c for the number of threads"),
        ("enqueue shop.crm --kwargs {}", "; write --args"),
        ("upgrade --check", "No such option '--check'; write outboxq db current, which says"),
        ("upgrade --dry-run", "No such option '--dry-run'; write outboxq db sql, which prints the SQL"),
        ("task list --state failed", "No such option '--state'; write --status"),
        ("failed list --state dead", "No such option '--state'; write outboxq task list --status"),
    ],
)
def test_commands_of_other_programs_get_a_hint_with_the_equivalent(words, cure):
    assert cure in said(words)
    assert "Did you mean" not in said(words)


def test_hints_inside_a_framework_name_its_program():
    flask = flask_commands()
    assert said("failed retry", flask, "flask outboxq").endswith("; write flask outboxq failed redrive")
    assert said("worker -B", flask, "flask outboxq").endswith("; `flask outboxq schedule list` lists the schedules")
    assert said("task list --state x", flask, "flask outboxq").endswith("; write --status")
    assert "mount outboxq.web.application()" in said("flower", flask, "flask outboxq")


@pytest.mark.parametrize("words", ["prunes", "failed discrad", "batch cancle", "wroker"])
def test_a_misspelt_command_gets_a_suggestion(words):
    assert "Did you mean" in said(words)


@pytest.mark.parametrize("words", ["prime", "failed discount", "schedule renew", "task candle", "queue format"])
def test_a_destructive_command_is_not_suggested_for_a_similar_word(words):
    assert said(words) == f"No such command {words.split()[-1]!r}."


def test_a_misspelt_option_gets_a_suggestion():
    assert "Did you mean" in said("worker --concurency 3")


def find(words: list[str]) -> click.Command:
    command: click.Command = main
    for word in words:
        if not isinstance(command, click.Group) or (found := command.get_command(click.Context(main), word)) is None:
            break
        command = found
    return command


def test_every_hint_names_commands_and_options_that_exist():
    cures = {cure for table in (COMMANDS, OPTIONS) for rows in table.values() for cure in rows.values()}
    written = [
        words for cure in cures for words in re.findall(rf"{PROGRAM} ([a-z -]+[a-z])", cure.replace(" or ", ", "))
    ]
    assert len(written) > 40
    for line in written:
        words = line.split()
        path = [word for word in words if not word.startswith("-")]
        command = find(path)
        assert command is not main, line
        assert not isinstance(command, click.Group) or path[-1] == command.name, line
        options = {name for one in command.params for name in one.opts}
        assert {word for word in words if word.startswith("-")} <= options, line
    for command, rows in OPTIONS.items():
        known = {name for one in find(command.split()).params for name in (*one.opts, *one.secondary_opts)}
        assert not known & rows.keys()
        named = {
            name for cure in rows.values() if PROGRAM not in cure for name in re.findall(r"(?<![\w-])--?[a-z-]+", cure)
        }
        assert named <= known


def test_existing_commands_do_not_have_hints():
    for group, rows in COMMANDS.items():
        found = find([group] if group else [])
        assert isinstance(found, click.Group)
        assert not set(found.list_commands(click.Context(found))) & rows.keys()


def test_each_table_contains_each_name_once():
    read = tomllib.loads(files("outboxq.model").joinpath("guesses.toml").read_text(encoding="utf-8"))
    assert read.keys() == set(Guess)
    for owners in read.values():
        for owner, rows in owners.items():
            names = [name for key in rows for name in key.split()]
            assert len(names) == len({*names}), owner
