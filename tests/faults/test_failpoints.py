"""A process dies or freezes at each failpoint, and another process completes its tasks."""

from __future__ import annotations

import signal
from uuid import uuid4

import pytest

from outboxq.model import EventType
from outboxq.worker.failpoints import Failpoint
from tests.faults.effects import effects_of
from tests.faults.helpers import all_completed, finish, journal, left, started_by
from tests.waiting import until

pytestmark = pytest.mark.in_turn

RELEASING = {Failpoint.BEFORE_RELEASE, Failpoint.AFTER_RELEASE}
"""Points that only a worker reaches that was told to stop and has no time left."""
STEPS = {Failpoint.BEFORE_STEP, Failpoint.AFTER_STEP, Failpoint.STEP_WRITTEN}
IN_A_TRANSACTION = {Failpoint.TRANSACTION_BEGUN, Failpoint.BEFORE_COMMIT}
"""Points at which a frozen process holds locks. No other process can continue before it wakes or dies."""
SAME_TABLES = {
    Failpoint.BEFORE_CLAIM,
    Failpoint.BEFORE_START,
    Failpoint.BEFORE_STEP,
    Failpoint.AFTER_HANDLER,
    Failpoint.TRANSACTION_BEGUN,
    Failpoint.BEFORE_BEAT,
    Failpoint.BEFORE_RECOVERY,
    Failpoint.AFTER_SLEEP,
}
"""Points at which a death leaves the same rows as at another point, or as before the worker started."""
SAME_NEXT_STATEMENT = {
    Failpoint.BEFORE_CLAIM,
    Failpoint.BEFORE_START,
    Failpoint.BEFORE_STEP,
    Failpoint.AFTER_HANDLER,
    Failpoint.TRANSACTION_BEGUN,
    Failpoint.AFTER_BEAT,
    Failpoint.AFTER_RECOVERY,
    Failpoint.AFTER_SLEEP,
}
"""Points at which a frozen worker continues with the same statement as at another point."""


def each(points, *, repeats):
    """Return the points as parameters. Those that repeat others run only with `--full`."""
    return [pytest.param(point, marks=[pytest.mark.full] if point in repeats else []) for point in points]


@pytest.fixture
def scene(database, add, died, tmp_path):
    """Enqueue tasks of every kind, so that a worker with eight threads reaches every point. Return their ids, by kind."""
    gone, directory = uuid4(), str(tmp_path)
    recovered = [add("note", name=f"recovered-{number}", directory=directory) for number in range(2)]
    assert len(database.claim(2, database.store, worker_id=gone)) == 2
    died()
    assert len(database.store.recover()) == 2
    orphan = add("note", name="orphan", directory=directory, priority=1)
    assert [claim.id for claim in database.claim(1, database.store, worker_id=gone)] == [orphan]
    died()
    return {
        "recovered": recovered,
        "orphan": [orphan],
        "plain": [add("note", name=f"plain-{number}", directory=directory) for number in range(2)],
        "transactional": [add("entry", number=number) for number in range(2)],
        "long": [add("beaten")],
        "stepped": [add("stepped", directory=directory)],
    }


def everyone(scene):
    return [one for ids in scene.values() for one in ids]


def once_each(scene):
    of_steps = [effect for one in scene["stepped"] for effect in effects_of(one)]
    return sorted([*of_steps, *(one.hex for one in scene["transactional"])])


@pytest.mark.parametrize("point", sorted(RELEASING))
def test_a_task_is_completed_after_its_worker_dies_while_releasing_it(database, add, fork, died, tmp_path, point):
    task_id = add("wait", directory=str(tmp_path))
    victim = fork(fault={"point": point, "action": "kill"}, drain_timeout=0.01)
    until(lambda: started_by(tmp_path))
    victim.send(signal.SIGTERM)
    assert victim.wait() == -signal.SIGKILL
    died(victim)
    (tmp_path / "go").touch()
    finish(database, fork())
    all_completed(database, [task_id])


@pytest.mark.parametrize("point", each([point for point in Failpoint if point not in RELEASING], repeats=SAME_TABLES))
def test_another_worker_completes_all_tasks_after_a_death_at_a_failpoint(
    database, scene, fork, died, effects, tmp_path, point
):
    victim = fork(fault={"point": point, "action": "kill"})
    assert victim.wait() == -signal.SIGKILL
    assert victim.text().count(f"reached {point}\n") == 1
    may_be_done = {Failpoint.AFTER_RECOVERY, Failpoint.BEFORE_SLEEP, Failpoint.AFTER_SLEEP}
    assert left(database) > 0 or point in may_be_done
    died(victim)
    finish(database, fork())
    all_completed(database, everyone(scene))
    assert effects() == once_each(scene)
    ended = [name for _, what, name in journal(tmp_path) if what == "ends"]
    assert set(ended) == {"recovered-0", "recovered-1", "orphan", "plain-0", "plain-1"}


QUIET = {"concurrency": 1, "heartbeat": None, "recover_every": 60}


