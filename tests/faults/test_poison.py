"""Tasks that kill their process, tasks that run beside them, and tasks that are merely released."""

from __future__ import annotations

import itertools
import signal

import pytest

from outboxq.model import MAX_RECOVERIES, SUSPECT, EventType, TaskStatus
from tests.faults.helpers import all_completed, finish, journal, left, started_by
from tests.waiting import until

pytestmark = pytest.mark.in_turn


def run_until_done(database, fork, died, **options):
    """Start a worker whenever the previous one has died, and return the number of deaths."""
    deaths = 0
    while True:
        worker = fork(**options)
        until(lambda: left(database) == 0 or worker.poll() is not None)  # noqa: B023
        if worker.poll() is None:
            finish(database, worker)
            return deaths
        assert worker.wait() == -signal.SIGKILL, worker.text()
        deaths += 1
        died(worker)


def hits(database, one):
    """Return how many times in a row a worker died while it ran this task. (The row no longer shows this once the task has ended.)"""
    return max((event.event_data.get("recovery_attempts", 0) for event in database.store.history(one)), default=0)


def runs_of(database, one):
    """Return the number of claims, without those that were released, or whose worker died, before the handler started."""
    history = database.store.history(one)
    counts = [event.event_data["recovery_attempts"] for event in history if event.event_type is EventType.RESET]
    not_begun = sum(before == after for before, after in itertools.pairwise(counts))
    kinds = [event.event_type for event in history]
    return kinds.count(EventType.CLAIMED) - kinds.count(EventType.RELEASED) - not_begun


def test_a_poison_task_is_abandoned_after_three_recoveries_and_no_other_task_fails(database, add, fork, died, tmp_path):
    normal = [add("note", directory=str(tmp_path), name=f"n{number}") for number in range(50)]
    poison = add("poison")
    normal += [add("note", directory=str(tmp_path), name=f"n{number}") for number in range(50, 100)]
    assert run_until_done(database, fork, died) == 4
    task = database.store.get(poison)
    assert (task.status, task.recovery_attempts, task.attempt) == (TaskStatus.FAILED, 3, 1)
    assert task.last_error.startswith("ABANDONED:")
    assert runs_of(database, poison) == 4
    assert [event.event_type for event in database.store.history(poison)][-1] is EventType.ABANDONED
    all_completed(database, normal)
    assert max(hits(database, one) for one in normal) <= SUSPECT, "after that, such a task runs in another process"


def test_several_poison_tasks_are_abandoned_and_no_other_task_fails(database, add, fork, died, tmp_path):
    normal, poison = [], []
    for number in range(24):
        normal.append(add("note", directory=str(tmp_path), name=f"n{number}", milliseconds=20))
        if number % 8 == 4:
            poison.append(add("poison"))
    deaths = run_until_done(database, fork, died)
    assert deaths >= 2 * len(poison) + 2, "as suspects, they run alone"
    assert {database.store.get(one).status for one in poison} == {TaskStatus.FAILED}
    assert [runs_of(database, one) for one in poison] == [4] * len(poison)
    all_completed(database, normal)
    hit = [hits(database, one) for one in normal]
    assert sum(hit) > 0, "no other task was running, so the test proved nothing"
    assert max(hit) <= MAX_RECOVERIES


@pytest.fixture
def suspect(database, died):
    """Let these tasks' worker die twice in a row. They are then Ready, and suspects."""

    def kill(ids):
        for _ in range(SUSPECT):
            assert {claim.id for claim in database.claim(len(ids), database.store)} == set(ids)
            died()
            assert len(database.store.recover()) == len(ids)

    return kill


def test_outcomes_are_stored_before_a_suspect_begins(database, add, fork, died, suspect, tmp_path):
    """Otherwise, the process's death would lose the outcomes of earlier tasks."""
    poison = add("poison")
    suspect([poison])
    done = add("note", directory=str(tmp_path), name="done", priority=1)
    victim = fork(fault={"point": "before_finish", "action": "dawdle"}, concurrency=1)
    assert victim.wait() == -signal.SIGKILL
    assert ("ends", "done") in [line[1:] for line in journal(tmp_path)]
    assert database.store.get(done).status is TaskStatus.COMPLETED
    died(victim)
    run_until_done(database, fork, died)
    assert database.store.get(poison).status is TaskStatus.FAILED


