"""A reader without prior knowledge finds out why a task does not run, and cures it with the printed commands alone.

Each case breaks something. The reader runs `outboxq task explain`, types the first printed command unchanged, and repeats this
until the task has run.
"""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner

from outboxq import Outbox
from outboxq.cli import main
from outboxq.model import EventType, OnDeadLetter, Outcome, TaskStatus
from tests import forked
from tests.conftest import Database
from tests.waiting import until

HOUR = timedelta(hours=1)
APP = "cures_app:outbox"

APPLICATION = """
from outboxq import Outbox

outbox = Outbox({url!r})


@outbox.task(name="tests.work", queue="mail")
def work() -> None: ...
"""


@pytest.fixture
def outbox(database, tmp_path, monkeypatch) -> Iterator[Outbox]:
    """Put the application into the working directory, and yield its outbox."""
    (tmp_path / "cures_app.py").write_text(APPLICATION.format(url=database.url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("OUTBOXQ_DATABASE_URL", "OUTBOXQ_SCHEMA", "OUTBOXQ_APP"):
        monkeypatch.delenv(name, raising=False)
    found = importlib.import_module("cures_app").outbox
    yield found
    found.store.bound_engine.dispose()
    del sys.modules["cures_app"]


@contextmanager
def process(words: list[str]) -> Iterator[None]:
    """Run the command in a separate process until the block ends."""
    with forked.Popen(
        [sys.executable, "-m", "outboxq", *words], env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        try:
            yield
        finally:
            running.terminate()


def typed(line: str) -> str:
    """Type a line at the shell's prompt. Returns the output."""
    program, *words = shlex.split(line)
    assert program == "outboxq"
    result = CliRunner().invoke(main, words, prog_name="outboxq", input="y\n", catch_exceptions=False)
    assert result.exit_code in {0, 1}, result.output  # 1: verify has found a violation
    return str(result.output)


def read_and_cure(database: Database, task_id: UUID, *, most: int = 5) -> tuple[str, list[str]]:
    """Follow the printed commands until nothing is left to cure. Returns the first sentence and the typed lines.

    If a command starts a worker, the worker runs until the task has ended.
    """
    line, said, lines = f"outboxq task explain {task_id} -A {APP}", "", []
    for _ in range(most):
        printed = typed(line).splitlines()
        said = said or printed[0]
        cures = [cure.partition(": ")[2] for cure in printed[1:] if cure.startswith("  to ")]
        if not cures:
            return said, lines
        lines.append(line := cures[0])
        if line.startswith("outboxq worker "):
            with process(shlex.split(line)[1:]):
                until(lambda: database.store.get(task_id).status is TaskStatus.COMPLETED)
            return said, lines
        if not line.startswith("outboxq task explain "):
            typed(line)
            line = f"outboxq task explain {task_id} -A {APP}"
    raise AssertionError(f"{most} commands did not cure it: {lines}")


def alive(database: Database, **said: Any) -> None:
    """Register a live worker that knows the task. It is only a row, so nothing runs before the reader acts."""
    values = {"label": "host:7", "concurrency": 4, "task_names": ["tests.work"], **said}
    database.store.workers.register(uuid4(), **values)


def ended(database: Database, claim: Any, kind: EventType, **fields: Any) -> None:
    database.store.finish([Outcome(claim=claim, event_type=kind, error="ValueError: no", **fields)])


def put(database: Database, **fields: Any) -> UUID:
    return database.add(database.store, queue="mail", **fields).id


def claimed(database: Database, **fields: Any) -> Any:
    put(database, **fields)
    (claim,) = database.claim(store=database.store)
    return claim


def paused(database: Database) -> UUID:
    database.store.queues.pause("mail", create=True)
    return put(database)


def delayed(database: Database) -> UUID:
    return put(database, delay=HOUR)


def retried_later(database: Database) -> UUID:
    claim = claimed(database)
    ended(database, claim, EventType.RETRY_SCHEDULED, delay=HOUR)
    return UUID(str(claim.id))


def failed(database: Database) -> UUID:
    claim = claimed(database)
    ended(database, claim, EventType.FAILED)
    return UUID(str(claim.id))


def behind_a_held_key(database: Database) -> UUID:
    claim = claimed(database, partition_key="k", on_dead_letter=OnDeadLetter.HOLD)
    ended(database, claim, EventType.FAILED)
    return put(database, partition_key="k")


def behind_a_delayed_task_of_its_key(database: Database) -> UUID:
    put(database, partition_key="k", delay=HOUR)
    return put(database, partition_key="k")


def at_the_limit(database: Database) -> UUID:
    database.store.queues.limit("mail", concurrency=1, create=True)
    claimed(database)
    return put(database)


def beyond_the_rate(database: Database) -> UUID:
    database.store.queues.limit("mail", rate=(1, HOUR), create=True)
    database.store.complete(claimed(database))
    return put(database)


def without_its_entry(database: Database) -> UUID:
    task_id = put(database)
    database.run("DELETE FROM task_outbox")
    return task_id


CASES: dict[str, tuple[Callable[[Database], UUID], str, str]] = {
    "paused": (paused, "its queue has been paused since", "outboxq queue resume mail"),
    "delayed": (delayed, "it is due in ", "outboxq task run-now"),
    "retried later": (retried_later, "attempt 2 is due in ", "outboxq task run-now"),
    "failed": (failed, "it failed at", "outboxq failed redrive"),
    "key held": (behind_a_held_key, "is held by the dead letter", "outboxq failed redrive"),
    "key waiting": (behind_a_delayed_task_of_its_key, "comes first; it is due at", "outboxq task explain"),
    "limit": (
        at_the_limit,
        "may run at most 1 task at a time; running now: 1",
        "outboxq queue limit mail --concurrency none",
    ),
    "rate": (beyond_the_rate, "may start at most 1 task in 1 h", "outboxq queue limit mail --rate none"),
    "inconsistent": (without_its_entry, "it is Ready, but not in the outbox", "outboxq verify --repair"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("case", CASES)
def test_the_printed_commands_cure_a_task_while_a_worker_is_live(database, outbox, case):
    broken, sentence, command = CASES[case]
    alive(database)
    task_id = broken(database)
    said, lines = read_and_cure(database, task_id)
    assert sentence in said
    assert lines[0].startswith(command)
    assert all(f"-A {APP}" in line for line in lines)
    outbox.worker(concurrency=1).run(burst=True)
    assert database.store.get(task_id).status is TaskStatus.COMPLETED


def test_explain_refers_from_a_waiting_task_to_the_running_one(database, outbox):
    alive(database)
    first = claimed(database, partition_key="k", lease=HOUR)
    second = put(database, partition_key="k")
    database.store.workers.register(first.worker_id, label="host:9", concurrency=1, task_names=["tests.work"])
    (asks,) = [line for line in typed(f"outboxq task explain {second} -A {APP}").splitlines() if "task explain" in line]
    printed = typed(asks.partition(": ")[2])
    assert "host:9 has been running it since" in printed
    (stop,) = [line.partition(": ")[2] for line in printed.splitlines() if "to ask it to stop: " in line]
    assert typed(stop).endswith(" was asked to stop, and will run until the handler ends\n")
    forced = typed(asks.partition(": ")[2]).splitlines()[-1]
    assert "to cancel it immediately: " in forced
    assert typed(forced.partition(": ")[2]).endswith(" was cancelled\n")
    outbox.worker(concurrency=1).run(burst=True)
    assert database.store.get(second).status is TaskStatus.COMPLETED


@pytest.mark.in_turn
@pytest.mark.parametrize("case", ["no worker", "task unknown", "topic unwanted"])
def test_the_printed_command_starts_a_worker_that_runs_the_task(database, outbox, case):
    sentence = "no live worker serves its queue 'mail'"
    if case == "task unknown":
        alive(database, task_names=["tests.other"])
        sentence = "no live worker for its queue and topic knows the task 'tests.work'"
    if case == "topic unwanted":
        alive(database, topics=["order.*"])
        sentence = "no live worker on its queue handles tasks without a topic"
    task_id = put(database)
    said, lines = read_and_cure(database, task_id)
    assert sentence in said
    assert lines == [f"outboxq worker {APP} -q mail"]
    assert database.store.get(task_id).status is TaskStatus.COMPLETED


@pytest.mark.in_turn
def test_a_paused_queue_without_a_worker_is_cured_step_by_step(database, outbox):
    database.store.queues.pause("mail", create=True)
    task_id = put(database, delay=HOUR)
    _, lines = read_and_cure(database, task_id)
    assert [line.partition(f" {task_id}")[0].partition(" -A")[0] for line in lines] == [
        "outboxq task run-now",
        "outboxq queue resume mail",
        f"outboxq worker {APP} -q mail",
    ]
