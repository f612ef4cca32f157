"""Hostile handlers, and threads of the worker itself that die."""

from __future__ import annotations

import signal

import pytest

from outboxq.model import TaskStatus
from outboxq.worker.failpoints import Failpoint
from tests.faults.helpers import all_completed, finish, left, started_by
from tests.waiting import until

pytestmark = pytest.mark.in_turn

KINDS = {
    "sys.exit(3)": "SystemExit: 3",
    "KeyboardInterrupt": "KeyboardInterrupt",
    "BaseException": "Oddity",
}


def beats(database, one):
    """Return a function that tells whether a task's lease has been extended."""
    first = database.store.get(one).lease_expires_at
    return lambda: database.store.get(one).lease_expires_at > first


def test_a_handler_that_tries_to_exit_the_process_ends_only_its_attempt(database, add, fork, tmp_path):
    """As many such handlers run as there are threads. No thread dies, and neither does the heartbeat."""
    witness = add("wait", directory=str(tmp_path))
    worker = fork()
    until(lambda: started_by(tmp_path))
    hostile = {kind: [add("hostile", kind=kind, directory=str(tmp_path)) for _ in range(8)] for kind in KINDS}
    until(lambda: left(database) == 1)  # the witness's lease
    for kind, ids in hostile.items():
        tasks = [database.store.get(one) for one in ids]
        assert {(task.status, task.last_error) for task in tasks} == {(TaskStatus.FAILED, KINDS[kind])}
        assert {(task.attempt, task.recovery_attempts) for task in tasks} == {(1, 0)}
    until(beats(database, witness))
    (tmp_path / "go").touch()
    crowd = [add("meet") for _ in range(8)]  # these tasks need all eight threads
    finish(database, worker)
    all_completed(database, [witness, *crowd])
    assert database.store.get(witness).recovery_attempts == 0


def test_a_task_whose_handler_exits_the_process_is_recovered(database, add, fork, died, tmp_path):
    hostile = add("hostile", kind="os._exit(3)", directory=str(tmp_path))
    worker = fork()
    assert worker.wait() == 3
    assert database.store.get(hostile).status is TaskStatus.RUNNING
    died(worker)
    finish(database, fork())
    task = database.store.get(hostile)
    assert (task.status, task.recovery_attempts, task.last_error) == (TaskStatus.FAILED, 0, "ValueError: os._exit(3)")


def test_a_handler_that_catches_everything_blocks_neither_others_nor_the_exit(database, add, fork, tmp_path):
    stubborn = add("hostile", kind="swallows everything", directory=str(tmp_path))
    worker = fork(concurrency=2, drain_timeout=0.5)
    until(lambda: started_by(tmp_path))
    others = [add("nothing", number=number) for number in range(20)]
    until(lambda: left(database) == 1)
    until(beats(database, stubborn))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 1
    task = database.store.get(stubborn)
    assert (task.status, task.attempt, task.recovery_attempts) == (TaskStatus.READY, 1, 0)
    assert {database.store.get(one).status for one in others} == {TaskStatus.COMPLETED}


THREADS = {
    "claimer": Failpoint.BEFORE_CLAIM,
    "handler": Failpoint.BEFORE_START,
    "completer": Failpoint.BEFORE_FINISH,
    "heartbeat": Failpoint.BEFORE_BEAT,
    "recovery": Failpoint.BEFORE_RECOVERY,
}


@pytest.mark.parametrize("thread", THREADS)
def test_a_dead_worker_thread_stops_the_process_and_releases_tasks(database, add, fork, tmp_path, thread):
    """Supervisors notice a process that has ended, but not one that does nothing."""
    tasks = [add("heed", directory=str(tmp_path)), add("nothing", number=1)]
    worker = fork(fault={"point": THREADS[thread], "action": "end_thread"}, drain_timeout=25)
    until(lambda: f"reached {THREADS[thread]}" in worker.text())
    assert worker.wait() == 1, worker.text()
    assert "a worker thread died; stopping" in worker.text()
    for one in tasks:
        task = database.store.get(one)
        assert task.status in {TaskStatus.READY, TaskStatus.COMPLETED}
        assert (task.attempt, task.recovery_attempts) == (1, 0)
    assert database.rows("SELECT count(*) FROM task_leases") == [(0,)]


def test_a_worker_whose_heartbeat_dies_releases_its_tasks(database, add, fork, tmp_path):
    """They are released, so that another worker can run them immediately."""
    task_id = add("heed", directory=str(tmp_path))
    worker = fork(fault={"point": Failpoint.BEFORE_BEAT, "action": "end_thread"})
    assert worker.wait() == 1
    assert database.store.get(task_id).status is TaskStatus.READY
    other = fork()
    until(lambda: other.pid in started_by(tmp_path))
    other.send(signal.SIGTERM)
    assert other.wait() == 0
