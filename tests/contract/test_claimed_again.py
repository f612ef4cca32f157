"""A handler learns that its lease is lost, and then its worker gets the same claim again after a crash of the server."""

from __future__ import annotations

import time

import pytest

from outboxq import EventType, Outbox, TaskContext
from tests.waiting import until

EVENTS = [EventType.CREATED, EventType.CLAIMED, EventType.RELEASED, EventType.CLAIMED, EventType.COMPLETED]


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_the_outcome_of_a_lost_claim_is_ignored_and_the_task_runs_again(database, transactional):
    """The handler may have stopped halfway and returned."""
    outbox, told = Outbox(database.engine), []

    @outbox.task(name="work", transactional=transactional)
    def work(ctx: TaskContext) -> int:
        if not told:
            leases = worker._parts.leases
            leases.note_break()
            leases.mark_lost(ctx.claim)
            assert leases.hold_on(ctx.claim, sent=time.monotonic())
        told.append(ctx.lost)
        return len(told)

    handle = work.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05)
    worker.start()
    try:
        until(lambda: outbox.store.get(handle.id).completed_at)
    finally:
        worker.stop()
    assert told == [True, False]
    assert outbox.result(handle.id) == 2
    assert [event.event_type for event in outbox.store.history(handle.id)] == EVENTS
    assert outbox.store.get(handle.id).attempt == 1
