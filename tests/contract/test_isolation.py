"""Handlers in child processes: the same outcomes, contexts, transactions, hooks and log lines as in threads."""

from __future__ import annotations

import errno
import math
import os
import pickle
import re
import resource
import signal
import socket
import struct
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from outboxq import Cancel, EventType, Hook, InvalidArgument, Outbox, RetryPolicy, Snooze, TaskContext, TaskStatus
from outboxq.worker.failpoints import Failpoint
from outboxq.worker.isolation import fork_server, runner
from outboxq.worker.isolation.child import ChildProcess, Job, News
from tests.waiting import until

NEVER = RetryPolicy.never()


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@contextmanager
def working(outbox, **options):
    worker = outbox.worker(
        **{
            "poll": 0.05,
            "recover_every": 0.05,
            "drain_timeout": 10,
            "concurrency": 2,
            "isolation": "process",
            **options,
        }
    )
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def ended(outbox, handle):
    return until(lambda: (task := outbox.store.get(handle.id)).completed_at and task)


def test_outcomes_are_the_same_as_in_a_thread(outbox, database, tmp_path):
    @outbox.task(name="pid")
    def pid(number: int) -> dict[str, int]:
        return {"pid": os.getpid(), "number": number}

    @outbox.task(name="fail", retry=RetryPolicy(max_attempts=2, wait=0))
    def fail(ctx: TaskContext) -> None:
        raise ValueError(f"attempt {ctx.attempt} of {ctx.max_attempts}")

    @outbox.task(name="give_up")
    def give_up() -> None:
        raise Cancel("enough")

    @outbox.task(name="moody")
    def moody() -> None:
        if not (mark := tmp_path / "snoozed").exists():
            mark.touch()
            raise Snooze(1)

    handles = [pid.using(outbox).enqueue(7), fail.using(outbox).enqueue(), give_up.using(outbox).enqueue()]
    sleeper = moody.using(outbox).enqueue()
    with working(outbox) as worker:
        completed, failed, cancelled = [ended(outbox, handle) for handle in handles]
        assert ended(outbox, sleeper).attempt == 1
        until(lambda: sum(one.completed for one in worker.meter.read().values()) == 2)
    result = outbox.result(handles[0].id)
    assert (result["number"], result["pid"] == os.getpid()) == (7, False)
    assert (failed.attempt, failed.last_error) == (2, "ValueError: attempt 2 of 2")
    data = outbox.store.history(handles[1].id)[-1].event_data
    assert (data["exception"], "in fail" in data["traceback"]) == ("builtins.ValueError", True)
    assert (cancelled.status, completed.status) == (TaskStatus.CANCELLED, TaskStatus.COMPLETED)
    assert [event.event_type for event in outbox.store.history(sleeper.id)].count(EventType.SNOOZED) == 1


def test_a_transactional_task_commits_with_its_completion_or_not_at_all(outbox, database):
    database.run("CREATE TABLE ledger (number INTEGER)")

    @outbox.task(name="book", transactional=True, retry=NEVER)
    def book(ctx: TaskContext, number: int, fails: bool) -> int:
        ctx.connection.execute(text("INSERT INTO ledger VALUES (:number)"), {"number": number})
        follow.enqueue(number)
        if fails:
            raise ValueError("no")
        return os.getpid()

    @outbox.task(name="follow")
    def follow(number: int) -> None: ...

    good, bad = book.using(outbox).enqueue(1, False), book.using(outbox).enqueue(2, True)
    with working(outbox) as worker:
        assert [ended(outbox, handle).status for handle in (good, bad)] == [TaskStatus.COMPLETED, TaskStatus.FAILED]
        until(lambda: [task.status for task in outbox.store.tasks(task="follow")] == [TaskStatus.COMPLETED])
        until(lambda: worker.running == 0)
        assert sum(one.lost for one in worker.meter.read().values()) == 0
    assert database.rows("SELECT number FROM ledger") == [(1,)]
    assert outbox.result(good.id) != os.getpid()
    database.run("DROP TABLE ledger")