@pytest.fixture
def suspects(add, suspect, tmp_path):
    """Three suspects that each run for 150 ms."""
    ids = [add("note", directory=str(tmp_path), name=f"suspect-{n}", milliseconds=150) for n in range(3)]
    suspect(ids)
    return ids


def test_suspects_in_a_process_run_one_at_a_time_alongside_other_tasks(database, add, suspects, fork, tmp_path):
    normal = [add("note", directory=str(tmp_path), name=f"normal-{n}", milliseconds=50) for n in range(20)]
    worker = fork()
    until(lambda: left(database) == 0)
    finish(database, worker)
    all_completed(database, [*suspects, *normal])
    running, beside = set(), False
    for pid, what, name in journal(tmp_path):
        assert pid == worker.pid
        (running.add if what == "begins" else running.remove)(name)
        alike = [one for one in running if one.startswith("suspect")]
        assert len(alike) <= 1, running
        beside = beside or (alike and len(running) > 1)
    assert beside, "no task ran beside a suspect, so the test proved nothing"


def test_waiting_suspects_are_released_without_using_an_attempt(database, suspects, fork):
    finish(database, fork())
    all_completed(database, suspects)
    histories = [[event.event_type for event in database.store.history(one)] for one in suspects]
    assert sum(history.count(EventType.RELEASED) for history in histories) > 0
    assert [hits(database, one) for one in suspects] == [SUSPECT] * 3
    assert [database.store.get(one).attempt for one in suspects] == [1] * 3


def test_suspects_that_are_released_may_run_in_another_process_immediately(database, add, suspect, fork, tmp_path):
    """They run at the same time, because each waits until all run."""
    suspects = [add("wait", directory=str(tmp_path)) for _ in range(3)]
    suspect(suspects)
    database.run("UPDATE task_outbox SET available_at = '2999-01-01T00:00:00.000000+00:00'")
    workers = [fork(), fork()]
    for worker in workers:
        until(worker.is_up)
    database.run("UPDATE task_outbox SET available_at = '2020-01-01T00:00:00.000000+00:00'")
    until(lambda: started_by(tmp_path) == {worker.pid for worker in workers})
    (tmp_path / "go").touch()
    finish(database, workers[0])
    for worker in workers[1:]:
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    all_completed(database, suspects)


def test_a_task_released_many_times_uses_no_attempts_or_recoveries(database, add, fork, tmp_path):
    task_id = add("wait", directory=str(tmp_path))
    database.run("UPDATE task_executions SET max_attempts = 1")
    for _ in range(5):  # more than the allowed attempts and recoveries together
        worker = fork(drain_timeout=0.01)
        until(lambda: worker.pid in started_by(tmp_path))  # noqa: B023
        worker.send(signal.SIGTERM)
        assert worker.wait() == 1
        task = database.store.get(task_id)
        assert (task.status, task.attempt, task.recovery_attempts) == (TaskStatus.READY, 1, 0)
    (tmp_path / "go").touch()
    finish(database, fork())
    all_completed(database, [task_id])
    assert runs_of(database, task_id) == 1


def test_prefetched_tasks_are_run_by_another_worker_promptly_after_the_signal(database, add, fork, tmp_path):
    blocked = add("wait", directory=str(tmp_path))
    ahead = [add("note", directory=str(tmp_path), name=f"n{number}") for number in range(9)]
    busy = fork(concurrency=1, prefetch=9, drain_timeout=60)
    until(lambda: started_by(tmp_path))
    assert {database.store.get(one).status for one in ahead} == {TaskStatus.RUNNING}
    other = fork()
    until(other.is_up)
    assert journal(tmp_path) == []
    busy.send(signal.SIGTERM)
    until(lambda: len(journal(tmp_path)) == 18, seconds=20)  # their leases last 30 s
    assert busy.poll() is None, "the first task should still be running"
    (tmp_path / "go").touch()
    assert busy.wait() == 0
    finish(database, other)
    all_completed(database, [blocked, *ahead])
    for one in ahead:
        task = database.store.get(one)
        assert (task.attempt, task.recovery_attempts, task.lease_token) == (1, 0, 2)
        assert database.store.history(one)[2].event_type is EventType.RELEASED
