"""The times at which a worker looks for the remaining tasks of cancelled batches. These tests use no database."""

from __future__ import annotations

from types import SimpleNamespace

from outboxq.worker.upkeep import BatchCanceller


def test_a_failure_is_followed_by_a_look_at_once_and_many_by_one_a_second():
    looks = []
    store = SimpleNamespace(batches=SimpleNamespace(continue_cancelling=lambda: looks.append(None)))
    canceller = BatchCanceller(store)
    assert canceller.pause() >= 5
    canceller.expect()
    assert canceller.wake.is_set()
    assert canceller.pause() == 0
    canceller.run_once()
    assert canceller.pause() >= 5
    for _ in range(10):
        canceller.expect()
        canceller._looked_at += 1000  # on any machine, the next check is not due yet
        assert canceller.pause() > 0
    assert len(looks) == 1