def test_the_handler_learns_about_cancels_and_stops(outbox, tmp_path):
    @outbox.task(name="wait")
    def wait(ctx: TaskContext, number: int) -> str:
        (tmp_path / f"began-{number}").touch()
        first = ctx.deadline
        until(lambda: ctx.should_stop and (number == 1 or ctx.deadline > first))
        ctx.checkpoint()
        return "not reached"

    cancelled, released = wait.using(outbox).enqueue(1), wait.using(outbox).enqueue(2)
    with working(outbox, heartbeat=0.1):
        until(lambda: len(list(tmp_path.glob("began-*"))) == 2)
        outbox.store.cancel(cancelled.id)
        assert ended(outbox, cancelled).status is TaskStatus.CANCELLED
        until(lambda: outbox.store.get(released.id).status is TaskStatus.RUNNING)
    assert outbox.store.get(released.id).status is TaskStatus.READY
    assert outbox.store.history(released.id)[-1].event_type is EventType.SNOOZED


def test_a_completed_step_is_not_called_again_after_its_child_died(outbox, database, tmp_path):
    database.run("CREATE TABLE ledger (number INTEGER)")

    def note(name: str) -> str:
        with (tmp_path / "calls").open("a") as calls:
            calls.write(name)
        return name

    def book(ctx: TaskContext, number: int) -> None:
        ctx.connection.execute(text("INSERT INTO ledger VALUES (:number)"), {"number": number})

    @outbox.task(name="stepped", retry=RetryPolicy(max_attempts=2, wait=0))
    def stepped(ctx: TaskContext) -> str:
        first = ctx.step("first", note, "1")
        ctx.step("book", book, 7, transactional=True)
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return first + ctx.step("second", note, "2")

    handle = stepped.using(outbox).enqueue()
    with working(outbox):
        task = ended(outbox, handle)
    assert (task.status, task.attempt, task.result) == (TaskStatus.COMPLETED, 2, '"12"')
    assert (tmp_path / "calls").read_text() == "12"
    assert database.rows("SELECT number FROM ledger") == [(7,)]
    database.run("DROP TABLE ledger")


def test_news_received_before_the_handler_begins_is_not_lost(outbox):
    """A thread receives the worker's messages before the main thread has reached the handler."""

    @outbox.task(name="heed")
    def heed() -> None: ...

    heed.using(outbox).enqueue()
    worker, known = outbox.worker(isolation="process"), []
    [claim] = outbox.store.claim_ready_task(1, worker_id=worker.id)
    child = worker._parts.children.server._serve.__self__
    news = News(deadline=time.monotonic() + 60, was_lost=False, cancel_requested=False, is_stopping=False)
    child._apply(news)
    child._apply(replace(news, cancel_requested=True))
    job = Job(claim=claim, sent=time.monotonic(), news=news)
    child._run(lambda active: known.append(active.context.cancel_requested), job)
    assert known == [True]
    outbox.store.release(claim)


def test_a_late_echo_of_a_released_lock_does_not_hold_the_lease_forever(outbox):
    """The worker echoes each message, and a short transaction may be over before the echo arrives."""

    @outbox.task(name="short")
    def short() -> None: ...

    short.using(outbox).enqueue()
    worker, known, sent = outbox.worker(isolation="process"), [], []
    [claim] = outbox.store.claim_ready_task(1, worker_id=worker.id)
    child = worker._parts.children.server._serve.__self__
    child._connection = SimpleNamespace(send=sent.append)
    news = News(deadline=time.monotonic() + 60, was_lost=False, cancel_requested=False, is_stopping=False)

    def transaction(active):
        for deadline in (math.inf, news.deadline):
            child.hold_until(active.context, deadline)
        for holding in sent:
            child._apply(replace(news, deadline=holding.deadline))
        child._apply(replace(news, deadline=news.deadline + 1))
        known.append(active.context.deadline)

    child._run(transaction, Job(claim=claim, sent=time.monotonic(), news=news))
    assert known == [news.deadline + 1]
    outbox.store.release(claim)


def test_the_death_of_a_child_is_a_failed_attempt_that_names_the_signal(outbox, caplog):
    @outbox.task(name="die", retry=RetryPolicy(max_attempts=2, wait=0))
    def die(number: int) -> None:
        os.kill(os.getpid(), number)

    @outbox.task(name="leave", retry=NEVER)
    def leave() -> None:
        os._exit(3)

    killed, left = die.using(outbox).enqueue(int(signal.SIGKILL)), leave.using(outbox).enqueue()
    with working(outbox) as worker:
        tasks = [ended(outbox, handle) for handle in (killed, left)]
        assert worker.is_healthy
    assert [(task.attempt, task.recovery_attempts, task.last_error) for task in tasks] == [
        (2, 0, "ProcessDied: the child process of the handler was killed by SIGKILL"),
        (1, 0, "ProcessDied: the child process of the handler ended with exit code 3"),
    ]
    assert "ProcessDied: the child process of the handler was killed by SIGKILL" in caplog.text


