"""The conditions under which a worker considers another one dead. These tests use no database, and their own clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from outboxq.model import TaskStatus
from outboxq.store import Lease, LeaseLook, OutlastingLook, Recovered
from outboxq.worker.failpoints import ignore_failpoint
from outboxq.worker.meter import Meter
from outboxq.worker.upkeep import recovery
from outboxq.worker.upkeep.recovery import RECOVERY_BATCH, Recovery

EVERY = 5.0
PIPELINE = UUID(int=9)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Away(Exception):
    """The database cannot be reached."""


class Broken(Exception):
    """The row cannot be recovered."""


class World:
    """A database with leases, the database's clock and the process's clock."""

    clock = None

    def __init__(self):
        self.now = 1000.0
        self.set_by = 0.0
        self.expired, self.outlasting = [], {}
        self.held, self.broken, self.locked = set(), set(), set()
        self.taken, self.calls = [], []
        self.error = None
        self.takes = 0.0

    def monotonic(self):
        return self.now

    @property
    def moment(self):
        return NOON + timedelta(seconds=self.now - 1000 + self.set_by)

    # The store

    def check_file(self):
        """Do nothing, because there is no file."""

    def expired_leases(self):
        self.now += self.takes
        if self.error:
            raise self.error
        self.calls.append("look")
        return LeaseLook(now=self.moment, leases=list(self.expired))

    def outlasting_leases(self):
        return OutlastingLook(now=self.moment, leases=dict(self.outlasting))

    def due_again(self, until):
        if until is not None:
            self.calls.append(("due again", until - self.moment))
        return 0

    def recover(self, limit, *, leases, patience):
        assert patience
        assert limit == len(leases)
        if self.broken & set(leases):
            raise Broken
        found = [lease for lease in leases if lease not in self.locked]
        self.taken += found
        self.expired = [lease for lease in self.expired if lease not in found]
        return [
            Recovered(
                id=lease.id,
                pipeline_execution_id=PIPELINE,
                task_name="shop.work",
                queue="mail",
                status=TaskStatus.READY,
                attempt=2,
                recovery_attempts=1,
            )
            for lease in found
        ]

    def may_pass(self, error):
        return isinstance(error, Away)

    def cannot_write_now(self, error):
        return False

    # The leases of this process

    meter, on_failpoint = Meter(), staticmethod(ignore_failpoint)

    def holds(self, lease):
        return lease in self.held

    def beat_at_once(self):
        self.calls.append("beat")

    def writes(self):
        self.calls.append("write")
        if self.error:
            raise self.error


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(recovery, "time", SimpleNamespace(monotonic=world.monotonic))
    return world


@pytest.fixture
def one(world):
    return Recovery(
        world,
        world,
        every=timedelta(seconds=EVERY),
        prove_writable=world.writes,
        on_recovery=lambda: world.calls.append("recovering"),
    )


def lease(seconds=-1.0):
    return Lease(id=uuid4(), lease_token=1, worker_id=uuid4(), lease_expires_at=NOON + timedelta(seconds=seconds))


def wait(world, one, seconds=None):
    """Let time pass, by default as long as the recovery wants to wait, and run one round."""
    pause = one.pause()
    world.now += pause if seconds is None else seconds
    return one.run_once()


def test_a_task_is_recovered_at_the_second_check_after_a_write(world, one):
    dead = lease()
    world.expired = [dead]
    assert one.run_once() == 0
    assert world.calls == ["look", "write"]
    assert one.pause() == 2.0
    assert wait(world, one) == 1
    assert world.taken == [dead]


def test_the_log_names_the_recovered_task_and_its_dead_worker(world, one, caplog):
    dead = lease()
    world.expired = [dead]
    one.run_once()
    wait(world, one)
    [record] = [one for one in caplog.records if "lost its worker" in one.getMessage()]
    said = {name: getattr(record, name) for name in ("task_id", "task", "queue", "attempt", "worker", "pipeline_id")}
    assert said == {
        "task_id": str(dead.id),
        "task": "shop.work",
        "queue": "mail",
        "attempt": 2,
        "worker": str(dead.worker_id),
        "pipeline_id": str(PIPELINE),
    }
    assert record.outcome == "lost"


def test_the_two_checks_are_two_seconds_apart(world, one):
    world.expired = [lease()]
    one.run_once()
    assert wait(world, one, 1.9) == 0
    assert wait(world, one, 0.1) == 1


def test_a_task_is_recovered_within_ten_seconds_of_the_end_of_its_lease(world, one):
    for _ in range(50):
        one.run_once()
        began, world.expired = world.now, [lease()]  # just after the check
        while world.expired:
            wait(world, one)
        assert world.now - began <= 10


def test_a_lease_extended_between_the_checks_is_watched_anew(world, one):
    first = lease()
    world.expired = [first]
    one.run_once()
    world.expired = [Lease(**{**vars_of(first), "lease_expires_at": NOON})]
    assert wait(world, one) == 0
    assert world.taken == []


def vars_of(one):
    return {name: getattr(one, name) for name in ("id", "lease_token", "worker_id", "lease_expires_at")}


def test_claims_of_this_process_are_never_recovered(world, one):
    own, other = lease(), lease()
    world.expired, world.held = [own, other], {own}
    for _ in range(5):
        wait(world, one)
    assert world.taken == [other]
    assert world.expired == [own]


@pytest.mark.parametrize("trouble", ["the look fails", "the look takes long", "the process was paused", "no write"])
def test_after_a_problem_the_watch_restarts_and_lasts_twice_as_long(world, one, trouble):
    world.expired = [lease()]
    one.run_once()
    if trouble == "the look fails":
        world.error = Away()
        with pytest.raises(Away):
            wait(world, one)
        world.error = None
    elif trouble == "the look takes long":
        world.takes = 3.0
        wait(world, one)
        world.takes = 0.0
    elif trouble == "no write":
        world.expired.append(lease())
        real = one.prove_writable
        one.prove_writable = lambda: (_ for _ in ()).throw(Away())
        with pytest.raises(Away):
            wait(world, one)
        one.prove_writable = real
    else:
        wait(world, one, 2.0 + 2.1)
    assert world.taken == []
    began = world.now
    while not world.taken:
        wait(world, one)
    assert 2 * EVERY <= world.now - began <= 3 * EVERY + 0.1


def test_a_locked_lease_is_watched_anew(world, one):
    stuck = lease()
    world.expired, world.locked = [stuck], {stuck}
    one.run_once()
    assert wait(world, one) == 0
    world.locked = set()
    assert wait(world, one, 1.9) == 0
    assert wait(world, one, 0.2) == 1


def test_a_broken_row_does_not_stop_the_recovery_of_others(world, one, caplog):
    bad, good = lease(), [lease() for _ in range(5)]
    world.expired, world.broken = [*good[:2], bad, *good[2:]], {bad}
    one.run_once()
    assert wait(world, one) == 5
    assert set(world.taken) == set(good)
    assert f"task {bad.id} cannot be recovered; run: outboxq verify --repair" in caplog.text


def test_many_tasks_are_recovered_in_batches_without_a_pause(world, one):
    world.expired = [lease() for _ in range(2 * RECOVERY_BATCH + 50)]
    one.run_once()
    assert wait(world, one) == RECOVERY_BATCH
    assert one.pause() == 0
    assert one.run_once() == RECOVERY_BATCH
    assert one.pause() == 0
    assert one.run_once() == 50


@pytest.mark.parametrize("by", [3600, -3600, 5, -5])
def test_all_leases_are_extended_immediately_after_a_clock_change(world, one, by):
    one.run_once()
    world.set_by = by
    world.expired = [lease()]
    one.run_once()
    assert "beat" in world.calls
    assert wait(world, one, 2.0) == 0, "other workers must notice it too"
    assert [call for call in world.calls if call[0] == "due again"] == (
        [("due again", timedelta(seconds=-by))] if by < 0 else []
    )


def test_a_small_clock_drift_does_not_count_as_a_change(world, one):
    for _ in range(20):
        world.set_by += 0.5
        wait(world, one)
    assert "beat" not in world.calls


def test_tasks_of_dead_workers_are_recovered_on_time_if_the_clock_is_set_back(world, one):
    """By the changed clock, the lease lasts for another hour. It really ends 30 seconds after the change."""
    one.run_once()
    world.set_by = -3600.0
    dead = Lease(id=uuid4(), lease_token=1, worker_id=uuid4(), lease_expires_at=world.moment + timedelta(seconds=3630))
    world.outlasting = {dead: timedelta(minutes=1)}
    one.run_once()
    world.outlasting, began = {}, world.now
    while not world.taken:
        wait(world, one)
    assert 30 <= world.now - began <= 30 + 3 * EVERY
    assert world.taken == [dead]


def test_an_earlier_lease_by_a_fast_clock_is_recovered_after_its_duration(world, one):
    """It is unknown how far the clock was set back. A living worker sends a heartbeat in the meantime."""
    dead, living = lease(3600.0), lease(3600.0)
    world.outlasting = dict.fromkeys((dead, living), timedelta(minutes=1))
    world.locked = {living}  # a heartbeat has changed the lease
    one.run_once()
    began = world.now
    while not world.taken and world.now - began < 3600:
        wait(world, one)
    assert 60 <= world.now - began <= 60 + 3 * EVERY
    assert world.taken == [dead]


def test_a_lease_that_expired_before_the_clock_was_set_back_is_recovered_soon(world, one):
    one.run_once()
    world.set_by = -3600.0
    dead = Lease(id=uuid4(), lease_token=1, worker_id=uuid4(), lease_expires_at=world.moment + timedelta(seconds=3590))
    world.outlasting, began = {dead: timedelta(minutes=1)}, world.now
    while not world.taken and world.now - began < 3600:
        wait(world, one)
    assert world.now - began <= 4 * EVERY
