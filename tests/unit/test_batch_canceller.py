"""The times at which a worker looks for the remaining tasks of cancelled batches. These tests use no database."""

from __future__ import annotations

from types import SimpleNamespace

from outboxq.worker.upkeep import BatchCanceller


def test_batches_are_checked_immediately_after_a_failure_and_at_most_once_a_second():
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
