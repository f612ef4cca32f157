"""Commands that outboxq prints for a person to type: how they name the program and the database."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from sqlalchemy.engine import make_url

from outboxq import Outbox
from outboxq.cli.database import FRONT_END, address, front_end
from outboxq.cli.serving.worker import _find
from outboxq.integration import FrontEnd


@click.group()
def outboxq() -> None: ...


@outboxq.group()
def task() -> None: ...


@task.command()
@click.argument("app", required=False, envvar="OUTBOXQ_APP")
@click.option("--url")
@click.option("--schema")
def explain(**_: object) -> None:
    click.echo(front_end("task explain").typed(("queue", "resume", "my mail")))


@click.group()
def flask() -> None: ...


flask.add_command(outboxq)


def said(command, *words, **environment):
    return CliRunner().invoke(command, words, env=environment, catch_exceptions=False).stdout.strip()


@pytest.mark.parametrize("program", ["outboxq", "python -m outboxq", "manage.py outboxq"])
def test_a_printed_command_begins_with_the_program_name(program):
    run = CliRunner().invoke(outboxq, ["task", "explain"], prog_name=program)
    assert run.stdout == f"{program} queue resume 'my mail'\n"


def test_a_printed_command_inside_flask_begins_with_flask():
    assert said(flask, "outboxq", "task", "explain") == "flask outboxq queue resume 'my mail'"


def test_a_given_app_is_repeated_in_commands_and_a_password_is_not():
    assert said(outboxq, "task", "explain", "shop:outbox") == "outboxq queue resume 'my mail' -A shop:outbox"
    assert said(outboxq, "task", "explain", OUTBOXQ_APP="shop:outbox") == "outboxq queue resume 'my mail'"
    assert "secret" not in said(outboxq, "task", "explain", "--url", "postgresql://me:secret@host/shop")


def test_a_given_url_is_repeated_in_printed_commands():
    resume = "outboxq queue resume 'my mail' --url"
    assert said(outboxq, "task", "explain", "--url", "sqlite:///my shop.db") == f"{resume} 'sqlite:///my shop.db'"
    assert said(outboxq, "task", "explain", "--url", "postgresql:///shop", "--schema", "jobs") == (
        f"{resume} postgresql:///shop --schema jobs"
    )


def test_a_program_can_define_how_its_commands_are_printed():
    @click.group()
    @click.pass_context
    def manage(context: click.Context) -> None:
        context.meta[FRONT_END] = FrontEnd(program="./manage.py outboxq")

    manage.add_command(outboxq)
    assert said(manage, "outboxq", "task", "explain", "shop:outbox") == "./manage.py outboxq queue resume 'my mail'"


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({}, " -A shop:outbox"),
        ({"OUTBOXQ_APP": "shop:outbox"}, ""),
        ({"OUTBOXQ_APP": "other:outbox"}, " -A shop:outbox"),
    ],
)
def test_a_workers_commands_name_its_application_unless_the_environment_does(
    tmp_path, monkeypatch, environment, options
):
    """The hint names the database. Otherwise, the environment's database would answer that there is no such task."""
    outbox = Outbox(f"sqlite:///{tmp_path / 'own.db'}")
    monkeypatch.setattr("outboxq.cli.serving.worker.load", lambda _app: outbox)
    for name, value in {"OUTBOXQ_DATABASE_URL": f"sqlite:///{tmp_path / 'other.db'}", **environment}.items():
        monkeypatch.setenv(name, value)
    assert _find("shop:outbox", None).integration.front_end.typed(["verify"]) == f"outboxq verify{options}"


def test_commands_name_a_workers_database_if_it_is_not_the_applications(monkeypatch):
    outbox = Outbox("postgresql:///own", schema="jobs")
    monkeypatch.setattr("outboxq.cli.serving.worker.load", lambda _app: outbox)
    monkeypatch.setenv("OUTBOXQ_DATABASE_URL", "")  # the worker sets this variable
    found = _find("shop:outbox", make_url("postgresql:///shard"))
    assert found.integration.front_end.typed(["verify"]) == "outboxq verify --url postgresql:///shard --schema jobs"
    assert found.store.bound_engine.url.database == "shard"


@pytest.mark.parametrize("name", ["host", "port", "service"])
def test_the_server_in_the_query_of_a_url_is_compared(name):
    """The path of a Unix socket is in the query. If the query were ignored, a worker for another server would stay on its application's
    server.
    """
    one, other = (make_url(f"postgresql:///shop?{name}={value}&connect_timeout=2") for value in ("5433", "5434"))
    assert address(one) != address(other)
    assert address(one) == address(one.update_query_dict({"connect_timeout": "9"}))
