"""Random lives of tasks with keys, compared with a model in plain Python that says which tasks may be claimed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from outboxq.database.tables import metadata
from outboxq.model import Claim, EventType, NewTask, OnDeadLetter, Outcome, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store

WORKERS = 4
READY, RUNNING, FAILED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED
COMES_BACK = (EventType.RETRY_SCHEDULED, EventType.SNOOZED, EventType.RELEASED)
OTHER_ENDS = {
    EventType.COMPLETED: TaskStatus.COMPLETED,
    EventType.FAILED: FAILED,
    EventType.CANCELLED: TaskStatus.CANCELLED,
}


@dataclass
class Task:
    """The model's state of a task."""

    id: UUID
    key: str | None
    position: int
    priority: int
    due: datetime
    hold: bool
    expires_at: datetime | None
    status: TaskStatus = READY
    claim: Claim | None = None
    lease_ends: datetime | None = None
    asked: bool = False
    """Whether the task has been asked to stop."""
    recoveries: int = 0
    moved: bool = False
    """Whether an operator has changed the task's place in its key."""


@dataclass
class Model:
    """Applies each step to the database and to the model. Their answers must agree."""

    database: object
    told: list[str]
    stores: list[Store]
    tasks: list[Task] = field(default_factory=list)
    lost: list[Claim] = field(default_factory=list)
    """Ended claims that a worker still considers its own."""

    touched: list[Task] = field(default_factory=list)
    """Tasks that came back to the outbox in this step. The database itself wakes workers for them."""

    def __post_init__(self):
        self.workers = [uuid4() for _ in self.stores]
        self.store = self.stores[0]

    @property
    def now(self):
        return self.database.clock.now

    def of(self, *statuses):
        return [task for task in self.tasks if task.status in statuses]

    def holders(self):
        """Return the task that has each key: it is running, or it has failed and holds the key."""
        return {t.key: t for t in self.tasks if t.key and (t.status is RUNNING or (t.status is FAILED and t.hold))}

    def claimable(self):
        """Return the head of each free key, if it is due and not too late, and all due tasks without a key."""
        found = [task for task in self.of(READY) if task.key is None and self.starts(task)]
        for key in {task.key for task in self.of(READY)} - self.holders().keys() - {None}:
            waiting = sorted((t for t in self.of(READY) if t.key == key), key=lambda t: (-t.priority, t.position))
            head = next((task for task in waiting if not self.too_late(task)), None)
            found += [head] if head is not None and head.due <= self.now else []
        return found

    def starts(self, task):
        return task.due <= self.now and not self.too_late(task)

    def too_late(self, task):
        """Return whether a claim would cancel the task."""
        return task.due <= self.now and task.expires_at is not None and task.expires_at <= self.now

    def run(self, name, *arguments):
        before, own = {task.id for task in self.claimable() if task.key}, {task.id for task in self.tasks}
        self.told.clear(), self.touched.clear()
        getattr(self, name)(*arguments)
        self.holds()
        new = [task for task in self.claimable() if task.key and task.id in own - before]
        if name not in {"advance", "claim"} and any(task not in self.touched for task in new):
            assert self.told == ["default"], "a key is free, but no worker was woken"

    def holds(self):
        rows = self.database.rows("SELECT partition_key, task_execution_id, held FROM partition_claims")
        held = {str(key): (UUID(str(task)), bool(held)) for key, task, held in rows}
        assert held == {key: (task.id, task.status is FAILED) for key, task in self.holders().items()}

    # Steps

    def add(self, key, many, delay, priority, hold, expires):
        new = [
            NewTask(
                id=uuid7(),
                task_name="tests.work",
                args="{}",
                partition_key=key,
                available_at=self.now + timedelta(seconds=delay),
                priority=priority,
                lease=timedelta(seconds=10),
                on_dead_letter=OnDeadLetter.HOLD if hold and key else OnDeadLetter.RELEASE,
                expires_at=expires and self.now + timedelta(seconds=expires),
            )
            for _ in range(many)
        ]
        self.store.enqueue_many(new)
        self.tasks += [
            Task(
                id=task.id,
                key=key,
                position=len(self.tasks) + number,
                priority=priority,
                due=task.available_at,
                hold=hold and key is not None,
                expires_at=task.expires_at,
            )
            for number, task in enumerate(new)
        ]

    def claim(self, worker, limit):
        before = {task.id: task for task in self.claimable()}
        late = [task for task in self.of(READY) if self.too_late(task)]
        claims = self.stores[worker].claim_ready_task(limit, worker_id=self.workers[worker])
        assert len(claims) <= limit
        assert {claim.id for claim in claims} <= before.keys(), "not the head of a free key, or not due"
        for task in late:
            task.status = self.database.frozen.get(task.id).status
        for claim in claims:
            task = before[claim.id]
            task.status, task.claim, task.lease_ends = RUNNING, claim, claim.lease_expires_at
        if len(claims) < limit:
            assert self.claimable() == [], "a claim below its limit has passed over a task"
        self.look()

    def look(self):
        late = any(self.too_late(task) and task.key not in self.holders() for task in self.of(READY))
        if not late:  # a task that is too late is still claimed, so that its end is recorded
            assert self.store.look_ahead().due is bool(self.claimable())

    def end(self, which, many, event_type, delay):
        """End one or several claims of one worker."""
        running = self.of(RUNNING)
        if not running:
            return
        first = running[which % len(running)]
        ending = [task for task in running if task.claim.worker_id == first.claim.worker_id][:many]
        outcomes = [
            Outcome(claim=task.claim, event_type=event_type, delay=timedelta(seconds=delay), error="no")
            for task in (ending if first in ending else [first])
        ]
        assert self.store.finish(outcomes) == frozenset()
        for task in ending if first in ending else [first]:
            self.freed(task)
            if event_type in OTHER_ENDS:
                task.status = OTHER_ENDS[event_type]
            elif task.asked:
                task.status = TaskStatus.CANCELLED
            else:
                self.waits(task, delay)

    def waits(self, task, delay=0.0):
        task.status, task.due = READY, self.now + timedelta(seconds=delay)
        self.touched.append(task)

    def freed(self, task):
        if task.claim is not None:
            self.lost.append(task.claim)
        task.claim, task.lease_ends = None, None

    def awake(self, which):
        """A worker whose claim is over tries to end it."""
        if self.lost:
            claim = self.lost[which % len(self.lost)]
            assert self.store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED)]) == {claim.id}

    def recover(self, max_recoveries):
        expired = [task for task in self.of(RUNNING) if task.lease_ends < self.now]
        assert {one.id for one in self.store.recover(max_recoveries=max_recoveries)} == {task.id for task in expired}
        for task in expired:
            self.freed(task)
            if task.asked:
                task.status = TaskStatus.CANCELLED
            elif task.recoveries >= max_recoveries:
                task.status = FAILED
            else:
                self.waits(task)
                task.recoveries += 1

    def cancel(self, which, force):
        alive = self.of(READY, RUNNING)
        if alive:
            task = alive[which % len(alive)]
            self.store.cancel(task.id, force=force)
            task.asked = True
            if force or task.status is READY:
                self.freed(task)
                task.status = TaskStatus.CANCELLED

    def redrive(self, which):
        if failed := self.of(FAILED):
            task = failed[which % len(failed)]
            self.store.redrive(task.id)
            self.waits(task)
            task.asked, task.recoveries = False, 0

    def discard(self, which):
        if failed := self.of(FAILED):
            task = failed[which % len(failed)]
            self.store.discard(task.id)
            task.status = TaskStatus.CANCELLED

    def retry_by_hand(self, which, delay):
        if alive := self.of(READY, RUNNING, FAILED):
            at = self.now + timedelta(seconds=delay)
            task = alive[which % len(alive)]
            self.store.schedule_retry(task.id, at, 2)
            self.freed(task)
            self.waits(task, delay)
            task.asked = False

    def run_now(self, which):
        if ready := self.of(READY):
            task = ready[which % len(ready)]
            assert self.store.run_now(task.id) is (task.due > self.now)
            task.due = min(task.due, self.now)
            self.touched.append(task)

    def set_priority(self, which, priority):
        if ready := self.of(READY):
            task = ready[which % len(ready)]
            assert self.store.set_priority(task.id, priority) is (task.priority != priority)
            task.moved |= task.priority != priority
            task.priority = priority
            self.touched.append(task)

    def advance(self, seconds):
        self.database.clock.advance(seconds)

    # The end

    def drain(self):
        """Bring all tasks to an end, whatever has happened."""
        while self.of(READY, RUNNING, FAILED):
            self.advance(100)
            self.recover(3)
            for task in self.of(FAILED):
                self.store.discard(task.id)
                task.status = TaskStatus.CANCELLED
            self.claim(0, 100)
            self.holds()
            if running := self.of(RUNNING):
                outcomes = [Outcome(claim=task.claim, event_type=EventType.COMPLETED) for task in running]
                assert self.store.finish(outcomes) == frozenset()
            for task in running:
                task.status = TaskStatus.COMPLETED
        self.holds()
        assert self.holders() == {}

    def first_starts(self):
        """Check that tasks with the same key and priority started in the order in which they were enqueued."""
        rows = self.database.rows(
            "SELECT task_execution_id FROM execution_events WHERE event_type = 'task_claimed' ORDER BY sequence_num"
        )
        tasks = {task.id: task for task in self.tasks}
        started = list(dict.fromkeys(UUID(str(row[0])) for row in rows))
        lines: dict[tuple[str, int], list[int]] = {}
        for task in map(tasks.__getitem__, started):
            if task.key and not task.moved:
                lines.setdefault((task.key, task.priority), []).append(task.position)
        assert all(line == sorted(line) for line in lines.values()), lines


