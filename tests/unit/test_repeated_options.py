"""Repeated options: if an option takes one value, a second one is refused instead of silently replacing the first."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.cli.parameters import Once
from tests.unit.test_framing import commands


@pytest.mark.parametrize(
    ("words", "option", "first", "second"),
    [
        (("status", "-A", "shop:outbox", "--app", "crm:outbox"), "--app", "'shop:outbox'", "'crm:outbox'"),
        (("worker", "-A", "shop:outbox", "-A", "crm:outbox"), "--app", "'shop:outbox'", "'crm:outbox'"),
        (
            ("check", "--url", "sqlite:///a.db", "--url", "sqlite:///b.db"),
            "--url",
            "'sqlite:///a.db'",
            "'sqlite:///b.db'",
        ),
        (("status", "--schema", "one", "--schema", "two"), "--schema", "'one'", "'two'"),
        (("task", "list", "-q", "mail", "--queue=crm"), "--queue", "'mail'", "'crm'"),
        (("task", "list", "--limit", "3", "--limit", "4"), "--limit", "'3'", "'4'"),
        (("upgrade", "--wait", "1s", "--wait", "2s"), "--wait", "'1s'", "'2s'"),
        (("enqueue", "work", "-q", "mail", "-q", "crm"), "--queue", "'mail'", "'crm'"),
    ],
)
def test_a_second_value_is_refused_and_both_are_named(words, option, first, second):
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 2
    assert f"Option {option!r} takes one value, but got {first} and {second}; leave one of them out" in result.output


def test_each_option_with_one_value_refuses_a_second():
    for path, command in commands(main):
        for option in command.params:
            if isinstance(option, click.Option):
                has_one_value = not (option.is_flag or option.multiple or option.count)
                assert isinstance(option, Once) is has_one_value, f"{' '.join(path)} {option.opts[0]}"


def test_the_message_never_contains_a_password():
    urls = ("postgresql://me:secr/et@one/shop", "postgresql://two/shop?password=secret")
    result = CliRunner().invoke(main, ["status", "--url", urls[0], "--url", urls[1]])
    assert result.exit_code == 2
    assert "but got 'postgresql://…one/shop' and 'postgresql://two/shop?…'" in result.output
    assert "secr" not in result.output


def test_the_same_value_twice_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["upgrade", "--url", "sqlite:///a.db", "--url", "sqlite:///a.db"])
    assert result.exit_code == 0, result.output
