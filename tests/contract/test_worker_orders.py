"""Orders to a worker, which reads them whenever it reports."""

from __future__ import annotations

import json
import os
import re
import signal
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.errors import InvalidArgument, InvalidTransition, WorkerNotFound
from outboxq.model import EventType, TaskStatus
from outboxq.model.actions import Interface, Operator
from outboxq.model.workers import Orders, WorkerOrder, WorkerState
from outboxq.operating.worker_verbs import QUIET_WORKER, STACKS, STOP_WORKER
from outboxq.store.claims.worker_orders import LONGEST_STACKS
from tests.contract.test_registry import register
from tests.contract.test_worker_stacks import READ, TWO, directory, printed, status, worker  # noqa: F401
from tests.waiting import until

SHORT = """
@outbox.task(name="tests.short")
def short() -> None: ...
"""
ARGUMENT = """
@outbox.task(name="tests.secret")
def secret(password: str) -> str:
    return wait_for_the_file.function()
"""


def outboxq(database, *words: str, exit_code: int = 0):
    result = CliRunner().invoke(main, [*words, "--url", database.url], env={"OUTBOXQ_OPERATOR": "ann"})
    assert result.exit_code == exit_code, result.output
    return result


# -- The registry -----------------------------------------------------------------------------------------------------


def test_a_worker_reads_its_order_when_it_reports(database):
    me, other, orders = register(database), register(database), database.frozen.worker_orders
    assert database.frozen.workers.seen(me) == Orders()
    assert orders.give(me, WorkerOrder.QUIET) is True
    assert orders.give(me, WorkerOrder.QUIET) is False
    assert database.frozen.workers.seen(me) == Orders(asked_to=WorkerOrder.QUIET)
    assert database.frozen.workers.seen(other) == Orders()
    assert orders.give(me, None) is True
    assert orders.give(me, None) is False
    assert orders.give(me, WorkerOrder.STOP) is True
    assert database.frozen.workers.seen(me) == Orders(asked_to=WorkerOrder.STOP)


@pytest.mark.parametrize("order", [None, WorkerOrder.QUIET])
def test_a_stop_cannot_be_undone(database, order):
    me = register(database)
    database.frozen.worker_orders.give(me, WorkerOrder.STOP)
    with pytest.raises(InvalidTransition, match="was told to stop, which cannot be undone"):
        database.frozen.worker_orders.give(me, order)
    assert database.frozen.workers.get(me).asked_to is WorkerOrder.STOP


def test_a_worker_that_has_ended_takes_no_orders(database):
    me = register(database)
    database.frozen.workers.unregister(me)
    for give in (
        lambda: database.frozen.worker_orders.give(me, WorkerOrder.QUIET),
        lambda: database.frozen.worker_orders.ask_for_stacks(me),
    ):
        with pytest.raises(InvalidTransition, match=r"\(host:1\) has ended, so it cannot be given orders"):
            give()
    assert database.frozen.workers.get(me).asked_to is None
    with pytest.raises(WorkerNotFound, match="a worker is forgotten a week after it was last seen"):
        database.frozen.worker_orders.give(uuid4(), WorkerOrder.STOP)


def test_orders_of_a_killed_worker_are_deleted_with_its_row(database):
    killed = register(database)
    database.frozen.worker_orders.give(killed, WorkerOrder.STOP)
    database.clock.advance(timedelta(days=7, seconds=1))
    successor = register(database)
    database.frozen.workers.forget()
    assert database.frozen.workers.get(killed) is None
    assert database.frozen.workers.seen(successor) == Orders()


def test_a_worker_is_found_by_its_label(database):
    me, other = register(database, label="web-1:7"), register(database, label="web-2:7")
    ended = register(database, label="web-1:7")
    database.frozen.workers.unregister(ended)
    find = database.frozen.worker_orders.find
    assert (find("web-1:7"), find(str(other))) == (me, other)
    register(database, label="web-2:7")
    with pytest.raises(InvalidArgument, match=f"several workers are called 'web-2:7'; .*{other}"):
        find("web-2:7")
    with pytest.raises(WorkerNotFound, match="is called 'web-3'"):
        find("web-3")


