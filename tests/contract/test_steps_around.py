"""Durable steps in pruning and in the commands."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime, timedelta

from click.testing import CliRunner
from sqlalchemy import text

from outboxq import EventType, Outbox, RetryPolicy, TaskContext
from outboxq.cli import main
from outboxq.model import Outcome
from outboxq.store import NewStep
from tests.contract import helpers
from tests.waiting import until


def stepped(database, *names, **fields):
    """A running task with these steps."""
    claim = helpers.claimed(database, **fields)
    for number, name in enumerate(names, 1):
        database.frozen.steps.complete(claim, NewStep(name=name, number=number, result=f'"of {name}"'))
    return claim


def steps_left(database):
    return database.rows("SELECT count(*) FROM task_steps")[0][0]


def test_a_prune_deletes_only_the_steps_of_its_tasks(database):
    database.frozen.complete(stepped(database, "one", "two"))
    running = stepped(database, "three")
    database.clock.advance(timedelta(hours=1))
    assert database.frozen.prune(0, batch=1) == 1
    assert [step.name for step in database.frozen.steps.list(running.id)] == ["three"]
    assert steps_left(database) == 1


# Commands


def outboxq(database, *words, exit_code=0):
    environment = {"OUTBOXQ_DATABASE_URL": database.url}
    result = CliRunner().invoke(main, [str(one) for one in words], env=environment, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def dead_letter(database):
    """A dead letter of three steps, the second of which is a sleep."""
    claim = stepped(database, "charge")
    database.frozen.steps.complete(claim, NewStep(name="nap", number=2, delay=timedelta(hours=1)))
    database.frozen.steps.complete(claim, NewStep(name="ship\x1b[2J", number=3, result='"secret"'))
    database.frozen.fail(claim, "no")
    return claim.id


def test_steps_of_a_task_are_listed_and_results_only_on_request(database):
    task_id = dead_letter(database)
    listed = outboxq(database, "task", "steps", task_id).stdout
    assert [line.split("\t")[:2] for line in listed.splitlines()[1:]] == [
        ["1", "charge"], ["2", "nap"], ["3", "ship\\x1b[2J"],
    ]  # fmt: skip
    assert "2030-01-01 13:00:00" in listed
    assert "secret" not in listed
    assert "secret" in outboxq(database, "task", "steps", task_id, "--show-results").stdout
    [charge, nap, _] = json.loads(outboxq(database, "task", "steps", task_id, "--json").stdout)
    assert (charge["name"], charge["number"], charge["due_at"]) == ("charge", 1, None)
    assert datetime.fromisoformat(nap["due_at"]) == datetime(2030, 1, 1, 13, tzinfo=UTC)
    assert "result" not in charge
    shown = outboxq(database, "task", "show", task_id).stdout
    assert "charge" in shown
    assert "step: charge" in shown
    assert outboxq(database, "task", "steps", database.add().id).stdout.splitlines()[1:] == []
    outboxq(database, "task", "steps", "0" * 32, exit_code=3)


def test_a_rerun_asks_first_and_lists_the_steps_to_delete(database, monkeypatch):
    monkeypatch.setenv("OUTBOXQ_OPERATOR", "ann")
    task_id = dead_letter(database)
    rerun = ("task", "rerun", task_id, "--from", "nap")
    refused = outboxq(database, *rerun, exit_code=2)
    assert "without a terminal, nobody can confirm" in refused.stderr
    would = outboxq(database, *rerun, "--dry-run").stdout
    assert "2 would be deleted" in would
    assert "2  nap" in would
    assert len(database.frozen.steps.list(task_id)) == 3
    assert outboxq(database, *rerun, "--yes", "--reason", "late").stdout == "Ready; 2 steps run again\n"
    assert [step.name for step in database.frozen.steps.list(task_id)] == ["charge"]
    events = database.frozen.history(task_id)
    assert events[-1].event_type is EventType.REWOUND
    assert events[-1].event_data["reason"] == "late (by ann on the command line)"


def test_an_impossible_rerun_and_its_dry_run_are_refused(database):
    claim = stepped(database, "one")
    for words in ((), ("--dry-run",), ("--yes",)):
        refused = outboxq(database, "task", "rerun", claim.id, "--from", "one", *words, exit_code=1)
        assert "is Running, so its steps cannot be rewound" in refused.stderr
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED)])
    refused = outboxq(database, "task", "rerun", claim.id, "--from", "other", "--dry-run", exit_code=1)
    assert "has no step 'other'; it has 'one'" in refused.stderr


# Handlers in child processes


def test_steps_of_a_handler_in_a_child_process_are_kept_if_the_child_dies(database, tmp_path):
    database.run("CREATE TABLE notes (note TEXT)")
    outbox, journal = Outbox(database.engine), tmp_path / "journal"

    def note(name: str) -> int:
        with journal.open("a") as lines:
            lines.write(f"{name}\n")
        return os.getpid()

    def book(ctx: TaskContext) -> int:
        ctx.connection.execute(text("INSERT INTO notes VALUES ('booked')"))
        return note("book")

    def die(ctx: TaskContext) -> None:
        note("die")
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @outbox.task(name="stepped", retry=RetryPolicy(max_attempts=2, wait=0))
    def stepped(ctx: TaskContext) -> list[int]:
        found = [ctx.step("plain", note, "plain"), ctx.step("book", book, transactional=True)]
        ctx.step("die", die)
        return [*found, os.getpid()]

    handle = stepped.using(outbox).enqueue()
    worker = outbox.worker(isolation="process", poll=0.05, recover_every=60)
    worker.start()
    try:
        until(lambda: database.store.get(handle.id).completed_at)
    finally:
        worker.stop()
    first, second, last = outbox.result(handle.id, timeout=0)
    assert first == second != last
    assert os.getpid() not in {first, last}
    assert journal.read_text().splitlines() == ["plain", "book", "die", "die"]
    assert database.rows("SELECT note FROM notes") == [("booked",)]
    database.run("DROP TABLE notes")
