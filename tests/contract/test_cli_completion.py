"""Shell completion offers the names in the command's database, or nothing if it cannot be read."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

from outboxq import Outbox
from outboxq.cli import main
from outboxq.model import EventType, Outcome

pytestmark = pytest.mark.in_turn


def completed(*words: str) -> list[str]:
    *args, incomplete = words
    shell = ShellComplete(main, {}, "outboxq", "_OUTBOXQ_COMPLETE")
    return [one.value for one in shell.get_completions(list(args), incomplete)]


@pytest.fixture
def filled(database, monkeypatch):
    monkeypatch.setenv("OUTBOXQ_DATABASE_URL", database.url)
    for queue in ("billing", "bills", "mail"):
        database.add(database.store, queue=queue, task_name=f"shop.{queue}")
    database.add(database.store, queue="two\nlines", task_name="shop.mail")
    (claim,) = database.claim(store=database.store, queues=["mail"])
    data = {"error": "ValueError: no", "exception": "builtins.ValueError"}
    database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: no", data=data)])
    outbox = Outbox(database.engine)
    outbox.schedules.put("nightly", outbox.task(name="shop.report")(lambda: None), "@daily", using=outbox)
    return database


def test_names_are_completed_for_commands_that_accept_them(filled):
    assert completed("queue", "pause", "bi") == ["billing", "bills"]
    assert completed("queue", "show", "") == ["billing", "bills", "mail"], "a name with two lines would be two names"
    assert completed("task", "list", "-q", "ma") == ["mail"]
    assert completed("failed", "list", "--task", "shop.b") == ["shop.billing", "shop.bills"]
    assert completed("enqueue", "shop.m") == ["shop.mail"]
    for words in (("show",), ("pause",), ("remove",), ("trigger",), ("backfill",)):
        assert completed("schedule", *words, "n") == ["nightly"]
    assert completed("schedule", "add", "n") == []
    [group] = filled.store.dead_letters.groups().groups
    assert completed("failed", "redrive", "--group", "") == [group.id]
    assert completed("queue", "pause", "--url", "sqlite:////nowhere/shop.db", "") == []


def test_completion_prints_nothing_without_a_database(monkeypatch, capfd):
    monkeypatch.delenv("OUTBOXQ_DATABASE_URL", raising=False)
    assert completed("queue", "pause", "bi") == []
    assert completed("queue", "pause", "-A", "nowhere:outbox", "bi") == []
    assert capfd.readouterr() == ("", "")