@pytest.mark.parametrize("transactional", [False, True], ids=["own", "transactional"])
def test_only_the_child_of_a_handler_that_exceeds_its_timeout_is_killed(outbox, database, tmp_path, transactional):
    """The handler holds the GIL, so nothing in its process could end it. The processes that it has started end with it."""
    database.run("CREATE TABLE ledger (number INTEGER)")

    @outbox.task(name="stuck", timeout=2, timeout_action="kill", transactional=transactional, retry=NEVER)
    def stuck(ctx: TaskContext) -> None:
        import ctypes
        import subprocess

        if transactional:
            ctx.connection.execute(text("INSERT INTO ledger VALUES (1)"))
        (tmp_path / "helper").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        ctypes.PyDLL(None).sleep(600)

    @outbox.task(name="beside")
    def beside() -> int:
        return os.getpid()

    handle = stuck.using(outbox).enqueue()
    with working(outbox, timeout_grace=0.2) as worker:
        until(lambda: outbox.store.get(handle.id).status is TaskStatus.RUNNING)
        neighbours = beside.using(outbox).enqueue_many([()] * 5)
        task = ended(outbox, handle)
        assert [ended(outbox, one).status for one in neighbours] == [TaskStatus.COMPLETED] * 5
        assert worker.is_healthy
    assert (task.status, task.attempt) == (TaskStatus.FAILED, 1)
    assert "did not stop within the grace period of 0.2 s, and was killed with its child process" in task.last_error
    assert database.rows("SELECT number FROM ledger") == []
    helper = int((tmp_path / "helper").read_text())
    until(lambda: not is_alive(helper))
    database.run("DROP TABLE ledger")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_handler_that_has_ended_in_time_is_not_late_while_it_commits(outbox, caplog, isolation):
    """The child is not killed at the end of the grace period, and nothing says that its handler is late."""

    def slowly(point):
        if point is Failpoint.BEFORE_COMMIT:
            time.sleep(2)

    @outbox.task(name="quick", timeout=1.5, timeout_action="kill", transactional=True, retry=NEVER)
    def quick(ctx: TaskContext) -> str:
        return "done"

    handle = quick.using(outbox).enqueue()
    with working(outbox, isolation=isolation, timeout_grace=0.2, heartbeat=0.05, on_failpoint=slowly):
        task = ended(outbox, handle)
    assert (task.status, task.last_error) == (TaskStatus.COMPLETED, None)
    assert "has run past its timeout" not in caplog.text


def test_a_child_that_reads_no_messages_is_killed_after_its_timeout(outbox, monkeypatch):
    """The worker's messages to the child, one per heartbeat, have filled the socket long before the timeout."""
    monkeypatch.setattr(runner, "_NEWS_EVERY", 0.0005)
    same = {"was_lost": False, "cancel_requested": False, "is_stopping": False}
    monkeypatch.setattr(News, "of", lambda _: News(deadline=time.monotonic() + 60, **same))

    @outbox.task(name="stopped", timeout=1.5, timeout_action="kill", retry=NEVER)
    def stopped() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    handle = stopped.using(outbox).enqueue()
    with working(outbox, timeout_grace=0.1):
        assert "was killed with its child process" in ended(outbox, handle).last_error


def test_a_child_that_stops_in_the_middle_of_a_message_is_killed_after_its_timeout(outbox, monkeypatch):
    """A handler that keeps Python's lock stops the thread that is sending its notes too."""
    connections = []
    monkeypatch.setattr(ChildProcess, "_send_notes", lambda self: connections.append(self._connection))

    @outbox.task(name="cut", timeout=0.5, timeout_action="kill", retry=NEVER)
    def cut() -> None:
        until(lambda: connections)
        os.write(connections[0].fileno(), struct.pack("!i", 50_000) + b"not all of it")
        os.kill(os.getpid(), signal.SIGSTOP)

    handle = cut.using(outbox).enqueue()
    with working(outbox, timeout_grace=0.1):
        assert "was killed with its child process" in ended(outbox, handle).last_error


