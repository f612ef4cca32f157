"""Stops of worker processes under a supervisor, with signals from different senders and in different orders."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from datetime import timedelta

import pytest

from outboxq.model import TaskStatus
from tests.faults.helpers import started_by
from tests.waiting import until

pytestmark = pytest.mark.in_turn

TERM, INT, QUIT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL
LATE = 0.3
"""The delay, in seconds, with which the slower of two processes receives a signal sent to both.

It is longer than the time within which two signals count as one.
"""
OPTIONS = ("--processes", "2", "-c", "1", "--prefetch", "0", "--poll", "100ms", "--drain-timeout", "40s")


class Family:
    """A supervisor and two workers. Each runs a task that ends once it was asked to and the test allows it."""

    def __init__(self, database, directory, start, *, ignores=()):
        self.directory, self.database = directory, database
        args = json.dumps({"directory": str(directory)})
        fields = {"task_name": "faults.hold", "queue": "faults", "args": args, "lease": timedelta(seconds=30)}
        self.tasks = [database.add(database.store, **fields).id for _ in range(2)]
        self.supervisor = start(*OPTIONS, ignores=ignores)
        until(lambda: self.supervisor.poll() is not None or len(self.workers) == 2)

    @property
    def workers(self):
        return started_by(self.directory)

    def tell_workers(self, number=TERM):
        for pid in self.workers:
            os.kill(pid, number)

    def have_been_told(self):
        """Wait until both workers know that they should stop."""
        until(lambda: len(list(self.directory.glob("told-*"))) == 2)

    def has_passed_on(self):
        until(lambda: "passing on" in self.supervisor.text())

    def ends_in_time(self):
        """Check that the running tasks are completed and not released."""
        assert self.statuses() == {(TaskStatus.RUNNING, 1)}, self.supervisor.text()
        self.may_end()
        assert self.supervisor.wait() == 0, self.supervisor.text()
        assert self.statuses() == {(TaskStatus.COMPLETED, 1)}
        assert "told to stop immediately" not in self.supervisor.text()

    def may_end(self):
        (self.directory / "go").touch()

    def is_asked_again(self, ask):
        """Ask again, and repeat that in case the requests were too close together."""

        def asked():
            with suppress(ProcessLookupError):
                ask()
            return self.supervisor.poll() is not None

        until(asked, every=0.2)

    def ends_at_once(self):
        assert self.supervisor.wait() == 1, self.supervisor.text()
        assert self.statuses() == {(TaskStatus.READY, 1)}

    def statuses(self):
        tasks = [self.database.store.get(task) for task in self.tasks]
        return {(task.status, task.attempt) for task in tasks}


def a_while_later():
    """Wait until the last signal has had its effect and the next one counts as another."""
    since = time.monotonic()
    until(lambda: time.monotonic() > since + LATE)


@pytest.fixture
def family(database, tmp_path, start):
    def make(**options):
        families.append(Family(database, tmp_path, start, **options))
        return families[-1]

    families = []
    yield make
    for one in families:
        for pid in one.workers:
            with suppress(ProcessLookupError):
                os.kill(pid, KILL)


only_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def test_a_signal_to_all_processes_is_one_stop_if_the_supervisor_gets_it_late(family):
    """A service manager stops a service this way."""
    one = family()
    one.supervisor.send(signal.SIGSTOP)
    one.supervisor.send(TERM)
    one.tell_workers()
    one.have_been_told()
    a_while_later()
    one.supervisor.send(signal.SIGCONT)
    one.has_passed_on()
    a_while_later()
    one.ends_in_time()


def test_a_signal_to_all_processes_is_one_stop_if_the_workers_get_it_late(family):
    one = family()
    one.supervisor.send(TERM)
    one.have_been_told()
    a_while_later()
    one.tell_workers()
    a_while_later()
    one.ends_in_time()


@only_sqlite
def test_a_second_ctrl_c_releases_running_tasks(family):
    """A terminal signals the supervisor's process group."""
    one = family()
    os.killpg(one.supervisor.pid, INT)
    one.have_been_told()
    one.is_asked_again(lambda: os.killpg(one.supervisor.pid, INT))
    one.ends_at_once()


@only_sqlite
def test_a_second_signal_counts_if_all_but_sigterm_are_ignored(family):
    """With `&` in a script, commands ignore SIGINT and SIGQUIT."""
    one = family(ignores=("INT", "QUIT", "HUP"))
    one.supervisor.send(TERM)
    one.have_been_told()
    one.supervisor.send(INT)
    one.supervisor.send(QUIT)
    one.is_asked_again(lambda: one.supervisor.send(TERM))
    one.ends_at_once()


@only_sqlite
def test_two_signals_to_a_worker_release_its_tasks(family):
    one = family()
    one.tell_workers()
    one.have_been_told()
    a_while_later()
    one.tell_workers()
    until(lambda: one.supervisor.text().count("exited with code 1") == 2)
    assert one.supervisor.text().count("told to stop immediately") == 2


@only_sqlite
@pytest.mark.parametrize(
    "ignores",
    [pytest.param((), id="none", marks=pytest.mark.full), pytest.param(("TERM", "INT", "QUIT", "HUP"), id="all")],
)
def test_workers_whose_supervisor_is_killed_finish_their_tasks(family, ignores):
    """This holds even if they ignore signals."""
    one = family(ignores=ignores)
    one.supervisor.send(KILL)
    one.have_been_told()
    one.may_end()
    until(lambda: one.statuses() == {(TaskStatus.COMPLETED, 1)})
    until(lambda: one.supervisor.text().count(" stopped") == 2)
    assert "told to stop immediately" not in one.supervisor.text()
