"""The tiles of the overview and of a queue: their numbers, their colours, and the lists behind them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tests.integrations.dashboard.test_watch_pages import HOUR, onlooker, reader, worker

__all__ = ["onlooker", "reader"]


def tile(reader, what: str) -> tuple[str, str]:
    """The classes and the words of a tile of the last page."""
    found = re.findall(r'<(?:a|div) class="(tile [^"]*)"[^>]*>(.*?)</(?:a|div)>', reader.page.text, re.DOTALL)
    words = [(kind.split()[1:], " ".join(re.sub(r"<[^>]*>", " ", inside).split())) for kind, inside in found]
    [(kind, text)] = [(kind, text) for kind, text in words if text.startswith(what)]
    return " ".join(kind), text


def test_a_deliberate_pause_alone_does_not_turn_the_tile_of_the_oldest_task_red(database, reader):
    worker(database, "mail", "paused")
    database.clock.now = datetime.now(UTC) - HOUR
    database.add(database.frozen, queue="paused")
    database.store.queues.pause("paused", reason="the provider is down")
    for path, query in (("/", {}), ("/queue", {"name": "paused"})):
        assert "; the queue has been paused for" in reader.words(path, **query)
        tone, words = tile(reader, "Oldest ready")
        assert tone == ""
        assert words.startswith("Oldest ready 1 h")
    database.add(database.frozen, queue="mail")
    for path, query, tone in (
        ("/", {}, "late"),
        ("/queue", {"name": "mail"}, "late"),
        ("/queue", {"name": "paused"}, ""),
    ):
        reader.words(path, **query)
        assert tile(reader, "Oldest ready")[0] == tone
