"""`outboxq batch`: its output and its refusals."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from outboxq.cli import main
from outboxq.model import TaskStatus
from outboxq.model.batches import BatchKind, BatchStatus, NewBatch, new_batch_id
from tests.conftest import Database
from tests.contract.helpers import batch_with
from tests.contract.test_batches import new_task


def said(database: Database, *words: str) -> Result:
    return CliRunner().invoke(main, ["batch", *words, "--url", database.url], catch_exceptions=False)


@pytest.fixture
def batch(database: Database) -> NewBatch:
    batch = batch_with(new_task("tests.then"), name="may")
    store = database.store
    store.batches.create(batch)
    for _ in range(3):
        database.add(store, pipeline_execution_id=batch.id)
    store.batches.close(batch.id)
    (claim,) = database.claim(store=store)
    store.complete(claim)
    return batch


def test_batches_are_listed_and_shown(database: Database, batch: NewBatch) -> None:
    chain = NewBatch(id=new_batch_id(), kind=BatchKind.CHAIN)
    database.store.batches.create(chain)
    database.store.batches.close(chain.id)
    listed = said(database, "list").stdout
    assert "may" in listed
    assert str(chain.id) in listed
    assert [one["id"] for one in json.loads(said(database, "list", "--open", "--json").stdout)] == [str(batch.id)]
    shown = said(database, "show", str(batch.id)).stdout
    assert "3; 2 have not ended" in shown
    assert f"tests.then {batch.then[0].id} (not enqueued)" in shown
    record = json.loads(said(database, "show", str(batch.id), "--json").stdout)
    assert (record["pending"], record["status"], record["statuses"]) == (2, "Running", {"Completed": 1, "Ready": 2})


def test_tasks_that_have_not_completed_are_listed_with_failed_tasks_first(database: Database, batch: NewBatch) -> None:
    (claim,) = database.claim(store=database.store)
    database.store.fail(claim, "line 7 has no price")
    *_, first, second = said(database, "show", str(batch.id)).stdout.splitlines()
    assert first.split("\t")[0] == str(claim.id)
    assert first.split("\t")[2:] == ["Failed", "line 7 has no price"]
    assert second.split("\t")[2] == "Ready"
    assert said(database, "cancel", str(batch.id), "--yes").stdout.endswith(
        "1 task was cancelled or asked to stop, and no task follows it\n"
    )


def test_the_json_has_the_same_tasks_without_their_results(database: Database, batch: NewBatch) -> None:
    (claim,) = database.claim(store=database.store)
    database.store.fail(claim, "line 7 has no price")
    record = json.loads(said(database, "show", str(batch.id), "--json").stdout)
    failed, ready = record["not_completed"]
    assert (failed["id"], failed["status"], failed["error"]) == (str(claim.id), "Failed", "line 7 has no price")
    assert (ready["task_name"], ready["status"]) == ("tests.work", "Ready")
    assert "result" not in failed
    assert record["not_completed_omitted"] == 0


def test_only_some_of_many_tasks_are_listed(database: Database) -> None:
    batch = NewBatch(id=new_batch_id(), closed=True)
    database.store.batches.create(batch)
    for _ in range(22):
        database.add(database.store, pipeline_execution_id=batch.id)
    shown = said(database, "show", str(batch.id))
    assert shown.stdout.count("\tReady\t") == 20
    assert shown.stderr.startswith("2 more: ")
    assert f" task list --batch {batch.id} " in shown.stderr
    record = json.loads(said(database, "show", str(batch.id), "--json").stdout)
    assert (len(record["not_completed"]), record["not_completed_omitted"]) == (20, 2)


def test_all_tasks_of_a_batch_are_listed_page_by_page(database: Database, batch: NewBatch) -> None:
    database.add(database.store)
    words = ["task", "list", "--batch", str(batch.id), "--limit", "2", "--url", database.url]
    listed = CliRunner().invoke(main, words, catch_exceptions=False)
    (following,) = listed.stderr.splitlines()
    words = following.partition("main ")[2].split()
    older = CliRunner().invoke(main, words, catch_exceptions=False)
    ids = [line.split("\t")[0] for one in (listed, older) for line in one.stdout.splitlines() if "tests.work" in line]
    assert ids == [str(one.id) for one in database.store.tasks(batch=batch.id)]
    assert len(set(ids)) == 3
    wrong = CliRunner().invoke(main, ["task", "list", "--batch", ids[0], "--url", database.url])
    assert (wrong.exit_code, "is not the id of a batch or a chain" in wrong.stderr) == (1, True)


def test_show_notes_that_the_last_task_of_a_chain_is_not_counted(database: Database) -> None:
    chain = batch_with(new_task("tests.then"), kind=BatchKind.CHAIN)
    database.store.batches.create(chain)
    assert "0 before the last; 0 have not ended" in said(database, "show", str(chain.id)).stdout
    database.store.batches.close(chain.id)


def test_a_batch_is_cancelled_only_after_confirmation(database: Database, batch: NewBatch) -> None:
    refused = said(database, "cancel", str(batch.id))
    assert refused.exit_code == 2
    assert "--yes" in refused.output
    planned = said(database, "cancel", str(batch.id), "--dry-run")
    assert (planned.exit_code, "2" in planned.output) == (0, True)
    assert database.store.batches.get(batch.id).status is BatchStatus.RUNNING
    done = said(database, "cancel", str(batch.id), "--yes", "--reason", "wrong file")
    assert (
        done.stdout
        == f"the batch {batch.id} is cancelled: 2 tasks were cancelled or asked to stop, and no task follows it\n"
    )
    assert database.store.batches.get(batch.id).status is BatchStatus.CANCELLED


@pytest.mark.parametrize("how", ["--yes", "--dry-run"])
def test_cancelling_a_completed_batch_is_refused_with_its_completion_time(
    database: Database, batch: NewBatch, how: str
) -> None:
    for _ in range(2):
        (claim,) = database.claim(store=database.store)
        database.store.complete(claim)
    at = database.store.batches.get(batch.id).completed_at
    refused = said(database, "cancel", str(batch.id), how)
    finished = CliRunner().invoke(main, ["task", "cancel", str(claim.id), "--url", database.url])
    assert refused.exit_code == finished.exit_code == 1
    assert refused.stdout == ""
    assert f"the batch {batch.id} completed at {at:%Y-%m-%d %H:%M:%S} UTC, so nothing was cancelled" in refused.stderr
    assert f"to cancel the task that follows, use its own id: {batch.then[0].id}" in refused.stderr
    assert database.store.get(batch.then[0].id).status is TaskStatus.READY


def test_a_second_cancel_of_a_batch_is_refused(database: Database, batch: NewBatch) -> None:
    assert said(database, "cancel", str(batch.id), "--yes").exit_code == 0
    again = said(database, "cancel", str(batch.id), "--yes")
    assert (again.exit_code, "ended as Cancelled at" in again.stderr) == (1, True)


def test_an_unknown_batch_is_reported(database: Database) -> None:
    unknown = said(database, "show", str(new_batch_id()))
    assert (unknown.exit_code, "there is no batch" in unknown.output) == (3, True)
    words = ["task", "list", "--batch", str(new_batch_id()), "--url", database.url]
    unknown = CliRunner().invoke(main, words, catch_exceptions=False)
    assert (unknown.exit_code, unknown.stdout, "there is no batch" in unknown.stderr) == (3, "", True)


def test_a_dry_run_of_prune_lists_no_task_that_its_batch_still_needs(database: Database, batch: NewBatch) -> None:
    alone = database.add(database.store)
    claims = database.claim(3, store=database.store)
    [mine] = [claim for claim in claims if claim.id == alone.id]
    database.store.complete(mine)
    command = ["prune", "--older-than", "0s", "--dry-run", "--url", database.url]
    found = CliRunner().invoke(main, command, catch_exceptions=False).stdout
    assert ": 1 would be deleted\n" in found
    assert found.count("  tests.work  Completed") == 1
    assert f"{alone.id}  tests.work  Completed" in found
