"""docs/troubleshooting: each error of the library has a section with causes, cures, and the code's messages."""

from __future__ import annotations

import ast
import os
import re
import sys

import pytest

from outboxq import Outbox, UnknownTask
from tests import forked
from tests.docs import error_messages
from tests.docs.error_messages import COMMANDS, NAMES, PAGE, VALUE, messages, quoted, raised
from tests.docs.tables import between
from tests.terminal import shown


@pytest.mark.parametrize("name", [*NAMES, COMMANDS])
def test_the_messages_of_an_error_match_the_code(name):
    assert between(PAGE, name) == error_messages.part(name), "run: python -m tests.docs.error_messages"


def test_each_error_has_a_cause_and_a_cure():
    sections = dict(re.findall(r"^## (\w+)\n\n(.+?)\n\n<!--", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    assert tuple(sections) == NAMES
    assert [name for name, text in sections.items() if len(text.split()) < 10] == []


def test_nearly_every_error_has_a_message():
    """The base class is never raised. The other two have messages that are composed from parts or come from a broker."""
    assert {name for name in NAMES if name not in messages()} == {"OutboxqError", "TaskCancelled", "EventRefused"}
    assert sum(map(len, messages().values())) > 300


def test_messages_omit_values_but_include_constants():
    source = """
_CURE = "write more"
raise UnknownTask(f"task {name!r} is{a}{b} unknown; {_CURE}" + why)
raise UnknownTask(f"{it}")
"""
    assert list(raised(ast.parse(source))) == [("UnknownTask", f"task {VALUE} is{VALUE} unknown; write more{VALUE}")]


def test_a_message_that_contains_code_is_quoted_as_a_whole():
    assert quoted("write this") == "`write this`"
    assert quoted("run `outboxq status`") == "`` run `outboxq status` ``"


def test_a_raised_message_is_among_the_listed_ones():
    outbox = Outbox("sqlite:///shop.db")
    outbox.task(name="shop.charge")(lambda: None)
    with pytest.raises(UnknownTask) as raising:
        outbox.tasks.get("shop.chagre")
    patterns = [re.escape(message).replace(VALUE, ".+") for message in messages()["UnknownTask"]]
    assert any(re.fullmatch(pattern, str(raising.value)) for pattern in patterns)


@pytest.mark.in_turn
def test_the_name_of_an_error_is_printed_to_a_terminal_but_not_to_a_pipe(database):
    command = [sys.executable, "-m", "outboxq", "schedule", "show", "nightly", "--url", database.url]
    code, seen = shown(command, env={**os.environ, "TERM": "dumb"}, columns=400)
    assert code == 3
    assert re.search(
        r"^outboxq: there is no schedule .*\n  for causes and cures, see ScheduleNotFound in .*$", seen, re.MULTILINE
    )
    piped = forked.run(command, env={**os.environ}, capture_output=True, text=True)
    assert piped.stderr.count("\n") == 1
