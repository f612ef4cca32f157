"""The fields for queues and tasks suggest known names."""

from __future__ import annotations

import re
from html import unescape

import pytest

from outboxq import Outbox
from outboxq.web import application
from outboxq.web.pages import tasks
from tests.integrations.dashboard.pages import Local
from tests.integrations.dashboard.test_watch_pages import fail


def suggested(text, kind):
    """The suggested names of a kind, and the number of fields that suggest them."""
    (options,) = re.findall(f'<datalist id="{kind}-names">(.*?)</datalist>', text, re.DOTALL)
    names = [unescape(one) for one in re.findall('<option value="([^"]*)">', options)]
    return names, len(re.findall(f'<input name="{kind}"[^>]* list="{kind}-names"', text))


@pytest.mark.parametrize("path", ["/tasks", "/failures"])
def test_names_of_queues_and_tasks_are_suggested(database, monkeypatch, path):
    outbox = Outbox(database.engine)

    @outbox.task(name='shop.send"receipt', queue="mail")
    def send() -> None: ...

    fail(database, queue="sms", task_name="shop.elsewhere")
    client = Local(application(outbox))
    text = client.get(path).text
    assert suggested(text, "queue") == (["mail", "sms"], 1)
    assert suggested(text, "task") == (["shop.elsewhere", 'shop.send"receipt'], 1)
    monkeypatch.setattr(tasks, "_SUGGESTED", 1)
    client.application._freshness.forget()
    assert suggested(client.get(path).text, "queue") == (["mail"], 1)


def test_the_form_for_many_dead_letters_suggests_names_too(filling):
    text = Local(application(filling.outbox, allow_actions=True)).get("/failures").text
    names, fields = suggested(text, "queue")
    assert fields == 2
    assert {"default", "ledger", "exports"} <= set(names)
