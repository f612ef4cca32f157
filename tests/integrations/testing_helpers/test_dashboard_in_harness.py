"""Within a harness, the dashboard reads through the test's own transaction."""

from __future__ import annotations

import logging
import re

import pytest
from werkzeug.test import Client

from outboxq.testing import Harness
from outboxq.web import application
from outboxq.web.pages import ROUTES

OF_ONE = {"/queue", "/schedule", "/relay", "/bulk"}
"""The pages that need a name."""
PAGES = sorted(one.path for one in ROUTES if not (one.is_action or "<" in one.path or one.path in OF_ONE))


@pytest.fixture
def harness(shop, connection):
    with Harness(shop.outbox, using=connection) as harness:
        yield harness


@pytest.fixture
def client(shop):
    return Client(application(shop.outbox, authorize=lambda _: "write", allow_actions=True))


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize("path", [*PAGES, "/healthz", "/healthz?deep=1", "/metrics"])
def test_each_page_is_shown(client, caplog, path):
    with caplog.at_level(logging.WARNING):
        answer = client.get(path)
    assert (answer.status_code, answer.text if answer.status_code != 200 else "", caplog.messages) == (200, "", [])


def test_a_page_shows_tasks_of_the_test_immediately(shop, harness, client):
    assert "/tasks/" not in client.get("/tasks").text
    task = shop.receipt.using(shop.outbox).enqueue(7)
    assert f"/tasks/{task.id}" in client.get("/tasks").text
    assert "Completed" not in client.get(f"/tasks/{task.id}").text
    harness.drain()
    assert "Completed" in client.get(f"/tasks/{task.id}").text


def test_a_page_can_change_tasks_of_the_test(shop, harness, client):
    task = shop.receipt.using(shop.outbox, delay=60).enqueue(7)
    token = re.search(r'name="csrf"[^>]* value="([^"]+)"', client.get(f"/tasks/{task.id}").text)
    assert token is not None
    answer = client.post(f"/tasks/{task.id}/cancel", data={"csrf": token[1]})
    assert answer.status_code == 303
    harness.assert_enqueued(shop.receipt, 7, status="Cancelled")
