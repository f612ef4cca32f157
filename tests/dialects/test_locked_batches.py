"""A locked row of `task_batches` on PostgreSQL: only the tasks of that batch wait for it.

A trigger locks the row at the end of a transaction, so no earlier statement can skip it.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from outboxq import EventType, Outbox, TaskStatus
from outboxq.model import Outcome
from outboxq.model.batches import OnFailed
from tests.conftest import Database
from tests.contract import helpers
from tests.contract.test_batches import made, state
from tests.dialects.test_statement_count import statements
from tests.waiting import PROMPTLY, until

LEASE = 1.0
MEMBERS = 4


@pytest.fixture
def outbox(postgresql: Database) -> Outbox:
    return Outbox(postgresql.engine)


@pytest.fixture
def work(outbox: Outbox) -> Iterator[Callable[..., Any]]:
    with helpers.workers(outbox, poll=0.05, recover_every=1, drain_timeout=20, concurrency=MEMBERS + 2) as start:
        yield start


def lock(connection: Connection, batch_id: UUID) -> None:
    connection.exec_driver_sql(f"SELECT 1 FROM task_batches WHERE id = '{batch_id}' FOR UPDATE")


def cancel_one(connection: Connection, outbox: Outbox, batch_id: UUID) -> None:
    assert outbox.store.batches.cancel(batch_id, limit=1, using=connection) == 1


def lock_row(connection: Connection, _: Outbox, batch_id: UUID) -> None:
    lock(connection, batch_id)


def end_one_at_once(connection: Connection, outbox: Outbox, batch_id: UUID) -> None:
    """Count the end of a member immediately instead of at the commit, as a framework that checks constraints early would."""
    connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
    outbox.store.cancel(next(outbox.store.batches.members(batch_id)).id, force=True, using=connection)


HOLDERS = {"a cancel": cancel_one, "a lock": lock_row, "an end that is counted at once": end_one_at_once}


class Running:
    """A batch whose tasks all run until they are told to end."""

    def __init__(self, outbox: Outbox, start: Callable[..., Any], **options: Any) -> None:
        self.go, self.runs = threading.Event(), Counter[int]()

        @outbox.task(name="member", lease=LEASE)
        def member(n: int) -> None:
            self.runs[n] += 1
            self.go.wait(60)

        @outbox.task(name="quick")
        def quick() -> None: ...

        self.outbox, self.quick = outbox, quick
        with outbox.batch(using=outbox) as batch:
            self.handles = [member.using(batch).enqueue(n) for n in range(MEMBERS)]
        self.batch_id = batch.id
        self.worker = start(**options)
        until(lambda: len(self.runs) == MEMBERS)

    def statuses(self) -> set[TaskStatus]:
        return {self.outbox.store.get(one.id).status for one in self.handles}

    def others_end(self) -> None:
        """Make tasks without a batch, and another batch, complete while the lock is held."""
        with self.outbox.batch(using=self.outbox) as batch:
            for _ in range(2):
                self.quick.using(batch).enqueue()
        handles = [self.quick.using(self.outbox, queue="other").enqueue() for _ in range(10)]
        get = self.outbox.store.get
        until(lambda: {get(one.id).status for one in handles} == {TaskStatus.COMPLETED}, seconds=PROMPTLY)
        until(lambda: self.outbox.store.batches.get(batch.id).completed_at is not None, seconds=PROMPTLY)


@pytest.mark.parametrize(
    "holder", [pytest.param(one, marks=[pytest.mark.full] if one == "a lock" else []) for one in HOLDERS]
)
def test_a_locked_batch_does_not_block_other_outcomes(
    postgresql: Database, outbox: Outbox, work: Callable[..., Any], holder: str
) -> None:
    running = Running(outbox, work)
    with helpers.transaction(postgresql) as connection:
        HOLDERS[holder](connection, outbox, running.batch_id)
        [(first,)] = postgresql.rows("SELECT max(lease_expires_at) FROM task_leases")
        running.go.set()
        running.others_end()
        running.others_end()  # no outcome waits for the lock a second time
        assert running.statuses() == {TaskStatus.RUNNING}

        extended = f"SELECT count(*) FROM task_leases WHERE lease_expires_at > '{first + timedelta(seconds=2 * LEASE)}'"
        until(lambda: postgresql.rows(extended)[0][0] >= MEMBERS - 1)  # the holder may have locked one lease
        connection.rollback()
    until(lambda: running.statuses() == {TaskStatus.COMPLETED})
    assert outbox.store.batches.get(running.batch_id).completed == MEMBERS
    assert set(running.runs.values()) == {1}
    kinds = {event.event_type for one in running.handles for event in outbox.store.history(one.id)}
    assert kinds == {EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED}


def test_a_stopping_worker_releases_the_tasks_of_a_locked_batch(
    postgresql: Database, outbox: Outbox, work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task is the exception: its cancel request would end it."""
    monkeypatch.setattr("outboxq.worker.worker._GIVE_BACK_TIMEOUT", PROMPTLY)  # enough for a slow machine
    running = Running(outbox, work, drain_timeout=0.1)
    asked = running.handles[3].id
    outbox.store.cancel(asked)
    with helpers.transaction(postgresql) as connection:
        lock(connection, running.batch_id)
        assert running.worker.stop() is False
        get = outbox.store.get
        ready = [one.id for one in running.handles if get(one.id).status is TaskStatus.READY]
        assert ready == [one.id for one in running.handles if one.id != asked]
        assert get(asked).status is TaskStatus.RUNNING
        connection.rollback()
    running.go.set()