@pytest.fixture
def alone(database, add, died, tmp_path):
    """Enqueue tasks that bring a worker to a point while nothing else in it writes, because a process may freeze while it holds a lock.

    Return the tasks' ids and the worker's options.
    """

    def set_up(point):
        if point in {Failpoint.BEFORE_BEAT, Failpoint.AFTER_BEAT}:
            return [add("beaten", lease=300)], {**QUIET, "heartbeat": 0.05}
        if point in STEPS:
            return [add("stepped", directory=str(tmp_path))], QUIET
        if point is Failpoint.AFTER_COMMIT:
            return [add("entry", number=1)], QUIET
        ids = [add("note", name="first", directory=str(tmp_path))]
        if point in {Failpoint.BEFORE_RECOVERY, Failpoint.AFTER_RECOVERY}:
            database.claim(1, database.store)
            died()
            return ids, {**QUIET, "recover_every": 0.05, "queues": ["another"]}
        if point in {Failpoint.BEFORE_SLEEP, Failpoint.AFTER_SLEEP}:
            database.store.cancel(ids.pop())
        return ids, QUIET

    return set_up


@pytest.mark.parametrize(
    "point",
    each([point for point in Failpoint if point not in IN_A_TRANSACTION | RELEASING], repeats=SAME_NEXT_STATEMENT),
)
def test_a_worker_frozen_past_its_lease_changes_nothing_when_it_continues(
    database, alone, add, fork, died, effects, point
):
    ids, options = alone(point)
    zombie = fork(fault={"point": point, "action": "freeze"}, **options)
    until(zombie.is_frozen)
    assert f"reached {point}\n" in zombie.text()
    died()
    ids.append(add("nothing", number=1))
    finish(database, fork())
    all_completed(database, ids)
    before = database.counts()
    zombie.send(signal.SIGCONT)
    zombie.send(signal.SIGTERM)
    assert zombie.wait() in {0, 1}, zombie.text()
    assert "stopped" in zombie.text()
    assert database.counts() == before
    all_completed(database, ids)
    expected = {Failpoint.AFTER_COMMIT: [ids[0].hex], **dict.fromkeys(STEPS, effects_of(ids[0]))}
    assert effects() == expected.get(point, [])


@pytest.mark.parametrize("point", each(sorted(IN_A_TRANSACTION), repeats=SAME_NEXT_STATEMENT))
def test_a_transaction_of_a_frozen_worker_is_committed_completely_or_not_at_all(
    database, scene, fork, died, effects, point
):
    zombie = fork(fault={"point": point, "action": "freeze"})
    until(zombie.is_frozen)
    other = fork()
    zombie.send(signal.SIGCONT)
    finish(database, other)
    zombie.send(signal.SIGTERM)
    assert zombie.wait() == 0
    all_completed(database, everyone(scene))
    assert effects() == once_each(scene)


@pytest.mark.parametrize(
    ("database", "point"),
    [
        ("sqlite", Failpoint.BEFORE_START),
        ("postgresql", Failpoint.BEFORE_START),
        ("postgresql", Failpoint.TRANSACTION_BEGUN),
    ],
    indirect=["database"],
)
def test_writes_of_a_worker_that_lost_its_lease_are_rolled_back(database, add, fork, died, effects, point):
    """A claims, its lease expires, B completes the task with its effect, and then A continues. (SQLite has one writer at a time.)"""
    task_id = add("entry", number=1)
    zombie = fork(fault={"point": point, "action": "freeze"}, **QUIET)
    until(zombie.is_frozen)
    died()
    finish(database, fork())
    assert effects() == [task_id.hex]
    zombie.send(signal.SIGCONT)
    until(lambda: "its writes are rolled back" in zombie.text())
    assert effects() == [task_id.hex]
    zombie.send(signal.SIGTERM)
    assert zombie.wait() == 0
    all_completed(database, [task_id])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["note", "entry"])
def test_another_worker_completes_a_task_whose_worker_died_in_the_handler(
    database, add, fork, died, effects, tmp_path, name, when
):
    args = {"number": 1} if name == "entry" else {"directory": str(tmp_path), "name": "it"}
    task_id = add(name, die=when, **args)
    victim = fork()
    assert victim.wait() == -signal.SIGKILL
    assert effects() == []
    noted = [what for _, what, _ in journal(tmp_path)]
    assert noted == (["begins", "ends"] if (name, when) == ("note", "after") else [])
    died(victim)
    finish(database, fork())
    all_completed(database, [task_id])
    assert [event.event_type for event in database.store.history(task_id)].count(EventType.RESET) == 1
    assert effects() == ([task_id.hex] if name == "entry" else [])


def test_an_ended_task_with_a_leftover_lease_is_unchanged(database, add, fork, died):
    """A worker finds the lease among the expired ones and deletes it."""
    ends = [database.store.complete, lambda claim: database.store.fail(claim, "no"), None]
    finished = []
    for end in ends:
        task_id = add("nothing", number=1)
        (claim,) = database.claim(1, database.store)
        end(claim) if end else database.store.cancel(task_id, force=True)
        finished.append(claim)
    before = [database.store.history(claim.id) for claim in finished]
    for claim in finished:
        task, worker = (value.hex for value in (claim.id, claim.worker_id))
        database.run(
            "INSERT INTO task_leases (task_execution_id, queue, lease_token, worker_id, lease_expires_at) VALUES "
            f"('{task}', 'default', {claim.lease_token}, '{worker}', '2020-01-01T00:00:00.000000+00:00')"
        )
    finish(database, fork())
    assert left(database) == 0
    assert [database.store.history(claim.id) for claim in finished] == before
    assert [database.store.get(claim.id).status.value for claim in finished] == ["Completed", "Failed", "Cancelled"]
