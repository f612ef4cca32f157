"""The tiles of the overview and of a queue: their numbers, their colors, and the lists that they link to."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import unescape

import pytest

from outboxq.store.numbers import live
from tests.integrations.dashboard.test_watch_pages import HOUR, onlooker, reader, worker

__all__ = ["onlooker", "reader"]


def tile(reader, what: str) -> tuple[str, str]:
    """The classes and the words of a tile on the last page."""
    found = re.findall(r'<(?:a|div) class="(tile [^"]*)"[^>]*>(.*?)</(?:a|div)>', reader.page.text, re.DOTALL)
    words = [(kind.split()[1:], " ".join(re.sub(r"<[^>]*>", " ", inside).split())) for kind, inside in found]
    [(kind, text)] = [(kind, text) for kind, text in words if text.startswith(what)]
    return " ".join(kind), text


def test_a_task_in_a_paused_queue_does_not_turn_the_oldest_due_tile_red(database, reader):
    worker(database, "mail", "paused")
    database.clock.now = datetime.now(UTC) - HOUR
    database.add(database.frozen, queue="paused")
    database.store.queues.pause("paused", reason="the provider is down")
    for path, query in (("/", {}), ("/queue", {"name": "paused"})):
        assert "; the queue has been paused for" in reader.words(path, **query)
        tone, words = tile(reader, "Oldest due")
        assert tone == ""
        assert words.startswith("Oldest due 1 h")
    database.add(database.frozen, queue="mail")
    for path, query, tone in (
        ("/", {}, "late"),
        ("/queue", {"name": "mail"}, "late"),
        ("/queue", {"name": "paused"}, ""),
    ):
        reader.words(path, **query)
        assert tile(reader, "Oldest due")[0] == tone


def waiting(database, queue: str, *, retrying: int, delayed: int) -> None:
    for _ in range(retrying):
        task = database.add(database.store, queue=queue)
        database.claim(store=database.store, queues=[queue])
        database.store.schedule_retry(task.id, database.store.now() + HOUR, 2)
    for _ in range(delayed):
        database.add(database.store, queue=queue, delay=2 * HOUR)


@pytest.mark.parametrize(("path", "query"), [("/", {}), ("/queue", {"name": "mail"})], ids=["overview", "queue"])
def test_tiles_of_delayed_and_retrying_tasks_show_the_numbers_in_their_lists(database, reader, path, query):
    waiting(database, "mail", retrying=2, delayed=3)
    reader.words(path, **query)
    assert tile(reader, "Delayed") == ("delayed", "Delayed 3")
    assert tile(reader, "Retrying") == ("delayed", "Retrying 2")
    links = dict(re.findall(r'<a class="tile delayed" href="([^"]*)">\s*<span class="what">(\w+)<', reader.page.text))
    assert sorted(links.values()) == ["Delayed", "Retrying"]
    for href, what in links.items():
        listed = reader.get(unescape(href).replace("/tasks", "/api/tasks.json")).get_json()["tasks"]
        assert {one["state"] for one in listed} == {what.lower()}
        assert len(listed) == {"Delayed": 3, "Retrying": 2}[what]
    assert "Retrying" in reader.words("/queues")
    assert reader.get("/api/overview.json").get_json()["overview"]["retrying"] == {"number": 2, "at_least": False}


def test_the_delayed_tile_says_that_it_includes_some_retries(database, reader, monkeypatch):
    monkeypatch.setattr(live, "LOOKED_UP", 1)
    waiting(database, "mail", retrying=2, delayed=1)
    for path, query in (("/", {}), ("/queue", {"name": "mail"})):
        reader.words(path, **query)
        assert tile(reader, "Delayed") == ("delayed", "Delayed 2 with some retries")
        assert tile(reader, "Retrying") == ("delayed", "Retrying 1+")
