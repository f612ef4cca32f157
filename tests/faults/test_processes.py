"""Real worker processes: killed, stopped, frozen."""

from __future__ import annotations

import json
import signal

import pytest

from outboxq.model import EventType, TaskStatus
from tests.waiting import until


def started_by(directory):
    return {int(path.name.partition("-")[2]) for path in directory.glob("started-*")}


def waiting_task(database, directory, **fields):
    args = json.dumps({"directory": str(directory)})
    return database.add(
        database.store,
        task_name="faults.wait",
        queue="faults",
        args=args,
        lease=fields.pop("lease", _seconds(1)),
        **fields,
    )


def _seconds(number):
    from datetime import timedelta

    return timedelta(seconds=number)


def test_a_killed_workers_task_is_claimable_after_its_lease_and_not_before(database, start, tmp_path):
    handle = waiting_task(database, tmp_path, lease=_seconds(3))
    first = start()
    until(lambda: first.pid in started_by(tmp_path))
    first.send(signal.SIGKILL)
    first.wait()
    left = database.store.get(handle.id)
    assert left.status is TaskStatus.RUNNING
    assert database.store.recover() == []  # the lease still holds, whoever asks
    (tmp_path / "go").touch()
    start()
    task = until(lambda: (t := database.store.get(handle.id)).completed_at and t, seconds=60)
    assert (task.status, task.recovery_attempts, task.attempt, task.lease_token) == (TaskStatus.COMPLETED, 1, 1, 2)
    history = database.store.history(handle.id)
    assert [event.event_type for event in history] == [
        EventType.CREATED,
        EventType.CLAIMED,
        EventType.RESET,
        EventType.CLAIMED,
        EventType.COMPLETED,
    ]
    assert history[2].created_at >= left.lease_expires_at


def test_a_worker_told_to_stop_finishes_what_runs_and_exits_with_0(database, start, tmp_path):
    handle = waiting_task(database, tmp_path)
    worker = start()
    until(lambda: started_by(tmp_path))
    worker.send(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert database.store.get(handle.id).status is TaskStatus.COMPLETED
    assert "stopped" in worker.text()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_gives_back_what_runs_at_once(database, start, tmp_path, second):
    handle = waiting_task(database, tmp_path)
    worker = start()
    until(lambda: started_by(tmp_path))
    worker.send(signal.SIGTERM)
    worker.send(second)
    until(lambda: worker.process.poll() is not None or worker.send(second) or False, every=0.2)
    assert worker.wait() == 1
    task = database.store.get(handle.id)
    assert (task.status, task.attempt, task.recovery_attempts) == (TaskStatus.READY, 1, 0)


def test_a_worker_whose_drain_time_is_over_gives_back_what_runs_and_exits_with_1(database, start, tmp_path):
    handle = waiting_task(database, tmp_path)
    worker = start("--drain-timeout", "1s")
    until(lambda: started_by(tmp_path))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 1
    assert database.store.get(handle.id).status is TaskStatus.READY


def test_a_worker_frozen_past_its_lease_changes_nothing_when_it_wakes(database, start, tmp_path):
    handle = waiting_task(database, tmp_path)
    zombie = start()
    until(lambda: zombie.pid in started_by(tmp_path))
    zombie.send(signal.SIGSTOP)
    other = start()
    until(lambda: other.pid in started_by(tmp_path), seconds=60)
    (tmp_path / "go").touch()
    task = until(lambda: (t := database.store.get(handle.id)).completed_at and t)
    assert task.result == f'"{other.pid}"'
    zombie.send(signal.SIGCONT)
    until(lambda: "is discarded" in zombie.text())
    after = database.store.get(handle.id)
    assert after == task
    ends = [event for event in database.store.history(handle.id) if event.event_type is EventType.COMPLETED]
    assert len(ends) == 1


def test_a_poison_task_is_abandoned_after_three_recoveries(database, start):
    handle = database.add(database.store, task_name="faults.poison", queue="faults", lease=_seconds(0.5))

    def abandoned():
        task = database.store.get(handle.id)
        if task.completed_at:
            return task
        if all(worker.process.poll() is not None for worker in workers):
            workers.append(start())
        return None

    workers = [start()]
    task = until(abandoned, seconds=100, every=0.1)
    assert (task.status, task.recovery_attempts, task.attempt) == (TaskStatus.FAILED, 3, 1)
    assert task.last_error.startswith("ABANDONED:")
    assert database.store.history(handle.id)[-1].event_type is EventType.ABANDONED
