"""Real worker processes that are killed, stopped or frozen."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import pytest

from outboxq.model import EventType, TaskStatus
from tests.faults.helpers import finish, started_by
from tests.waiting import PROMPTLY, until

pytestmark = pytest.mark.in_turn


def test_a_task_of_a_killed_worker_is_claimable_only_after_its_lease(database, add, fork, tmp_path):
    task_id = add("wait", lease=5, directory=str(tmp_path))
    first = fork(heartbeat=None)
    until(lambda: first.pid in started_by(tmp_path))
    first.send(signal.SIGKILL)
    first.wait()
    left = database.store.get(task_id)
    assert left.status is TaskStatus.RUNNING
    assert database.store.recover() == []  # the lease is still valid for every worker
    (tmp_path / "go").touch()
    fork()
    task = until(lambda: (t := database.store.get(task_id)).completed_at and t)
    assert (task.status, task.recovery_attempts, task.attempt, task.lease_token) == (TaskStatus.COMPLETED, 0, 1, 2)
    history = database.store.history(task_id)
    assert [event.event_type for event in history] == [
        EventType.CREATED,
        EventType.CLAIMED,
        EventType.RESET,
        EventType.CLAIMED,
        EventType.COMPLETED,
    ]
    assert history[2].created_at >= left.lease_expires_at


def test_a_worker_told_to_stop_finishes_its_task_and_exits_with_0(database, add, start, tmp_path):
    """The worker starts as a user would start it."""
    task_id = add("wait", directory=str(tmp_path))
    worker = start()
    until(lambda: started_by(tmp_path))
    worker.send(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert database.store.get(task_id).status is TaskStatus.COMPLETED
    assert "stopped" in worker.text()


def test_a_worker_frozen_past_its_lease_changes_nothing_when_it_continues(database, add, fork, tmp_path):
    task_id = add("wait", lease=2, directory=str(tmp_path))
    zombie = fork(heartbeat=None)
    until(lambda: zombie.pid in started_by(tmp_path))
    zombie.send(signal.SIGSTOP)
    other = fork()
    until(lambda: other.pid in started_by(tmp_path))
    (tmp_path / "go").touch()
    task = until(lambda: (t := database.store.get(task_id)).completed_at and t)
    assert task.result == f'"{other.pid}"'
    zombie.send(signal.SIGCONT)
    until(lambda: "is discarded" in zombie.text())
    after = database.store.get(task_id)
    assert after == task
    ends = [event for event in database.store.history(task_id) if event.event_type is EventType.COMPLETED]
    assert len(ends) == 1


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_tasks_that_notify_frozen_or_killed_workers_run_promptly(database, add, fork, number):
    """Three of four workers are lost, so some tasks notify only workers that cannot react. The last one would poll after a minute."""
    *lost, _ = [fork(poll=60, heartbeat=None) for _ in range(4)]
    until(lambda: database.rows("SELECT count(*) FROM sleeping_workers") == [(4,)])
    for worker in lost:
        worker.send(number)
    for count in range(8):
        began, task_id = time.monotonic(), add("nothing", number=count)
        until(lambda task_id=task_id: database.store.get(task_id).status is TaskStatus.COMPLETED)
        assert time.monotonic() - began < 2 + PROMPTLY


def test_a_worker_that_drains_longer_than_a_lease_keeps_its_task(database, add, fork, tmp_path):
    """The heartbeat continues until the last handler has ended."""
    task_id = add("wait", lease=4, directory=str(tmp_path))
    worker = fork(heartbeat=0.2, drain_timeout=60)  # so that a busy machine may pause for a moment
    until(lambda: started_by(tmp_path))
    worker.send(signal.SIGTERM)
    first = database.store.get(task_id).lease_expires_at
    other = fork()
    until(lambda: database.store.get(task_id).lease_expires_at > first + timedelta(seconds=4.2))
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    finish(database, other)
    task = database.store.get(task_id)
    assert (task.status, task.lease_token, task.result) == (TaskStatus.COMPLETED, 1, f'"{worker.pid}"')