def test_messages_that_arrive_in_parts_or_together_are_read_one_by_one():
    ours, theirs = socket.socketpair()
    with theirs:
        child = runner._Child(0, Connection(ours.detach()))
        data = b"".join(
            struct.pack("!i", len(one)) + one for one in map(pickle.dumps, ["first", "second", "x" * 99_999])
        )
        assert child.receive(0) is None
        for part in (data[:2], data[2:8]):
            theirs.sendall(part)
            assert child.receive(1) is None
        theirs.sendall(data[8:])
        assert [child.receive(1), child.receive(1)] == ["first", "second"]
        assert until(lambda: child.receive(1)) == "x" * 99_999
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            child.receive(1)
        child.connection.close()


def test_the_end_of_an_abandoned_child_is_not_mistaken_for_the_end_of_a_later_child(outbox, monkeypatch, tmp_path):
    """The system may give a later child the same process id."""

    @outbox.task(name="shut", retry=NEVER)
    def shut(how: str) -> None:
        import ctypes

        (tmp_path / how).write_text(str(os.getpid()))
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        os.closerange(3, 200)
        ctypes.PyDLL(None).sleep(600)  # holds the GIL, so the thread that reads from the socket cannot exit

    with working(outbox, heartbeat=0.05) as worker:
        server = worker._parts.children.server
        with monkeypatch.context() as patch:
            patch.setattr(runner, "_END_TIMEOUT", 0.1)
            assert "is no longer responding" in ended(outbox, shut.using(outbox).enqueue("hides")).last_error
        pid = int((tmp_path / "hides").read_text())
        until(lambda: not is_alive(pid))
        assert "was killed by SIGKILL" in ended(outbox, shut.using(outbox).enqueue("dies")).last_error
        assert not server.knows_end_of(pid)


def test_a_timeout_interrupts_a_blocking_call_of_the_handler(outbox):
    @outbox.task(name="sleep", timeout=0.1, timeout_action="raise", retry=NEVER)
    def sleep() -> None:
        time.sleep(600)

    handle = sleep.using(outbox).enqueue()
    with working(outbox):
        assert ended(outbox, handle).last_error == "TaskTimeout: the handler ran for longer than its timeout of 0.1 s"


def test_hooks_and_log_fields_belong_to_the_child(database, tmp_path, caplog):
    journal = tmp_path / "journal"

    def note(*words: object) -> None:
        with journal.open("a") as file:
            print(os.getpid() == parent, *words, file=file)

    class Noting(Hook):
        @contextmanager
        def handling(self, context):
            note("handling", context.task_name)
            yield
            note("handled")

        def ended(self, context, outcome, seconds):
            note("ended", outcome.event_type, type(context.error).__name__)

        def worker_started(self, worker):
            note("started")

        def worker_stopped(self, worker):
            note("stopped")

    parent, outbox = os.getpid(), Outbox(database.engine, hooks=[Noting()])

    @outbox.task(name="quick")
    def quick() -> None: ...

    @outbox.task(name="die", retry=NEVER)
    def die() -> None:
        os._exit(1)

    with working(outbox, concurrency=1):
        ended(outbox, quick.using(outbox).enqueue())
        ended(outbox, die.using(outbox).enqueue())
        until(lambda: "ProcessDied" in journal.read_text())
        ended(outbox, quick.using(outbox).enqueue())
    lines = journal.read_text().splitlines()
    assert lines == [
        "True started",
        "False started",
        "False handling quick",
        "False ended task_completed NoneType",
        "False handled",
        "False handling die",
        "True ended task_failed ProcessDied",
        "False started",
        "False handling quick",
        "False ended task_completed NoneType",
        "False handled",
        "False stopped",
        "True stopped",
    ]


def test_a_task_that_is_declared_after_the_start_is_released(outbox, caplog):
    with working(outbox):

        @outbox.task(name="late", retry=NEVER)
        def late() -> None: ...

        handle = late.using(outbox).enqueue()
        events = until(lambda: (found := outbox.store.history(handle.id))[2:] and found)
        assert events[-1].event_type == "task_released"
    assert "does not know the task 'late'" in caplog.text
    found = outbox.store.get(handle.id)
    assert (found.status, found.last_error) == ("Ready", None)  # no attempt has failed


