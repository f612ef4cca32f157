"""No completed step is called again when a process is killed at any point of a task with steps, or between any two statements."""

from __future__ import annotations

import itertools
import random
import signal
from collections import Counter
from datetime import timedelta

import pytest

from outboxq.model import TaskStatus
from outboxq.worker.failpoints import Failpoint
from tests.faults.effects import effects_of
from tests.faults.helpers import all_completed, finish, journal, left
from tests.waiting import until

LONG = 20
"""The number of steps in a long task."""
ALONE = {"concurrency": 1, "heartbeat": None, "recover_every": 60}
"""Options of a worker that does nothing else, so that it dies exactly where the test chooses."""
PLAIN = (Failpoint.BEFORE_STEP, Failpoint.AFTER_STEP, Failpoint.STEP_WRITTEN)
IN_ITS_TRANSACTION = (Failpoint.TRANSACTION_BEGUN, Failpoint.BEFORE_COMMIT, Failpoint.AFTER_COMMIT)


@pytest.fixture
def stepped(add, tmp_path):
    return lambda count: add("stepped", directory=str(tmp_path), count=count)


@pytest.fixture
def recovered(database, died):
    """Recover the tasks of dead processes, regardless of the number of earlier recoveries."""

    def take_back(*processes):
        died(*processes)
        database.store.recover(max_recoveries=10**6)

    return take_back


@pytest.fixture
def completed(database):
    """Return the names of a task's completed steps."""
    return lambda task_id: {step.name for step in database.store.steps.list(task_id)}


def called(tmp_path):
    """Count the calls of each plain step's function."""
    return Counter(name for _, what, name in journal(tmp_path) if what == "step")


def again(before, now, task_id, completed):
    """Return the completed steps of a task whose functions have been called again."""
    numbers = {name.partition(" ")[2] for name in completed}
    return {
        name for name in now - before if name.partition(":")[0] == str(task_id) and name.partition(":")[2] in numbers
    }


@pytest.mark.in_turn
def test_a_long_task_killed_at_every_point_repeats_no_completed_step(
    database, stepped, fork, recovered, completed, effects, tmp_path
):
    """Each worker dies at a different point, and the next one continues the task."""
    task_id, lives = stepped(LONG), 0
    for point in itertools.cycle((*PLAIN, *IN_ITS_TRANSACTION)):
        known, before = completed(task_id), called(tmp_path)
        victim = fork(fault={"point": point, "action": "kill", "arrival": 3 if point in PLAIN else 2}, **ALONE)
        until(lambda victim=victim: victim.poll() is not None or left(database) == 0)
        if left(database) == 0:
            victim.send(signal.SIGTERM)
            assert victim.wait() == 0, victim.text()
            break
        assert victim.wait() == -signal.SIGKILL, victim.text()
        recovered(victim)
        assert again(before, called(tmp_path), task_id, known) == set()
        assert completed(task_id) >= known
        lives += 1
    assert lives >= 6
    all_completed(database, [task_id])
    assert effects() == sorted(effects_of(task_id, LONG))
    assert [step.number for step in database.store.steps.list(task_id)] == list(range(1, LONG + 1))


@pytest.mark.in_turn
def test_a_task_killed_between_any_two_statements_of_its_steps_repeats_no_completed_step(
    database, stepped, fork, recovered, completed, effects, tmp_path
):
    """Each task has a plain, a transactional and a plain step. There is one task for each statement."""
    killed(database, stepped, fork, recovered, completed, effects, tmp_path, count=3, least=6)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_a_long_task_killed_between_statements_repeats_no_step(
    database, stepped, fork, recovered, completed, effects, tmp_path
):
    killed(database, stepped, fork, recovered, completed, effects, tmp_path, count=LONG, least=40)


def is_done(database, task_id):
    return database.store.get(task_id).status is TaskStatus.COMPLETED


def killed(database, stepped, fork, recovered, completed, effects, tmp_path, *, count, least):
    known, tasks = {}, []
    for statement in itertools.count(1):
        task_id = stepped(count)
        tasks.append(task_id)
        victim = fork(fault={"point": "statement", "action": "kill", "arrival": statement}, **ALONE)
        until(lambda victim=victim, task_id=task_id: victim.poll() is not None or is_done(database, task_id))
        if is_done(database, task_id):
            victim.send(signal.SIGTERM)
            assert victim.wait() == 0, victim.text()
            break
        assert victim.wait() == -signal.SIGKILL, victim.text()
        recovered(victim)
        known[task_id] = completed(task_id)
        database.store.reschedule(
            task_id, database.store.now() + timedelta(days=1)
        )  # the next worker gets another task
    assert statement > least
    before = called(tmp_path)
    for task_id in known:
        database.store.run_now(task_id)
    finish(database, fork())
    now = called(tmp_path)
    assert [name for task_id, names in known.items() for name in again(before, now, task_id, names)] == []
    all_completed(database, tasks)
    assert effects() == sorted(effect for task_id in tasks for effect in effects_of(task_id, count))


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_a_thousand_tasks_repeat_no_completed_step_under_kills(
    database, stepped, fork, recovered, completed, effects, tmp_path
):
    """Two workers run at a time, and one of them is killed at random moments until all tasks have ended."""
    chance, tasks = random.Random(7), [stepped(LONG) for _ in range(1000)]
    running = [fork(concurrency=4) for _ in range(2)]
    while left(database):
        known, before = {one: completed(one) for one in tasks[::50]}, called(tmp_path)
        target = left(database) - chance.randrange(5, 60)
        until(lambda target=target: left(database) <= max(0, target), seconds=300)
        running[0].send(signal.SIGKILL)
        recovered(running.pop(0))
        for one, names in known.items():
            assert again(before, called(tmp_path), one, names) == set()
        running.append(fork(concurrency=4))
    for worker in running:
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.text()
    assert {database.store.get(one).status for one in tasks} == {TaskStatus.COMPLETED}
    all_completed(database, tasks)
    assert effects() == sorted(effect for task_id in tasks for effect in effects_of(task_id, LONG))
