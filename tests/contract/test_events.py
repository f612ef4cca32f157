"""The log of events: its order and contents, and each task's row as the result of replaying its events."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from outboxq.errors import InvalidTransition, LeaseLost
from outboxq.model import MAX_RECOVERIES, EventType, Outcome, TaskStatus
from outboxq.model.history import replay
from outboxq.model.uuid7 import uuid7
from tests.contract import helpers


def test_the_events_of_a_task_are_in_order(database):
    claim = helpers.claimed(database)
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED)])
    (claim,) = database.claim()
    database.frozen.complete(claim)
    events = database.frozen.history(claim.id)
    assert [event.event_type for event in events] == [
        EventType.CREATED,
        EventType.CLAIMED,
        EventType.RETRY_SCHEDULED,
        EventType.CLAIMED,
        EventType.COMPLETED,
    ]
    assert [event.lease_token for event in events] == [None, 1, 1, 2, 2]
    assert [event.worker_id for event in events] == [None, *[database.worker] * 4]
    numbers = [event.sequence_num for event in events]
    assert numbers == sorted(set(numbers))


def test_the_recent_history_is_the_end_of_the_full_history(database):
    """The events are in three indexes: claims, ends of claims, and changes by operators."""
    store, claim = database.frozen, helpers.claimed(database)
    for priority in range(1, 9):
        store.fail(claim, "x")
        store.redrive(claim.id)
        store.set_priority(claim.id, priority)
        (claim,) = database.claim()
    whole = store.history(claim.id)
    assert len(whole) == 2 + 8 * 4
    for limit in (1, 2, 3, 4, 5, 6, 33, 34, 100):
        assert store.recent_history(claim.id, limit) == whole[-limit:]
    assert store.recent_history(uuid4(), 5) == []


def test_a_redrive_after_a_failure_is_added_to_the_history(database):
    claim = helpers.claimed(database)
    database.frozen.fail(claim, "x")
    database.frozen.redrive(claim.id)
    assert helpers.types(database, claim.id) == ["task_created", "task_claimed", "task_failed", "task_requeued"]


def test_events_are_never_rewritten_and_their_numbers_only_grow(database):
    seen = []
    for step in range(12):
        database.add()
        (claim,) = database.claim()
        if step % 3 == 0:
            database.frozen.complete(claim)
        elif step % 3 == 1:
            helpers.recovered(database, claim)
        else:
            database.frozen.cancel(claim.id, force=True)
        rows = database.rows("SELECT * FROM execution_events ORDER BY sequence_num")
        assert rows[: len(seen)] == seen
        assert len(rows) > len(seen)
        seen = rows


def test_the_number_of_a_pruned_event_is_not_reused(database):
    claim = helpers.claimed(database)
    database.frozen.complete(claim)
    last = database.frozen.history(claim.id)[-1].sequence_num
    database.clock.advance(10)
    assert database.frozen.prune(timedelta(0)) == 1
    handle = database.add()
    assert database.frozen.history(handle.id)[0].sequence_num > last


def test_the_id_of_a_deleted_outbox_entry_is_not_reused(database):
    database.add()
    first = database.rows("SELECT max(id) FROM task_outbox")[0][0]
    database.claim()
    database.add()
    assert database.rows("SELECT max(id) FROM task_outbox")[0][0] > first


def test_every_claim_event_names_its_worker_token_and_attempt(database):
    for _ in range(3):
        database.add()
    worker = uuid4()
    for claim in database.claim(3, worker_id=worker):
        event = database.frozen.history(claim.id)[-1]
        assert (event.worker_id, event.lease_token, event.event_data["attempt"]) == (worker, claim.lease_token, 1)


@dataclass
class Task:
    """The model's state of a task."""

    id: UUID
    queue: str
    priority: int
    lease: float
    due: datetime | None
    status: str = "Ready"
    attempt: int = 1
    recoveries: int = 0
    token: int = 0
    worker: UUID | None = None
    expires: datetime | None = None
    asked: bool = False
    result: str | None = None
    last_error: str | None = None
    events: int = 1


