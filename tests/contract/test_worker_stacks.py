"""SIGUSR1 makes a worker print the stacks of its threads, without any other effect."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from outboxq.model import TaskStatus
from tests import forked
from tests.waiting import until

pytestmark = [pytest.mark.in_turn, pytest.mark.slow]

APPLICATION = """
import os, time
from outboxq import Outbox

outbox = Outbox()

@outbox.task(name="tests.wait")
def wait_for_the_file() -> str:
    open("begun", "x").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
    return "undisturbed"
"""
TWO = """
def wait_for(name):
    open(f"begun {name}", "x").close()
    while not os.path.exists("go"):
        time.sleep(0.05)

@outbox.task(name="tests.wait_one")
def wait_for_one() -> None:
    wait_for("one")

@outbox.task(name="tests.wait_two")
def wait_for_two() -> None:
    wait_for("two")
"""
READ = """
import ctypes

@outbox.task(name="tests.read")
def read_in_c() -> int:
    pipe = os.open("pipe", os.O_RDWR)
    open("begun", "x").close()
    return ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
"""
RESET = """
import signal

@outbox.task(name="tests.reset")
def reset() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    wait_for_the_file()
"""
OWN_HANDLER = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: print("mine", flush=True))
"""


@contextmanager
def worker(database, *words: str, application: str = APPLICATION):
    Path("app.py").write_text(application)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXQ")}
    environment |= {"OUTBOXQ_DATABASE_URL": database.url, "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-m", "outboxq", "worker", "app", *words]
    forks = {"starts_others": "--processes" in words}
    with (
        Path("log").open("wb") as log,
        forked.Popen(command, env=environment, stdout=log, stderr=log, **forks) as running,
    ):
        try:
            yield running
        finally:
            running.kill()
            for pid in (running.pid, *map(int, re.findall(r"\(pid (\d+)\) started", printed()))):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def printed() -> str:
    return Path("log").read_text()


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ask(running, answered):
    """Send the signal until it is answered.

    The main thread prints the task ids when it wakes up. A signal that arrives just before its wait does not wake it.
    """

    def again() -> bool:
        running.send_signal(signal.SIGUSR1)
        return answered()

    until(again, every=0.5)


def status(database, task_id):
    return database.store.get(task_id).status


def test_the_stacks_of_all_threads_and_the_running_tasks_are_printed(database):
    task_id = database.add(database.store, task_name="tests.wait").id
    with worker(database) as running:
        until(Path("begun").exists)
        ask(running, lambda: printed().count(f"process {running.pid}: task {task_id} (tests.wait) is running") >= 2)
        assert printed().count("in wait_for_the_file") >= 2
        assert "most recent call first" in printed()
        Path("go").touch()
        until(lambda: status(database, task_id) is TaskStatus.COMPLETED)
        ask(running, lambda: "no task is running" in printed())
        running.terminate()
        assert running.wait(60) == 0
    task = database.store.get(task_id)
    assert (task.attempt, task.result) == (1, '"undisturbed"')


def test_the_stacks_of_child_processes_are_printed_below_their_tasks(database):
    ids = [database.add(database.store, task_name=f"tests.wait_{one}").id for one in ("one", "two")]
    with worker(database, "--isolation", "process", application=APPLICATION + TWO) as running:
        until(lambda: Path("begun one").exists() and Path("begun two").exists())
        [server] = children(running.pid)
        ask(running, lambda: len(re.findall(r"in wait_for_(?:one|two)", printed())) >= 2)
        Path("go").touch()
        until(lambda: all(status(database, one) is TaskStatus.COMPLETED for one in ids))
        assert server in children(running.pid)
        running.terminate()
        assert running.wait(60) == 0
    for task_id, name in zip(ids, ("one", "two"), strict=True):
        head = rf"process (\d+): task {task_id} \(tests.wait_{name}\) is running in this child process, whose stacks follow"
        assert int(re.search(head, printed())[1]) not in {running.pid, server}


def test_a_child_process_blocked_in_c_code_prints_its_stacks(database):
    """Its system call is not interrupted."""
    os.mkfifo("pipe")
    pipe = os.open("pipe", os.O_RDWR)
    task_id = database.add(database.store, task_name="tests.read").id
    with worker(database, "--isolation", "process", application=APPLICATION + READ) as running:
        until(Path("begun").exists)
        ask(running, lambda: "in read_in_c" in printed())
        assert status(database, task_id) is TaskStatus.RUNNING
        os.write(pipe, b"x")
        until(lambda: status(database, task_id) is TaskStatus.COMPLETED)
        running.terminate()
        assert running.wait(60) == 0
    os.close(pipe)
    assert database.store.get(task_id).result == "1"


def test_a_child_process_that_would_die_of_the_signal_is_not_signalled(database):
    task_id = database.add(database.store, task_name="tests.reset").id
    with worker(database, "--isolation", "process", application=APPLICATION + RESET) as running:
        until(Path("begun").exists)
        ask(running, lambda: "whose stacks follow" in printed())
        ask(running, lambda: printed().count("whose stacks follow") >= 3)
        Path("go").touch()
        until(lambda: status(database, task_id) is not TaskStatus.RUNNING)
        running.terminate()
        assert running.wait(60) == 0
    assert (database.store.get(task_id).status, printed().count("ProcessDied")) == (TaskStatus.COMPLETED, 0)


def test_the_supervisor_passes_the_signal_on_to_each_process(database):
    with worker(database, "--processes", "2") as running:
        until(lambda: printed().count("outboxq.worker worker") >= 2)
        ask(running, lambda: len(set(re.findall(r"process (\d+): no task is running", printed()))) == 2)
        running.terminate()
        assert running.wait(60) == 0


def test_a_starting_process_is_not_killed_by_the_signal(database):
    with worker(database, "--processes", "2") as running:
        until(lambda: printed().count("started") >= 2)  # both processes, which are still importing
        running.send_signal(signal.SIGUSR1)
        until(lambda: printed().count("outboxq.worker worker") >= 2)
        assert "killed" not in printed()
        running.terminate()
        assert running.wait(60) == 0


def test_a_signal_handler_of_the_application_is_kept(database):
    with worker(database, application=OWN_HANDLER + APPLICATION) as running:
        until(lambda: "outboxq.worker worker" in printed())
        ask(running, lambda: "mine" in printed())
        assert "most recent call first" not in printed()
        running.terminate()
        assert running.wait(60) == 0