DELAYS = [0, 0, 5, 30]
STEPS = {
    "add": (["a", "b", "c", None], range(1, 4), [0, 0, 0, 5], [0, 0, 0, 5], [True, False], [None, None, None, 5]),
    "claim": (range(WORKERS), [1, 2, 10]),
    "end": (range(50), range(1, 4), [*COMES_BACK, *OTHER_ENDS, EventType.COMPLETED, EventType.FAILED], DELAYS),
    "awake": (range(50),),
    "recover": ([0, 3],),
    "cancel": (range(50), [True, False]),
    "redrive": (range(50),),
    "discard": (range(50),),
    "retry_by_hand": (range(50), DELAYS),
    "run_now": (range(50),),
    "set_priority": (range(50), [0, 5]),
    "advance": ([1, 5, 11],),
}
"""The possible steps and their arguments."""
OFTEN = {"add": 4, "claim": 6, "end": 6, "advance": 2, "recover": 2}
LIFE = st.tuples(st.sampled_from([name for name in STEPS for _ in range(OFTEN.get(name, 1))]), st.integers(0, 999))


def steps_of(life):
    """Choose the arguments evenly, based on a number. Hypothesis would mostly draw the smallest ones."""
    for place, (name, number) in enumerate(life):
        chance = random.Random(f"{place} {name} {number}")
        yield (name, *(chance.choice(values) for values in STEPS[name]))


