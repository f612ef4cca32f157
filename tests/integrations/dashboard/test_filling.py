"""The filled tables are consistent, and each story has the reason that it stands for."""

from __future__ import annotations

from outboxq.store import Reason, Store
from tests.integrations.dashboard.filling import fill

REASONS = {
    "completed": Reason.COMPLETED,
    "retried": Reason.COMPLETED,
    "emitted": Reason.COMPLETED,
    "recovered": Reason.COMPLETED,
    "cancelled": Reason.CANCELLED,
    "expired": Reason.CANCELLED,
    "discarded": Reason.CANCELLED,
    "dead_letter": Reason.FAILED,
    "abandoned": Reason.FAILED,
    "holds_key": Reason.FAILED,
    "running": Reason.RUNNING,
    "cancel_requested": Reason.CANCEL_REQUESTED,
    "worker_silent": Reason.WORKER_SILENT,
    "lease_ended": Reason.LEASE_ENDED,
    "behind_held_key": Reason.KEY_HELD,
    "behind_running_key": Reason.KEY_RUNNING,
    "limited": Reason.CONCURRENCY_LIMIT,
    "rate_limited": Reason.RATE_LIMIT,
    "paused": Reason.QUEUE_PAUSED,
    "retry_later": Reason.RETRY_LATER,
    "delayed": Reason.DELAYED,
    "no_worker": Reason.NO_WORKER,
    "topic": Reason.TOPIC_UNWANTED,
    "unknown": Reason.TASK_UNKNOWN,
    "due": Reason.DUE,
}


def test_each_story_has_its_reason_and_keeps_it_during_heartbeats(database):
    filling = fill(database.engine)
    filling.beat()
    store = Store(database.engine, clock=lambda: filling.now)
    assert {story: store.explain(task_id).reason for story, task_id in filling.tasks.items()} == REASONS
    assert store.verify() == []
    assert {worker.id for worker in store.workers.list()} == set(filling.workers.values())