def test_a_worker_is_found_by_its_process_and_by_a_prefix_of_its_id(database):
    me, twin, ended = (register(database, label=label) for label in ("mail", "crm", "old"))
    workers, find = database.frozen.workers, database.frozen.worker_orders.find
    for one, host, pid in ((me, "web-1.example.org", 4711), (twin, "web-2", 4711), (ended, "web-1", 12)):
        workers.describe(one, host=host, pid=pid)
    workers.unregister(ended)
    for name in ("web-1:4711", "web-1.example.org:4711", str(me)[:8], str(me)[:13].upper()):
        assert find(name) == me
    with pytest.raises(InvalidArgument) as several:
        find("4711")
    assert all(f"{one} ({label})" in str(several.value) for one, label in ((me, "mail"), (twin, "crm")))
    workers.describe(twin, host="web-2", pid=4712)
    assert (find("4711"), find("4712")) == (me, twin)
    for unknown in ("12", "web-1:12", str(me)[:7]):
        with pytest.raises(WorkerNotFound):
            find(unknown)


def test_requested_stacks_are_answered_once_and_bounded(database):
    me, orders = register(database), database.frozen.worker_orders
    assert orders.stacks(me) is None
    orders.ask_for_stacks(me)
    assert database.frozen.workers.seen(me) == Orders(stacks=True)
    orders.answer(me, "ü" * LONGEST_STACKS)
    assert database.frozen.workers.seen(me) == Orders()
    found = orders.stacks(me)
    assert len(found.text.encode()) <= LONGEST_STACKS
    assert found.at == database.clock()
    orders.ask_for_stacks(me)
    assert orders.stacks(me) is None, "the previous answer could be mistaken for the new one"


# -- A process --------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(database):
    with worker(database, "-c", "1", application=APPLICATION) as process:
        yield process


APPLICATION = f"""
import os, time
from outboxq import Outbox

outbox = Outbox()

@outbox.task(name="tests.wait")
def wait_for_the_file() -> str:
    open("begun", "x").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
    return "undisturbed"
{SHORT}{ARGUMENT}
"""


def only_worker(database):
    return until(database.store.workers.list)[0]


@pytest.mark.slow
def test_a_quiet_worker_finishes_its_task_and_claims_no_other(database, running):
    task = database.add(database.store, task_name="tests.wait").id
    until(Path("begun").exists)
    me = only_worker(database)
    told = outboxq(database, "workers", "quiet", me.label, "--reason", "new disk").stdout
    assert told == f"the worker {me.id} has been asked to stop claiming tasks, and will do so within six seconds\n"
    until(lambda: only_worker(database).state is WorkerState.QUIET)
    later = database.add(database.store, task_name="tests.short").id
    Path("go").touch()
    until(lambda: status(database, task) is TaskStatus.COMPLETED)
    seen = only_worker(database).last_seen_at
    until(lambda: only_worker(database).last_seen_at > seen)
    assert status(database, later) is TaskStatus.READY
    assert [event.event_type for event in database.store.history(later)] == [EventType.CREATED]
    assert "order\tquiet, obeyed" in outboxq(database, "workers", "show", str(me.id)).stdout
    assert "order: quiet, obeyed" in outboxq(database, "workers", "list").stdout

    outboxq(database, "workers", "resume", str(me.id))
    until(lambda: status(database, later) is TaskStatus.COMPLETED)
    until(lambda: only_worker(database).state is None)
    assert [(one.action, one.operator, one.reason, one.target) for one in database.store.actions.list()] == [
        ("workers resume", "ann", None, str(me.id)),
        ("workers quiet", "ann", "new disk", str(me.id)),
    ]
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0


@pytest.mark.slow
def test_a_stopped_worker_lets_its_task_finish_and_exits_with_0(database, running):
    task = database.add(database.store, task_name="tests.wait").id
    until(Path("begun").exists)
    me = only_worker(database)
    outboxq(database, "workers", "stop", str(me.id))
    until(lambda: "told to stop" in printed())
    later = database.add(database.store, task_name="tests.short").id
    Path("go").touch()
    assert running.wait(60) == 0
    assert status(database, task) is TaskStatus.COMPLETED
    assert status(database, later) is TaskStatus.READY
    kinds = [event.event_type for event in database.store.history(task)]
    assert kinds == [EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED], "the task was not released"
    told = outboxq(database, "workers", "quiet", str(me.id), exit_code=1).stderr
    assert told.endswith("has ended, so it cannot be given orders\n")