def empty(database):
    with database.engine.connect() as connection, connection.begin():
        for table in metadata.tables:
            connection.exec_driver_sql(f"DELETE FROM {table}")


def live(database, monkeypatch, *, examples, steps, explore):
    """Run random lives on one database, which is emptied before each. With `explore`, every run has different lives."""
    told: list[str] = []

    @settings(
        max_examples=examples,
        derandomize=not explore,
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate],  # a failed life is short enough to read, and finding a shorter one took minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(LIFE, min_size=steps, max_size=steps))
    def one(life):
        empty(database)
        model = Model(database, told, [Store(database.engine, clock=database.clock) for _ in range(WORKERS)])
        for step in steps_of(life):
            note(repr(step))
            model.run(*step)
        model.drain()
        model.first_starts()
        assert database.store.verify() == []

    monkeypatch.setattr(Store, "wake", woken_by(told))
    one()


def woken_by(told):
    real = Store.wake

    def tell(self, target, queues):
        told.extend(sorted(set(queues)))
        real(self, target, queues)

    return tell


def test_tasks_with_keys_are_claimed_as_a_model_predicts(database, monkeypatch, pytestconfig):
    live(database, monkeypatch, examples=15 if pytestconfig.getoption("full") else 6, steps=30, explore=False)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_tasks_with_keys_are_claimed_as_the_model_predicts_in_200_random_runs(database, monkeypatch):
    live(database, monkeypatch, examples=200, steps=50, explore=True)
