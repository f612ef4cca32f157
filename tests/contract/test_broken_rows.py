"""A row that foreign SQL broke keeps no worker from other tasks, and every command still works."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from click.testing import CliRunner

from outboxq import Outbox
from outboxq.cli import main
from outboxq.model import TaskStatus
from outboxq.model.batches import BatchLink
from outboxq.model.schedules import NewSchedule
from tests.contract.planting import run_or_plant


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A statement of foreign SQL, and the tasks that still run."""

    statement: str
    ran: frozenset[str] = frozenset({"member", "report", "other"})


WITHOUT_REPORT = frozenset({"member", "other"})
BROKEN = {
    "what follows is not JSON": Broken(statement="UPDATE task_batches SET then_tasks = '[{'", ran=WITHOUT_REPORT),
    "what follows is no list of tasks": Broken(
        statement="UPDATE task_batches SET then_tasks = '[1]'", ran=WITHOUT_REPORT
    ),
    "what follows is gone": Broken(statement="UPDATE task_batches SET then_tasks = NULL", ran=WITHOUT_REPORT),
    "the stage is ahead": Broken(statement="UPDATE task_batches SET stage = 1", ran=WITHOUT_REPORT),
    "the batch is gone": Broken(statement="DELETE FROM task_batches", ran=WITHOUT_REPORT),
    "headers": Broken(statement="UPDATE task_executions SET headers = 'forged'"),
    "the rule of a schedule": Broken(statement="UPDATE task_schedules SET rule = 'forged'"),
    "the zone of a schedule": Broken(statement="UPDATE task_schedules SET tz = 'Mars/Base'"),
    "the arguments of a schedule": Broken(statement="UPDATE task_schedules SET args = 'forged'"),
    "half of a rate": Broken(statement="UPDATE queue_settings SET rate_seconds = NULL"),
    "half of the rate of a key": Broken(statement="UPDATE queue_settings SET key_rate_seconds = NULL"),
}
COMMANDS = (
    ("status",),
    ("check",),
    ("batch", "list"),
    ("batch", "show", "{batch}"),
    ("task", "list"),
    ("task", "explain", "{report}"),
    ("schedule", "list"),
    ("queue", "list"),
)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_row_stops_no_other_task_and_no_command(database, name):
    database.corrupted = True
    outbox, ran = Outbox(database.url), set()

    @outbox.task(name="member", queue="keyed")
    def member():
        ran.add("member")

    @outbox.task(name="report")
    def report():
        ran.add("report")

    @outbox.task(name="other")
    def other():
        ran.add("other")

    with outbox.batch(using=outbox, then=report.call()) as batch:
        member.using(batch).enqueue()
    other.using(outbox).enqueue()
    outbox.store.schedules.put(NewSchedule(name="nightly", task_name="other", rule="0 3 * * *"))
    outbox.store.queues.limit("default", rate=(100, 60))
    outbox.store.queues.limit("keyed", rate_per_key=(100, 60))
    run_or_plant(database, BROKEN[name].statement)
    assert [one.meaning for one in outbox.store.verify()]
    for command in COMMANDS:
        words = [word.format(batch=batch.id, report=BatchLink(batch_id=batch.id, number=1).task_id) for word in command]
        answer = CliRunner().invoke(main, [*words, "--url", database.url])
        assert answer.exception is None or isinstance(answer.exception, SystemExit), (command, answer.exception)
    assert outbox.worker(concurrency=1).run(burst=True) == 0
    assert ran == BROKEN[name].ran
    outbox.store.bound_engine.dispose()


FULL = (
    '{"on_failed": "wait", "size": 2147483647, "completed": 2147483647, "failed": 2147483646, "cancelled": 2147483646}'
)


def test_counts_at_their_maximum_break_no_task_and_no_command(postgresql):
    postgresql.corrupted = True
    outbox, ran = Outbox(postgresql.url), []

    @outbox.task(name="member")
    def member():
        ran.append("member")

    with outbox.batch(using=outbox) as batch:
        handle = member.using(batch).enqueue()
    member.using(outbox).enqueue()
    postgresql.run(
        f"""
        WITH gone AS (DELETE FROM task_batches RETURNING task_batches)
        INSERT INTO task_batches SELECT (jsonb_populate_record(task_batches, '{FULL}')).* FROM gone
        """
    )
    outbox.worker(concurrency=1).run(burst=True)
    outbox.store.overview()
    for command in (*COMMANDS, ("verify", "--repair")):
        words = [word.format(batch=batch.id, report=handle.id) for word in command]
        answer = CliRunner().invoke(main, [*words, "--url", postgresql.url])
        assert answer.exception is None or isinstance(answer.exception, SystemExit), (command, answer.exception)
    assert ran == ["member", "member"]
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED
    outbox.store.bound_engine.dispose()