@pytest.mark.slow
def test_a_worker_answers_with_its_stacks_without_the_values_of_arguments(database, running):
    database.add(database.store, task_name="tests.secret", args='{"password": "hunter2"}')
    until(Path("begun").exists)
    me = only_worker(database)
    told = json.loads(outboxq(database, "workers", "stacks", me.label, "--wait", "60s", "--json").stdout)
    assert told["id"] == str(me.id)
    assert "(tests.secret) is running" in told["stacks"]
    assert "in wait_for_the_file" in told["stacks"].partition("thread outboxq-handler")[2]
    assert "hunter2" not in told["stacks"]
    Path("go").touch()


@pytest.mark.slow
def test_the_stacks_of_child_processes_are_part_of_the_answer(database):
    ids = [database.add(database.store, task_name=f"tests.wait_{one}").id for one in ("one", "two")]
    with worker(database, "--isolation", "process", "-c", "2", application=APPLICATION + TWO):
        until(lambda: Path("begun one").exists() and Path("begun two").exists())
        found = stacks_of(database, only_worker(database))
        for task_id, name in zip(ids, ("one", "two"), strict=True):
            head = rf"process \d+: task {task_id} \(tests.wait_{name}\) is running in this child process\n\nthread MainThread\n"
            [text] = re.findall(rf"{head}((?:  .*\n)+)", found)
            assert f"in wait_for_{name}" in text
        assert "thread outboxq-handler" in found, "the stacks of the worker's threads follow"
        Path("go").touch()
        until(lambda: all(status(database, one) is TaskStatus.COMPLETED for one in ids))
        assert "child process" not in stacks_of(database, only_worker(database)), "idle child processes are not asked"


@pytest.mark.slow
def test_a_child_process_blocked_in_c_code_does_not_delay_the_answer(database):
    os.mkfifo("pipe")
    pipe = os.open("pipe", os.O_RDWR)
    task_id = database.add(database.store, task_name="tests.read").id
    with worker(database, "--isolation", "process", "-c", "1", application=APPLICATION + READ):
        until(Path("begun").exists)
        assert "it has not answered: its handler" in stacks_of(database, only_worker(database))
        assert status(database, task_id) is TaskStatus.RUNNING
        os.write(pipe, b"x")
        until(lambda: status(database, task_id) is TaskStatus.COMPLETED)
    os.close(pipe)
    assert database.store.get(task_id).attempt == 1


@pytest.mark.slow
def test_each_of_several_processes_answers_separately(database):
    database.add(database.store, task_name="tests.wait")
    with worker(database, "--processes", "2", "-c", "1", application=APPLICATION):
        until(Path("begun").exists)
        both = until(lambda: len(found := database.store.workers.list()) == 2 and found)
        found = [stacks_of(database, one) for one in both]
        assert sorted("in wait_for_the_file" in one for one in found) == [False, True]
        assert sum(one.startswith("no task is running\n") for one in found) == 1
        Path("go").touch()


def stacks_of(database, one):
    return json.loads(outboxq(database, "workers", "stacks", str(one.id), "--wait", "60s", "--json").stdout)["stacks"]


def test_the_command_reports_a_worker_that_does_not_answer(database):
    me = uuid4()
    database.store.workers.register(me, label="frozen:1", concurrency=1, task_names=[])
    told = outboxq(database, "workers", "stacks", "frozen:1", "--wait", "0s", exit_code=1).stderr
    assert told == f"outboxq: worker {me} did not answer within 0 s; it may be dead, or frozen\n"


@pytest.mark.parametrize("verb", [QUIET_WORKER, STOP_WORKER, STACKS], ids=lambda one: one.name)
def test_an_order_to_a_silent_worker_warns_that_it_may_have_no_effect(database, verb):
    worker_id = uuid4()
    database.frozen.workers.register(worker_id, label="host:7", concurrency=1, task_names=[])
    database.clock.advance(13 * 60)
    outcome = verb.do(database.frozen, worker_id, operator=Operator(interface=Interface.PROGRAM))
    assert outcome.sentence.endswith(" only if it wakes up: it has not been seen for 13 min")
