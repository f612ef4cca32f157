"""The architecture page shows all statuses in which each event can be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta

from outboxq.errors import InvalidTransition, LeaseLost
from outboxq.model import ENDS_CLAIM, Claim, EventType, OnConflict, Outcome, TaskStatus
from outboxq.store import NewStep
from tests.conftest import Database
from tests.contract.planting import plant
from tests.docs.architecture import BEFORE, after

LEASE, EXPIRY = timedelta(hours=1), timedelta(hours=2)
BY_RECOVERY = {EventType.RESET, EventType.ABANDONED}


def brought_to(database: Database, status: TaskStatus, queue: str) -> Claim:
    """Bring a task to this status, alone in its queue. Return its last claim."""
    store = database.frozen
    database.add(queue=queue, idempotency_key=queue, lease=LEASE, expires_in=EXPIRY)
    (claim,) = database.claim(queues=[queue])
    store.steps.complete(claim, NewStep(name="first", number=1))
    match status:
        case TaskStatus.READY:
            store.release(claim)
        case TaskStatus.COMPLETED:
            store.complete(claim)
        case TaskStatus.FAILED:
            store.fail(claim, "e")
        case TaskStatus.CANCELLED:
            store.cancel(claim.id, force=True)
    assert store.get(claim.id).status is status
    return claim


def claim_it(database: Database, claim: Claim, *, after: timedelta = timedelta(0)) -> None:
    database.clock.advance(after)
    database.claim(queues=[claim.queue])


def recover_it(database: Database, **options: int) -> None:
    database.clock.advance(LEASE + timedelta(seconds=1))
    database.frozen.recover(**options)


def cancel_it_before_its_worker_dies(database: Database, claim: Claim) -> None:
    database.frozen.cancel(claim.id)
    recover_it(database)


def enqueue_it_anew(database: Database, claim: Claim) -> None:
    database.add(queue=claim.queue, idempotency_key=claim.queue, on_conflict=OnConflict.REPLACE)


ACTIONS: Mapping[str, Callable[[Database, Claim], object]] = {
    **{
        f"its worker says {kind}": lambda database, claim, kind=kind: database.frozen.finish(
            [Outcome(claim=claim, event_type=kind)]
        )
        for kind in sorted(ENDS_CLAIM - BY_RECOVERY)
    },
    "claim": claim_it,
    "claim late": lambda database, claim: claim_it(database, claim, after=EXPIRY),
    "recover": lambda database, _: recover_it(database),
    "recover for the last time": lambda database, _: recover_it(database, max_recoveries=0),
    "cancel, recover": cancel_it_before_its_worker_dies,
    "cancel": lambda database, claim: database.frozen.cancel(claim.id),
    "cancel by force": lambda database, claim: database.frozen.cancel(claim.id, force=True),
    "retry": lambda database, claim: database.frozen.schedule_retry(claim.id, database.clock.now, 2),
    "redrive": lambda database, claim: database.frozen.redrive(claim.id),
    "discard": lambda database, claim: database.frozen.discard(claim.id),
    "set the priority": lambda database, claim: database.frozen.set_priority(claim.id, 7),
    "replace": enqueue_it_anew,
    "complete a step": lambda database, claim: database.frozen.steps.complete(claim, NewStep(name="second", number=2)),
    "rewind": lambda database, claim: database.frozen.steps.rewind(claim.id, "first"),
}
"""Everything that the task's worker, another worker or a person can do to a task."""


def test_each_event_is_written_in_and_leads_to_the_statuses_that_the_page_shows(database):
    seen: dict[object, set[TaskStatus]] = {EventType.CREATED: set(), EventType.FAILED: {TaskStatus.READY}}
    for status in TaskStatus:
        for name, act in ACTIONS.items():
            claim = brought_to(database, status, f"{status}: {name}")
            known, before = len(database.frozen.history(claim.id)), status
            with suppress(InvalidTransition, LeaseLost):
                act(database, claim)
            for event in database.frozen.history(claim.id)[known:]:
                seen.setdefault(event.event_type, set()).add(before)
                before = after(event.event_type, before)
            assert database.frozen.get(claim.id).status is before, (status, name)
    assert seen == BEFORE


def test_a_waiting_task_that_cannot_be_claimed_fails(database):
    """A task goes from Ready to Failed only if another program's SQL has written a value that makes it unclaimable."""
    database.corrupted = True
    task_id = database.add(database.store).id
    plant(database, f"UPDATE task_executions SET lease_token = 9223372036854775807 WHERE id = '{task_id.hex}'")
    with suppress(Exception):
        database.claim(1, database.store)
    assert [event.event_type for event in database.store.history(task_id)] == [EventType.CREATED, EventType.FAILED]
    assert database.store.get(task_id).status is TaskStatus.FAILED
