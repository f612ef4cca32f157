"""The function `redact` is applied to everything on the dashboard that a handler received, or that a handler or an
operator wrote.
"""

from __future__ import annotations

import json

import pytest
from werkzeug.test import Client

from outboxq.store import Problem, Rule
from outboxq.store.numbers import overview
from outboxq.web import application
from tests.integrations.dashboard.pages import PAGES, Local, address

SECRET, SHOWN = "swordfish", "(removed)"
WRITTEN = {"error", "traceback", "reason", "note", "text"}
"""The members of an event's data that a handler can have written."""
PRIVATE = {
    *("overview", "queue", "tasks", "tasks failed", "failures", "failure_group", "bulk redrive", "worker"),
    *("task retried", "task dead_letter", "task retry_later", "task running"),
    *("actions", "actions as JSON", "schedule paused", "schedule paused as JSON", "schedules as JSON"),
    *("relay", "relay as JSON", "relay paused", "relay paused as JSON", "queue paused", "queue paused as JSON"),
    *("overview as JSON", "tasks as JSON", "failures as JSON", "task dead_letter as JSON", "worker as JSON"),
}
"""The pages that show such text."""


def poisoned(value, name=""):
    """The data of an event, with the secret in each text that a handler can have written."""
    match value:
        case dict():
            return {key: poisoned(one, key) for key, one in value.items()}
        case list():
            return [poisoned(one, name) for one in value]
        case str() if name in WRITTEN:
            return f"{SECRET} {value}"
    return value


@pytest.fixture
def poison(filling, sqlite):
    """Write the secret wherever a handler or an operator can have written it."""
    sqlite.corrupted = True  # the errors of tasks and of their events no longer match
    sqlite.run(f"UPDATE task_executions SET last_error = '{SECRET} ' || last_error")
    for table, column in (("task_executions", "args"), ("task_executions", "result"), ("task_executions", "headers")):
        sqlite.run(f"""UPDATE {table} SET {column} = '{{"a": "{SECRET}"}}' WHERE {column} IS NOT NULL""")
    sqlite.run(f"""UPDATE task_steps SET result = '"{SECRET}"' WHERE result IS NOT NULL""")
    sqlite.run(f"UPDATE task_leases SET progress_note = '{SECRET} ' || progress_note")
    details = json.dumps({"pause_reason": SECRET})
    sqlite.run(f"UPDATE operator_actions SET reason = '{SECRET} ' || reason, details = '{details}'")
    for table in ("queue_settings", "task_schedules", "relays"):
        sqlite.run(f"UPDATE {table} SET pause_reason = '{SECRET} ' || pause_reason WHERE pause_reason IS NOT NULL")
    sqlite.run(f"UPDATE relays SET last_error = '{SECRET}', failing_since = created_at")
    receiver = {"source": "erp", "tasks": ["shop.book"], "failing_since": None, "last_error": SECRET}
    sqlite.run(f"UPDATE workers SET receivers = '{json.dumps([receiver])}'")
    for number, data in sqlite.rows(
        "SELECT sequence_num, event_data FROM execution_events WHERE event_data IS NOT NULL"
    ):
        written = json.dumps(poisoned(json.loads(data))).replace("'", "''")
        sqlite.run(f"UPDATE execution_events SET event_data = '{written}' WHERE sequence_num = {number}")
    return filling


def texts(filling, redact) -> dict[str, str]:
    """The text of each page and of its JSON."""
    client: Client = Local(application(filling.outbox, allow_actions=True, show_arguments=True, redact=redact))
    found = {}
    for page in PAGES:
        path = address(page, filling)
        place, _, query = path.partition("?")
        for name, url in ((page, path), (f"{page} as JSON", f"/api/{place.strip('/') or 'overview'}.json?{query}")):
            answer = client.get(url)
            assert answer.status_code == 200, url
            found[name] = answer.text
    return found


def test_text_from_handlers_is_redacted_on_every_page(poison):
    assert [
        name for name, text in texts(poison, lambda text: text.replace(SECRET, SHOWN)).items() if SECRET in text
    ] == []
    plain = texts(poison, None)
    assert {name for name, text in plain.items() if SECRET in text} >= PRIVATE


def test_a_message_in_a_problem_is_redacted(filling, monkeypatch):
    problem = Problem(rule=Rule.FAILED, subjects=("mail",), sentence=f"password={SECRET}")
    monkeypatch.setattr(overview, "problems", lambda *_: [problem])
    client = Local(application(filling.outbox, redact=lambda text: text.replace(SECRET, SHOWN)))
    for path in ("/", "/queue?name=ledger", "/api/overview.json", "/api/queue.json?name=ledger"):
        text = client.get(path).text
        assert (SECRET in text, SHOWN in text) == (False, True), path


def test_a_failing_redact_function_shows_no_page(poison, caplog):
    def fail(text):
        raise LookupError("no rules")

    answer = Local(application(poison.outbox, redact=fail)).get("/failures")
    assert (answer.status_code, SECRET in answer.text) == (500, False)
