"""Handlers blocked in C, and killed processes: the attempt ends, and other tasks are neither lost nor run twice."""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from outboxq.model import EventType, TaskStatus
from outboxq.model.forks import EXIT_KILLED
from tests.faults.helpers import all_completed, finish, left, started_by
from tests.waiting import until

pytestmark = pytest.mark.in_turn

ISOLATED = {"isolation": "process", "drain_timeout": 10}


@pytest.fixture
def block(database):
    """Enqueue a task that blocks forever, with a timeout of one second."""

    def add_blocked(directory):
        fields = {"task_name": "faults.blocked", "queue": "faults", "args": json.dumps({"directory": str(directory)})}
        return database.add(database.store, timeout=timedelta(seconds=1), priority=1, **fields).id

    return add_blocked


def kinds(database, one):
    return [event.event_type for event in database.store.history(one)]


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_handler_blocked_in_c_is_ended_with_its_process_and_other_tasks_complete(
    database, add, block, fork, tmp_path
):
    """The other tasks are asked to stop only when the process is about to end, and they still complete."""
    (tmp_path / "beside").mkdir()
    beside = [add("hold", directory=str(tmp_path / "beside")) for _ in range(2)]
    stuck = block(tmp_path)
    worker = fork(concurrency=3, timeout_grace=0.5)
    until(lambda: len(list((tmp_path / "beside").glob("told-*"))) == 1, seconds=60)
    until(lambda: database.store.get(stuck).status is TaskStatus.FAILED)
    assert worker.poll() is None
    waiting = add("nothing", number=1)
    (tmp_path / "beside" / "go").touch()
    assert worker.wait(60) == EXIT_KILLED, worker.text()
    assert [kinds(database, one).count(EventType.CLAIMED) for one in beside] == [1, 1]
    assert database.store.get(waiting).status is TaskStatus.READY
    assert kinds(database, stuck) == [EventType.CREATED, EventType.CLAIMED, EventType.FAILED]
    finish(database, fork())
    all_completed(database, [*beside, waiting])


def test_a_supervisor_replaces_a_killed_process_immediately(database, add, block, start, tmp_path):
    stuck = [block(tmp_path) for _ in range(2)]
    worker = start("--processes", "2", "-c", "2", "--timeout-grace", "500ms", "--poll", "100ms")
    notes = [add("nothing", number=number) for number in range(30)]
    until(lambda: all(database.store.get(one).status is TaskStatus.FAILED for one in stuck), seconds=60)
    later = [add("nothing", number=number) for number in range(30)]
    until(lambda: left(database) == 0, seconds=60)
    until(lambda: "exited with code 75; it will be replaced in 0.0 s" in worker.text())
    worker.send(signal.SIGTERM)
    worker.wait(60)
    all_completed(database, notes + later)


def test_only_the_child_of_a_blocked_handler_is_killed(database, add, block, fork, tmp_path):
    stuck, notes = block(tmp_path), [add("nothing", number=number) for number in range(30)]
    worker = fork(concurrency=2, timeout_grace=0.5, **ISOLATED)
    until(lambda: database.store.get(stuck).status is TaskStatus.FAILED, seconds=60)
    assert worker.poll() is None
    finish(database, worker)
    all_completed(database, notes)
    until(lambda: worker.orphans() == [])


def test_only_the_task_of_a_killed_child_uses_an_attempt(database, add, fork, tmp_path):
    one, other = (add("wait", directory=str(tmp_path)) for _ in range(2))
    worker = fork(concurrency=2, **ISOLATED)
    children = until(lambda: len(found := started_by(tmp_path)) == 2 and sorted(found))
    os.kill(children[0], signal.SIGKILL)
    until(lambda: EventType.RETRY_SCHEDULED in {*kinds(database, one), *kinds(database, other)})
    (tmp_path / "go").touch()
    finish(database, worker)
    all_completed(database, [one, other])
    attempts = sorted(
        (database.store.get(each).attempt, database.store.get(each).recovery_attempts) for each in (one, other)
    )
    assert attempts == [(1, 0), (2, 0)]