def test_an_end_waits_only_briefly_for_the_row_of_its_batch(postgresql: Database) -> None:
    batch = made(postgresql)
    (claim,) = postgresql.claim()
    outcome = Outcome(claim=claim, event_type=EventType.COMPLETED)
    store, retries = postgresql.own_store(), list[None]()
    store.on_retry = lambda: retries.append(None)
    with helpers.transaction(postgresql) as connection:
        lock(connection, batch.id)
        with pytest.raises(OperationalError) as caught:
            store.finish_unlocked([outcome])
        assert store.is_locked_out(caught.value)
        assert not retries
        assert postgresql.store.get(claim.id).status is TaskStatus.RUNNING
        connection.rollback()
    assert store.finish_unlocked([outcome]) == (frozenset(), frozenset())
    assert state(postgresql, batch) == (1, 1, 0, 0, True)


def test_a_recovery_skips_tasks_that_would_end_in_a_locked_batch(postgresql: Database) -> None:
    """One task was to be cancelled, and one lost its worker too often. Tasks that return to the outbox do not need the batch's row."""
    batch = made(postgresql, 3)
    other = made(postgresql, 1)
    postgresql.add()
    claims = {claim.id: claim for claim in postgresql.claim(5)}
    cancelled, abandoned, *others = claims
    postgresql.frozen.cancel(cancelled)
    postgresql.run(f"UPDATE task_executions SET recovery_attempts = 3 WHERE id = '{abandoned}'")
    postgresql.corrupted = True  # the update above has no recovery events
    postgresql.frozen.cancel(others[1])
    postgresql.clock.advance(timedelta(hours=1))
    with helpers.transaction(postgresql) as connection:
        lock(connection, batch.id)
        assert {one.id for one in postgresql.frozen.recover()} == set(others)
        assert state(postgresql, other) == (1, 0, 0, 1, True)
        assert postgresql.frozen.recover() == []
        connection.rollback()
    assert {one.id for one in postgresql.frozen.recover()} == {cancelled, abandoned}
    assert state(postgresql, batch) == (3, 0, 1, 1, False)


def test_a_locked_batch_is_cancelled_later_and_the_others_immediately(postgresql: Database) -> None:
    batches = [made(postgresql, 2, on_failed=OnFailed.CANCEL) for _ in range(3)]
    for claim in postgresql.claim(6)[::2]:
        postgresql.frozen.fail(claim, "it broke")
    with helpers.transaction(postgresql) as connection:
        connection.exec_driver_sql(
            f"SELECT 1 FROM task_executions WHERE pipeline_execution_id = '{batches[0].id}' FOR UPDATE"
        )
        assert postgresql.frozen.batches.continue_cancelling() == 2
        connection.rollback()
    assert postgresql.frozen.batches.continue_cancelling() == 1


KINDS: dict[str, tuple[dict[str, Any], str | None]] = {
    "no key": ({}, None),
    "a partition key": ({}, "partition_key"),
    "a limited queue": ({"concurrency": 10}, None),
    "a limited concurrency key": ({"concurrency_per_key": 10}, "concurrency_key"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_expired_task_of_a_locked_batch_does_not_block_claims(postgresql: Database, kind: str) -> None:
    """A claim that finds the task would need the batch's row to cancel it."""
    limits, key = KINDS[kind]
    names = itertools.count()

    def of_kind() -> dict[str, Any]:
        return {} if key is None else {key: f"key {next(names)}"}

    if limits:
        postgresql.store.queues.limit("default", **limits)
    batch, other = (made(postgresql, then=(), expires_in=timedelta(seconds=1), **of_kind()) for _ in range(2))
    store, retries = postgresql.frozen, list[None]()
    store.on_retry = lambda: retries.append(None)
    with helpers.transaction(postgresql) as connection:
        lock(connection, batch.id)
        for _ in range(2):
            waiting = [postgresql.add(**of_kind()).id for _ in range(2)]
            postgresql.clock.advance(timedelta(seconds=31))
            with statements(postgresql) as seen:
                assert {claim.id for claim in postgresql.claim(5)} == set(waiting)
            assert state(postgresql, other) == (1, 0, 0, 1, True)
            assert state(postgresql, batch) == (1, 0, 0, 0, False)
        begun = next(one for one in seen if not one.startswith("BEGIN"))
        assert "set_config" in begun  # a claimer that has waited for the row once does not wait as long again
        connection.rollback()
    assert not retries
    postgresql.clock.advance(timedelta(seconds=31))
    assert postgresql.claim(5) == []
    assert state(postgresql, batch) == (1, 0, 0, 1, True)


def test_a_prune_skips_a_locked_batch(postgresql: Database) -> None:
    """A prune counts the dead letters that it deletes as discarded, so that their batches do not wait forever."""
    batches = [made(postgresql, then=(), on_failed=OnFailed.WAIT) for _ in range(2)]
    for claim in postgresql.claim(2):
        postgresql.frozen.fail(claim, "it broke")
    postgresql.clock.advance(timedelta(days=31))
    with helpers.transaction(postgresql) as connection:
        lock(connection, batches[0].id)
        assert postgresql.frozen.prune(timedelta(days=30), statuses=[TaskStatus.FAILED]) == 2
        assert [state(postgresql, one)[-1] for one in batches] == [False, True]
        connection.rollback()
    postgresql.frozen.prune(timedelta(days=30))
    assert state(postgresql, batches[0])[-1]