class Walk:
    """Random operations on the store and on a model of it. Both must agree."""

    def __init__(self, database, seed):
        self.database, self.store, self.clock = database, database.frozen, database.clock
        self.dice = random.Random(seed)
        self.tasks: dict[UUID, Task] = {}
        self.claims = []
        self.workers = [uuid4(), uuid4()]
        self.done: dict[str, int] = {}

    def step(self):
        names = [name for name in dir(self) if name.startswith("do_")]
        name = self.dice.choice([*names, "do_claim", "do_claim", "do_finish", "do_enqueue"])
        getattr(self, name)()
        self.done[name] = self.done.get(name, 0) + 1
        self.clock.advance(timedelta(microseconds=self.dice.randint(1, 999_999)))

    def some_task(self):
        return self.dice.choice(list(self.tasks.values())) if self.tasks else None

    def ready(self, task, due):
        task.status, task.due, task.worker, task.expires = "Ready", due, None, None
        task.events += 1

    def ended(self, task, status):
        task.status, task.due, task.worker, task.expires = status, None, None, None
        task.events += 1

    def holds(self, claim):
        task = self.tasks[claim.id]
        return (task.status, task.token, task.worker) == ("Running", claim.lease_token, claim.worker_id)

    def do_enqueue(self):
        for _ in range(self.dice.randint(1, 3)):
            delay = self.dice.choice([0, 0, 5, 60.25])
            task = Task(
                uuid7(), self.dice.choice("ab"), self.dice.choice([-1, 0, 5]), self.dice.choice([5, 30.5]), None
            )
            task.due = self.clock.now + timedelta(seconds=delay)
            self.database.add(
                id=task.id,
                queue=task.queue,
                priority=task.priority,
                lease=timedelta(seconds=task.lease),
                delay=timedelta(seconds=delay),
            )
            self.tasks[task.id] = task

    def do_claim(self):
        limit, queues = self.dice.randint(1, 4), self.dice.choice([None, ["a"], ["b", "a"]])
        worker = self.dice.choice(self.workers)

        def rank(task):
            return -task.priority, task.due

        due = [t for t in self.tasks.values() if t.status == "Ready" and t.due <= self.clock.now]
        due = sorted((t for t in due if queues is None or t.queue in queues), key=rank)
        claims = self.store.claim_ready_task(limit, worker_id=worker, queues=queues)
        got = [self.tasks[claim.id] for claim in claims]
        assert all(task in due for task in got)
        assert [rank(task) for task in got] == [rank(task) for task in due[:limit]]
        for claim, task in zip(claims, got, strict=True):
            task.status, task.due, task.worker, task.token = "Running", None, worker, task.token + 1
            task.expires = self.clock.now + timedelta(seconds=task.lease)
            task.events += 1
            assert (claim.lease_token, claim.attempt, claim.recovery_attempts, claim.lease_expires_at) == (
                task.token,
                task.attempt,
                task.recoveries,
                task.expires,
            )
        self.claims += claims

    def do_finish(self):
        if not self.claims:
            return
        worker = self.dice.choice(self.workers)
        mine = {
            claim.id: claim for claim in self.dice.sample(self.claims, len(self.claims)) if claim.worker_id == worker
        }
        kinds = [
            EventType.COMPLETED,
            EventType.FAILED,
            EventType.RETRY_SCHEDULED,
            EventType.RELEASED,
            EventType.SNOOZED,
            EventType.CANCELLED,
        ]
        outcomes = [
            Outcome(
                claim=claim,
                event_type=self.dice.choice(kinds),
                result=self.dice.choice([None, "1"]),
                error=self.dice.choice([None, "e"]),
                delay=timedelta(seconds=self.dice.choice([0, 7.125])),
            )
            for claim in list(mine.values())[:3]
        ]
        lost = self.store.finish(outcomes)
        assert lost == {outcome.claim.id for outcome in outcomes if not self.holds(outcome.claim)}
        for outcome in outcomes:
            task = self.tasks[outcome.claim.id]
            if outcome.claim.id in lost:
                continue
            task.result, task.last_error = outcome.result, outcome.error or task.last_error
            if outcome.event_type is EventType.RETRY_SCHEDULED:
                task.attempt += 1
            if outcome.event_type is not EventType.RELEASED:
                task.recoveries = 0
            ends = {EventType.COMPLETED: "Completed", EventType.FAILED: "Failed", EventType.CANCELLED: "Cancelled"}
            if outcome.event_type in ends:
                self.ended(task, ends[outcome.event_type])
            else:
                self.ready(task, self.clock.now + outcome.delay)

    def do_complete_release_or_fail(self):
        if not self.claims:
            return
        claim = self.dice.choice(self.claims)
        claim = self.dice.choice([claim, claim, replace(claim, worker_id=uuid4())])
        held, task = self.holds(claim), self.tasks[claim.id]
        kind = self.dice.choice(["complete", "fail", "release"])
        try:
            {
                "complete": lambda: self.store.complete(claim, "2"),
                "fail": lambda: self.store.fail(claim, "f"),
                "release": lambda: self.store.release(claim),
            }[kind]()
        except LeaseLost:
            assert not held
            return
        assert held
        task.result = "2" if kind == "complete" else None
        if kind == "fail":
            task.last_error = "f"
        if kind == "release":
            self.ready(task, self.clock.now)
        else:
            self.ended(task, "Completed" if kind == "complete" else "Failed")

    def do_heartbeat(self):
        worker = self.dice.choice(self.workers)
        mine = list({claim.id: claim for claim in self.claims if claim.worker_id == worker}.values())
        beats = self.store.heartbeat(mine)
        assert set(beats) == {claim.id for claim in mine if self.holds(claim)}
        for task_id, beat in beats.items():
            task = self.tasks[task_id]
            task.expires = self.clock.now + timedelta(seconds=task.lease)
            assert (beat.lease_expires_at, beat.cancel_requested) == (task.expires, task.asked)

    def do_recover(self):
        limit = self.dice.choice([1, 100])
        expired = [t for t in self.tasks.values() if t.status == "Running" and t.expires < self.clock.now]
        expired = sorted(expired, key=lambda task: task.expires)[:limit]
        got = self.store.recover(limit)
        assert sorted(self.tasks[r.id].expires for r in got) == [task.expires for task in expired]
        for recovered in got:
            task = self.tasks[recovered.id]
            if task.asked:
                self.ended(task, "Cancelled")
            elif task.recoveries == MAX_RECOVERIES:
                self.ended(task, "Failed")
                task.last_error = self.store.get(task.id).last_error
                assert task.last_error.startswith("ABANDONED:")
            else:
                task.recoveries += 1
                self.ready(task, self.clock.now)
            assert (recovered.status, recovered.recovery_attempts) == (task.status, task.recoveries)

    def do_advance(self):
        self.clock.advance(self.dice.choice([1, 10, 100]))

    def do_cancel(self):
        if not (task := self.some_task()):
            return
        force = self.dice.random() < 0.3
        try:
            status = self.store.cancel(task.id, force=force)
        except InvalidTransition:
            assert task.status not in ("Ready", "Running")
            return
        if task.status == "Running" and not force:
            task.events += not task.asked
            task.asked = True
        else:
            assert task.status in ("Ready", "Running")
            self.ended(task, "Cancelled")
            task.asked = False
        assert status == task.status

    def do_schedule_retry(self):
        if not (task := self.some_task()):
            return
        due, attempt = self.clock.now + timedelta(seconds=self.dice.choice([-3, 0, 20])), self.dice.randint(1, 5)
        try:
            self.store.schedule_retry(task.id, due, attempt)
        except InvalidTransition:
            assert task.status in ("Completed", "Cancelled")
            return
        assert task.status in ("Ready", "Running", "Failed")
        task.attempt, task.asked = attempt, False
        self.ready(task, due)

    def do_redrive(self):
        failed = [task for task in self.tasks.values() if task.status == "Failed"]
        if not (task := self.dice.choice(failed) if failed else self.some_task()):
            return
        try:
            self.store.redrive(task.id)
        except InvalidTransition:
            assert task.status != "Failed"
            return
        assert task.status == "Failed"
        task.attempt, task.recoveries, task.asked = 1, 0, False
        self.ready(task, self.clock.now)

    def check(self):
        self.database.assert_sound()
        for task in self.tasks.values():
            row, events = self.store.get(task.id), self.store.history(task.id)
            assert (row.status, row.attempt, row.recovery_attempts, row.lease_token, row.worker_id) == (
                task.status,
                task.attempt,
                task.recoveries,
                task.token,
                task.worker,
            )
            assert (row.lease_expires_at, row.last_error, len(events)) == (task.expires, task.last_error, task.events)
            assert (row.completed_at is not None) == (row.status in ("Completed", "Failed", "Cancelled"))
            if row.status is TaskStatus.COMPLETED:
                assert row.result == task.result
            replayed = replay(events)
            assert (replayed.status, replayed.attempt, replayed.recovery_attempts, replayed.lease_token) == (
                row.status,
                row.attempt,
                row.recovery_attempts,
                row.lease_token,
            )
            assert replayed.available_at == task.due
            assert (replayed.worker_id, replayed.completed_at, replayed.last_error) == (
                row.worker_id,
                row.completed_at,
                row.last_error,
            )
        due = sorted(task.due for task in self.tasks.values() if task.status == "Ready" and task.due > self.clock.now)
        assert self.store.next_available_at() == (due[0] if due else None)
        assert self.database.counts()[2] == sum(task.status == "Ready" for task in self.tasks.values())


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.full) for seed in (3, 4, 5))])
def test_a_random_walk_ends_in_the_state_of_its_replayed_events(database, seed):
    walk = Walk(database, seed)
    for _ in range(40):
        walk.step()
        walk.check()
    assert len(walk.done) >= 8, walk.done