def pipes_and_sockets():
    """Return the number of open pipes and sockets. SQLite's files do not count, because one of them may be opened late."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this listing
            found += str(one.readlink()).startswith(("pipe:", "socket:"))
    return found


def test_children_are_replaced_after_tasks_per_child_tasks(outbox):
    @outbox.task(name="pid")
    def pid() -> int:
        return os.getpid()

    handles = pid.using(outbox).enqueue_many([()] * 9)
    with working(outbox, concurrency=1, tasks_per_child=3):
        pids = [ended(outbox, handle).result for handle in handles]
        descriptors = pipes_and_sockets()
        more = [ended(outbox, handle) for handle in pid.using(outbox).enqueue_many([()] * 9)]
        assert pipes_and_sockets() <= descriptors + 2
        until(lambda: not any(is_alive(int(one)) for one in pids))
    assert [pids.count(one) for one in dict.fromkeys(pids)] == [3, 3, 3]
    assert len(more) == 9


def test_no_process_is_left_when_the_worker_has_stopped_or_could_not_start(outbox, monkeypatch):
    @outbox.task(name="pid")
    def pid() -> int:
        return os.getpid()

    with working(outbox) as worker:
        child = int(ended(outbox, pid.using(outbox).enqueue()).result)
        server = worker._parts.children.server._pid
        assert is_alive(server)
    until(lambda: not is_alive(child) and not is_alive(server))

    refused = outbox.worker(isolation="process")
    server = refused._parts.children.server
    monkeypatch.setattr(type(refused._application), "ensure_current", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        refused.start()
    until(lambda: server.has_ended)


@pytest.mark.parametrize(("drain_timeout", "longest"), [(60, 2.0), (0, 0.8)])
def test_a_worker_without_time_left_waits_only_briefly_for_its_idle_children(
    outbox, monkeypatch, drain_timeout, longest
):
    """`run` ends the process 1.76 seconds after the drain timeout."""

    @outbox.task(name="quick")
    def quick() -> None: ...

    given = []
    with working(outbox, concurrency=1) as worker:
        ended(outbox, quick.using(outbox).enqueue())
        server = worker._parts.children.server
        real = server.end_of
        monkeypatch.setattr(server, "end_of", lambda pid, timeout: given.append(timeout) or real(pid, timeout))
        worker.stop(drain_timeout)
    assert round(given[0], 1) == longest


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_worker_that_could_not_start_starts_later_and_enforces_timeouts(outbox, monkeypatch, isolation):
    @outbox.task(name="late", timeout=0.2, timeout_action="raise", retry=RetryPolicy.never())
    def late() -> None:
        until(lambda: False)

    with monkeypatch.context() as patch:
        patch.setattr(type(outbox.store), "ensure_current", lambda _: 1 / 0)
        worker = outbox.worker(isolation=isolation, poll=0.05)
        with pytest.raises(ZeroDivisionError):
            worker.start()
    worker.start()
    try:
        assert "TaskTimeout" in ended(outbox, late.using(outbox).enqueue()).last_error
    finally:
        worker.stop()


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads
        return os.fork()


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_fork_that_returns_from_a_handler_or_a_step_exits_there(outbox, isolation):
    def forked(ends: str) -> int:
        if (pid := fork()) == 0:
            if ends == "by returning":
                return -1
            raise SystemExit(7) if ends == "by sys.exit" else ValueError(ends)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @outbox.task(name="forks", retry=RetryPolicy.never(), transactional=True)
    def forks(ends: str) -> int:
        return forked(ends)

    @outbox.task(name="step", retry=RetryPolicy.never())
    def step(ctx: TaskContext, ends: str) -> int:
        return ctx.step("forks", forked, ends)

    @outbox.task(name="own")
    def own(number: int) -> int:
        return number

    ways = {"by returning": 0, "by sys.exit": 7, "by an error": 1}
    with working(outbox, isolation=isolation, concurrency=1):
        for task in (forks, step):
            handles = [task.using(outbox).enqueue(way) for way in ways]
            after = own.using(outbox).enqueue_many([(n,) for n in range(3)])
            assert [handle.result(timeout=30) for handle in handles] == list(ways.values())
            assert [handle.result(timeout=30) for handle in after] == [0, 1, 2]
    assert outbox.store.verify() == []


def test_the_death_of_a_child_is_noticed_while_a_process_it_forked_still_runs(outbox, tmp_path):
    @outbox.task(name="dies", retry=RetryPolicy.never())
    def dies(how: str) -> None:
        if (pid := fork()) == 0:
            time.sleep(60)
            os._exit(0)
        (tmp_path / how).write_text(str(pid))
        if how == "leaves the others":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    with working(outbox):
        for how, why in (("is killed", "killed by SIGKILL"), ("leaves the others", "exit code 0")):
            began = time.monotonic()
            task = ended(outbox, dies.using(outbox).enqueue(how))
            assert time.monotonic() - began < 30
            assert (task.status, why in task.last_error) == (TaskStatus.FAILED, True), task.last_error
        until(lambda: not is_alive(int((tmp_path / "is killed").read_text())))
    os.kill(int((tmp_path / "leaves the others").read_text()), signal.SIGKILL)


def test_a_handler_that_continues_in_a_fork_counts_as_dead(outbox):
    """A daemon does this. The end of the fork does not count."""

    @outbox.task(name="daemon", retry=RetryPolicy.never())
    def daemon() -> str:
        handler = os.getpid()
        if fork():
            os._exit(0)
        until(lambda: os.getppid() != handler)
        return "of the fork"

    with working(outbox, concurrency=1):
        handles = [daemon.using(outbox).enqueue() for _ in range(2)]
        assert all("ProcessDied" in ended(outbox, handle).last_error for handle in handles)


def test_a_task_is_released_while_the_worker_has_too_many_open_files(outbox, monkeypatch):
    """It is not left to recovery, which would count the release as the death of a worker."""

    @outbox.task(name="plain", retry=NEVER)
    def plain() -> None:
        pass

    def full(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    with working(outbox) as worker:
        with monkeypatch.context() as patch:
            patch.setattr(fork_server.socket, "socketpair", full)
            handle = plain.using(outbox).enqueue()
            until(lambda: worker.handled)
            worker._parts.completer.flush(10)
        assert outbox.store.history(handle.id)[-1].event_type is EventType.RELEASED
        assert ended(outbox, handle).status is TaskStatus.COMPLETED


def catches(pid: int, number: signal.Signals) -> bool:
    [mask] = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> number - 1 & 1)


def test_a_task_is_released_while_the_fork_server_has_too_many_open_files(outbox):
    @outbox.task(name="plain", retry=NEVER)
    def plain() -> None: ...

    with working(outbox) as worker:
        server = worker._parts.children.server._pid
        until(lambda: catches(server, signal.SIGCHLD))  # then it has opened its own files
        limits = resource.prlimit(server, resource.RLIMIT_NOFILE)
        resource.prlimit(server, resource.RLIMIT_NOFILE, (0, limits[1]))
        handle = plain.using(outbox).enqueue()
        until(lambda: worker.handled)
        worker._parts.completer.flush(10)
        assert outbox.store.history(handle.id)[-1].event_type is EventType.RELEASED
        resource.prlimit(server, resource.RLIMIT_NOFILE, limits)
        assert ended(outbox, handle).status is TaskStatus.COMPLETED


def test_a_fork_server_that_does_not_answer_is_killed_and_its_tasks_are_released(outbox, monkeypatch, caplog):
    @outbox.task(name="plain", retry=NEVER)
    def plain() -> None: ...

    monkeypatch.setattr(fork_server, "_ANSWER_TIMEOUT", 1)
    with working(outbox) as worker:
        server = worker._parts.children.server._pid
        os.kill(server, signal.SIGSTOP)
        handle = plain.using(outbox).enqueue()
        try:
            until(lambda: not is_alive(server))
        finally:
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGCONT)
        until(lambda: outbox.store.history(handle.id)[-1].event_type is EventType.RELEASED)
    assert "the fork server has not answered for 1 s" in caplog.text


def test_threads_that_are_already_running_are_named_in_a_warning(outbox, caplog):
    go = threading.Event()
    stranger = threading.Thread(target=go.wait, name="exporter", daemon=True)
    stranger.start()
    with working(outbox):
        go.set()
    assert "this process was running the threads" in caplog.text
    assert "exporter" in caplog.text


def test_invalid_isolation_options_are_refused(outbox):
    with pytest.raises(InvalidArgument, match="isolation must be one of 'thread', 'process', not 'fork'"):
        outbox.worker(isolation="fork")
    with pytest.raises(InvalidArgument, match="tasks_per_child must be a whole number of at least 1, not 0"):
        outbox.worker(isolation="process", tasks_per_child=0)


def is_alive(pid: int) -> bool:
    """Return whether the process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
