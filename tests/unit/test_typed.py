"""How a command that prints another one says that it is typed."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from outboxq.cli.typed import front_end, typed_as
from outboxq.front_end import FrontEnd


@click.group()
def outboxq() -> None: ...


@outboxq.group()
def task() -> None: ...


@task.command()
@click.argument("app", required=False, envvar="OUTBOXQ_APP")
@click.option("--url")
def explain(**_: object) -> None:
    click.echo(front_end("task explain").typed(("queue", "resume", "my mail")))


@click.group()
def flask() -> None: ...


flask.add_command(outboxq)


def said(command, *words, **environment):
    return CliRunner().invoke(command, words, env=environment, catch_exceptions=False).stdout.strip()


@pytest.mark.parametrize("program", ["outboxq", "python -m outboxq", "manage.py outboxq"])
def test_it_is_typed_behind_the_same_words(program):
    run = CliRunner().invoke(outboxq, ["task", "explain"], prog_name=program)
    assert run.stdout == f"{program} queue resume 'my mail'\n"


def test_below_flask_it_is_a_command_of_flask():
    assert said(flask, "outboxq", "task", "explain") == "flask outboxq queue resume 'my mail'"


def test_an_app_that_was_typed_is_typed_again_and_a_password_is_not():
    assert said(outboxq, "task", "explain", "shop:outbox") == "outboxq queue resume 'my mail' -A shop:outbox"
    assert said(outboxq, "task", "explain", OUTBOXQ_APP="shop:outbox") == "outboxq queue resume 'my mail'"
    assert "secret" not in said(outboxq, "task", "explain", "--url", "postgresql://me:secret@host/shop")


def test_a_program_may_say_how_its_commands_are_typed():
    with typed_as(FrontEnd(program="./manage.py outboxq")):
        assert said(outboxq, "task", "explain", "shop:outbox") == "./manage.py outboxq queue resume 'my mail'"
