"""A word that was typed instead of APP: the error message shows the command that was probably meant."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from outboxq.cli import main


@pytest.fixture(autouse=True)
def app(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTBOXQ_APP", raising=False)
    monkeypatch.delenv("OUTBOXQ_DATABASE_URL", raising=False)


def said(*words: str) -> str:
    result = CliRunner().invoke(main, [*words], prog_name="outboxq")
    assert result.exit_code == 2, result.output
    return result.stderr.strip()


@pytest.mark.parametrize(
    ("words", "likely"),
    [
        (
            ("enqueue", "crm.send", "13"),
            """'13' is an argument of the task, write: outboxq enqueue crm.send --args '{"NAME": 13}' -A APP""",
        ),
        (
            ("enqueue", "crm.send", "it's", "-A", "crm:outbox"),
            """an argument of the task, write: outboxq enqueue crm.send --args '{"NAME": "it\\u0027s"}' -A crm:outbox""",
        ),
        (
            ("enqueue", "crm:send", "ada@example.com"),
            """write: outboxq enqueue crm:send --args '{"NAME": "ada@example.com"}'""",
        ),
        (("emit", "order.paid", "13"), "'13' is the payload, write: outboxq emit order.paid --payload 13 -A APP"),
        (("queue", "limit", "mail", "10/m"), "'10/m' is the limit, write: outboxq queue limit mail --rate 10/m -A APP"),
        (("queue", "limit", "mail", "5"), "'5' is the limit, write: outboxq queue limit mail --concurrency 5 -A APP"),
        (("relay", "run", "orders"), "'orders' is the name of a relay, write: outboxq relay run --name orders -A APP"),
        (("task", "list", "mail", "--url", "sqlite:///x.db"), "'mail' is a queue, write: outboxq task list -q mail"),
    ],
)
def test_the_error_shows_the_probable_command(words, likely):
    assert said(*words).endswith(f" {likely}")


def test_the_command_omits_an_application_set_in_the_environment(monkeypatch):
    monkeypatch.setenv("OUTBOXQ_APP", "crm:outbox")
    assert said("relay", "run", "orders").endswith("write: outboxq relay run --name orders")


def test_other_words_get_the_general_error():
    for words in (("verify", "orders"), ("task", "list", "crm:tasks")):
        assert said(*words).endswith("write APP as module:outbox, e.g. shop.tasks:outbox")
    assert "secret" not in said("task", "list", "postgresql://me:secret@db/shop")