def test_children_of_a_killed_worker_end_and_another_worker_takes_over(database, add, fork, died, tmp_path):
    task = add("wait", directory=str(tmp_path))
    worker = fork(concurrency=2, **ISOLATED)
    until(lambda: started_by(tmp_path))
    worker.send(signal.SIGKILL)
    worker.wait()
    until(lambda: worker.orphans() == [])
    died(worker)
    (tmp_path / "go").touch()
    finish(database, fork(**ISOLATED))
    all_completed(database, [task])
    assert kinds(database, task).count(EventType.RESET) == 1


def test_a_worker_whose_fork_server_is_killed_releases_its_tasks(database, add, fork, tmp_path):
    task = add("wait", directory=str(tmp_path))
    worker = fork(concurrency=2, **ISOLATED)
    (child,) = until(lambda: started_by(tmp_path))
    server = parent(child)
    assert server != worker.pid
    os.kill(server, signal.SIGKILL)
    assert worker.wait(60) == 1, worker.text()
    until(lambda: worker.orphans() == [])
    assert kinds(database, task)[-1] is EventType.RELEASED
    (tmp_path / "go").touch()
    finish(database, fork())
    all_completed(database, [task])


@pytest.mark.parametrize("at_once", [False, True], ids=["one signal", "two signals"])
def test_a_signal_to_all_processes_has_the_same_effect_as_to_the_worker(database, add, fork, tmp_path, at_once):
    """A service manager sends it this way. The children leave it to the worker."""
    task = add("hold", directory=str(tmp_path))
    worker = fork(concurrency=1, **{**ISOLATED, "drain_timeout": 40})
    (child,) = until(lambda: started_by(tmp_path))
    for pid in (child, parent(child)):
        os.kill(pid, signal.SIGTERM)
    worker.send(signal.SIGTERM)
    until(lambda: list(tmp_path.glob("told-*")))
    if at_once:
        worker.send(signal.SIGQUIT)
    else:
        (tmp_path / "go").touch()
    assert worker.wait(60) == int(at_once), worker.text()
    until(lambda: worker.orphans() == [])
    assert database.store.get(task).status is (TaskStatus.READY if at_once else TaskStatus.COMPLETED)


def test_effects_happen_once_despite_kills_of_children_fork_servers_and_workers(database, add, effects, fork):
    """Each kill follows some progress, so that no task runs out of recoveries."""
    chance = random.Random(7)
    tasks = [add("entry", lease=1, number=number) for number in range(40)]
    worker = fork(concurrency=3, tasks_per_child=4, **ISOLATED)
    kills = dict.fromkeys(("child", "server", "worker"), 0)
    for victim in ["child"] * 6 + ["server", "child", "worker"] * 2:
        before = len(effects())
        until(lambda: worker.poll() is not None or len(effects()) >= min(before + 2, len(tasks)), seconds=60)  # noqa: B023
        if worker.poll() is not None:
            worker = fork(concurrency=3, tasks_per_child=4, **ISOLATED)
            until(worker.orphans)
        below = worker.orphans()
        with suppress(OSError):  # a process that has ended in the meantime
            servers = [pid for pid in below if parent(pid) == worker.pid]
            pids = {"server": servers, "child": sorted({*below} - {*servers}), "worker": [worker.pid]}[victim]
            if pids:
                os.kill(chance.choice(pids), signal.SIGKILL)
                kills[victim] += 1
                if victim != "child":
                    worker.wait(60)
    if worker.poll() is not None:
        worker = fork(concurrency=3, **ISOLATED)
    finish(database, worker, seconds=120)
    all_completed(database, tasks)
    assert effects() == sorted(one.hex for one in tasks)
    assert min(kills.values()) > 0, kills
