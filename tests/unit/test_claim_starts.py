"""How far a queue has been claimed is remembered for each queue by itself."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from outboxq.store.claims.claim import ClaimStarts

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def seconds(monkeypatch):
    """What the clock says, to be set."""
    now = [1000.0]
    monkeypatch.setattr("outboxq.store.claims.claim.time.monotonic", lambda: now[0])
    return now


def passing(*queues):
    """Full claims of these queues, behind so many dead rows that the next ones begin behind them."""
    starts = ClaimStarts()
    for queue in queues:
        starts.start(queue)
        row = {"lease_token": 1, "priority": 0, "available_at": NOON, "crowded": True}
        starts.note(queue, [row], enough=True)
        assert starts.start(queue) == {"passed_priority": 0, "passed_until": NOON}
    return starts


def test_each_of_two_queues_that_are_claimed_by_turns_begins_at_the_front_once_a_second(seconds):
    starts = passing("a", "b")
    looks = {"a": [], "b": []}
    for tick in range(100):  # ten seconds
        seconds[0] += 0.1
        queue = "ab"[tick % 2]
        if starts.start(queue) == {}:
            looks[queue].append(seconds[0])
    for seen in looks.values():
        gaps = [after - before for before, after in pairwise(seen)]
        assert len(seen) >= 8, f"it began at the front at {seen} only"
        assert max(gaps) < 1.3


def test_a_claim_of_all_queues_begins_at_the_front_and_counts_for_none(seconds):
    starts = passing("a")
    seconds[0] += 0.9
    assert starts.start(None) == {}
    seconds[0] += 0.2
    assert starts.start("a") == {}
