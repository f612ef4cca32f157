"""The link of each cure leads to a page that has each filter of the cure's command."""

from __future__ import annotations

import ast
import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

import pytest
from werkzeug.routing import Map, Rule

import outboxq
from outboxq import Outbox
from outboxq.model import EventType, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store.numbers.metrics import AttemptCounts, TaskMetric
from outboxq.web import application
from outboxq.web.pages import ROUTES
from outboxq.web.pages.actions import _page_of_command
from tests.integrations.dashboard.test_watch_pages import Reader, fail

HOUR = timedelta(hours=1)
TEXT, ID = "mail & more", "0198c1d2-7f3a-8b4c-9d5e-0123456789ab"
OPTIONS = {"-q": "queue", "--status": "state", "--state": "state"}
"""The options whose filters have a different name."""


def cures() -> list[tuple[str, ...]]:
    """The commands of all cures in the code, with a text or an id in place of each value."""
    found: set[tuple[str, ...]] = set()
    for path in Path(outboxq.__file__).parent.rglob("*.py"):
        text = path.read_text()
        tree = ast.parse(text if "Cure(" in text or "cure_of(" in text else "")  # parsing every file takes seconds
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id == "Cure" and isinstance(node.args[1], ast.Tuple):
                found.add(tuple(map(word, node.args[1].elts)))
            elif node.func.id == "cure_of":
                found.add(tuple(map(word, node.args[1:])))
    return sorted(found)


def word(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return ID if re.search(r"id\b", ast.unparse(node)) else TEXT


def address(command: tuple[str, ...]) -> str | None:
    urls = Map([Rule(one.path, endpoint=one.name) for one in ROUTES if not one.is_action]).bind("")
    request = SimpleNamespace(url=lambda route, /, **values: urls.build(route, values))
    return _page_of_command(request, *command)  # type: ignore[arg-type]


def test_the_cures_are_found():
    assert len(cures()) > 12
    assert ("failed", "redrive", ID) in cures()
    assert any(one[:2] == ("failed", "list") for one in cures())


def test_a_link_has_the_target_or_each_filter_of_its_command():
    for command in cures():
        check_link(command)


def check_link(command: tuple[str, ...]) -> None:
    href, (group, *words) = address(command), command
    if group in {"worker", "verify"}:
        assert href is None  # a person must type it
        return
    assert href is not None
    parts = urlsplit(href)
    if group == "db":
        assert parts.path == "/system"
    elif group == "relay" and len(words) == 1:
        assert parts.path == "/relays"
    elif group == "workers" and words == ["list"]:
        assert parts.path == "/workers"
    elif "--group" in words:
        assert parts.path == f"/failures/{words[-1]}"
    elif words[0] in {"list", "summary"}:
        wanted = {
            OPTIONS.get(name, name.lstrip("-")): value for name, value in zip(words[1::2], words[2::2], strict=True)
        }
        assert (parts.path, dict(parse_qsl(parts.query))) == ("/tasks" if group == "task" else "/failures", wanted)
    else:
        target = next(one for one in words[1:] if not one.startswith("-"))
        assert target in {parts.path.rpartition("/")[2], *dict(parse_qsl(parts.query)).values()}


@pytest.mark.parametrize("option", ["-q", "--task", "--key", "--topic", "--exception", "--since", "--until"])
def test_each_filter_of_dead_letters_is_a_parameter_of_the_link(option):
    value = "1h" if option in {"--since", "--until"} else TEXT
    href = address(("failed", "list", option, value))
    assert href is not None
    assert dict(parse_qsl(urlsplit(href).query)) == {OPTIONS.get(option, option[2:]): value}


def test_an_option_that_no_page_has_gives_no_link():
    assert address(("failed", "list", "--limit", "5")) is None
    assert address(("task", "list", "--open")) is None


def test_the_failures_page_can_show_one_queue_and_period_only(database):
    reader = Reader(application(Outbox(database.engine)))
    fail(database, queue="billing", task_name="billing.charge")
    fail(database, queue="mail", task_name="mail.send")
    overview = reader.words("/")
    assert "billing" in overview
    page = reader.words("/failures", queue="billing", since="1h")
    assert "billing.charge" in page
    assert "mail.send" not in page
    assert "No dead letter matches" in reader.words("/failures", queue="billing", until="1h")
    assert "Since is not a time" in reader.words("/failures", since="yesterday")


def test_groups_of_failures_are_sorted_by_the_chosen_order(database):
    reader = Reader(application(Outbox(database.engine)))
    fail(database, queue="a", task_name="first.task")
    fail(database, queue="a", task_name="many.task")
    fail(database, queue="a", task_name="many.task")
    fail(database, queue="a", task_name="last.task")
    orders = {
        "last": ["last.task", "many.task", "first.task"],
        "first": ["first.task", "many.task", "last.task"],
        "number": ["many.task"],
        "task": ["first.task", "last.task", "many.task"],
    }
    for order, names in orders.items():
        words = reader.words("/failures", sort=order)
        places = [words.index(name) for name in names]
        assert places == sorted(places), order
    assert "Cannot sort by 'size'" in reader.words("/failures", sort="size")


def test_the_problem_of_many_retries_links_to_the_retrying_tasks(database):
    reader = Reader(application(Outbox(database.engine)))
    database.add(database.store, queue="mail", task_name="mail.send")
    (claim,) = database.claim(store=database.store, queues=["mail"])
    data = {"exception": "smtplib.SMTPServerDisconnected"}
    again = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="no", data=data, delay=HOUR)
    database.store.finish([again])
    database.add(database.store, queue="mail", task_name="mail.other")
    metric = TaskMetric(id=uuid7(), queue="mail", task_name="mail.send", counts=AttemptCounts(retried=100))
    database.store.metrics.record([metric], worker_id=uuid4())
    words = reader.words("/")
    assert "100 × mail.send (smtplib.SMTPServerDisconnected)" in words
    [href] = re.findall(r'href="([^"]*)">See them<', reader.page.text)
    assert unescape(href) == "/tasks?state=retrying&queue=mail"
    listed = reader.words("/tasks", state="retrying", queue="mail")
    assert "mail.send" in listed
    assert "mail.other" not in listed
    assert 'aria-current="page">Retrying' in reader.page.text
