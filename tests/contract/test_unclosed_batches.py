"""A batch whose block raised an error: its commit is prevented if possible. Otherwise, the batch is shown as Unclosed."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy.orm import Session

from outboxq import InvalidTarget, Outbox, RetryPolicy, TaskContext
from outboxq.cli import main
from outboxq.model.batches import BatchStatus
from outboxq.store import HealthLimits, Rule
from outboxq.task.batches import OpenBatch
from tests.conftest import Database

CANNOT = r"cannot be committed: the `with` block of batch .* raised an error, so the batch is incomplete \(ZeroDivisionError: .*\); roll the"


@pytest.fixture
def outbox(database: Database) -> Outbox:
    outbox = Outbox(database.host)

    @outbox.task(name="leaf")
    def leaf() -> None: ...

    return outbox


def unclosed(outbox: Outbox, database: Database, **options: Any) -> OpenBatch[Any]:
    """A batch that was committed although its block raised an error. A driver's own connection allows that commit."""
    raw: Any = database.host.raw_connection()
    if database.name == "sqlite":
        raw.execute("BEGIN IMMEDIATE")
    with suppress(ZeroDivisionError), outbox.batch(using=raw.driver_connection, **options) as batch:
        if "leaf" in outbox.tasks:
            outbox.tasks.get("leaf").using(batch).enqueue()
        _ = 1 // 0
    raw.commit()
    raw.close()
    return batch


def fail_in_block(outbox: Outbox, using: Any) -> OpenBatch[Any]:
    with suppress(ZeroDivisionError), outbox.batch(using=using) as batch:
        outbox.tasks.get("leaf").using(batch).enqueue()
        _ = 1 // 0
    return batch


def said(database: Database, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--url", database.url])


def test_a_session_whose_batch_block_failed_cannot_be_committed(outbox: Outbox, database: Database) -> None:
    with Session(database.host) as session:
        fail_in_block(outbox, session)
        with pytest.raises(InvalidTarget, match=CANNOT):
            session.commit()
        session.rollback()
        outbox.tasks.get("leaf").using(session).enqueue()
        session.commit()
    assert database.counts()[0] == 1
    assert outbox.store.batches.list() == []


def test_a_connection_whose_batch_block_failed_cannot_be_committed(outbox: Outbox, database: Database) -> None:
    with database.host.connect() as connection:
        with pytest.raises(InvalidTarget, match=CANNOT), connection.begin():
            fail_in_block(outbox, connection)
        with connection.begin():
            outbox.tasks.get("leaf").using(connection).enqueue()
    assert database.counts()[0] == 1
    assert outbox.store.batches.list() == []


def test_rolling_back_a_savepoint_allows_the_commit_again(outbox: Outbox, database: Database) -> None:
    with Session(database.host) as session, session.begin():
        with suppress(ZeroDivisionError), session.begin_nested(), outbox.batch(using=session) as batch:
            outbox.tasks.get("leaf").using(batch).enqueue()
            _ = 1 // 0
        outbox.tasks.get("leaf").using(session, priority=7).enqueue()
    assert [task.priority for task in outbox.store.tasks()] == [7]
    assert outbox.store.batches.list() == []


def test_releasing_a_savepoint_does_not_allow_the_commit(outbox: Outbox, database: Database) -> None:
    with Session(database.host) as session, pytest.raises(InvalidTarget, match=CANNOT), session.begin():
        savepoint = session.begin_nested()
        fail_in_block(outbox, session)
        savepoint.commit()
    assert database.counts() == (0, 0, 0)


def test_a_transactional_task_whose_batch_block_failed_fails(outbox: Outbox, database: Database) -> None:
    @outbox.task(name="maker", transactional=True, retry=RetryPolicy.never())
    def maker(ctx: TaskContext) -> None:
        fail_in_block(outbox, ctx)

    maker.using(outbox).enqueue()
    outbox.worker(notifications=False).run(burst=True)
    (letter,) = outbox.store.dead_letters.list()
    assert "InvalidTarget: this transaction cannot be committed" in str(letter.last_error)
    assert outbox.store.batches.list() == []


def test_every_command_reports_an_unclosed_batch_as_a_problem(outbox: Outbox, database: Database) -> None:
    then = outbox.tasks.get("leaf").call()
    batch = unclosed(outbox, database, then=then, name="may")
    cancel = f"batch cancel {batch.id}"
    assert outbox.store.batches.get(batch.id).status is BatchStatus.UNCLOSED
    outbox.worker(notifications=False).run(burst=True)
    checked = said(database, "check")
    assert checked.exit_code == 1
    assert (
        f"batch_unclosed: the batch 'may' ({batch.id}) is not closed: its `with` block raised an error"
        in checked.stdout
    )
    assert cancel in checked.stdout
    assert said(database, "check", "--no-batches").exit_code == 0
    (problem,) = outbox.store.health(HealthLimits())
    assert problem.rule is Rule.BATCH_UNCLOSED
    assert [(one.name, one.examples) for one in outbox.store.verify()] == [("batch_not_closed", (batch.id,))]
    listed = said(database, "batch", "list")
    assert "Unclosed" in listed.stdout
    assert cancel in listed.stderr
    shown = said(database, "batch", "show", str(batch.id))
    assert "the batch's with block raised an error" in shown.stdout
    assert cancel in shown.stdout
    assert json.loads(said(database, "batch", "show", str(batch.id), "--json").stdout)["status"] == "Unclosed"
    explained = said(database, "task", "explain", str(batch.then_id)).stdout
    assert "it will never be enqueued" in explained
    assert cancel in explained
    ended = said(database, "batch", "cancel", str(batch.id), "--yes")
    assert ended.exit_code == 0, ended.output
    assert outbox.store.batches.get(batch.id).status is BatchStatus.CANCELLED
    assert said(database, "check").stdout == "all is well\n"
